//! `throng demo`: a server, a web page and simulated clients in one process; or a cluster.

mod certificate;

use std::ffi::OsString;
use std::io::stdout;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use throng::metrics::process;
use throng::server::{Running, ShardLoad, Stats};
use throng_config::Sources;
use throng_config::units::{parse_count, parse_duration};
use throng_load::demo::{ClientPlan, ClientStats, ClientsHandle, spawn_clients};
use throng_load::units::{grouped, show_bytes, show_ns};
use throng_load::{Summary, Target, TlsTrust};

use self::certificate::OwnCertificate;
use crate::failure::Failure;
use crate::serve::{Settings, TABLE, site};
use crate::signals::Stop;
use crate::{hostile, serve, terminal};

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Stop after this time, for example 30s [default: on Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Simulated clients, spread over 50 channels; fewer than 100 clients over half as many
    /// channels [default: 1000, with --nodes 120]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    clients: Option<usize>,
    /// Messages per second that each client sends
    #[arg(long, value_name = "RATE", default_value_t = 0.5)]
    rate: f64,
    /// Address and port to listen on; port 0 takes a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Serve https and wss with a certificate of its own, which it makes; the clients use wss
    #[arg(long)]
    tls: bool,
    /// Instead, run a cluster of 2 to 8 servers, kill one and start it again, and account for every
    /// message; needs redis-server or --cluster
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=8),
          conflicts_with_all = ["listen", "tls", "attack"])]
    nodes: Option<u8>,
    /// With --nodes: use a Redis or Valkey server that runs, for example redis://127.0.0.1:6379
    #[arg(long, value_name = "URL", requires = "nodes")]
    cluster: Option<String>,
    /// Instead, attack a server of its own on loopback in a dozen ways, each for 4s or --for, and
    /// print what its other clients notice, and its memory
    #[arg(long, conflicts_with_all = ["clients", "rate", "listen", "tls"])]
    attack: bool,
    /// With --attack: print JSON
    #[arg(long, requires = "attack")]
    json: bool,
    /// Be the server that --attack attacks
    #[arg(long, hide = true)]
    attacked: bool,
    /// Become this program, and end with the process of this number
    #[arg(long, hide = true, value_name = "PID", requires = "program")]
    end_with: Option<u32>,
    #[arg(last = true, hide = true, requires = "end_with")]
    program: Vec<OsString>,
}

/// Clients of one server unless their number is given.
const CLIENTS: usize = 1000;

/// The duration of each attack unless --for is given: all of them take about a minute.
const ATTACK: Duration = Duration::from_secs(4);

const EXAMPLES: &str = "The status line, updated every second:
  connections      open connections, and the limit
  in, out          messages per second that the server received and sent
  busy             load of the server's busiest event loop, and its longest turn: how long
                   a message may have waited for others
  p99              99th percentile of the time from a message's planned time to each receiver
  memory           resident memory of this process: the server and its clients
  descriptors      open descriptors, and the limit

With --nodes, a line for each server: its clients, what they send, what is
delivered to them, and how long messages from other servers take. The last
server is killed after 10s and started again after 15s (with --for: after a
third and two thirds of it); its clients continue on the others and come back.
The end is an account of all messages; exit code 1 if any was lost or doubled.

Examples:
  throng demo --for 30s
  throng demo --clients 9000 --rate 0.1
  throng demo --tls
  throng demo --nodes 3                a cluster on a redis-server of its own
  throng demo --nodes 3 --for 30s --cluster redis://:password@127.0.0.1:6379
  throng demo --attack                 a minute of attacks, as a table";

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.attacked {
        return hostile::serve_attacked();
    }
    if args.attack {
        let limit = process::descriptor_limit();
        if limit < hostile::DESCRIPTORS {
            let needed = hostile::DESCRIPTORS;
            return Err(Failure::usage(format!(
                "--attack needs {needed} descriptors, but the limit is {limit}; raise it with \
                 `ulimit -n {needed}`"
            )));
        }
        return hostile::run(args.duration.unwrap_or(ATTACK), args.json);
    }
    if let Some(parent) = args.end_with {
        return Err(become_child(parent, &args.program));
    }
    let clients = args.clients.unwrap_or(CLIENTS);
    if clients == 0 {
        return Err(Failure::usage("--clients is 0; expected at least 1"));
    }
    if !(1e-3..=1e3).contains(&args.rate) {
        let message =
            format!("--rate is {}; expected 0.001 to 1000 messages per second", args.rate);
        return Err(Failure::usage(message));
    }
    if let Some(nodes) = args.nodes {
        return run_nodes(nodes.into(), args);
    }
    run_clients(&args, clients)
}

