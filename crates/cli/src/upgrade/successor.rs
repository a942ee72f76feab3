//! The side of the predecessor: starts a successor, and ends once that accepts connections.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use throng_carry::Message;
use throng_io::HeldListeners;
use throng_io::handover::HANDOVER_VARIABLE;

use super::control::{
    Control, GREETING, Hello, NoMessage, OLDEST_WIRE, WIRE, read_hello, read_ready, read_refuse,
    tag,
};
use super::program::Program;
use super::report::{LastUpgrade, Moved, UpgradeOutcome, UpgradeReport, UpgradeState};
use super::{Refusal, Source};
use crate::build_labels::VERSION;
use crate::log::{Log, events};
use crate::service::Service;

/// The time that this process has to stop accepting before the upgrade is reported.
const LEAVING: Duration = Duration::from_secs(5);

/// The time in which connections move; the others drain. The successor waits a little longer for
/// the end.
const MOVING: Duration = Duration::from_secs(20);

/// The time that a successor has to end by itself, before it is killed.
const ENDING: Duration = Duration::from_secs(5);

/// The upgrades of this process, until one succeeds. Clones are the same.
#[derive(Clone)]
pub(crate) struct Upgrades(Arc<Inner>);

struct Inner {
    held: HeldListeners,
    log: Log,
    program: io::Result<Program>,
    source: OnceLock<Source>,
    state: Mutex<Phase>,
    last: Mutex<Option<LastUpgrade>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No upgrade is under way.
    Idle,
    /// A successor starts.
    Starting,
    /// The successor has the order to accept, and may already do so.
    Committed,
    /// The successor accepts.
    Replaced,
    /// This process accepts no more.
    Left,
    /// The process ends for another reason.
    Ending,
}

impl Upgrades {
    /// Creates the upgrades of a process with these listening sockets.
    pub(crate) fn new(held: HeldListeners, log: Log) -> Self {
        Self(Arc::new(Inner {
            held,
            log,
            program: Program::of_this_process(),
            source: OnceLock::new(),
            state: Mutex::new(Phase::Idle),
            last: Mutex::default(),
        }))
    }

    /// Records that the process serves: there can be upgrades from now on. `begun_by` is the
    /// report of the upgrade that has started it.
    pub(crate) fn serving(&self, source: Source, begun_by: Option<UpgradeReport>) {
        let begun_by = begun_by.map(|report| LastUpgrade::now(UpgradeOutcome::Replaced(report)));
        *self.0.last() = begun_by;
        let _ = self.0.source.set(source);
    }

    /// Returns the state of the current upgrade, and the outcome of the last one.
    pub(crate) fn state(&self) -> UpgradeState {
        let state = match *self.0.state() {
            Phase::Idle => "idle",
            Phase::Starting => "starting",
            Phase::Committed => "moving",
            Phase::Replaced | Phase::Left => "replaced",
            Phase::Ending => "ending",
        };
        UpgradeState { state, last: self.0.last().clone() }
    }

    /// Begins an upgrade on a thread of its own; the log has its outcome.
    pub(crate) fn start(&self) {
        let upgrades = self.clone();
        let thread = std::thread::Builder::new().name("upgrade".to_owned());
        if let Err(error) = thread.spawn(move || upgrades.run_logged()) {
            self.0.log_failure(&throng_io::limits::thread_not_started(&error).to_string(), 0);
        }
    }

    fn run_logged(&self) {
        if let Err(Refusal::Busy) = self.run(false) {
            self.0.log_failure("an upgrade is under way", 0);
        }
    }

