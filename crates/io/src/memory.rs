//! Memory that the process may use, and free memory that the allocator keeps.

#[cfg(windows)]
mod windows;

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(windows)]
use self::windows::{of_job as of_process, of_machine};

/// Returns the bytes of memory that the process may use: the minimum of the machine's memory, the
/// limits of its cgroups (`memory.max`, or `memory.limit_in_bytes` of version 1) and its own limits
/// (`RLIMIT_AS`, `RLIMIT_DATA`); on Windows of the machine's memory and the limits of its job.
/// `None` where the system has none of them.
#[must_use]
pub fn available() -> Option<u64> {
    let limits = [
        of_machine(),
        crate::cgroup::lowest(CGROUP_FILE, Some(("memory", CGROUP_1_FILE))),
        of_process(),
    ];
    limits.into_iter().flatten().min()
}

/// Hides the memory of this process, which has keys: other processes of its user cannot read it,
/// and the system writes no core dump. Programs that it starts do not inherit that. Only Linux has
/// it.
///
/// # Errors
/// The system's error.
pub fn hide() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Limit of a cgroup, by version.
const CGROUP_FILE: &str = "memory.max";
const CGROUP_1_FILE: &str = "memory.limit_in_bytes";

#[cfg(not(windows))]
fn of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(unix)]
fn of_process() -> Option<u64> {
    use crate::limits::{Limited, limits_of};
    let limits = [limits_of(Limited::AddressSpace).0, limits_of(Limited::Data).0];
    limits.into_iter().min().filter(|&limit| limit != u64::MAX)
}

/// Blocks of this many bytes or more are memory of their own, which is returned to the system when
/// they are freed, after [`return_large_blocks`].
pub const MAP_FROM: usize = 256 << 10;

/// Free memory at the end of a heap is returned when it is this many bytes or more.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_FROM: i32 = 512 << 10;

/// Makes the allocator (glibc) return the memory of a burst of large messages. Call it when the
/// program starts.
///
/// By default glibc maps large blocks one by one only until the first of them is freed: from then
/// on blocks of up to that size, 32 MiB at most, come from heaps that shrink only from their end,
/// and hundreds of megabytes stay resident. Setting both thresholds fixes them. Small blocks join
/// their free neighbours at once: kept in lists of their own, the last ones keep the heap of a
/// thread that has ended from being returned.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        set(libc::M_MMAP_THRESHOLD, MAP_FROM as i32);
        set(libc::M_TRIM_THRESHOLD, TRIM_FROM);
        set(libc::M_MXFAST, 0);
    }
}

/// Sets a parameter of the allocator, which keeps its default if it refuses.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
fn set(parameter: i32, value: i32) {
    // SAFETY: `mallopt` takes no pointers, and locks the allocator's state itself.
    unsafe {
        libc::mallopt(parameter, value);
    }
}

/// Trims of free memory that have begun in this process, and trims that have ended.
static TRIMS: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// The return of a thread's free memory to the system after a burst, if the allocator supports it
/// (glibc).
///
/// glibc returns memory only from the end of its heap. After a burst of new connections, which each
/// allocated a few blocks for the handshake alone, the freed blocks lie between blocks that stay in
/// use. A trim walks the heaps of all threads, which takes milliseconds for tens of megabytes. The
/// threads of a server see the end of a burst at the same time, and one trim is enough: so a thread
/// requests it first, and [runs](Self::run) it a while later unless another thread's has begun
/// since.
#[derive(Debug, Default)]
pub struct Trim {
    /// Trims that had begun when it was requested.
    begun: Option<u64>,
    /// The block at the end of the thread's heap until the trim has run.
    last: Vec<u8>,
}

impl Trim {
    /// Requests a trim after memory was freed. First returns freed blocks that the allocator keeps
    /// for this thread to its heap, which takes the start of a thread.
    pub fn request(&mut self) {
        empty_cache();
        self.last = last_block();
        self.begun = Some(TRIMS.load(Ordering::Acquire));
    }

    /// Returns whether a trim must be run.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.begun.is_some()
    }

    /// Trims if it was requested and no other thread has begun a trim since. Returns whether it
    /// did. While the trim of another thread runs, the request stays.
    pub fn run(&mut self) -> bool {
        let Some(begun) = self.begun else { return false };
        let (before, after) = (Ordering::AcqRel, Ordering::Acquire);
        let is_first = TRIMS.compare_exchange(begun, begun + 1, before, after).is_ok();
        if is_first {
            trim();
            ENDED.fetch_max(begun + 1, Ordering::AcqRel);
        }
        if ENDED.load(Ordering::Acquire) > begun {
            *self = Self::default();
        }
        is_first
    }
}

/// The sizes in bytes, 16 apart, of the blocks that glibc keeps free for the thread that has freed
/// them, and how many of each at most: 7, and 16 from version 2.42 on.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CACHED: std::ops::RangeInclusive<usize> = 24..=1032;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CACHED_EACH: usize = 16;

