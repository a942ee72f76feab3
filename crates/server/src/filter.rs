//! The receivers of a broadcast.

use std::sync::Arc;

use crate::handle::Handle;

/// Selects the receivers of a broadcast: the sessions and event streams that meet all conditions.
/// Without conditions it selects all.
///
/// ```
/// # use throng::prelude::*;
/// # fn announce(hub: &Hub, muted: &[Handle]) {
/// let muted = muted.iter().copied();
/// let filter = Filter::new().channel("lobby").subprotocol("chat.v2").exclude(muted);
/// let _ = hub.broadcast_to(&filter, "the game begins");
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Filter {
    inner: Arc<throng_engine::Filter>,
}

impl Filter {
    /// Creates a filter that selects every WebSocket session and every event stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects only receivers that a publish to this channel would reach.
    #[must_use]
    pub fn channel(self, name: &str) -> Self {
        self.with(|filter| filter.set_channel(name))
    }

    /// Selects only sessions that negotiated this subprotocol (RFC 6455 section 1.9).
    #[must_use]
    pub fn subprotocol(self, name: &str) -> Self {
        self.with(|filter| filter.set_subprotocol(name))
    }

    /// Selects only these connections; further calls add to them. Each call sorts, so pass many
    /// handles in one call.
    #[must_use]
    pub fn include(self, handles: impl IntoIterator<Item = Handle>) -> Self {
        self.with(|filter| filter.include(handles.into_iter().map(Handle::id)))
    }

    /// Excludes these connections, even if they are included; further calls exclude more.
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
