//! Measurements with names for programs; the tables are made in `document`.

use serde::Serialize;

use throng_load::record::Summary;
use throng_load::report::SCHEMA;

use super::flags::{Proxies, ProxyTable, ProxyTest};
use crate::peers::{Peer, Skipped};
use crate::spread::Spread;

/// Everything about one measurement.
#[derive(Clone, Debug, Serialize)]
pub struct ProxyReport {
    /// The report's version, as in every report of `throng bench`.
    pub schema: &'static str,
    /// Settings of the comparison.
    pub plan: PlanReport,
    /// Proxies that were measured.
    pub peers: Vec<PeerReport>,
    /// Proxies that were not measured.
    pub skipped: Vec<Skipped>,
    /// A row for each test and proxy.
    pub rows: Vec<ProxyRow>,
    /// Share (0 to 1) of the machine's CPU time that all processes used during the run.
    pub machine_busy_share: Option<f64>,
}

/// The plan, as far as it matters for repeating it.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// `proxy`.
    pub mode: &'static str,
    /// Tables that were measured.
    pub tables: Vec<ProxyTable>,
    /// Connections of the tables echo and latency.
    pub connections: usize,
    /// Tunnels of the tables idle and mostly-idle.
    pub idle: usize,
    /// Messages a second on each connection of the table latency.
    pub rate_per_s: f64,
    /// Connections of the table burst.
    pub burst_connections: usize,
    /// Messages on each of them.
    pub burst_messages: u64,
    /// Time measured of most tables.
    pub duration_s: f64,
    /// Time measured of the table mostly-idle.
    pub mostly_idle_s: f64,
    /// Rounds.
    pub rounds: usize,
    /// Seed of all random values.
    pub seed: u64,
    /// The proxy's core, and that of backend and generator; `null` where nothing was pinned.
    pub cores: Option<(usize, usize)>,
}

/// A proxy that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct PeerReport {
    /// Its name.
    pub peer: Peer,
    /// As its program says itself.
    pub version: Option<String>,
}

/// One test of one proxy.
#[derive(Clone, Debug, Serialize)]
pub struct ProxyRow {
    /// The test.
    #[serde(flatten)]
    pub test: ProxyTest,
    /// The proxy.
    pub peer: Peer,
    /// The figure that the test is for, over all rounds.
    pub headline: Option<Spread>,
    /// Its rounds.
    pub rounds: Vec<Round>,
}

/// One cell.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// From 1.
    pub round: usize,
    /// Measurements.
    pub figures: Option<Figures>,
    /// Why nothing was.
    pub failed: Option<String>,
    /// Share (0 to 1) of the machine's CPU time that all processes used during the run.
    pub machine_busy_share: Option<f64>,
}

/// Measurements of one cell; the manual lists the fields of each test.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Messages or connections by the proxy's CPU-second.
    pub per_cpu_s: Option<f64>,
    /// Completed operations a second.
    pub per_s: Option<f64>,
    /// The proxy's CPU time.
    pub cpu_s: Option<f64>,
    /// CPU time by wall time: 1 is one core kept busy.
    pub cores: Option<f64>,
    /// Share of the wall time that the proxy's busiest thread wanted a CPU and had none, because
    /// something else ran there.
    pub waiting_share: Option<f64>,
    /// From the first connect call to the last answer of a burst.
    pub seconds: Option<f64>,
    /// From the first connect call to the last upgrade of a burst.
    pub connected_s: Option<f64>,
    /// Latency of every answer; in an open loop from the planned time.
    pub latency: Option<Summary>,
    /// Messages of an open loop that were not answered.
    pub unanswered: Option<u64>,
    /// Lateness of an open loop's messages, 99th percentile.
    pub late_p99_us: Option<f64>,
    /// Payload that was sent by the second.
    pub payload_bytes_per_s: Option<f64>,
    /// Growth of the proxy's private memory per tunnel.
    pub bytes_per_tunnel: Option<f64>,
    /// Growth of its resident memory per tunnel.
    pub rss_bytes_per_tunnel: Option<f64>,
    /// All of its memory (PSS), with all tunnels open.
    pub process_bytes: Option<u64>,
    /// Maximum resident memory during a burst.
    pub peak_resident_bytes: Option<u64>,
    /// CPU and memory over time, of the test mostly-idle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Sample>,
}

/// The proxy at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Seconds since the test began.
    pub at_s: f64,
    /// Tunnels open.
    pub tunnels: u64,
    /// Resident memory of its processes.
    pub resident_bytes: u64,
    /// CPU since the sample before.
    pub cores: Option<f64>,
}