/// Runs a server, and clients that chat on it.
fn run_clients(args: &Args, clients: usize) -> Result<ExitCode, Failure> {
    let own = if args.tls { Some(OwnCertificate::make().map_err(Failure::runtime)?) } else { None };
    let settings = server_settings(args, own.as_ref())?;
    let limit = process::descriptor_limit();
    // Each client costs two descriptors here: its own end and the server's.
    if clients.saturating_mul(2).saturating_add(200) > limit {
        let possible = limit.saturating_sub(200) / 2;
        return Err(Failure::usage(format!(
            "--clients is {clients}, but the descriptor limit of {limit} allows {possible}; \
             lower --clients, or raise the limit with `ulimit -n`: two per client, and 200"
        )));
    }
    let stop = Stop::on_signals().map_err(Failure::runtime)?;
    let running = site::bind(&settings)?.start()?;
    let address = running.local_addr();
    let (http, ws) = if args.tls { ("https", "wss") } else { ("http", "ws") };
    terminal::line(format_args!(
        "throng listens on {http}://{address}  <- open this page and join in"
    ));
    if let Some(own) = &own {
        let chain = own.chain.display();
        terminal::line(format_args!(
            "certificate, valid while this runs: {chain} (curl --cacert {chain})"
        ));
    }
    let shown = grouped(clients as u64);
    terminal::line(format_args!("connecting {shown} clients; Ctrl-C stops"));
    let target = Target::parse(&format!("{ws}://{address}/")).map_err(Failure::runtime)?;
    let mut plan = ClientPlan::new(target);
    (plan.clients, plan.rate_per_s) = (clients, args.rate);
    if let Some(own) = &own {
        plan.tls.trust = TlsTrust::File(own.chain.clone());
        plan.tls.name = Some("localhost".to_owned());
    }
    let handle = spawn_clients(plan).map_err(Failure::runtime)?;
    show_until_the_end(args, &stop, limit, &running, &handle);
    terminal::line("stopping: the clients close their connections, then the server drains");
    let last = handle.stop();
    if let Some(error) = &last.first_error {
        terminal::error_line(format_args!(
            "{} connections failed; the first: {error}",
            last.failures
        ));
    }
    terminal::line(format_args!(
        "the clients sent {} messages and received {}",
        grouped(last.messages_out),
        grouped(last.messages_in)
    ));
    let plan = settings.drain.window(Duration::from_secs(2));
    serve::finish(running, plan)
}

/// Returns the settings of the server, with the certificate if there is one.
fn server_settings(args: &Args, own: Option<&OwnCertificate>) -> Result<Settings, Failure> {
    let mut sources = Sources::new(&TABLE);
    sources.flag("--listen", "listen", &args.listen);
    if let Some(own) = own {
        for (key, file) in [("tls.cert", &own.chain), ("tls.key", &own.key)] {
            sources.flag("--tls", key, &file.display().to_string());
        }
    }
    Ok(Settings::from_draft(sources.finish())?)
}

/// Shows statistics each second until a signal, the end of `--for`, or the server's end.
fn show_until_the_end(
    args: &Args,
    stop: &Stop,
    limit: usize,
    running: &Running,
    clients: &ClientsHandle,
) {
    // An end beyond the range of the clock means no end.
    let ends = args.duration.and_then(|duration| Instant::now().checked_add(duration));
    let mut line = Line::new(limit);
    loop {
        let left = ends.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() || stop.wait(left.min(Duration::from_secs(1))) || running.has_ended() {
            break;
        }
        line.show(running, &clients.snapshot());
    }
    line.finish();
}

#[cfg(all(unix, feature = "redis"))]
use crate::nodes::{self, become_child};

#[cfg(all(unix, feature = "redis"))]
fn run_nodes(nodes: usize, args: Args) -> Result<ExitCode, Failure> {
    let Args { clients, rate, duration, cluster: url, .. } = args;
    nodes::run(&nodes::NodesPlan { nodes, clients, rate, duration, url })
}

#[cfg(not(all(unix, feature = "redis")))]
fn run_nodes(_: usize, _: Args) -> Result<ExitCode, Failure> {
    Err(no_nodes())
}

#[cfg(not(all(unix, feature = "redis")))]
fn become_child(_: u32, _: &[OsString]) -> Failure {
    no_nodes()
}

#[cfg(not(all(unix, feature = "redis")))]
fn no_nodes() -> Failure {
    Failure::usage("--nodes needs Unix, and a build with the feature redis")
}

/// The status line, written every second: on a terminal in place, otherwise as a new line.
struct Line {
    in_place: bool,
    before: (Instant, Stats),
    loads: Vec<ShardLoad>,
    limit: usize,
}

