//! Measurements with names for programs; the tables are made in `document`.

use serde::Serialize;
use throng_engine::workers::usable_cpus;

use throng_load::descriptors;
use throng_load::record::Summary;
use throng_load::report::SCHEMA;
use throng_load::verdict::Verdict;

use super::capacity;
use super::flags::IoModels;
use crate::io_model::{IoModel, IoTable, Variant};
use crate::parts::Handler;

/// Everything about one comparison.
#[derive(Clone, Debug, Serialize)]
pub struct IoModelsReport {
    /// The report's version, as in every report of `throng bench`.
    pub schema: &'static str,
    /// Settings of the comparison.
    pub plan: PlanReport,
    /// A row for each size and model.
    pub idle: Vec<SizeRow<IdleFigures>>,
    /// A row for each size and model.
    pub connect: Vec<SizeRow<ConnectFigures>>,
    /// A row for each variant to run a handler that blocks.
    pub blocking: Vec<BlockingRow>,
    /// Share (0 to 1) of the machine's CPU time that all processes used during the run.
    pub machine_busy_share: Option<f64>,
    /// Which model one needs, in sentences that follow from the figures.
    pub advice: Vec<String>,
}

/// The plan, as far as it matters for repeating a comparison, and the machine.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// `models`.
    pub mode: &'static str,
    /// The models.
    pub models: Vec<IoModel>,
    /// The tables.
    pub tables: Vec<IoTable>,
    /// Time for which CPU use was measured in each cell of the idle table.
    pub window_s: f64,
    /// The handler that blocks.
    pub(crate) handler: Handler,
    /// Connections that kept it busy.
    pub clients: usize,
    /// Time for which each row with it was measured.
    pub duration_s: f64,
    /// Workers by the rule `CPUs + (blocking / cpu) * CPUs`.
    pub workers_by_rule: usize,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Event loops of event-driven servers.
    pub event_loops: usize,
    /// Descriptors that one process may have.
    pub descriptor_limit: Option<u64>,
    /// The event-driven model on which the handler blocked.
    pub event_driven: Option<IoModel>,
    /// Connections that threads may have here.
    pub most_threads: Option<usize>,
}

/// Figures, or why there are none.
#[derive(Clone, Debug, Serialize)]
pub struct CellFigures<T> {
    /// Measurements.
    pub figures: Option<T>,
    /// Why nothing was, for people.
    pub missing: Option<String>,
    /// It should have been: the report's exit code is 1.
    pub failed: bool,
}

impl<T> CellFigures<T> {
    pub(super) fn of(figures: T) -> Self {
        Self { figures: Some(figures), missing: None, failed: false }
    }

    pub(super) fn missing(why: String, failed: bool) -> Self {
        Self { figures: None, missing: Some(why), failed }
    }
}

/// The figures of one model with this many connections.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow<T> {
    /// The model.
    pub model: IoModel,
    /// Connections.
    pub connections: usize,
    /// Its figures.
    #[serde(flatten)]
    pub cell: CellFigures<T>,
}

/// Costs of idle connections.
#[derive(Clone, Debug, Serialize)]
pub struct IdleFigures {
    /// Time for which CPU use was measured.
    pub window_s: f64,
    /// The server's CPU use during the measured time, in percent of one core, from the scheduler's
    /// nanoseconds.
    pub cpu_percent: f64,
    /// CPU time in the kernel's ticks, of 10 ms as a rule.
    pub cpu_ticks: Option<u64>,
    /// Proportional memory (PSS) the process grew by, by connection.
    pub memory_bytes_per_connection: f64,
    /// Resident memory (RSS) it grew by, by connection.
    pub rss_bytes_per_connection: f64,
    /// Kernel stacks of the threads that came with the connections, 16 KiB each, by connection. Not
    /// in the others.
    pub kernel_stack_bytes_per_connection: f64,
    /// Proportional memory of the whole process.
    pub process_bytes: u64,
    /// Threads of the process.
    pub threads: usize,
    /// Descriptors of the process.
    pub descriptors: Option<usize>,
    /// Share (0 to 1) of the machine's CPU time that all processes used during the run.
    pub machine_busy_share: Option<f64>,
}

