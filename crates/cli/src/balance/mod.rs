//! `throng balance`.

mod api;
mod args;
mod checks;
mod ctl;
mod metrics;
mod reload;
mod route;
mod sentences;
mod site_metrics;
mod v1;
mod watch;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Subcommand;
use throng::metrics::process;
use throng::server::{Bound, Running, Stopper};
use throng_balance::{
    Balancer, CertificateEvent, Config, Error, MovedTunnels, NamedBackend, Passage, Secrets, Status,
};
use throng_doctor::{Question, Role};
use throng_io::{HeldListeners, PeerAddress, may_pass};

use crate::admin;
use crate::attend::{Attended, Ended, FileWork, attend};
use crate::checks::check_start;
use crate::expiry::ExpiryWatch;
use crate::failure::Failure;
use crate::log::{Log, events, log_issued, log_retried};
use crate::serve::{check_log, hide_keys, open_log};
use crate::service::Service;
use crate::signals::Signals;
use crate::terminal;
use crate::upgrade::{Moved, Moves, Next, Pause, Predecessor, Source, Upgrades};
use api::Api;
pub(crate) use args::Flags;
pub(crate) use checks::checked_settings;
use reload::Reloader;
use watch::Watch;

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<BalanceSubcommand>,
    #[command(flatten)]
    flags: Flags,
    /// Only check the configuration
    #[arg(long)]
    check: bool,
}

impl Args {
    /// Returns the flags of the balancer, unless this is a command for a running balancer.
    #[cfg(unix)]
    pub(crate) fn into_flags(self) -> Option<Flags> {
        self.command.is_none().then_some(self.flags)
    }
}

#[derive(Subcommand)]
enum BalanceSubcommand {
    /// Query and control a running balancer through its admin API.
    Ctl(ctl::Args),
    /// Explain which site, route and pool a request gets, and why, without sending it.
    Route(route::Args),
    /// Create a key for the setting secrets: prints its line for the file, and on standard error
    /// the key.
    Secret {
        /// Name of the client that gets the key
        name: String,
    },
}

const EXAMPLES: &str = "Examples:
  throng balance --backend 127.0.0.1:9001 --backend 127.0.0.1:9002,weight=2
  throng balance --listen 0.0.0.0:80 --config balance.toml --admin 127.0.0.1:8081
  throng balance --config balance.toml --check            check the configuration
  throng balance --listen 0.0.0.0:443 --tls-cert example.org.pem --tls-key example.org.key \\
      --backend 127.0.0.1:9001                            https and wss for clients
  throng balance --sticky cookie:lb --pick rendezvous --backend 127.0.0.1:9001
  throng balance --admin 127.0.0.1:8081 --register-token-file token.txt
                                                          backends register themselves:
  throng serve --register http://127.0.0.1:8081 --register-token-file token.txt
  throng balance ctl --admin 127.0.0.1:8081 list          list the backends
  throng balance ctl --admin 127.0.0.1:8081 drain 127.0.0.1:9001 --window 30s
  throng balance route --config balance.toml wss://app.example.com/ws
  throng balance secret ci >> keys.txt                    a key for `secrets`

The admin API also serves a status page at /, metrics for Prometheus at
/metrics, and JSON at /status.json.

TLS: --tls-cert and --tls-key, or [tls] in the file; [backend_tls] for
connections to backends. Certificates that are renewed are read again within a
second; open connections stay. With [tls.acme] an authority such as Let's
Encrypt issues and renews the certificate; see docs/tls.md.

Log: on standard error: text on a terminal, for systemd's journal where that
reads it, else JSON lines. Requests that failed are in it, with the reason and
the backend; --log-access all logs every request and tunnel.

Signals: SIGHUP reloads --config and the certificates, and logs the changes; a
file with a mistake changes nothing. SIGUSR1 logs the status and opens
--log-file again. SIGUSR2, or POST /upgrade of the admin API, starts a new
process that takes the listening sockets and the open tunnels; see
docs/upgrade.md. SIGTERM or Ctrl-C closes all tunnels over shutdown.window:
exit code 0, or 3 if connections had to be reset at shutdown.deadline. A second
one ends at once: exit code 130.";

