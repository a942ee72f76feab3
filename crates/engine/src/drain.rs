//! Plan of a graceful shutdown.

use std::time::Duration;

use throng_proto::ws::CloseCode;

use crate::limits::setters;

/// Plan of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct DrainPlan {
    /// Closes of connections are spread over this time, so that their clients do not reconnect all
    /// at once. Default 10 s. The window is shorter where fewer than 200 connections per second
    /// would be closed: so few reconnections need no spreading. With 0, all are closed at once.
    pub window: Duration,
    /// Time from the end of the window until connections that are still open are reset. Default 5
    /// s. With 0, they are reset as soon as all were notified. A session whose messages workers or
    /// futures still process is closed when they are done, or when a quarter of this time (at most
    /// a second) is left.
    pub grace: Duration,
    /// Time from the start, when `/readyz` turns to 503, to the window. A load balancer needs this
    /// time to notice; until then it sends new clients, which are served as usual. Default 0. With
    /// [`DrainPlan::hand_over`], the other process serves new clients from the start.
    pub delay: Duration,
    /// The close code: 1001 (going away, the default) or 1012 (service restart).
    pub code: CloseCode,
    /// Whether another process accepts connections on the same port or socket. Then the listeners
    /// close when the drain begins, and requests on connections that were accepted earlier are
    /// answered. Sessions and event streams that these requests begin are closed at their scheduled
    /// times, or right after they begin if that time has passed: their clients reconnect to the
    /// other process. Otherwise (the default) all new clients get 503 after the delay, until all
    /// connections were closed.
    ///
    /// On Linux, set `net.ipv4.tcp_migrate_req` to 1 where processes share a port: without it the
    /// kernel resets connections that arrive at the moment a listener is closed.
    pub hand_over: bool,
}

setters! { DrainPlan:
    window: Duration,
    grace: Duration,
    delay: Duration,
    hand_over: bool,
    ;
    code: CloseCode,
}

impl DrainPlan {
    /// The defaults, for `const` plans.
    pub const DEFAULT: Self = Self {
        window: Duration::from_secs(10),
        grace: Duration::from_secs(5),
        delay: Duration::ZERO,
        code: CloseCode::GOING_AWAY,
        hand_over: false,
    };

    /// No time for connections: sessions get a Close frame, and are reset.
    pub const NOW: Self = Self { window: Duration::ZERO, grace: Duration::ZERO, ..Self::DEFAULT };

    /// Returns the time over which this many connections of a shard are closed: the window, or less
    /// for few connections.
    #[must_use]
    pub fn window_for(&self, connections: usize) -> Duration {
        self.window.min(Duration::from_secs(connections as u64) / HERD_PER_SECOND)
    }

    /// Returns whether clients are served for some time before the window.
    #[must_use]
    pub fn is_delayed(&self) -> bool {
        !self.hand_over && !self.delay.is_zero()
    }

    /// Returns the time from the start until the rest of this many connections is reset.
    #[must_use]
    pub fn length_for(&self, connections: usize) -> Duration {
        let window = self.window_for(connections);
        self.delay.saturating_add(window).saturating_add(self.grace)
    }
}

impl Default for DrainPlan {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Connections a second below which the window is shortened.
const HERD_PER_SECOND: u32 = 200;