    /// Replaces this process, or with `dry_run` only tries whether that would succeed. Returns when
    /// the successor accepts, or has failed and has ended. Logs the outcome.
    pub(crate) fn run(&self, dry_run: bool) -> Result<UpgradeReport, Refusal> {
        let inner = &self.0;
        let Some(source) = inner.source.get() else { return Err(Refusal::Busy) };
        match &mut *inner.state() {
            state @ Phase::Idle => *state = Phase::Starting,
            Phase::Starting | Phase::Committed => return Err(Refusal::Busy),
            Phase::Replaced | Phase::Left | Phase::Ending => return Err(Refusal::Ending),
        }
        if !dry_run {
            Service::reloading();
        }
        let outcome = inner.replace(source, dry_run);
        // First: once replaced, the process may end.
        match &outcome {
            Ok(report) if !dry_run => inner.log_success(report),
            Ok(_) => {}
            Err(NotReplaced { why, lost }) => inner.log_failure(why, *lost),
        }
        *inner.last() = Some(LastUpgrade::now(match &outcome {
            Ok(report) if dry_run => UpgradeOutcome::Tried(report.clone()),
            Ok(report) => UpgradeOutcome::Replaced(report.clone()),
            Err(NotReplaced { why, lost }) => {
                UpgradeOutcome::Failed { reason: why.clone(), lost: *lost }
            }
        }));
        {
            let mut state = inner.state();
            *state = match (*state, &outcome) {
                (Phase::Ending, _) => Phase::Ending,
                (_, Ok(_)) if !dry_run => Phase::Replaced,
                _ => Phase::Idle,
            };
        }
        match (outcome, dry_run) {
            (Ok(report), true) => Ok(report),
            (Ok(report), false) => {
                inner.await_leaving();
                Ok(report)
            }
            (Err(failed), _) => {
                if !dry_run {
                    Service::reloaded();
                }
                Err(Refusal::Failed(failed.in_words()))
            }
        }
    }

    /// Returns whether a successor accepts connections.
    pub(crate) fn is_replaced(&self) -> bool {
        *self.0.state() == Phase::Replaced
    }