/// Returns the blocks that the allocator keeps free for this thread to its heap, for a trim to find
/// them: each of these few hundred keeps a page, anywhere in the heap of a storm.
///
/// Only the end of a thread empties a cache. So this one takes all blocks out of its cache, and
/// lets a thread that ends free them.
fn empty_cache() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let sizes = CACHED.step_by(16).flat_map(|size| [size; CACHED_EACH]);
        let blocks: Vec<Vec<u8>> = sizes.map(Vec::with_capacity).collect();
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        // Without a thread they return to where they were.
        if let Ok(thread) = thread.spawn(move || drop(blocks)) {
            let _ = thread.join();
        }
    }
}

/// The size in bytes of blocks that glibc takes from a heap by default, and the number of them that
/// fills the free memory at the end of a heap that glibc keeps after [`return_large_blocks`].
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const BLOCK: usize = 120 << 10;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const BLOCKS: usize = (2 * TRIM_FROM as usize).div_ceil(BLOCK);

/// Returns a block behind the free memory at the end of this thread's heap, which a trim returns to
/// the system only if it lies before a block in use. Of the block itself one page is written. If
/// the heap has gaps for all of the blocks, it lies in one of them, and the end stays as it is.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn last_block() -> Vec<u8> {
    let mut blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| Vec::with_capacity(BLOCK)).collect();
    blocks.pop().unwrap_or_default()
}

/// Returns no block: there is no trim.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn last_block() -> Vec<u8> {
    Vec::new()
}

#[allow(unsafe_code)]
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes none of our memory, and may be called by any thread at any time (glibc
    // documents it as MT-Safe).
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trim_serves_all_threads_that_requested_it_before() {
        let (mut one, mut two) = (Trim::default(), Trim::default());
        assert!(!one.run(), "nothing was requested");
        one.request();
        two.request();
        assert!(one.run() && !one.is_requested());
        assert!(two.is_requested() && !two.run());
        two.request();
        assert!(two.run());
    }

    /// It concerns the whole process, for good.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_hides_its_memory_is_not_dumpable() {
        use rustix::process::{DumpableBehavior, dumpable_behavior};
        hide().unwrap();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn blocks_that_a_thread_has_freed_are_free_for_blocks_of_other_sizes() {
        let block = |size: usize| Vec::<u8>::with_capacity(size);
        let (mut freed, mut kept) = (Vec::new(), Vec::new());
        for _ in 0..2 * CACHED_EACH {
            freed.push(block(1000));
            kept.push(block(1000));
        }
        let mut unused: Vec<_> = freed.iter().map(|block| block.as_ptr().addr()).collect();
        drop(freed);
        empty_cache();
        // Smaller gaps, of other tests as well, are filled first.
        for _ in 0..20_000 {
            kept.push(block(500));
            let at = kept.last().map_or(0, |block| block.as_ptr().addr());
            unused.retain(|place| !(*place..*place + 1000).contains(&at));
        }
        // A full cache keeps at least 7. The thread of another test, which may share the heap, may
        // have taken a few.
        assert!(unused.len() < 4, "{} blocks stay in the cache", unused.len());
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn the_free_end_of_the_heap_of_a_thread_is_returned() {
        /// The kilobytes of pages in memory of the mapping that has `address`.
        fn resident(address: usize) -> u64 {
            let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux has it");
            let mut is_mapping = false;
            for line in smaps.lines() {
                let first = line.split_whitespace().next().unwrap_or_default();
                if let Some((start, end)) = first.split_once('-') {
                    let bound = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
                    is_mapping = (bound(start)..bound(end)).contains(&address);
                } else if is_mapping && first == "Rss:" {
                    let kilobytes = line.split_whitespace().nth(1).expect("the number");
                    return kilobytes.parse().expect("decimal");
                }
            }
            panic!("nothing is mapped at {address:#x}")
        }
        // Read by a thread of its own, whose memory comes from another heap.
        let look = |address| std::thread::spawn(move || resident(address)).join().expect("it ends");
        let of_a_thread = move || {
            let kept = vec![1_u8; 1000];
            let address = kept.as_ptr().addr();
            // Too few bytes for glibc to shorten the heap at once.
            let burst: Vec<Vec<u8>> = (0..100).map(|_| vec![1; 1100]).collect();
            let before = look(address);
            drop(burst);
            let mut request = Trim::default();
            request.request();
            trim();
            drop(request);
            (before, look(address))
        };
        let (before, after) = std::thread::spawn(of_a_thread).join().expect("it ends");
        assert!(after + 80 <= before, "{before} KB, then {after} KB");
    }

    #[cfg(any(target_os = "linux", windows))]
    #[test]
    fn the_machine_has_memory() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
