//! Members that joined a channel with history while publications to it may have been on their way.

use std::collections::HashMap;
use std::sync::Arc;

use throng_io::ConnId;

use crate::pubsub::history::Position;

type Joins = HashMap<(ConnId, Arc<str>), u64>;

/// Offsets up to which members have got a channel's publications from its history, as long as
/// commands with the same publications may wait for this shard.
///
/// Commands that wait when a member joins have been carried out when the queue was taken twice: the
/// first time those that had been taken are done, the second time those that were in the queue.
#[derive(Debug, Default)]
pub(crate) struct RecentJoins {
    newer: Joins,
    older: Joins,
    /// Members that get nothing yet, by channel: the broker is asked at which place they join.
    waiting: HashMap<Arc<str>, HashMap<ConnId, Waiting>>,
}

/// Where a client continues, and whether the broker was asked since it came.
type Waiting = (Option<Position>, bool);

impl RecentJoins {
    pub(crate) fn add(&mut self, id: ConnId, channel: Arc<str>, offset: u64) {
        self.newer.insert((id, channel), offset);
    }

    /// Forgets members whose commands have been carried out. To be called when the queue is taken.
    #[inline]
    pub(crate) fn queue_taken(&mut self) {
        if !self.newer.is_empty() || !self.older.is_empty() {
            self.older = std::mem::take(&mut self.newer);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.older.is_empty() && self.waiting.is_empty()
    }

    /// Has a member wait for the place at which it joins.
    pub(crate) fn wait(&mut self, id: ConnId, channel: &Arc<str>, since: Option<Position>) {
        self.waiting.entry(Arc::clone(channel)).or_default().insert(id, (since, false));
    }

    /// Notes that a member waits for one more answer, which is the last.
    pub(crate) fn ask_again(&mut self, id: ConnId, channel: &Arc<str>) {
        if let Some((_, is_asked)) =
            self.waiting.get_mut(channel).and_then(|members| members.get_mut(&id))
        {
            *is_asked = true;
        }
    }

    /// Returns the members that wait for a channel.
    pub(crate) fn waiting(&self, channel: &Arc<str>) -> Vec<ConnId> {
        self.waiting.get(channel).map(|all| all.keys().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn waits(&self, id: ConnId, channel: &Arc<str>) -> Option<Waiting> {
        self.waiting.get(channel)?.get(&id).copied()
    }

    pub(crate) fn stop_waiting(&mut self, id: ConnId, channel: &str) {
        if let Some(members) = self.waiting.get_mut(channel) {
            members.remove(&id);
            if members.is_empty() {
                self.waiting.remove(channel);
            }
        }
    }

    /// Forgets a connection that waits.
    pub(crate) fn forget(&mut self, id: ConnId) {
        if !self.waiting.is_empty() {
            self.waiting.retain(|_, members| {
                members.remove(&id);
                !members.is_empty()
            });
        }
    }

    /// Returns whether a member has got this publication already, or gets it later.
    pub(crate) fn has_got(&self, id: ConnId, channel: &Arc<str>, offset: u64) -> bool {
        if self.waits(id, channel).is_some() {
            return true;
        }
        let key = (id, Arc::clone(channel));
        let up_to = self.newer.get(&key).max(self.older.get(&key));
        up_to.is_some_and(|up_to| offset <= *up_to)
    }
}
