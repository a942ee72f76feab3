//! `lab`: the measurements that the pages of results quote, and the servers they need.
//!
//! * Duty: compare ways to broadcast, settings of compression, I/O models, proxies, and any server
//!   in the blank/work benchmark; be the test servers for it.
//! * Not its duty: load on one server (`throng bench`), comparisons with other WebSocket libraries
//!   (`bench/run`).
//! * Depends on: `throng-load` for the load, `throng-cli` for settings, flags and output, `throng`
//!   for the servers.
//! * Start reading at: `Command`.
#![forbid(unsafe_code)]

mod broadcast;
mod cells;
mod compression;
#[cfg(test)]
mod golden;
mod io_models;
mod netbench;
mod pool;
mod proxies;
mod servers;
mod spread;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use throng_cli::signals::Stop;
use throng_cli::{Failure, terminal};

/// Measurements of Throng's own figures: comparisons with other designs, servers and proxies.
#[derive(Parser)]
#[command(name = "lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare three ways to send one message to all: encoding for each, encoding once, publishing
    #[command(after_help = broadcast::command::EXAMPLES)]
    Broadcast(broadcast::command::Args),
    /// Compare settings of compression: memory of a connection, CPU and size of a message
    #[command(after_help = compression::command::EXAMPLES)]
    Compression(compression::command::Args),
    /// Compare I/O models: a thread for each connection, epoll, the portable event loop
    ///
    /// Idle CPU and memory, time to connect and echo, and a handler that blocks; beside ours,
    /// figures published for other servers with a thread per connection, IOCP and epoll. Starts a
    /// server for each cell.
    #[command(after_help = io_models::command::EXAMPLES)]
    IoModels(io_models::command::Args),
    /// Run the matrix of the blank/work benchmark NetBenchmarks on any server command
    ///
    /// For each case the server is started afresh, its answers are checked, and it is put under
    /// load with one request at a time on each connection.
    #[command(after_help = netbench::command::EXAMPLES)]
    Netbench(netbench::command::Args),
    /// Compare WebSocket proxies: CPU of a message and of a connection, memory of an idle tunnel,
    /// added latency
    ///
    /// Any proxy that runs, by its URL; or with --peers nginx, HAProxy and `throng balance`,
    /// started here and measured in turn.
    #[command(after_help = proxies::command::EXAMPLES)]
    Proxies(proxies::command::Args),
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
    /// The server that the comparisons start
    #[command(hide = true)]
    OwnServer(servers::own::Args),
    /// The subscribers that `broadcast` starts
    #[command(hide = true)]
    OwnSubscribers(broadcast::subscriber_process::Args),
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

fn run(command: Command) -> Result<ExitCode, Failure> {
    // Children get a terminal's Ctrl-C as well: they end when this process lets them go.
    let stop = || Stop::on_signals().map_err(Failure::runtime);
    match command {
        Command::Broadcast(args) => broadcast::command::run(args, &stop()?),
        Command::Compression(args) => compression::command::run(args, &stop()?),
        Command::IoModels(args) => io_models::command::run(args, &stop()?),
        Command::Netbench(args) => netbench::command::run(args, &stop()?),
        Command::Proxies(args) => proxies::command::run(args, &stop()?),
        Command::ServeNetbench(args) => servers::netbench::run(&args),
        Command::ServeProbe(args) => servers::probe::run(&args),
        Command::ServeBlocking(args) => servers::blocking::run(&args),
        Command::OwnServer(args) => stop().and_then(|_| servers::own::run(&args)),
        Command::OwnSubscribers(args) => {
            stop().and_then(|_| broadcast::subscriber_process::run(&args))
        }
        Command::Throng { arguments } => {
            Ok(throng_cli::run(std::iter::once("throng".into()).chain(arguments)))
        }
    }
}
