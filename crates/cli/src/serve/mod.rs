//! `throng serve`.

#[cfg(feature = "tls")]
mod acme;
pub(crate) mod admin;
mod api;
mod certificates;
mod checks;
mod flags;
mod keys;
pub(crate) mod observe;
mod refusals;
mod reload;
mod requests;
mod rights;
mod settings;
pub mod site;
#[cfg(feature = "tls")]
mod tls;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use throng::Server;
use throng::metrics::openmetrics::Format;
use throng::server::{Bound, DrainPlan, Drained, Running, ShardLoad, Stats, Stopper, StuckShard};
use throng_carry::Secret;
use throng_config::{Draft, LogSettings};
use throng_doctor::{Question, Role};
use throng_io::{HeldListeners, may_pass};

use self::admin::Admin;
use self::certificates::Certificates;
use self::refusals::Refusals;
use self::reload::Reloader;
use self::requests::{PendingReloads, reload_requests};
use crate::attend::{Attended, Ended, FileWork, TICK, attend};
use crate::checks::check_start;
use crate::failure::Failure;
use crate::log::{Log, LogEvent, Value, events, log_event};
use crate::service::Service;
use crate::signals::Signals;
use crate::upgrade::{Next, Predecessor, Source, Upgrades};
use crate::{register, terminal};

pub use flags::SettingFlags;
pub use keys::TABLE;
pub(crate) use settings::Rule;
pub use settings::Settings;

#[derive(clap::Args)]
#[command(after_help = SUMMARY, after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: ServeFlags,
}

impl Args {
    #[cfg(unix)]
    pub(crate) fn into_flags(self) -> ServeFlags {
        self.flags
    }
}

/// All flags of `serve`, which the commands that read its settings also have.
#[derive(clap::Args)]
pub(crate) struct ServeFlags {
    #[command(flatten)]
    settings: SettingFlags,
    #[command(flatten)]
    registration: register::Flags,
}

impl ServeFlags {
    /// Returns whether any flag is given.
    pub(crate) fn is_given(&self) -> bool {
        self.settings.is_given() || self.registration.is_given()
    }

    /// Reads all sources of the settings.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn draft(&self) -> Result<Draft, Failure> {
        self.settings.draft(REGISTER, self.registration.defaults())
    }

    /// Checks all that a start checks before it opens sockets, and returns the settings.
    ///
    /// # Errors
    /// As for a start.
    pub(crate) fn check(&self) -> Result<Settings, Failure> {
        let settings = self.settings.settings(REGISTER, self.registration.defaults())?;
        let (_, warning) = self.registration.checked(&settings.listen)?;
        warning.iter().for_each(terminal::error_line);
        check_log(&settings.log)?;
        check_machine(&settings, None)?;
        site::check_start(&settings)?;
        Ok(settings)
    }
}

/// The flag that changes defaults.
const REGISTER: &str = "--register";

/// The end of the short help.
const SUMMARY: &str = "Examples:
  throng serve                       /echo, /ws/{channel} and /sse/{channel}
  throng serve --dir public --listen 0.0.0.0:9001
                                     web pages beside them, for the network
  throng serve --channel 'chat.>=close,history=100/5m'
  throng serve --config throng.toml --admin 127.0.0.1:9101

`throng serve --help` has all options, paths, signals and more examples;
`throng config show` lists all settings.";

const EXAMPLES: &str = "Paths:
  /echo            a WebSocket that echoes messages
  /ws/{channel}    a WebSocket whose messages go to the channel's other
                   members; with ?echo=1 to the sender, too; with ?since=
                   each message has its offset in front, and what was missed
                   since ?since=EPOCH:OFFSET:TAG comes first (with a history)
  /sse/{channel}   the channel's messages as server-sent events
  /connection/websocket
                   the same channels for clients of the Centrifuge protocol
  /upload          a WebSocket that streams messages without buffering them, and
                   answers each with its length (up to max_upload_size)
  /                a test page, or with --dir its index.html; /stats.json has
                   its statistics
  /metrics         for Prometheus, on loopback or with --admin; /livez and
                   /readyz for supervisors

