//! The time, memory and handles of another process of this machine, on Windows.
#![allow(unsafe_code)]

use std::mem::{size_of, zeroed};
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};

use windows_sys::Win32::Foundation::{FILETIME, HANDLE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::ProcessStatus::{
    K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS, PROCESS_MEMORY_COUNTERS_EX,
};
use windows_sys::Win32::System::Threading::{
    GetProcessHandleCount, GetProcessTimes, GetThreadTimes, OpenProcess, OpenThread,
    PROCESS_QUERY_INFORMATION, PROCESS_VM_READ, THREAD_QUERY_INFORMATION,
};
use windows_sys::core::BOOL;

/// Seconds from the start of 1601, where Windows begins to count, to the start of 1970.
const SECONDS_TO_1970: f64 = 11_644_473_600.0;

/// A process that can be asked. It stays this process when it has ended.
#[derive(Debug)]
pub struct WatchedProcess {
    id: u32,
    handle: OwnedHandle,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Its pages in memory.
    pub working_set: u64,
    /// Memory that it has allocated for itself alone.
    pub private: u64,
}

/// A call that reads four times of a process or thread: its start, its end, its time in the kernel
/// and its own.
type ReadTimes = unsafe extern "system" fn(
    HANDLE,
    *mut FILETIME,
    *mut FILETIME,
    *mut FILETIME,
    *mut FILETIME,
) -> BOOL;

impl WatchedProcess {
    /// Opens a process; `None` if there is none with this id, or this user may not.
    #[must_use]
    pub fn open(id: u32) -> Option<Self> {
        // SAFETY: it has no requirement.
        let handle = unsafe { OpenProcess(PROCESS_QUERY_INFORMATION | PROCESS_VM_READ, 0, id) };
        Some(Self { id, handle: own(handle)? })
    }

    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the CPU time of all its threads so far, in nanoseconds.
    #[must_use]
    pub fn cpu_time(&self) -> Option<u64> {
        times(GetProcessTimes, &self.handle)
    }

    /// Returns when it started, in seconds since 1970.
    #[must_use]
    pub fn started(&self) -> Option<f64> {
        let [begun, ..] = all_times(GetProcessTimes, &self.handle)?;
        // Windows counts units of 100 ns from 1601 on.
        Some(begun as f64 / 1e9 - SECONDS_TO_1970)
    }

    /// Returns the CPU time of each living thread, in nanoseconds, with its id.
    #[must_use]
    pub fn threads(&self) -> Vec<(u32, u64)> {
        let time = |id| {
            // SAFETY: it has no requirement.
            let thread = unsafe { OpenThread(THREAD_QUERY_INFORMATION, 0, id) };
            times(GetThreadTimes, &own(thread)?).map(|time| (id, time))
        };
        self.thread_ids().unwrap_or_default().into_iter().filter_map(time).collect()
    }

    /// Returns its memory.
    #[must_use]
    pub fn memory(&self) -> Option<ProcessMemory> {
        // SAFETY: it has only numbers, for which zero is valid.
        let mut counters: PROCESS_MEMORY_COUNTERS_EX = unsafe { zeroed() };
        counters.cb = size_of::<PROCESS_MEMORY_COUNTERS_EX>() as u32;
        let (to, length) = (&raw mut counters, counters.cb);
        // SAFETY: the structure has `length` bytes, and begins with the shorter form.
        let read = unsafe {
            K32GetProcessMemoryInfo(self.raw(), to.cast::<PROCESS_MEMORY_COUNTERS>(), length)
        };
        (read != 0).then_some(ProcessMemory {
            working_set: counters.WorkingSetSize as u64,
            // Documented as the same; Wine has only the second.
            private: counters.PrivateUsage.max(counters.PagefileUsage) as u64,
        })
    }

    /// Returns the number of its open handles.
    #[must_use]
    pub fn handles(&self) -> Option<usize> {
        let mut count = 0;
        // SAFETY: `count` may be written.
        let read = unsafe { GetProcessHandleCount(self.raw(), &mut count) };
        (read != 0).then_some(count as usize)
    }

    fn thread_ids(&self) -> Option<Vec<u32>> {
        // SAFETY: it has no requirement.
        let threads = own(unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0) })?;
        // SAFETY: it has only numbers, for which zero is valid.
        let mut entry: THREADENTRY32 = unsafe { zeroed() };
        entry.dwSize = size_of::<THREADENTRY32>() as u32;
        let mut ids = Vec::new();
        // SAFETY: the entry has as many bytes as it says.
        let mut found = unsafe { Thread32First(threads.as_raw_handle(), &mut entry) };
        while found != 0 {
            if entry.th32OwnerProcessID == self.id {
                ids.push(entry.th32ThreadID);
            }
            // SAFETY: as above.
            found = unsafe { Thread32Next(threads.as_raw_handle(), &mut entry) };
        }
        Some(ids)
    }

    fn raw(&self) -> HANDLE {
        self.handle.as_raw_handle()
    }
}

/// Takes a new handle; `None` if its call has failed.
fn own(handle: HANDLE) -> Option<OwnedHandle> {
    if handle.is_null() || handle == INVALID_HANDLE_VALUE {
        return None;
    }
    // SAFETY: it is new, and nothing else closes it.
    Some(unsafe { OwnedHandle::from_raw_handle(handle) })
}

/// Returns the time in the kernel and outside, in nanoseconds.
fn times(read: ReadTimes, of: &OwnedHandle) -> Option<u64> {
    let [_, _, kernel, user] = all_times(read, of)?;
    Some(kernel + user)
}

/// Returns the four times in nanoseconds.
fn all_times(read: ReadTimes, of: &OwnedHandle) -> Option<[u64; 4]> {
    let none = FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 };
    let (mut begun, mut ended, mut kernel, mut user) = (none, none, none, none);
    // SAFETY: all four may be written.
    let is_read =
        unsafe { read(of.as_raw_handle(), &mut begun, &mut ended, &mut kernel, &mut user) };
    // In units of 100 ns.
    let nanos = |time: FILETIME| {
        (u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)) * 100
    };
    (is_read != 0).then(|| [begun, ended, kernel, user].map(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shows_its_memory_threads_and_handles() {
        let own = WatchedProcess::open(std::process::id()).unwrap();
        let memory = own.memory().unwrap();
        assert!(memory.working_set > 100_000 && memory.private > 0, "{memory:?}");
        // Wine counts no handles.
        assert!(own.handles().is_some() && own.cpu_time().is_some());
        let threads = own.threads().len();
        let (say, hear) = std::sync::mpsc::channel::<()>();
        let another = std::thread::spawn(move || hear.recv());
        assert!(own.threads().len() > threads || threads > 1, "{threads}");
        drop(say);
        another.join().unwrap().unwrap_err();
    }

    #[test]
    fn a_process_has_started_in_the_past() {
        let own = WatchedProcess::open(std::process::id()).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let age = now.as_secs_f64() - own.started().unwrap();
        assert!((-1.0..86_400.0).contains(&age), "{age} s");
    }

    #[test]
    fn a_process_that_does_not_exist_is_not_opened() {
        // Ids of processes are multiples of four.
        assert!(WatchedProcess::open(u32::MAX - 4).is_none());
    }
}
