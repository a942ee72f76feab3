//! Autobahn's testsuite in both roles, requiring strict passes.

mod suite;
mod verdict;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::wine::Wine;
use crate::certificate::Certificate;
use crate::command::{EVERYTHING, cargo, end_tree, run_quietly, run_step};
use crate::outcome::{Stop, Tally};
use crate::server::Server;
use crate::site::Site;
use suite::{COMPRESSED, SHORT, Suite, UNCOMPRESSED};

/// Time limit of all parts, which run in parallel. The cases without compression take 16 seconds
/// against a fast peer, and the others take minutes: each sends a thousand messages of up to 128 KB
/// through Python's zlib.
const LIMIT: Duration = Duration::from_secs(3600);

/// The whole context in both directions, unless a case requests less.
const DEFLATE: &str = "window:15";

/// Group 9 sends messages of 16 MiB.
const LARGE: [&str; 2] = ["--max-message-size", "32MiB"];

/// The versions of TLS. Each has a separate run of the suite with only this version.
const TLS_VERSIONS: [&str; 2] = ["1.3", "1.2"];

/// The variable that passes the version to `wstest.py`.
const TLS_VERSION: &str = "THRONG_TLS";

/// A client for the other role: an example of a package. Its development build suffices, because
/// the suite takes most of the time.
#[derive(Clone, Copy)]
struct ClientProgram {
    package: &'static str,
    example: &'static str,
    /// The name of its reports.
    reports: &'static str,
}

/// The engine's client connections, as in the load generator.
const ENGINE: ClientProgram =
    ClientProgram { package: "throng-load", example: "autobahn_client", reports: "client" };
/// The client of the library.
const LIBRARY: ClientProgram =
    ClientProgram { package: "throng", example: "client_autobahn", reports: "library" };

/// Runs the short cases of `wstest --mode fuzzingclient` against `throng serve`.
pub(super) fn run_server(site: &Site) -> Result<Tally, Stop> {
    run_server_with(site, &[UNCOMPRESSED, SHORT], verdict::UNCOMPRESSED + SHORT.len())
}

/// Runs the fuzzing client with the cases of each part, with all parts in parallel.
fn run_server_with(site: &Site, parts: &[&[&str]], expected: usize) -> Result<Tally, Stop> {
    let server = Server::start(site, &[&LARGE[..], &["--deflate", DEFLATE]].concat())?;
    let reports = fuzz_server(site, "server", server.address, parts)?;
    server.stop()?;
    verdict::evaluate(&reports, expected)
}

/// Runs every case against `throng.exe serve` under Wine, twice in a row.
pub(super) fn run_server_under_wine(site: &Site) -> Result<Tally, Stop> {
    let wine = Wine::find(site)?;
    let parts = [&[UNCOMPRESSED], &COMPRESSED[..]].concat();
    let mut tally = Tally::default();
    for run in 1..=2 {
        let server = wine.start_server(&[&LARGE[..], &["--deflate", DEFLATE]].concat())?;
        let reports = fuzz_server(site, &format!("server-wine-{run}"), server.address, &parts)?;
        server.stop_by("INT")?;
        tally.add(verdict::evaluate(&reports, verdict::UNCOMPRESSED + verdict::COMPRESSED)?);
    }
    Ok(tally)
}

/// Runs the fuzzing client against a server with the cases of each part, with all parts in
/// parallel. Returns the folders of the reports.
fn fuzz_server(
    site: &Site,
    role: &str,
    server: SocketAddr,
    parts: &[&[&str]],
) -> Result<Vec<PathBuf>, Stop> {
    let suite = Suite::install(site)?;
    at_once(0..parts.len(), |part| {
        let reports = suite.reports(role, part)?;
        let spec = suite.spec_for_server(&reports, parts[part], "ws", server);
        fuzz(suite.command("fuzzingclient", &reports, &spec)?, reports)
    })
}

/// Runs the cases without compression against `throng serve` with each version of TLS.
pub(super) fn run_server_with_tls(site: &Site) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    let certificate = Certificate::make(site)?.flags();
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    let server = Server::start(site, &[&LARGE[..], &certificate].concat())?;
    let reports = at_once(TLS_VERSIONS, |version| {
        let reports = suite.reports("server-tls", version)?;
        let spec = suite.spec_for_server(&reports, UNCOMPRESSED, "wss", server.address);
        let mut fuzzer = suite.command("fuzzingclient", &reports, &spec)?;
        fuzzer.env(TLS_VERSION, version);
        fuzz(fuzzer, reports)
    })?;
    server.stop()?;
    verdict::evaluate_each(reports, verdict::UNCOMPRESSED)
}

