//! The comparison from beginning to end: the models in turn within each size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cells::{Bench, WARMUP};
use super::plan::{IoModel, IoModelsPlan, ServerPlan, Table};
use super::report::{BlockingRow, Cell, ConnectRow, IdleRow, IoModelsReport, Rows, Variant};
use super::session::SETTLE;
use super::{advice, capacity};
use crate::cells::CellProgress;
use crate::servers::Server;
use throng_load::sampler::MachineSample;
use throng_load::units::grouped;
use throng_load::{Error, Progress};

/// One measurement to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle(IoModel, usize),
    Connect(IoModel, usize),
    Blocking(Variant, IoModel, usize),
}

/// Runs a comparison and reports. Blocks; `watch` is called before each cell and some ten times a
/// second within.
///
/// When `stop` becomes true it ends early, with a report of the cells that were complete. A cell
/// that fails says so in the report, whose exit code is then 1.
///
/// # Errors
/// A plan that makes no sense, a server that does not start; and [`Error::Interrupted`] if it was
/// stopped before there was anything to report.
pub(crate) fn run<S: Server>(
    plan: &IoModelsPlan,
    start: &dyn Fn(&ServerPlan) -> Result<S, Error>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&CellProgress),
) -> Result<IoModelsReport, Error> {
    plan.check()?;
    let steps = steps(plan);
    let (machine, begun) = (MachineSample::now(), Instant::now());
    let bench = Bench { plan, start, stop };
    let mut rows = Rows::default();
    for (done, step) in steps.iter().enumerate() {
        let mut progress = CellProgress {
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
    let mut report = IoModelsReport::new(plan, rows, busy);
    report.advice = advice::sentences(&report);
    Ok(report)
}

/// All cells in their order. Another model begins at each size: none always has the machine as the
/// one before left it.
fn steps(plan: &IoModelsPlan) -> Vec<Step> {
    let mut steps = Vec::new();
    let turn = |at: usize| {
        let models = &plan.models;
        let shift = at % models.len();
        models[shift..].iter().chain(&models[..shift]).copied().collect::<Vec<IoModel>>()
    };
    for table in Table::ALL.iter().filter(|table| plan.tables.contains(table)) {
        match table {
            Table::Idle => {
                let sizes = plan.idle.iter().enumerate();
                steps.extend(sizes.flat_map(|(at, &size)| {
                    turn(at).into_iter().map(move |model| Step::Idle(model, size))
                }));
            }
            Table::Connect => {
                let sizes = plan.connect.iter().enumerate();
                steps.extend(sizes.flat_map(|(at, &size)| {
                    turn(at).into_iter().map(move |model| Step::Connect(model, size))
                }));
            }
            Table::Workers => steps.extend(variants(plan)),
        }
    }
    steps
}

fn variants(plan: &IoModelsPlan) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(model) = plan.event_driven() {
        steps.push(Step::Blocking(Variant::Inline, model, 0));
        // The pool as it is by default, to show what the rule is for.
        let (few, many) = (throng_engine::workers::usable_cpus(), plan.workers());
        steps.push(Step::Blocking(Variant::Workers, model, few));
        if many > few {
            steps.push(Step::Blocking(Variant::WorkersByRule, model, many));
        }
    }
    if plan.models.contains(&IoModel::Threads) {
        steps.push(Step::Blocking(Variant::Threads, IoModel::Threads, 0));
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
            Self::Idle(model, connections) => {
                let cell = cell(capacity::shortage(model, shards, connections), || {
                    bench.idle(model, connections, watch)
                })?;
                rows.idle.push(IdleRow { model, connections, cell });
            }
            Self::Connect(model, connections) => {
                let cell = cell(capacity::shortage(model, shards, connections), || {
                    bench.connect(model, connections, watch)
                })?;
                rows.connect.push(ConnectRow { model, connections, cell });
            }
            Self::Blocking(variant, model, workers) => {
                let cell = cell(capacity::shortage(model, shards, bench.plan.clients), || {
                    bench.blocking(variant, model, workers, watch)
                })?;
                let workers = variant.has_workers().then_some(workers);
                rows.blocking.push(BlockingRow { variant, model, workers, cell });
            }
        }
        Ok(())
    }

    /// About how long it takes, beyond a start.
    fn estimate(self, plan: &IoModelsPlan) -> Duration {
        let start = Duration::from_millis(300);
        // Ten thousand a second, on one core for both ends and on a slow day.
        let connecting = |n: usize| Duration::from_micros(100 * n as u64);
        match self {
            Self::Idle(model, n) | Self::Connect(model, n)
                if capacity::shortage(model, plan.event_loops(), n).is_some() =>
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
fn left(plan: &IoModelsPlan, steps: &[Step], done: usize, elapsed: Duration) -> Duration {
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
            Self::Idle(model, n) => write!(f, "idle, {model}, {}", grouped(n as u64)),
            Self::Connect(model, n) => write!(f, "connect, {model}, {}", grouped(n as u64)),
            Self::Blocking(variant, model, workers) => {
                write!(f, "blocking, {}", variant.words(model, Some(workers)))
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_within_each_size() {
        let plan = IoModelsPlan { idle: vec![5, 9], connect: vec![7], ..IoModelsPlan::default() };
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
        let plan = IoModelsPlan {
            idle: vec![100, 100],
            tables: vec![Table::Idle],
            models: vec![IoModel::Epoll],
            ..IoModelsPlan::default()
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
