//! The end of a server: how to begin it, how to await it, and its outcome.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use throng_engine::workers::RunningJob;
use throng_engine::{Admission, DrainPlan, Remote};

use super::Running;
use crate::error::{Error, Result};
use crate::shutdown::ServerDrain;

/// A server that shuts down: from [`Running::shutdown`].
///
/// [`wait`](Self::wait) blocks until the server has ended. This can also be awaited: another thread
/// then waits for the end. The server shuts down even if this value or the future is dropped.
///
/// ```no_run
/// # use throng::prelude::*;
/// # async fn stop(running: Running) -> throng::Result<()> {
/// let drained = running.shutdown(DrainPlan::default()).await?;
/// println!("{} connections had to be reset", drained.forced);
/// # Ok(())
/// # }
/// ```
#[must_use = "the server shuts down without it, but its end is not waited for"]
#[derive(Debug)]
pub struct Shutdown {
    pub(super) running: Running,
}

impl Shutdown {
    /// Waits until the server has ended. If a handler does not return, this returns half a second
    /// after the plan's deadline: see [`Drained::stuck_shards`].
    ///
    /// # Errors
    /// A shard failed before or while draining.
    pub fn wait(self) -> Result<Drained> {
        self.running.wait()
    }
}

impl IntoFuture for Shutdown {
    type Output = Result<Drained>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Drained>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(Ending::of(self.running))
    }
}

/// A future for the end of a server.
struct Ending {
    state: Arc<Mutex<EndState>>,
}

#[derive(Default)]
struct EndState {
    outcome: Option<Result<Drained>>,
    waker: Option<Waker>,
}

impl Ending {
    fn of(running: Running) -> Self {
        let state = Arc::<Mutex<EndState>>::default();
        let shared = Arc::clone(&state);
        let wait = move || {
            let outcome = running.wait();
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
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

impl Future for Ending {
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

/// Records the end of a shard's thread.
///
/// If the shard failed or panicked, it also drains the others, so that [`Running::wait`] returns
/// and a supervisor can restart the process: without one of its shards, the server would not answer
/// a part of its clients.
pub(super) struct ExitGuard {
    pub(super) shard: usize,
    pub(super) stopper: Stopper,
    pub(super) must_drain: bool,
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        self.stopper.drain.record_end(self.shard);
        if self.must_drain {
            self.stopper.shutdown(DrainPlan::default());
        }
    }
}

/// Begins the shutdown of a server from anywhere, for signals and routes of administrators: from
/// [`Running::stopper`]. After the end of the server this does nothing.
#[derive(Clone)]
pub struct Stopper {
    pub(super) admission: Arc<Admission>,
    pub(super) remote: Remote,
    pub(super) drain: Arc<ServerDrain>,
}

impl Stopper {
    /// Begins a graceful shutdown, as [`Running::shutdown`] does, without waiting for its end,
    /// which [`Running::wait`] returns. The plan of the first call applies.
    ///
    /// This returns when every shard's queue has taken the command, at the latest at the plan's
    /// deadline. A full queue empties within one turn, so only a shard that is stuck in a handler
    /// delays it.
    pub fn shutdown(&self, plan: DrainPlan) {
        let shards = 0..self.remote.shards();
        let most = shards.map(|shard| self.admission.connections_of(shard)).max().unwrap_or(0);
        // More connections may arrive during the delay.
        let most = if plan.is_delayed() { usize::MAX } else { most };
        let deadline = self.drain.begin_drain(plan, most);
        self.admission.announce_drain(&plan);
        // The queue of a shard that has ended accepts everything.
        while self.remote.drain(plan).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopper")
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
    /// Shards in a handler that did not return. Their threads are detached, with their connections,
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
    /// The number of the shard's connections, which are all still open. With
    /// [`IoBackend::Threads`](crate::server::IoBackend::Threads), [`Drained::forced`] also counts
    /// them.
    pub connections: usize,
}
