//! `throng serve`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::settings::{Checked, Origin, Settings};
use crate::signals::Stop;
use crate::{Failure, blocking, netbench, probe, register, say, site};

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Be a server of the blank/work benchmark NetBenchmarks instead: on port 1234 of 127.0.0.1 and ::1, at any path
    #[arg(long, value_name = "blank|work", value_enum, hide_possible_values = true)]
    netbench: Option<netbench::Mode>,
    /// Be a server for outside probes instead: / echoes bodies, /echo shows request headers, /push is an endless WebSocket
    #[arg(long, conflicts_with = "netbench")]
    probe: bool,
    /// Be a server of echoes that block instead, to see what that does: /sleep/{ms} blocks the event loop for so many
    /// milliseconds, /worker/{ms} one of the workers; /echo does not block. Anybody who reaches it can stop it
    #[arg(long, conflicts_with_all = ["netbench", "probe"])]
    demo_blocking: bool,
    #[command(flatten)]
    registration: register::Flags,
    #[command(flatten)]
    flags: SettingFlags,
}

const EXAMPLES: &str = "Paths:
  /echo            a WebSocket that answers with what it gets
  /ws/{channel}    a WebSocket whose messages go to the channel's other members;
                   with ?echo=1 to oneself, too
  /sse/{channel}   the same messages to read, as server-sent events
  /upload          a WebSocket that takes messages as they come, holds none, and
                   answers each with its length (up to max_upload_size)
  /                a page to try it, or with --dir its index.html; /stats.json its figures
  /metrics         for Prometheus; /livez and /readyz for supervisors

Examples:
  throng serve --listen 127.0.0.1:0                       a free port, printed
  throng serve --listen 0.0.0.0:80 --set max_backlog=256KiB
  throng serve --channel 'prices.*=latest,max_age=5s' --channel 'logs.>=drop_oldest'
  THRONG_HEARTBEAT_INTERVAL=10s throng serve --config throng.toml
  throng serve --dir public                               files beside the channels
  throng serve --register http://127.0.0.1:8081 --register-token-file token.txt
                                                          be a backend of `throng balance`
  throng serve --netbench work                            as the suite starts it: blank or work

Benchmark: --netbench blank answers OK; --netbench work answers the JSON document of a request's body, or
400 and what is wrong with it. As a WebSocket at any path, both answer an empty message with OK and a document
as text with its answer; what is no document ends the session with 1007.

Slow receivers: what waits for one is capped by max_backlog and max_age; at the cap,
slow_policy acts. Channels can have rules of their own; of several that match, the first
rules: --channel, or [[channel]] tables in TOML, or THRONG_CHANNELS with ; between them.
  close            the receiver is closed with 1008: nothing may be missing
  drop_newest      new messages are dropped: what waits is delivered first
  drop_oldest      waiting messages are dropped to make room: the latest are delivered
  latest           of each channel only its newest message waits (the channel is the key)
With --set wildcards=true, /ws/news.* and /sse/news.> get what is published to all channels
that match; a message sent on a pattern's WebSocket closes it with 1008.

Compression: `--deflate shared` for messages of a kilobyte and more, `--deflate window:10` for
short ones that resemble each other, at little more than 1 KB a connection and direction in use.

Settings: flags win over THRONG_* variables, those over --config, that over the defaults;
`throng config show` lists them all. The variables that Kubernetes sets for a
service called throng (THRONG_SERVICE_*, THRONG_PORT_*) are left alone.

Signals: SIGTERM or Ctrl-C drains: exit code 0, or 3 if a connection had to be reset,
or a handler did not return.
A second one ends at once: exit code 130.";

