//! Requests of threads outside of the shards.

use super::World;
use crate::plan::Outside;
use crate::reader::Received;
use crate::record::{PendingCommand, Record, SentCommand, SharedRecord};
use crate::service::{filter_of, frame_of};

/// The number in messages from senders that are not peers.
pub const OUTSIDER: u32 = 9_000;

impl World {
    /// Performs an action of another thread on the server.
    pub fn act(&mut self, outside: Outside) {
        let record = SharedRecord::clone(&self.record);
        let mut record = record.borrow_mut();
        record.note_ended_streams();
        let (by, shards) = (OUTSIDER, self.plan.shards);
        self.net.borrow().say(|| format!("from outside: {outside:?}"));
        let sequence = match outside {
            Outside::Dismiss(_) => 0,
            _ => record.next_of(by),
        };
        let id = |record: &Record, peer| record.sessions.get(&peer).map(|session| session.id);
        let full = match outside {
            Outside::Publish { channel, key, except, fill } => {
                let what = Received::Published { channel: channel.clone(), by, sequence };
                let frame = frame_of(&what, &key, &"o".repeat(fill));
                let except_id = except.and_then(|peer| id(&record, peer));
                let command = SentCommand::Publish { channel, key, except, what };
                let SentCommand::Publish { channel, .. } = &command else { return };
                let receipt = self.remote.publish(channel, &frame, except_id);
                receipt.map(|receipt| record.send_to_all(shards, &command, receipt)).is_err()
            }
            Outside::Broadcast { mut audience, fill } => {
                let what = Received::Published { channel: "all".to_owned(), by, sequence };
                let filter = filter_of(&record, &mut audience);
                let receipt =
                    self.remote.broadcast(&filter, &frame_of(&what, "", &"o".repeat(fill)));
                let command = SentCommand::Broadcast { audience, what };
                receipt.map(|receipt| record.send_to_all(shards, &command, receipt)).is_err()
            }
            Outside::Send { to, fill } => {
                let Some(id) = id(&record, to) else { return };
                let what = Received::Private { to, by, sequence };
                let sent = self.remote.send(id, &frame_of(&what, "", &"o".repeat(fill)));
                let command = SentCommand::Send { to, what };
                record.commands.push(PendingCommand {
                    shard: id.shard(),
                    command,
                    receipt: None,
                    held_back: false,
                });
                sent.is_err()
            }
            Outside::Dismiss(peer) => {
                let stream = record.sessions.get(&peer).filter(|session| session.stream);
                let Some(id) = stream.map(|session| session.id) else { return };
                let command = SentCommand::Dismiss(peer);
                record.commands.push(PendingCommand {
                    shard: id.shard(),
                    command,
                    receipt: None,
                    held_back: false,
                });
                self.remote.close(id, 1000, "").is_err()
            }
        };
        if full {
            record.violation("a mailbox is full".to_owned());
        }
    }
}
