//! Console control events of Windows, which take the place of signals.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT,
    SetConsoleCtrlHandler,
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
    while event == ConsoleEvent::End {
        std::thread::park();
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
        assert_eq!(counts.each_ref().map(|count| count.load(Relaxed)), [1, 2]);
        drop(second);
        assert_eq!(receive(CTRL_C_EVENT), 0, "the system ends the process");
        assert_eq!(receive(999), 0, "an unknown event");
    }
}
