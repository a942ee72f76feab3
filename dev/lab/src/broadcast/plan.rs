//! Plan of a comparison, which is validated before any process is started.

use std::time::Duration;

use crate::servers::message;
use crate::servers::wire::Variant;
use throng_load::units::grouped;
use throng_load::{Error, MAX_SHARDS, Target, descriptors};

/// Subscribers compared when nothing else is asked for; fewer where descriptors do not allow them.
pub(crate) const DEFAULT_SUBSCRIBERS: [usize; 3] = [1_000, 5_000, 15_000];

/// Descriptors of a server that are not subscribers: streams, listeners, polls, those it keeps back
/// for refusals.
const SERVER_RESERVE: usize = 192;
/// Part of a server's room that is left for an uneven spread: six standard deviations at 15,000 in
/// four processes.
const UNEVEN: usize = 32;
/// Maximum rounds: each is kept in memory until the end.
const MAX_ROUNDS: usize = 10_000;
/// Maximum server processes.
const MAX_PROCESSES: usize = 64;

/// A whole comparison.
#[derive(Clone, Debug)]
pub(crate) struct ComparisonPlan {
    /// The variants compared, each round all of them in turn. Default all.
    pub variants: Vec<Variant>,
    /// Numbers of subscribers, one measurement each. Empty means [`DEFAULT_SUBSCRIBERS`], as far as
    /// descriptors allow.
    pub subscribers: Vec<usize>,
    /// Event loops of each server process, one measurement each. Default 1.
    pub shards: Vec<usize>,
    /// Payload bytes of the message, at least [`message::SMALLEST`]. Default 100.
    pub size: usize,
    /// Broadcasts measured of each variant. Default 20.
    pub rounds: usize,
    /// Broadcasts of each variant before those that count. Default 2.
    pub warmup_rounds: usize,
    /// Server processes. They share one port, and the kernel spreads the subscribers over them.
    /// Default 1.
    pub processes: usize,
    /// Processes of subscribers for each server process. Default 1.
    pub clients: usize,
    /// Longest wait for one broadcast to reach all subscribers. Default 30 s.
    pub timeout: Duration,
    /// Longest time without progress while subscribers connect. Default 10 s.
    pub setup_timeout: Duration,
}

impl Default for ComparisonPlan {
    fn default() -> Self {
        Self {
            variants: Variant::ALL.to_vec(),
            subscribers: Vec::new(),
            shards: vec![1],
            size: 100,
            rounds: 20,
            warmup_rounds: 2,
            processes: 1,
            clients: 1,
            timeout: Duration::from_secs(30),
            setup_timeout: Duration::from_secs(10),
        }
    }
}

/// One process's subscribers.
#[derive(Clone, Debug)]
pub(crate) struct SubscriberPlan {
    /// The server; with its path.
    pub target: Target,
    /// Subscribers of the process.
    pub subscribers: usize,
    /// Connections to this address from all processes, which determine the source addresses.
    pub of: usize,
    /// Number of this process's first among them.
    pub first: usize,
    /// Payload bytes of the message.
    pub size: usize,
    /// Longest time without progress while they connect.
    pub setup_timeout: Duration,
}

/// Part `index` of `total` in `parts` parts that differ by one at most.
pub(super) fn share(total: usize, parts: usize, index: usize) -> usize {
    total / parts + usize::from(index < total % parts)
}

impl ComparisonPlan {
    /// The numbers of subscribers to measure: those asked for, or the usual ones as far as
    /// descriptors allow; ascending.
    #[must_use]
    pub(crate) fn counts(&self) -> Vec<usize> {
        self.counts_within(descriptors::hard_limit())
    }

