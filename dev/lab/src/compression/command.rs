//! `lab compression`: what compression costs and saves, setting by setting, on servers of our own.

use std::process::ExitCode;
use std::time::Duration;

use crate::compression::CompressionPlan;
use throng_config::units::{parse_duration, parse_size};
use throng_load::{Deflate, DeflateMode};

use crate::servers::children::OwnServer;
use throng_cli::Failure;
use throng_cli::bench::deflate::parse;
use throng_cli::bench::output;
use throng_cli::bench::progress::StatusLine;
use throng_cli::signals::Stop;

pub(crate) const EXAMPLES: &str = "Examples:
  lab compression
  lab compression --size 1KiB --html deflate.html
  lab compression --settings off,no-context,window:10 --connections 15000 --csv

What the table says:
  memory/conn    what the server's resident memory grew by for each connection, after use
  CPU/message    server CPU for one message that came and one that was composed and sent
  sent on        the same when the server sends on what came (no-context: not compressed again)
  size           of a message from the server, as part of its plain size";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Settings to compare: off, no-context, window:BITS (9 to 15) [default: all of them]
    #[arg(long, value_name = "MODE", value_delimiter = ',', value_parser = parse)]
    settings: Vec<Deflate>,
    /// Connections
    #[arg(long, short, value_name = "N", default_value_t = 1000)]
    connections: usize,
    /// Bytes of a JSON document, such as 136 or 4KiB
    #[arg(long, short, value_name = "SIZE", default_value = "256", value_parser = parse_size)]
    size: usize,
    /// Seed of the documents; equal seeds make equal documents
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Time measured of each setting, such as 10s or 1.5s
    #[arg(long, short, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    duration: Duration,
    /// Time run before and not counted
    #[arg(long, short, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    warmup: Duration,
    /// Give up when set-up makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    setup_timeout: Duration,
    #[command(flatten)]
    output: output::OutputArgs,
}

/// Returns the text that [`parse`] reads as `deflate`.
fn written(deflate: &Deflate) -> String {
    match deflate.mode {
        _ if !deflate.enabled => "off".to_owned(),
        DeflateMode::Window { bits } => format!("window:{bits}"),
        _ => "no-context".to_owned(),
    }
}

/// Compares, and shows the report.
pub(crate) fn run(args: Args, stop: &Stop) -> Result<ExitCode, Failure> {
    args.output.check()?;
    let plan = args.plan();
    let mut line = StatusLine::new("deflate", args.output.quiet);
    let start =
        |deflate: &Deflate| OwnServer::start_with(1, &["--deflate".to_owned(), written(deflate)]);
    let outcome = crate::compression::run(&plan, &start, stop.flag(), &mut |deflate, progress| {
        line.rename(&written(deflate));
        line.show(progress);
    });
    drop(line);
    args.output.show(&outcome?)
}

impl Args {
    fn plan(&self) -> CompressionPlan {
        let usual = CompressionPlan::default();
        let settings = match self.settings.is_empty() {
            true => usual.settings,
            false => self.settings.clone(),
        };
        CompressionPlan {
            settings,
            connections: self.connections,
            size: self.size,
            seed: self.seed,
            duration: self.duration,
            warmup: self.warmup,
            setup_timeout: self.setup_timeout,
        }
    }
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

    fn plan(line: &str) -> Result<CompressionPlan, String> {
        let words = std::iter::once("deflate").chain(line.split_whitespace());
        let bench = Bench::try_parse_from(words).map_err(|error| error.to_string())?;
        let plan = bench.args.plan();
        plan.check().map_err(|error| error.to_string())?;
        Ok(plan)
    }

    #[test]
    fn flags_become_a_plan() {
        let usual = plan("").unwrap();
        assert_eq!((usual.settings.len(), usual.connections, usual.size), (9, 1000, 256));
        let line = "--settings off,shared,window:12 -c 50 -s 1KiB --seed 5 -d 1s -w 0s";
        let plan = plan(line).unwrap();
        let words: Vec<String> = plan.settings.iter().map(written).collect();
        assert_eq!(words, ["off", "no-context", "window:12"]);
        assert_eq!((plan.connections, plan.size, plan.seed), (50, 1024, 5));
    }

    #[test]
    fn mistakes_teach() {
        for (line, words) in [
            ("--settings window", "window:BITS"),
            ("--settings window:8", "9 to 15"),
            ("--settings window:x", "9 to 15"),
            ("--size 10", "--size is 10"),
            ("--connections 0", "--connections"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
