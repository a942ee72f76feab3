//! Panics of the program's functions. If a connection is responsible, the shard closes it; all
//! others are reported and counted here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A function that is called outside of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callback {
    /// [`Server::every`](crate::Server::every) and its variants.
    Tick,
    /// A future or a job whose session or request had ended.
    Late,
    /// [`Observe::on_event`](crate::server::Observe::on_event).
    Event,
    /// [`Observe::access_log`](crate::server::Observe::access_log).
    AccessLog,
    /// [`Hub::run_at`](crate::Hub::run_at).
    RunAt,
    /// [`Shard::offload`](crate::server::Shard::offload).
    ShardOffload,
    /// `Cluster::answer`.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "there are no clusters"))]
    Answer,
}

impl Callback {
    pub(crate) const ALL: [Self; 7] = [
        Self::Tick,
        Self::Late,
        Self::Event,
        Self::AccessLog,
        Self::RunAt,
        Self::ShardOffload,
        Self::Answer,
    ];

    /// Returns the label of this function in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tick => "tick",
            Self::Late => "late",
            Self::Event => "event",
            Self::AccessLog => "access_log",
            Self::RunAt => "run_at",
            Self::ShardOffload => "shard_offload",
            Self::Answer => "answer",
        }
    }
}

/// The counts of panics of a server.
#[derive(Debug, Default)]
pub(crate) struct Panics {
    /// By [`Callback`].
    counts: [AtomicU64; Callback::ALL.len()],
    /// Ticks whose last call panicked.
    failing_ticks: AtomicU64,
}

impl Panics {
    pub(crate) fn count(&self, callback: Callback) {
        self.counts[callback as usize].fetch_add(1, Relaxed);
    }

    /// Records whether a tick fails.
    pub(crate) fn note_tick(&self, fails: bool) {
        match fails {
            true => self.failing_ticks.fetch_add(1, Relaxed),
            false => self.failing_ticks.fetch_sub(1, Relaxed),
        };
    }

    pub(crate) fn failing_ticks(&self) -> u64 {
        self.failing_ticks.load(Relaxed)
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn counts(&self) -> [(&'static str, u64); Callback::ALL.len()] {
        Callback::ALL
            .map(|callback| (callback.name(), self.counts[callback as usize].load(Relaxed)))
    }
}

/// Calls a function of the program. Returns `None` if it panicked, which the panic hook has
/// reported.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    // The payload is leaked: its `Drop` could panic.
    catch_unwind(AssertUnwindSafe(call)).map_err(std::mem::forget).ok()
}
