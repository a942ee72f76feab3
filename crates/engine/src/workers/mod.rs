//! A bounded pool of threads for work that blocks, so that shards need not.
//!
//! Start reading at [`Workers`]; which job is next is in `queue.rs`.

mod metrics;
mod queue;
mod settings;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use throng_io::ConnId;

pub use metrics::{RunningJob, WorkerMetrics};
pub use queue::{OverflowPolicy, SubmitOutcome};
pub use settings::{
    MAX_POOL_SIZE, Overload, WorkerError, WorkerSettings, suggested_size, usable_cpus,
};

use crate::drop_guarded::drop_guarded;
use metrics::Recorder;
use queue::Queue;

/// Credits of one connection: results that may be outstanding at a time. Its jobs run one after the
/// other, so that more gain nothing; and outstanding results are not counted as backlog yet, so
/// that many large answers to a peer that reads slowly would take too much memory.
const MAX_CREDITS: usize = 8;

/// Bytes of retained memory that take one more credit.
const CREDIT_BYTES: usize = 32 << 10;

/// Returns the credits that a job takes, given the bytes it retains: at least 1, and with 256 KiB
/// all that a connection has. Eight messages of a connection may wait for workers, but not eight of
/// 4 MiB.
#[must_use]
pub fn credits_for(bytes: usize) -> usize {
    (bytes / CREDIT_BYTES).min(MAX_CREDITS - 1) + 1
}

/// Work that a worker runs.
pub type Work = Box<dyn FnOnce() + Send>;

/// A pool of threads that run jobs of connections; clone it freely.
///
/// The jobs of one connection run in the order they were submitted, one at a time; the jobs of
/// different connections run in parallel, and connections take turns. No thread exists before
/// [`start`](Self::start) or the first job.
#[derive(Clone)]
pub struct Workers {
    inner: Arc<Inner>,
}

/// The queue is full, or there is no thread to run anything: the job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the workers have more to do than workers.queue_size allows; try again later")
    }
}

impl std::error::Error for Busy {}

struct Inner {
    settings: WorkerSettings,
    state: Mutex<PoolState>,
    /// Condition variables for idle workers, one per ready list.
    idle: Box<[Condvar]>,
    /// A worker has ended.
    ended: Condvar,
    has_started: AtomicBool,
    /// Called when the job of a connection has found room.
    on_capacity: Box<dyn Fn(ConnId) + Send + Sync>,
}

struct PoolState {
    queue: Queue<Job>,
    recorder: Recorder,
    /// Workers that sleep, or were woken and have not run yet, by ready list.
    asleep: Vec<usize>,
    /// Threads that have not ended.
    alive: usize,
    is_stopping: bool,
    /// The times that a worker without work has looked whether it may end, of a pool that stops.
    #[cfg(test)]
    looked_at_end: usize,
}

impl PoolState {
    /// Returns whether a worker whose list is empty may end. A job that waits for room may be for
    /// its list alone, with affinity.
    fn may_end(&self) -> bool {
        self.is_stopping && self.queue.outside() == 0
    }
}

struct Job {
    route: Arc<str>,
    submitted: Instant,
    work: Work,
}

