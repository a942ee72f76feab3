//! `throng health`: the health check of a container.

use std::process::ExitCode;
use std::time::Duration;

use throng_config::units::parse_duration;

use crate::http_client::Client;
use crate::{Failure, terminal};

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address of the server, or of a balancer's admin API
    #[arg(default_value = "127.0.0.1:9001", value_name = "HOST:PORT")]
    address: String,
    /// Ask /readyz, which fails during a shutdown, instead of /livez
    #[arg(long)]
    ready: bool,
    /// Time for the answer, for example 2s
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    timeout: Duration,
}

const EXAMPLES: &str = "Exit codes: 0 healthy, 1 not, 2 a flag is invalid.

Examples:
  throng health                          a server on its usual port
  throng health --ready 127.0.0.1:8081   a balancer that has a backend";

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client = Client::parse(&args.address).map_err(Failure::usage)?;
    let path = if args.ready { "/readyz" } else { "/livez" };
    match client.request("GET", path, None, args.timeout) {
        Ok(answer) if answer.is_success() => {
            terminal::report_line("healthy")?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(answer) => Err(Failure::runtime(format!(
            "{client} is not healthy: {} {}",
            answer.status,
            answer.reason()
        ))),
        Err(why) => Err(Failure::runtime(format!("{client} is not healthy: {why}"))),
    }
}