/// Runs the fuzzing client; returns the folder of its reports.
fn fuzz(mut fuzzer: Command, reports: PathBuf) -> Result<PathBuf, Stop> {
    let finished = run_quietly(&mut fuzzer, LIMIT)?;
    match finished.status.success() {
        true => Ok(reports),
        false => Err(Stop::Failed(format!("wstest ended with {}", finished.status))),
    }
}

/// Executes each run in a separate thread, and returns the folders of the reports. One interpreter
/// keeps one core busy.
fn at_once<T: Send>(
    runs: impl IntoIterator<Item = T>,
    run: impl Fn(T) -> Result<PathBuf, Stop> + Sync,
) -> Result<Vec<PathBuf>, Stop> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = runs.into_iter().map(|it| scope.spawn(move || run(it))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Runs `wstest --mode fuzzingserver` with the engine's client in the short cases.
pub(super) fn run_client(site: &Site) -> Result<Tally, Stop> {
    run_client_program(site, ENGINE, &[UNCOMPRESSED, SHORT], verdict::UNCOMPRESSED + SHORT.len())
}

/// Runs `wstest --mode fuzzingserver` with the library's client in the short cases.
pub(super) fn run_library_client(site: &Site) -> Result<Tally, Stop> {
    run_client_program(site, LIBRARY, &[UNCOMPRESSED, SHORT], verdict::UNCOMPRESSED + SHORT.len())
}

/// Runs every case with compression against the server and both clients.
pub(super) fn run_with_compression(site: &Site) -> Result<Tally, Stop> {
    let mut tally = run_server_with(site, &COMPRESSED, verdict::COMPRESSED)?;
    for program in [ENGINE, LIBRARY] {
        tally.add(run_client_program(site, program, &COMPRESSED, verdict::COMPRESSED)?);
    }
    Ok(tally)
}

/// Runs a client against the cases of each part, with all parts in parallel.
fn run_client_program(
    site: &Site,
    program: ClientProgram,
    parts: &[&[&str]],
    expected: usize,
) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    let client = build(site, program)?;
    let reports = at_once(0..parts.len(), |part| {
        let reports = suite.reports(program.reports, part)?;
        let address = suite::free_address()?;
        let spec = suite.spec_for_client(&reports, parts[part], address, None);
        let fuzzer = suite.command("fuzzingserver", &reports, &spec)?;
        let mut client = Command::new(&client);
        client.arg(format!("ws://{address}"));
        face(fuzzer, address, client)?;
        Ok(reports)
    })?;
    verdict::evaluate(&reports, expected)
}

/// Runs the fuzzing server with each version of TLS, and both clients in its cases without
/// compression.
pub(super) fn run_clients_with_tls(site: &Site) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    let certificate = Certificate::make(site)?;
    let mut tally = Tally::default();
    for program in [ENGINE, LIBRARY] {
        let client = build(site, program)?;
        let reports = at_once(TLS_VERSIONS, |version| {
            let reports = suite.reports(&format!("{}-tls", program.reports), version)?;
            let address = suite::free_address()?;
            let certificate = Some(&certificate);
            let spec = suite.spec_for_client(&reports, UNCOMPRESSED, address, certificate);
            let mut fuzzer = suite.command("fuzzingserver", &reports, &spec)?;
            fuzzer.env(TLS_VERSION, version);
            let mut client = Command::new(&client);
            client.arg(format!("wss://{address}")).args(certificate.map(|it| &it.authority));
            face(fuzzer, address, client)?;
            Ok(reports)
        })?;
        tally.add(verdict::evaluate_each(reports, verdict::UNCOMPRESSED)?);
    }
    Ok(tally)
}

/// Builds a client; returns its path.
fn build(site: &Site, program: ClientProgram) -> Result<PathBuf, Stop> {
    let ClientProgram { package: name, example, .. } = program;
    let package = site.package(name).ok_or_else(|| format!("unknown package {name}"))?;
    if !Site::targets(package, "example").contains(&example) {
        return Err(Stop::Failed(format!("{name} has no example {example}")));
    }
    println!("building the client");
    let mut build = cargo(site);
    build.args(["build", "--quiet"]).args(EVERYTHING).args(["--example", example]);
    run_step(&mut build, Duration::from_secs(900))?;
    Ok(site.target.join("debug/examples").join(example))
}

/// Runs the client against the fuzzing server.
fn face(mut fuzzer: Command, address: SocketAddr, mut client: Command) -> Result<(), Stop> {
    let mut fuzzer = fuzzer
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start wstest: {error}"))?;
    let result = wait_until_it_listens(address).and_then(|()| run_step(&mut client, LIMIT));
    let alive = fuzzer.try_wait().is_ok_and(|status| status.is_none());
    end_tree(&mut fuzzer);
    result?;
    if !alive {
        return Err(Stop::Failed("wstest ended before our client did".into()));
    }
    Ok(())
}

fn wait_until_it_listens(address: SocketAddr) -> Result<(), String> {
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
