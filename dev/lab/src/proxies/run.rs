//! The measurement from beginning to end: rounds, within a round the tests, within a test the
//! proxies in turn.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::cells::{Bench, Running, is_stopped};
use super::peers::{self, Peer, Program, Proxy, ProxySettings, Skipped};
use super::pin::Pinned;
use super::plan::{ProxyPlan, SPARE, Test};
use super::report::{PeerReport, ProxyReport, Round, Rows};
use crate::cells::CellProgress;
use crate::netbench::process::Process;
use crate::servers::Server;
use throng_load::sampler::{MachineSample, listening_pids, process_group};
use throng_load::{Error, Progress, Target, descriptors};

/// A proxy that runs already.
#[derive(Clone, Debug)]
pub(crate) struct ProxyUnderTest {
    /// Where it echoes; `/echo` when the URL stops at the port.
    pub proxy: Target,
    /// Its first process; its descendants count as well. `None`: the process that listens on the
    /// port of this machine.
    pub pid: Option<u32>,
    /// Its backend without it.
    pub direct: Option<Target>,
}

/// Proxies to be measured.
pub(crate) enum Targets<'a, S> {
    /// One that runs.
    Running(ProxyUnderTest),
    /// Some that are started here.
    Peers {
        /// Which, in the order of the tables.
        peers: Vec<Peer>,
        /// This program.
        throng: PathBuf,
        /// Starts an echo server, which echoes at `/echo`.
        backend: &'a dyn Fn() -> Result<S, Error>,
    },
}

/// Measures and reports. Blocks; `watch` is called before each cell and some ten times a second
/// within.
///
/// When `stop` becomes true it ends early, with a report of the cells that were complete. A cell
/// that fails says so in the report, whose exit code is then 1. Peers whose programs are not on
/// this machine are named in the report and left out.
///
/// # Errors
/// A plan that makes no sense, no peer that can be measured; and [`Error::Interrupted`] if it was
/// stopped before there was anything to report.
pub(crate) fn run<S: Server>(
    plan: &ProxyPlan,
    subjects: &Targets<'_, S>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&CellProgress),
) -> Result<ProxyReport, Error> {
    plan.check()?;
    let stage = Stage::prepare(plan, subjects)?;
    let (machine, begun) = (MachineSample::now(), Instant::now());
    let bench = Bench { plan, stop };
    let steps = steps(plan, &stage.peers());
    let mut rows = Rows::new(&stage.peers(), &plan.tests());
    for (done, step) in steps.iter().enumerate() {
        let mut progress = CellProgress {
            cell: format!("round {}, {}, {}", step.round, step.peer, step.test),
            done,
            cells: steps.len(),
            left: left(plan, &steps, done, begun.elapsed()),
            within: None,
        };
        watch(&progress);
        let mut within = |progress_within: &Progress| {
            progress.within = Some(*progress_within);
            watch(&progress);
        };
        let before = MachineSample::now();
        let measured = stage.start(step.peer).and_then(|started| {
            let measured = bench.measure(step.test, &started.running, &mut within);
            measured.map_err(|error| started.explain(error))
        });
        let busy = MachineSample::now().zip(before).map(|(end, begin)| end.busy_since(&begin));
        // What was cut short is no figure.
        if is_stopped(stop) {
            break;
        }
        let (figures, failed) = match measured {
            Ok(figures) => (Some(figures), None),
            // Not this cell's.
            Err(Error::Interrupted) => break,
            // What was typed shows in the first cell; later it is a proxy that has ended.
            Err(error @ Error::Usage(_)) if rows.is_empty() => return Err(error),
            Err(error) => (None, Some(error.to_string())),
        };
        let round = Round { round: step.round, figures, failed, machine_busy_share: busy };
        rows.add(step.test, step.peer, round);
    }
    if rows.is_empty() {
        return Err(Error::Interrupted);
    }
    let busy = MachineSample::now().zip(machine).map(|(end, begin)| end.busy_since(&begin));
    Ok(ProxyReport::new(plan, stage.peer_reports(), stage.skipped(), stage.cores(), rows, busy))
}

