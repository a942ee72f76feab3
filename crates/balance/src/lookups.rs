//! Lookups of the names of backends, each on a separate thread: the system's resolver blocks, and a
//! slow name must not delay others.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::config::NamedBackend;

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
    wanted: BTreeSet<Arc<str>>,
    /// Names that have a thread.
    running: BTreeSet<Arc<str>>,
    interval: Duration,
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
        names.wanted = wanted.map(|named| Arc::clone(&named.name)).collect();
        names.interval = interval;
        let new: Vec<_> = names.wanted.difference(&names.running).cloned().collect();
        for name in new {
            let (shared, own) = (Arc::clone(&self.shared), Arc::clone(&name));
            let thread = thread::Builder::new().name("balance-lookup".to_owned());
            match thread.stack_size(STACK).spawn(move || shared.run(&own)) {
                Ok(_) => drop(names.running.insert(name)),
                Err(error) => {
                    let outcome = Err(format!("there is no thread for its lookup: {error}"));
                    let _ = self.shared.answers.send(Some(LookupAnswer { name, outcome }));
                }
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

    /// Runs a thread: looks up `name` while it is wanted.
    fn run(&self, name: &Arc<str>) {
        let mut names = self.lock();
        while names.wanted.contains(name) {
            drop(names);
            let outcome = (self.resolver)(name).map_err(|error| error.to_string());
            let answer = LookupAnswer { name: Arc::clone(name), outcome };
            let is_taken = self.answers.send(Some(answer)).is_ok();
            names = self.lock();
            if !is_taken {
                break;
            }
            let interval = names.interval;
            let is_idle =
                |names: &mut Names| names.wanted.contains(name) && names.interval == interval;
            let waited = self.changed.wait_timeout_while(names, interval, is_idle);
            names = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        names.running.remove(name);
    }
}
