//! The costs of any WebSocket proxy, and the latency that it adds.
//!
//! * Two tests that were published for nginx: many mostly idle connections with messages of 10 to
//!   4096 bytes every 0.1 to 10 seconds ([`ProxyTest::MostlyIdle`]), and 500 connections x 50
//!   messages without delay ([`ProxyTest::Burst`]).
//! * The work of one worker by its CPU-second ([`ProxyTest::Echo`], [`ProxyTest::Connect`]), the
//!   memory of an idle tunnel ([`ProxyTest::Idle`]), and the added latency at a rate that all can
//!   keep ([`ProxyTest::Latency`]).
//!
//! The comparison measures one running proxy, or peers that it starts. In the latter case each cell
//! has a new proxy on its own core; the backend and this generator share another core, and peers
//! take turns within each round.
//!
//! Start reading at `cells` (one measurement).

mod burst;
mod cells;
mod document;
mod flags;
mod mostly_idle;
mod report;
mod subjects;
mod traffic;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use throng_load::sampler::MachineSample;
use throng_load::{Error, Target, descriptors};

pub use flags::{EXAMPLES, Proxies, ProxyTable, ProxyTest};
pub(crate) use report::Figures;
pub use report::{ProxyReport, ProxyRow, Round};

pub use crate::peers::Peer;

use self::subjects::{ProxyUnderTest, SPARE, Subjects};
use crate::bench::Bench;
use crate::comparison::{Comparison, Measured};
use crate::peers::{self, Skipped};
use crate::pin::Pinned;
use crate::run::turned;

/// One test of one proxy in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyCell {
    round: usize,
    test: ProxyTest,
    peer: Peer,
}

impl fmt::Display for ProxyCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {}, {}, {}", self.round, self.peer, self.test)
    }
}

impl Proxies {
    /// Finds the programs that the flags name, and raises the descriptor limit for them.
    ///
    /// # Errors
    /// A flag is invalid, or there is no proxy to measure.
    fn find(&self) -> Result<Subjects, Error> {
        if let Some(url) = &self.url {
            let direct = self.direct.as_deref().map(Target::parse).transpose()?;
            let (proxy, pid) = (Target::parse(url)?, self.pid);
            return Ok(Subjects::Running(ProxyUnderTest { proxy, pid, direct }));
        }
        for (at, peer) in self.peers.iter().enumerate() {
            if self.peers[..at].contains(peer) {
                return Err(Error::Usage(format!("--peers names {peer} twice")));
            }
        }
        self.check_room()?;
        // Started processes inherit the limit.
        descriptors::make_room(2 * self.most_tunnels() + SPARE)?;
        let throng = self.throng.clone().unwrap_or_else(beside);
        let (mut found, mut skipped) = (Vec::new(), Vec::new());
        for &peer in &self.peers {
            match peers::find(peer, &throng) {
                Ok(program) => found.push((peer, program)),
                Err(why) => skipped.push(Skipped { peer, why }),
            }
        }
        if found.iter().all(|(peer, _)| *peer == Peer::Direct) && !skipped.is_empty() {
            let why: Vec<String> = skipped
                .iter()
                .map(|skipped| format!("{}: {}", skipped.peer, skipped.why))
                .collect();
            return Err(Error::Child(format!("no proxy to measure. {}", why.join("; "))));
        }
        let (tunnels, pinned) = (self.most_tunnels(), Pinned::here().map(Box::new));
        Ok(Subjects::Peers { tunnels, peers: found, skipped, pinned })
    }
}

/// Returns the path of `throng` in the directory of this program. If the file is missing, the
/// comparison skips that peer with a message.
fn beside() -> PathBuf {
    std::env::current_exe().map_or_else(|_| "throng".into(), |own| own.with_file_name("throng"))
}

impl Comparison for Proxies {
    type Cell = ProxyCell;
    type Row = (ProxyCell, Round);
    type Findings = ProxyReport;

