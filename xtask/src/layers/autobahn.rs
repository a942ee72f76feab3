//! Autobahn's testsuite in both roles, requiring strict passes.

mod suite;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{Stop, Tally};
use crate::certificate::Certificate;
use crate::command::{EVERYTHING, cargo, end_tree, run_quietly, run_step};
use crate::server::Server;
use crate::site::Site;
use suite::{PARTS, Suite, UNCOMPRESSED};

/// Time limit of all parts, which run in parallel. The cases without compression take 16 seconds
/// against a fast peer, those with it minutes: each sends a thousand messages, up to 128 KB,
/// through Python's zlib.
const LIMIT: Duration = Duration::from_secs(3600);

/// The whole context in both directions, unless a case requests less.
const DEFLATE: &str = "window:15";

/// Group 9 sends messages of 16 MiB.
const LARGE: [&str; 2] = ["--max-message-size", "32MiB"];

/// The package of our client, for the other role. Its development build suffices: the time is the
/// suite's.
const PACKAGE: &str = "throng-load";
const CLIENT: &str = "autobahn_client";

/// Runs `wstest --mode fuzzingclient` against `throng serve`.
pub(super) fn run_server(site: &Site) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    let server = Server::start(site, &[&LARGE[..], &["--deflate", DEFLATE]].concat())?;
    let reports = in_parts(|part| {
        let reports = suite.reports("server", part)?;
        let spec = suite.spec_for_server(&reports, PARTS[part], "ws", server.address);
        fuzz(&suite, reports, &spec)
    })?;
    server.stop()?;
    verdict::evaluate(&reports, verdict::ALL)
}

/// Runs the cases without compression against `throng serve` with TLS.
pub(super) fn run_server_with_tls(site: &Site) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    let certificate = Certificate::make(site)?.flags();
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    let server = Server::start(site, &[&LARGE[..], &certificate].concat())?;
    let reports = suite.reports("server-tls", 0)?;
    let spec = suite.spec_for_server(&reports, UNCOMPRESSED, "wss", server.address);
    let reports = fuzz(&suite, reports, &spec)?;
    server.stop()?;
    verdict::evaluate(&[reports], verdict::UNCOMPRESSED)
}

/// Runs the fuzzing client; returns the folder of its reports.
fn fuzz(suite: &Suite, reports: PathBuf, spec: &serde_json::Value) -> Result<PathBuf, Stop> {
    let mut fuzzer = suite.command("fuzzingclient", &reports, spec)?;
    let finished = run_quietly(&mut fuzzer, LIMIT)?;
    match finished.status.success() {
        true => Ok(reports),
        false => Err(Stop::Failed(format!("wstest ended with {}", finished.status))),
    }
}

/// Runs every part in a thread of its own, and returns the folders of their reports. One
/// interpreter keeps one core busy.
fn in_parts(run: impl Fn(usize) -> Result<PathBuf, Stop> + Sync) -> Result<Vec<PathBuf>, Stop> {
    thread::scope(|scope| {
        let run = &run;
        let parts: Vec<_> = (0..PARTS.len()).map(|part| scope.spawn(move || run(part))).collect();
        parts
            .into_iter()
            .map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Runs `wstest --mode fuzzingserver`, with our client (an example of the load generator) going
/// through its cases.
pub(super) fn run_client(site: &Site) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    let package = site.package(PACKAGE).ok_or_else(|| format!("unknown package {PACKAGE}"))?;
    if !Site::targets(package, "example").contains(&CLIENT) {
        return Err(Stop::Failed(format!("{PACKAGE} has no example {CLIENT}")));
    }
    println!("building the client");
    let mut build = cargo(site);
    build.args(["build", "--quiet"]).args(EVERYTHING).args(["--example", CLIENT]);
    run_step(&mut build, Duration::from_secs(900))?;
    let client = site.target.join("debug/examples").join(CLIENT);
    verdict::evaluate(&in_parts(|part| run_client_part(&suite, &client, part))?, verdict::ALL)
}

fn run_client_part(suite: &Suite, client: &Path, part: usize) -> Result<PathBuf, Stop> {
    let reports = suite.reports("client", part)?;
    let address = suite::free_address()?;
    let spec = suite.spec_for_client(&reports, part, address);
    let mut fuzzer = suite.command("fuzzingserver", &reports, &spec)?;
    let mut fuzzer = fuzzer
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start wstest: {error}"))?;
    let result = wait_until_it_listens(address)
        .and_then(|()| run_step(Command::new(client).arg(format!("ws://{address}")), LIMIT));
    let alive = fuzzer.try_wait().is_ok_and(|status| status.is_none());
    end_tree(&mut fuzzer);
    result?;
    if !alive {
        return Err(Stop::Failed("wstest ended before our client did".into()));
    }
    Ok(reports)
}

fn wait_until_it_listens(address: std::net::SocketAddr) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => {
                return Err(format!("wstest does not listen: {error}"));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
