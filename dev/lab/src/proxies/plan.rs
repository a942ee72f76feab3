//! Plan of a comparison of proxies.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use throng_load::units::{grouped, show_bytes};
use throng_load::{Error, descriptors};

/// Between two messages of a mostly idle connection.
pub(super) const SHORTEST_GAP: Duration = Duration::from_millis(100);
pub(super) const LONGEST_GAP: Duration = Duration::from_secs(10);
/// Descriptors of a proxy that are no tunnel: listeners, logs, its poll, probes.
pub(super) const SPARE: usize = 300;

/// A group of measurements that is chosen together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Table {
    /// Echoes of several sizes by the proxy's CPU-second.
    Echo,
    /// Connections by the proxy's CPU-second.
    Connect,
    /// Memory of an idle tunnel.
    Idle,
    /// Latency at a rate that all can keep.
    Latency,
    /// Many connections that are mostly idle.
    MostlyIdle,
    /// Many messages at once, without delay.
    Burst,
}

impl Table {
    /// All, in the order in which they are measured.
    pub(crate) const ALL: [Self; 6] =
        [Self::Echo, Self::Connect, Self::Idle, Self::Latency, Self::MostlyIdle, Self::Burst];
}

/// One measurement; a row of the report for each proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "test", rename_all = "kebab-case")]
pub(crate) enum Test {
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

impl fmt::Display for Test {
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

/// A whole measurement of one proxy or several.
#[derive(Clone, Debug)]
pub(crate) struct ProxyPlan {
    /// Tables to measure. Default: all.
    pub tables: Vec<Table>,
    /// Connections of the tables echo and latency. Default 100.
    pub connections: usize,
    /// Payloads of the table echo, in bytes. Default 100, 4096 and 65536.
    pub sizes: Vec<usize>,
    /// Tunnels of the tables idle and mostly-idle. Default 4,000: each takes two descriptors of the
    /// proxy.
    pub idle: usize,
    /// Messages of 100 bytes a second on each connection of the table latency. Default 50.
    pub rate_per_s: f64,
    /// Connections of the table burst. Default 500.
    pub burst_connections: usize,
    /// Messages on each of them. Default 50.
    pub burst_messages: u64,
    /// Payloads of the table burst, in bytes. Default 1, 16, 64, 256, 1024 and 4096.
    pub burst_sizes: Vec<usize>,
    /// Time measured of the tables echo, connect, idle and (twice as long) latency. Default 1.5 s.
    pub duration: Duration,
    /// Time run before, not counted. Default 0.5 s.
    pub warmup: Duration,
    /// Time measured of the table mostly-idle. Default 20 s, twice the longest gap.
    pub mostly_idle: Duration,
    /// Number of times everything is measured. Default: 3.
    pub rounds: usize,
    /// Seed of gaps, sizes and contents. Default: 1.
    pub seed: u64,
    /// Longest time without progress while connections are set up, and until the last answer of a
    /// burst. Default 10 s.
    pub setup_timeout: Duration,
}

impl Default for ProxyPlan {
    fn default() -> Self {
        Self {
            tables: Table::ALL.to_vec(),
            connections: 100,
            sizes: vec![100, 4096, 65536],
            idle: 4_000,
            rate_per_s: 50.0,
            burst_connections: 500,
            burst_messages: 50,
            burst_sizes: vec![1, 16, 64, 256, 1024, 4096],
            duration: Duration::from_millis(1500),
            warmup: Duration::from_millis(500),
            mostly_idle: Duration::from_secs(20),
            rounds: 3,
            seed: 1,
            setup_timeout: Duration::from_secs(10),
        }
    }
}

impl ProxyPlan {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag and the bound.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        let counts = [
            ("--connections", self.connections),
            ("--idle", self.idle),
            ("--burst-connections", self.burst_connections),
            ("--burst-messages", self.burst_messages as usize),
            ("--rounds", self.rounds),
        ];
        for (flag, count) in counts {
            if !(1..=1_000_000).contains(&count) {
                return refuse(format!("{flag} must be between 1 and 1000000, not {count}"));
            }
        }
        if self.tables.is_empty() || self.sizes.is_empty() || self.burst_sizes.is_empty() {
            return refuse("--only, --sizes and --burst-sizes need at least one value".to_owned());
        }
        for (flag, sizes) in [("--sizes", &self.sizes), ("--burst-sizes", &self.burst_sizes)] {
            if let Some(size) = sizes.iter().find(|size| !(1..=16 << 20).contains(*size)) {
                return refuse(format!("{flag} must be between 1 and 16MiB, not {size}"));
            }
        }
        if !(0.001..=1e5).contains(&self.rate_per_s) {
            return refuse(format!(
                "--rate is messages a second per connection, between 0.001 and 100000, not {}",
                self.rate_per_s
            ));
        }
        let hour = Duration::from_secs(3600);
        for (flag, time) in [("--duration", self.duration), ("--mostly-idle", self.mostly_idle)] {
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

    /// Checks the descriptor limit for proxies that are started here: it is that of this process.
    ///
    /// # Errors
    /// As [`ProxyPlan::check`].
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

    /// Tunnels of the two tables that have many; none where neither was asked for.
    fn idle_tunnels(&self) -> usize {
        let many = |table: &Table| matches!(table, Table::Idle | Table::MostlyIdle);
        if self.tables.iter().any(many) { self.idle } else { 0 }
    }

    /// Tunnels that a proxy must be able to hold at a time.
    pub(super) fn most_tunnels(&self) -> usize {
        self.idle_tunnels().max(self.burst_connections).max(self.connections)
    }

    /// Everything measured, in order.
    pub(super) fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for table in Table::ALL.iter().filter(|table| self.tables.contains(table)) {
            match table {
                Table::Echo => {
                    tests.extend(self.sizes.iter().map(|&size_bytes| Test::Echo { size_bytes }));
                }
                Table::Connect => tests.push(Test::Connect),
                Table::Idle => tests.push(Test::Idle),
                Table::Latency => tests.push(Test::Latency),
                Table::MostlyIdle => tests.push(Test::MostlyIdle),
                Table::Burst => {
                    let sizes = self.burst_sizes.iter();
                    tests.extend(sizes.map(|&size_bytes| Test::Burst { size_bytes }));
                }
            }
        }
        tests
    }

