//! The subscribers that a broadcast comparison starts as processes of their own.

use std::io::{Read, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

use super::plan::SubscriberPlan;
use super::subscribers::subscribe;
use crate::servers::wire::{ChildMessage, write_line};
use throng_config::units::parse_duration;
use throng_load::{Error, Target};

use throng_cli::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server, as ws://host:port/path
    #[arg(long)]
    url: String,
    /// Subscribers of this process
    #[arg(long)]
    subscribers: usize,
    /// Subscribers of the server
    #[arg(long)]
    of: usize,
    /// Number of the first of this process among them
    #[arg(long)]
    first: usize,
    /// Payload of a broadcast
    #[arg(long)]
    size: usize,
    /// Give up when connecting makes no progress for so long
    #[arg(long, value_parser = parse_duration)]
    setup_timeout: Duration,
}

/// Connects, and reports every broadcast until standard input ends.
///
/// A failure is reported on standard output to the coordinator, which prints it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let plan = SubscriberPlan {
        target: Target::parse(&args.url)?,
        subscribers: args.subscribers,
        of: args.of,
        first: args.first,
        size: args.size,
        setup_timeout: args.setup_timeout,
    };
    // An error is ignored: the coordinator has ended then, and the input with it.
    let report = |message: &ChildMessage| drop(write_line(&mut stdout().lock(), message));
    let until_input_ends = || drop(stdin().lock().read_to_end(&mut Vec::new()));
    match subscribe(&plan, report, until_input_ends) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Error::Interrupted) => Ok(ExitCode::FAILURE),
        Err(error) => {
            report(&ChildMessage::Failed { reason: error.to_string() });
            Ok(ExitCode::FAILURE)
        }
    }
}
