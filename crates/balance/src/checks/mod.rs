//! Active health checks of all backends, on a few threads that wait for their sockets.
//!
//! A backend that never answers occupies a thread for the check's timeout. So there is a thread for
//! each backend, up to [`MAX_THREADS`]; with more unresponsive backends than that, checks come
//! late, and none is skipped. These are threads with blocking sockets instead of another event
//! loop: checks are a few per second and end with their timeout.

mod probe;

use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::backend::Backend;
use crate::report::Failure;
use crate::settings::{Check, Target, next_source};

/// The largest number of threads.
const MAX_THREADS: usize = 256;

/// The stack of a thread. A probe's buffers are a few KiB.
const STACK: usize = 128 << 10;

/// The callback for a check's outcome.
type OnOutcome = dyn Fn(&Arc<Backend>, Result<(), CheckFailure>) + Send + Sync;

/// The reason why a check did not pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CheckFailure {
    /// A fault of the backend.
    Backend(String),
    /// A fault of the balancer: the backend was not checked.
    Ours(Failure),
}

impl From<String> for CheckFailure {
    fn from(why: String) -> Self {
        Self::Backend(why)
    }
}

/// The checks of a balancer. They run until [`Checks::end`] is called.
#[derive(Clone)]
pub(crate) struct Checks {
    shared: Arc<CheckQueue>,
}

struct CheckQueue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
    on_outcome: Box<OnOutcome>,
}

#[derive(Default)]
struct Jobs {
    /// The index of the next source.
    source: usize,
    all: Vec<Job>,
    threads: usize,
    /// One thread waits until the next job is due, the others until they are notified; otherwise
    /// all would wake for each job.
    is_awaited: bool,
}

/// The checks of one backend, one at a time.
struct Job {
    target: Target,
    check: Check,
    /// Local addresses that connections are made from in turn, as for clients.
    sources: Arc<[IpAddr]>,
    due: Instant,
    is_running: bool,
}

impl Job {
    fn is_of(&self, backend: &Arc<Backend>) -> bool {
        Arc::ptr_eq(&self.target.backend, backend)
    }
}

impl Checks {
    /// Creates the checks without any backend. The threads of the checks call `on_outcome`.
    pub(crate) fn new(
        on_outcome: impl Fn(&Arc<Backend>, Result<(), CheckFailure>) + Send + Sync + 'static,
    ) -> Self {
        let on_outcome = Box::new(on_outcome);
        let shared = CheckQueue { jobs: Mutex::default(), changed: Condvar::new(), on_outcome };
        Self { shared: Arc::new(shared) }
    }

    /// Checks these backends from now on. Each comes with its check and the addresses to connect
    /// from; new ones are checked at once.
    pub(crate) fn set(&self, backends: impl Iterator<Item = (Target, Check, Arc<[IpAddr]>)>) {
        let mut jobs = self.shared.lock();
        let mut before = std::mem::take(&mut jobs.all);
        let now = Instant::now();
        for (target, check, sources) in backends {
            let known = before.iter().position(|job| job.is_of(&target.backend));
            let job = match known.map(|at| before.swap_remove(at)) {
                Some(job) if job.check == check => Job { target, sources, ..job },
                Some(job) => Job { target, check, sources, due: now, ..job },
                None => Job { target, check, sources, due: now, is_running: false },
            };
            jobs.all.push(job);
        }
        let wanted = jobs.wanted_threads();
        while jobs.threads < wanted {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("balance-check".to_owned()).stack_size(STACK);
            // Too few threads make checks late. The next change of the list tries again.
            if thread.spawn(move || shared.work()).is_err() {
                break;
            }
            jobs.threads += 1;
        }
        drop(jobs);
        self.shared.changed.notify_all();
    }

    /// Ends all threads; those within a check end after it.
    pub(crate) fn end(&self) {
        self.set(std::iter::empty());
    }

    /// Returns the number of threads.
    #[cfg(test)]
    fn threads(&self) -> usize {
        self.shared.lock().threads
    }
}

impl Jobs {
    fn wanted_threads(&self) -> usize {
        self.all.len().min(MAX_THREADS)
    }

    /// Returns the index and time of the job that is due first.
    fn first(&self) -> Option<(usize, Instant)> {
        let waiting = self.all.iter().enumerate().filter(|(_, job)| !job.is_running);
        waiting.map(|(at, job)| (at, job.due)).min_by_key(|(_, due)| *due)
    }
}

impl CheckQueue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a thread: runs due jobs until there are more threads than needed.
    fn work(&self) {
        let mut jobs = self.lock();
        while jobs.threads <= jobs.wanted_threads() {
            let now = Instant::now();
            jobs = match jobs.first() {
                Some((at, due)) if due <= now => self.run(jobs, at),
                Some((_, due)) if !jobs.is_awaited => {
                    jobs.is_awaited = true;
                    let waited = self.changed.wait_timeout(jobs, due - now);
                    let mut jobs = waited.unwrap_or_else(PoisonError::into_inner).0;
                    jobs.is_awaited = false;
                    jobs
                }
                _ => self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            };
        }
        jobs.threads -= 1;
        drop(jobs);
        // This thread may have been waiting for the next job.
        self.changed.notify_one();
    }

    /// Runs the job at `at`.
    fn run<'s>(&'s self, mut jobs: MutexGuard<'s, Jobs>, at: usize) -> MutexGuard<'s, Jobs> {
        let began = Instant::now();
        let job = &mut jobs.all[at];
        job.is_running = true;
        let target = job.target.clone();
        let backend = Arc::clone(&target.backend);
        let check = job.check.clone();
        let sources = Arc::clone(&job.sources);
        let source = next_source(&sources, &mut jobs.source, backend.address());
        drop(jobs);
        // Another thread waits for the next job during this one.
        self.changed.notify_one();
        let outcome = probe::probe(&target, source, &check);
        (self.on_outcome)(&backend, outcome);
        let mut jobs = self.lock();
        let job = jobs.all.iter_mut().find(|job| job.is_of(&backend));
        if let Some(job) = job {
            job.is_running = false;
            job.due = began + job.check.interval;
        }
        jobs
    }
}

#[cfg(test)]
mod tests;