impl IdleFigures {
    /// User memory and kernel stacks.
    pub(super) fn bytes_per_connection(&self) -> f64 {
        self.memory_bytes_per_connection + self.kernel_stack_bytes_per_connection
    }
}

/// Times of the connections.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectFigures {
    /// From the first connect call to the last upgrade.
    pub connected_s: f64,
    /// From there too, to the last echo.
    pub answered_s: f64,
    /// Connections by the second of that.
    pub connections_per_s: f64,
    /// The server's CPU time.
    pub server_cpu_s: Option<f64>,
    /// The party that limited the run.
    pub verdict: Verdict,
}

/// A handler that blocks, run one variant.
#[derive(Clone, Debug, Serialize)]
pub struct BlockingRow {
    /// The variant.
    pub variant: Variant,
    /// The model.
    pub model: IoModel,
    /// Workers, if it has them.
    pub workers: Option<usize>,
    /// Its figures.
    #[serde(flatten)]
    pub cell: CellFigures<BlockingFigures>,
}

impl BlockingRow {
    pub(super) fn words(&self) -> String {
        self.variant.words(self.model, self.workers)
    }
}

/// Rate and latency of the blocking handler.
#[derive(Clone, Debug, Serialize)]
pub struct BlockingFigures {
    /// Answers by the second.
    pub messages_per_s: f64,
    /// From sending to the answer.
    pub latency: Summary,
    /// Server CPU time by answer, the handler's own included.
    pub server_cpu_us_per_message: Option<f64>,
    /// Party that limited the run.
    pub verdict: Verdict,
}

/// A row of one of the tables.
#[derive(Clone, Debug)]
pub enum IoModelsRow {
    /// A row of the table "idle".
    Idle(SizeRow<IdleFigures>),
    /// A row of the table "connect".
    Connect(SizeRow<ConnectFigures>),
    /// A row of the table "workers".
    Blocking(BlockingRow),
}

impl IoModelsReport {
    /// Creates a report without advice, which follows from the rest.
    pub(super) fn new(
        flags: &IoModels,
        rows: Vec<IoModelsRow>,
        machine_busy_share: Option<f64>,
    ) -> Self {
        let event_loops = flags.event_loops();
        let plan = PlanReport {
            mode: "models",
            models: flags.models.clone(),
            tables: flags.tables(),
            window_s: flags.window().as_secs_f64(),
            handler: flags.handler(),
            clients: flags.clients,
            duration_s: flags.duration().as_secs_f64(),
            workers_by_rule: flags.workers(),
            cpus: usable_cpus(),
            event_loops,
            descriptor_limit: descriptors::hard_limit(),
            event_driven: flags.event_driven(),
            most_threads: capacity::max_connections(IoModel::Threads, event_loops),
        };
        let (mut idle, mut connect, mut blocking) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            match row {
                IoModelsRow::Idle(row) => idle.push(row),
                IoModelsRow::Connect(row) => connect.push(row),
                IoModelsRow::Blocking(row) => blocking.push(row),
            }
        }
        let advice = Vec::new();
        Self { schema: SCHEMA, plan, idle, connect, blocking, machine_busy_share, advice }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::advice;
    use super::*;
    use crate::comparison::checked;
    use throng_load::Limit;
    use throng_load::report::Render as _;

