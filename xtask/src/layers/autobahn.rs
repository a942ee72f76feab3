//! Autobahn's testsuite in both roles, requiring strict passes.

mod suite;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::certificate::Certificate;
use crate::command::{EVERYTHING, cargo, end_tree, run_quietly, run_step};
use crate::outcome::{Stop, Tally};
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

/// A client for the other role: an example of a package. Its development build suffices: the time
/// is the suite's.
#[derive(Clone, Copy)]
struct ClientProgram {
    package: &'static str,
    example: &'static str,
    /// The name of its reports.
    reports: &'static str,
}

/// The engine's client connections, which the load generator uses.
const ENGINE: ClientProgram =
    ClientProgram { package: "throng-load", example: "autobahn_client", reports: "client" };
/// The client of the library's users.
const LIBRARY: ClientProgram =
    ClientProgram { package: "throng", example: "client_autobahn", reports: "library" };

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

/// Runs `wstest --mode fuzzingserver`, with the engine's client going through its cases.
pub(super) fn run_client(site: &Site) -> Result<Tally, Stop> {
    run_client_program(site, ENGINE)
}

/// Runs `wstest --mode fuzzingserver`, with the library's client going through its cases.
pub(super) fn run_library_client(site: &Site) -> Result<Tally, Stop> {
    run_client_program(site, LIBRARY)
}

fn run_client_program(site: &Site, program: ClientProgram) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    let ClientProgram { package: name, example, .. } = program;
    let package = site.package(name).ok_or_else(|| format!("unknown package {name}"))?;
    if !Site::targets(package, "example").contains(&example) {
        return Err(Stop::Failed(format!("{name} has no example {example}")));
    }
    println!("building the client");
    let mut build = cargo(site);
    build.args(["build", "--quiet"]).args(EVERYTHING).args(["--example", example]);
    run_step(&mut build, Duration::from_secs(900))?;
    let client = site.target.join("debug/examples").join(example);
    let reports = in_parts(|part| run_client_part(&suite, &client, program.reports, part))?;
    verdict::evaluate(&reports, verdict::ALL)
}

fn run_client_part(
    suite: &Suite,
    client: &Path,
    reports: &str,
    part: usize,
) -> Result<PathBuf, Stop> {
    let reports = suite.reports(reports, part)?;
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
