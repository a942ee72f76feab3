//! `lab`: the measurements that the pages of results quote, and servers for external tests.
//!
//! * Duty: run the comparisons of `throng-compare` from the command line; be the test servers.
//! * Not its duty: the comparisons themselves; load on one server (`throng bench`); comparisons
//!   with other WebSocket libraries (`bench/run`).
//! * Depends on: `throng-compare`, and `throng-cli` for settings, flags and output.
//! * Start reading at: `LabCommand`.
#![forbid(unsafe_code)]

mod servers;
mod tables;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use throng_cli::bench::output::OutputArgs;
use throng_cli::bench::progress::CellLine;
use throng_cli::signals::Stop;
use throng_cli::{Failure, terminal};
use throng_compare::Comparison;
use throng_compare::broadcast::{self, Broadcast};
use throng_compare::compression::{self, Compression};
use throng_compare::io_models::{self, IoModels};
use throng_compare::netbench::{self, NetBench};
use throng_compare::parts::{self, Part};
use throng_compare::proxies::{self, Proxies};

/// Measurements of Throng's own figures: comparisons with other designs, servers and proxies.
#[derive(Parser)]
#[command(name = "lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: LabCommand,
}

/// A comparison, and how to show it.
#[derive(clap::Args)]
struct Compare<C: clap::Args> {
    #[command(flatten)]
    comparison: C,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Subcommand)]
enum LabCommand {
    /// Compare three ways to send one message to all: encoding for each, encoding once, publishing
    #[command(after_help = broadcast::EXAMPLES)]
    Broadcast(Compare<Broadcast>),
    /// Compare settings of compression: memory of a connection, CPU and size of a message
    #[command(after_help = compression::EXAMPLES)]
    Compression(Compare<Compression>),
    /// Compare I/O models: a thread for each connection, epoll, the portable event loop
    ///
    /// Idle CPU and memory, time to connect and echo, and a handler that blocks; beside ours,
    /// figures published for other servers with a thread per connection, IOCP and epoll. Starts a
    /// server for each cell.
    #[command(after_help = io_models::EXAMPLES)]
    IoModels(Compare<IoModels>),
    /// Run the matrix of the blank/work benchmark NetBenchmarks on any server command
    ///
    /// For each case the server is started afresh, its answers are checked, and it is put under
    /// load with one request at a time on each connection.
    #[command(after_help = netbench::EXAMPLES)]
    Netbench(Compare<NetBench>),
    /// Compare WebSocket proxies: CPU of a message and of a connection, memory of an idle tunnel,
    /// added latency
    ///
    /// Any proxy that runs, by its URL; or with --peers nginx, HAProxy and `throng balance`,
    /// started here and measured in turn.
    #[command(after_help = proxies::EXAMPLES)]
    Proxies(Box<Compare<Proxies>>),
    /// Print the rows of `bench/run` and its like as tables in Markdown
    Tables(tables::Args),
    /// Be a server of the blank/work benchmark NetBenchmarks
    #[command(after_help = servers::netbench::HELP)]
    ServeNetbench(servers::netbench::Args),
    /// Be a server for outside probes: / echoes bodies, /echo shows request headers, /push is an
    /// endless WebSocket
    ServeProbe(servers::probe::Args),
    /// Be a server of echoes that block, to see what that does
    ///
    /// /sleep/{ms} blocks the event loop for so many milliseconds, /worker/{ms} one of the workers;
    /// /echo does not block. Every client that reaches it can stop it.
    ServeBlocking(servers::blocking::Args),
    /// The servers and subscribers that the comparisons start
    #[command(hide = true)]
    Part {
        /// The part as JSON
        part: String,
    },
    /// The `throng` binary, as it is linked into this one; for tests
    #[command(hide = true)]
    Throng {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(|failure| {
        terminal::error_line(failure.message);
        ExitCode::from(failure.code)
    })
}

fn run(command: LabCommand) -> Result<ExitCode, Failure> {
    match command {
        LabCommand::Broadcast(args) => compare(args),
        LabCommand::Compression(args) => compare(args),
        LabCommand::IoModels(args) => compare(args),
        LabCommand::Netbench(mut args) => {
            let own = this_program().to_string_lossy().into_owned();
            let words = ["serve-netbench", "{mode}", "--listen"].map(str::to_owned);
            args.comparison.own = std::iter::once(own).chain(words).collect();
            compare(args)
        }
        LabCommand::Proxies(args) => compare(*args),
        LabCommand::Tables(args) => tables::run(&args),
        LabCommand::ServeNetbench(args) => servers::netbench::run(&args),
        LabCommand::ServeProbe(args) => servers::probe::run(&args),
        LabCommand::ServeBlocking(args) => servers::blocking::run(&args),
        LabCommand::Part { part } => {
            // A terminal's Ctrl-C also reaches this process, which must only end when its parent no
            // longer needs it.
            let _stop = Stop::on_signals().map_err(Failure::runtime)?;
            parts::play(&part)?;
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Throng { arguments } => {
            Ok(throng_cli::run(std::iter::once("throng".into()).chain(arguments)))
        }
    }
}

/// If this program cannot be found, starting it fails with a message that names it.
fn this_program() -> OsString {
    std::env::current_exe().map_or_else(|_| "lab".into(), Into::into)
}

/// Runs a comparison and shows its report.
fn compare<C: Comparison>(args: Compare<C>) -> Result<ExitCode, Failure> {
    let Compare { comparison, output } = args;
    output.check()?;
    let stop = Stop::on_signals().map_err(Failure::runtime)?;
    let launch = |part: &Part| {
        let mut command = std::process::Command::new(this_program());
        command.arg("part").arg(part.text());
        command
    };
    let mut line = CellLine::new(C::NAME, output.quiet);
    let report = throng_compare::run(comparison, &launch, stop.flag(), &mut |at| line.show(at));
    drop(line);
    output.show(&report?)
}
