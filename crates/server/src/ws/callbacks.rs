//! The callbacks of a session except those for messages.

use throng_engine::EndReason;

use super::decision::{Decide, OnUpgrade};
use super::event::{EventKind, SessionEvent, Unpublished};
use super::socket::Socket;

/// Returns the hash of the key that places a session with this data.
type KeyFn<D> = dyn Fn(&D) -> u64 + Send + Sync;
type EventFn<D> = dyn Fn(&mut Socket<'_, D>, &mut D, SessionEvent<'_>) + Send + Sync;
type UnpublishedFn<D> = dyn Fn(&mut Socket<'_, D>, &mut D, Unpublished) + Send + Sync;

/// The callbacks of a session except those for messages, which are called for each read.
pub(crate) struct Callbacks<D> {
    pub(super) on_upgrade: OnUpgrade<D>,
    pub(super) key: Option<Box<KeyFn<D>>>,
    /// By [`EventKind`].
    events: [Option<Box<EventFn<D>>>; EventKind::COUNT],
    /// For events without a separate callback.
    pub(super) on_event: Option<Box<EventFn<D>>>,
    pub(super) on_unpublished: Option<Box<UnpublishedFn<D>>>,
}

impl<D> Callbacks<D> {
    pub(super) fn new(decide: Decide<D>) -> Self {
        Self {
            on_upgrade: OnUpgrade { decide, on_accept: None },
            key: None,
            events: Default::default(),
            on_event: None,
            on_unpublished: None,
        }
    }

    /// Sets the callback for one kind of events.
    pub(super) fn set<F>(&mut self, kind: EventKind, callback: F)
    where
        F: Fn(&mut Socket<'_, D>, &mut D, SessionEvent<'_>) + Send + Sync + 'static,
    {
        self.events[kind as usize] = Some(Box::new(callback));
    }

    pub(crate) fn on_event(&self, ws: &mut Socket<'_, D>, data: &mut D, event: SessionEvent<'_>) {
        let own = self.events[event.kind() as usize].as_ref();
        if let Some(callback) = own.or(self.on_event.as_ref()) {
            callback(ws, data, event);
        }
    }

    pub(crate) fn on_unpublished(&self, ws: &mut Socket<'_, D>, data: &mut D, lost: Unpublished) {
        match &self.on_unpublished {
            Some(callback) => callback(ws, data, lost),
            None => ws.close_for_with(EndReason::Publication, lost.text()),
        }
    }
}
