//! CPUs of Windows: the ones of the process's group, which has 64 at most.
#![allow(unsafe_code)]

use std::io;

use windows_sys::Win32::System::SystemInformation::{
    GetLogicalProcessorInformation, RelationNumaNode, RelationProcessorCore,
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentThread, GetProcessAffinityMask, SetThreadAffinityMask,
};

use super::Topology;

/// The times that the list of CPUs is read again because it has grown.
const ATTEMPTS: usize = 8;

pub(super) fn usable_cpus() -> io::Result<Vec<usize>> {
    let (mut of_process, mut of_system) = (0, 0);
    // SAFETY: it has no requirement; the handle need not be closed.
    let process = unsafe { GetCurrentProcess() };
    // SAFETY: both numbers may be written.
    let read = unsafe { GetProcessAffinityMask(process, &raw mut of_process, &raw mut of_system) };
    match (read, of_process) {
        (0, _) => Err(io::Error::last_os_error()),
        // The threads of the process have CPUs of several groups.
        (_, 0) => Err(io::ErrorKind::Unsupported.into()),
        (_, mask) => Ok(cpus(mask)),
    }
}

pub(super) fn pin_thread(cpu: usize) -> io::Result<()> {
    let shift = u32::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mask = 1_usize.checked_shl(shift).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: it has no requirement; the handle need not be closed.
    let thread = unsafe { GetCurrentThread() };
    // SAFETY: the handle is the thread's own.
    match unsafe { SetThreadAffinityMask(thread, mask) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

pub(super) fn topology() -> Topology {
    let mut topology = Topology::default();
    for entry in entries().unwrap_or_default() {
        let of_entry = cpus(entry.ProcessorMask);
        if entry.Relationship == RelationProcessorCore {
            topology.cores.push(of_entry);
        } else if entry.Relationship == RelationNumaNode {
            // SAFETY: an entry of this kind has the number of a node.
            let node = unsafe { entry.Anonymous.NumaNode.NodeNumber };
            topology.nodes.push((node as usize, of_entry));
        }
    }
    topology.nodes.sort_unstable();
    topology
}

/// Reads the system's list of cores, nodes and others; `None` if it has none.
fn entries() -> Option<Vec<SYSTEM_LOGICAL_PROCESSOR_INFORMATION>> {
    const SIZE: usize = size_of::<SYSTEM_LOGICAL_PROCESSOR_INFORMATION>();
    let mut entries = Vec::new();
    for _ in 0..ATTEMPTS {
        let mut bytes = u32::try_from(entries.len() * SIZE).ok()?;
        // SAFETY: the system writes at most `bytes`, which the entries have, and their number to
        // `bytes`; both outlive the call.
        let read = unsafe { GetLogicalProcessorInformation(entries.as_mut_ptr(), &raw mut bytes) };
        let needed = bytes as usize / SIZE;
        if read != 0 {
            entries.truncate(needed);
            return Some(entries);
        }
        if needed <= entries.len() {
            return None;
        }
        entries.resize_with(needed, SYSTEM_LOGICAL_PROCESSOR_INFORMATION::default);
    }
    None
}

/// Returns the numbers of the bits that are set.
fn cpus(mask: usize) -> Vec<usize> {
    (0..usize::BITS as usize).filter(|cpu| mask >> cpu & 1 == 1).collect()
}
