//! `throng serve`.

mod certificates;
mod flags;
mod keys;
mod settings;

use std::process::ExitCode;
use std::time::Duration;

use throng::{Bound, DrainPlan, Running};

use self::certificates::Certificates;
use crate::signals::Stop;
use crate::{Failure, register, say, site};

pub use flags::SettingFlags;
pub use keys::TABLE;
pub(crate) use settings::Rule;
pub use settings::Settings;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    registration: register::Flags,
    #[command(flatten)]
    flags: SettingFlags,
}

const EXAMPLES: &str = "Paths:
  /echo            a WebSocket that echoes messages
  /ws/{channel}    a WebSocket whose messages go to the channel's other members;
                   with ?echo=1 to the sender, too
  /sse/{channel}   the channel's messages as server-sent events
  /upload          a WebSocket that streams messages without buffering them, and
                   answers each with its length (up to max_upload_size)
  /                a test page, or with --dir its index.html; /stats.json has its metrics
  /metrics         for Prometheus; /livez and /readyz for supervisors

Examples:
  throng serve --listen 127.0.0.1:0                       a free port, printed
  throng serve --listen 0.0.0.0:80 --set max_backlog=256KiB
  throng serve --channel 'prices.*=latest,max_age=5s' --channel 'logs.>=drop_oldest'
  THRONG_HEARTBEAT_INTERVAL=10s throng serve --config throng.toml
  throng serve --dir public                               files beside the channels
  throng serve --register http://127.0.0.1:8081 --register-token-file token.txt
                                                          be a backend of `throng balance`

Slow receivers: the queue of a receiver is limited by max_backlog and max_age; at the limit,
slow_policy applies. Channels can have rules of their own, of which the first match applies:
--channel, or [[channel]] tables in TOML, or THRONG_CHANNELS with ; between them.
  close            closes the receiver with 1008, so that no receiver misses a message
  drop_newest      drops new messages
  drop_oldest      drops the oldest queued messages
  latest           queues only the newest message of each channel
With --set wildcards=true, /ws/news.* and /sse/news.> get the messages of all channels that
match; a message sent on a pattern's WebSocket closes it with 1008.

Compression: `--deflate shared` for messages of a kilobyte and more, `--deflate window:10` for
short similar messages, at little more than 1 KB per connection and direction in use.

Settings: --set overrides other flags, those THRONG_* variables, those the file of --config or
THRONG_CONFIG; `throng config show` lists them all, `throng config check` checks them. The variables that Kubernetes sets for a
service called throng (THRONG_SERVICE_*, THRONG_PORT_*) are ignored.

TLS: --tls-cert and --tls-key. Files that are renewed are read again within a second; open
connections stay. If they do not fit together, a line says why and the old ones stay in use.

Signals: SIGTERM or Ctrl-C drains: exit code 0, or 3 if a connection had to be reset,
or a handler did not return.
A second one ends at once: exit code 130. SIGQUIT and SIGHUP drain, too; nohup keeps
SIGHUP away. SIGUSR1 and SIGUSR2 are ignored.";

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // The clients of a registered server ask for the name of the balancer.
    let any_host: &[_] = if args.registration.is_given() { &[("allowed_hosts", "*")] } else { &[] };
    let settings = args.flags.settings("--register", any_host)?;
    let balancers = args.registration.checked()?;
    let stop =
        Stop::on_signals_to_a_server().and_then(Stop::and_on_hangup).map_err(Failure::runtime)?;
    let running = listen(site::bind(&settings)?)?;
    let registrations = args.registration.begin(balancers, running.local_addr())?;
    let ended = wait(&running, &stop);
    // Before the first close, so that clients which reconnect get another backend.
    registrations.end();
    match ended {
        true => running.join().map(|_| ExitCode::SUCCESS).map_err(Failure::from),
        false => drain(running, settings.drain),
    }
}

/// Serves until a signal comes, then drains. For servers with routes of their own.
///
/// # Errors
/// The server could not start, or a shard failed.
pub fn until_stopped(bound: Bound, plan: DrainPlan) -> Result<ExitCode, Failure> {
    let stop =
        Stop::on_signals_to_a_server().and_then(Stop::and_on_hangup).map_err(Failure::runtime)?;
    let running = listen(bound)?;
    match wait(&running, &stop) {
        true => running.join().map(|_| ExitCode::SUCCESS).map_err(Failure::from),
        false => drain(running, plan),
    }
}

/// Starts the shards, and prints where they listen.
fn listen(bound: Bound) -> Result<Running, Failure> {
    let scheme = if bound.has_tls() { "https" } else { "http" };
    let addresses: Vec<String> =
        bound.local_addrs().iter().map(|address| format!("{scheme}://{address}")).collect();
    say::line(format_args!(
        "throng listens on {} (up to {} connections)",
        addresses.join(" and "),
        bound.max_connections()
    ));
    let running = bound.spawn()?;
    match running.placement() {
        Some(placement) if placement.refusals().is_empty() => {
            say::line(placement);
        }
        Some(placement) => say::trouble(placement),
        None => {}
    }
    Ok(running)
}

/// Waits for a signal, or for the end of the server, which is true. Renewed certificates are read
/// within a second.
fn wait(running: &Running, stop: &Stop) -> bool {
    let mut certificates = Certificates::default();
    certificates.look(running);
    while !stop.wait(Duration::from_secs(1)) {
        if running.has_ended() {
            return true;
        }
        certificates.look(running);
    }
    false
}

fn drain(running: Running, plan: DrainPlan) -> Result<ExitCode, Failure> {
    say::line("draining: every session is closed with 1001");
    finish(running, plan)
}

/// Drains, and says how it went.
pub(crate) fn finish(running: Running, plan: DrainPlan) -> Result<ExitCode, Failure> {
    let drained = running.drain(plan)?;
    if drained.forced > 0 {
        say::trouble(format_args!(
            "{} connection{} missed the deadline and had to be reset",
            drained.forced,
            if drained.forced == 1 { "" } else { "s" }
        ));
    }
    for throng::StuckShard { shard, route, connections, .. } in &drained.stuck_shards {
        let end = if *connections == 1 { "connection ends" } else { "connections end" };
        say::trouble(format_args!(
            "shard {shard} did not come back from a handler of {route}; its {connections} {end} with the process"
        ));
    }
    for job in &drained.stuck {
        say::trouble(format_args!(
            "a handler of {} on a worker had not returned after {:.1} s and was left behind; have it give up by itself",
            job.route,
            job.runs_for.as_secs_f64()
        ));
    }
    if drained.forced > 0 || !drained.stuck.is_empty() || !drained.stuck_shards.is_empty() {
        return Ok(ExitCode::from(3));
    }
    say::line("stopped; every connection was closed cleanly");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
