//! Filters of receivers: the publications that a session wants.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use throng_io::ConnId;

use crate::conn::map::ConnMap;
use crate::connections::Connections;
use crate::connections::dialect::{Dialect, Dialects};
use crate::drop_guarded::drop_guarded;
use crate::message::Fault;
use crate::outbox::frame::Frame;
use crate::outbox::sent::Sent;
use crate::pubsub::delivery::Delivery;

use super::send::Published;

/// Returns whether a session wants a publication.
pub type WantedBy = Box<dyn Fn(&Frame) -> bool + Send>;

/// The filters and dialects of those sessions that have one.
#[derive(Default)]
pub(super) struct Wanted {
    filters: ConnMap<WantedBy>,
    dialects: Dialects,
    /// Whether there is any such session.
    has_any: bool,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.filters.keys()).finish()
    }
}

impl Wanted {
    /// Removes the filter and the dialect of a connection that ends.
    pub(super) fn leave(&mut self, id: ConnId) -> Option<WantedBy> {
        if !self.has_any {
            return None;
        }
        self.dialects.leave(id.slot());
        let filter = self.filters.remove(&id);
        self.count();
        filter
    }

    pub(super) fn dialects(&self) -> &Dialects {
        &self.dialects
    }

    /// Sets the dialect of the session in a slot.
    pub(super) fn set_dialect(&mut self, slot: usize, dialect: Arc<dyn Dialect>) {
        self.dialects.set(slot, dialect);
        self.count();
    }

    /// Looks whether there is any session with a filter or a dialect.
    fn count(&mut self) {
        self.has_any = !self.filters.is_empty() || !self.dialects.is_empty();
    }
}

impl Connections {
    /// Sets the filter of a session, or removes it.
    pub(crate) fn set_wanted(&mut self, id: ConnId, wanted: Option<WantedBy>) {
        let before = match wanted {
            Some(wanted) if self.is_open(id) => self.wanted.filters.insert(id, wanted),
            _ => self.wanted.filters.remove(&id),
        };
        self.wanted.count();
        self.drop_wanted(before);
    }

    /// Drops a filter, whose captured values may panic.
    pub(super) fn drop_wanted(&mut self, wanted: Option<WantedBy>) {
        let panicked = wanted.is_some_and(drop_guarded);
        self.stats.handler_panics += u64::from(panicked);
    }

    /// Returns whether any session of this shard has a filter or a dialect. It is read once for a
    /// publication.
    pub(crate) fn have_views(&self) -> bool {
        self.wanted.has_any
    }

    /// Returns whether a receiver wants a publication, and counts it otherwise. A filter that
    /// panics ends its own session: the publisher is not to blame.
    #[cold]
    pub(crate) fn is_wanted(
        &mut self,
        id: ConnId,
        frame: &Frame,
        of: Published<'_>,
        delivery: &mut Delivery,
    ) -> bool {
        let Some(wanted) = self.wanted.filters.get(&id) else { return true };
        let answer = catch_unwind(AssertUnwindSafe(|| wanted(frame)));
        match answer {
            Ok(true) => return true,
            Ok(false) => {
                delivery.filtered += 1;
                self.count_unwanted(id, of);
            }
            Err(payload) => {
                // Its `Drop` could panic; the panic hook has reported it.
                std::mem::forget(payload);
                let filter = self.wanted.filters.remove(&id);
                self.wanted.count();
                self.drop_wanted(filter);
                self.count_panic();
                self.end_by_panic(id, Fault::Panic { route: None });
                delivery.count(Sent::Closed);
            }
        }
        false
    }
}
