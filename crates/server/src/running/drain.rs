//! The end of a server: who begins it, a future for it, and its outcome.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use throng_engine::workers::RunningJob;
use throng_engine::{Admission, DrainPlan, Remote};

use super::Running;
use crate::error::{Error, Result};
use crate::shutdown::Shutdown;

/// A future for the end of a server: see [`Running::drain_async`].
#[must_use = "the server drains without it, but its end is not waited for"]
pub struct Draining {
    state: Arc<Mutex<DrainState>>,
}

#[derive(Default)]
struct DrainState {
    outcome: Option<Result<Drained>>,
    waker: Option<Waker>,
}

impl Draining {
    pub(super) fn of(running: Running) -> Self {
        let state = Arc::<Mutex<DrainState>>::default();
        let its = Arc::clone(&state);
        let wait = move || {
            let outcome = running.join();
            let mut state = its.lock().unwrap_or_else(PoisonError::into_inner);
            state.outcome = Some(outcome);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("throng-drain".to_owned()).spawn(wait)
        {
            let mut locked = state.lock().unwrap_or_else(PoisonError::into_inner);
            locked.outcome = Some(Err(Error::Shard(error)));
        }
        Self { state }
    }
}

impl Future for Draining {
    type Output = Result<Drained>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Drained>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Draining")
    }
}

/// Records the end of a shard's thread.
///
/// If the shard failed or panicked, it also drains the others, so that [`Running::join`] returns
/// and a supervisor can restart the process: without one of its shards, the server would no longer
/// answer a part of its clients.
pub(super) struct ExitGuard {
    pub(super) shard: usize,
    pub(super) begin_drain: BeginDrain,
    pub(super) must_drain: bool,
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        self.begin_drain.shutdown.record_end(self.shard);
        if self.must_drain {
            self.begin_drain.begin(DrainPlan::default());
        }
    }
}

/// Begins a drain on all shards.
pub(super) struct BeginDrain {
    pub(super) admission: Arc<Admission>,
    pub(super) remote: Remote,
    pub(super) shutdown: Arc<Shutdown>,
}

impl BeginDrain {
    /// Sends the command until every shard's queue has taken it, at most until the drain's
    /// deadline.
    ///
    /// A full queue empties within one turn, and that of an ended shard takes everything. Only a
    /// shard that is stuck in a handler keeps its queue full.
    pub(super) fn begin(&self, plan: DrainPlan) {
        let shards = 0..self.remote.shards();
        let most = shards.map(|shard| self.admission.connections_of(shard)).max().unwrap_or(0);
        // More may come during the delay.
        let most = if plan.is_delayed() { usize::MAX } else { most };
        let deadline = self.shutdown.begin_drain(plan, most);
        self.admission.announce_drain(&plan);
        while self.remote.drain(plan).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The outcome of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Connections that did not close by the deadline and were reset.
    pub forced: usize,
    /// Jobs of the worker pool that had not returned by the deadline. Their threads are detached,
    /// and end with the process.
    pub stuck: Vec<RunningJob>,
    /// ShardThreads in a handler that did not return. Their threads are detached, with their connections,
    /// and end with the process.
    pub stuck_shards: Vec<StuckShard>,
}

/// A shard in a handler that does not return.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckShard {
    /// The event loop, from 0; with [`IoBackend::Threads`](crate::server::IoBackend::Threads) the
    /// number in the name of the connection's thread.
    pub shard: usize,
    /// The path of the handler's route, as it was given to the app.
    pub route: String,
    /// The shard's connections, none of which was closed. With
    /// [`IoBackend::Threads`](crate::server::IoBackend::Threads) they are among
    /// [`Drained::forced`], too.
    pub connections: usize,
}