pub(crate) use self::metrics::write_idle as write_idle_metrics;

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        Some(BalanceSubcommand::Ctl(args)) => return ctl::run(&args),
        Some(BalanceSubcommand::Route(args)) => return route::run(args),
        Some(BalanceSubcommand::Secret { name }) => return create_secret(&name),
        None => {}
    }
    let flags = args.flags;
    if args.check {
        terminal::report_line(checked(flags.config()?)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    Predecessor::run(|predecessor, held| run_after(predecessor, held, flags))
}

/// Creates a key. Only its line is in the output, which is appended to a file.
fn create_secret(name: &str) -> Result<ExitCode, Failure> {
    let (key, line) = Secrets::create(name).map_err(Failure::usage)?;
    terminal::report_line(line)?;
    terminal::error_line(format_args!("the key of {name}, which is shown only now: {key}"));
    Ok(ExitCode::SUCCESS)
}

/// Runs a balancer with the listening sockets of a predecessor, if there is one.
fn run_after(
    predecessor: &Predecessor,
    held: HeldListeners,
    flags: Flags,
) -> Result<ExitCode, Failure> {
    // Before the first file is read.
    let signals = Signals::of_a_server().map_err(Failure::runtime)?;
    let (config, values) = flags.config_and_values()?;
    let log = open_log(&config.log)?;
    let _flush = log.flushed_at_end();
    for warning in config.warnings() {
        log.event(&events::WARNING, warning, []);
    }
    let warnings = check_machine(&config, Some(&log))?;
    let has_tls = config.pools.iter().any(|pool| pool.tls.is_some());
    if config.tls.is_some() || config.backend_tls.is_some() || has_tls {
        hide_keys(&log);
    }
    let access = Arc::new(log.clone());
    let leaves = Arc::new(AtomicBool::new(false));
    let on_bound = {
        let (predecessor, leaves) = (predecessor.clone(), Arc::clone(&leaves));
        move |loops| match predecessor.ready(loops) {
            Ok(Next::Serve(passages)) => Ok(passages),
            Ok(Next::Leave) => {
                leaves.store(true, Relaxed);
                Err(io::ErrorKind::Interrupted.into())
            }
            Err(failure) => Err(io::Error::other(failure.message)),
        }
    };
    let carried = (predecessor.state().unwrap_or_default(), predecessor.ticket_keys());
    let started = Balancer::start_on(config.clone(), access, held.clone(), carried, on_bound);
    if leaves.load(Relaxed) {
        return Ok(ExitCode::SUCCESS);
    }
    let balancer = started.map_err(not_started)?;
    let upgrades = Upgrades::new(held.clone(), log.clone());
    let reloader = Arc::new(Reloader::new(flags, balancer.clone(), (&config, values), log.clone()));
    let is_ending = Arc::new(AtomicBool::new(false));
    let api = Api {
        balancer: balancer.clone(),
        reloader: Arc::clone(&reloader),
        is_ending: Arc::clone(&is_ending),
        log: log.clone(),
        warnings,
        upgrades: upgrades.clone(),
    };
    let bind = |address| bind_admin(api, address, held.clone());
    let admin = match config.admin.map(bind).transpose() {
        Ok(admin) => admin,
        Err(failure) => {
            let _ = balancer.shut_down(Duration::ZERO, Duration::ZERO);
            return Err(failure);
        }
    };
    held.close_unused();
    signals.serving();
    announce(&balancer, &config, admin.as_ref(), &log);
    let mut files = Files {
        balancer: balancer.clone(),
        reloader: Arc::clone(&reloader),
        expiry: ExpiryWatch::default(),
        log: log.clone(),
    };
    // A predecessor answers operators until it has passed on its counts, so that none falls.
    let started = predecessor.serving().and_then(|done| {
        if let Some(counts) = done.counts() {
            balancer.count_on(counts);
        }
        Ok((admin.map(Bound::start).transpose()?, done.report))
    });
    let (admin, begun_by) = match started {
        Ok(started) => started,
        Err(failure) => {
            let _ = balancer.shut_down(Duration::ZERO, Duration::ZERO);
            return Err(failure);
        }
    };
    let stopper = admin.as_ref().map(Running::stopper);
    upgrades.serving(source(&balancer, &reloader, stopper), begun_by);
    let mut service = Service::ready();
    let mut watched = Watched { balancer: &balancer, watch: Watch::new(&balancer), log: &log };
    let work = move |work| files.carry_out(work);
    let ended = attend(&mut watched, work, Some(&upgrades), &mut service, (&signals, &log))?;
    watched.watch.clear();
    is_ending.store(true, Relaxed);
    let ended = if ended == Ended::Replaced {
        held.leave_to_successor();
        admin::hand_over(admin.as_ref());
        end_replaced(&balancer, reloader.upgrade().window, || upgrades.left(), &log)
    } else {
        held.release();
        let plan = reloader.shutdown();
        service.stopping(plan.delay + plan.deadline);
        // During the delay, load balancers in front see that it is not ready.
        std::thread::sleep(plan.delay);
        end(&balancer, &reloader, &log)
    };
    admin::end(admin);
    ended
}

/// Returns what upgrades need of the balancer.
fn source(balancer: &Balancer, reloader: &Arc<Reloader>, admin: Option<Stopper>) -> Source {
    let (settings, balancer) = (Arc::clone(reloader), balancer.clone());
    let (carried, moves, counts) = (balancer.clone(), balancer.clone(), balancer.clone());
    let of_keys = balancer.clone();
    Source {
        settings: Box::new(move || settings.upgrade()),
        connections: Box::new(move || balancer.status().metrics.connections),
        state: Box::new(move || serde_json::to_vec(&carried.carried()).unwrap_or_default()),
        ticket_keys: Box::new(move || of_keys.ticket_keys()),
        moves: Some(Box::new(moves)),
        leave_operators: Box::new(move || admin.iter().for_each(admin::leave)),
        counts: Box::new(move || serde_json::to_vec(&counts.counts()).unwrap_or_default()),
    }
}

impl Moves for Balancer {
    fn loops(&self) -> Option<usize> {
        self.movable()
    }

    fn begin(&self) -> io::Result<Vec<Passage>> {
        self.begin_moves()
    }

    fn run(&self, until: Instant, is_alive: &mut dyn FnMut() -> bool) -> Result<Moved, String> {
        let MovedTunnels { tunnels, pause, stays } = self.move_tunnels(until, is_alive)?;
        let micros = |time: Duration| time.as_micros().try_into().unwrap_or(u64::MAX);
        let pause = Pause {
            p50_us: micros(pause.p50),
            p99_us: micros(pause.p99),
            max_us: micros(pause.max),
        };
        let drains = stays.into_iter().map(|(why, count)| (why.word().to_owned(), count));
        Ok(Moved { connections: tunnels, pause: Some(pause), drains: drains.collect() })
    }

    fn abandon(&self) -> u64 {
        self.abandon_moves()
    }

    fn end(&self) {
        self.end_moves();
    }
}

/// Prints and logs the addresses and the backends.
fn announce(balancer: &Balancer, config: &Config, admin: Option<&Bound>, log: &Log) {
    // Without the table, TLS is only passed through, and HTTP is served beside it.
    let has_table = config.values().is_some_and(|values| values.has_section("tls"));
    let names = balancer.listener_names();
    for (at, (address, has_tls)) in balancer.listening().enumerate() {
        let scheme = if has_table && has_tls { "https" } else { "http" };
        let (most, how) = balancer.capacity();
        let how = how.map_or(String::new(), |how| format!(" (up to {most} connections, {how})"));
        let address = match address {
            PeerAddress::Ip(address) => format!("{scheme}://{address}"),
            PeerAddress::Unix(_) => format!("{address} ({scheme})"),
        };
        terminal::line(format_args!("throng balances on {address}{how}"));
        let mut fields = vec![("address", address.into())];
        if let Some(listener) = names.get(at).filter(|_| !config.listeners.is_empty()) {
            fields.push(("listener", listener.to_string().into()));
        }
        log.started(&events::LISTENING, fields);
    }
    match balancer.placement() {
        Some(placement) if placement.refusals().is_empty() => {
            log.event(&events::PLACEMENT, placement, []);
        }
        Some(placement) => log.event(&events::PLACEMENT_FAILED, placement, []),
        None => {}
    }
    if let Some(reason) = balancer.tables_refused() {
        let message = format!("event loops share one descriptor table: {reason}");
        log.event(&events::WARNING, message, []);
    }
    let backends = summary(config);
    terminal::line(&backends);
    if !log.is_on_same_terminal() {
        log.event(&events::BACKENDS, backends, []);
    }
    if let Some(admin) = admin {
        let address = format!("http://{}/", admin.local_addr());
        terminal::line(format_args!("admin: {address}"));
        log.started(&events::ADMIN, [("address", address.into())]);
    }
}

/// A running balancer, and what its log has of it.
struct Watched<'a> {
    balancer: &'a Balancer,
    watch: Watch,
    log: &'a Log,
}