impl ProxyTest {
    /// The figure that a test is for.
    pub(super) fn headline(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Echo { .. } | Self::Connect => figures.per_cpu_s,
            Self::Idle | Self::MostlyIdle => figures.bytes_per_tunnel,
            Self::Latency => Some(figures.latency?.p99_us),
            Self::Burst { .. } => figures.seconds,
        }
    }

    /// Its name in CSV, unit last.
    pub(super) fn headline_name(self) -> &'static str {
        match self {
            Self::Echo { .. } => "messages_per_cpu_s",
            Self::Connect => "connections_per_cpu_s",
            Self::Idle | Self::MostlyIdle => "bytes_per_tunnel",
            Self::Latency => "p99_us",
            Self::Burst { .. } => "seconds",
        }
    }
}

impl ProxyRow {
    /// One figure over all rounds.
    pub(super) fn spread(&self, figure: impl Fn(&Figures) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|round| figure(round.figures.as_ref()?)))
    }

    /// Why there are no figures, if there are none at all.
    pub(crate) fn failure(&self) -> Option<&str> {
        let any = self.rounds.iter().any(|round| round.figures.is_some());
        let first = || self.rounds.iter().find_map(|round| round.failed.as_deref());
        if any { None } else { first() }
    }
}

impl ProxyReport {
    /// Creates a report without rounds, which are added later.
    pub(super) fn new(flags: &Proxies, machine_busy_share: Option<f64>) -> Self {
        let subjects = &flags.subjects;
        let plan = PlanReport {
            mode: "proxy",
            tables: flags.tables(),
            connections: flags.connections,
            idle: flags.tunnels(),
            rate_per_s: flags.rate,
            burst_connections: flags.burst_connections,
            burst_messages: flags.burst_messages,
            duration_s: flags.duration().as_secs_f64(),
            mostly_idle_s: flags.mostly_idle_time().as_secs_f64(),
            rounds: flags.rounds(),
            seed: flags.seed,
            cores: subjects.cores(),
        };
        let versions = subjects.versions();
        let row = |test, peer| ProxyRow { test, peer, headline: None, rounds: Vec::new() };
        let rows = flags
            .tests()
            .into_iter()
            .flat_map(|test| versions.iter().map(move |&(peer, _)| row(test, peer)));
        let rows = rows.collect();
        let peers = versions.into_iter().map(|(peer, version)| PeerReport { peer, version });
        let (peers, skipped) = (peers.collect(), subjects.skipped());
        Self { schema: SCHEMA, plan, peers, skipped, rows, machine_busy_share }
    }

