//! Reports of a running server.

use std::fmt;
use std::time::Duration;

use crate::access::{self, AccessLog};
use crate::events::{Events, ServerEvent};

/// Receivers of a server's events and records: for [`Server::observe`](crate::Server::observe).
#[must_use]
pub struct Observe {
    pub(super) events: Events,
    pub(super) access: access::Log,
    pub(super) stall_warning: Option<Duration>,
    #[cfg(feature = "metrics")]
    pub(super) build: &'static [(&'static str, &'static str)],
    #[cfg(feature = "metrics")]
    pub(super) warnings: std::sync::Arc<[String]>,
}

impl Observe {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            events: Events::default(),
            access: access::Log::default(),
            stall_warning: Some(crate::stalls::WARNING),
            #[cfg(feature = "metrics")]
            build: &[],
            #[cfg(feature = "metrics")]
            warnings: std::sync::Arc::default(),
        }
    }

    /// Sets the callback for [`ServerEvent`]s: refusals, faults of clients, slow consumers, panics
    /// and stalls. Default: at most one line per second on standard error, with cause and remedy;
    /// with the feature `tracing`, events of the target `throng`.
    ///
    /// It is called for each event on the shard's thread, so it must not take long. A panic in it
    /// is counted and has no other effect.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// use throng::server::{Observe, ServerEvent};
    ///
    /// let observe = Observe::new().on_event(|event| match event {
    ///     ServerEvent::Refused { .. } => {} // The access log of the proxy has it.
    ///     event => eprintln!("{event}"),
    /// });
    /// let server = Server::new(App::new()).observe(observe);
    /// ```
    pub fn on_event(mut self, callback: impl Fn(&ServerEvent<'_>) + Send + Sync + 'static) -> Self {
        self.events = Events::new(callback);
        self
    }

    /// Sets the receiver of a record of each request and session that has ended. Default: none,
    /// which costs nothing.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// use throng::server::{AccessEntry, AccessLog, Observe};
    ///
    /// struct Lines;
    ///
    /// impl AccessLog for Lines {
    ///     fn record(&self, access: &AccessEntry<'_>) {
    ///         println!("{} {} {:?}", access.method, access.path, access.status);
    ///     }
    /// }
    ///
    /// let server = Server::new(App::new()).observe(Observe::new().access_log(Lines));
    /// ```
    pub fn access_log(mut self, log: impl AccessLog) -> Self {
        self.access = access::Log::new(log);
        self
    }

    /// Sets how long callbacks may hold their shard before it is reported as a stall: counted by
    /// route in the metrics, and passed to [`on_event`](Self::on_event). Default: 50 ms; `None`
    /// turns it off.
    ///
    /// The clock is read at the end of each turn of the shard, and after each event only for ten
    /// seconds after a stall. So a first stall may be the sum of several short callbacks of one
    /// route; a stall of several routes is reported without a route. It has no effect with
    /// [`IoBackend::Threads`](crate::server::IoBackend::Threads), where a handler delays only its
    /// own connection.
    pub fn stall_warning(mut self, warning: impl Into<Option<Duration>>) -> Self {
        self.stall_warning = warning.into();
        self
    }

    /// Sets the labels of the metric `throng_build_info` besides `version`, for example the commit.
    #[cfg(feature = "metrics")]
    pub fn build_info(mut self, labels: &'static [(&'static str, &'static str)]) -> Self {
        self.build = labels;
        self
    }

    /// Sets sentences that operators of this server must know, such as limits of the machine that
    /// are too low: [`stats`](crate::metrics::stats) has them as `warnings`, as long as the server
    /// runs. Default: none.
    #[cfg(feature = "metrics")]
    pub fn warnings(mut self, sentences: impl IntoIterator<Item = String>) -> Self {
        self.warnings = sentences.into_iter().collect();
        self
    }
}

impl Default for Observe {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Observe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observe")
            .field("stall_warning", &self.stall_warning)
            .finish_non_exhaustive()
    }
}
