//! The state of the process for systemd: sd_notify(3).
//!
//! Without `NOTIFY_SOCKET` nothing is sent, so callers need not check.

// The states of a service of Windows are tested on every system.
#[cfg(test)]
#[allow(dead_code, reason = "only Windows has such services")]
mod states;

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The interval at which the status is sent.
const STATUS: Duration = Duration::from_secs(5);

/// A connection to the service manager, if there is one.
pub(crate) struct Service {
    /// Half of the time after which the manager kills a silent process.
    watchdog: Option<Duration>,
    fed: Instant,
    /// When the last status was sent.
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
    pub(crate) fn reloading() {
        // Both in one message, as systemd requires.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            send(&[NotifyState::Reloading, now]);
        }
    }

    /// Notifies the manager that the reload has ended, successfully or not.
    pub(crate) fn reloaded() {
        send(&[NotifyState::Ready]);
    }

    /// Notifies the manager that another process is the main one of the service from now on.
    #[cfg(target_os = "linux")]
    pub(crate) fn replaced_by(process: u32) {
        send(&[NotifyState::MainPid(process)]);
    }

    /// Notifies the manager that the process shuts down, which takes at most `length`.
    pub(crate) fn stopping(&self, length: Duration) {
        let micros = u32::try_from(length.as_micros()).unwrap_or(u32::MAX);
        send(&[
            NotifyState::Stopping,
            NotifyState::Status("draining"),
            NotifyState::ExtendTimeoutUsec(micros),
        ]);
    }

    /// Feeds the watchdog if all event loops turn, and sends the status. `turns` returns for each
    /// loop its number of turns, and whether it has connections.
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
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let message: String = state.iter().map(|state| format!("{state}\n")).collect();
    // The manager is gone, so the error cannot be reported.
    let _ = send_to(&socket, message.as_bytes());
}

/// Sends a message to the socket of `NOTIFY_SOCKET`: a path, or a name in the abstract namespace
/// with `@` in front, which `sd_notify::notify` takes for a path.
fn send_to(socket: &OsStr, message: &[u8]) -> io::Result<usize> {
    let datagram = UnixDatagram::unbound()?;
    #[cfg(target_os = "linux")]
    if let Some(name) = socket.as_encoded_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        return datagram.send_to_addr(message, &address);
    }
    datagram.send_to(message, socket)
}

/// The last known state of the event loops.
#[derive(Default)]
struct Loops {
    /// By loop: its turns, and when the number last grew.
    seen: Vec<(u64, Instant)>,
}

/// A loop with connections takes a turn once a second, even if they are all idle.
const LATE: Duration = Duration::from_secs(3);

impl Loops {
    /// Returns whether every loop with connections has turned in the last seconds. A loop without
    /// connections sleeps, so that a stuck one would not be noticed.
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

    #[cfg(target_os = "linux")]
    #[test]
    fn messages_go_to_names_in_the_abstract_namespace() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("throng-notify-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_nonblocking(true).unwrap();
        send_to(OsStr::new(&format!("@{name}")), b"READY=1\n").unwrap();
        let mut received = [0; 64];
        let length = manager.recv(&mut received).unwrap();
        assert_eq!(&received[..length], b"READY=1\n");
    }

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