Examples:
  throng serve --listen 127.0.0.1:0                       a free port, printed
  throng serve --listen 0.0.0.0:80 --set max_backlog=256KiB
  throng serve --listen unix:/run/throng/throng.sock --set trusted_proxies=unix:
                                                          behind a proxy on this machine
  throng serve --channel 'prices.*=latest,max_age=5s' --channel 'logs.>=drop_oldest'
  THRONG_HEARTBEAT_INTERVAL=10s throng serve --config throng.toml
  throng serve --dir public                               files beside the channels
  throng serve --register http://127.0.0.1:8081 --register-token-file token.txt
                                                          be a backend of `throng balance`

Slow receivers: the queue of a receiver is limited by max_backlog and max_age;
at the limit, slow_policy applies. Channels can have rules of their own, of
which the first match applies: --channel, or [[channel]] tables in TOML, or
THRONG_CHANNELS with ; between them.
  close            closes the receiver with 1008, so that no receiver misses a message
  drop_newest      drops new messages
  drop_oldest      drops the oldest queued messages
  latest           queues only the newest message of each channel
History: `--channel 'chat.>=close,history=100/5m'` keeps the last 100 messages
of each channel for five minutes. A client of /sse/ that comes back gets what
it missed (Last-Event-ID), or an event called `lost`; one of /ws/ asks by
?since=. The admin server has them at /history/{channel}?limit=N.
Presence: `--channel 'chat.>=close,presence=true,join_leave=true'` lists the
members at /presence/{channel} of the admin server, with what they say in
?info=, and sends members the joins and leaves of others, where a server has
up to 1,000 of them (max_announced=N).
Cluster: `--cluster redis://10.0.0.5` shares channels and their histories with
all servers that use it; see docs/cluster.md.
With --set wildcards=true, /ws/news.* and /sse/news.> get the messages of all
channels that match; a message sent on a pattern's WebSocket closes it with
1008.

Compression: `--deflate shared` for messages of a kilobyte and more, `--deflate
window:10` for short similar messages, at little more than 1 KB per connection
and direction in use.

Settings: --set overrides other flags, those THRONG_* variables, those the file
of --config or THRONG_CONFIG; `throng config show` lists them all, `throng
config check` checks them. The variables that Kubernetes sets for a service
called throng (THRONG_SERVICE_*, THRONG_PORT_*) are ignored.

TLS: --tls-cert and --tls-key. Files that are renewed are read again within a
second, those of certbot without a hook; open connections stay. If they do not
fit together, a line says why and the old ones stay in use. With
tls.acme.domains an authority such as Let's Encrypt issues and renews the
certificate; see docs/tls.md.

Log: on standard error: text on a terminal, for systemd's journal where that
reads it, else JSON lines. --log-file appends to a file. --log-access all logs
every request and session.

Signals: SIGTERM, SIGQUIT or Ctrl-C drains: exit code 0, or 3 if a connection
had to be reset, or a handler did not return. A second SIGTERM or Ctrl-C ends
at once: exit code 130. SIGHUP, or POST /reload of the admin server, reads
--config and the certificates again, and logs what has changed and what needs a
restart; if the terminal is gone, SIGHUP drains. SIGUSR1 logs the status and
opens --log-file again. SIGUSR2, or POST /upgrade of the admin server, starts
a new process that takes the listening sockets, and drains this one; see
docs/upgrade.md.";

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    Predecessor::run(|predecessor, held| run_after(predecessor, held, args))
}

