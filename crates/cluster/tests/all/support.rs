//! Members that record their deliveries from a node.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_cluster::redis::Members;
use throng_cluster::{Announcement, Control, Place, Tail, decode};

/// Publications that the members of one channel on one node have got.
#[derive(Debug, Default)]
pub(crate) struct Got {
    pub(crate) at: Option<Place>,
    pub(crate) payloads: Vec<Vec<u8>>,
    /// The members' current sequence, with the history that it began with.
    pub(crate) sequence: Vec<Vec<u8>>,
    pub(crate) losses: usize,
    pub(crate) gaps: usize,
    pub(crate) is_live: bool,
}

pub(crate) type Seen = Arc<[Mutex<Got>]>;

pub(crate) struct Recorder(pub(crate) Seen);

pub(crate) fn lock(got: &Mutex<Got>) -> MutexGuard<'_, Got> {
    got.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    pub(crate) fn of(&self, channel: &str) -> MutexGuard<'_, Got> {
        lock(&self.0[channel.strip_prefix("c").unwrap().parse::<usize>().unwrap()])
    }
}

impl Members for Recorder {
    fn begin(&mut self, channel: &Arc<str>, tail: Tail<Vec<u8>>, is_loss: bool) {
        let Tail { place, entries, .. } = tail;
        let mut got = self.of(channel);
        got.sequence = entries.iter().map(|(_, envelope)| payload(envelope)).collect();
        assert_eq!(is_loss, got.at.is_some());
        got.at = Some(place);
        got.losses += usize::from(is_loss);
    }

    fn deliver(&mut self, channel: &Arc<str>, place: Place, envelope: &[u8]) {
        let mut got = self.of(channel);
        let at = got.at.replace(place).expect("the sequence has begun");
        assert_eq!((at.epoch, at.offset + 1), (place.epoch, place.offset));
        got.payloads.push(payload(envelope));
        got.sequence.push(payload(envelope));
    }

    fn refill(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>) {
        unreachable!("nothing is fetched here");
    }

    fn live(&mut self, channel: &Arc<str>) {
        self.of(channel).is_live = true;
    }

    fn publish(&mut self, channel: &str, envelope: &[u8]) {
        self.of(channel).payloads.push(payload(envelope));
    }

    fn missed(&mut self, channel: &Arc<str>) {
        // Tests also follow channels that they do not record.
        let number = channel.strip_prefix('c').and_then(|number| number.parse::<usize>().ok());
        if let Some(got) = number.and_then(|number| self.0.get(number)) {
            lock(got).gaps += 1;
        }
    }

    fn end(&mut self, _: &Arc<str>) -> bool {
        true
    }

    fn presence(&mut self, _: &str, _: Announcement<'_>) {
        unreachable!("no channel has presence here");
    }

    fn control(&mut self, _: Control<'_>) {
        unreachable!("no node sends commands here");
    }

    fn subscribers(&mut self, _: &str) -> u64 {
        unreachable!("no node asks here");
    }
}

/// Returns the message of a publication.
pub(crate) fn payload(envelope: &[u8]) -> Vec<u8> {
    decode(envelope).unwrap().1.payload.to_vec()
}

/// Returns the name of a channel.
pub(crate) fn name(channel: usize) -> Arc<str> {
    format!("c{channel}").into()
}
