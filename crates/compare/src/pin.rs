//! Cores: the proxy on one, everything else on another. What a thread starts inherits the core it
//! is on.

/// Two cores that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    pub(crate) proxy: usize,
    pub(crate) others: usize,
}

/// A thread that has been put on the core of the others, and returns to all of its cores when this
/// is dropped.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) cores: Cores,
    #[cfg(target_os = "linux")]
    before: rustix::thread::CpuSet,
}

#[cfg(target_os = "linux")]
mod linux {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::{Cores, Pinned};

    impl Pinned {
        /// Pins this thread, and the threads and processes that it starts later, to the core for
        /// everything except the proxy. Returns `None` with fewer than two cores.
        pub(crate) fn here() -> Option<Self> {
            let before = sched_getaffinity(None).ok()?;
            let mut usable = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu));
            let cores = Cores { proxy: usable.next()?, others: usable.next()? };
            go_to(cores.others).then_some(Self { cores, before })
        }

        /// Runs `start` on the proxy's core.
        pub(crate) fn on_proxy_core<T>(&self, start: impl FnOnce() -> T) -> T {
            go_to(self.cores.proxy);
            let started = start();
            go_to(self.cores.others);
            started
        }
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            // The former mask is still valid, unless a core was removed since.
            let _ = sched_setaffinity(None, &self.before);
        }
    }

    fn go_to(cpu: usize) -> bool {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
impl Pinned {
    /// Nothing is pinned here.
    pub(crate) fn here() -> Option<Self> {
        None
    }

    /// Runs `start`.
    pub(crate) fn on_proxy_core<T>(&self, start: impl FnOnce() -> T) -> T {
        start()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn a_thread_and_its_children_go_and_come_back() {
        let before = sched_getaffinity(None).unwrap();
        if before.count() < 2 {
            assert!(Pinned::here().is_none());
            return;
        }
        let pinned = Pinned::here().unwrap();
        let only = || {
            let set = std::thread::spawn(|| sched_getaffinity(None).unwrap()).join().unwrap();
            assert_eq!(set.count(), 1);
            (0..1024).find(|&cpu| set.is_set(cpu)).unwrap()
        };
        assert_eq!(only(), pinned.cores.others);
        assert_eq!(pinned.on_proxy_core(only), pinned.cores.proxy);
        assert_eq!(only(), pinned.cores.others);
        assert_ne!(pinned.cores.proxy, pinned.cores.others);
        drop(pinned);
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
    }
}
