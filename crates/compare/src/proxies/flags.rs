//! The flags of a comparison of proxies.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum as _;
use serde::Serialize;
use throng_config::units::{parse_duration, parse_size};
use throng_load::units::{grouped, show_bytes};
use throng_load::{Error, descriptors};

use super::subjects::{SPARE, Subjects};
use crate::peers::Peer;
use crate::word::words;

/// The examples and the meaning of the tables, for help.
pub const EXAMPLES: &str = "Examples:
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

words! {
    /// A group of measurements that is chosen together.
    enum ProxyTable {
        /// Echoes of several sizes by the proxy's CPU-second
        Echo = "echo",
        /// Connections by the proxy's CPU-second
        Connect = "connect",
        /// Memory of an idle tunnel
        Idle = "idle",
        /// Latency at a rate that all can keep
        Latency = "latency",
        /// Many connections that are mostly idle
        MostlyIdle = "mostly-idle",
        /// Many messages at once, without delay
        Burst = "burst",
    }
}

/// One measurement; a row of the report for each proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "test", rename_all = "kebab-case")]
pub enum ProxyTest {
    /// One message under way on each connection, and each answer triggers the next.
    Echo {
        /// Payload of a message.
        size_bytes: usize,
    },
    /// Connect, upgrade, one echo, reset.
    Connect,
    /// Tunnels that do nothing.
    Idle,
    /// An open loop at a fixed rate on each connection.
    Latency,
    /// Tunnels with messages of 10 to 4096 bytes every 0.1 to 10 s on each, an open loop.
    MostlyIdle,
    /// So many messages on each connection without delay.
    Burst {
        /// Payload of a message.
        size_bytes: usize,
    },
}

impl fmt::Display for ProxyTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: usize| show_bytes(bytes as i64);
        match *self {
            Self::Echo { size_bytes } => write!(f, "{} echo", size(size_bytes)),
            Self::Connect => f.write_str("connects"),
            Self::Idle => f.write_str("idle tunnels"),
            Self::Latency => f.write_str("latency"),
            Self::MostlyIdle => f.write_str("mostly idle"),
            Self::Burst { size_bytes } => write!(f, "burst of {}", size(size_bytes)),
        }
    }
}

/// A comparison of proxies, or the measurement of one that runs.
#[derive(Debug, clap::Args)]
pub struct Proxies {
    /// A proxy that runs, as ws://host:port/path; the path must echo [default path: /echo]
    #[arg(value_name = "URL", required_unless_present = "peers", conflicts_with = "peers")]
    pub url: Option<String>,
    /// Start and compare these
    #[arg(long, value_name = "PEER", value_delimiter = ',')]
    pub peers: Vec<Peer>,
    /// The proxy's first process; those it started count as well [default: the process that listens
    /// on the port]
    #[arg(long, value_name = "PID", conflicts_with = "peers")]
    pub pid: Option<u32>,
    /// Its backend without it, for the added latency
    #[arg(long, value_name = "URL", conflicts_with = "peers")]
    pub direct: Option<String>,
    /// The `throng` binary that is measured [default: the one beside this program]
    #[arg(long, value_name = "PROGRAM", requires = "peers")]
    pub throng: Option<PathBuf>,
    /// Only these tables
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub only: Vec<ProxyTable>,
    /// Tunnels of the tables idle and mostly-idle; each takes two descriptors of the proxy
    /// [default: 4000, with --quick 500]
    #[arg(long, value_name = "N")]
    pub idle: Option<usize>,
    /// Connections of the tables echo and latency
    #[arg(long, short, value_name = "N", default_value_t = 100)]
    pub connections: usize,
    /// Payloads of the table echo
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "100,4KiB,64KiB",
          value_parser = parse_size)]
    pub sizes: Vec<usize>,
    /// Messages a second on each connection of the table latency
    #[arg(long, value_name = "PER_SECOND", default_value_t = 50.0)]
    pub rate: f64,
    /// Connections of the table burst
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub burst_connections: usize,
    /// Messages on each of them
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub burst_messages: u64,
    /// Payloads of the table burst
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "1,16,64,256,1KiB,4KiB",
          value_parser = parse_size)]
    pub burst_sizes: Vec<usize>,
    /// Number of times everything is measured; medians are shown [default: 3 of peers, 1 of a proxy
    /// that runs or with --quick]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Time measured of each cell [default: 1.5s, with --quick 300ms]
    #[arg(long, short, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Time run before and not counted
    #[arg(long, short, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Time measured of the table mostly-idle [default: 20s, with --quick 3s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub mostly_idle: Option<Duration>,
    /// Seed of gaps, sizes and contents; equal seeds make equal traffic
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Few tunnels and short times, for a first look
    #[arg(long)]
    pub quick: bool,
    /// Give up a cell when its set-up makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub setup_timeout: Duration,
    #[arg(skip)]
    pub(super) subjects: Subjects,
}

