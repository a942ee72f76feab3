//! The comparison from beginning to end: for each number of shards and subscribers fresh processes,
//! and in them broadcasts of all variants in turn, so that what disturbs the machine disturbs all
//! alike.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use super::plan::ComparisonPlan;
use super::processes::{Broadcast, ProcessGroup};
use super::report::{ComparisonReport, Row};
use crate::servers::children::Role;
use crate::servers::wire::Variant;
use crate::spread::Spread;
use throng_load::Error;
use throng_load::report::Errors;
use throng_load::sampler::{CpuUsage, MachineSample, Memory};
use throng_load::verdict::{Facts, Verdict};

/// Progress of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComparisonProgress {
    /// Event loops of each server now measured.
    pub shards: usize,
    /// Its subscribers.
    pub subscribers: usize,
    /// They are being connected.
    pub connecting: bool,
    /// Broadcasts made, of the whole comparison.
    pub done: usize,
    /// Broadcasts of the whole comparison.
    pub total: usize,
}

/// Runs a comparison and reports. Blocks; `watch` is called before each broadcast.
///
/// When `stop` becomes true it ends early, with a report of the measurements that were complete.
///
/// # Errors
/// A plan that makes no sense, a process that failed, a broadcast that did not reach all
/// subscribers; and [`Error::Interrupted`] if it was stopped before there was anything to report.
pub(crate) fn run(
    plan: &ComparisonPlan,
    launch: &dyn Fn(&Role) -> Command,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&ComparisonProgress),
) -> Result<ComparisonReport, Error> {
    plan.check()?;
    let machine = MachineSample::now();
    let (mut rows, mut errors) = (Vec::new(), Errors::default());
    let mut progress = ComparisonProgress {
        shards: 0,
        subscribers: 0,
        connecting: true,
        done: 0,
        total: plan.broadcasts(),
    };
    for &shards in &plan.shards {
        for subscribers in plan.counts() {
            (progress.shards, progress.subscribers) = (shards, subscribers);
            let measured = cell(plan, shards, subscribers, launch, stop, &mut progress, watch);
            match measured {
                Ok((cell_rows, cell_errors)) => {
                    rows.extend(cell_rows);
                    errors.merge(cell_errors);
                }
                Err(Error::Interrupted) if !rows.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let busy = MachineSample::now().zip(machine).map(|(end, begin)| end.busy_since(&begin));
    Ok(ComparisonReport::new(plan, rows, errors, busy))
}

/// All variants with so many shards and subscribers.
fn cell(
    plan: &ComparisonPlan,
    shards: usize,
    subscribers: usize,
    launch: &dyn Fn(&Role) -> Command,
    stop: &AtomicBool,
    progress: &mut ComparisonProgress,
    watch: &mut dyn FnMut(&ComparisonProgress),
) -> Result<(Vec<Row>, Errors), Error> {
    progress.connecting = true;
    watch(progress);
    let mut group = ProcessGroup::gather(plan, shards, subscribers, launch, stop)?;
    progress.connecting = false;
    let mut broadcasts = vec![Vec::with_capacity(plan.rounds); plan.variants.len()];
    for round in 0..plan.warmup_rounds + plan.rounds {
        for turn in 0..plan.variants.len() {
            // Another variant goes first in each round: none is always the one that finds the
            // caches cold.
            let at = (turn + round) % plan.variants.len();
            watch(progress);
            let broadcast = group.broadcast(plan.variants[at])?;
            if round >= plan.warmup_rounds {
                broadcasts[at].push(broadcast);
            }
            progress.done += 1;
        }
    }
    let memory = group.server_processes.memory();
    let cpus = group.server_processes.cpus_allowed();
    let errors = group.part()?;
    let row = |(&variant, broadcasts): (&Variant, &Vec<Broadcast>)| {
        let setting = Setting { variant, shards, subscribers, processes: plan.processes };
        row(setting, broadcasts, memory, cpus, errors.total())
    };
    let rows = plan.variants.iter().zip(&broadcasts).map(row).collect();
    Ok((rows, errors))
}

/// Setting of one row.
#[derive(Clone, Copy, Debug)]
struct Setting {
    variant: Variant,
    shards: usize,
    subscribers: usize,
    processes: usize,
}

fn row(
    setting: Setting,
    broadcasts: &[Broadcast],
    memory: Option<Memory>,
    cpus: Option<usize>,
    failures: u64,
) -> Row {
    let Setting { variant, shards, subscribers, processes } = setting;
    let spread = |figure: fn(&Broadcast) -> f64| Spread::of(broadcasts.iter().map(figure));
    let server_cpu_us = spread(|broadcast| broadcast.server.cpu_s * 1e6);
    let facts = Facts {
        completed: broadcasts.len() as u64,
        failures,
        generator: usage(broadcasts, |broadcast| broadcast.clients),
        server: Some(usage(broadcasts, |broadcast| broadcast.server))
            .filter(|usage| usage.threads > 0),
        server_cpus: cpus,
        comparison: true,
        ..Facts::default()
    };
    Row {
        variant,
        shards,
        processes,
        subscribers,
        time_us: spread(|broadcast| broadcast.last_us),
        first_us: spread(|broadcast| broadcast.first_us),
        call_us: spread(|broadcast| broadcast.call_us),
        server_cpu_us,
        server_cpu_us_per_subscriber: server_cpu_us.map(|cpu| cpu.median / subscribers as f64),
        client_cpu_us: spread(|broadcast| broadcast.clients.cpu_s * 1e6),
        mailbox_waits: broadcasts.iter().map(|broadcast| broadcast.waits).sum(),
        server_rss_bytes: memory.map(|memory| memory.rss_bytes),
        verdict: Verdict::of(&facts),
    }
}

/// Returns the CPU use during broadcasts. The time of the samples is left out: the threads sleep
/// then, and a sleeping thread limits nothing.
fn usage(broadcasts: &[Broadcast], of: fn(&Broadcast) -> CpuUsage) -> CpuUsage {
    let wall_s: f64 =
        broadcasts.iter().map(|broadcast| broadcast.last_us.max(broadcast.call_us) / 1e6).sum();
    let seconds = |share: fn(&CpuUsage) -> f64| -> f64 {
        broadcasts.iter().map(&of).map(|usage| share(&usage) * usage.wall_s).sum()
    };
    let wall = wall_s.max(1e-9);
    CpuUsage {
        wall_s,
        cpu_s: seconds(|usage| usage.cores),
        cores: seconds(|usage| usage.cores) / wall,
        busiest_thread_cores: (seconds(|usage| usage.busiest_thread_cores) / wall).min(1.0),
        busiest_thread_waiting: (seconds(|usage| usage.busiest_thread_waiting) / wall).min(1.0),
        threads: broadcasts.iter().map(|broadcast| of(broadcast).threads).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_load::Limit;

    fn broadcast(last_us: f64, server_busy_s: f64) -> Broadcast {
        let usage = |busy_s: f64| CpuUsage {
            wall_s: 0.1,
            cpu_s: busy_s,
            cores: busy_s / 0.1,
            busiest_thread_cores: busy_s / 0.1,
            busiest_thread_waiting: 0.0,
            threads: 1,
        };
        Broadcast {
            first_us: last_us / 2.0,
            last_us,
            call_us: 5.0,
            server: usage(server_busy_s),
            clients: usage(0.001),
            waits: 1,
        }
    }

    #[test]
    fn a_row_is_the_middle_of_its_rounds_and_knows_who_was_the_limit() {
        let broadcasts =
            [broadcast(10_000.0, 0.0098), broadcast(12_000.0, 0.0119), broadcast(11_000.0, 0.0107)];
        let setting =
            Setting { variant: Variant::Publish, shards: 1, subscribers: 1_000, processes: 1 };
        let row = row(setting, &broadcasts, None, Some(2), 0);
        assert_eq!((row.time_us.unwrap().median, row.mailbox_waits), (11_000.0, 3));
        let each = row.server_cpu_us_per_subscriber.unwrap();
        assert!((each - 10.7).abs() < 1e-6, "{each}");
        assert_eq!(row.verdict.limit, Limit::Server, "{}", row.verdict.line);
        let failed = super::row(setting, &broadcasts, None, Some(2), 1);
        assert_eq!(failed.verdict.limit, Limit::Invalid);
    }

    #[test]
    fn nothing_measured_is_not_valid() {
        let setting = Setting { variant: Variant::Naive, shards: 1, subscribers: 1, processes: 1 };
        let row = row(setting, &[], None, None, 0);
        assert_eq!((row.time_us, row.verdict.limit), (None, Limit::Invalid));
        assert_eq!(usage(&[], |broadcast| broadcast.server).cores, 0.0);
    }
}
