//! Descriptor tables of threads (Linux).
//!
//! * Duty: give a thread a descriptor table of its own, and state which descriptors stay open in
//!   it.
//! * Not its duty: whether a program's shards have tables of their own, starting the threads.
//! * Start reading at: [`Tables`].
//!
//! RLIMIT_NOFILE counts for each table, and the threads of a process share one unless a thread
//! asks for its own. A process can so hold more connections than its limit allows. Linux 5.9 makes
//! the private copy in one call, close_range(2) with `CLOSE_RANGE_UNSHARE`.
//!
//! **Which descriptors exist where.** Wake-up descriptors are opened before the split and stay open
//! under their number in every table, so that every thread can wake every other one, and the owner
//! may close its number in any table in which it is dropped. Polls and listeners are also opened
//! before the split; each stays open in the table of its shard alone, because a listener lives as
//! long as any table has it, and its queue would fill without being read. All other descriptors are
//! closed in the copy.
//!
//! **Not for the library.** An `OwnedFd` is `Send`. Dropped on a thread with another table, it
//! would close a stranger's descriptor, and no signature here can prevent that: it depends on the
//! values that the rest of the program moves between its threads. So a [`Tables`] may only be made
//! by a program that knows all of its threads. Only the binary does; the crate `throng` does not
//! offer this module, nor does it name its types in its documented interface. Throng itself would
//! move accepted sockets: they have no channel to go through where shards have tables of their own.

#[cfg(not(target_os = "linux"))]
use std::io;
use std::str::FromStr;

#[cfg(target_os = "linux")]
pub use self::linux::{OwnTable, Tables, check_support};

/// Whether shards share the descriptor table of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DescriptorTables {
    /// Each shard has its own if more connections are asked for than one table holds.
    #[default]
    Auto,
    /// All threads use the table of the process.
    Shared,
    /// Each shard has its own, if the system allows it.
    PerShard,
}

impl FromStr for DescriptorTables {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "auto" => Ok(Self::Auto),
            "shared" => Ok(Self::Shared),
            "per-shard" => Ok(Self::PerShard),
            _ => Err("auto, shared or per-shard"),
        }
    }
}

/// Returns the number of tables that hold connections: the tables of threads that have their own,
/// or the one table of the process.
#[must_use]
pub fn count() -> usize {
    thread_ids().len().max(1)
}

#[cfg(target_os = "linux")]
pub(crate) use self::linux::thread_ids;

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_ids() -> Vec<i32> {
    Vec::new()
}

/// The descriptors of shards with tables of their own, which this system does not have.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub enum Tables {}

#[cfg(not(target_os = "linux"))]
impl Tables {
    /// Never called on this system.
    ///
    /// # Errors
    /// Never.
    pub fn enter(&self, _: usize) -> io::Result<OwnTable> {
        match *self {}
    }

    /// Never called on this system.
    pub fn leave_to(&self, _: usize) {
        match *self {}
    }
}

/// The right of a thread to a table of its own, which this system does not give.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub enum OwnTable {}

