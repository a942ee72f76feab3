//! The figures of processes, read from /proc.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{CpuSample, Memory, Processes, ThreadTime, numbered, parse};

impl Processes {
    /// CPU time of every thread; `None` if no process can be read.
    #[must_use]
    pub fn cpu(&self, at_ns: u64) -> Option<CpuSample> {
        let (mut threads, mut processes) = (BTreeMap::new(), BTreeMap::new());
        for &pid in &self.pids {
            let stat = fs::read_to_string(self.dir(pid).join("stat")).ok();
            if let Some(ns) = stat.as_deref().and_then(stat_cpu_ns) {
                processes.insert(pid, ns);
            }
            for (tid, dir) in numbered(&self.dir(pid).join("task")) {
                if let Some(time) = thread_time(&dir) {
                    threads.insert(tid, time);
                }
            }
        }
        (!threads.is_empty()).then_some(CpuSample { at_ns, threads, processes })
    }

    /// Returns the memory of all processes; `None` if a process is not readable (another user's, or
    /// ended). This walks the page tables, which takes a few milliseconds for a large process, so
    /// do not use it during a measurement.
    #[must_use]
    pub fn memory(&self) -> Option<Memory> {
        let mut sum = Memory::default();
        for &pid in &self.pids {
            let rollup = fs::read_to_string(self.dir(pid).join("smaps_rollup")).ok()?;
            let field = |name| parse::kib_field(&rollup, name);
            sum.rss_bytes += field("Rss")?;
            sum.pss_bytes += field("Pss")?;
            sum.private_bytes += field("Private_Clean")? + field("Private_Dirty")?;
            sum.anonymous_bytes += field("Anonymous")?;
        }
        (!self.pids.is_empty()).then_some(sum)
    }

    /// Returns the resident memory of all processes in bytes; `None` if a process is not readable.
    /// Cheap enough during a measurement, because the kernel keeps the count.
    #[must_use]
    pub fn resident(&self) -> Option<u64> {
        let one = |&pid: &u32| {
            let statm = fs::read_to_string(self.dir(pid).join("statm")).ok()?;
            Some(parse::statm_resident_pages(&statm)? * page_size())
        };
        self.pids.iter().map(one).sum::<Option<u64>>().filter(|_| !self.pids.is_empty())
    }

    /// Open descriptors of all processes; `None` if one cannot be read.
    #[must_use]
    pub fn descriptors(&self) -> Option<usize> {
        self.pids.iter().map(|&pid| descriptors(&self.dir(pid).join("fd"))).sum()
    }
}

/// Returns the CPU time of a thread: in nanoseconds if the scheduler keeps statistics, otherwise in
/// ticks of 10 ms.
fn thread_time(dir: &Path) -> Option<ThreadTime> {
    let exact = fs::read_to_string(dir.join("schedstat")).ok();
    if let Some((cpu, waiting)) = exact.as_deref().and_then(parse::schedstat_ns)
        && cpu > 0
    {
        return Some(ThreadTime { cpu, waiting });
    }
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    Some(ThreadTime { cpu: stat_cpu_ns(&stat)?, waiting: 0 })
}

fn stat_cpu_ns(stat: &str) -> Option<u64> {
    Some(parse::stat_cpu_ticks(stat)? * (1_000_000_000 / ticks_per_second()))
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

fn descriptors(dir: &Path) -> Option<usize> {
    // Since Linux 6.2 the directory's size is the number of descriptors. Before that it is 0, and
    // the entries must be listed.
    match fs::metadata(dir).ok()?.len() {
        0 => Some(fs::read_dir(dir).ok()?.count()),
        n => Some(n as usize),
    }
}
