//! `throng bench broadcast`: the three ways compared on servers of our own, or a publish on a foreign one.

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use throng_load::cast::wire::Way;
use throng_load::cast::{CastPlan, CastReport};
use throng_load::units::{parse_duration, parse_size};
use throng_load::{Error, Mode, Plan, Target};

use super::args::Output;
use super::{measure, output, own, progress};
use crate::Failure;
use crate::signals::Stop;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench broadcast
  throng bench broadcast --subscribers 1000,5000,15000 --shards 1,2 --html broadcast.html
  throng bench broadcast --subscribers 60000 --processes 4 --rounds 10
  throng bench broadcast --ways encoded,publish --size 16KiB --csv > broadcast.csv
  throng bench broadcast --against ws://127.0.0.1:9001/ws/news --subscribers 15000

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
pub(super) struct Args {
    /// Subscribers; a list is measured one after the other [default: 1000,5000,15000]
    #[arg(long, short = 'n', value_name = "N", value_delimiter = ',')]
    subscribers: Vec<usize>,
    /// Event loops of each server process; a list is measured one after the other
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1",
        conflicts_with = "against"
    )]
    shards: Vec<usize>,
    /// The ways to compare
    #[arg(
        long,
        value_name = "WAY",
        value_delimiter = ',',
        default_value = "naive,encoded,publish",
        conflicts_with = "against"
    )]
    ways: Vec<WayArg>,
    /// Payload of the message, such as 100, 4KiB or 1MiB
    #[arg(long, short, value_name = "SIZE", default_value = "100", value_parser = parse_size)]
    size: usize,
    /// Broadcasts of each way to measure
    #[arg(long, short, value_name = "K", default_value_t = 20)]
    rounds: usize,
    /// Broadcasts of each way before those
    #[arg(long, value_name = "K", default_value_t = 2, conflicts_with = "against")]
    warmup_rounds: usize,
    /// Server processes behind one port; the kernel spreads the subscribers over them
    #[arg(long, value_name = "K", default_value_t = 1, conflicts_with = "against")]
    processes: usize,
    /// Processes of subscribers for each server process
    #[arg(long, value_name = "K", default_value_t = 1, conflicts_with = "against")]
    clients: usize,
    /// Longest wait for one broadcast to reach everybody
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Give up when connecting makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    setup_timeout: Duration,
    #[command(flatten)]
    output: output::OutputArgs,
    /// Measure a publish on this server, as ws://host:port/path, instead of comparing on our own
    #[arg(long, value_name = "URL", conflicts_with_all = ["csv", "html"], help_heading = "A foreign server")]
    against: Option<String>,
    /// Send text instead of binary (our own servers always get text)
    #[arg(long, requires = "against", help_heading = "A foreign server")]
    text: bool,
    /// Threads of this generator
    #[arg(
        long,
        short,
        value_name = "N",
        default_value_t = 1,
        requires = "against",
        help_heading = "A foreign server"
    )]
    threads: usize,
    /// The server's process, or several: 12,13 [default: whoever listens on the port]
    #[arg(
        long,
        value_name = "PID",
        value_delimiter = ',',
        requires = "against",
        help_heading = "A foreign server"
    )]
    server_pid: Vec<u32>,
}

/// A [`Way`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WayArg {
    /// A loop over all connections, encoding for each
    Naive,
    /// Encoded once, a reference to each connection
    Encoded,
    /// To a channel that all are members of
    Publish,
}

impl From<WayArg> for Way {
    fn from(way: WayArg) -> Self {
        match way {
            WayArg::Naive => Self::Naive,
            WayArg::Encoded => Self::Encoded,
            WayArg::Publish => Self::Publish,
        }
    }
}

/// Compares, or measures a foreign server, and shows the report.
pub(super) fn run(args: Args, stop: &Stop) -> Result<ExitCode, Failure> {
    if let Some(url) = &args.against {
        let plan = args.foreign(url)?;
        let output = Output { json: args.output.json, quiet: args.output.quiet };
        return measure(&plan, output, stop);
    }
    args.output.check()?;
    let plan = args.comparison();
    plan.check()?;
    let mut bar = progress::Bar::new("broadcast", args.output.quiet);
    let outcome = throng_load::cast::run(&plan, &own::command, stop.flag(), &mut |progress| {
        bar.show_cast(progress);
    });
    bar.finish();
    let report = outcome?;
    args.output.show(&report)?;
    Ok(ExitCode::from(report.exit_code()))
}

impl Args {
    fn comparison(&self) -> CastPlan {
        // A way named twice is measured once.
        let named = |way: &Way| self.ways.iter().any(|&named| Way::from(named) == *way);
        CastPlan {
            ways: Way::ALL.into_iter().filter(named).collect(),
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

    fn foreign(&self, url: &str) -> Result<Plan, Error> {
        let &[subscribers] = &self.subscribers[..] else {
            return Err(Error::Usage(
                "--against measures one number of subscribers at a time: give one, such as --subscribers 1000"
                    .to_owned(),
            ));
        };
        if self.rounds == 0 {
            return Err(Error::Usage("--rounds is 0; it must be at least 1".to_owned()));
        }
        let mode = Mode::Broadcast { publishes: self.rounds, timeout: self.timeout };
        let mut plan = Plan::new(Target::parse(url)?, mode);
        plan.connections = subscribers;
        (plan.size, plan.text, plan.threads) = (self.size, self.text, self.threads);
        (plan.setup_timeout, plan.server_pids) = (self.setup_timeout, self.server_pid.clone());
        plan.check()?;
        Ok(plan)
    }
}

output::shown!(CastReport);

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
        assert_eq!((plan.ways.len(), plan.rounds, plan.size, plan.processes), (3, 20, 100, 1));
        assert!(plan.subscribers.is_empty() && plan.shards == [1]);
        let line = "-n 50,100 --shards 1,2 --ways publish,naive,naive --rounds 3 --size 1KiB --processes 2";
        let plan = parse(line).unwrap().comparison();
        assert_eq!((plan.subscribers, plan.shards), (vec![50, 100], vec![1, 2]));
        assert_eq!(plan.ways, [Way::Naive, Way::Publish], "in the order of the reports");
        assert_eq!((plan.rounds, plan.size, plan.processes), (3, 1024, 2));
    }

    #[test]
    fn a_foreign_server_is_measured_by_a_plan() {
        let args = parse("--against ws://127.0.0.1:9001 -n 9 --rounds 4 --text -t 2").unwrap();
        let plan = args.foreign("ws://127.0.0.1:9001").unwrap();
        assert!(matches!(plan.mode, Mode::Broadcast { publishes: 4, .. }) && plan.connections == 9);
        assert_eq!((plan.resource(), plan.threads, plan.text), ("/ws/bench", 2, true));
        for (line, words) in [
            ("--against ws://h -n 1,2", "one number of subscribers"),
            ("--against ws://h", "one number of subscribers"),
            ("--against ws://h -n 5 --rounds 0", "--rounds is 0"),
            ("--against http://h -n 5", "did you mean ws://h?"),
        ] {
            let args = parse(line).unwrap();
            let error = args.foreign(args.against.as_deref().unwrap()).unwrap_err();
            assert!(error.to_string().contains(words) && error.exit_code() == 2, "{line}: {error}");
        }
    }

    #[test]
    fn flags_that_would_be_ignored_are_refused() {
        for line in [
            "--text",
            "--threads 2",
            "--against ws://h --shards 2",
            "--against ws://h --csv",
            "--json --csv",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("--ways naif").unwrap_err().contains("naive"));
    }
}
