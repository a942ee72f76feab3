//! CPU affinity of threads.

use std::io;

/// Returns the CPUs that the calling thread may use, in ascending order.
///
/// # Errors
/// The system has more CPUs than one query can report, or is not Linux.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let set = sched_getaffinity(None)?;
        Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
    }
    #[cfg(not(target_os = "linux"))]
    Err(io::ErrorKind::Unsupported.into())
}

/// Pins the calling thread to `cpu`.
///
/// # Errors
/// The thread may not use this CPU, or the system is not Linux.
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
    #[cfg(not(target_os = "linux"))]
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