    fn counts_within(&self, hard_limit: Option<u64>) -> Vec<usize> {
        let mut counts = self.subscribers.clone();
        if counts.is_empty() {
            let most = self.possible(hard_limit).unwrap_or(usize::MAX).max(1);
            counts.extend(DEFAULT_SUBSCRIBERS.map(|count| count.min(most)));
        }
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// Maximum subscribers that this machine's descriptor limit allows with this many processes.
    fn possible(&self, hard_limit: Option<u64>) -> Option<usize> {
        let shards = self.shards.iter().copied().max().unwrap_or(1);
        let each = (hard_limit? as usize).saturating_sub(SERVER_RESERVE + 4 * shards);
        // The kernel spreads by a hash: with several, some get more than their share.
        let slack = if self.processes > 1 { each / UNEVEN } else { 0 };
        Some((each - slack).saturating_mul(self.processes))
    }

    /// Broadcasts of the whole comparison, for showing progress.
    #[must_use]
    pub(crate) fn broadcasts(&self) -> usize {
        let each = self.variants.len() * (self.rounds + self.warmup_rounds);
        self.counts().len() * self.shards.len() * each
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag, the value and what to write instead.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_within(descriptors::hard_limit())
    }

    fn check_within(&self, hard_limit: Option<u64>) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        let out_of = |flag: &str, value: usize, low: usize, high: usize| {
            refuse(format!(
                "{flag} is {value}; it must be between {low} and {}",
                grouped(high as u64)
            ))
        };
        for (flag, value, low, high) in [
            ("--rounds", self.rounds, 1, MAX_ROUNDS),
            ("--warmup-rounds", self.warmup_rounds, 0, MAX_ROUNDS),
            ("--processes", self.processes, 1, MAX_PROCESSES),
            ("--clients", self.clients, 1, MAX_PROCESSES),
            ("--size", self.size, message::SMALLEST, 4 << 20),
        ] {
            if !(low..=high).contains(&value) {
                return out_of(flag, value, low, high);
            }
        }
        let is_out = |shards: &&usize| !(1..=MAX_SHARDS).contains(*shards);
        if let Some(&shards) = self.shards.iter().find(is_out) {
            return out_of("--shards", shards, 1, MAX_SHARDS);
        }
        if self.variants.is_empty() || self.shards.is_empty() {
            return refuse("--variants and --shards need at least one value".to_owned());
        }
        if self.timeout.is_zero() || self.setup_timeout.is_zero() {
            return refuse("--timeout and --setup-timeout must be longer than 0s".to_owned());
        }
        let least = self.processes * self.clients;
        for count in self.counts_within(hard_limit) {
            if count < least {
                return refuse(format!(
                    "--subscribers {count} are fewer than the {least} processes that share them; \
                     take at least {least}, or fewer --processes and --clients"
                ));
            }
            let Some(possible) = self.possible(hard_limit).filter(|&possible| count > possible)
            else {
                continue;
            };
            let several = Self { processes: self.processes.max(2), ..self.clone() };
            let each =
                several.possible(hard_limit).map_or(1, |all| (all / several.processes).max(1));
            return refuse(format!(
                "--subscribers {} are more than this machine's descriptor limit allows: its hard \
                 limit of {} a process leaves room for {} with {} server process{}. Use \
                 --subscribers {possible}, or --processes {}, or raise the limit (ulimit -Hn, or \
                 LimitNOFILE= in a systemd unit)",
                grouped(count as u64),
                grouped(hard_limit.unwrap_or(0)),
                grouped(possible as u64),
                self.processes,
                if self.processes == 1 { "" } else { "es" },
                count.div_ceil(each),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Option<u64> = Some(20_000);

    #[test]
    fn the_usual_numbers_are_cut_to_what_is_possible() {
        let plan = ComparisonPlan::default();
        assert_eq!(plan.counts_within(LIMIT), [1_000, 5_000, 15_000]);
        assert_eq!(plan.counts_within(None), [1_000, 5_000, 15_000]);
        assert_eq!(plan.counts_within(Some(1_024)), [828]);
        assert_eq!(plan.counts_within(Some(4_096)), [1_000, 3_900]);
        let asked =
            ComparisonPlan { subscribers: vec![300, 100, 300], ..ComparisonPlan::default() };
        assert_eq!(asked.counts_within(LIMIT), [100, 300]);
        assert_eq!(asked.broadcasts(), 2 * 3 * 22);
    }

    #[test]
    fn shares_add_up() {
        for (total, parts) in [(10, 1), (10, 3), (60_000, 4), (7, 7)] {
            let shares: Vec<_> = (0..parts).map(|index| share(total, parts, index)).collect();
            assert_eq!(shares.iter().sum::<usize>(), total);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn more_processes_hold_more_subscribers() {
        let plan = ComparisonPlan { subscribers: vec![60_000], ..ComparisonPlan::default() };
        let error = plan.check_within(LIMIT).unwrap_err().to_string();
        for words in
            ["--subscribers 60,000", "20,000 a process", "room for 19,804", "--processes 4"]
        {
            assert!(error.contains(words), "{words:?} in {error}");
        }
        assert!(ComparisonPlan { processes: 4, ..plan.clone() }.check_within(LIMIT).is_ok());
        let close = ComparisonPlan { subscribers: vec![39_000], processes: 2, ..plan.clone() };
        let error = close.check_within(LIMIT).unwrap_err().to_string();
        assert!(error.contains("--subscribers 38372, or --processes 3"), "{error}");
        assert!(plan.check_within(None).is_ok());
    }

    #[test]
    fn nonsense_is_refused_by_name_and_value() {
        let fine = ComparisonPlan::default;
        for (plan, words) in [
            (ComparisonPlan { rounds: 0, ..fine() }, "--rounds is 0"),
            (ComparisonPlan { size: 10, ..fine() }, "--size is 10; it must be between 24"),
            (ComparisonPlan { processes: 65, ..fine() }, "--processes is 65"),
            (ComparisonPlan { clients: 0, ..fine() }, "--clients is 0"),
            (ComparisonPlan { shards: vec![1, 0], ..fine() }, "--shards is 0"),
            (ComparisonPlan { variants: Vec::new(), ..fine() }, "--variants"),
            (ComparisonPlan { timeout: Duration::ZERO, ..fine() }, "--timeout"),
            (
                ComparisonPlan { subscribers: vec![3], processes: 2, clients: 2, ..fine() },
                "--subscribers 3",
            ),
        ] {
            let error = plan.check_within(LIMIT).unwrap_err();
            assert!(
                error.to_string().contains(words) && error.exit_code() == 2,
                "{words}: {error}"
            );
        }
        assert!(fine().check_within(LIMIT).is_ok());
    }
}
