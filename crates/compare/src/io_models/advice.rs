//! Advice on which model to use: sentences that follow from the figures.

use throng_load::units::{grouped, rounded, show_bytes, show_ns};

use super::report::{BlockingFigures, BlockingRow, IdleFigures, IoModelsReport, SizeRow};
use crate::io_model::{IoModel, Variant};

/// Two figures less than this apart are level: runs differ by as much.
const LEVEL: f64 = 1.25;
/// From so many times on a difference decides.
const DECIDES: f64 = 2.0;

/// Returns the sentences. The last one is the advice.
pub(super) fn sentences(report: &IoModelsReport) -> Vec<String> {
    let memory = Memory::of(report);
    let blocking = Blocking::of(report);
    let mut sentences = Vec::new();
    sentences.extend(memory.as_ref().map(Memory::sentence));
    sentences.extend(blocking.as_ref().map(Blocking::sentence));
    sentences.extend(advice(report, memory.as_ref(), blocking.as_ref()));
    sentences
}

/// Threads beside an event-driven model, at the largest size that both held.
struct Memory<'a> {
    connections: usize,
    threads: &'a IdleFigures,
    event: (IoModel, &'a IdleFigures),
}

impl<'a> Memory<'a> {
    fn of(report: &'a IoModelsReport) -> Option<Self> {
        let of = |model: IoModel, connections: usize| {
            let same =
                |row: &&SizeRow<IdleFigures>| row.model == model && row.connections == connections;
            report.idle.iter().find(same)?.cell.figures.as_ref()
        };
        let event = report.plan.event_driven?;
        let mut sizes: Vec<usize> = report.idle.iter().map(|row| row.connections).collect();
        sizes.sort_unstable();
        sizes.into_iter().rev().find_map(|connections| {
            let (threads, figures) = (of(IoModel::Threads, connections)?, of(event, connections)?);
            Some(Self { connections, threads, event: (event, figures) })
        })
    }

    /// Returns the factor by which threads take more; below one byte there is no ratio.
    fn ratio(&self) -> f64 {
        self.threads.bytes_per_connection() / self.event.1.bytes_per_connection().max(1.0)
    }

    fn sentence(&self) -> String {
        let (model, event) = self.event;
        let bytes = |bytes: f64| show_bytes(bytes.round() as i64);
        format!(
            "With {} idle connections, the most that both held, threads took {} of memory and {} \
             of kernel stack a connection, {model} {}: {} times as much; CPU meanwhile {:.2} % of \
             a core and {:.2} %.",
            grouped(self.connections as u64),
            bytes(self.threads.memory_bytes_per_connection),
            bytes(self.threads.kernel_stack_bytes_per_connection),
            bytes(event.bytes_per_connection()),
            rounded(self.ratio()),
            self.threads.cpu_percent,
            event.cpu_percent,
        )
    }
}

/// The handler that blocks, each variant that was measured.
struct Blocking<'a> {
    report: &'a IoModelsReport,
    rows: Vec<(&'a BlockingRow, &'a BlockingFigures)>,
}

impl<'a> Blocking<'a> {
    fn of(report: &'a IoModelsReport) -> Option<Self> {
        let measured = |row: &'a BlockingRow| Some((row, row.cell.figures.as_ref()?));
        let rows: Vec<_> = report.blocking.iter().filter_map(measured).collect();
        (rows.len() > 1).then_some(Self { report, rows })
    }

    fn p99(&self, variant: Variant) -> Option<f64> {
        self.rows
            .iter()
            .find(|(row, _)| row.variant == variant)
            .map(|(_, figures)| figures.latency.p99_us)
    }

    /// The shortest 99th percentile off the shards.
    fn best(&self) -> Option<f64> {
        let off = [Variant::Workers, Variant::WorkersByRule, Variant::Threads];
        off.into_iter().filter_map(|variant| self.p99(variant)).min_by(f64::total_cmp)
    }

    /// Returns the factor by which the same handler takes longer on the shards.
    fn inline_ratio(&self) -> Option<f64> {
        Some(self.p99(Variant::Inline)? / self.best()?.max(1.0))
    }

    fn sentence(&self) -> String {
        let handler = self.report.plan.handler;
        let each = self.rows.iter().map(|(row, figures)| {
            let p99 = show_ns((figures.latency.p99_us * 1e3) as u64);
            format!("{} {}/s with p99 {p99}", row.words(), rounded(figures.messages_per_s))
        });
        let inline = self.inline_ratio().map_or_else(String::new, |ratio| {
            format!(". On the shards p99 was {} times that of the best", rounded(ratio))
        });
        format!(
            "A handler that blocks {} and computes {}, {} connections: {}{inline}.",
            show_ns(handler.blocking.as_nanos() as u64),
            show_ns(handler.cpu.as_nanos() as u64),
            grouped(self.report.plan.clients as u64),
            each.collect::<Vec<_>>().join("; "),
        )
    }
}

