//! `lab broadcast`: three variants to send one message to all, compared on servers of our own.

use std::process::ExitCode;
use std::time::Duration;

use crate::broadcast::ComparisonPlan;
use clap::ValueEnum;
use throng_config::units::{parse_duration, parse_size};
use throng_load::units::grouped;

use throng_cli::Failure;
use throng_cli::bench::output;
use throng_cli::bench::progress::StatusLine;
use throng_cli::signals::Stop;

use super::ComparisonProgress;
use crate::servers::children;
use crate::servers::wire::Variant;

pub(crate) const EXAMPLES: &str = "Examples:
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

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Subscribers; a list is measured one after the other [default: 1000,5000,15000]
    #[arg(long, short = 'n', value_name = "N", value_delimiter = ',')]
    subscribers: Vec<usize>,
    /// Event loops of each server process; a list is measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    shards: Vec<usize>,
    /// The variants to compare
    #[arg(
        long,
        value_name = "WAY",
        value_delimiter = ',',
        default_value = "naive,encoded,publish"
    )]
    variants: Vec<VariantArg>,
    /// Payload of the message, such as 100, 4KiB or 1MiB
    #[arg(long, short, value_name = "SIZE", default_value = "100", value_parser = parse_size)]
    size: usize,
    /// Broadcasts of each variant to measure
    #[arg(long, short, value_name = "K", default_value_t = 20)]
    rounds: usize,
    /// Broadcasts of each variant before those
    #[arg(long, value_name = "K", default_value_t = 2)]
    warmup_rounds: usize,
    /// Server processes behind one port; the kernel spreads the subscribers over them
    #[arg(long, value_name = "K", default_value_t = 1)]
    processes: usize,
    /// Processes of subscribers for each server process
    #[arg(long, value_name = "K", default_value_t = 1)]
    clients: usize,
    /// Longest wait for one broadcast to reach all subscribers
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Give up when connecting makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    setup_timeout: Duration,
    #[command(flatten)]
    output: output::OutputArgs,
}

/// A [`Variant`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VariantArg {
    /// A loop over all connections, encoding for each
    Naive,
    /// Encoded once, a reference to each connection
    Encoded,
    /// To a channel that all are members of
    Publish,
}

impl From<VariantArg> for Variant {
    fn from(variant: VariantArg) -> Self {
        match variant {
            VariantArg::Naive => Self::Naive,
            VariantArg::Encoded => Self::Encoded,
            VariantArg::Publish => Self::Publish,
        }
    }
}

/// Compares, or measures a foreign server, and shows the report.
pub(crate) fn run(args: Args, stop: &Stop) -> Result<ExitCode, Failure> {
    args.output.check()?;
    let plan = args.comparison();
    plan.check()?;
    let line = StatusLine::new("broadcast", args.output.quiet);
    let outcome = crate::broadcast::run(&plan, &children::command, stop.flag(), &mut |progress| {
        line.show_text(words(progress));
    });
    drop(line);
    args.output.show(&outcome?)
}

impl Args {
    fn comparison(&self) -> ComparisonPlan {
        // A variant named twice is measured once.
        let named =
            |variant: &Variant| self.variants.iter().any(|&named| Variant::from(named) == *variant);
        ComparisonPlan {
            variants: Variant::ALL.into_iter().filter(named).collect(),
            subscribers: self.subscribers.clone(),
            shards: self.shards.clone(),
            size: self.size,
            rounds: self.rounds,
            warmup_rounds: self.warmup_rounds,
            processes: self.processes,
            clients: self.clients,
            timeout: self.timeout,
            setup_timeout: self.setup_timeout,
        }
    }
}

fn words(progress: &ComparisonProgress) -> String {
    let subscribers = grouped(progress.subscribers as u64);
    let shards = progress.shards;
    let s = if shards == 1 { "" } else { "s" };
    if progress.connecting {
        return format!("connecting {subscribers} subscribers, {shards} shard{s}");
    }
    format!(
        "{subscribers} subscribers, {shards} shard{s}, broadcast {} of {}",
        grouped(progress.done as u64),
        grouped(progress.total as u64)
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Bench {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, String> {
        let words = std::iter::once("broadcast").chain(line.split_whitespace());
        Bench::try_parse_from(words).map(|bench| bench.args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_comparison_reads_its_flags() {
        let plan = parse("").unwrap().comparison();
        assert_eq!((plan.variants.len(), plan.rounds, plan.size, plan.processes), (3, 20, 100, 1));
        assert!(plan.subscribers.is_empty() && plan.shards == [1]);
        let line = "-n 50,100 --shards 1,2 --variants publish,naive,naive --rounds 3 --size 1KiB \
             --processes 2";
        let plan = parse(line).unwrap().comparison();
        assert_eq!((plan.subscribers, plan.shards), (vec![50, 100], vec![1, 2]));
        assert_eq!(
            plan.variants,
            [Variant::Naive, Variant::Publish],
            "in the order of the reports"
        );
        assert_eq!((plan.rounds, plan.size, plan.processes), (3, 1024, 2));
    }

    #[test]
    fn mistakes_teach() {
        for (line, words) in [("--json --csv", "cannot be used with"), ("--variants naif", "naive")]
        {
            assert!(parse(line).unwrap_err().contains(words), "{line}");
        }
    }

    #[test]
    fn a_comparison_says_where_it_is() {
        let mut progress = ComparisonProgress {
            shards: 1,
            subscribers: 15_000,
            connecting: true,
            done: 3,
            total: 66,
        };
        assert_eq!(words(&progress), "connecting 15,000 subscribers, 1 shard");
        (progress.connecting, progress.shards) = (false, 2);
        assert_eq!(words(&progress), "15,000 subscribers, 2 shards, broadcast 3 of 66");
    }
}