impl Proxies {
    pub(super) fn tunnels(&self) -> usize {
        self.idle.unwrap_or(if self.quick { 500 } else { 4_000 })
    }

    pub(super) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.peers.is_empty() || self.quick { 1 } else { 3 })
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_millis(if self.quick { 300 } else { 1500 }))
    }

    /// Returns twice the longest gap, unless a quick look is requested.
    pub(super) fn mostly_idle_time(&self) -> Duration {
        self.mostly_idle.unwrap_or(Duration::from_secs(if self.quick { 3 } else { 20 }))
    }

    /// Returns the tables in the order of measurement.
    pub(super) fn tables(&self) -> Vec<ProxyTable> {
        let all = ProxyTable::value_variants().iter().copied();
        all.filter(|table| self.only.is_empty() || self.only.contains(table)).collect()
    }

    /// Refuses invalid flags.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag and the bound.
    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        let counts = [
            ("--connections", self.connections),
            ("--idle", self.tunnels()),
            ("--burst-connections", self.burst_connections),
            ("--burst-messages", self.burst_messages as usize),
            ("--rounds", self.rounds()),
        ];
        for (flag, count) in counts {
            if !(1..=1_000_000).contains(&count) {
                return refuse(format!("{flag} must be between 1 and 1000000, not {count}"));
            }
        }
        for (flag, sizes) in [("--sizes", &self.sizes), ("--burst-sizes", &self.burst_sizes)] {
            if let Some(size) = sizes.iter().find(|size| !(1..=16 << 20).contains(*size)) {
                return refuse(format!("{flag} must be between 1 and 16MiB, not {size}"));
            }
        }
        if !(0.001..=1e5).contains(&self.rate) {
            return refuse(format!(
                "--rate is messages a second per connection, between 0.001 and 100000, not {}",
                self.rate
            ));
        }
        let hour = Duration::from_secs(3600);
        for (flag, time) in
            [("--duration", self.duration()), ("--mostly-idle", self.mostly_idle_time())]
        {
            if time < Duration::from_millis(10) || time > hour {
                return refuse(format!("{flag} must be between 10ms and an hour"));
            }
        }
        if self.warmup > hour || self.setup_timeout.is_zero() {
            return refuse(
                "--warmup must be at most an hour, and --setup-timeout above 0s".to_owned(),
            );
        }
        Ok(())
    }

    /// Checks that the descriptor limit, which started proxies inherit from this process, is high
    /// enough.
    ///
    /// # Errors
    /// As for [`Proxies::check`].
    pub(super) fn check_room(&self) -> Result<(), Error> {
        let Some(hard) = descriptors::hard_limit() else { return Ok(()) };
        let possible = (hard as usize).saturating_sub(SPARE + descriptors::RESERVE) / 2;
        for (flag, tunnels) in
            [("--idle", self.idle_tunnels()), ("--burst-connections", self.burst_connections)]
        {
            if tunnels > possible {
                return Err(Error::Usage(format!(
                    "{flag} {tunnels} is too many: a tunnel takes two descriptors of the proxy, \
                     and the hard limit of {} leaves room for {} tunnels. Raise it (ulimit -Hn) or \
                     ask for fewer",
                    grouped(hard),
                    grouped(possible as u64),
                )));
            }
        }
        Ok(())
    }

    /// Returns the tunnels of the tables "idle" and "mostly-idle"; 0 if neither is requested.
    fn idle_tunnels(&self) -> usize {
        let many = |table: &ProxyTable| matches!(table, ProxyTable::Idle | ProxyTable::MostlyIdle);
        if self.tables().iter().any(many) { self.tunnels() } else { 0 }
    }

    /// Returns the tunnels that a proxy must hold at the same time.
    pub(super) fn most_tunnels(&self) -> usize {
        self.idle_tunnels().max(self.burst_connections).max(self.connections)
    }

    /// Returns all tests in order.
    pub(super) fn tests(&self) -> Vec<ProxyTest> {
        let each = |sizes: &[usize], test: fn(usize) -> ProxyTest| {
            sizes.iter().copied().map(test).collect()
        };
        let tests = self.tables().into_iter().flat_map(|table| match table {
            ProxyTable::Echo => each(&self.sizes, |size_bytes| ProxyTest::Echo { size_bytes }),
            ProxyTable::Connect => vec![ProxyTest::Connect],
            ProxyTable::Idle => vec![ProxyTest::Idle],
            ProxyTable::Latency => vec![ProxyTest::Latency],
            ProxyTable::MostlyIdle => vec![ProxyTest::MostlyIdle],
            ProxyTable::Burst => {
                each(&self.burst_sizes, |size_bytes| ProxyTest::Burst { size_bytes })
            }
        });
        tests.collect()
    }

    /// Returns the time over which the tunnels of the table "mostly-idle" connect, so that the
    /// growth of memory is visible.
    pub(super) fn ramp(&self) -> Duration {
        self.mostly_idle_time().div_f64(10.0).min(Duration::from_secs(2))
    }

    /// Returns how long the tunnels of the table "idle" stay open, so that a proxy can return the
    /// memory of their handshakes.
    pub(super) fn idle_hold(&self) -> Duration {
        4 * self.duration()
    }

    /// Returns roughly how long a test takes, including its start.
    pub(super) fn estimate_of(&self, test: ProxyTest) -> Duration {
        let start = Duration::from_millis(300);
        let connecting = |tunnels: usize| Duration::from_micros(150 * tunnels as u64);
        start
            + match test {
                ProxyTest::Echo { .. } | ProxyTest::Connect => self.warmup + self.duration(),
                ProxyTest::Idle => {
                    Duration::from_secs(1) + connecting(self.tunnels()) + self.idle_hold()
                }
                ProxyTest::Latency => self.warmup + 2 * self.duration(),
                ProxyTest::MostlyIdle => {
                    self.ramp() + connecting(self.tunnels()) + self.warmup + self.mostly_idle_time()
                }
                ProxyTest::Burst { .. } => {
                    let messages = self.burst_connections as u64 * self.burst_messages;
                    Duration::from_micros(40 * messages)
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::from_flags;

    fn flags(line: &str) -> Proxies {
        from_flags(&line.split(' ').collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_articles_tests_are_the_default() {
        let usual = flags("--peers nginx,haproxy");
        assert!(usual.check().is_ok());
        let names: Vec<String> = usual.tests().iter().map(ProxyTest::to_string).collect();
        assert_eq!(
            names,
            [
                "100 B echo",
                "4 KiB echo",
                "64 KiB echo",
                "connects",
                "idle tunnels",
                "latency",
                "mostly idle",
                "burst of 1 B",
                "burst of 16 B",
                "burst of 64 B",
                "burst of 256 B",
                "burst of 1 KiB",
                "burst of 4 KiB",
            ]
        );
        assert_eq!((usual.most_tunnels(), usual.burst_messages, usual.rounds()), (4_000, 50, 3));
        let few = flags("ws://h:1 --only connect");
        assert_eq!((few.tests().len(), few.most_tunnels(), few.rounds()), (1, 500, 1));
        let line = "--peers nginx --quick --idle 7 --only mostly-idle,echo --sizes 1KiB -d 2s";
        let quick = flags(line);
        assert_eq!((quick.rounds(), quick.tunnels(), &quick.sizes[..]), (1, 7, &[1024][..]));
        assert_eq!(quick.tables(), [ProxyTable::Echo, ProxyTable::MostlyIdle]);
        assert_eq!((quick.duration().as_secs(), quick.mostly_idle_time().as_secs()), (2, 3));
    }

    #[test]
    #[cfg(unix)]
    fn a_tunnel_takes_two_descriptors() {
        let Some(hard) = descriptors::hard_limit() else { return };
        let idle = (hard as usize).saturating_sub(SPARE) / 2 + 1;
        let many = flags(&format!("--peers nginx --idle {idle}"));
        assert!(many.check_room().unwrap_err().to_string().contains("two descriptors"));
        let without = flags(&format!("--peers nginx --only echo --idle {idle}"));
        assert!(without.check_room().is_ok(), "the table without tunnels needs none");
    }
}
