//! Filters of receivers: the publications that a session wants.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use throng_io::ConnId;

use crate::conn::map::ConnMap;
use crate::connections::Connections;
use crate::drop_guarded::drop_guarded;
use crate::message::Fault;
use crate::outbox::frame::Frame;
use crate::outbox::sent::Sent;
use crate::pubsub::delivery::Delivery;

use super::send::Published;

/// Returns whether a session wants a publication.
pub type WantedBy = Box<dyn Fn(&Frame) -> bool + Send>;

/// The filters of those sessions that have one.
#[derive(Default)]
pub(super) struct Wanted(ConnMap<WantedBy>);

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Wanted {
    /// Removes the filter of a connection that ends.
    pub(super) fn leave(&mut self, id: ConnId) -> Option<WantedBy> {
        if self.0.is_empty() { None } else { self.0.remove(&id) }
    }
}

impl Connections {
    /// Sets the filter of a session, or removes it.
    pub(crate) fn set_wanted(&mut self, id: ConnId, wanted: Option<WantedBy>) {
        let before = match wanted {
            Some(wanted) if self.is_open(id) => self.wanted.0.insert(id, wanted),
            _ => self.wanted.0.remove(&id),
        };
        self.drop_wanted(before);
    }

    /// Drops a filter, whose captured values may panic.
    pub(super) fn drop_wanted(&mut self, wanted: Option<WantedBy>) {
        let panicked = wanted.is_some_and(drop_guarded);
        self.stats.handler_panics += u64::from(panicked);
    }

    /// Returns whether any session of this shard has a filter. It is read once for a publication.
    pub(crate) fn have_filters(&self) -> bool {
        !self.wanted.0.is_empty()
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
        let Some(wanted) = self.wanted.0.get(&id) else { return true };
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
                let filter = self.wanted.0.remove(&id);
                self.drop_wanted(filter);
                self.count_panic();
                self.end_by_panic(id, Fault::Panic { route: None });
                delivery.count(Sent::Closed);
            }
        }
        false
    }
}