    const NAME: &'static str = "proxies";

    fn prepare(&mut self) -> Result<(), Error> {
        self.check()?;
        self.subjects = self.find()?;
        Ok(())
    }

    fn cells(&self) -> Vec<ProxyCell> {
        let peers = self.subjects.peers();
        let mut cells = Vec::new();
        for round in 1..=self.rounds() {
            for test in self.tests() {
                cells.extend(turned(&peers, round - 1).map(|peer| ProxyCell { round, test, peer }));
            }
        }
        cells
    }

    fn estimate(&self, cell: &ProxyCell) -> Duration {
        self.estimate_of(cell.test)
    }

    fn measure(
        &self,
        cell: &ProxyCell,
        bench: &mut Bench<'_>,
    ) -> Result<(ProxyCell, Round), Error> {
        let before = MachineSample::now();
        let started = self.subjects.start(cell.peer, bench.launch)?;
        let figures = self.figures(cell.test, &started.running, bench);
        let figures = figures.map_err(|error| started.explain(error))?;
        // An interrupted test has no figures.
        if bench.is_stopped() {
            return Err(Error::Interrupted);
        }
        let machine_busy_share =
            MachineSample::now().zip(before).map(|(end, begin)| end.busy_since(&begin));
        let (figures, failed) = (Some(figures), None);
        Ok((*cell, Round { round: cell.round, figures, failed, machine_busy_share }))
    }

    fn failed(&self, cell: &ProxyCell, error: &Error) -> Option<(ProxyCell, Round)> {
        let (figures, failed) = (None, Some(error.to_string()));
        Some((*cell, Round { round: cell.round, figures, failed, machine_busy_share: None }))
    }

    fn report(self, measured: Measured<(ProxyCell, Round)>) -> ProxyReport {
        let busy = measured.machine_busy_share;
        let mut report = ProxyReport::new(&self, busy);
        for (ProxyCell { test, peer, .. }, round) in measured.rows {
            report.add(test, peer, round);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::{assert_refused, checked};

    #[test]
    fn peers_follow_one_another_and_take_turns_at_being_first() {
        let line = "ws://127.0.0.1:8080/x --direct ws://127.0.0.1:9001 --rounds 3 --only connect";
        let proxies: Proxies = checked(line).unwrap();
        let peers: Vec<Peer> = proxies.cells().iter().map(|cell| cell.peer).collect();
        let (direct, proxy) = (Peer::Direct, Peer::Running);
        assert_eq!(peers, [direct, proxy, proxy, direct, direct, proxy]);
        assert_eq!(proxies.cells()[2].to_string(), "round 2, proxy, connects");
    }

    #[test]
    fn mistakes_teach() {
        assert_refused::<Proxies>(&[
            ("", "URL"),
            ("ws://h --peers nginx", "cannot be used with"),
            ("--peers squid", "haproxy-64k"),
            ("--peers proxy", "haproxy-64k"),
            ("--peers nginx,nginx", "twice"),
            ("--peers nginx --pid 5", "cannot be used with"),
            ("127.0.0.1:80", "did you mean ws://127.0.0.1:80?"),
            ("ws://h --direct http://h", "did you mean ws://h?"),
            ("ws://h --only memory", "mostly-idle"),
            ("ws://h --sizes 4K", "4KiB"),
            ("ws://h --connections 0", "--connections"),
            ("ws://h --idle 0", "--idle"),
            ("ws://h --rounds 0", "--rounds"),
            ("ws://h --burst-messages 0", "--burst-messages"),
            ("ws://h --sizes 0", "--sizes"),
            ("ws://h --burst-sizes 17MiB", "--burst-sizes"),
            ("ws://h --rate 0", "--rate"),
            ("ws://h --duration 0s", "--duration"),
            ("ws://h --mostly-idle 0s", "--mostly-idle"),
            ("ws://h --setup-timeout 0s", "--setup-timeout"),
        ]);
    }
}
