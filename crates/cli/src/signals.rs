//! Ctrl-C and SIGTERM as a condition to wait for; SIGHUP as one to ask for; and what other signals mean to a server.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

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

    /// The same for a server, which other signals would end without a drain: SIGQUIT and SIGHUP, unless that one is ignored
    /// already (`nohup`), ask it to stop, however often they come. SIGUSR1 and SIGUSR2 mean nothing to it.
    pub(crate) fn on_signals_to_a_server() -> io::Result<Self> {
        let stop = Self::on_signals()?;
        signal_hook::flag::register(SIGQUIT, Arc::clone(&stop.asked))?;
        if !is_ignored(SIGHUP) {
            signal_hook::flag::register(SIGHUP, Arc::clone(&stop.asked))?;
        }
        for signal in [SIGUSR1, SIGUSR2] {
            signal_hook::flag::register(signal, Arc::default())?;
        }
        Ok(stop)
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

/// Whether whoever started this process has had it ignore a signal; false where the system does not say.
fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_in_mask(&status, signal))
}

/// `SigIgn` of proc_pid_status(5): a bit for each signal from 1 on, in hexadecimal.
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