/// Runs a server with the listening sockets of a predecessor, if there is one.
fn run_after(
    predecessor: &Predecessor,
    held: HeldListeners,
    args: Args,
) -> Result<ExitCode, Failure> {
    // Before the first file is read.
    let signals = Signals::of_a_server().map_err(Failure::runtime)?;
    let ServeFlags { settings, registration } = args.flags;
    let reloader = Arc::new(Reloader::new(settings, registration.defaults())?);
    let settings = reloader.settings();
    let (balancers, warning) = registration.checked(&settings.listen)?;
    let log = open_log(&settings.log)?;
    let _flush = log.flushed_at_end();
    reload::log_warnings(&settings, &log);
    if let Some(warning) = warning {
        log.event(&events::WARNING, warning, []);
    }
    let warnings = check_machine(&settings, Some(&log))?;
    #[cfg(feature = "tls")]
    if settings.tls.is_some() {
        hide_keys(&log);
    }
    let server = watched(site::server(&settings, Some(&log)), &settings, warnings, &log);
    let bound = site::listen_held(server, &settings, &held)?;
    #[cfg(feature = "tls")]
    bound.take_ticket_keys(&throng::tls::TicketKeys::from_bytes(&predecessor.ticket_keys()));
    let (requests, pending) = reload_requests();
    let upgrades = Upgrades::new(held.clone(), log.clone());
    let server = (bound.observer(), bound.hub(), requests);
    let bind = |settings: &Admin| {
        admin::bind(settings, server, (upgrades.clone(), held.clone()), log.clone())
    };
    let admin = settings.admin.as_ref().map(bind).transpose()?;
    held.close_unused();
    if matches!(predecessor.ready(None)?, Next::Leave) {
        return Ok(ExitCode::SUCCESS);
    }
    signals.serving();
    let running = Arc::new(listen(bound, &log)?);
    rights::announce(&settings.rights.get(), &log);
    settings.rights.start(&log)?;
    let registrations = registration.begin(balancers, running.local_addr(), &log)?;
    let done = predecessor.serving()?;
    // A predecessor answers operators until it has passed on its counts, so that none falls.
    if let Some(metrics) = done.counts::<String>() {
        running.observer().count_on(&metrics);
    }
    let admin = admin.map(Bound::start).transpose()?;
    announce(admin.as_ref(), &log);
    let stopper = admin.as_ref().map(Running::stopper);
    upgrades.serving(source(&running, &reloader, stopper, &log), done.report);
    let own = (&reloader, pending, &upgrades);
    let ended = wait(&running, &signals, &log, Some(own))?;
    let Settings { drain, upgrade, .. } = &*reloader.settings();
    let plan = match ended {
        // The successor accepts from the same sockets.
        Ended::Replaced => {
            held.leave_to_successor();
            registrations.leave_to_successor();
            crate::admin::hand_over(admin.as_ref());
            let grace = drain.grace.max(upgrade.window);
            let plan = DrainPlan::DEFAULT.window(upgrade.window).grace(grace).hand_over(true);
            running.stopper().shutdown(plan);
            upgrades.left();
            plan
        }
        Ended::Asked | Ended::Failed => {
            held.release();
            // Before the first close, so that clients which reconnect get another backend.
            registrations.end();
            *drain
        }
    };
    let ended = end(ended, running, plan, &log);
    // It shows the drain until its end.
    crate::admin::end(admin);
    ended
}

/// Returns what upgrades need of the server.
fn source(
    running: &Arc<Running>,
    reloader: &Arc<Reloader>,
    admin: Option<Stopper>,
    log: &Log,
) -> Source {
    let (observer, log) = (running.observer(), log.clone());
    // The end of the server needs it whole.
    let (settings, running) = (Arc::clone(reloader), Arc::downgrade(running));
    let of_keys = running.clone();
    Source {
        settings: Box::new(move || settings.settings().upgrade),
        connections: Box::new(move || {
            running.upgrade().map_or(0, |running| running.stats().connections)
        }),
        state: Box::new(Vec::new),
        ticket_keys: Box::new(move || ticket_keys(&of_keys)),
        moves: None,
        leave_operators: Box::new(move || admin.iter().for_each(crate::admin::leave)),
        counts: Box::new(move || {
            let metrics = admin::metrics(&observer, &log, Format::OpenMetrics).finish();
            serde_json::to_vec(&metrics).unwrap_or_default()
        }),
    }
}

