//! Console control events of Windows, which take the place of signals.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT,
    ENABLE_VIRTUAL_TERMINAL_PROCESSING, GetConsoleMode, GetStdHandle, STD_ERROR_HANDLE,
    STD_OUTPUT_HANDLE, SetConsoleCtrlHandler, SetConsoleMode,
};
use windows_sys::core::BOOL;

/// An event of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleEvent {
    /// Ctrl-C or Ctrl-Break.
    Interrupt,
    /// The window is closed, the user logs off, or the system shuts down. The system ends the
    /// process soon, and after five seconds at the latest if a window is closed.
    End,
}

type Handler = Arc<dyn Fn(ConsoleEvent) + Send + Sync>;

/// The registered handlers, each with its number.
static HANDLERS: Mutex<Vec<(u64, Handler)>> = Mutex::new(Vec::new());

/// A registered handler. Dropping it removes the handler; without one, an event ends the process.
#[must_use = "dropping it removes the handler"]
#[derive(Debug)]
pub struct Registration(u64);

impl Registration {
    /// Keeps the handler until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        handlers(|all| all.retain(|(number, _)| *number != self.0));
    }
}

/// Calls `handler` for each event, on a thread of the system.
///
/// # Errors
/// The system refuses a handler.
pub fn on_event(
    handler: impl Fn(ConsoleEvent) + Send + Sync + 'static,
) -> io::Result<Registration> {
    static REGISTERED: OnceLock<Result<(), i32>> = OnceLock::new();
    REGISTERED.get_or_init(register).map_err(io::Error::from_raw_os_error)?;
    Ok(handlers(|all| {
        let number = all.last().map_or(0, |(last, _)| last + 1);
        all.push((number, Arc::new(handler)));
        Registration(number)
    }))
}

/// Makes the console obey escape sequences, on standard output and standard error. Returns whether
/// it does, on all of them that are consoles: one of Windows before version 10 does not.
#[allow(unsafe_code)]
pub fn obey_escapes() -> bool {
    [STD_OUTPUT_HANDLE, STD_ERROR_HANDLE].into_iter().all(|stream| {
        // SAFETY: it has no requirement; the handle stays the process's.
        let handle = unsafe { GetStdHandle(stream) };
        let mut mode = 0;
        // SAFETY: `mode` may be written; an invalid handle, or one of a file, is an error.
        if unsafe { GetConsoleMode(handle, &mut mode) } == 0 {
            return true;
        }
        // SAFETY: the handle is a console's.
        unsafe { SetConsoleMode(handle, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING) != 0 }
    })
}

/// Passes an event on to all handlers, as if it came from the console: a service has none. Returns
/// whether there was a handler.
pub fn raise(event: ConsoleEvent) -> bool {
    deliver(event)
}

#[allow(unsafe_code)]
fn register() -> Result<(), i32> {
    // SAFETY: `receive` has the signature of a handler, and the program is never unloaded.
    match unsafe { SetConsoleCtrlHandler(Some(receive), 1) } {
        0 => Err(io::Error::last_os_error().raw_os_error().unwrap_or_default()),
        _ => Ok(()),
    }
}

/// Takes an event, on a thread that the system starts for it. Returns 0 to have the system's own
/// handler end the process.
extern "system" fn receive(kind: u32) -> BOOL {
    let event = match kind {
        CTRL_C_EVENT | CTRL_BREAK_EVENT => ConsoleEvent::Interrupt,
        CTRL_CLOSE_EVENT | CTRL_LOGOFF_EVENT | CTRL_SHUTDOWN_EVENT => ConsoleEvent::End,
        _ => return 0,
    };
    if !deliver(event) {
        return 0;
    }
    // When this returns after such an event, the system ends the process. Until then it can drain.
    if event == ConsoleEvent::End {
        loop {
            std::thread::park();
        }
    }
    1
}

/// Calls all handlers. Returns whether there was one.
fn deliver(event: ConsoleEvent) -> bool {
    // Not under the lock: a handler may end the process, or register another one.
    let all: Vec<Handler> = handlers(|all| all.iter().map(|(_, it)| Arc::clone(it)).collect());
    all.iter().for_each(|handler| handler(event));
    !all.is_empty()
}

fn handlers<T>(work: impl FnOnce(&mut Vec<(u64, Handler)>) -> T) -> T {
    work(&mut HANDLERS.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn streams_that_are_no_consoles_forbid_no_escapes() {
        // A test has pipes or files, or a console of this version.
        assert!(obey_escapes());
    }

    #[test]
    fn each_registered_handler_gets_an_event_until_it_is_removed() {
        let counts: [Arc<AtomicU32>; 2] = Default::default();
        let register = |count: &Arc<AtomicU32>| {
            let count = Arc::clone(count);
            on_event(move |_| {
                count.fetch_add(1, Relaxed);
            })
            .unwrap()
        };
        let [first, second] = counts.each_ref().map(register);
        assert_eq!(receive(CTRL_C_EVENT), 1);
        drop(first);
        assert_eq!(receive(CTRL_BREAK_EVENT), 1);
        assert!(raise(ConsoleEvent::Interrupt));
        assert_eq!(counts.each_ref().map(|count| count.load(Relaxed)), [1, 3]);
        drop(second);
        assert!(!raise(ConsoleEvent::Interrupt));
        assert_eq!(receive(CTRL_C_EVENT), 0, "the system ends the process");
        assert_eq!(receive(999), 0, "an unknown event");
    }
}
