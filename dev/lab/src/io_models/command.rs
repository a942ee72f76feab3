//! `lab io-models`: the server models side by side, on servers of our own.

use std::process::ExitCode;
use std::time::Duration;

use crate::io_models::{self, IoModel, IoModelsPlan, ServerPlan, Table};
use clap::ValueEnum;
use throng_config::units::parse_duration;
use throng_load::Error;

use crate::cells::CellLine;
use crate::servers::children::OwnServer;
use crate::servers::handler::Handler;
use throng_cli::Failure;
use throng_cli::bench::output;
use throng_cli::signals::Stop;

pub(crate) const EXAMPLES: &str = "Examples:
  lab io-models --html models.html                all tables at their usual sizes, in some minutes
  lab io-models --quick
  lab io-models --only idle --models threads,epoll --connections 1000,5000 --window 30s
  lab io-models --only workers --blocking 20ms --cpu 1ms --clients 500

The tables:
  idle       idle connections: CPU of the server, its memory and kernel stacks by connection
  connect    time until all are connected, and until each has had an echo
  workers    a handler that blocks: on the shards, on a pool of workers, on a thread each connection

What a model cannot do on this machine is reported in its cell. Figures of \"published\" rows are
those of other servers on other machines, for scale.";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which to compare: threads, epoll, portable [default: all that this system has]
    #[arg(long, value_name = "FAMILY", value_delimiter = ',')]
    models: Vec<IoModel>,
    /// Sizes of the tables idle and connect [default: 100,500,1000,1500,2000,2500,3000,3500,10000
    /// and 1000,3000,10000]
    #[arg(long, short, value_name = "N", value_delimiter = ',')]
    connections: Vec<usize>,
    /// Time for which CPU use is measured in each cell of the table idle [default: 10s, with
    /// --quick 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    window: Option<Duration>,
    /// Small sizes and short times, for a first look
    #[arg(long)]
    quick: bool,
    /// Only these tables
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    only: Vec<TableArg>,
    /// Time for which the handler of the table workers blocks for each message
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_duration)]
    blocking: Duration,
    /// Time for which it computes for each message; the number of workers follows from both
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = parse_duration)]
    cpu: Duration,
    /// Connections that keep it busy
    #[arg(long, value_name = "N", default_value_t = 100)]
    clients: usize,
    /// Time measured of each row of the table workers [default: 3s, with --quick 1s]
    #[arg(long, short, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Event loops of the event-driven models; 0 = one for each usable CPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    shards: usize,
    /// Give up a cell when its set-up makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    setup_timeout: Duration,
    #[command(flatten)]
    output: output::OutputArgs,
}

/// A table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TableArg {
    Idle,
    Connect,
    Workers,
}

/// Compares, and shows the report.
pub(crate) fn run(args: Args, stop: &Stop) -> Result<ExitCode, Failure> {
    args.output.check()?;
    let plan = args.plan();
    let mut line = CellLine::new("io-models", args.output.quiet);
    let outcome = io_models::run(&plan, &start, stop.flag(), &mut |progress| line.show(progress));
    drop(line);
    args.output.show(&outcome?)
}

/// A server as a cell wants it.
fn start(server: &ServerPlan) -> Result<OwnServer, Error> {
    let time = |time: Duration| format!("{}us", time.as_micros());
    let flags = [
        ("--io", server.model.name().to_owned()),
        ("--workers", server.workers.to_string()),
        ("--blocking", time(server.handler.blocking)),
        ("--cpu", time(server.handler.cpu)),
    ];
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    OwnServer::start_with(server.shards, &flags.collect::<Vec<_>>())
}

impl Args {
    fn plan(&self) -> IoModelsPlan {
        let usual = IoModelsPlan::default();
        let second = Duration::from_secs(1);
        let (idle, connect) = match (self.connections.is_empty(), self.quick) {
            (false, _) => (self.connections.clone(), self.connections.clone()),
            (true, true) => (vec![100, 500], vec![500]),
            (true, false) => (usual.idle, usual.connect),
        };
        let or = |value: Option<Duration>, usual| {
            value.unwrap_or(if self.quick { second } else { usual })
        };
        let tables = self.only.iter().map(|table| match table {
            TableArg::Idle => Table::Idle,
            TableArg::Connect => Table::Connect,
            TableArg::Workers => Table::Workers,
        });
        let tables: Vec<Table> = tables.collect();
        IoModelsPlan {
            models: if self.models.is_empty() { usual.models } else { self.models.clone() },
            tables: if tables.is_empty() { usual.tables } else { tables },
            idle,
            connect,
            window: or(self.window, usual.window),
            handler: Handler { blocking: self.blocking, cpu: self.cpu },
            clients: self.clients,
            duration: or(self.duration, usual.duration),
            shards: self.shards,
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

    fn plan(line: &str) -> Result<IoModelsPlan, String> {
        let words = std::iter::once("models").chain(line.split_whitespace());
        let bench = Bench::try_parse_from(words).map_err(|error| error.to_string())?;
        let plan = bench.args.plan();
        plan.check().map_err(|error| error.to_string())?;
        Ok(plan)
    }

    #[test]
    fn flags_become_a_plan() {
        let usual = plan("").unwrap();
        assert_eq!(usual.models, IoModel::ALL);
        assert_eq!((usual.idle.len(), usual.connect.len(), usual.tables.len()), (9, 3, 3));
        assert_eq!((usual.window, usual.clients), (Duration::from_secs(10), 100));
        let quick = plan("--quick --window 2s").unwrap();
        assert_eq!((quick.idle, quick.connect), (vec![100, 500], vec![500]));
        assert_eq!((quick.window.as_secs(), quick.duration.as_secs()), (2, 1));
        let line = "--models portable --connections 5,7 --only idle,workers --blocking 20ms --cpu \
             1ms -d 2s";
        let plan = plan(line).unwrap();
        assert_eq!(plan.models, [IoModel::Portable]);
        assert_eq!((&plan.idle[..], &plan.connect[..]), (&[5, 7][..], &[5, 7][..]));
        assert_eq!(plan.tables, [Table::Idle, Table::Workers]);
        assert_eq!(plan.handler.blocking.as_millis(), 20);
    }

    #[test]
    fn mistakes_teach() {
        for (line, words) in [
            ("--models fibres", "portable"),
            ("--connections 0", "--connections"),
            ("--connections many", "--connections"),
            ("--only memory", "idle, connect, workers"),
            ("--window 5", "write \"5s\" or \"5ms\""),
            ("--window 0s", "--window must be"),
            ("--cpu 0s", "--cpu is 0"),
            ("--clients 0", "--clients"),
            ("--shards 999999", "--shards is 999999; at most 256"),
            ("--json --csv", "cannot be used with"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