#[cfg(feature = "tls")]
fn ticket_keys(running: &Weak<Running>) -> Secret {
    let keys = running.upgrade().map(|running| running.ticket_keys());
    keys.map_or_else(Secret::default, |keys| Secret::from(keys.as_bytes()))
}

#[cfg(not(feature = "tls"))]
fn ticket_keys(_: &Weak<Running>) -> Secret {
    Secret::default()
}

/// Prints the address of the server for operators.
fn announce(admin: Option<&Running>, log: &Log) {
    let Some(admin) = admin else { return };
    let address = format!("http://{}/metrics", admin.local_addr());
    terminal::line(format_args!("metrics: {address}"));
    log.started(&events::ADMIN, [("address", address.into())]);
}

/// Serves until a signal comes, then drains. For servers with their own routes.
///
/// # Errors
/// The server could not start, or a shard failed.
pub fn until_stopped(bound: Bound, plan: DrainPlan) -> Result<ExitCode, Failure> {
    let signals = Signals::of_a_server().map_err(Failure::runtime)?;
    let log = open_log(&LogSettings::default())?;
    let _flush = log.flushed_at_end();
    signals.serving();
    let running = Arc::new(listen(bound, &log)?);
    let ended = wait(&running, &signals, &log, None)?;
    end(ended, running, plan, &log)
}

/// Hides the memory of a process that reads keys.
#[cfg(any(feature = "tls", feature = "balance"))]
pub(crate) fn hide_keys(log: &Log) {
    if let Err(error) = throng_io::memory::hide() {
        let why = format!("other processes of this user can read the keys of TLS: {error}");
        log.event(&events::WARNING, why, []);
    }
}

/// Opens the log; an error names the setting.
pub(crate) fn open_log(settings: &LogSettings) -> Result<Log, Failure> {
    Log::open(settings).map_err(|error| {
        let file = settings.file.as_deref().unwrap_or(Path::new("(standard error)"));
        let message = format!("log.file is {}: it cannot be opened: {error}", file.display());
        Failure::of_start(message, may_pass(&error))
    })
}

/// Checks the machine and the settings by the rules of `throng doctor`; returns the warnings.
///
/// # Errors
/// There are warnings, and `strict_start` is true.
pub(crate) fn check_machine(
    settings: &Settings,
    log: Option<&Log>,
) -> Result<Vec<String>, Failure> {
    let mut question = Question::new(Role::Serve);
    question.settings = settings.checked.clone();
    check_start(&question, settings.strict_start, log)
}

