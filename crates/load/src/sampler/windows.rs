//! The figures of processes, by the calls of Windows.

use std::collections::BTreeMap;

use throng_io::processes::WatchedProcess;

use super::{CpuSample, Memory, Processes, ThreadTime};

impl Processes {
    /// CPU time of every thread; `None` if no process can be read. This system does not tell how
    /// long a thread has waited for a CPU.
    #[must_use]
    pub fn cpu(&self, at_ns: u64) -> Option<CpuSample> {
        let (mut threads, mut processes) = (BTreeMap::new(), BTreeMap::new());
        for process in self.watched()? {
            processes.insert(process.id(), process.cpu_time()?);
            let of_process = process.threads().into_iter();
            threads.extend(of_process.map(|(id, cpu)| (id, ThreadTime { cpu, waiting: 0 })));
        }
        (!threads.is_empty()).then_some(CpuSample { at_ns, threads, processes })
    }

    /// Opens all processes; `None` if one cannot be.
    fn watched(&self) -> Option<Vec<WatchedProcess>> {
        let all = self.pids.iter().map(|&pid| WatchedProcess::open(pid));
        all.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
    }

    /// Returns the memory of all processes; `None` if a process is not readable. Pages that several
    /// processes share count in each.
    #[must_use]
    pub fn memory(&self) -> Option<Memory> {
        let mut sum = Memory::default();
        for process in self.watched()? {
            let memory = process.memory()?;
            sum.rss_bytes += memory.working_set;
            sum.pss_bytes += memory.working_set;
            sum.private_bytes += memory.private;
            sum.anonymous_bytes += memory.private;
        }
        Some(sum)
    }

    /// Returns the resident memory of all processes in bytes; `None` if a process is not readable.
    #[must_use]
    pub fn resident(&self) -> Option<u64> {
        self.memory().map(|memory| memory.rss_bytes)
    }

    /// Open handles of all processes; `None` if one cannot be read.
    #[must_use]
    pub fn descriptors(&self) -> Option<usize> {
        self.watched()?.iter().map(WatchedProcess::handles).sum()
    }
}
