//! Reports of changes by an event object, for the few connections that need one.
//!
//! A full socket needs it to report space. An overlapped send would report it as well, but needs
//! bytes: a close would lose them, and they could not be taken back when the connection is parked
//! (C9, C14).
//!
//! A duplicate of another poller's socket needs it for its input also, since a socket belongs to
//! one completion port for its whole life.

use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsRawHandle, AsRawSocket, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use socket2::Socket;
use windows_sys::Win32::Foundation::{HANDLE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::Networking::WinSock::{
    FD_CLOSE, FD_CLOSE_BIT, FD_READ, FD_WRITE, SOCKET, WSAEVENT, WSAEnumNetworkEvents,
    WSAEventSelect, WSANETWORKEVENTS,
};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, RegisterWaitForSingleObject, UnregisterWaitEx, WT_EXECUTEINWAITTHREAD,
};

use super::port::Port;
use crate::readiness::poller::{ERROR, READ, WRITE};

/// Space for output.
pub(super) const SPACE: u32 = FD_WRITE;
/// Also input, and the end of the connection.
pub(super) const CHANGES: u32 = FD_READ | FD_WRITE | FD_CLOSE;

/// Posts a packet to a port when a socket changes, until it is dropped.
pub(super) struct Watch {
    context: Box<Context>,
    wait: HANDLE,
}

/// The context of the wait, for a thread of the system.
struct Context {
    event: OwnedHandle,
    socket: SOCKET,
    port: Arc<Port>,
    token: u64,
}

// SAFETY: the handle of a wait may be used from any thread.
#[allow(unsafe_code)]
unsafe impl Send for Watch {}

impl Watch {
    /// Watches a socket, which outlives this. `token` is the key of the packets.
    pub(super) fn new(
        socket: &Socket,
        port: Arc<Port>,
        token: u64,
        events: u32,
    ) -> io::Result<Self> {
        let socket = socket.as_raw_socket() as SOCKET;
        let context = Box::new(Context { event: new_event()?, socket, port, token });
        let wait = context.wait()?;
        // From here on, its drop ends the wait.
        let watch = Self { context, wait };
        watch.context.select(events)?;
        Ok(watch)
    }
}

#[allow(unsafe_code)]
impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.context.select(0);
        // SAFETY: the wait is registered, and is not used again. The call returns when no callback
        // runs, so the context may be freed.
        unsafe { UnregisterWaitEx(self.wait, INVALID_HANDLE_VALUE) };
    }
}

#[allow(unsafe_code)]
impl Context {
    /// Calls [`on_event`] whenever the event is set.
    fn wait(&self) -> io::Result<HANDLE> {
        let mut wait = null_mut();
        // SAFETY: the call writes the handle of the wait. The context is behind a box, and lives
        // until the wait has ended, and its event as long.
        let registered = unsafe {
            RegisterWaitForSingleObject(
                &raw mut wait,
                self.event.as_raw_handle(),
                Some(on_event),
                std::ptr::from_ref(self).cast(),
                INFINITE,
                WT_EXECUTEINWAITTHREAD,
            )
        };
        if registered == 0 { Err(io::Error::last_os_error()) } else { Ok(wait) }
    }

    /// Makes the socket set the event at these events.
    fn select(&self, events: u32) -> io::Result<()> {
        let event = if events == 0 { 0 } else { self.event() };
        // SAFETY: socket and event are open. The call reads no memory.
        match unsafe { WSAEventSelect(self.socket, event, events.cast_signed()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn event(&self) -> WSAEVENT {
        self.event.as_raw_handle() as WSAEVENT
    }

    /// Returns what has changed since the last call.
    fn changes(&self) -> u8 {
        let mut events = WSANETWORKEVENTS { lNetworkEvents: 0, iErrorCode: [0; 10] };
        // SAFETY: socket and event are open, and the call writes `events`.
        unsafe {
            WSAEnumNetworkEvents(self.socket, self.event(), &raw mut events);
        }
        let happened = events.lNetworkEvents.cast_unsigned();
        let bit = |event: u32, bit: u8| if happened & event != 0 { bit } else { 0 };
        let failed = events.iErrorCode[FD_CLOSE_BIT as usize] != 0;
        bit(FD_READ | FD_CLOSE, READ)
            | bit(FD_WRITE, WRITE)
            | bit(FD_CLOSE, if failed { ERROR } else { 0 })
    }
}

/// Creates an event that a wait resets.
#[allow(unsafe_code)]
fn new_event() -> io::Result<OwnedHandle> {
    // SAFETY: the call reads no memory, since neither attributes nor a name are given.
    let event = unsafe { CreateEventW(null(), 0, 0, null()) };
    if event.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is open, and nothing else has it.
    Ok(unsafe { OwnedHandle::from_raw_handle(event) })
}

/// Runs on a thread of the system.
#[allow(unsafe_code)]
unsafe extern "system" fn on_event(context: *mut c_void, _: bool) {
    // SAFETY: it is the context that the wait was registered with, which lives longer.
    let context = unsafe { &*context.cast::<Context>() };
    match context.changes() {
        0 => {}
        bits => context.port.post(context.token, bits),
    }
}
