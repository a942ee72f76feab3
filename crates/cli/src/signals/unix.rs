//! Signals of Unix.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
};

use super::Flag;

/// Sets `asked` at the first SIGINT or SIGTERM. While `is_starting` or `asked` is set, they end the
/// process at once.
pub(super) fn on_stop(asked: &Flag, is_starting: &Flag) -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(is_starting))?;
        // In this order: the second signal finds the flag set.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(asked))?;
        signal_hook::flag::register(signal, Arc::clone(asked))?;
    }
    Ok(())
}

/// Returns the flags that SIGHUP, SIGUSR1 and SIGUSR2 set. SIGQUIT, which would end the process
/// without a drain, sets `asked`, any number of times. Signals of timers and similar ones are
/// ignored.
pub(super) fn of_a_server(asked: &Flag) -> io::Result<[Flag; 3]> {
    signal_hook::flag::register(SIGQUIT, Arc::clone(asked))?;
    for signal in ignored() {
        // C libraries and valgrind reserve some for themselves.
        if signal_hook::flag::register(signal, Arc::default()).is_err() {
            let _ = throng_io::signals::ignore(signal);
        }
    }
    let flag = |signal| {
        let flag = Arc::<AtomicBool>::default();
        signal_hook::flag::register(signal, Arc::clone(&flag)).map(|_| flag)
    };
    Ok([flag(SIGHUP)?, flag(SIGUSR1)?, flag(SIGUSR2)?])
}

/// Returns the signals that would end the process and have no function in it.
fn ignored() -> Vec<i32> {
    let signals = [SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXCPU];
    signals.into_iter().chain(of_this_system()).collect()
}

#[cfg(target_os = "linux")]
fn of_this_system() -> impl Iterator<Item = i32> {
    use rustix::process::Signal;
    let named = [Signal::POWER, Signal::STKFLT, Signal::XFSZ].map(Signal::as_raw);
    // With the real-time signals.
    named.into_iter().chain(34..=64)
}

#[cfg(not(target_os = "linux"))]
fn of_this_system() -> impl Iterator<Item = i32> {
    std::iter::empty()
}