impl Attended for Watched<'_> {
    /// A failed event loop ends the process.
    fn has_ended(&self) -> bool {
        false
    }

    fn turns(&self) -> Vec<(u64, bool)> {
        let of_one = |it: &throng_balance::Metrics| (it.sweeps, it.connections > 0);
        self.balancer.metrics_of_each_shard().iter().map(of_one).collect()
    }

    fn status_line(&self) -> String {
        let Status { backends, metrics, .. } = self.balancer.status();
        let up = backends.iter().filter(|row| row.state == "up").count();
        format!("{up} of {} backends up, {} tunnels", backends.len(), metrics.tunnels)
    }

    fn log_status(&self, uptime: Duration) {
        log_status(self.log, self.balancer, uptime);
    }

    fn look(&mut self) {
        self.watch.look(self.balancer, self.log);
    }
}

/// The part that reads files while the balancer runs.
struct Files {
    balancer: Balancer,
    reloader: Arc<Reloader>,
    expiry: ExpiryWatch,
    log: Log,
}

impl Files {
    fn carry_out(&mut self, work: FileWork) {
        if work.has_hangup {
            Service::reloading();
            self.reloader.reload_on_hangup();
            Service::reloaded();
        }
        if self.reloader.take_reloaded() {
            self.expiry.reset();
        }
        if work.looks {
            look_at_certificates(&self.balancer, &mut self.expiry, &self.log);
        }
    }
}

