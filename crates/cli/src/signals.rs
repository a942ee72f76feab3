//! Signals as conditions: Ctrl-C, SIGTERM and SIGHUP.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
};

/// The condition that the process was asked to stop, set by the first SIGINT or SIGTERM. The second
/// one ends the process at once, as users expect of a second Ctrl-C.
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

    /// Registers the signals of a server, besides those of [`Stop::on_signals`]. SIGQUIT, which
    /// would end it without a drain, asks it to stop, however often it comes. Those of timers, of
    /// log rotation and the like are ignored.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn on_signals_to_a_server() -> io::Result<Self> {
        let stop = Self::on_signals()?;
        signal_hook::flag::register(SIGQUIT, Arc::clone(&stop.asked))?;
        for signal in [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXCPU] {
            signal_hook::flag::register(signal, Arc::default())?;
        }
        Ok(stop)
    }

    /// Lets SIGHUP ask to stop, too, unless it is ignored already (`nohup`).
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn and_on_hangup(self) -> io::Result<Self> {
        if !is_ignored(SIGHUP) {
            signal_hook::flag::register(SIGHUP, Arc::clone(&self.asked))?;
        }
        Ok(self)
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
            // second cost 0.01 % of a CPU, and delay a shutdown by 250 ms at most.
            std::thread::sleep(left.min(Duration::from_millis(250)));
        }
        true
    }
}

#[cfg(feature = "balance")]
/// The condition that SIGHUP asked to reload the configuration.
pub(crate) struct Hangup {
    asked: Arc<AtomicBool>,
}

#[cfg(feature = "balance")]
impl Hangup {
    pub(crate) fn on_signal() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, Arc::clone(&asked))?;
        Ok(Self { asked })
    }

    /// Returns whether SIGHUP came since the last call.
    pub(crate) fn was_asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }
}

/// Returns whether this process was started with a signal ignored; false where that is unknown.
fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_in_mask(&status, signal))
}

/// Reads `SigIgn` of proc_pid_status(5), in hexadecimal: one bit per signal, from signal 1 on.
fn is_in_mask(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read_from_the_least_bit() {
        let status = "Name:\tthrong\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n";
        let ignored: Vec<i32> = (1..=64).filter(|signal| is_in_mask(status, *signal)).collect();
        assert_eq!(ignored, [SIGHUP, 13]);
        assert!(!is_in_mask("Name:\tthrong\n", SIGHUP));
    }
}
