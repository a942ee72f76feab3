//! Publications from outside, and the resulting messages that peers received.

use throng_sim::plan::Outside;
use throng_sim::reader::Received;
use throng_sim::{Do, SECOND, World};

pub(crate) const MILLI: u64 = SECOND / 1000;

/// Publications of a scene, one every 10 ms from the first second on.
pub(crate) const COUNT: u32 = 200;
pub(crate) const FIRST_AT: u64 = SECOND;
pub(crate) const EVERY: u64 = 10 * MILLI;

/// Bytes of a publication in addition to its name.
pub(crate) const FILL: usize = 900;

pub(crate) fn text(text: &str) -> Do {
    Do::Message { text: true, payload: text.as_bytes().to_vec(), fragments: 1, pinging: false }
}

pub(crate) fn publish(key: &str) -> Outside {
    Outside::Publish { channel: "news".to_owned(), key: key.to_owned(), except: None, fill: FILL }
}

/// Returns the numbers of the received publications, in order.
pub(crate) fn sequences(world: &World, peer: usize) -> Vec<u32> {
    let received = world.peer(peer).reader.received.iter();
    received
        .map(|received| match received {
            Received::Published { sequence, .. } | Received::Private { sequence, .. } => *sequence,
            Received::Direct(_) => panic!("no direct message was sent"),
        })
        .collect()
}