impl Workers {
    /// Creates a pool with these settings. `on_capacity` is called, on a worker's thread, when the
    /// job of a connection that was submitted with [`OverflowPolicy::WaitAndNotify`] and had to
    /// [wait](SubmitOutcome::Waiting) is in the queue.
    ///
    /// # Errors
    /// As for [`WorkerSettings::check`].
    pub fn new(
        settings: WorkerSettings,
        on_capacity: impl Fn(ConnId) + Send + Sync + 'static,
    ) -> Result<Self, WorkerError> {
        settings.check()?;
        let threads = settings.threads();
        let settings = WorkerSettings { pool_size: Some(threads), ..settings };
        let lists = if settings.affinity { threads } else { 1 };
        let state = PoolState {
            queue: Queue::new(lists, settings.queue_size),
            recorder: Recorder::new(0, Instant::now()),
            asleep: vec![0; lists],
            alive: 0,
            is_stopping: false,
            #[cfg(test)]
            looked_at_end: 0,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                settings,
                state: Mutex::new(state),
                idle: (0..lists).map(|_| Condvar::new()).collect(),
                ended: Condvar::new(),
                has_started: AtomicBool::new(false),
                on_capacity: Box::new(on_capacity),
            }),
        })
    }

    /// Returns the settings in force, with the number of threads that 0 came to.
    pub fn settings(&self) -> &WorkerSettings {
        &self.inner.settings
    }

    /// Starts the threads, unless they are already running.
    ///
    /// # Errors
    /// The system starts fewer threads than requested: the started threads are ended again.
    pub fn start(&self) -> Result<(), WorkerError> {
        let outcome = self.start_with(spawn);
        if outcome.is_err() {
            self.inner.lock().is_stopping = true;
            self.inner.idle.iter().for_each(Condvar::notify_all);
        }
        outcome
    }

    /// Starts the threads with `spawn`. Threads that it started continue if it fails.
    fn start_with(
        &self,
        spawn: impl Fn(String, Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) -> Result<(), WorkerError> {
        let inner = &self.inner;
        // Held until all are there: none of them takes a job before.
        let mut state = inner.lock();
        if inner.has_started.load(Ordering::Acquire) {
            return Ok(());
        }
        let WorkerSettings { affinity, queue_size, .. } = inner.settings;
        let asked = inner.settings.threads();
        let mut outcome = Ok(());
        for worker in 0..asked {
            let its = Arc::clone(inner);
            let run = move || its.run(worker);
            if let Err(source) = spawn(format!("throng-worker-{worker}"), Box::new(run)) {
                outcome = Err(WorkerError::Threads { asked, started: worker, source });
                break;
            }
            state.alive += 1;
        }
        if state.alive == 0 {
            return outcome;
        }
        if affinity {
            // No list may be without its worker.
            state.queue = Queue::new(state.alive, queue_size);
        }
        state.recorder = Recorder::new(state.alive, Instant::now());
        inner.has_started.store(true, Ordering::Release);
        outcome
    }

    /// Submits `work` for a connection, to run after its earlier jobs. `route` is the route that
    /// metrics and logs name for it. `policy` applies with [`Overload::Pause`] only. A panic in it
    /// ends there, and is counted.
    ///
    /// # Errors
    /// The queue is full; `work` is dropped.
    pub fn submit(
        &self,
        id: ConnId,
        route: &Arc<str>,
        policy: OverflowPolicy,
        work: Work,
    ) -> Result<SubmitOutcome, Busy> {
        let inner = &self.inner;
        // With fewer threads than requested the pool works; with none, only the caller can report
        // it.
        if !inner.has_started.load(Ordering::Acquire)
            && self.start_with(spawn).is_err()
            && !inner.has_started.load(Ordering::Acquire)
        {
            return Err(Busy);
        }
        let credits = match policy {
            OverflowPolicy::WaitAndNotify(credits) => credits,
            OverflowPolicy::Refuse | OverflowPolicy::Wait => 0,
        };
        let policy = match inner.settings.overload {
            Overload::Pause => policy,
            Overload::Close => OverflowPolicy::Refuse,
        };
        let job = Job { route: Arc::clone(route), submitted: Instant::now(), work };
        let mut state = inner.lock();
        let mut pushed = match state.is_stopping {
            true => Err(job),
            false => state.queue.push(id, job, policy),
        };
        if credits > 0
            && let Ok(outcome) = &mut pushed
            && state.queue.reserve(id, credits) >= MAX_CREDITS
            && *outcome == SubmitOutcome::Queued
        {
            *outcome = SubmitOutcome::Saturated;
        }
        match &pushed {
            Ok(_) => inner.wake(&mut state),
            Err(_) => state.recorder.refused += 1,
        }
        // Drop a refused job without the lock: its drop may do anything.
        drop(state);
        pushed.map_err(|_| Busy)
    }

    /// Returns the credits of a job that was submitted with [`OverflowPolicy::WaitAndNotify`],
    /// after the connection has handled its result. Returns whether the connection may submit more.
    pub fn release_credits(&self, id: ConnId, credits: usize) -> bool {
        self.inner.lock().queue.release(id, credits);
        self.wants_more(id)
    }

    /// Returns whether this connection may submit more after a job had to
    /// [wait](SubmitOutcome::Waiting) or it was [saturated](SubmitOutcome::Saturated): not as soon
    /// as there is room for one, since stopping and resuming costs more than a job.
    #[must_use]
    pub fn wants_more(&self, id: ConnId) -> bool {
        let state = self.inner.lock();
        !state.queue.waits(id) && state.queue.credits(id) <= MAX_CREDITS / 2
    }

    /// Returns whether a connection has jobs that use credits, or results of such jobs that it has
    /// not handled.
    #[must_use]
    pub fn has_pending(&self, id: ConnId) -> bool {
        self.inner.has_started.load(Ordering::Acquire) && self.inner.lock().queue.credits(id) > 0
    }

    /// Drops the jobs of a connection that has ended, except the running job.
    pub fn cancel(&self, id: ConnId) {
        let inner = &self.inner;
        if !inner.has_started.load(Ordering::Acquire) {
            return;
        }
        let mut notified = Vec::new();
        let mut state = inner.lock();
        let jobs = state.queue.cancel(id);
        if jobs.is_empty() {
            return;
        }
        state.recorder.cancelled += jobs.len() as u64;
        state.queue.admit(&mut notified);
        inner.wake(&mut state);
        inner.wake_to_end(&state);
        drop(state);
        notified.into_iter().for_each(&inner.on_capacity);
        inner.discard(jobs);
    }

    /// Returns the metrics of this moment. Before the threads have started, all are 0.
    #[must_use]
    pub fn metrics(&self) -> WorkerMetrics {
        let state = self.inner.lock();
        WorkerMetrics {
            queue_depth: state.queue.depth(),
            waiting_for_capacity: state.queue.outside(),
            ..state.recorder.metrics(Instant::now())
        }
    }

    /// Ends the threads when all submitted jobs have run, or at `deadline`; returns the jobs that
    /// run then. Their threads cannot be ended and keep running; jobs that have not begun are
    /// dropped. No more jobs are accepted.
    #[must_use]
    pub fn stop(&self, deadline: Instant) -> Vec<RunningJob> {
        let inner = &self.inner;
        let mut state = inner.lock();
        state.is_stopping = true;
        inner.idle.iter().for_each(Condvar::notify_all);
        while state.alive > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = inner.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let dropped = state.queue.cancel_all();
        state.recorder.cancelled += dropped.len() as u64;
        inner.wake_to_end(&state);
        let stuck = state.recorder.running(Instant::now());
        drop(state);
        inner.discard(dropped);
        stuck
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workers({:?})", self.inner.settings)
    }
}

