//! Memory of the machine and of the process's job, on Windows.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use windows_sys::Win32::System::JobObjects::{
    JOB_OBJECT_LIMIT_JOB_MEMORY, JOB_OBJECT_LIMIT_PROCESS_MEMORY,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    QueryInformationJobObject,
};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

pub(super) fn of_machine() -> Option<u64> {
    let length = size_of::<MEMORYSTATUSEX>() as u32;
    let mut status = MEMORYSTATUSEX { dwLength: length, ..MEMORYSTATUSEX::default() };
    // SAFETY: the structure has as many bytes as it says.
    let read = unsafe { GlobalMemoryStatusEx(&raw mut status) };
    (read != 0).then_some(status.ullTotalPhys)
}

/// Returns the limit of the job that the process belongs to, such as a container.
pub(super) fn of_job() -> Option<u64> {
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    // SAFETY: the structure has the given length. Without a job the process's own is meant.
    let read = unsafe {
        QueryInformationJobObject(
            null_mut(),
            JobObjectExtendedLimitInformation,
            (&raw mut limits).cast(),
            size_of::<JOBOBJECT_EXTENDED_LIMIT_INFORMATION>() as u32,
            null_mut(),
        )
    };
    if read == 0 {
        return None;
    }
    lowest(&limits)
}

fn lowest(limits: &JOBOBJECT_EXTENDED_LIMIT_INFORMATION) -> Option<u64> {
    let has = |flag| limits.BasicLimitInformation.LimitFlags & flag != 0;
    let of_process = has(JOB_OBJECT_LIMIT_PROCESS_MEMORY).then_some(limits.ProcessMemoryLimit);
    let of_job = has(JOB_OBJECT_LIMIT_JOB_MEMORY).then_some(limits.JobMemoryLimit);
    of_process.into_iter().chain(of_job).min().map(|bytes| bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_lowest_limit_in_force_is_taken() {
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION {
            ProcessMemoryLimit: 5,
            JobMemoryLimit: 4,
            ..JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default()
        };
        assert_eq!(lowest(&limits), None);
        limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_PROCESS_MEMORY;
        assert_eq!(lowest(&limits), Some(5));
        limits.BasicLimitInformation.LimitFlags |= JOB_OBJECT_LIMIT_JOB_MEMORY;
        assert_eq!(lowest(&limits), Some(4));
    }
}
