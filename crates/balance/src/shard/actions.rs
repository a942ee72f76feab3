//! Consequences of events, executed when their bytes are no longer lent.

use std::collections::VecDeque;

use throng_engine::Spares;
use throng_io::{Batch, ConnId, Instant};

use super::clients::Full;
use super::records::{ClientRecord, HIGH_WATER, HttpSide};
use crate::report::Failure;

/// A consequence of an event, to be executed when its bytes are no longer lent.
#[derive(Debug)]
pub(super) enum ConnAction {
    /// Find a backend for this client's request.
    Dispatch(ConnId),
    /// Send its outbox.
    Flush(ConnId),
    /// Begin TLS, the PROXY header has come.
    Secure(ConnId),
    /// Continue with the held bytes.
    Proceed(ConnId),
    /// Stop reading it until it is resumed.
    Pause(ConnId),
    /// The backend's side failed.
    Fail(ConnId, Failure),
    /// The answer to this client is complete.
    Complete(ConnId),
    /// Client and backend have agreed on WebSocket.
    Open { client: ConnId, upstream: ConnId },
    /// A tunnel's client has answered our Close frame.
    Answered(ConnId),
    /// Close it.
    Close(ConnId),
    /// Close it, since its place is needed: it is beyond this limit, or another client is.
    Evict(ConnId, Full),
    /// It is beyond a rate until then: do not read it. Whether its tunnel is also closed.
    Throttle(ConnId, Instant, bool),
    /// Close it with a reset: its data is incomplete, and must not look complete.
    Cut(ConnId),
}

/// Pending consequences, and memory for their output.
pub(super) struct ActionQueue {
    actions: VecDeque<ConnAction>,
    spares: Spares,
}

impl ActionQueue {
    pub(super) fn new() -> Self {
        Self { actions: VecDeque::new(), spares: Spares::small(64) }
    }

    pub(super) fn push(&mut self, action: ConnAction) {
        self.actions.push_back(action);
    }

    /// Adds an action that is executed before all others.
    pub(super) fn push_first(&mut self, action: ConnAction) {
        self.actions.push_front(action);
    }

    /// Stops reading a client whose requests are far ahead of the answers.
    pub(super) fn pause_if_far_ahead(&mut self, client: &ClientRecord) {
        if client.held.len() > HIGH_WATER {
            self.push(ConnAction::Pause(client.origin.id()));
        }
    }

    /// Takes the next action.
    pub(super) fn next(&mut self) -> Option<ConnAction> {
        self.actions.pop_front()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.actions.len()
    }

    /// Returns an empty batch.
    #[inline]
    pub(super) fn batch(&mut self) -> Box<Batch> {
        self.spares.take()
    }

    /// Keeps the memory of a batch that was sent.
    #[inline]
    pub(super) fn reuse(&mut self, batch: Box<Batch>) {
        self.spares.give(batch);
    }

    /// Returns the bytes of memory kept for the next batches.
    pub(super) fn spare(&self) -> usize {
        self.spares.capacity()
    }

    /// Appends to the outbox of `http`.
    pub(super) fn write<R>(
        &mut self,
        http: &mut HttpSide,
        write: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> R {
        let out = http.out().get_or_insert_with(|| self.spares.take());
        out.append(write)
    }

    /// Drops a client's exchange and closes its backend connection. Returns whether its answer had
    /// begun.
    pub(super) fn drop_exchange(&mut self, client: &mut ClientRecord) -> bool {
        let Some(exchange) = client.exchange.take() else { return false };
        if let Some(upstream) = exchange.upstream() {
            self.push(ConnAction::Close(upstream));
        }
        exchange.is_answered()
    }
}