    /// Adds a round to the row of a test and a proxy.
    pub(super) fn add(&mut self, test: ProxyTest, peer: Peer, round: Round) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.test == test && row.peer == peer) {
            row.rounds.push(round);
            row.headline = row.spread(|figures| test.headline(figures));
        }
    }

    /// The row of a test and a proxy.
    pub(super) fn row(&self, test: ProxyTest, peer: Peer) -> Option<&ProxyRow> {
        self.rows.iter().find(|row| row.test == test && row.peer == peer)
    }

    /// Everything that was measured, in order.
    pub(super) fn tests(&self) -> Vec<ProxyTest> {
        let mut tests: Vec<ProxyTest> = self.rows.iter().map(|row| row.test).collect();
        tests.dedup();
        tests
    }

    /// Returns the ratios of a figure of one proxy to another's, each from the same round of both.
    pub(super) fn against(
        &self,
        test: ProxyTest,
        peer: Peer,
        other: Peer,
        figure: impl Fn(&Figures) -> Option<f64>,
        combine: impl Fn(f64, f64) -> f64,
    ) -> Option<Spread> {
        let (row, others) = (self.row(test, peer)?, self.row(test, other)?);
        Spread::of(row.rounds.iter().filter_map(|round| {
            let same = others.rounds.iter().find(|other| other.round == round.round)?;
            let (mine, theirs) =
                (figure(round.figures.as_ref()?)?, figure(same.figures.as_ref()?)?);
            Some(combine(mine, theirs))
        }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::subjects::Subjects;
    use super::*;
    use crate::comparison::from_flags;
    use crate::peers::Program;
    use std::path::PathBuf;
    use throng_load::report::Render as _;

    fn program() -> Program {
        Program { path: PathBuf::new(), version: Some("1.0".to_owned()) }
    }

    fn latency(p50_us: f64) -> Summary {
        Summary {
            count: 1000,
            min_us: p50_us / 2.0,
            mean_us: p50_us,
            p50_us,
            p90_us: p50_us * 2.0,
            p99_us: p50_us * 3.0,
            p999_us: p50_us * 4.0,
            max_us: p50_us * 5.0,
        }
    }

    /// A report as a run makes it, of figures that are easy to reckon with: nginx does half of
    /// direct, HAProxy a quarter.
    pub(in crate::proxies) fn example() -> ProxyReport {
        let peers = [Peer::Direct, Peer::Nginx, Peer::Haproxy];
        let mut flags: Proxies =
            from_flags(&["--peers", "direct,nginx,haproxy", "--rounds", "2"]).unwrap();
        let found = peers.map(|peer| (peer, Some(program())));
        let skipped = vec![Skipped { peer: Peer::Throng, why: "not here".to_owned() }];
        flags.subjects =
            Subjects::Peers { tunnels: 1, peers: found.to_vec(), skipped, pinned: None };
        let mut report = ProxyReport::new(&flags, Some(0.6));
        report.plan.cores = Some((0, 1));
        for round in 1..=2 {
            for test in flags.tests() {
                for (times, peer) in [1.0, 2.0, 4.0].into_iter().zip(peers) {
                    let noise = if round == 1 { 1.0 } else { 1.1 };
                    let proxy = (peer != Peer::Direct).then_some(times);
                    let figures = Figures {
                        per_cpu_s: Some(200_000.0 / times * noise),
                        per_s: Some(100_000.0 / times * noise),
                        cpu_s: Some(0.1 * times),
                        cores: Some(0.5),
                        waiting_share: Some(0.01),
                        seconds: Some(0.5 * times * noise),
                        connected_s: Some(0.1),
                        latency: Some(latency(100.0 * times * noise)),
                        unanswered: Some(0),
                        late_p99_us: Some(50.0),
                        payload_bytes_per_s: Some(1e6),
                        bytes_per_tunnel: proxy.map(|times| 1024.0 * times),
                        rss_bytes_per_tunnel: proxy.map(|times| 1024.0 * times),
                        process_bytes: Some(10 << 20),
                        peak_resident_bytes: None,
                        samples: Vec::new(),
                    };
                    let (figures, failed) = (Some(figures), None);
                    let busy = Some(0.7);
                    let round = Round { round, figures, failed, machine_busy_share: busy };
                    report.add(test, peer, round);
                }
            }
        }
        report
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let report = example();
        let test = ProxyTest::Echo { size_bytes: 100 };
        let ratio = |mine: f64, theirs: f64| mine / theirs;
        let per_cpu_s = |figures: &Figures| figures.per_cpu_s;
        let spread = report.against(test, Peer::Haproxy, Peer::Nginx, per_cpu_s, ratio).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (0.5, 0.5, 0.5), "not the noise");
        assert_eq!(report.against(test, Peer::Nginx, Peer::Throng, per_cpu_s, ratio), None);
        let mut without = report;
        let row = without.rows.iter_mut().find(|row| row.peer == Peer::Nginx).unwrap();
        row.rounds.remove(0);
        let spread = without.against(test, Peer::Haproxy, Peer::Nginx, per_cpu_s, ratio).unwrap();
        assert_eq!((spread.count, spread.median), (1, 0.5));
    }

    #[test]
    fn json_has_the_figure_of_each_test() {
        let report: serde_json::Value = serde_json::from_str(&example().to_json()).unwrap();
        let rows = report["rows"].as_array().unwrap();
        let row =
            |test: &str| rows.iter().find(|row| row["test"] == test && row["peer"] == "nginx");
        assert_eq!(row("echo").unwrap()["size_bytes"], 100);
        assert_eq!(row("echo").unwrap()["headline"]["median"], 105_000.0);
        assert_eq!(row("idle").unwrap()["headline"]["median"], 2048.0);
        assert_eq!(row("burst").unwrap()["headline"]["min"], 1.0);
        assert_eq!(row("connect").unwrap()["rounds"][1]["round"], 2);
        assert_eq!(report["skipped"][0]["peer"], "throng");
        assert_eq!(report["plan"]["cores"][1], 1);
    }

    #[test]
    fn all_forms_are_those_of_before() {
        crate::golden::assert_unchanged("proxies", &example());
    }

    #[test]
    fn csv_has_a_cell_for_each_name() {
        let csv = example().to_csv();
        let mut lines = csv.lines();
        let names = lines.next().unwrap().split(',').count();
        assert!(lines.clone().all(|line| line.split(',').count() == names));
        assert_eq!(lines.count(), 2 * 3 * 13);
        assert!(csv.contains("\n4 KiB echo,haproxy,1,messages_per_cpu_s,50000,"), "{csv}");
    }

    #[test]
    fn a_cell_that_failed_is_announced_by_the_exit_code() {
        let mut report = example();
        assert_eq!(report.exit_code(), 0);
        report.rows[1].rounds[0].failed = Some("it ended".to_owned());
        assert_eq!(report.exit_code(), 1);
        assert_eq!(report.rows[1].failure(), None, "the other round has figures");
        report.rows[1].rounds.iter_mut().for_each(|round| round.figures = None);
        assert_eq!(report.rows[1].failure(), Some("it ended"));
    }
}
