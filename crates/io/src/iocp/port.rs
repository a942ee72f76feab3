//! A completion port.

use std::collections::BTreeMap;
use std::io;
use std::os::windows::io::{AsRawHandle, AsRawSocket, FromRawHandle, OwnedHandle};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use socket2::SockRef;
use windows_sys::Win32::Foundation::{HANDLE, INVALID_HANDLE_VALUE, WAIT_TIMEOUT};
use windows_sys::Win32::Storage::FileSystem::SetFileCompletionNotificationModes;
use windows_sys::Win32::System::IO::{
    CreateIoCompletionPort, GetQueuedCompletionStatusEx, OVERLAPPED_ENTRY,
    PostQueuedCompletionStatus,
};
use windows_sys::Win32::System::WindowsProgramming::FILE_SKIP_COMPLETION_PORT_ON_SUCCESS;

use super::operation::MAX_PORT;

/// FILE_SKIP_SET_EVENT_ON_HANDLE: no one waits for a socket's handle.
const SKIP_SET_EVENT: u32 = 2;

/// A completion port, which may be used from any thread.
#[derive(Debug)]
pub(super) struct Port {
    handle: OwnedHandle,
    number: u32,
}

/// The open ports by number, for what is rare. A connection has only the number of its port.
static OPEN: Mutex<Ports> = Mutex::new(Ports { last: 0, open: BTreeMap::new() });

struct Ports {
    /// The last number given.
    last: u32,
    open: BTreeMap<u32, Weak<Port>>,
}

impl Ports {
    /// Returns the next number that no open port has. A socket may outlive its port, so a number is
    /// given again only after all others.
    fn next(&mut self) -> io::Result<u32> {
        if self.open.len() >= MAX_PORT as usize {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        loop {
            self.last = self.last % MAX_PORT + 1;
            if !self.open.contains_key(&self.last) {
                return Ok(self.last);
            }
        }
    }
}

impl Port {
    /// Creates a port.
    ///
    /// # Errors
    /// The system's error, or all numbers are in use.
    #[allow(unsafe_code)]
    pub(super) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: without a file, the call makes a port. It reads no memory.
        let handle = unsafe { CreateIoCompletionPort(INVALID_HANDLE_VALUE, null_mut(), 0, 1) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle is open, and nothing else has it.
        let handle = unsafe { OwnedHandle::from_raw_handle(handle) };
        let mut ports = ports();
        let number = ports.next()?;
        let port = Arc::new(Self { handle, number });
        ports.open.insert(number, Arc::downgrade(&port));
        Ok(port)
    }

    /// Returns the open port with this number.
    pub(super) fn of_number(number: u32) -> Option<Arc<Self>> {
        ports().open.get(&number)?.upgrade()
    }

    /// Returns its number, which is not 0.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Makes the packets of a socket's operations come to this port, for the whole life of the
    /// socket and of its duplicates. An operation that succeeds at once makes no packet.
    ///
    /// # Errors
    /// `InvalidInput` if the socket belongs to a port, or the system's error.
    #[allow(unsafe_code)]
    pub(super) fn associate(&self, socket: SockRef<'_>) -> io::Result<()> {
        let handle = socket.as_raw_socket() as HANDLE;
        // SAFETY: both are open handles, for as long as the call lasts. It reads no memory.
        let port = unsafe { CreateIoCompletionPort(handle, self.handle(), 0, 0) };
        if port.is_null() {
            return Err(io::Error::last_os_error());
        }
        let modes = (FILE_SKIP_COMPLETION_PORT_ON_SUCCESS | SKIP_SET_EVENT) as u8;
        // SAFETY: the handle is open. The call reads no memory.
        match unsafe { SetFileCompletionNotificationModes(handle, modes) } {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Posts a packet without an operation. Fails only for lack of kernel memory.
    #[allow(unsafe_code)]
    pub(super) fn post(&self, key: u64, bits: u8) {
        // SAFETY: the port is open. The call reads no memory: the operation is only a number to it.
        unsafe { PostQueuedCompletionStatus(self.handle(), bits.into(), key as usize, null_mut()) };
    }

    /// Waits for packets, at most as many as `packets` has capacity for, and replaces its contents
    /// by them. Waits for `millis` milliseconds, without limit if that is `u32::MAX`.
    ///
    /// # Errors
    /// The system's error. After a timeout there are no packets.
    #[allow(unsafe_code)]
    pub(super) fn wait(&self, packets: &mut Vec<OVERLAPPED_ENTRY>, millis: u32) -> io::Result<()> {
        packets.clear();
        let capacity = packets.capacity().try_into().unwrap_or(u32::MAX);
        let mut count = 0;
        // SAFETY: the system writes at most `capacity` packets into the memory of `packets`, which
        // is for that many, and their number into `count`; both outlive the call.
        let succeeded = unsafe {
            GetQueuedCompletionStatusEx(
                self.handle(),
                packets.as_mut_ptr(),
                capacity,
                &raw mut count,
                millis,
                0,
            )
        };
        if succeeded == 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(code) if code.cast_unsigned() == WAIT_TIMEOUT => Ok(()),
                _ => Err(error),
            };
        }
        // SAFETY: the system has written this many, which are at most the capacity.
        unsafe { packets.set_len(count as usize) };
        Ok(())
    }

    fn handle(&self) -> HANDLE {
        self.handle.as_raw_handle()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        ports().open.remove(&self.number);
    }
}

fn ports() -> MutexGuard<'static, Ports> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_again_after_all_others() {
        let mut ports = Ports { last: 0, open: BTreeMap::new() };
        for number in [1, 2] {
            assert_eq!(ports.next().unwrap(), number);
        }
        ports.open.insert(1, Weak::new());
        ports.last = MAX_PORT - 1;
        assert_eq!(ports.next().unwrap(), MAX_PORT);
        assert_eq!(ports.next().unwrap(), 2, "a port is open that has 1");
    }
}
