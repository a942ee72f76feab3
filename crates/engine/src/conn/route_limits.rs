//! Limits of the sessions of one route.

use throng_proto::ws;

/// The limits of a route's sessions, checked: its own, or else the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteLimits {
    pub(crate) ws: ws::Limits,
    /// Whether messages are passed on in chunks as they come.
    pub(crate) streams: bool,
    /// In seconds; 0 = off.
    pub(crate) heartbeat_interval: u16,
    /// In seconds.
    pub(crate) heartbeat_timeout: u16,
    /// In seconds; 0 = unlimited.
    pub(crate) lifetime: u16,
    pub(crate) rates: RateLimits,
}

/// Maximum input of one connection per second; `u64::MAX` = no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimits {
    pub(crate) max_messages: u64,
    pub(crate) max_bytes: u64,
}

impl RateLimits {
    /// Returns whether either is limited.
    pub(crate) fn are_set(self) -> bool {
        self.max_messages < u64::MAX || self.max_bytes < u64::MAX
    }
}
