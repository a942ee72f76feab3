//! `lab proxies`: what a WebSocket proxy costs and adds, one that runs or several that are started
//! here.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::proxies::{self, Peer, ProxyPlan, ProxyUnderTest, Table, Targets};
use clap::ValueEnum;
use throng_config::units::{parse_duration, parse_size};
use throng_load::{Error, Target};

use crate::cells::CellLine;
use crate::servers::children::OwnServer;
use throng_cli::Failure;
use throng_cli::bench::output;
use throng_cli::signals::Stop;

pub(crate) const EXAMPLES: &str = "Examples:
  lab proxies ws://127.0.0.1:8080/echo              any proxy that runs before an echo server
  lab proxies ws://127.0.0.1:8080/echo --direct ws://127.0.0.1:9001/echo --pid 1234
  lab proxies --peers direct,throng,nginx,haproxy --html proxies.html
  lab proxies --peers direct,nginx,haproxy --only mostly-idle,burst --idle 9000
  lab proxies --peers nginx,nginx-64k --only echo --quick

The tables:
  echo         100 connections, each with one message under way: messages by the proxy's CPU-second
  connect      connect, upgrade, one echo, reset: connections by the proxy's CPU-second
  idle         tunnels that do nothing: memory of each
  latency      an open loop: what the proxy adds to the latency of its backend
  mostly-idle  tunnels with messages of 10 to 4096 bytes every 0.1 to 10 s: memory, CPU, latency
  burst        500 connections x 50 messages without delay: seconds, for each size of message

Every answer is checked, all of it in the last two. With --peers each cell has a fresh proxy of one
worker on a core of its own, with backend and generator on another; peers: direct (the backend
alone), throng, nginx, nginx-64k, haproxy, haproxy-64k (buffers of 64 KiB). Their programs are
looked for on PATH.";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A proxy that runs, as ws://host:port/path; the path must echo [default path: /echo]
    #[arg(value_name = "URL", required_unless_present = "peers", conflicts_with = "peers")]
    url: Option<String>,
    /// Start and compare these
    #[arg(long, value_name = "PEER", value_delimiter = ',')]
    peers: Vec<Peer>,
    /// The proxy's first process; those it started count as well [default: the process that listens
    /// on the port]
    #[arg(long, value_name = "PID", conflicts_with = "peers")]
    pid: Option<u32>,
    /// Its backend without it, for the added latency
    #[arg(long, value_name = "URL", conflicts_with = "peers")]
    direct: Option<String>,
    /// The `throng` binary that is measured [default: the one beside this program]
    #[arg(long, value_name = "PROGRAM", requires = "peers")]
    throng: Option<PathBuf>,
    /// Only these tables
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    only: Vec<TableArg>,
    /// Tunnels of the tables idle and mostly-idle; each takes two descriptors of the proxy
    /// [default: 4000, with --quick 500]
    #[arg(long, value_name = "N")]
    idle: Option<usize>,
    /// Connections of the tables echo and latency
    #[arg(long, short, value_name = "N", default_value_t = 100)]
    connections: usize,
    /// Payloads of the table echo
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "100,4KiB,64KiB",
          value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Messages a second on each connection of the table latency
    #[arg(long, value_name = "PER_SECOND", default_value_t = 50.0)]
    rate: f64,
    /// Connections of the table burst
    #[arg(long, value_name = "N", default_value_t = 500)]
    burst_connections: usize,
    /// Messages on each of them
    #[arg(long, value_name = "N", default_value_t = 50)]
    burst_messages: u64,
    /// Payloads of the table burst
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "1,16,64,256,1KiB,4KiB",
          value_parser = parse_size)]
    burst_sizes: Vec<usize>,
    /// Number of times everything is measured; medians are shown [default: 3 of peers, 1 of a proxy
    /// that runs or with --quick]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Time measured of each cell [default: 1.5s, with --quick 300ms]
    #[arg(long, short, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Time run before and not counted
    #[arg(long, short, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    warmup: Duration,
    /// Time measured of the table mostly-idle [default: 20s, with --quick 3s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    mostly_idle: Option<Duration>,
    /// Seed of gaps, sizes and contents; equal seeds make equal traffic
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Few tunnels and short times, for a first look
    #[arg(long)]
    quick: bool,
    /// Give up a cell when its set-up makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    setup_timeout: Duration,
    #[command(flatten)]
    output: output::OutputArgs,
}

/// A table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TableArg {
    Echo,
    Connect,
    Idle,
    Latency,
    MostlyIdle,
    Burst,
}

impl From<TableArg> for Table {
    fn from(table: TableArg) -> Self {
        match table {
            TableArg::Echo => Self::Echo,
            TableArg::Connect => Self::Connect,
            TableArg::Idle => Self::Idle,
            TableArg::Latency => Self::Latency,
            TableArg::MostlyIdle => Self::MostlyIdle,
            TableArg::Burst => Self::Burst,
        }
    }
}

