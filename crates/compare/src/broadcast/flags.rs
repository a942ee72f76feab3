//! The flags of a comparison of broadcasts, which are checked before any process is started.

use std::time::Duration;

use clap::ValueEnum as _;
use throng_config::units::{parse_duration, parse_size};
use throng_load::units::grouped;
use throng_load::{Error, MAX_SHARDS, deflate, descriptors};

use crate::parts::{Variant, message};

/// The examples and the meaning of the columns, for help.
pub const EXAMPLES: &str = "Examples:
  lab broadcast
  lab broadcast --subscribers 1000,5000,15000 --shards 1,2 --html broadcast.html
  lab broadcast --subscribers 60000 --processes 4 --rounds 10
  lab broadcast --variants encoded,publish --size 16KiB --csv > broadcast.csv

What the table says, each the median of the rounds:
  last has it    from the call until the last subscriber has the message
  quartiles      of the same: half of the rounds lie between them
  first          until the first subscriber has it
  call           until the call returns to the program that broadcasts
  server CPU     of all server threads for one broadcast; CPU each: by subscriber
  naive/this     how many times as long the naive loop takes

Several server processes share one port, and each has its own descriptor limit: with
--processes 4 a limit of 20,000 holds 76,000 subscribers.";

/// Subscribers compared when nothing else is asked for; fewer where descriptors do not allow them.
const DEFAULT_SUBSCRIBERS: [usize; 3] = [1_000, 5_000, 15_000];

/// Descriptors of a server that are not subscribers: streams, listeners, polls, those it keeps back
/// for refusals.
const SERVER_RESERVE: usize = 192;
/// Part of a server's room that is left for an uneven spread: six standard deviations at 15,000 in
/// four processes.
const UNEVEN: usize = 32;
/// Maximum rounds, since each round stays in memory until the end.
const MAX_ROUNDS: usize = 10_000;
/// Maximum server processes.
const MAX_PROCESSES: usize = 64;

/// A comparison of ways to send one message to all.
#[derive(Clone, Debug, clap::Args)]
pub struct Broadcast {
    /// Subscribers; a list is measured one after the other [default: 1000,5000,15000]
    #[arg(long, short = 'n', value_name = "N", value_delimiter = ',')]
    pub subscribers: Vec<usize>,
    /// Event loops of each server process; a list is measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub shards: Vec<usize>,
    /// The variants to compare
    #[arg(
        long,
        value_name = "WAY",
        value_delimiter = ',',
        default_value = "naive,encoded,publish"
    )]
    pub variants: Vec<Variant>,
    /// Payload of the message, such as 100, 4KiB or 1MiB
    #[arg(long, short, value_name = "SIZE", default_value = "100", value_parser = parse_size)]
    pub size: usize,
    /// Compression of the message: off, no-context or window:BITS
    #[arg(long, value_name = "MODE", default_value = "off")]
    pub deflate: String,
    /// Broadcasts of each variant to measure
    #[arg(long, short, value_name = "K", default_value_t = 20)]
    pub rounds: usize,
    /// Broadcasts of each variant before those
    #[arg(long, value_name = "K", default_value_t = 2)]
    pub warmup_rounds: usize,
    /// Server processes behind one port; the kernel spreads the subscribers over them
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub processes: usize,
    /// Processes of subscribers for each server process
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub clients: usize,
    /// Longest wait for one broadcast to reach all subscribers
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Give up when connecting makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub setup_timeout: Duration,
}

impl Broadcast {
    /// The compared variants in the order of the reports, each once.
    pub(super) fn variants(&self) -> Vec<Variant> {
        let all = Variant::value_variants().iter().copied();
        all.filter(|variant| self.variants.contains(variant)).collect()
    }

