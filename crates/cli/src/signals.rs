//! Ctrl-C and SIGTERM as a condition to wait for; SIGHUP as one to ask for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by the first SIGINT or SIGTERM; the second ends the process at once, as people expect of a second Ctrl-C.
pub struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// Registers for both signals.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn on_signals() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag set.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&asked))?;
            signal_hook::flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self { asked })
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The same, for a loop that looks for itself.
    #[must_use]
    pub fn flag(&self) -> &AtomicBool {
        &self.asked
    }

    /// Waits for `timeout` at most; true if the process was asked to stop.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while !self.is_asked() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // A signal does not end a sleep of std, which sleeps on; so sleep in pieces. Four a second cost a hundredth of
            // a per cent of a CPU; people wait a quarter of a second at most.
            std::thread::sleep(left.min(Duration::from_millis(250)));
        }
        true
    }
}

/// Set by SIGHUP: read the configuration again.
pub(crate) struct Hangup {
    asked: Arc<AtomicBool>,
}

impl Hangup {
    pub(crate) fn on_signal() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, Arc::clone(&asked))?;
        Ok(Self { asked })
    }

    /// Whether it came since the last time.
    pub(crate) fn was_asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }
}