impl Line {
    fn new(limit: usize) -> Self {
        let before = (Instant::now(), Stats::default());
        Self { in_place: terminal::is_replaceable(&stdout()), before, loads: Vec::new(), limit }
    }

    fn show(&mut self, running: &Running, clients: &ClientStats) {
        let (now, stats) = (Instant::now(), running.stats());
        let (at, before) = std::mem::replace(&mut self.before, (now, stats));
        let seconds = (now - at).as_secs_f64().max(1e-3);
        let rate = |new: u64, old: u64| (new.saturating_sub(old) as f64 / seconds) as u64;
        let rate_in = rate(stats.messages_in, before.messages_in);
        let rate_out = rate(stats.messages_out, before.messages_out);
        let loads = running.shard_loads();
        let longest = loads.iter().map(|load| load.longest_turn).max().unwrap_or_default();
        let busiest = busiest(&self.loads, &loads);
        self.loads = loads;
        let seen = Seen {
            connections: stats.connections,
            most: running.max_connections() as u64,
            rate_in,
            rate_out,
            busy: (busiest.as_secs_f64() / seconds * 100.0).min(100.0),
            longest: show_ns(longest.as_nanos() as u64),
            p99: clients.latency.as_ref().map_or_else(|| "-".to_owned(), show_p99),
            memory: show_bytes(process::resident_bytes() as i64),
            descriptors: process::descriptors_in_use() as u64,
            limit: self.limit as u64,
        };
        match self.in_place {
            true => terminal::text_as_is(format_args!(
                "\r\x1b[2K{}",
                seen.short(terminal::columns(&stdout()))
            )),
            false => terminal::line(seen.long()),
        };
    }

    fn finish(&self) {
        if self.in_place {
            terminal::line("");
        }
    }
}

/// The figures of a status line.
struct Seen {
    connections: u64,
    most: u64,
    rate_in: u64,
    rate_out: u64,
    busy: f64,
    longest: String,
    p99: String,
    memory: String,
    descriptors: u64,
    limit: u64,
}

impl Seen {
    fn long(&self) -> String {
        format!(
            "{:>7} connections of {}  |  {:>7} in/s  {:>9} out/s  |  busy {:>3.0} %, turns to \
             {:>8}  |  p99 {:>8}  |  memory {}  |  descriptors {} of {}",
            grouped(self.connections),
            grouped(self.most),
            grouped(self.rate_in),
            grouped(self.rate_out),
            self.busy,
            self.longest,
            self.p99,
            self.memory,
            grouped(self.descriptors),
            grouped(self.limit),
        )
    }

    /// Returns the parts that fit into `columns`: a line that wraps could not be replaced.
    fn short(&self, columns: usize) -> String {
        let parts = [
            format!("{} connections", grouped(self.connections)),
            format!("{} in/s", grouped(self.rate_in)),
            format!("{} out/s", grouped(self.rate_out)),
            format!("p99 {}", self.p99),
            format!("busy {:.0} %", self.busy),
            self.memory.clone(),
        ];
        let mut line = String::new();
        for part in parts {
            let separator = if line.is_empty() { "" } else { "  " };
            // The last column would make some terminals wrap.
            if line.len() + separator.len() + part.len() >= columns {
                break;
            }
            line.push_str(separator);
            line.push_str(&part);
        }
        line
    }
}

/// Returns the busy time of the busiest shard between two measurements.
fn busiest(before: &[ShardLoad], now: &[ShardLoad]) -> Duration {
    let was = |shard: usize| before.get(shard).map_or(Duration::ZERO, |load| load.busy);
    let done = now.iter().enumerate().map(|(shard, load)| load.busy.saturating_sub(was(shard)));
    done.max().unwrap_or_default()
}

fn show_p99(latency: &Summary) -> String {
    show_ns((latency.p99_us * 1000.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_fits_the_terminal() {
        let seen = Seen {
            connections: 1_000_000,
            most: 1_000_000,
            rate_in: 1_234_567,
            rate_out: 123_456_789,
            busy: 100.0,
            longest: "999.9 ms".to_owned(),
            p99: "999.9 ms".to_owned(),
            memory: "1023.9 MiB".to_owned(),
            descriptors: 1,
            limit: 2,
        };
        for columns in 1..200 {
            let line = seen.short(columns);
            assert!(line.chars().count() < columns, "{columns}: {line}");
        }
        assert!(seen.short(80).contains("p99 999.9 ms"), "{}", seen.short(80));
        assert!(seen.short(10).is_empty() && seen.short(120).ends_with("MiB"));
    }
}