/// Measures, and shows the report.
pub(crate) fn run(args: Args, stop: &Stop) -> Result<ExitCode, Failure> {
    args.output.check()?;
    let plan = args.plan();
    let subjects = args.subjects()?;
    let mut line = CellLine::new("proxies", args.output.quiet);
    let outcome = proxies::run(&plan, &subjects, stop.flag(), &mut |progress| line.show(progress));
    drop(line);
    args.output.show(&outcome?)
}

/// `throng` in the directory of this program; where there is none it is left out with a message.
fn beside() -> PathBuf {
    std::env::current_exe().map_or_else(|_| "throng".into(), |lab| lab.with_file_name("throng"))
}

/// An echo server of one shard.
fn backend() -> Result<OwnServer, Error> {
    OwnServer::start(1)
}

impl Args {
    fn plan(&self) -> ProxyPlan {
        let usual = ProxyPlan::default();
        let quick = |usual, quick| if self.quick { quick } else { usual };
        let tables: Vec<Table> = self.only.iter().map(|&table| table.into()).collect();
        let rounds = if self.peers.is_empty() || self.quick { 1 } else { usual.rounds };
        ProxyPlan {
            tables: if tables.is_empty() { usual.tables } else { tables },
            connections: self.connections,
            sizes: self.sizes.clone(),
            idle: self.idle.unwrap_or(if self.quick { 500 } else { usual.idle }),
            rate_per_s: self.rate,
            burst_connections: self.burst_connections,
            burst_messages: self.burst_messages,
            burst_sizes: self.burst_sizes.clone(),
            duration: self.duration.unwrap_or(quick(usual.duration, Duration::from_millis(300))),
            warmup: self.warmup,
            mostly_idle: self
                .mostly_idle
                .unwrap_or(quick(usual.mostly_idle, Duration::from_secs(3))),
            rounds: self.rounds.unwrap_or(rounds),
            seed: self.seed,
            setup_timeout: self.setup_timeout,
        }
    }

    fn subjects(&self) -> Result<Targets<'static, OwnServer>, Error> {
        if let Some(url) = &self.url {
            let direct = self.direct.as_deref().map(Target::parse).transpose()?;
            let (proxy, pid) = (Target::parse(url)?, self.pid);
            return Ok(Targets::Running(ProxyUnderTest { proxy, pid, direct }));
        }
        let mut peers = Vec::new();
        for &peer in &self.peers {
            if peers.contains(&peer) {
                return Err(Error::Usage(format!("--peers names {peer} twice")));
            }
            peers.push(peer);
        }
        let throng = self.throng.clone().unwrap_or_else(beside);
        Ok(Targets::Peers { peers, throng, backend: &backend })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Bench {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, String> {
        let words = std::iter::once("proxy").chain(line.split_whitespace());
        Ok(Bench::try_parse_from(words).map_err(|error| error.to_string())?.args)
    }

    #[test]
    fn flags_become_a_plan() {
        let plan = |line: &str| parse(line).unwrap().plan();
        let usual = plan("--peers nginx,haproxy");
        assert_eq!((usual.rounds, usual.idle, usual.sizes.len()), (3, 4_000, 3));
        assert_eq!(plan("ws://h:1").rounds, 1);
        let quick =
            plan("--peers nginx --quick --idle 7 --only echo,mostly-idle --sizes 1KiB -d 2s");
        assert_eq!((quick.rounds, quick.idle, &quick.sizes[..]), (1, 7, &[1024][..]));
        assert_eq!(quick.tables, [Table::Echo, Table::MostlyIdle]);
        assert_eq!((quick.duration.as_secs(), quick.mostly_idle.as_secs()), (2, 3));
    }

    #[test]
    fn arguments_select_the_proxies() {
        let args = parse("ws://127.0.0.1:8080/x --direct ws://127.0.0.1:9001 --pid 5").unwrap();
        let Ok(Targets::Running(subject)) = args.subjects() else { panic!("one that runs") };
        assert_eq!((subject.proxy.port(), subject.pid), (8080, Some(5)));
        assert_eq!(subject.direct.map(|direct| direct.port()), Some(9001));
        let args = parse("--peers direct,nginx").unwrap();
        let Ok(Targets::Peers { peers, .. }) = args.subjects() else { panic!("peers") };
        assert_eq!(peers, [Peer::Direct, Peer::Nginx]);
    }

    #[test]
    fn mistakes_teach() {
        let wrong = |line: &str| match parse(line) {
            Err(error) => error,
            Ok(args) => match (args.subjects(), args.plan().check()) {
                (Err(error), _) | (_, Err(error)) => error.to_string(),
                _ => String::new(),
            },
        };
        for (line, words) in [
            ("", "URL"),
            ("ws://h --peers nginx", "cannot be used with"),
            ("--peers squid", "haproxy-64k"),
            ("--peers nginx,nginx", "twice"),
            ("--peers nginx --pid 5", "cannot be used with"),
            ("127.0.0.1:80", "did you mean ws://127.0.0.1:80?"),
            ("ws://h --direct http://h", "did you mean ws://h?"),
            ("ws://h --only memory", "mostly-idle"),
            ("ws://h --idle 0", "--idle"),
            ("ws://h --sizes 4K", "4KiB"),
        ] {
            assert!(wrong(line).contains(words), "{line}: {}", wrong(line));
        }
    }
}