/// Checks that the log can be opened, and removes a file that the check has created.
///
/// # Errors
/// As for [`open_log`].
pub(crate) fn check_log(settings: &LogSettings) -> Result<(), Failure> {
    let new = settings.file.as_deref().filter(|file| matches!(file.try_exists(), Ok(false)));
    open_log(settings)?;
    if let Some(file) = new {
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Logs the events of a server.
fn watched(server: Server, settings: &Settings, warnings: Vec<String>, log: &Log) -> Server {
    let log = log.clone();
    let access = log.clone();
    let observe = site::observe(settings).warnings(warnings);
    let observe = observe.on_event(move |event| log_event(&log, event));
    server.observe(observe.access_log(access))
}

/// Starts the shards, and prints their addresses.
fn listen(bound: Bound, log: &Log) -> Result<Running, Failure> {
    let scheme = if bound.has_tls() { "https" } else { "http" };
    let tcp = bound.local_addrs().iter().map(|address| format!("{scheme}://{address}"));
    let unix = bound.unix_paths().iter().map(|path| format!("unix:{}", path.display()));
    let addresses: Vec<String> = tcp.chain(unix).collect();
    let addresses = addresses.join(" and ");
    let capacity = bound.capacity().clone();
    let most = capacity.connections;
    let how = capacity.reason.map_or(String::new(), |how| format!(", {how}"));
    // First: messages about a server whose threads cannot be started would be wrong.
    let running = bound.start()?;
    terminal::line(format_args!("throng listens on {addresses} (up to {most} connections{how})"));
    if let Some(reason) = capacity.tables_refused {
        let message = format!("event loops share one descriptor table: {reason}");
        log.event(&events::WARNING, message, []);
    }
    log.started(
        &events::LISTENING,
        [("address", addresses.into()), ("max_connections", most.into())],
    );
    match running.placement() {
        Some(placement) if placement.refusals().is_empty() => {
            log.event(&events::PLACEMENT, placement, []);
        }
        Some(placement) => log.event(&events::PLACEMENT_FAILED, placement, []),
        None => {}
    }
    Ok(running)
}

/// A running server, and what its log has of it.
struct Watched<'a> {
    running: &'a Running,
    refusals: Refusals,
    log: &'a Log,
}

impl Attended for Watched<'_> {
    fn has_ended(&self) -> bool {
        self.running.has_ended()
    }

    fn turns(&self) -> Vec<(u64, bool)> {
        let stats = self.running.shard_stats();
        let of_one = |(load, stats): (ShardLoad, &Stats)| (load.turns, stats.connections > 0);
        self.running.shard_loads().into_iter().zip(&stats).map(of_one).collect()
    }

    fn status_line(&self) -> String {
        observe::status_line(self.running)
    }

    fn log_status(&self, uptime: Duration) {
        observe::log_status(self.log, self.running, uptime);
    }

    fn look(&mut self) {
        self.refusals.look(self.running, self.log);
    }
}

/// Serves until a signal or a successor ends the process, or the server has ended.
fn wait(
    running: &Arc<Running>,
    signals: &Signals,
    log: &Log,
    own: Option<(&Arc<Reloader>, PendingReloads, &Upgrades)>,
) -> Result<Ended, Failure> {
    let upgrades = own.as_ref().map(|(_, _, upgrades)| *upgrades);
    let reloader = own.map(|(reloader, pending, _)| (Arc::clone(reloader), pending));
    let settings = reloader.as_ref().map(|(reloader, _)| Arc::clone(reloader));
    let mut files = Files {
        running: Arc::clone(running),
        reloader,
        certificates: Certificates::default(),
        log: log.clone(),
    };
    let mut watched = Watched { running, refusals: Refusals::default(), log };
    let mut service = Service::ready();
    let work = move |work| files.carry_out(work);
    let ended = attend(&mut watched, work, upgrades, &mut service, (signals, log))?;
    if ended == Ended::Asked {
        let plan = settings.map_or(DrainPlan::DEFAULT, |reloader| reloader.settings().drain);
        service.stopping(plan.length_for(running.stats().connections as usize));
    }
    Ok(ended)
}

/// The part that reads files while the server runs.
struct Files {
    running: Arc<Running>,
    reloader: Option<(Arc<Reloader>, PendingReloads)>,
    certificates: Certificates,
    log: Log,
}

impl Files {
    fn carry_out(&mut self, work: FileWork) {
        let (running, log) = (&self.running, &self.log);
        match &self.reloader {
            Some((reloader, pending)) => {
                if work.has_hangup {
                    Service::reloading();
                    reloader.reload_on_hangup(running, log);
                    Service::reloaded();
                    self.certificates.reset();
                }
                if pending.carry_out(|| reloader.reload(running, log)) {
                    self.certificates.reset();
                }
            }
            None if work.has_hangup => {
                log.event(&events::SIGNAL, "nothing to reload", [("signal", "HUP".into())]);
            }
            None => {}
        }
        if work.looks {
            self.certificates.look(running, log);
        }
    }
}