    /// The numbers of subscribers to measure: those asked for, or the usual ones as far as
    /// descriptors allow; ascending.
    pub(super) fn counts(&self) -> Vec<usize> {
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
    pub(crate) fn possible(&self, hard_limit: Option<u64>) -> Option<usize> {
        let shards = self.shards.iter().copied().max().unwrap_or(1);
        let each = (hard_limit? as usize).saturating_sub(SERVER_RESERVE + 4 * shards);
        // The kernel spreads by a hash: with several, some get more than their share.
        let slack = if self.processes > 1 { each / UNEVEN } else { 0 };
        Some((each - slack).saturating_mul(self.processes))
    }

    /// Refuses invalid flags.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag, the value and what to write instead.
    pub(super) fn check(&self) -> Result<(), Error> {
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
        if let Err(why) = deflate::parse(&self.deflate) {
            return refuse(format!("--deflate {}: {why}", self.deflate));
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
    use crate::comparison::{assert_refused, from_flags};

    fn usual() -> Broadcast {
        from_flags(&[]).unwrap()
    }

    const LIMIT: Option<u64> = Some(20_000);

    #[test]
    fn the_usual_numbers_are_cut_to_what_is_possible() {
        let plan = usual();
        assert_eq!(plan.counts_within(LIMIT), [1_000, 5_000, 15_000]);
        assert_eq!(plan.counts_within(None), [1_000, 5_000, 15_000]);
        assert_eq!(plan.counts_within(Some(1_024)), [828]);
        assert_eq!(plan.counts_within(Some(4_096)), [1_000, 3_900]);
        let asked = Broadcast { subscribers: vec![300, 100, 300], ..usual() };
        assert_eq!(asked.counts_within(LIMIT), [100, 300]);
    }

    #[test]
    fn more_processes_hold_more_subscribers() {
        let plan = Broadcast { subscribers: vec![60_000], ..usual() };
        let error = plan.check_within(LIMIT).unwrap_err().to_string();
        for words in
            ["--subscribers 60,000", "20,000 a process", "room for 19,804", "--processes 4"]
        {
            assert!(error.contains(words), "{words:?} in {error}");
        }
        assert!(Broadcast { processes: 4, ..plan.clone() }.check_within(LIMIT).is_ok());
        let close = Broadcast { subscribers: vec![39_000], processes: 2, ..plan.clone() };
        let error = close.check_within(LIMIT).unwrap_err().to_string();
        assert!(error.contains("--subscribers 38372, or --processes 3"), "{error}");
        assert!(plan.check_within(None).is_ok());
    }

    #[test]
    fn nonsense_is_refused_by_name_and_value() {
        let fine = usual;
        for (plan, words) in [
            (Broadcast { rounds: 0, ..fine() }, "--rounds is 0"),
            (Broadcast { size: 10, ..fine() }, "--size is 10; it must be between 24"),
            (Broadcast { processes: 65, ..fine() }, "--processes is 65"),
            (Broadcast { clients: 0, ..fine() }, "--clients is 0"),
            (Broadcast { shards: vec![1, 0], ..fine() }, "--shards is 0"),
            (Broadcast { variants: Vec::new(), ..fine() }, "--variants"),
            (Broadcast { timeout: Duration::ZERO, ..fine() }, "--timeout"),
            (
                Broadcast { subscribers: vec![3], processes: 2, clients: 2, ..fine() },
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

    #[test]
    fn flags_are_read() {
        let usual = usual();
        assert_eq!(usual.variants().len(), 3);
        assert!(usual.subscribers.is_empty() && usual.shards == [1]);
        let line = "-n 50,100 --shards 1,2 --variants publish,naive,naive --size 1KiB";
        let flags: Vec<&str> = line.split(' ').collect();
        let asked: Broadcast = from_flags(&flags).unwrap();
        assert_eq!((&asked.subscribers, &asked.shards), (&vec![50, 100], &vec![1, 2]));
        assert_eq!(asked.variants(), [Variant::Naive, Variant::Publish], "as in the reports");
        assert_eq!(asked.size, 1024);
        assert_refused::<Broadcast>(&[
            ("--variants naif", "naive"),
            ("--rounds 0", "--rounds is 0"),
            ("--deflate always", "--deflate always"),
        ]);
    }
}