/// The flags that are settings; shared by `serve` and `config show`.
#[derive(clap::Args)]
pub(crate) struct SettingFlags {
    /// Address and port, or several with commas; port 0 takes a free one [default: 127.0.0.1:9001]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Event loops; 0 = one for each usable CPU [default: 0]
    #[arg(long, value_name = "N")]
    shards: Option<String>,
    /// How to speak to the kernel: auto, epoll or portable; or threads, one for each connection [default: auto]
    #[arg(long, value_name = "IO")]
    io: Option<String>,
    /// Larger messages are closed with 1009; above 4MiB this raises --max-frame-size, too [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    max_message_size: Option<String>,
    /// Larger frames are closed with 1009 [default: 4MiB, or --max-message-size if that is more]
    #[arg(long, value_name = "SIZE")]
    max_frame_size: Option<String>,
    /// Rules for slow receivers of the channels that match, for example 'prices.*=latest,max_backlog=64KiB,max_age=5s';
    /// may be repeated, and then the first that matches rules
    #[arg(long, value_name = "PATTERN=POLICY[,KEY=VALUE]")]
    channel: Vec<String>,
    /// Compress for clients that can (permessage-deflate): each message by itself (shared), with the last 2^BITS bytes
    /// as context (window:BITS, 9 to 15), or not [default: off]
    #[arg(long, value_name = "shared|window:BITS|off")]
    deflate: Option<String>,
    /// Serve the files of a directory, at every path that has no other meaning
    #[arg(long, value_name = "PATH")]
    dir: Option<String>,
    /// Read settings from a TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any setting, for example --set heartbeat.interval=10s; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl SettingFlags {
    /// All sources, in their order.
    pub(crate) fn settings(&self) -> Result<Settings, String> {
        let mut settings = Settings::new();
        if let Some(path) = &self.config {
            settings.read_file(path)?;
        }
        settings.read_environment(std::env::vars_os())?;
        for pair in &self.set {
            settings.set_pair(pair)?;
        }
        for (key, flag, value) in [
            ("listen", "--listen", &self.listen),
            ("shards", "--shards", &self.shards),
            ("io", "--io", &self.io),
            ("dir", "--dir", &self.dir),
            ("max_message_size", "--max-message-size", &self.max_message_size),
            ("max_frame_size", "--max-frame-size", &self.max_frame_size),
        ] {
            if let Some(value) = value {
                settings.set(key, value.clone(), Origin::Flag(flag.to_owned()))?;
            }
        }
        if let Some(deflate) = &self.deflate {
            settings.set_deflate(deflate, "--deflate")?;
        }
        if !self.channel.is_empty() {
            let origin = Origin::Flag("--channel".to_owned());
            settings.set("channels", self.channel.join("; "), origin)?;
        }
        Ok(settings)
    }
}

impl Args {
    /// Those given, and what the two special servers have as defaults of their own.
    fn settings(&self) -> Result<Checked, String> {
        let mut settings = self.flags.settings()?;
        if self.netbench.is_some() {
            settings.set_default("listen", netbench::addresses(), "--netbench")?;
            for (key, value) in netbench::DEFAULTS {
                settings.set_default(key, value, "--netbench")?;
            }
        }
        if self.probe {
            settings.set_default("max_backlog", probe::MAX_BACKLOG, "--probe")?;
        }
        settings.checked()
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let settings = args.settings().map_err(Failure::usage)?;
    let balancers = args.registration.checked()?;
    let stop = Stop::on_signals().map_err(Failure::runtime)?;
    let bound = match args.netbench {
        Some(mode) => netbench::bind(&settings, mode)?,
        None if args.probe => probe::bind(&settings)?,
        None if args.demo_blocking => blocking::bind(&settings)?,
        None => site::bind(&settings)?,
    };
    let addresses: Vec<String> =
        bound.local_addrs().iter().map(|address| format!("http://{address}")).collect();
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
    let registrations = args.registration.begin(balancers, running.local_addr())?;
    while !stop.wait(Duration::from_secs(1)) {
        if running.has_ended() {
            registrations.end();
            return running.join().map(|_| ExitCode::SUCCESS).map_err(Failure::from);
        }
    }
    // Before the first close: whoever comes back is to come to another backend.
    registrations.end();
    say::line("draining: every session is closed with 1001");
    finish(running, settings.drain)
}

/// Drains, and says how it went.
pub(crate) fn finish(
    running: throng::Running,
    plan: throng::DrainPlan,
) -> Result<ExitCode, Failure> {
    let drained = running.drain(plan)?;
    if drained.forced > 0 {
        say::trouble(format_args!(
            "{} connection{} missed the deadline and had to be reset",
            drained.forced,
            if drained.forced == 1 { "" } else { "s" }
        ));
    }
    for throng::StuckShard { shard, route, connections } in &drained.stuck_shards {
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
    say::line("stopped; every connection was closed in good order");
    Ok(ExitCode::SUCCESS)
}