fn advice(
    report: &IoModelsReport,
    memory: Option<&Memory<'_>>,
    blocking: Option<&Blocking<'_>>,
) -> Option<String> {
    let event = report.plan.event_driven?;
    let mut parts = Vec::new();
    parts.extend(memory.map(|memory| for_many(report, event, memory.ratio())));
    if let Some(blocking) = blocking {
        parts.extend(for_blocking(report, event, blocking));
        parts.extend(blocking.inline_ratio().map(|ratio| match ratio >= DECIDES {
            true => format!(
                "not {event} with such a handler on its shards, where p99 was {} times the best",
                rounded(ratio)
            ),
            false => format!(
                "on the shards of {event} such a handler did little harm here (p99 {} times the \
                 best)",
                rounded(ratio)
            ),
        }));
    }
    (!parts.is_empty()).then(|| format!("Which model you need: {}.", parts.join("; ")))
}

/// By memory.
fn for_many(report: &IoModelsReport, event: IoModel, ratio: f64) -> String {
    if ratio < DECIDES {
        return format!(
            "by memory either, because a connection costs threads {} times what it costs {event}",
            rounded(ratio)
        );
    }
    let room = report.plan.most_threads.map_or_else(String::new, |most| {
        let most = grouped(most as u64);
        format!(", and there are descriptors for {most} of them on this machine")
    });
    let ratio = rounded(ratio);
    format!(
        "{event} for many connections, because one costs threads {ratio} times the memory{room}"
    )
}

/// By the handler that blocks.
fn for_blocking(
    report: &IoModelsReport,
    event: IoModel,
    blocking: &Blocking<'_>,
) -> Option<String> {
    let threads = blocking.p99(Variant::Threads)?;
    let (workers, size) = match blocking.p99(Variant::WorkersByRule) {
        Some(p99) => (p99, report.plan.workers_by_rule),
        None => (blocking.p99(Variant::Workers)?, report.plan.cpus),
    };
    let pool = format!("{event} with {} workers", grouped(size as u64));
    let (ratio, p99) = (workers / threads.max(1.0), "p99");
    Some(if ratio > LEVEL {
        let ratio = rounded(ratio);
        format!("threads for handlers that block, because {p99} is {ratio} times as long on {pool}")
    } else if ratio < 1.0 / LEVEL {
        let ratio = rounded(1.0 / ratio);
        format!("{pool} for handlers that block, because {p99} is {ratio} times as long on threads")
    } else {
        let ratio = rounded(ratio);
        format!("threads or {pool} for handlers that block, because {p99} is level ({ratio} to 1)")
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{blocking, example};
    use super::super::report::{BlockingRow, CellFigures};
    use super::*;

    fn with(rows: Vec<BlockingRow>) -> String {
        let report = IoModelsReport { blocking: rows, ..example() };
        sentences(&report).join("\n")
    }

    #[test]
    fn ratios_are_of_the_largest_size_that_both_held() {
        let text = sentences(&example()).join("\n");
        assert!(text.contains("With 1,000 idle connections"), "{text}");
        assert!(text.contains("23.4 KiB of memory and 15.6 KiB of kernel stack"), "{text}");
        assert!(text.contains("epoll 100 B: 400 times as much"), "{text}");
        assert!(text.contains("one costs threads 400 times the memory"), "{text}");
    }

    #[test]
    fn the_advice_follows_the_figures_either_way() {
        let inline = || blocking(Variant::Inline, None, 390.0, 260_000.0);
        let threads = |p99| blocking(Variant::Threads, None, 10_000.0, p99);
        let rule = |p99| blocking(Variant::WorkersByRule, Some(102), 10_000.0, p99);
        let level = with(vec![inline(), rule(10_000.0), threads(10_500.0)]);
        assert!(level.contains("threads or epoll with") && level.contains("is level"), "{level}");
        assert!(level.contains("on its shards, where p99 was 26.0 times the best"), "{level}");
        let text = with(vec![inline(), rule(20_000.0), threads(10_000.0)]);
        assert!(
            text.contains("threads for handlers that block, because p99 is 2.00 times"),
            "{text}"
        );
        let text = with(vec![inline(), rule(10_000.0), threads(30_000.0)]);
        assert!(text.contains("because p99 is 3.00 times as long on threads"), "{text}");
        let harmless = blocking(Variant::Inline, None, 10_000.0, 11_000.0);
        let text = with(vec![harmless, rule(10_000.0), threads(10_000.0)]);
        assert!(text.contains("did little harm here (p99 1.10 times"), "{text}");
    }

    #[test]
    fn nothing_measured_is_nothing_said() {
        let mut report = example();
        (report.idle, report.connect) = (Vec::new(), Vec::new());
        for row in &mut report.blocking {
            row.cell = CellFigures::missing("it ended".to_owned(), true);
        }
        assert_eq!(sentences(&report), [""; 0]);
    }

    #[test]
    fn a_model_without_memory_of_its_own_makes_no_endless_ratio() {
        let mut report = example();
        for row in &mut report.idle {
            if let Some(figures) = &mut row.cell.figures
                && row.model == IoModel::Epoll
            {
                figures.memory_bytes_per_connection = -3.0;
            }
        }
        let text = sentences(&report).join("\n");
        assert!(text.contains("40,000 times") && !text.contains("inf"), "{text}");
    }
}
