//! The server models side by side, one thread per connection and event loops: CPU and memory of
//! idle connections, the time to connect and echo, and a handler that blocks.
//!
//! Every cell has a new server process with its own memory and CPU time. Within each size the
//! models take turns, so that a disturbance of the machine affects all models equally. If the
//! machine cannot hold a cell, for example with too few descriptors, the cell contains the reason.
//! Published figures of other servers stand beside the measured figures.

mod advice;
pub(crate) mod capacity;
mod cells;
mod document;
mod flags;
mod report;
mod session;

use std::fmt;
use std::time::Duration;

use throng_engine::workers::usable_cpus;
use throng_load::Error;
use throng_load::units::grouped;

pub use flags::{EXAMPLES, IoModels};
pub(crate) use report::{IdleFigures, SizeRow};
pub use report::{IoModelsReport, IoModelsRow};

use self::report::{BlockingRow, CellFigures};
use crate::bench::Bench;
use crate::comparison::{Comparison, Measured};
pub use crate::io_model::{IoModel, IoTable, Variant};
use crate::run::turned;

/// One measurement: a model with this many connections, or a blocking handler with this many
/// workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCell {
    /// Idle connections.
    Idle(IoModel, usize),
    /// Connections that come.
    Connect(IoModel, usize),
    /// A handler that blocks.
    Blocking(Variant, IoModel, usize),
}

impl fmt::Display for IoCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Idle(model, n) => write!(f, "idle, {model}, {}", grouped(n as u64)),
            Self::Connect(model, n) => write!(f, "connect, {model}, {}", grouped(n as u64)),
            Self::Blocking(variant, model, workers) => {
                write!(f, "blocking, {}", variant.words(model, Some(workers)))
            }
        }
    }
}

impl IoCell {
    /// Returns the row of a cell without figures.
    fn without_figures(self, why: String, failed: bool) -> IoModelsRow {
        match self {
            Self::Idle(model, connections) => {
                let cell = CellFigures::missing(why, failed);
                IoModelsRow::Idle(SizeRow { model, connections, cell })
            }
            Self::Connect(model, connections) => {
                let cell = CellFigures::missing(why, failed);
                IoModelsRow::Connect(SizeRow { model, connections, cell })
            }
            Self::Blocking(variant, model, workers) => {
                let workers = variant.has_workers().then_some(workers);
                let cell = CellFigures::missing(why, failed);
                IoModelsRow::Blocking(BlockingRow { variant, model, workers, cell })
            }
        }
    }
}

impl IoModels {
    /// Returns why this machine cannot measure a cell.
    fn shortage(&self, cell: IoCell) -> Option<String> {
        let (model, connections) = match cell {
            IoCell::Idle(model, n) | IoCell::Connect(model, n) => (model, n),
            IoCell::Blocking(_, model, _) => (model, self.clients),
        };
        capacity::shortage(model, self.event_loops(), connections)
    }

    fn variants(&self) -> Vec<IoCell> {
        let mut cells = Vec::new();
        if let Some(model) = self.event_driven() {
            cells.push(IoCell::Blocking(Variant::Inline, model, 0));
            // The default pool, for comparison with the rule.
            let (few, many) = (usable_cpus(), self.workers());
            cells.push(IoCell::Blocking(Variant::Workers, model, few));
            if many > few {
                cells.push(IoCell::Blocking(Variant::WorkersByRule, model, many));
            }
        }
        if self.models.contains(&IoModel::Threads) {
            cells.push(IoCell::Blocking(Variant::Threads, IoModel::Threads, 0));
        }
        cells
    }
}

impl Comparison for IoModels {
    type Cell = IoCell;
    type Row = IoModelsRow;
    type Findings = IoModelsReport;

    const NAME: &'static str = "io-models";

    fn prepare(&mut self) -> Result<(), Error> {
        self.complete()
    }

    fn cells(&self) -> Vec<IoCell> {
        let each = |sizes: Vec<usize>, cell: fn(IoModel, usize) -> IoCell| {
            let all = sizes.into_iter().enumerate().flat_map(|(at, size)| {
                turned(&self.models, at).map(move |model| cell(model, size))
            });
            all.collect::<Vec<_>>()
        };
        let tables = self.tables().into_iter().flat_map(|table| match table {
            IoTable::Idle => each(self.idle_sizes(), IoCell::Idle),
            IoTable::Connect => each(self.connect_sizes(), IoCell::Connect),
            IoTable::Workers => self.variants(),
        });
        tables.collect()
    }