/// Ends a server that is running or has ended.
fn end(
    ended: Ended,
    running: Arc<Running>,
    plan: DrainPlan,
    log: &Log,
) -> Result<ExitCode, Failure> {
    match (Arc::try_unwrap(running), ended == Ended::Failed) {
        (Ok(running), true) => running.wait().map(|_| ExitCode::SUCCESS).map_err(Failure::from),
        (Ok(running), false) => drain(running, plan, log),
        (Err(running), _) => drain_beside(&running, plan, log),
    }
}

/// Drains a server while one of its threads still reads files, and may do so forever.
fn drain_beside(running: &Running, plan: DrainPlan, log: &Log) -> Result<ExitCode, Failure> {
    log_drain(running, plan, log);
    running.stopper().shutdown(plan);
    let longest =
        plan.length_for(running.stats().connections as usize) + crate::admin::LAST_ANSWERS;
    let until = Instant::now() + longest;
    // Figures are a second old.
    while !running.has_ended() && Instant::now() < until {
        std::thread::sleep(TICK);
    }
    match running.has_ended() {
        true => log.event(&events::STOPPED, "while a file was still being read", []),
        false => log.event(&events::DRAIN_FORCED, "connections were left", []),
    }
    Ok(ExitCode::from(if running.has_ended() { 0 } else { 3 }))
}

fn drain(running: Running, plan: DrainPlan, log: &Log) -> Result<ExitCode, Failure> {
    log_drain(&running, plan, log);
    let unfinished = unfinished(&running.shutdown(plan).wait()?);
    if unfinished.is_empty() {
        log.event(&events::STOPPED, "every connection was closed cleanly", []);
        return Ok(ExitCode::SUCCESS);
    }
    for Unfinished { event, message, fields } in unfinished {
        log.event(event, message, fields);
    }
    Ok(ExitCode::from(3))
}

fn log_drain(running: &Running, plan: DrainPlan, log: &Log) {
    let connections = running.stats().connections;
    log.event(
        &events::DRAIN,
        "every session is closed with 1001",
        [
            ("connections", connections.into()),
            ("window", plan.window.into()),
            ("grace", plan.grace.into()),
        ],
    );
}

/// Drains, and prints the outcome, for commands without a log.
pub(crate) fn finish(running: Running, plan: DrainPlan) -> Result<ExitCode, Failure> {
    let unfinished = unfinished(&running.shutdown(plan).wait()?);
    if unfinished.is_empty() {
        terminal::line("stopped; every connection was closed cleanly");
        return Ok(ExitCode::SUCCESS);
    }
    unfinished.iter().for_each(|left| terminal::error_line(&left.message));
    Ok(ExitCode::from(3))
}

/// Work that did not end within a drain.
struct Unfinished {
    event: &'static LogEvent,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

fn unfinished(drained: &Drained) -> Vec<Unfinished> {
    let mut all = Vec::new();
    if drained.forced > 0 {
        let plural = if drained.forced == 1 { "" } else { "s" };
        all.push(Unfinished {
            event: &events::DRAIN_FORCED,
            message: format!(
                "{} connection{plural} missed the deadline and had to be reset",
                drained.forced
            ),
            fields: vec![("connections", drained.forced.into())],
        });
    }
    for StuckShard { shard, route, connections, .. } in &drained.stuck_shards {
        let end = if *connections == 1 { "connection ends" } else { "connections end" };
        all.push(Unfinished {
            event: &events::DRAIN_STUCK,
            message: format!(
                "shard {shard} did not come back from a handler of {route}; its {connections} \
                 {end} with the process"
            ),
            fields: vec![("route", route.as_str().into()), ("shard", (*shard).into())],
        });
    }
    for job in &drained.stuck {
        all.push(Unfinished {
            event: &events::DRAIN_STUCK,
            message: format!(
                "a handler of {} on a worker had not returned after {:.1} s and was abandoned; \
                 give its work a timeout",
                job.route,
                job.runs_for.as_secs_f64()
            ),
            fields: vec![
                ("route", job.route.to_string().into()),
                ("duration", job.runs_for.into()),
            ],
        });
    }
    all
}

#[cfg(test)]
mod tests;
