//! The comparison from beginning to end: the families in turn within each size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cells::{Bench, WARMUP};
use super::crowd::SETTLE;
use super::plan::{FamiliesPlan, Family, Table, Wanted};
use super::report::{BlockingRow, Cell, ConnectRow, FamiliesReport, IdleRow, Rows, Way};
use super::room;
use crate::servers::Server;
use throng_load::sampler::MachineSample;
use throng_load::units::grouped;
use throng_load::{Error, Progress};

/// How far a comparison is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FamiliesProgress {
    /// The cell at hand, for people: `idle, threads, 1,000 connections`.
    pub cell: String,
    /// Cells done, and of how many.
    pub done: usize,
    /// All cells.
    pub cells: usize,
    /// How long the rest will take, about.
    pub left: Duration,
    /// How far the cell is; `None` before it has begun.
    pub within: Option<Progress>,
}

/// One measurement to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle(Family, usize),
    Connect(Family, usize),
    Blocking(Way, Family, usize),
}

/// Runs a comparison and reports. Blocks; `watch` is called before each cell and some ten times a second within.
///
/// When `stop` becomes true it ends early, with a report of the cells that were complete. A cell that fails says so in the
/// report, whose exit code is then 1.
///
/// # Errors
/// A plan that makes no sense, a server that does not start; and [`Error::Interrupted`] if it was stopped before there was
/// anything to report.
pub(crate) fn run<S: Server>(
    plan: &FamiliesPlan,
    start: &dyn Fn(&Wanted) -> Result<S, Error>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&FamiliesProgress),
) -> Result<FamiliesReport, Error> {
    plan.check()?;
    let steps = steps(plan);
    let (machine, begun) = (MachineSample::now(), Instant::now());
    let bench = Bench { plan, start, stop };
    let mut rows = Rows::default();
    for (done, step) in steps.iter().enumerate() {
        let mut progress = FamiliesProgress {
            cell: step.to_string(),
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
        match step.take(&bench, &mut rows, &mut within) {
            Ok(()) if stop.load(Ordering::Relaxed) => break,
            Ok(()) => {}
            Err(Error::Interrupted) if !rows.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    let busy = MachineSample::now().zip(machine).map(|(end, begin)| end.busy_since(&begin));
    Ok(FamiliesReport::new(plan, rows, busy))
}

/// All cells in their order. Another family begins at each size: none always has the machine as the one before left it.
fn steps(plan: &FamiliesPlan) -> Vec<Step> {
    let mut steps = Vec::new();
    let turn = |at: usize| {
        let families = &plan.families;
        let shift = at % families.len();
        families[shift..].iter().chain(&families[..shift]).copied().collect::<Vec<Family>>()
    };
    for table in Table::ALL.iter().filter(|table| plan.tables.contains(table)) {
        match table {
            Table::Idle => {
                let sizes = plan.idle.iter().enumerate();
                steps.extend(sizes.flat_map(|(at, &size)| {
                    turn(at).into_iter().map(move |family| Step::Idle(family, size))
                }));
            }
            Table::Connect => {
                let sizes = plan.connect.iter().enumerate();
                steps.extend(sizes.flat_map(|(at, &size)| {
                    turn(at).into_iter().map(move |family| Step::Connect(family, size))
                }));
            }
            Table::Workers => steps.extend(ways(plan)),
        }
    }
    steps
}

fn ways(plan: &FamiliesPlan) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(family) = plan.event_driven() {
        steps.push(Step::Blocking(Way::Inline, family, 0));
        // The pool as it is when nobody asks for a size, to show what the rule is for.
        let (few, many) = (throng_engine::workers::usable_cpus(), plan.workers());
        steps.push(Step::Blocking(Way::Workers, family, few));
        if many > few {
            steps.push(Step::Blocking(Way::WorkersByRule, family, many));
        }
    }
    if plan.families.contains(&Family::Threads) {
        steps.push(Step::Blocking(Way::Threads, Family::Threads, 0));
    }
    steps
}

impl Step {
    fn take<S: Server>(
        self,
        bench: &Bench<'_, S>,
        rows: &mut Rows,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<(), Error> {
        let shards = bench.plan.event_loops();
        match self {
            Self::Idle(family, connections) => {
                let cell = cell(room::shortage(family, shards, connections), || {
                    bench.idle(family, connections, watch)
                })?;
                rows.idle.push(IdleRow { family, connections, cell });
            }
            Self::Connect(family, connections) => {
                let cell = cell(room::shortage(family, shards, connections), || {
                    bench.connect(family, connections, watch)
                })?;
                rows.connect.push(ConnectRow { family, connections, cell });
            }
            Self::Blocking(way, family, workers) => {
                let cell = cell(room::shortage(family, shards, bench.plan.clients), || {
                    bench.blocking(way, family, workers, watch)
                })?;
                let workers = way.has_workers().then_some(workers);
                rows.blocking.push(BlockingRow { way, family, workers, cell });
            }
        }
        Ok(())
    }

    /// About how long it takes, beyond a start.
    fn estimate(self, plan: &FamiliesPlan) -> Duration {
        let start = Duration::from_millis(300);
        // Ten thousand a second, on one core for both ends and on a slow day.
        let connecting = |n: usize| Duration::from_micros(100 * n as u64);
        match self {
            Self::Idle(family, n) | Self::Connect(family, n)
                if room::shortage(family, plan.event_loops(), n).is_some() =>
            {
                Duration::ZERO
            }
            Self::Idle(_, n) => start + connecting(n) + SETTLE + plan.window,
            Self::Connect(_, n) => start + connecting(2 * n),
            Self::Blocking(..) => start + WARMUP + plan.duration,
        }
    }
}

/// A measured cell, one that cannot be, or one that failed.
fn cell<T>(
    shortage: Option<String>,
    measure: impl FnOnce() -> Result<T, Error>,
) -> Result<Cell<T>, Error> {
    if let Some(shortage) = shortage {
        return Ok(Cell::impossible(shortage));
    }
    match measure() {
        Ok(figures) => Ok(Cell::of(figures)),
        // Not this cell's.
        Err(error @ (Error::Interrupted | Error::Usage(_))) => Err(error),
        Err(error) => Ok(Cell::failed(error.to_string())),
    }
}

/// About how long the steps from `done` on take, given how long those before took.
fn left(plan: &FamiliesPlan, steps: &[Step], done: usize, elapsed: Duration) -> Duration {
    let planned = |steps: &[Step]| steps.iter().map(|step| step.estimate(plan)).sum::<Duration>();
    let (before, after) = (planned(&steps[..done]), planned(&steps[done..]));
    match before.is_zero() {
        true => after,
        false => after.mul_f64((elapsed.as_secs_f64() / before.as_secs_f64()).clamp(0.1, 10.0)),
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Idle(family, n) => write!(f, "idle, {family}, {}", grouped(n as u64)),
            Self::Connect(family, n) => write!(f, "connect, {family}, {}", grouped(n as u64)),
            Self::Blocking(way, family, workers) => {
                write!(f, "blocking, {}", way.words(family, Some(workers)))
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_within_each_size() {
        let plan = FamiliesPlan { idle: vec![5, 9], connect: vec![7], ..FamiliesPlan::default() };
        let words: Vec<String> = steps(&plan).iter().map(Step::to_string).collect();
        assert_eq!(
            words[..6],
            [
                "idle, threads, 5",
                "idle, epoll, 5",
                "idle, portable, 5",
                "idle, epoll, 9",
                "idle, portable, 9",
                "idle, threads, 9",
            ]
        );
        assert_eq!(
            words[6..9],
            ["connect, threads, 7", "connect, epoll, 7", "connect, portable, 7"]
        );
        assert!(words[9].contains("epoll, inline") && words.last().unwrap().contains("threads"));
    }

    #[test]
    fn the_rest_is_estimated_by_what_was() {
        let plan = FamiliesPlan {
            idle: vec![100, 100],
            tables: vec![Table::Idle],
            families: vec![Family::Epoll],
            ..FamiliesPlan::default()
        };
        let steps = steps(&plan);
        let first = left(&plan, &steps, 0, Duration::ZERO);
        assert!(first > 2 * plan.window && first < 3 * plan.window, "{first:?}");
        let slow = left(&plan, &steps, 1, first);
        assert!(slow > first.mul_f64(0.9), "as slow as the first: {slow:?} of {first:?}");
    }

    #[test]
    fn a_cell_that_fails_does_not_end_the_rest() {
        let failed = cell::<()>(None, || Err(Error::Child("it ended".to_owned()))).unwrap();
        assert!(failed.failed && failed.missing.as_deref() == Some("it ended"));
        let impossible = cell(Some("needs more".to_owned()), || Ok(5)).unwrap();
        assert!(!impossible.failed && impossible.figures.is_none());
        assert!(cell::<()>(None, || Err(Error::Interrupted)).is_err());
    }
}