    /// Returns whether a successor starts, or has replaced this process.
    #[cfg(feature = "balance")]
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(*self.0.state(), Phase::Idle | Phase::Ending)
    }

    /// Records that this process accepts no more, since a successor does.
    pub(crate) fn left(&self) {
        *self.0.state() = Phase::Left;
    }

    /// Ends upgrades, because the process ends. One whose successor has the order to accept is
    /// waited for. Returns whether a successor accepts.
    pub(crate) fn end(&self) -> bool {
        loop {
            match &mut *self.0.state() {
                Phase::Replaced | Phase::Left => return true,
                Phase::Committed => {}
                state => {
                    *state = Phase::Ending;
                    return false;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, Phase> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> MutexGuard<'_, Option<LastUpgrade>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a successor and lets it take over. On a failure it has ended.
    fn replace(&self, source: &Source, dry_run: bool) -> Result<UpgradeReport, NotReplaced> {
        self.start_and_talk(source, dry_run).map_err(|why| {
            // Only now: a successor that lives may still have connections.
            let lost = source.moves.as_ref().map_or(0, |moves| moves.abandon());
            NotReplaced { why, lost }
        })
    }

    fn start_and_talk(&self, source: &Source, dry_run: bool) -> Result<UpgradeReport, String> {
        let began = Instant::now();
        if std::process::id() == 1 {
            return Err("this is the first process of its container, whose end would end the \
                        successor: replace the container"
                .to_owned());
        }
        let (own, other) = UnixStream::pair().map_err(|error| error.to_string())?;
        let mut child = self.spawn(other)?;
        let talked = Control::new(own).map_err(Failed::For).and_then(|mut control| {
            let trial = Trial { source, dry_run, began };
            let outcome = self.talk(&mut control, &trial, &mut child);
            if outcome.is_err() || dry_run {
                let _ = control.send(tag::STOP);
            }
            match outcome {
                // It may have said why before it ended.
                Err(Failed::Ended) => {
                    Err(expect(&mut control, tag::REFUSE, Instant::now() + ENDING, "")
                        .map_or_else(|failed| failed, |message| refusal(&message)))
                }
                outcome => outcome,
            }
        });
        match talked {
            Ok(report) => {
                if dry_run {
                    await_end(&mut child, ENDING);
                    end(&mut child);
                }
                Ok(report)
            }
            Err(Failed::Ended) => {
                await_end(&mut child, ENDING);
                let status = end(&mut child);
                Err(format!(
                    "the new process ended ({status}) before it served; its standard error has \
                     the reason"
                ))
            }
            Err(Failed::For(why)) => {
                // The connection is closed: it has no more to say.
                end(&mut child);
                Err(why)
            }
        }
    }

    /// Waits until this process accepts no more, so that the next connect is the successor's.
    fn await_leaving(&self) {
        let until = Instant::now() + LEAVING;
        while *self.state() == Phase::Replaced && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn spawn(&self, stream: UnixStream) -> Result<Child, String> {
        let program = self.program.as_ref().map_err(|error| error.to_string())?;
        let mut command = program.command();
        // As standard input, so that no other child process can inherit it.
        let own = std::process::id().to_string();
        command.stdin(Stdio::from(OwnedFd::from(stream))).env(HANDOVER_VARIABLE, own);
        command.spawn().map_err(|error| {
            format!("{} cannot be started: {error}", command.get_program().display())
        })
    }

    /// Takes the successor through its phases until it accepts and has the connections that move,
    /// or with `dry_run` until it is ready.
    fn talk(
        &self,
        control: &mut Control,
        trial: &Trial<'_>,
        child: &mut Child,
    ) -> Result<UpgradeReport, Failed> {
        let source = trial.source;
        let settings = (source.settings)();
        let until = Instant::now() + GREETING;
        let greeting = expect(control, tag::HELLO, until, "said no word")?;
        let Hello { wire, build } = read_hello(&greeting).map_err(|error| error.to_string())?;
        if wire.1 < OLDEST_WIRE || wire.0 > WIRE {
            let why = format!(
                "the build {build} reads messages of forms {} to {}, and this one writes {WIRE}",
                wire.0, wire.1
            );
            let _ = control.send_refuse(&why);
            return Err(Failed::For(why));
        }
        let sockets = self.held.for_successor().map_err(|error| error.to_string())?;
        control.send_sockets(&sockets)?;
        drop(sockets);
        control.send_plan(&(source.state)(), &(source.ticket_keys)())?;
        let until = Instant::now() + settings.start;
        let ready = expect(control, tag::READY, until, "was not ready within upgrade.start")?;
        if trial.dry_run {
            return Ok(trial.report(build, child.id(), Err(None)));
        }
        let loops = read_ready(&ready).map_err(|error| error.to_string())?;
        let (moves, mut unmoved) = match &source.moves {
            None => (None, None),
            Some(moves) => match why_unmoved(moves.loops(), loops) {
                None => (Some(moves), None),
                Some(why) => (None, Some(why)),
            },
        };
        match &mut *self.state() {
            state @ Phase::Starting => *state = Phase::Committed,
            _ => return Err(Failed::For("this process ends".to_owned())),
        }
        let moves = moves.filter(|moves| match moves.begin() {
            Ok(passages) => control.send_passages(&passages).is_ok(),
            Err(error) => {
                // They drain. The successor has nothing of them.
                moves.abandon();
                unmoved = Some(format!("the links to the new process failed: {error}"));
                false
            }
        });
        control.send(tag::GO)?;
        let until = Instant::now() + settings.start;
        expect(control, tag::SERVING, until, "did not accept within upgrade.start")?;
        let mut moved = Err(unmoved);
        if let Some(moves) = moves {
            let mut is_alive = || matches!(child.try_wait(), Ok(None));
            // An error ends the successor, so this process still accepts, and goes on.
            moved = Ok(moves.run(Instant::now() + MOVING, &mut is_alive)?);
            moves.end();
        }
        let report = trial.report(build, child.id(), moved);
        (source.leave_operators)();
        // First: the service manager must know it before the successor reports to it.
        Service::replaced_by(child.id());
        let encoded = serde_json::to_vec(&report).unwrap_or_default();
        let _ = control.send_done(&(source.counts)(), &encoded);
        Ok(report)
    }

    fn log_success(&self, report: &UpgradeReport) {
        let UpgradeReport { from, to, process, moved, connections, duration_ms, .. } = report;
        let mut fields = vec![
            ("from", from.clone().into()),
            ("to", to.clone().into()),
            ("process", u64::from(*process).into()),
            ("moved", (*moved).into()),
            ("connections", (*connections).into()),
            ("duration", Duration::from_millis(*duration_ms).into()),
        ];
        if let Some(pause) = report.pause {
            fields.push(("pause", Duration::from_micros(pause.max_us).into()));
        }
        self.log.event(&events::UPGRADE, report.drains_in_words(), fields);
    }

    fn log_failure(&self, why: &str, lost: u64) {
        let fields = [("reason", why.to_owned().into()), ("lost", lost.into())];
        self.log.event(&events::UPGRADE_FAILED, "", fields);
    }
}

/// An upgrade, or the trial of one.
struct Trial<'a> {
    source: &'a Source,
    dry_run: bool,
    began: Instant,
}

impl Trial<'_> {
    /// Returns the report; `moved` is why no connection could move, if none could.
    fn report(
        &self,
        to: String,
        process: u32,
        moved: Result<Moved, Option<String>>,
    ) -> UpgradeReport {
        let (moved, unmoved) = match moved {
            Ok(moved) => (Some(moved), None),
            Err(why) => (None, why),
        };
        // Those that the successor has accepted are not in it.
        let drain = moved.as_ref().map(|moved| moved.drains.values().sum());
        let moved = moved.unwrap_or_default();
        UpgradeReport {
            from: VERSION.to_owned(),
            to,
            process,
            moved: moved.connections,
            pause: moved.pause.filter(|_| moved.connections > 0),
            connections: drain.unwrap_or_else(self.source.connections.as_ref()),
            drains: moved.drains,
            unmoved,
            duration_ms: self.began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
            dry_run: self.dry_run,
        }
    }
}

/// Returns why connections cannot move between these numbers of event loops, if they cannot.
fn why_unmoved(own: Option<usize>, others: Option<usize>) -> Option<String> {
    match (own, others) {
        (Some(own), Some(others)) if own == others => None,
        (Some(own), Some(others)) => {
            Some(format!("tunnels do not move from {own} event loops to {others}"))
        }
        (None, _) => Some("event loops with their own descriptors keep their tunnels".to_owned()),
        (_, None) => Some("the new process takes no tunnels".to_owned()),
    }
}

/// A failed upgrade. The successor has ended.
struct NotReplaced {
    why: String,
    /// Connections that were the successor's.
    lost: u64,
}

impl NotReplaced {
    fn in_words(&self) -> String {
        let Self { why, lost } = self;
        match lost {
            0 => why.clone(),
            1 => format!("{why}; 1 tunnel had moved to it, and has ended"),
            _ => format!("{why}; {lost} tunnels had moved to it, and have ended"),
        }
    }
}

/// Why a successor does not take over.
enum Failed {
    /// It has ended, or closed the connection.
    Ended,
    For(String),
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::For(why)
    }
}

impl From<NoMessage> for Failed {
    fn from(why: NoMessage) -> Self {
        match why {
            NoMessage::Ended => Self::Ended,
            NoMessage::TimedOut => Self::For("the new process does not read".to_owned()),
            NoMessage::Wrong(why) => Self::For(format!("the new process: {why}")),
        }
    }
}

fn refusal(message: &Message) -> Failed {
    Failed::For(format!("the new process refuses: {}", read_refuse(message)))
}

/// Receives the next message, which must be `wanted`.
fn expect(
    control: &mut Control,
    wanted: u16,
    until: Instant,
    late: &str,
) -> Result<Message, Failed> {
    match control.receive(until) {
        Ok(message) if message.tag() == wanted => Ok(message),
        Ok(message) if message.tag() == tag::REFUSE => Err(refusal(&message)),
        Ok(message) => {
            let what = message.tag();
            Err(Failed::For(format!("the new process sent an unexpected message ({what})")))
        }
        Err(NoMessage::TimedOut) => Err(Failed::For(format!("the new process {late}"))),
        Err(why) => Err(why.into()),
    }
}

/// Waits until a process has ended, at most for `time`.
fn await_end(child: &mut Child, time: Duration) {
    let until = Instant::now() + time;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends a process, unless it has ended.
fn end(child: &mut Child) -> String {
    // It fails if it has ended.
    let _ = child.kill();
    child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}
