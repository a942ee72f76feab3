//! The loop of a process that serves: signals, files, the service manager, and successors.
//!
//! * Duty: do what both servers do between their start and their end.
//! * Not its duty: start and drain them.
//! * Start reading at: [`attend`].

use std::time::{Duration, Instant};

use crate::aside::Aside;
use crate::failure::Failure;
use crate::log::{Log, events};
use crate::service::Service;
use crate::signals::Signals;
use crate::upgrade::Upgrades;

/// The interval at which signals are checked.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// The interval at which the server and the files of certificates are checked.
const LOOK: Duration = Duration::from_secs(1);

/// A server that the process attends to.
pub(crate) trait Attended {
    /// Returns whether the server has ended by itself.
    fn has_ended(&self) -> bool;

    /// Returns the turns of each event loop, and whether it has connections.
    fn turns(&self) -> Vec<(u64, bool)>;

    /// Returns the state on one line, for the service manager.
    fn status_line(&self) -> String;

    /// Logs the state of a server that has run for `uptime`.
    fn log_status(&self, uptime: Duration);

    /// Logs changes; called each second.
    fn look(&mut self);
}

/// Work with files, which has a thread of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileWork {
    /// SIGHUP came.
    pub(crate) has_hangup: bool,
    /// Certificates must be checked.
    pub(crate) looks: bool,
}

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A signal asked for it.
    Asked,
    /// A successor accepts.
    Replaced,
    /// The server has ended by itself.
    Failed,
}

/// Serves until a signal or a successor ends the process, or the server has ended. `work` reads
/// files; without `upgrades` SIGUSR2 is ignored.
///
/// # Errors
/// The system refuses the thread that reads files.
pub(crate) fn attend(
    server: &mut impl Attended,
    work: impl FnMut(FileWork) + Send + 'static,
    upgrades: Option<&Upgrades>,
    service: &mut Service,
    (signals, log): (&Signals, &Log),
) -> Result<Ended, Failure> {
    let mut files = Aside::start(work).map_err(Failure::runtime)?;
    let (began, mut looked) = (Instant::now(), Instant::now());
    let mut due = FileWork { has_hangup: false, looks: true };
    let is_replaced = || upgrades.is_some_and(Upgrades::is_replaced);
    while !signals.wait(TICK) && !server.has_ended() && !is_replaced() {
        due.has_hangup |= signals.take_hangup();
        if signals.take_status() {
            log.reopen();
            server.log_status(began.elapsed());
        }
        if signals.take_upgrade() {
            match upgrades {
                Some(upgrades) => upgrades.start(),
                None => log.event(&events::SIGNAL, "ignored", [("signal", "USR2".into())]),
            }
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            due.looks = true;
            server.look();
        }
        // Refused work is offered again at the next tick.
        if files.offer(due, log).is_ok() {
            due = FileWork::default();
        }
        service.report(|| server.turns(), || server.status_line());
    }
    let has_ended = server.has_ended();
    // Waits for a successor that has the order to accept.
    let ended = match upgrades.is_some_and(Upgrades::end) {
        true => Ended::Replaced,
        false if has_ended => Ended::Failed,
        false => Ended::Asked,
    };
    files.end();
    Ok(ended)
}
