//! One message to all subscribers in three variants: the time until the last subscriber has it, and
//! its cost to the server.
//!
//! The server and the subscribers are separate processes. So each has its own CPU time and its own
//! descriptor limit, and several processes together can hold more subscribers than one. This
//! process only asks and counts; [`parts`](crate::parts) has the messages between them.

mod flags;
mod processes;
mod report;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use throng_load::report::Errors;
use throng_load::sampler::{CpuUsage, Memory};
use throng_load::units::grouped;
use throng_load::verdict::{Facts, Verdict};
use throng_load::{Error, Progress, RunStage};

pub use flags::{Broadcast, EXAMPLES};
pub use report::{BroadcastReport, BroadcastRow};

use self::processes::{OneBroadcast, ProcessGroup};
use self::report::shard_words;
use crate::bench::Bench;
use crate::comparison::{Comparison, Measured};
use crate::parts::Variant;
use crate::run::turned;
use crate::spread::Spread;

/// Servers with this many shards, and their subscribers, in new processes. Broadcasts of all
/// variants alternate there, so that a disturbance of the machine affects all variants equally.
#[derive(Clone, Copy, Debug)]
pub struct Audience {
    shards: usize,
    subscribers: usize,
}

impl fmt::Display for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subscribers = grouped(self.subscribers as u64);
        write!(f, "{subscribers} subscribers, {}", shard_words(self.shards))
    }
}

/// The rows of one audience, one row for each variant.
#[derive(Clone, Debug)]
pub struct AudienceRows {
    rows: Vec<BroadcastRow>,
    errors: Errors,
}

impl Comparison for Broadcast {
    type Cell = Audience;
    type Row = AudienceRows;
    type Findings = BroadcastReport;

    const NAME: &'static str = "broadcast";

    fn prepare(&mut self) -> Result<(), Error> {
        self.check()
    }

    fn cells(&self) -> Vec<Audience> {
        let counts = self.counts();
        let of = |&shards| counts.iter().map(move |&subscribers| Audience { shards, subscribers });
        self.shards.iter().flat_map(of).collect()
    }

    fn estimate(&self, audience: &Audience) -> Duration {
        let broadcasts = self.variants().len() * (self.rounds + self.warmup_rounds);
        // The time to connect, and two microseconds for each subscriber and broadcast.
        let connecting = Duration::from_micros(150 * audience.subscribers as u64);
        connecting + Duration::from_micros(2 * (broadcasts * audience.subscribers) as u64)
    }

    fn measure(&self, audience: &Audience, bench: &mut Bench<'_>) -> Result<AudienceRows, Error> {
        let Audience { shards, subscribers } = *audience;
        let variants = self.variants();
        let mut group = ProcessGroup::gather(self, shards, subscribers, bench.launch, bench.stop)?;
        let mut broadcasts = vec![Vec::with_capacity(self.rounds); variants.len()];
        let order: Vec<usize> = (0..variants.len()).collect();
        let rounds = self.warmup_rounds + self.rounds;
        let (mut done, total) = (0, (rounds * variants.len()) as u64);
        for round in 0..rounds {
            for at in turned(&order, round) {
                let stage = RunStage::Counting { done, total };
                let connections = subscribers as u64;
                (bench.watch)(&Progress { stage, connections, done, per_s: 0.0 });
                let broadcast = group.broadcast(variants[at])?;
                if round >= self.warmup_rounds {
                    broadcasts[at].push(broadcast);
                }
                done += 1;
            }
        }
        let memory = group.server_processes.memory();
        let cpus = group.server_processes.cpus_allowed();
        let errors = group.part()?;
        let row = |(&variant, broadcasts): (&Variant, &Vec<OneBroadcast>)| {
            let setting = Setting { variant, shards, subscribers, processes: self.processes };
            row(setting, broadcasts, memory, cpus, errors.total())
        };
        let rows = variants.iter().zip(&broadcasts).map(row).collect();
        Ok(AudienceRows { rows, errors })
    }

    fn report(self, measured: Measured<AudienceRows>) -> BroadcastReport {
        let (mut rows, mut errors) = (Vec::new(), Errors::default());
        for audience in measured.rows {
            rows.extend(audience.rows);
            errors.merge(audience.errors);
        }
        BroadcastReport::new(&self, rows, errors, measured.machine_busy_share)
    }
}

/// The setting of one row.
#[derive(Clone, Copy, Debug)]
struct Setting {
    variant: Variant,
    shards: usize,
    subscribers: usize,
    processes: usize,
}

fn row(
    setting: Setting,
    broadcasts: &[OneBroadcast],
    memory: Option<Memory>,
    cpus: Option<usize>,
    failures: u64,
) -> BroadcastRow {
    let Setting { variant, shards, subscribers, processes } = setting;
    let spread = |figure: fn(&OneBroadcast) -> f64| Spread::of(broadcasts.iter().map(figure));
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
    BroadcastRow {
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

/// Returns the CPU use during broadcasts, without the sampling time: the threads sleep then, and a
/// sleeping thread limits nothing.
fn usage(broadcasts: &[OneBroadcast], of: fn(&OneBroadcast) -> CpuUsage) -> CpuUsage {
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
mod row_tests {
    use super::*;
    use throng_load::Limit;

    fn broadcast(last_us: f64, server_busy_s: f64) -> OneBroadcast {
        let usage = |busy_s: f64| CpuUsage {
            wall_s: 0.1,
            cpu_s: busy_s,
            cores: busy_s / 0.1,
            busiest_thread_cores: busy_s / 0.1,
            busiest_thread_waiting: 0.0,
            threads: 1,
        };
        OneBroadcast {
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
