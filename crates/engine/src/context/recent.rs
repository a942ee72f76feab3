//! Members that joined a channel with history while publications to it may have been on their way.

use std::collections::HashMap;
use std::sync::Arc;

use throng_io::ConnId;

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
}

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
        self.newer.is_empty() && self.older.is_empty()
    }

    /// Returns whether a member has got this publication already.
    pub(crate) fn has_got(&self, id: ConnId, channel: &Arc<str>, offset: u64) -> bool {
        let key = (id, Arc::clone(channel));
        let up_to = self.newer.get(&key).max(self.older.get(&key));
        up_to.is_some_and(|up_to| offset <= *up_to)
    }
}
