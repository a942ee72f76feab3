//! Lookups of the names of backends, on a few threads: the system's resolver blocks, and a slow
//! name must not delay others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::NamedBackend;

/// The largest number of threads. Names that wait for one are looked up in the order in which they
/// are due.
const MAX_THREADS: usize = 8;

/// The stack of a thread. The resolver of glibc needs some tens of KiB.
const STACK: usize = 256 << 10;

/// A function that looks up the addresses of a name with a port.
pub type Resolver = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Looks up a name as the system does.
pub(crate) fn system(name: &str) -> io::Result<Vec<SocketAddr>> {
    name.to_socket_addrs().map(Iterator::collect)
}

/// The outcome of a lookup; the error is its text.
pub(crate) struct LookupAnswer {
    pub(crate) name: Arc<str>,
    pub(crate) outcome: Result<Vec<SocketAddr>, String>,
}

/// The lookups of a balancer. They run until [`Lookups::end`] is called.
pub(crate) struct Lookups {
    shared: Arc<LookupQueue>,
}

struct LookupQueue {
    names: Mutex<Names>,
    changed: Condvar,
    resolver: Arc<Resolver>,
    /// `None` is sent at the end: a thread may wait for its resolver much longer.
    answers: Sender<Option<LookupAnswer>>,
}

#[derive(Default)]
struct Names {
    /// The names to look up, each with the time of its next lookup.
    wanted: BTreeMap<Arc<str>, Instant>,
    /// Names that a thread is looking up.
    running: BTreeSet<Arc<str>>,
    threads: usize,
    interval: Duration,
}

impl Names {
    /// Returns the name to look up next, and when.
    fn next(&self) -> Option<(Arc<str>, Instant)> {
        let waiting = self.wanted.iter().filter(|(name, _)| !self.running.contains(*name));
        waiting.min_by_key(|(_, due)| **due).map(|(name, due)| (Arc::clone(name), *due))
    }
}

impl Lookups {
    /// Creates the lookups without any name.
    pub(crate) fn new(resolver: Arc<Resolver>, answers: Sender<Option<LookupAnswer>>) -> Self {
        let names = Mutex::default();
        let shared = LookupQueue { names, changed: Condvar::new(), resolver, answers };
        Self { shared: Arc::new(shared) }
    }

    /// Looks up these names from now on, each at once if it is new, and then at `interval`.
    pub(crate) fn set<'n>(
        &self,
        wanted: impl Iterator<Item = &'n NamedBackend>,
        interval: Duration,
    ) {
        let mut names = self.shared.lock();
        let now = Instant::now();
        let before = std::mem::take(&mut names.wanted);
        let known = |name: &Arc<str>| before.get(name).filter(|_| names.interval == interval);
        let wanted = wanted.map(|named| &named.name);
        let wanted = wanted.map(|name| (Arc::clone(name), known(name).copied().unwrap_or(now)));
        let wanted: BTreeMap<_, _> = wanted.collect();
        (names.wanted, names.interval) = (wanted, interval);
        while names.threads < names.wanted.len().min(MAX_THREADS) {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("balance-lookup".to_owned());
            match thread.stack_size(STACK).spawn(move || shared.run()) {
                Ok(_) => names.threads += 1,
                Err(error) if names.threads == 0 => {
                    for name in names.wanted.keys().cloned() {
                        let outcome = Err(format!("there is no thread for its lookup: {error}"));
                        let _ = self.shared.answers.send(Some(LookupAnswer { name, outcome }));
                    }
                    break;
                }
                // The others do its work.
                Err(_) => break,
            }
        }
        drop(names);
        self.shared.changed.notify_all();
    }

    /// Ends all lookups. Threads that wait for the resolver end when it returns.
    pub(crate) fn end(&self) {
        self.shared.lock().wanted.clear();
        self.shared.changed.notify_all();
        let _ = self.shared.answers.send(None);
    }
}

impl LookupQueue {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a thread: looks up the names that are due, while there are any.
    fn run(&self) {
        let mut names = self.lock();
        while !names.wanted.is_empty() {
            let now = Instant::now();
            let waits = |due: Instant| due.saturating_duration_since(now);
            let (name, wait) = match names.next() {
                Some((name, due)) => (Some(name).filter(|_| due <= now), waits(due)),
                // A change of the list ends the wait.
                None => (None, names.interval.max(Duration::from_secs(1))),
            };
            let Some(name) = name else {
                let waited = self.changed.wait_timeout(names, wait);
                names = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            names.running.insert(Arc::clone(&name));
            drop(names);
            let outcome = (self.resolver)(&name).map_err(|error| error.to_string());
            let answer = LookupAnswer { name: Arc::clone(&name), outcome };
            let is_taken = self.answers.send(Some(answer)).is_ok();
            names = self.lock();
            names.running.remove(&name);
            let due = Instant::now() + names.interval;
            if let Some(next) = names.wanted.get_mut(&name) {
                *next = due;
            }
            if !is_taken {
                break;
            }
        }
        names.threads -= 1;
    }
}