/// State that a run prepares once.
enum Stage<'a, S> {
    Running(&'a ProxyUnderTest),
    Peers {
        tunnels: usize,
        peers: Vec<(Peer, Option<Program>)>,
        skipped: Vec<Skipped>,
        backend: &'a dyn Fn() -> Result<S, Error>,
        pinned: Option<Box<Pinned>>,
    },
}

/// Processes started for one cell; dropping it ends them, the proxy before its backend.
struct Started<S> {
    running: Running,
    proxy: Option<Proxy>,
    _backend: Option<S>,
}

impl<S> Started<S> {
    /// With what the proxy said itself, if it did.
    fn explain(&self, error: Error) -> Error {
        let said = self.proxy.as_ref().map(Proxy::last_output).unwrap_or_default();
        match error {
            Error::Interrupted => error,
            _ if said.is_empty() => error,
            error => Error::Child(format!("{error}; the proxy said last: {said}")),
        }
    }
}

impl<'a, S: Server> Stage<'a, S> {
    fn prepare(plan: &ProxyPlan, subjects: &'a Targets<'a, S>) -> Result<Self, Error> {
        let (peers, throng, backend) = match subjects {
            Targets::Running(subject) => return Ok(Self::Running(subject)),
            Targets::Peers { peers, throng, backend } => (peers, throng, *backend),
        };
        plan.check_room()?;
        // What is started inherits the limit.
        descriptors::make_room(2 * plan.most_tunnels() + SPARE)?;
        let (mut found, mut skipped) = (Vec::new(), Vec::new());
        for &peer in peers {
            match peers::find(peer, throng) {
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
        let (tunnels, pinned) = (plan.most_tunnels(), Pinned::here().map(Box::new));
        Ok(Self::Peers { tunnels, peers: found, skipped, backend, pinned })
    }

    fn peers(&self) -> Vec<Peer> {
        match self {
            Self::Running(subject) => {
                let direct = subject.direct.as_ref().map(|_| Peer::Direct);
                direct.into_iter().chain([Peer::Running]).collect()
            }
            Self::Peers { peers, .. } => peers.iter().map(|(peer, _)| *peer).collect(),
        }
    }

    fn peer_reports(&self) -> Vec<PeerReport> {
        match self {
            Self::Running(_) => {
                let peers = self.peers().into_iter();
                peers.map(|peer| PeerReport { peer, version: None }).collect()
            }
            Self::Peers { peers, .. } => {
                let version = |program: &Option<Program>| program.as_ref()?.version.clone();
                let report = |(peer, program): &(Peer, Option<Program>)| PeerReport {
                    peer: *peer,
                    version: version(program),
                };
                peers.iter().map(report).collect()
            }
        }
    }

    fn skipped(&self) -> Vec<Skipped> {
        match self {
            Self::Running(_) => Vec::new(),
            Self::Peers { skipped, .. } => skipped.clone(),
        }
    }

    /// The proxy's core and that of everything else.
    fn cores(&self) -> Option<(usize, usize)> {
        match self {
            Self::Running(_) => None,
            Self::Peers { pinned, .. } => {
                let cores = pinned.as_ref()?.cores;
                Some((cores.proxy, cores.others))
            }
        }
    }

    fn start(&self, peer: Peer) -> Result<Started<S>, Error> {
        match self {
            Self::Running(subject) => {
                Ok(Started { running: of(subject, peer)?, proxy: None, _backend: None })
            }
            Self::Peers { tunnels, peers, backend, pinned, .. } => {
                let backend = backend()?;
                let program =
                    peers.iter().find(|(other, _)| *other == peer).and_then(|(_, p)| p.as_ref());
                let Some(program) = program else {
                    let target = Target::parse(&format!("ws://{}", backend.address()))?;
                    let running = Running { target, pids: vec![backend.pid()] };
                    return Ok(Started { running, proxy: None, _backend: Some(backend) });
                };
                let settings = ProxySettings { backend: backend.address(), tunnels: *tunnels };
                let spawn = |words: &[String]| match pinned {
                    Some(pinned) => pinned.on_proxy_core(|| Process::start(words)),
                    None => Process::start(words),
                };
                let proxy = Proxy::start(peer, program, settings, &spawn)?;
                let target = Target::parse(&format!("ws://{}", proxy.address))?;
                let running = Running { target, pids: proxy.pids() };
                Ok(Started { running, proxy: Some(proxy), _backend: Some(backend) })
            }
        }
    }
}

/// A proxy that runs, or its backend, as it is now.
fn of(subject: &ProxyUnderTest, peer: Peer) -> Result<Running, Error> {
    let target = match (peer, &subject.direct) {
        (Peer::Direct, Some(direct)) => direct.clone(),
        _ => subject.proxy.clone(),
    };
    let own = std::process::id();
    let pids = match (subject.pid, peer) {
        (Some(pid), Peer::Running) => {
            let members = process_group(pid).into_iter().map(|member| member.pid);
            let pids: Vec<u32> = members.filter(|&member| member != own).collect();
            if pids.is_empty() {
                return Err(Error::Usage(format!(
                    "--pid {pid}: there is no such process on this machine"
                )));
            }
            pids
        }
        _ => listening_pids(target.resolve()?),
    };
    Ok(Running { target, pids })
}

/// One cell to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    round: usize,
    test: Test,
    peer: Peer,
}

/// All cells in their order. Another proxy begins in each round: none always has the machine as the
/// one before left it.
fn steps(plan: &ProxyPlan, peers: &[Peer]) -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 1..=plan.rounds {
        for test in plan.tests() {
            let shift = (round - 1) % peers.len().max(1);
            let turn = peers[shift..].iter().chain(&peers[..shift]);
            steps.extend(turn.map(|&peer| Step { round, test, peer }));
        }
    }
    steps
}

