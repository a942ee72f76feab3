//! `throng upgrade`: asks a running server or balancer to replace itself.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use throng_config::units::parse_duration;

use super::UpgradeReport;
use crate::failure::Failure;
use crate::http_client::{Client, JsonBody as _};
use crate::register::read_token;
use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address of the admin server or API of `throng serve` or `throng balance`
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: String,
    /// File with its token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Only start the new process until it is ready to serve, and end it
    #[arg(long)]
    dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Time for the answer, for example 5m
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2m")]
    timeout: Duration,
}

const EXAMPLES: &str =
    "The running process starts the program at the path that it was started with,
with its arguments, and passes on its listening sockets. The open tunnels of a
balancer move to the new process; other connections drain once it accepts. If
the new process fails, nothing changes.

Exit codes: 0 replaced, or ready with --dry-run; 3 replaced, and connections of
the old process drain; 1 failed, and the old process goes on; 2 a flag is
invalid.

Examples:
  throng upgrade --admin 127.0.0.1:9101
  throng upgrade --admin 127.0.0.1:9101 --dry-run";

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client =
        Client::parse(&args.admin).map_err(|why| Failure::usage(format!("--admin: {why}")))?;
    let token = args.token_file.as_ref().map(|file| read_token(file, "--token-file"));
    let client = client.with_token(token.transpose()?);
    let body = json!({"dry_run": args.dry_run});
    let answer = client
        .request("POST", "/upgrade", Some(&body), args.timeout)
        .map_err(|why| Failure::runtime(format!("the admin server at {client}: {why}")))?;
    if !answer.is_success() {
        return Err(Failure::runtime(answer.reason()));
    }
    let report: UpgradeReport = serde_json::from_value(answer.json())
        .map_err(|error| Failure::runtime(format!("the answer of {client}: {error}")))?;
    terminal::report_line(match args.json {
        true => answer.json().to_string(),
        false => report.in_words(),
    })?;
    let drains = report.connections > 0 && !report.dry_run;
    Ok(ExitCode::from(if drains { 3 } else { 0 }))
}
