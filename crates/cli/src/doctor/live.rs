//! `throng doctor --live`: reads the statistics of a running server twice.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_config::units::parse_duration;
use throng_doctor::{Finding, diagnose_live, live_json, live_report};

use crate::failure::Failure;
use crate::http_client::{Client, JsonBody as _};
use crate::register::read_token;
use crate::terminal;

/// The time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Counters are up to this old.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(super) struct Flags {
    /// With --live, the time between the readings, at least 1s
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "10s",
        requires = "live")]
    interval: Duration,
    /// With --live, file with the token of the admin API
    #[arg(long, value_name = "FILE", requires = "live")]
    token_file: Option<PathBuf>,
}

/// Parses the time between two readings.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        short if short < MIN_INTERVAL => Err("counters are up to 1s old: write 1s or more".into()),
        interval => Ok(interval),
    }
}

/// The statistics of a server at two moments.
pub(crate) struct TwoReadings {
    /// The address and path of the statistics.
    pub(crate) source: String,
    pub(crate) before: Value,
    pub(crate) after: Value,
    pub(crate) seconds: f64,
}

/// Reads the statistics twice. `flag` names the address in errors.
pub(crate) fn read_twice(
    (flag, address): (&str, &str),
    interval: Duration,
    token_file: Option<&Path>,
) -> Result<TwoReadings, Failure> {
    let client = Client::parse(address).map_err(|why| Failure::usage(format!("{flag}: {why}")))?;
    let token = token_file.map(|file| read_token(file, "--token-file"));
    let client = client.with_token(token.transpose()?);
    let (path, before) = first_reading(&client)?;
    let began = Instant::now();
    thread::sleep(interval);
    let after = reading(&client, path)?.map_err(|why| refused(&client, path, &why))?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(TwoReadings { source: format!("{client}{path}"), before, after, seconds })
}

/// Reads the statistics twice, and prints the findings.
pub(super) fn run(
    address: &str,
    flags: &Flags,
    as_json: bool,
    all: bool,
) -> Result<Vec<Finding>, Failure> {
    let readings = read_twice(("--live", address), flags.interval, flags.token_file.as_deref())?;
    let TwoReadings { source, before, after, seconds } = readings;
    let findings = diagnose_live(&before, &after, seconds);
    match as_json {
        true => terminal::report_line(format_args!("{:#}", live_json(&findings, seconds)))?,
        false => {
            let head = format!("{source}, over {seconds:.0} s:\n\n");
            terminal::report(head + &live_report(&findings, all))?;
        }
    }
    Ok(findings)
}

/// Returns the path of the statistics, of a server or else of a balancer, and the statistics.
fn first_reading(client: &Client) -> Result<(&'static str, Value), Failure> {
    let [of_server, of_balancer] = ["/stats.json", "/status.json"];
    let why = match reading(client, of_server)? {
        Ok(stats) => return Ok((of_server, stats)),
        Err(why) => why,
    };
    if !why.is_absent {
        return Err(refused(client, of_server, &why));
    }
    match reading(client, of_balancer)? {
        Ok(status) => Ok((of_balancer, status)),
        Err(other) if other.is_absent => Err(refused(client, of_server, &why)),
        Err(other) => Err(refused(client, of_balancer, &other)),
    }
}

/// Why a server does not show its statistics.
struct Refusal {
    /// There is nothing at this path.
    is_absent: bool,
    text: String,
}

fn reading(client: &Client, path: &str) -> Result<Result<Value, Refusal>, Failure> {
    let answer = client
        .request("GET", path, None, TIMEOUT)
        .map_err(|why| Failure::runtime(format!("{client}{path}: {why}")))?;
    let is_absent = answer.status == 404;
    if !answer.is_success() {
        let text = format!("{} {}", answer.status, answer.reason());
        return Ok(Err(Refusal { is_absent, text }));
    }
    let stats = answer.json();
    Ok(match stats.is_object() {
        true => Ok(stats),
        false => Err(Refusal { is_absent: true, text: "no statistics".to_owned() }),
    })
}

fn refused(client: &Client, path: &str, why: &Refusal) -> Failure {
    let hint = match why.is_absent {
        true => "; name the address of admin.listen",
        false => "",
    };
    Failure::runtime(format!("{client}{path}: {}{hint}", why.text))
}
