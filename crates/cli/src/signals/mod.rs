//! Signals as conditions: Ctrl-C, SIGTERM, SIGHUP and others; on Windows console control events.

#[cfg_attr(windows, path = "windows.rs")]
#[cfg_attr(not(windows), path = "unix.rs")]
mod system;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A condition that a signal sets.
type Flag = Arc<AtomicBool>;

/// The condition that the process was asked to stop, set by the first SIGINT or SIGTERM. The second
/// one ends the process at once, as users expect of a second Ctrl-C.
pub struct Stop {
    asked: Flag,
    /// The process serves no clients and measures nothing yet: a signal ends it at once.
    is_starting: Flag,
}

impl Stop {
    /// Registers for both signals.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn on_signals() -> io::Result<Self> {
        Self::register(false)
    }

    /// Registers for both signals, which end the process at once until [`Stop::begin`]: for
    /// programs that first read files, which may be pipes without a writer.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn after_start() -> io::Result<Self> {
        Self::register(true)
    }

    /// Records that work has begun: the first signal asks to stop it.
    pub(crate) fn begin(&self) {
        self.is_starting.store(false, Ordering::Relaxed);
    }

    /// Records that work has ended: a signal ends the process at once.
    pub(crate) fn end(&self) {
        self.is_starting.store(true, Ordering::Relaxed);
    }

    fn register(is_starting: bool) -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let is_starting = Arc::new(AtomicBool::new(is_starting));
        system::on_stop(&asked, &is_starting)?;
        Ok(Self { asked, is_starting })
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns the flag, for a loop that polls it.
    #[must_use]
    pub fn flag(&self) -> &AtomicBool {
        &self.asked
    }

    /// Waits for at most `timeout`; returns whether the process was asked to stop.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while !self.is_asked() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // A signal does not end std's `sleep`, so sleep in short steps. Four wake-ups per
            // second cost 0.01 % of a CPU, and delay a shutdown by at most 250 ms.
            std::thread::sleep(left.min(Duration::from_millis(250)));
        }
        true
    }
}

/// The signals of a server.
pub(crate) struct Signals {
    stop: Stop,
    hangup: Flag,
    status: Flag,
    /// SIGUSR2.
    upgrade: Flag,
    /// Standard error was a terminal at the start.
    on_terminal: bool,
}

impl Signals {
    /// Registers them.
    ///
    /// Until [`Signals::serving`], SIGINT and SIGTERM end the process at once: a start may wait for
    /// a file or a broker, and no client is served. The system does that by default, but not for
    /// the first process of a container.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn of_a_server() -> io::Result<Self> {
        let stop = Stop::register(true)?;
        let [hangup, status, upgrade] = system::of_a_server(&stop.asked)?;
        let on_terminal = io::stderr().is_terminal();
        Ok(Self { stop, hangup, status, upgrade, on_terminal })
    }

    /// Records that clients are served from now on: signals to stop begin a drain.
    pub(crate) fn serving(&self) {
        self.stop.begin();
    }

    /// Waits for at most `timeout`; returns whether the process was asked to stop.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        self.stop.wait(timeout)
    }

    /// Returns whether SIGHUP requested a reload since the last call. If it came because the
    /// terminal is gone, it is a request to stop instead.
    pub(crate) fn take_hangup(&self) -> bool {
        let has_come = self.hangup.swap(false, Ordering::Relaxed);
        if has_come && self.on_terminal && !io::stderr().is_terminal() {
            self.stop.asked.store(true, Ordering::Relaxed);
            return false;
        }
        has_come
    }

    /// Returns whether SIGUSR1 requested the status since the last call.
    pub(crate) fn take_status(&self) -> bool {
        self.status.swap(false, Ordering::Relaxed)
    }

    /// Returns whether SIGUSR2 requested an upgrade since the last call.
    pub(crate) fn take_upgrade(&self) -> bool {
        self.upgrade.swap(false, Ordering::Relaxed)
    }
}
