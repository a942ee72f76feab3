//! The run of a comparison, from the beginning to the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use throng_load::sampler::MachineSample;
use throng_load::{Error, Progress};

use crate::bench::Bench;
use crate::comparison::{Comparison, Measured};
use crate::parts::Launch;

/// Progress of a comparison.
#[derive(Clone, Debug)]
pub struct CellProgress {
    /// The current cell in words, such as `round 1, nginx, 4 KiB echo`.
    pub cell: String,
    /// Cells done.
    pub done: usize,
    /// All cells.
    pub cells: usize,
    /// The estimated time until the end.
    pub left: Duration,
    /// Progress within the cell; `None` before it begins.
    pub within: Option<Progress>,
}

/// Measures the cells and reports them. Blocks; calls `watch` before each cell and about ten times
/// per second during it.
///
/// When `stop` becomes true, the run ends early with a report of the complete cells. A failed cell
/// either becomes a row of the report, whose exit code is then 1, or ends the run
/// ([`Comparison::failed`]).
///
/// # Errors
/// Errors of [`Comparison::prepare`]; the error of the first cell if a flag caused it;
/// [`Error::Interrupted`] if the run was stopped before there was anything to report.
pub fn run<C: Comparison>(
    mut comparison: C,
    launch: Launch<'_>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&CellProgress),
) -> Result<C::Findings, Error> {
    comparison.prepare()?;
    let cells = comparison.cells();
    let times: Vec<Duration> = cells.iter().map(|cell| comparison.estimate(cell)).collect();
    let (machine, begun) = (MachineSample::now(), Instant::now());
    let mut rows = Vec::new();
    for (done, cell) in cells.iter().enumerate() {
        let mut progress = CellProgress {
            cell: cell.to_string(),
            done,
            cells: cells.len(),
            left: left(&times, done, begun.elapsed()),
            within: None,
        };
        watch(&progress);
        let mut watch_within = |within: &Progress| {
            progress.within = Some(*within);
            watch(&progress);
        };
        let mut bench = Bench { launch, stop, watch: &mut watch_within };
        match comparison.measure(cell, &mut bench) {
            Ok(row) => rows.push(row),
            Err(Error::Interrupted) => break,
            // A mistake in a flag shows in the first cell.
            Err(error @ Error::Usage(_)) if rows.is_empty() => return Err(error),
            Err(error) => match comparison.failed(cell, &error) {
                Some(row) => rows.push(row),
                None => return Err(error),
            },
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    if rows.is_empty() {
        return Err(Error::Interrupted);
    }
    let machine_busy_share =
        MachineSample::now().zip(machine).map(|(end, begin)| end.busy_since(&begin));
    let advice = comparison.advice(&rows);
    Ok(comparison.report(Measured { rows, advice, machine_busy_share }))
}

/// Estimates how long the cells from `done` on take, given the time of the earlier cells.
fn left(times: &[Duration], done: usize, elapsed: Duration) -> Duration {
    let (before, after) =
        (times[..done].iter().sum::<Duration>(), times[done..].iter().sum::<Duration>());
    match before.is_zero() {
        true => after,
        false => after.mul_f64((elapsed.as_secs_f64() / before.as_secs_f64()).clamp(0.1, 10.0)),
    }
}

/// Returns `all` from position `at` on, followed by the earlier items. In each round another item
/// is first, so that no item always follows the same one.
pub(crate) fn turned<T: Copy>(all: &[T], at: usize) -> impl Iterator<Item = T> {
    let at = at % all.len().max(1);
    all[at..].iter().chain(&all[..at]).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_estimated_by_what_was() {
        let times = [10, 10, 20].map(Duration::from_secs);
        assert_eq!(left(&times, 0, Duration::ZERO).as_secs(), 40);
        assert_eq!(left(&times, 1, Duration::from_secs(20)).as_secs(), 60, "twice as slow");
        assert_eq!(left(&times, 3, Duration::from_secs(40)).as_secs(), 0);
    }

    #[test]
    fn each_goes_first_once() {
        let order = |at| turned(&['a', 'b', 'c'], at).collect::<String>();
        assert_eq!([0, 1, 2, 3].map(order), ["abc", "bca", "cab", "abc"]);
        assert_eq!(turned(&[0; 0], 5).count(), 0);
    }
}
