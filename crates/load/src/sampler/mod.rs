//! Resources that a process uses: CPU time, memory, threads and descriptors, read from /proc, or by
//! the calls of Windows.
//!
//! The sampler only reads: it does not modify the watched process, which may be any server and
//! needs no support for it. On other systems every sample is `None`, and the report shows the value
//! as unknown.

#[cfg(not(windows))]
mod find;
mod group;
#[cfg_attr(windows, allow(dead_code, reason = "Windows has no /proc"))]
mod parse;
#[cfg_attr(windows, path = "windows.rs")]
mod reading;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

#[cfg(not(windows))]
pub use find::listening_pids;
pub use group::{GroupMember, process_group};
#[cfg(windows)]
pub use throng_io::port_owners::port_owners as listening_pids;

/// One or more processes that are watched together, because a server may have several processes on
/// one port.
#[derive(Clone, Debug)]
pub struct Processes {
    pids: Vec<u32>,
}

/// CPU time at one moment, thread by thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSample {
    /// When, in the caller's nanoseconds.
    pub at_ns: u64,
    /// By thread id.
    threads: BTreeMap<u32, ThreadTime>,
    /// CPU time by process id, in nanoseconds with a resolution of 10 ms, for all threads including
    /// ended ones.
    processes: BTreeMap<u32, u64>,
}

/// A thread's time since its birth, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadTime {
    /// On a CPU.
    cpu: u64,
    /// Runnable, and waiting for one.
    waiting: u64,
}

/// CPU time used between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuUsage {
    /// Wall time between the samples, in seconds.
    pub wall_s: f64,
    /// CPU time of all threads, in seconds.
    pub cpu_s: f64,
    /// CPU time of all threads by wall time: 1 is one core kept busy.
    pub cores: f64,
    /// Cores used by the busiest thread.
    pub busiest_thread_cores: f64,
    /// The share of wall time in which the busiest thread was ready to run but had no CPU, because
    /// another thread used it. 0 if the kernel does not report it.
    pub busiest_thread_waiting: f64,
    /// Threads at the end.
    pub threads: usize,
}

/// Memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident set, in bytes: everything mapped and present.
    pub rss_bytes: u64,
    /// Resident, with each page divided by the number of processes that share it, in bytes.
    pub pss_bytes: u64,
    /// Resident and not shared, in bytes.
    pub private_bytes: u64,
    /// Resident and backed by no file (heap and stacks), in bytes.
    pub anonymous_bytes: u64,
}

impl Processes {
    /// Watches these processes.
    #[must_use]
    pub fn new(pids: Vec<u32>) -> Self {
        Self { pids }
    }

    /// Watches this process.
    #[must_use]
    pub fn own() -> Self {
        Self::new(vec![std::process::id()])
    }

    /// The process ids.
    #[must_use]
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Name of the first process's command, as the kernel keeps it (15 characters).
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let stat = fs::read_to_string(self.dir(*self.pids.first()?).join("stat")).ok()?;
        parse::stat_name(&stat).map(str::to_owned)
    }

    /// Returns the CPU time of all processes in kernel ticks, usually of 10 ms, including ended
    /// threads; `None` if a process is not readable.
    #[must_use]
    pub fn cpu_ticks(&self) -> Option<u64> {
        let one = |&pid: &u32| {
            parse::stat_cpu_ticks(&fs::read_to_string(self.dir(pid).join("stat")).ok()?)
        };
        self.pids.iter().map(one).sum::<Option<u64>>().filter(|_| !self.pids.is_empty())
    }

    /// The number of CPUs that the processes may run on, all together.
    #[must_use]
    pub fn cpus_allowed(&self) -> Option<usize> {
        let allowed = |&pid: &u32| {
            parse::cpus_allowed(&fs::read_to_string(self.dir(pid).join("status")).ok()?)
        };
        // Assumes that several pinned processes are pinned to different CPUs, the usual reason to
        // start several.
        let sum = self.pids.iter().map(allowed).sum::<Option<usize>>()?;
        let machine = std::thread::available_parallelism().map_or(sum, usize::from);
        (sum > 0).then_some(if self.pids.len() > 1 { sum.min(machine) } else { sum })
    }

    fn dir(&self, pid: u32) -> PathBuf {
        PathBuf::from(format!("/proc/{pid}"))
    }
}

impl CpuSample {
    /// Returns the use since an `earlier` sample, including threads that have ended since (a server
    /// may have a thread for each connection).
    #[must_use]
    pub fn since(&self, earlier: &Self) -> CpuUsage {
        let wall_ns = self.at_ns.saturating_sub(earlier.at_ns).max(1) as f64;
        let used = |(tid, now): (&u32, &ThreadTime)| {
            let before = earlier.threads.get(tid).copied().unwrap_or_default();
            let waiting = now.waiting.saturating_sub(before.waiting);
            (now.cpu.saturating_sub(before.cpu), waiting)
        };
        let living: u64 = self.threads.iter().map(|thread| used(thread).0).sum();
        let before = |pid| earlier.processes.get(pid).copied().unwrap_or_default();
        let with_ended: u64 =
            self.processes.iter().map(|(pid, now)| now.saturating_sub(before(pid))).sum();
        // Uses the finer figure, unless the coarser one is larger: the finer figure is then
        // incomplete.
        let coarse = COARSE_NS * self.processes.len() as u64;
        let total = if with_ended > living + coarse { with_ended } else { living };
        let (busiest, waiting) = self.threads.iter().map(used).max().unwrap_or((0, 0));
        CpuUsage {
            wall_s: wall_ns / 1e9,
            cpu_s: total as f64 / 1e9,
            cores: total as f64 / wall_ns,
            busiest_thread_cores: busiest as f64 / wall_ns,
            busiest_thread_waiting: waiting as f64 / wall_ns,
            threads: self.threads.len(),
        }
    }
}