    fn estimate(&self, cell: &IoCell) -> Duration {
        let start = Duration::from_millis(300);
        // Assumes 10,000 connections per second, the rate of a slow machine with both ends on one
        // core.
        let connecting = |n: usize| Duration::from_micros(100 * n as u64);
        match *cell {
            cell if self.shortage(cell).is_some() => Duration::ZERO,
            IoCell::Idle(_, n) => start + connecting(n) + session::SETTLE + self.window(),
            IoCell::Connect(_, n) => start + connecting(2 * n),
            IoCell::Blocking(..) => start + cells::WARMUP + self.duration(),
        }
    }

    fn measure(&self, cell: &IoCell, bench: &mut Bench<'_>) -> Result<IoModelsRow, Error> {
        if let Some(shortage) = self.shortage(*cell) {
            return Ok(cell.without_figures(shortage, false));
        }
        Ok(match *cell {
            IoCell::Idle(model, connections) => {
                let cell = CellFigures::of(self.idle(model, connections, bench)?);
                IoModelsRow::Idle(SizeRow { model, connections, cell })
            }
            IoCell::Connect(model, connections) => {
                let cell = CellFigures::of(self.connect(model, connections, bench)?);
                IoModelsRow::Connect(SizeRow { model, connections, cell })
            }
            IoCell::Blocking(variant, model, workers) => {
                let cell = CellFigures::of(self.blocking(variant, model, workers, bench)?);
                let workers = variant.has_workers().then_some(workers);
                IoModelsRow::Blocking(BlockingRow { variant, model, workers, cell })
            }
        })
    }

    fn failed(&self, cell: &IoCell, error: &Error) -> Option<IoModelsRow> {
        Some(cell.without_figures(error.to_string(), true))
    }

    fn advice(&self, rows: &[IoModelsRow]) -> Vec<String> {
        advice::sentences(&IoModelsReport::new(self, rows.to_vec(), None))
    }

    fn report(self, measured: Measured<IoModelsRow>) -> IoModelsReport {
        let report = IoModelsReport::new(&self, measured.rows, measured.machine_busy_share);
        IoModelsReport { advice: measured.advice, ..report }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::comparison::{assert_refused, checked};

    #[test]
    fn flags_become_cells() {
        let usual: IoModels = checked("").unwrap();
        assert_eq!(usual.models, IoModel::HERE);
        assert_eq!((usual.idle_sizes().len(), usual.connect_sizes().len()), (9, 3));
        assert_eq!((usual.window().as_secs(), usual.tables().len()), (10, 3));
        let quick: IoModels = checked("--quick --window 2s").unwrap();
        assert_eq!((quick.idle_sizes(), quick.connect_sizes()), (vec![100, 500], vec![500]));
        assert_eq!((quick.window().as_secs(), quick.duration().as_secs()), (2, 1));
        let line = "--models portable --connections 5,7 --only workers,idle --blocking 20ms";
        let asked: IoModels = checked(line).unwrap();
        assert_eq!(asked.tables(), [IoTable::Idle, IoTable::Workers]);
        assert_eq!((asked.idle_sizes(), asked.blocking.as_millis()), (vec![5, 7], 20));
        checked::<IoModels>("--models threads --only idle").unwrap();
    }

    #[test]
    fn models_take_turns_within_each_size() {
        let models: IoModels = checked("--connections 5,9").unwrap();
        let words: Vec<String> = models.cells().iter().map(IoCell::to_string).collect();
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
        assert_eq!(words[6], "connect, threads, 5");
        assert!(words[12].contains("epoll, inline") && words.last().unwrap().contains("threads"));
    }

    #[test]
    fn mistakes_teach() {
        assert_refused::<IoModels>(&[
            ("--models fibres", "portable"),
            ("--models threads", "add epoll"),
            ("--connections 0", "--connections"),
            ("--connections many", "--connections"),
            ("--only memory", "idle, connect, workers"),
            ("--window 5", "write \"5s\" or \"5ms\""),
            ("--window 0s", "--window must be"),
            ("--duration 2h", "--duration must be"),
            ("--blocking 5s", "--blocking must be"),
            ("--cpu 0s", "--cpu is 0"),
            ("--clients 0", "--clients"),
            ("--clients 2000000", "--clients"),
            ("--shards 999999", "--shards is 999999; at most 256"),
        ]);
    }
}
