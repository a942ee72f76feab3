//! `throng health`: the health check of a container.

#[cfg(unix)]
mod process;
mod way;

use std::process::ExitCode;
use std::time::Duration;

use throng_config::units::parse_duration;

use self::way::Way;
use crate::config::{Program, ProgramArgs};
use crate::failure::Failure;
use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address of the server, or of a balancer's admin API: HOST:PORT, https://HOST:PORT or
    /// unix:PATH [default: as the settings say]
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
    /// Ask /readyz, which fails during a shutdown, instead of /livez
    #[arg(long)]
    ready: bool,
    /// Time for the answer, for example 2s
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    timeout: Duration,
    #[command(flatten)]
    of: ProgramArgs,
}

const EXAMPLES: &str = "Without an address, it asks where the settings say: at admin.listen, or
else at the first address of listen, over TLS (any certificate will do: this
machine answers), with a PROXY header, or at a Unix socket. The settings are
those of the process that the container was started with; else those of the
flags here, THRONG_* variables and --config. Of a balancer without admin.listen
it sees that it answers, not whether it is ready.

Exit codes: 0 healthy, with what the server says of it; 1 not; 2 a flag or
setting is invalid.

Examples:
  throng health                            in a container: its server or balancer
  throng health --config throng.toml       a server with these settings
  throng health --ready balance --config balance.toml
                                           a balancer that has a backend
  throng health --ready 127.0.0.1:8081     what has this address";

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let Args { address, ready, timeout, of } = args;
    let way = match address {
        Some(address) => {
            if of.are_given() {
                return Err(Failure::usage("an address needs no settings: leave them, or it, out"));
            }
            Way::to(&address).map_err(Failure::usage)?
        }
        None => Way::by_settings(&settings_of(of)?, ready)?,
    };
    let said = way.ask(ready, timeout).map_err(Failure::runtime)?;
    terminal::report_line(format_args!("healthy: {said}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the program with its flags: the given ones, or the flags of the container's process.
fn settings_of(of: ProgramArgs) -> Result<Program, Failure> {
    if of.are_given() {
        return of.program();
    }
    #[cfg(unix)]
    if let Some(program) = process::of_container() {
        return Ok(program);
    }
    of.program()
}
