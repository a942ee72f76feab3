//! Who gets a broadcast.

use std::sync::Arc;

use crate::hub::Handle;

/// The receivers of a broadcast: those for whom all conditions hold. Without conditions, everyone.
///
/// ```
/// # use throng::prelude::*;
/// # fn announce(hub: &Hub, muted: &[Handle]) {
/// let filter = Filter::new().channel("lobby").subprotocol("chat.v2").exclude(muted.iter().copied());
/// let _ = hub.broadcast_to(&filter, "the game begins");
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Filter {
    inner: Arc<throng_engine::Filter>,
}

impl Filter {
    /// Everyone: each WebSocket session and each stream of events.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only those that a publish to this channel would reach.
    #[must_use]
    pub fn channel(self, name: &str) -> Self {
        self.with(|filter| filter.set_channel(name))
    }

    /// Only sessions that agreed on this subprotocol (RFC 6455 section 1.9).
    #[must_use]
    pub fn subprotocol(self, name: &str) -> Self {
        self.with(|filter| filter.set_subprotocol(name))
    }

    /// Only these connections; called again, those too. Sorts, so give many together rather than one by one.
    #[must_use]
    pub fn include(self, handles: impl IntoIterator<Item = Handle>) -> Self {
        self.with(|filter| filter.include(handles.into_iter().map(Handle::id)))
    }

    /// None of these, whatever else holds, even if they are included; called again, none of those either.
    #[must_use]
    pub fn exclude(self, handles: impl IntoIterator<Item = Handle>) -> Self {
        self.with(|filter| filter.exclude(handles.into_iter().map(Handle::id)))
    }

    pub(crate) fn inner(&self) -> &Arc<throng_engine::Filter> {
        &self.inner
    }

    fn with(mut self, set: impl FnOnce(&mut throng_engine::Filter)) -> Self {
        set(Arc::make_mut(&mut self.inner));
        self
    }
}