/// Reads modified certificates again, and warns of those that expire.
fn look_at_certificates(balancer: &Balancer, expiry: &mut ExpiryWatch, log: &Log) {
    for event in balancer.take_certificate_events() {
        match event {
            CertificateEvent::Issued { names, expires, renewal } => {
                expiry.reset();
                log_issued(log, &names, expires, renewal);
            }
            CertificateEvent::Failed { reason, retry_in } => {
                log_retried(log, &events::CERTIFICATE_NOT_ISSUED, &reason, retry_in);
            }
            CertificateEvent::Unwritten { reason, retry_in } => {
                log_retried(log, &events::CERTIFICATE_UNWRITTEN, &reason, retry_in);
            }
        }
    }
    expiry.look(log, balancer.certificates());
    match balancer.reload_certificates_if_changed() {
        Ok(false) => {}
        Ok(true) => {
            expiry.reset();
            log.event(&events::CERTIFICATE_RELOADED, "", []);
        }
        Err(error) => {
            let reason = error.to_string();
            log.event(&events::CERTIFICATE_FAILED, "", [("reason", reason.into())]);
        }
    }
}

fn bind_admin(
    api: Api,
    address: std::net::SocketAddr,
    held: HeldListeners,
) -> Result<Bound, Failure> {
    let balancer = api.balancer.clone();
    let bound = api::bind(Arc::new(api), address, held)?;
    balancer.set_admin_address(bound.local_addr());
    Ok(bound)
}

/// Logs the state of the balancer.
fn log_status(log: &Log, balancer: &Balancer, uptime: Duration) {
    let status = balancer.status();
    let metrics = &status.metrics;
    let up = status.backends.iter().filter(|row| row.state == "up").count();
    log.event(
        &events::STATUS,
        "",
        [
            ("uptime", uptime.into()),
            ("connections", metrics.connections.into()),
            ("accepted", metrics.accepted.into()),
            ("refused", metrics.refused.into()),
            ("tunnels", metrics.tunnels.into()),
            ("requests", metrics.requests.into()),
            ("backends_up", up.into()),
            ("backends", status.backends.len().into()),
            ("lost", metrics.lost.into()),
            ("memory_bytes", process::resident_bytes().into()),
            ("descriptors", process::descriptors_in_use().into()),
            ("log_dropped", log.dropped().into()),
        ],
    );
}

