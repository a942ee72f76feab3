//! The state of the process for systemd: sd_notify(3).
//!
//! Without `NOTIFY_SOCKET` nothing is sent, so callers need not ask.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The interval at which the status is sent.
const STATUS: Duration = Duration::from_secs(5);

/// A connection to the service manager, if there is one.
pub(crate) struct Service {
    /// Half of the time after which the manager kills a silent process.
    watchdog: Option<Duration>,
    fed: Instant,
    /// Time of the last status that was sent.
    status_sent: Instant,
    loops: Loops,
}

impl Service {
    /// Notifies the manager that the process is ready.
    pub(crate) fn ready() -> Self {
        send(&[NotifyState::Ready]);
        let now = Instant::now();
        let watchdog = sd_notify::watchdog_enabled().map(|time| time / 2);
        Self { watchdog, fed: now, status_sent: now, loops: Loops::default() }
    }

    /// Notifies the manager that a reload begins (`Type=notify-reload`).
    pub(crate) fn reloading(&self) {
        // Both in one message, as systemd asks.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            send(&[NotifyState::Reloading, now]);
        }
    }

    /// Notifies the manager that the reload has ended, well or not.
    pub(crate) fn reloaded(&self) {
        send(&[NotifyState::Ready]);
    }

    /// Notifies the manager that the process shuts down, which takes `length` at most.
    pub(crate) fn stopping(&self, length: Duration) {
        let micros = u32::try_from(length.as_micros()).unwrap_or(u32::MAX);
        send(&[
            NotifyState::Stopping,
            NotifyState::Status("draining"),
            NotifyState::ExtendTimeoutUsec(micros),
        ]);
    }

    /// Feeds the watchdog if all event loops turn, and sends the status. `turns` returns for each
    /// loop its turns, and whether it has connections.
    pub(crate) fn report(
        &mut self,
        turns: impl FnOnce() -> Vec<(u64, bool)>,
        status: impl FnOnce() -> String,
    ) {
        let now = Instant::now();
        if self.watchdog.is_some_and(|every| now - self.fed >= every) {
            self.fed = now;
            if self.loops.turn(&turns(), now) {
                send(&[NotifyState::Watchdog]);
            }
        }
        if now - self.status_sent >= STATUS {
            self.status_sent = now;
            send(&[NotifyState::Status(&status())]);
        }
    }
}

fn send(state: &[NotifyState<'_>]) {
    // The manager is gone, so there is no one to report to.
    let _ = sd_notify::notify(state);
}

/// The event loops as they were last seen.
#[derive(Default)]
struct Loops {
    /// By loop: its turns, and when they were last more than before.
    seen: Vec<(u64, Instant)>,
}

/// A loop with connections turns once a second, however idle they are.
const LATE: Duration = Duration::from_secs(3);

impl Loops {
    /// Returns whether every loop that has connections has turned in the last seconds. One without
    /// connections sleeps, so that it would not be noticed if it were stuck.
    fn turn(&mut self, turns: &[(u64, bool)], now: Instant) -> bool {
        self.seen.resize(turns.len(), (0, now));
        let mut all = true;
        for ((turns, has_connections), (seen, at)) in turns.iter().zip(&mut self.seen) {
            if turns != seen || !has_connections {
                (*seen, *at) = (*turns, now);
            }
            all &= now - *at < LATE;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_with_connections_that_does_not_turn_starves_the_watchdog() {
        let mut loops = Loops::default();
        let start = Instant::now();
        let mut at = |second, turns: [(u64, bool); 2]| {
            loops.turn(&turns, start + Duration::from_secs(second))
        };
        assert!(at(0, [(1, true), (5, false)]));
        assert!(at(2, [(1, true), (5, false)]), "it may be late");
        assert!(!at(3, [(1, true), (5, false)]));
        assert!(at(4, [(2, true), (5, false)]), "it turns again");
        assert!(at(100, [(3, true), (5, false)]), "one without connections sleeps");
        assert!(at(101, [(4, true), (5, true)]), "its first connection came just now");
        assert!(!at(104, [(5, true), (5, true)]));
    }
}