fn spawn(name: String, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name).spawn(run).map(drop)
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a worker for each connection that was listed. A worker that is awake checks its list
    /// before it sleeps, under the same lock, so no worker sleeps while there is work.
    fn wake(&self, state: &mut PoolState) {
        let PoolState { queue, asleep, .. } = state;
        queue.each_grown(|list| {
            if asleep[list] > 0 {
                self.idle[list].notify_one();
            }
        });
    }

    /// Wakes all workers when there is nothing left to wait for.
    fn wake_to_end(&self, state: &PoolState) {
        if state.may_end() {
            self.idle.iter().for_each(Condvar::notify_all);
        }
    }

    /// Drops jobs that will not run. Their values are the user's, and a drop that panics ends
    /// there.
    fn discard(&self, jobs: Vec<Job>) {
        let panics = jobs.into_iter().map(drop_guarded).map(u64::from).sum::<u64>();
        if panics > 0 {
            self.lock().recorder.panics += panics;
        }
    }

    /// Runs a worker.
    fn run(&self, worker: usize) {
        let list = if self.settings.affinity { worker } else { 0 };
        let mut notified = Vec::new();
        let mut state = self.lock();
        loop {
            if let Some((id, job)) = state.queue.take(list) {
                let Job { route, submitted, work } = job;
                state.recorder.start(worker, route, submitted, Instant::now());
                state.queue.admit(&mut notified);
                // Only now: the connection listed by finishing the previous job may be the one just
                // taken.
                self.wake(&mut state);
                self.wake_to_end(&state);
                drop(state);
                notified.drain(..).for_each(&self.on_capacity);
                let outcome = catch_unwind(AssertUnwindSafe(work));
                let ended = Instant::now();
                let panicked = outcome.is_err();
                // The panic hook already reported it. Leak the payload: its `Drop` could panic.
                std::mem::forget(outcome);
                state = self.lock();
                state.recorder.end(worker, ended, panicked);
                state.queue.finish(id);
                continue;
            }
            // Connections listed by this worker's own jobs are for others to take.
            self.wake(&mut state);
            #[cfg(test)]
            {
                state.looked_at_end += usize::from(state.is_stopping);
            }
            if state.may_end() {
                break;
            }
            state.asleep[list] += 1;
            state = self.idle[list].wait(state).unwrap_or_else(PoisonError::into_inner);
            state.asleep[list] -= 1;
        }
        state.alive -= 1;
        drop(state);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests;
