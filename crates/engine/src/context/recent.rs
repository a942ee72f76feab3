//! Members that joined a channel with history while publications to it may have been in flight.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use throng_io::{ConnId, Instant};

use crate::pubsub::history::{Position, Since};

/// Maximum time that a member waits for the broker.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Maximum members ended per second because they have waited too long: they reconnect, and should
/// not all do so at once.
const MAX_EXPIRED: usize = 1_024;

type Joins = HashMap<(ConnId, Arc<str>), Position>;

/// Positions up to which members have got a channel's publications from its history. A position is
/// kept as long as commands with the same publications may wait for this shard.
///
/// The commands that wait when a member joins have been carried out once the queue was taken twice:
/// after the first time, the commands that had already been taken are done; after the second, the
/// commands that were in the queue.
#[derive(Debug, Default)]
pub(crate) struct RecentJoins {
    newer: Joins,
    older: Joins,
    /// Members that get nothing yet, by channel: the broker is asked at which place they join.
    waiting: HashMap<Arc<str>, HashMap<ConnId, Waiting>>,
}

/// A member that gets nothing yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Where its client continues.
    pub(crate) since: Since,
    /// Whether the broker was asked since it came.
    pub(crate) is_asked: bool,
    from: Instant,
}

impl RecentJoins {
    pub(crate) fn add(&mut self, id: ConnId, channel: Arc<str>, place: Position) {
        self.newer.insert((id, channel), place);
    }

    /// Forgets members whose commands have been carried out. Must be called when the queue is
    /// taken.
    #[inline]
    pub(crate) fn queue_taken(&mut self) {
        if !self.newer.is_empty() || !self.older.is_empty() {
            self.older = std::mem::take(&mut self.newer);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.older.is_empty() && self.waiting.is_empty()
    }

    /// Makes a member wait for the place at which it joins.
    pub(crate) fn wait(&mut self, (id, from): (ConnId, Instant), channel: &Arc<str>, since: Since) {
        let waiting = Waiting { since, is_asked: false, from };
        self.waiting.entry(Arc::clone(channel)).or_default().insert(id, waiting);
    }

    /// Returns members that have waited for too long, and forgets that they do.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<ConnId> {
        let mut expired = Vec::new();
        self.waiting.retain(|_, members| {
            members.retain(|id, Waiting { from, .. }| {
                let is_over = now.since(*from) > MAX_WAIT && expired.len() < MAX_EXPIRED;
                if is_over {
                    expired.push(*id);
                }
                !is_over
            });
            !members.is_empty()
        });
        expired
    }

    /// Records that a member waits for one more answer, which is the last.
    pub(crate) fn ask_again(&mut self, id: ConnId, channel: &Arc<str>) {
        if let Some(waiting) =
            self.waiting.get_mut(channel).and_then(|members| members.get_mut(&id))
        {
            waiting.is_asked = true;
        }
    }

    /// Returns the members that wait for a channel.
    pub(crate) fn waiting(&self, channel: &Arc<str>) -> Vec<ConnId> {
        self.waiting.get(channel).map(|all| all.keys().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn waits(&self, id: ConnId, channel: &Arc<str>) -> Option<Waiting> {
        self.waiting.get(channel)?.get(&id).copied()
    }

    /// Forgets a member that waits, if it does.
    pub(crate) fn stop_waiting(&mut self, id: ConnId, channel: &str) {
        if let Some(members) = self.waiting.get_mut(channel) {
            members.remove(&id);
            if members.is_empty() {
                self.waiting.remove(channel);
            }
        }
    }

    /// Returns the members that wait for a channel, if there are any.
    #[inline]
    pub(crate) fn waiting_for(&self, channel: &str) -> Option<&HashMap<ConnId, Waiting>> {
        self.waiting.get(channel)
    }

    /// Returns whether there are members that wait.
    #[inline]
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether a member already has this publication, or gets it later, or whether it
    /// belongs to a sequence other than the member's. Such a publication waited in the queue and is
    /// of an older sequence, since members do not stay when a new sequence begins.
    pub(crate) fn has_got(&self, id: ConnId, channel: &Arc<str>, place: Position) -> bool {
        if self.waits(id, channel).is_some() {
            return true;
        }
        let key = (id, Arc::clone(channel));
        let joined = self.newer.get(&key).or_else(|| self.older.get(&key));
        joined.is_some_and(|joined| joined.epoch != place.epoch || place.offset <= joined.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn those_that_wait_for_too_long_are_named_once_and_not_all_at_once() {
        let (mut recent, channel) = (RecentJoins::default(), Arc::from("a"));
        let id = |n: usize| ConnId::from_bits(n as u64);
        (0..=MAX_EXPIRED).for_each(|n| recent.wait((id(n), Instant(0)), &channel, Since::Now));
        recent.wait((id(MAX_EXPIRED + 1), Instant(9 * SECOND)), &channel, Since::Now);
        assert!(recent.expire(Instant(10 * SECOND)).is_empty());
        let first = recent.expire(Instant(11 * SECOND));
        let second = recent.expire(Instant(12 * SECOND));
        assert_eq!((first.len(), second.len()), (MAX_EXPIRED, 1));
        assert!(!first.contains(&second[0]) && recent.are_waiting());
        assert_eq!(recent.waiting(&channel), [id(MAX_EXPIRED + 1)]);
        recent.stop_waiting(id(MAX_EXPIRED + 1), &channel);
        assert!(!recent.are_waiting() && recent.is_empty());
    }

    #[test]
    fn members_get_what_follows_their_place_in_the_sequence_that_they_have_joined() {
        let (mut recent, channel) = (RecentJoins::default(), Arc::from("a"));
        let id = ConnId::from_bits(1);
        let place = |epoch, offset| Position { epoch, offset, tag: Some(offset) };
        recent.add(id, Arc::clone(&channel), place(2, 3));
        let has_got = |recent: &RecentJoins, at| recent.has_got(id, &channel, at);
        assert!(has_got(&recent, place(2, 3)) && !has_got(&recent, place(2, 4)));
        assert!(has_got(&recent, place(1, 9)), "it is of a sequence that has ended");
        // A member that left and rejoined is at its last position.
        recent.queue_taken();
        recent.add(id, Arc::clone(&channel), place(3, 1));
        assert!(has_got(&recent, place(2, 4)) && !has_got(&recent, place(3, 2)));
        recent.queue_taken();
        recent.queue_taken();
        assert!(!has_got(&recent, place(2, 1)) && recent.is_empty());
    }
}
