//! CPU affinity of threads.

#[cfg(windows)]
mod windows;

use std::io;

/// The CPUs that share a core, and the CPUs of each NUMA node, as Windows reports them.
#[cfg(windows)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The CPUs of each core, in ascending order.
    pub cores: Vec<Vec<usize>>,
    /// The CPUs of each node, with its number, in ascending order.
    pub nodes: Vec<(usize, Vec<usize>)>,
}

/// Returns the cores and nodes of the machine; empty if the system does not tell.
#[cfg(windows)]
#[must_use]
pub fn topology() -> Topology {
    windows::topology()
}

/// Returns the CPUs that the calling thread may use, in ascending order.
///
/// # Errors
/// The system has more CPUs than one query can report, or is neither Linux nor Windows.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let set = sched_getaffinity(None)?;
        Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
    }
    #[cfg(windows)]
    return windows::usable_cpus();
    #[cfg(not(any(target_os = "linux", windows)))]
    Err(io::ErrorKind::Unsupported.into())
}

/// Pins the calling thread to `cpu`.
///
/// # Errors
/// The thread may not use this CPU, or the system is neither Linux nor Windows.
pub fn pin_thread(cpu: usize) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        Ok(sched_setaffinity(None, &set)?)
    }
    #[cfg(windows)]
    return windows::pin_thread(cpu);
    #[cfg(not(any(target_os = "linux", windows)))]
    {
        let _ = cpu;
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_only_its_cpu() {
        let pinned = std::thread::spawn(|| {
            let last = *usable_cpus().unwrap().last().unwrap();
            pin_thread(last).unwrap();
            assert_eq!(usable_cpus().unwrap(), [last]);
            assert!(pin_thread(usize::MAX).is_err());
        });
        pinned.join().unwrap();
    }
}

#[cfg(all(test, windows))]
mod tests_of_windows {
    use super::*;

    #[test]
    fn a_thread_may_be_pinned_to_each_cpu_of_the_process() {
        let pinned = std::thread::spawn(|| {
            for cpu in usable_cpus().unwrap() {
                pin_thread(cpu).unwrap();
            }
            assert!(pin_thread(usize::BITS as usize).is_err() && pin_thread(usize::MAX).is_err());
        });
        pinned.join().unwrap();
    }

    #[test]
    fn each_cpu_has_a_core_and_a_node() {
        let Topology { cores, nodes } = topology();
        for cpu in usable_cpus().unwrap() {
            assert_eq!(cores.iter().filter(|core| core.contains(&cpu)).count(), 1, "{cores:?}");
            assert!(nodes.iter().any(|(_, node)| node.contains(&cpu)), "{nodes:?}");
        }
    }
}