/// Closes everything, and reports the outcome.
fn end(balancer: &Balancer, reloader: &Reloader, log: &Log) -> Result<ExitCode, Failure> {
    let plan = reloader.shutdown();
    log_drain(balancer, plan.window, plan.deadline, log);
    balancer.shut_down(plan.window, plan.deadline).map_err(Failure::runtime)?;
    report(balancer, plan.deadline, "shutdown.deadline", log)
}

/// Closes everything while a successor accepts, and reports the outcome.
fn end_replaced(
    balancer: &Balancer,
    window: Duration,
    on_begun: impl FnOnce(),
    log: &Log,
) -> Result<ExitCode, Failure> {
    let deadline = window * 2;
    log_drain(balancer, window, deadline, log);
    balancer.hand_over(window, deadline, on_begun).map_err(Failure::runtime)?;
    report(balancer, deadline, "the end of the upgrade", log)
}

fn log_drain(balancer: &Balancer, window: Duration, deadline: Duration, log: &Log) {
    let connections = balancer.status().metrics.connections;
    log.event(
        &events::DRAIN,
        "tunnels are closed with 1001",
        [
            ("connections", connections.into()),
            ("window", window.into()),
            ("grace", deadline.saturating_sub(window).into()),
        ],
    );
}

/// Reports the outcome of a drain.
fn report(
    balancer: &Balancer,
    deadline: Duration,
    until: &str,
    log: &Log,
) -> Result<ExitCode, Failure> {
    let forced = balancer.status().metrics.forced;
    if forced > 0 && !deadline.is_zero() {
        let message = format!("not everything had ended by {until}; the rest was reset");
        log.event(&events::DRAIN_FORCED, message, [("connections", forced.into())]);
        return Ok(ExitCode::from(3));
    }
    log.event(&events::STOPPED, "every connection was closed cleanly", []);
    Ok(ExitCode::SUCCESS)
}

fn not_started(error: Error) -> Failure {
    match error {
        Error::Config(errors) => errors.into(),
        Error::Tls(why) => Failure::usage(why),
        Error::Start(error) => Failure::of_start(&error, may_pass(&error)),
        other => Failure::runtime(other),
    }
}

/// Checks a configuration as a start does, except for listening and connecting. Returns the line
/// for a valid configuration, after printing its warnings.
pub(crate) fn checked(config: Config) -> Result<String, Failure> {
    config.warnings().iter().for_each(terminal::error_line);
    let valid = format!("the configuration is valid: {}", summary(&config));
    check_log(&config.log)?;
    check_machine(&config, None)?;
    Balancer::check_start(config).map_err(not_started)?;
    Ok(valid)
}

/// Checks the machine and the settings by the rules of `throng doctor`; returns the warnings.
fn check_machine(config: &Config, log: Option<&Log>) -> Result<Vec<String>, Failure> {
    let mut question = Question::new(Role::Balance);
    question.settings = checked_settings(config);
    check_start(&question, config.strict_start, log)
}

/// Returns the backends and the load-balancing algorithm on one line.
fn summary(config: &Config) -> String {
    const SHOWN: usize = 8;
    let mut backends: Vec<String> = config
        .backends
        .iter()
        .take(SHOWN)
        .map(|backend| match backend.weight {
            1 => backend.address.to_string(),
            weight => format!("{} (weight {weight})", backend.address),
        })
        .collect();
    let name = |named: &NamedBackend| match named.weight {
        1 => named.name.to_string(),
        weight => format!("{} (weight {weight})", named.name),
    };
    backends.extend(config.names.iter().take(SHOWN - backends.len()).map(name));
    let all = config.backends.len() + config.names.len();
    if all > SHOWN {
        backends.push(format!("{} more", all - SHOWN));
    }
    if config.register.is_some() {
        backends.push("those that register themselves".to_owned());
    }
    if backends.is_empty() {
        backends.push("none outside of pools".to_owned());
    }
    let number = |what: &str, number: usize| match number {
        0 => String::new(),
        number => format!("; {what}: {number}"),
    };
    let sites = number("sites", config.sites.len());
    let pools = number("pools", config.pools.len());
    let pick = config.settings.pick.word();
    format!("backends: {}; pick: {pick}{pools}{sites}", backends.join(", "))
}