/// Busy and total CPU time of the whole machine at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineSample {
    busy_ticks: u64,
    total_ticks: u64,
}

impl MachineSample {
    /// Reads /proc/stat; `None` where there is none.
    #[must_use]
    pub fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let (busy_ticks, total_ticks) = parse::machine_ticks(&stat)?;
        Some(Self { busy_ticks, total_ticks })
    }

    /// Returns the share (0 to 1) of all CPUs' time that was busy since `earlier`, for all
    /// processes.
    #[must_use]
    pub fn busy_since(&self, earlier: &Self) -> f64 {
        let total = self.total_ticks.saturating_sub(earlier.total_ticks).max(1) as f64;
        (self.busy_ticks.saturating_sub(earlier.busy_ticks) as f64 / total).min(1.0)
    }
}

/// Maximum error of two counts in ticks, in nanoseconds.
const COARSE_NS: u64 = 20_000_000;

/// Subdirectories whose name is a number.
fn numbered(dir: &Path) -> impl Iterator<Item = (u32, PathBuf)> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ns: u64, threads: &[(u32, u64, u64)]) -> CpuSample {
        let threads = threads.iter().map(|&(tid, cpu, waiting)| (tid, ThreadTime { cpu, waiting }));
        CpuSample { at_ns, threads: threads.collect(), processes: BTreeMap::new() }
    }

    #[test]
    fn usage_is_the_difference_thread_by_thread() {
        let before = sample(1_000_000_000, &[(1, 500, 0), (2, 1_000_000_000, 100)]);
        // Thread 1 ended, thread 3 is new.
        let after = sample(3_000_000_000, &[(2, 2_500_000_000, 200_000_100), (3, 400_000_000, 0)]);
        let usage = after.since(&before);
        assert_eq!(
            (usage.wall_s, usage.cpu_s, usage.cores, usage.busiest_thread_cores, usage.threads),
            (2.0, 1.9, 0.95, 0.75, 2)
        );
        assert_eq!(usage.busiest_thread_waiting, 0.1);
    }

    #[test]
    fn threads_that_ended_count_where_ticks_can_tell() {
        let mut before = sample(0, &[(1, 0, 0), (2, 5_000_000, 0)]);
        before.processes.insert(1, 10_000_000);
        // Thread 2 ended, and others came and went.
        let mut after = sample(1_000_000_000, &[(1, 100_000_000, 0)]);
        after.processes.insert(1, 910_000_000);
        let usage = after.since(&before);
        assert_eq!((usage.cpu_s, usage.busiest_thread_cores, usage.threads), (0.9, 0.1, 1));
        // A difference within the error of ticks is not significant.
        after.processes.insert(1, 120_000_000);
        assert_eq!(after.since(&before).cpu_s, 0.1);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_that_ended_is_paid_for() {
        let own = Processes::own();
        let before = own.cpu(0).unwrap();
        let spin = || {
            let from = own.cpu(0).unwrap();
            let spent = || {
                let now = own.cpu(1).unwrap();
                let tick = |sample: &CpuSample| sample.processes.values().sum::<u64>();
                tick(&now) - tick(&from)
            };
            while spent() < 200_000_000 {
                std::hint::black_box((0..100_000_u64).fold(0, |a, b| a ^ (b * b)));
            }
        };
        std::thread::scope(|scope| scope.spawn(spin).join().unwrap());
        let usage = own.cpu(1_000_000_000).unwrap().since(&before);
        assert!(usage.cpu_s > 0.15, "{usage:?}");
    }

    #[test]
    fn the_machines_share() {
        let before = MachineSample { busy_ticks: 100, total_ticks: 1000 };
        let after = MachineSample { busy_ticks: 250, total_ticks: 1200 };
        assert_eq!(after.busy_since(&before), 0.75);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn we_can_watch_ourselves() {
        let own = Processes::own();
        let before = own.cpu(0).unwrap();
        let memory = own.memory().unwrap();
        assert!(memory.rss_bytes >= memory.anonymous_bytes && memory.anonymous_bytes > 0);
        assert!(memory.rss_bytes >= memory.pss_bytes && memory.pss_bytes >= memory.private_bytes);
        assert!(own.cpu_ticks().is_some());
        let resident = own.resident().unwrap();
        assert!(
            resident / 2 < memory.rss_bytes && memory.rss_bytes < resident * 2,
            "{resident} {memory:?}"
        );
        assert!(own.descriptors().unwrap() >= 3);
        assert!(own.cpus_allowed().unwrap() >= 1);
        assert!(own.name().is_some());
        let work: u64 = std::hint::black_box((0..2_000_000_u64).fold(0, |a, b| a ^ (b * b)));
        assert!(work > 0);
        let usage = own.cpu(1_000_000_000).unwrap().since(&before);
        assert!(usage.cpu_s > 0.0 && usage.threads >= 1, "{usage:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_unknown() {
        let absent = Processes::new(vec![u32::MAX]);
        assert_eq!((absent.cpu(0), absent.memory(), absent.descriptors()), (None, None, None));
        assert_eq!(Processes::new(Vec::new()).memory(), None);
    }
}