    /// A report as a run makes it, of figures that are easy to reckon with.
    pub(in crate::io_models) fn example() -> IoModelsReport {
        let idle = |model, connections, each: f64, stack: f64| SizeRow {
            model,
            connections,
            cell: CellFigures::of(IdleFigures {
                window_s: 10.0,
                cpu_percent: 0.02,
                cpu_ticks: Some(0),
                memory_bytes_per_connection: each,
                rss_bytes_per_connection: each,
                kernel_stack_bytes_per_connection: stack,
                process_bytes: 4_000_000 + (each * connections as f64) as u64,
                threads: 3,
                descriptors: Some(connections),
                machine_busy_share: Some(0.2),
            }),
        };
        let connect = |model, connections, answered_s| SizeRow {
            model,
            connections,
            cell: CellFigures::of(ConnectFigures {
                connected_s: answered_s / 2.0,
                answered_s,
                connections_per_s: connections as f64 / answered_s,
                server_cpu_s: Some(0.1),
                verdict: Verdict { limit: Limit::Server, line: "busy".to_owned() },
            }),
        };
        let few = "needs 20,092 descriptors, this machine gives 20,000";
        let idle = vec![
            idle(IoModel::Threads, 1_000, 24_000.0, 16_000.0),
            idle(IoModel::Epoll, 1_000, 100.0, 0.0),
            idle(IoModel::Epoll, 10_000, 100.0, 0.0),
            SizeRow {
                model: IoModel::Threads,
                connections: 10_000,
                cell: CellFigures::missing(few.to_owned(), false),
            },
        ];
        let connect =
            vec![connect(IoModel::Threads, 1_000, 0.2), connect(IoModel::Epoll, 1_000, 0.1)];
        let blocking = vec![
            blocking(Variant::Inline, None, 390.0, 260_000.0),
            blocking(Variant::WorkersByRule, Some(102), 15_000.0, 9_000.0),
            blocking(Variant::Threads, None, 15_500.0, 8_500.0),
        ];
        let report = IoModelsReport::new(&checked("").unwrap(), Vec::new(), Some(0.5));
        let mut report = IoModelsReport { idle, connect, blocking, ..report };
        report.advice = advice::sentences(&report);
        report
    }

    pub(in crate::io_models) fn blocking(
        variant: Variant,
        workers: Option<usize>,
        messages_per_s: f64,
        p99_us: f64,
    ) -> BlockingRow {
        let model = if variant == Variant::Threads { IoModel::Threads } else { IoModel::Epoll };
        let latency = Summary {
            count: 1000,
            min_us: 5_100.0,
            mean_us: p99_us / 1.5,
            p50_us: p99_us / 2.0,
            p90_us: p99_us / 1.2,
            p99_us,
            p999_us: p99_us * 1.2,
            max_us: p99_us * 1.3,
        };
        let verdict = Verdict { limit: Limit::Neither, line: "they waited".to_owned() };
        let server_cpu_us_per_message = Some(110.0);
        let figures =
            BlockingFigures { messages_per_s, latency, server_cpu_us_per_message, verdict };
        BlockingRow { variant, model, workers, cell: CellFigures::of(figures) }
    }

    #[test]
    fn json_has_figures_or_says_why_not() {
        let report: serde_json::Value = serde_json::from_str(&example().to_json()).unwrap();
        assert_eq!(report["plan"]["handler"]["blocking_ms"], 5.0);
        assert_eq!(report["idle"][0]["figures"]["memory_bytes_per_connection"], 24_000.0);
        assert_eq!(report["idle"][3]["figures"], serde_json::Value::Null);
        assert!(report["idle"][3]["missing"].as_str().unwrap().starts_with("needs 20,092"));
        assert_eq!(report["blocking"][1]["workers"], 102);
    }

    #[test]
    fn all_forms_are_those_of_before() {
        let mut report = example();
        let plan = &mut report.plan;
        // Replaces the figures that depend on this machine.
        (plan.cpus, plan.event_loops, plan.workers_by_rule) = (2, 2, 102);
        (plan.descriptor_limit, plan.most_threads) = (Some(20_000), Some(9_954));
        (plan.models, plan.event_driven) =
            (vec![IoModel::Threads, IoModel::Epoll, IoModel::Portable], Some(IoModel::Epoll));
        report.advice = advice::sentences(&report);
        crate::golden::assert_unchanged("io-models", &report);
    }

    #[test]
    fn csv_has_a_cell_for_each_name() {
        let csv = example().to_csv();
        let mut lines = csv.lines();
        let names = lines.next().unwrap().split(',').count();
        let first = lines.next().unwrap();
        assert_eq!(first.split(',').count(), names);
        assert!(first.starts_with("idle,1000,threads,0.02,0,24000,16000,28000000,3,"), "{first}");
        assert!(csv.contains("\"needs 20,092 descriptors, this machine gives 20,000\""));
        // Four of ours and four published ones, two and two, three.
        assert_eq!(csv.lines().count(), 1 + 8 + 4 + 3);
    }

    #[test]
    fn an_impossible_cell_is_no_failure_and_a_broken_one_is() {
        let mut report = example();
        assert_eq!(report.exit_code(), 0);
        report.connect[0].cell = CellFigures::missing("it ended".to_owned(), true);
        assert_eq!(report.exit_code(), 1);
    }
}
