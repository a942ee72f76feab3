//! `throng balance`.

mod api;
mod args;
mod ctl;
mod guard;
mod metrics;
mod reload;
mod watch;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use clap::Subcommand;
use throng::{DrainPlan, Running};
use throng_balance::{Balancer, Config, Error, NamedBackend};

use crate::expiry::ExpiryWatch;
use crate::signals::{Hangup, Stop};
use crate::{Failure, say};
use api::Api;
pub(crate) use args::Flags;
use reload::Reloader;
use watch::Watch;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Subcommand)]
enum Command {
    /// Query and control a running balancer through its admin API.
    Ctl(ctl::Args),
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

The admin API also serves a status page at /, metrics for Prometheus at /metrics, and JSON at
/status.json.

TLS: --tls-cert and --tls-key, or [tls] in the file; [backend_tls] for connections to backends.
Certificates that are renewed are read again within a second; open connections stay.

Signals: SIGHUP reloads --config and the certificates, and prints the changes; a file with a mistake
changes nothing.
SIGTERM or Ctrl-C closes all tunnels over shutdown.window: exit code 0, or 3 if connections had to
be reset at shutdown.deadline. A second one ends at once: exit code 130.";

/// The interval at which signals and notes are polled.
const TICK: Duration = Duration::from_millis(100);

/// The interval at which the files of certificates are looked at.
const LOOK_AT_FILES: Duration = Duration::from_secs(1);

/// The time that the admin API has for its last answers.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if let Some(Command::Ctl(args)) = args.command {
        return ctl::run(&args);
    }
    let flags = args.flags;
    let config = flags.config()?;
    if flags.check {
        say::line(crate::config::valid(&config));
        return Ok(ExitCode::SUCCESS);
    }
    config.warnings().iter().for_each(say::trouble);
    let stop = Stop::on_signals_to_a_server().map_err(Failure::runtime)?;
    let hangup = Hangup::on_signal().map_err(Failure::runtime)?;
    let balancer = Balancer::start(config.clone()).map_err(|error| match error {
        Error::Config(errors) => errors.into(),
        Error::Tls(why) => Failure::usage(why),
        other => Failure::runtime(other),
    })?;
    let reloader = Arc::new(Reloader::new(flags, balancer.clone(), &config));
    let (notes, noted) = mpsc::channel();
    let is_ending = Arc::new(AtomicBool::new(false));
    let api = Api {
        balancer: balancer.clone(),
        reloader: Arc::clone(&reloader),
        is_ending: Arc::clone(&is_ending),
        notes,
    };
    let admin = match config.admin.map(|address| start_admin(api, address)).transpose() {
        Ok(admin) => admin,
        Err(failure) => {
            let _ = balancer.shut_down(Duration::ZERO, Duration::ZERO);
            return Err(failure);
        }
    };
    for (place, address) in balancer.addresses().iter().enumerate() {
        let scheme = if balancer.has_tls(place) { "https" } else { "http" };
        say::line(format_args!("throng balances on {scheme}://{address}"));
    }
    say::line(summary(&config));
    if let Some(admin) = &admin {
        say::line(format_args!("admin: http://{}/", admin.local_addr()));
    }
    let mut watch = Watch::new(&balancer);
    let mut looked = Instant::now();
    let mut expiry = ExpiryWatch::default();
    expiry.look(balancer.certificates());
    while !stop.wait(TICK) {
        if hangup.was_asked() {
            watch.clear();
            match reloader.reload() {
                Ok(changes) => {
                    let changes = reload::in_words(&changes);
                    say::line(format_args!("configuration read again: {changes}"));
                }
                Err(why) => say::trouble(format_args!("nothing is changed: {why}")),
            }
        }
        if looked.elapsed() >= LOOK_AT_FILES {
            looked = Instant::now();
            expiry.look(balancer.certificates());
            match balancer.reload_certificates_if_changed() {
                Ok(false) => {}
                Ok(true) => {
                    watch.clear();
                    expiry.reset();
                    say::line("tls: the renewed certificate serves new connections");
                }
                Err(error) => {
                    watch.clear();
                    say::trouble(format_args!("{error}; the certificates stay as they were"));
                }
            }
        }
        for note in noted.try_iter() {
            watch.clear();
            say::line(note);
        }
        watch.look(&balancer);
    }
    watch.clear();
    is_ending.store(true, Relaxed);
    let ended = end(&balancer, &reloader);
    if let Some(admin) = admin {
        let quick = DrainPlan::DEFAULT.window(Duration::ZERO).grace(LAST_ANSWERS);
        let _ = admin.drain(quick);
    }
    ended
}

fn start_admin(api: Api, address: std::net::SocketAddr) -> Result<Running, Failure> {
    Ok(api::bind(Arc::new(api), address)?.spawn()?)
}

/// Closes everything, and reports the outcome.
fn end(balancer: &Balancer, reloader: &Reloader) -> Result<ExitCode, Failure> {
    let plan = reloader.shutdown();
    say::line(format_args!(
        "draining: tunnels are closed with 1001 over {:?}, the rest is reset after {:?}",
        plan.window, plan.deadline
    ));
    let began = Instant::now();
    balancer.shut_down(plan.window, plan.deadline).map_err(Failure::runtime)?;
    // The shutdown takes until the deadline only if connections have to be reset.
    if began.elapsed() >= plan.deadline && !plan.deadline.is_zero() {
        say::trouble("not everything had ended by shutdown.deadline; the rest was cut");
        return Ok(ExitCode::from(3));
    }
    say::line("stopped; every connection was closed cleanly");
    Ok(ExitCode::SUCCESS)
}

/// Returns the backends and the load-balancing algorithm on one line.
pub(crate) fn summary(config: &Config) -> String {
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
    format!("backends: {}; pick: {}", backends.join(", "), config.settings.pick.word())
}