/// Returns the error of systems that have no such tables.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn check_support() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::marker::PhantomData;
    use std::os::fd::{AsFd, AsRawFd, RawFd};
    use std::sync::{Mutex, PoisonError};

    /// The threads that have a table of their own.
    static THREADS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

    pub(crate) fn thread_ids() -> Vec<i32> {
        THREADS.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The descriptors of a program whose shards get tables of their own.
    #[derive(Debug)]
    pub struct Tables {
        /// Descriptors open in each table: standard streams and wake-up descriptors.
        common: Vec<RawFd>,
        /// Descriptors open only in the table of their shard.
        own: Vec<Vec<RawFd>>,
    }

    /// The right of a thread to the table it has, which ends with the thread: it cannot be sent.
    #[derive(Debug)]
    #[must_use = "the table is counted while this exists"]
    pub struct OwnTable {
        pub(super) thread: i32,
        bound_to_thread: PhantomData<*const ()>,
    }

    impl Tables {
        /// Creates the list for `shards` shards; [the module](super) states which programs may.
        #[must_use]
        pub fn new(shards: usize) -> Self {
            Self { common: vec![0, 1, 2], own: vec![Vec::new(); shards] }
        }

        /// Keeps a descriptor in all tables.
        pub fn share(&mut self, fd: &impl AsFd) {
            self.common.push(fd.as_fd().as_raw_fd());
        }

        /// Keeps a descriptor in the table of `shard` alone.
        pub fn give(&mut self, shard: usize, fd: &impl AsFd) {
            self.own[shard].push(fd.as_fd().as_raw_fd());
        }

        /// Returns the number of descriptors that `shard` starts with.
        #[must_use]
        pub fn kept(&self, shard: usize) -> usize {
            self.common.len() + self.own[shard].len()
        }

        /// Gives the calling thread, which runs `shard`, a table of its own.
        ///
        /// Signals that are not the fault of an instruction are blocked in this thread: a handler
        /// that was installed elsewhere may write to a descriptor, and the number is another file
        /// here.
        ///
        /// # Errors
        /// The system does not support it, or has no memory for the table.
        pub fn enter(&self, shard: usize) -> io::Result<OwnTable> {
            // First: no handler may run in this thread with a part of the descriptors.
            block_signals();
            let mut kept: Vec<u32> =
                self.common.iter().chain(&self.own[shard]).map(|&fd| fd as u32).collect();
            kept.sort_unstable();
            kept.dedup();
            let end = kept.last().map_or(0, |&last| last + 1);
            // All above the last one is not even copied.
            close_range(end, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
            let mut next = 0;
            for fd in kept {
                if fd > next {
                    close_range(next, fd - 1, 0)?;
                }
                next = fd + 1;
            }
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            THREADS.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
            Ok(OwnTable { thread, bound_to_thread: PhantomData })
        }

        /// Closes the descriptors of `shard` in the table of the calling thread, once the shard has
        /// [entered](Self::enter) its own.
        pub fn leave_to(&self, shard: usize) {
            for &fd in &self.own[shard] {
                let _ = close_range(fd as u32, fd as u32, 0);
            }
        }
    }

    impl Drop for OwnTable {
        fn drop(&mut self) {
            let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
            threads.retain(|&thread| thread != self.thread);
        }
    }

    /// Checks whether a thread can have a table of its own.
    ///
    /// # Errors
    /// The system's error: `ENOSYS` before Linux 5.9, `EPERM` where a filter forbids the call.
    pub fn check_support() -> io::Result<()> {
        // The copy ends with the thread.
        let attempt = || close_range(u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, attempt)?;
            thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        })
    }

    /// Calls close_range(2), which glibc has as a function only since 2.34.
    #[allow(unsafe_code)]
    fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
        // SAFETY: the call has no pointers. It closes descriptors that have owners: in a copy of
        // the table, where no owner is dropped afterwards (the program that makes `Tables` ensures
        // that), or, in `leave_to`, those whose owners are on the thread of a shard.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Blocks all signals in this thread except those that its own instructions cause.
    #[allow(unsafe_code)]
    fn block_signals() {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigfillset` initialises the set that it is given.
        unsafe { libc::sigfillset(set.as_mut_ptr()) };
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            // SAFETY: the set is initialised, and the signal is a valid one.
            unsafe { libc::sigdelset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn is_open(fd: &impl AsFd) -> bool {
        rustix::io::fcntl_getfd(fd).is_ok()
    }

    #[test]
    fn a_table_has_what_is_common_and_its_own_and_leaves_the_others_alone() {
        check_support().unwrap();
        let open = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        // Other tests of this process open descriptors, too, so only these four are looked at.
        let (stranger, waker, own, other) = (open(), open(), open(), open());
        let mut tables = Tables::new(2);
        tables.share(&waker);
        tables.give(0, &own);
        tables.give(1, &other);
        assert_eq!(tables.kept(0), 5);
        let all = [&stranger, &waker, &own, &other];
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let table = tables.enter(0).unwrap();
                assert!(thread_ids().contains(&table.thread));
                rustix::io::write(&waker, &7u64.to_ne_bytes()).unwrap();
                all.map(is_open)
            });
            assert_eq!(inside.join().unwrap(), [false, true, true, false]);
        });
        assert_eq!(all.map(is_open), [true; 4], "what a copy closes stays open here");
        let mut count = [0; 8];
        rustix::io::read(&waker, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 7, "one number is one file in all tables");
        // In a copy again: the owners of the numbers that are closed are in this table.
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let everything = all.iter().fold(Tables::new(1), |mut tables, fd| {
                    tables.share(*fd);
                    tables
                });
                let _table = everything.enter(0).unwrap();
                tables.leave_to(0);
                tables.leave_to(1);
                all.map(is_open)
            });
            assert_eq!(inside.join().unwrap(), [true, true, false, false]);
        });
    }
}