/// About how long the steps from `done` on take, given how long those before took.
fn left(plan: &ProxyPlan, steps: &[Step], done: usize, elapsed: Duration) -> Duration {
    let planned =
        |steps: &[Step]| steps.iter().map(|step| plan.estimate(step.test)).sum::<Duration>();
    let (before, after) = (planned(&steps[..done]), planned(&steps[done..]));
    match before.is_zero() {
        true => after,
        false => after.mul_f64((elapsed.as_secs_f64() / before.as_secs_f64()).clamp(0.1, 10.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Table;
    use super::*;

    #[test]
    fn peers_follow_one_another_and_take_turns_at_being_first() {
        let plan = ProxyPlan { tables: vec![Table::Connect], rounds: 4, ..ProxyPlan::default() };
        let peers = [Peer::Direct, Peer::Nginx, Peer::Haproxy];
        let steps = steps(&plan, &peers);
        assert_eq!(steps.len(), 12);
        let first: Vec<Peer> = steps.iter().step_by(3).map(|step| step.peer).collect();
        assert_eq!(first, [Peer::Direct, Peer::Nginx, Peer::Haproxy, Peer::Direct]);
        for round in steps.chunks(3) {
            assert!(peers.iter().all(|peer| round.iter().any(|step| step.peer == *peer)));
            assert!(round.iter().all(|step| step.round == round[0].round));
        }
    }

    #[test]
    fn the_rest_is_estimated_by_what_was() {
        let plan = ProxyPlan::default();
        let steps = steps(&plan, &[Peer::Nginx]);
        let all = left(&plan, &steps, 0, Duration::ZERO);
        assert!(all > 3 * plan.mostly_idle && all < Duration::from_secs(300), "{all:?}");
        let slow = left(&plan, &steps, 1, plan.estimate(steps[0].test) * 2);
        assert!(slow > all.mul_f64(1.8), "twice as slow: {slow:?} of {all:?}");
    }
}
