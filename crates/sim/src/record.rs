//! What the test service saw, shared by all shards of a run, and checked as it happens.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use throng_io::ConnId;

/// The record of one run.
pub type SharedRecord = Rc<RefCell<Record>>;

/// One WebSocket session.
#[derive(Debug)]
pub struct Session {
    /// Its connection.
    pub id: ConnId,
    /// The code that `on_close` told.
    pub closed: Option<u16>,
    /// Hashes of the messages that came, in order.
    pub handled: Vec<u64>,
    /// Hashes of the answers that were accepted for sending, in order.
    pub answered: Vec<u64>,
    /// Publications that must have reached it if it ended in good order: channel, publisher, number.
    pub due: Vec<(String, u32, u32)>,
    /// Publications that it may have got.
    pub possible: BTreeSet<(String, u32, u32)>,
    /// Private messages sent to it: sender and number.
    pub private: BTreeSet<(u32, u32)>,
    /// A send said `Queued` or `Dropped`, and `on_drain` has not come since.
    pub behind: bool,
}

/// A publication on its way to another shard.
#[derive(Clone, Debug)]
pub struct Letter {
    /// Where to.
    pub shard: usize,
    /// Channel, publisher and number.
    pub what: (String, u32, u32),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Record {
    /// Sessions by peer number.
    pub sessions: BTreeMap<u32, Session>,
    /// Every rule that was broken.
    pub violations: Vec<String>,
    /// Panics that the service was asked for.
    pub planned_panics: u64,
    /// Members of each channel of each shard, as they should be.
    pub members: BTreeMap<(usize, String), BTreeSet<u32>>,
    /// Publications that the other shards have not taken yet.
    pub letters: Vec<Letter>,
    /// Publications made by each peer.
    pub published: BTreeMap<u32, u32>,
    /// Everything that was sent to another connection by its id.
    pub private_sent: BTreeMap<u32, u32>,
    /// What happened, as a hash.
    pub trace: crate::rng::Trace,
    /// Requests that were refused at the door.
    pub refused: u64,
    /// Sessions opened.
    pub opened: u64,
    /// Sessions closed.
    pub closed: u64,
    /// Tells the callbacks on the standard error stream.
    pub log: bool,
}

impl Record {
    /// Notes a broken rule.
    pub fn violation(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    /// The open session of a peer; a violation if there is none.
    pub fn session(&mut self, peer: u32, id: ConnId, call: &str) -> Option<&mut Session> {
        self.trace.mix_bytes(call.as_bytes());
        self.trace.mix(id.to_bits());
        self.say(call, id);
        let fault = match self.sessions.get(&peer) {
            None => Some("before on_open"),
            Some(session) if session.id != id => Some("for another connection"),
            Some(session) if session.closed.is_some() => Some("after on_close"),
            Some(_) => None,
        };
        if let Some(fault) = fault {
            self.violation(format!("{call} of peer {peer} {fault}"));
            return None;
        }
        self.sessions.get_mut(&peer)
    }

    /// Tells of a callback.
    pub fn say(&self, call: &str, id: ConnId) {
        if self.log {
            eprintln!("{:>15}  {call} {id:?}", "");
        }
    }

    /// Removes a peer from every channel of its shard.
    pub fn forget_member(&mut self, shard: usize, peer: u32) {
        for ((at, _), members) in &mut self.members {
            if *at == shard {
                members.remove(&peer);
            }
        }
    }

    /// Members of a channel on a shard.
    #[must_use]
    pub fn members_of(&self, shard: usize, channel: &str) -> BTreeSet<u32> {
        self.members.get(&(shard, channel.to_owned())).cloned().unwrap_or_default()
    }
}
