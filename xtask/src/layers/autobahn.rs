//! Autobahn's testsuite in both roles, judged strictly.

mod suite;
mod verdict;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Stop, Tally};
use crate::command::{cargo, end_tree, run_quietly, run_step};
use crate::server::Server;
use crate::site::Site;
use suite::Suite;

/// All 301 cases take 16 seconds against a fast peer; a case that a peer does not answer takes up
/// to 10.
const LIMIT: Duration = Duration::from_secs(480);

/// Where our client is, for the other role. Its development build: those 16 seconds are the suite's.
const PACKAGE: &str = "throng-load";
const CLIENT: &str = "autobahn_client";

/// `wstest --mode fuzzingclient` against `throng serve`.
pub(super) fn run_server(site: &Site) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    // Group 9 sends messages of 16 MiB.
    let server =
        Server::start(site, &["--max-message-size", "32MiB", "--max-frame-size", "32MiB"])?;
    let reports = suite.reports("server")?;
    let spec = suite.spec_for_server(&reports, server.address);
    let mut fuzzer = suite.command("fuzzingclient", &reports, &spec)?;
    let finished = run_quietly(&mut fuzzer, LIMIT)?;
    if !finished.status.success() {
        return Err(Stop::Failed(format!("wstest ended with {}", finished.status)));
    }
    server.stop()?;
    verdict::judge(&reports)
}

/// `wstest --mode fuzzingserver`, and our client (an example of the load generator) that goes
/// through its cases.
pub(super) fn run_client(site: &Site) -> Result<Tally, Stop> {
    let suite = Suite::install(site)?;
    let package = site.package(PACKAGE).ok_or_else(|| format!("there is no package {PACKAGE}"))?;
    if !Site::targets(package, "example").contains(&CLIENT) {
        return Err(Stop::Failed(format!("{PACKAGE} has no example {CLIENT}")));
    }
    println!("building the client");
    let mut build = cargo(site);
    build.args(["build", "--quiet", "--package", PACKAGE, "--example", CLIENT]);
    run_step(&mut build, Duration::from_secs(900))?;
    let reports = suite.reports("client")?;
    let address = suite::free_address()?;
    let spec = suite.spec_for_client(&reports, address);
    let mut fuzzer = suite.command("fuzzingserver", &reports, &spec)?;
    let mut fuzzer = fuzzer
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start wstest: {error}"))?;
    let result = wait_until_it_listens(address).and_then(|()| {
        let mut client = Command::new(site.target.join("debug/examples").join(CLIENT));
        client.arg(format!("ws://{address}"));
        run_step(&mut client, LIMIT)
    });
    let alive = fuzzer.try_wait().is_ok_and(|status| status.is_none());
    end_tree(&mut fuzzer);
    result?;
    if !alive {
        return Err(Stop::Failed("wstest ended before our client did".into()));
    }
    verdict::judge(&reports)
}

fn wait_until_it_listens(address: std::net::SocketAddr) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => {
                return Err(format!("wstest does not listen: {error}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