    /// Within what time the tunnels of the table mostly-idle come, so that memory can be seen to
    /// grow.
    pub(super) fn ramp(&self) -> Duration {
        self.mostly_idle.div_f64(10.0).min(Duration::from_secs(2))
    }

    /// Returns the time for which the tunnels of the table idle stay open, so that a proxy can have
    /// returned the memory of their handshakes.
    pub(super) fn idle_hold(&self) -> Duration {
        4 * self.duration
    }

    /// About how long a test takes, its start included.
    pub(super) fn estimate(&self, test: Test) -> Duration {
        let start = Duration::from_millis(300);
        let connecting = |tunnels: usize| Duration::from_micros(150 * tunnels as u64);
        start
            + match test {
                Test::Echo { .. } | Test::Connect => self.warmup + self.duration,
                Test::Idle => Duration::from_secs(1) + connecting(self.idle) + self.idle_hold(),
                Test::Latency => self.warmup + 2 * self.duration,
                Test::MostlyIdle => {
                    self.ramp() + connecting(self.idle) + self.warmup + self.mostly_idle
                }
                Test::Burst { .. } => {
                    let messages = self.burst_connections as u64 * self.burst_messages;
                    Duration::from_micros(40 * messages)
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_articles_tests_are_the_default() {
        let plan = ProxyPlan::default();
        assert!(plan.check().is_ok());
        let names: Vec<String> = plan.tests().iter().map(Test::to_string).collect();
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
        assert_eq!((plan.most_tunnels(), plan.burst_messages), (4_000, 50));
        let few = ProxyPlan { tables: vec![Table::Connect], ..plan };
        assert_eq!((few.tests().len(), few.most_tunnels()), (1, 500));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let usual = ProxyPlan::default;
        for (plan, flag) in [
            (ProxyPlan { connections: 0, ..usual() }, "--connections"),
            (ProxyPlan { idle: 0, ..usual() }, "--idle"),
            (ProxyPlan { rounds: 0, ..usual() }, "--rounds"),
            (ProxyPlan { burst_messages: 0, ..usual() }, "--burst-messages"),
            (ProxyPlan { tables: Vec::new(), ..usual() }, "--only"),
            (ProxyPlan { sizes: vec![0], ..usual() }, "--sizes"),
            (ProxyPlan { burst_sizes: vec![17 << 20], ..usual() }, "--burst-sizes"),
            (ProxyPlan { rate_per_s: 0.0, ..usual() }, "--rate"),
            (ProxyPlan { duration: Duration::ZERO, ..usual() }, "--duration"),
            (ProxyPlan { mostly_idle: Duration::ZERO, ..usual() }, "--mostly-idle"),
            (ProxyPlan { setup_timeout: Duration::ZERO, ..usual() }, "--setup-timeout"),
        ] {
            let error = plan.check().unwrap_err();
            assert!(error.to_string().contains(flag) && error.exit_code() == 2, "{flag}: {error}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_tunnel_takes_two_descriptors() {
        let Some(hard) = descriptors::hard_limit() else { return };
        let idle = (hard as usize).saturating_sub(SPARE) / 2 + 1;
        let plan = ProxyPlan { idle, ..ProxyPlan::default() };
        assert!(plan.check_room().unwrap_err().to_string().contains("two descriptors"));
        let without = ProxyPlan { tables: vec![Table::Echo], ..plan };
        assert!(without.check_room().is_ok(), "the table without tunnels needs none");
    }
}
