//! Clients of other projects. Each checks this server with its own library.

use std::process::Command;
use std::time::Duration;

use super::wine::Wine;
use crate::certificate::Certificate;
use crate::command::{cargo, last_lines, run_shown, run_step};
use crate::outcome::{Stop, Tally};
use crate::provision::{node_package, program, python_environment};
use crate::server::Server;
use crate::site::Site;

/// Time limit of a client; each single check has a shorter one.
const LIMIT: Duration = Duration::from_secs(300);

/// Checks with Node's `ws`.
pub(super) fn run_node(site: &Site) -> Result<Tally, Stop> {
    let node = program(&["node", "nodejs"], &["nodejs", "npm"])?;
    let package = node_package(site, "node", &site.root.join("conformance/clients/node"))?;
    check_with_and_without_tls(site, &[], || {
        let mut client = Command::new(&node);
        client.arg(package.join("ws.mjs"));
        client
    })
}

/// Checks with Python's `websockets`.
pub(super) fn run_python(site: &Site) -> Result<Tally, Stop> {
    let home = site.root.join("conformance/clients/python");
    let python = python_environment(site, "python", &home.join("requirements.txt"))?;
    check_with_and_without_tls(site, &[], || {
        let mut client = Command::new(&python);
        client.arg(home.join("check.py")).env("PYTHONDONTWRITEBYTECODE", "1");
        client
    })
}

/// Checks with `tungstenite`, in a crate outside the workspace.
pub(super) fn run_tungstenite(site: &Site) -> Result<Tally, Stop> {
    let manifest = site.root.join("conformance/clients/tungstenite/Cargo.toml");
    let target = site.target.join("tungstenite");
    println!("building the client");
    let mut build = cargo(site);
    build
        .args(["build", "--quiet", "--locked", "--manifest-path"])
        .arg(manifest)
        .env("CARGO_TARGET_DIR", &target);
    run_step(&mut build, Duration::from_secs(600))?;
    let client = || Command::new(target.join("debug/tungstenite-check"));
    check_with_and_without_tls(site, &[], client)
}

/// Checks with Go's `crypto/tls` and `net/http`, and gorilla's `websocket`.
pub(super) fn run_go(site: &Site) -> Result<Tally, Stop> {
    let go = program(&["go"], &["golang-go"])?;
    let client = site.target.join("go-check");
    println!("building the client");
    let mut build = Command::new(go);
    build.args(["build", "-mod=readonly", "-o"]).arg(&client).arg(".");
    build.current_dir(site.root.join("conformance/clients/go"));
    run_step(&mut build, Duration::from_secs(600))?;
    check_with_and_without_tls(site, &[], || Command::new(&client))
}

/// Checks with Chromium, driven by playwright-core: its WebSocket, the server's page, and the
/// balancer's.
pub(super) fn run_chromium(site: &Site) -> Result<Tally, Stop> {
    let node = program(&["node", "nodejs"], &["nodejs", "npm"])?;
    let chromium = program(&["chromium", "chromium-browser", "google-chrome"], &["chromium"])?;
    let package = node_package(site, "node", &site.root.join("conformance/clients/node"))?;
    let home = Certificate::make(site)?.trust_store()?;
    let client = |script: &str| {
        let mut client = Command::new(&node);
        client.arg(package.join(script)).env("HOME", &home);
        client
    };
    let chromium = chromium.to_string_lossy();
    let mut tally = check_with_and_without_tls(site, &[&chromium], || client("chromium.mjs"))?;
    if site.server.is_none() {
        tally.add(check_balancer(site, client("balancer.mjs"), &chromium)?);
    }
    Ok(tally)
}

/// The secret of the tokens that the clients of the Centrifuge protocol make.
const TOKEN_SECRET: &str = "a secret of thirty-two bytes or more";

/// Checks with the clients of the Centrifuge protocol for JavaScript, Python and Go.
pub(super) fn run_centrifuge(site: &Site) -> Result<Tally, Stop> {
    let home = site.root.join("conformance/clients");
    let node = program(&["node", "nodejs"], &["nodejs", "npm"])?;
    let package = node_package(site, "node", &home.join("node"))?;
    let mut in_node = Command::new(node);
    in_node.arg(package.join("centrifuge.mjs"));
    let requirements = home.join("python/requirements.txt");
    let mut in_python = Command::new(python_environment(site, "python", &requirements)?);
    in_python.arg(home.join("python/check_centrifuge.py")).env("PYTHONDONTWRITEBYTECODE", "1");
    let go = program(&["go"], &["golang-go"])?;
    let in_go = site.target.join("go-centrifuge-check");
    println!("building the client");
    let mut build = Command::new(go);
    build.args(["build", "-mod=readonly", "-o"]).arg(&in_go).arg(".");
    run_step(build.current_dir(home.join("go-centrifuge")), Duration::from_secs(600))?;
    let flags = centrifuge_flags(site)?;
    let mut tally = Tally::default();
    for mut client in [in_node, in_python, Command::new(in_go)] {
        client.env("THRONG_TOKEN_SECRET", TOKEN_SECRET);
        tally.add(check_server(site, client, &flags, &[])?);
    }
    Ok(tally)
}

/// Writes the settings of a server for clients of the Centrifuge protocol, and returns its flags.
fn centrifuge_flags(site: &Site) -> Result<[String; 1], Stop> {
    let secret = site.target.join("centrifuge.key");
    let settings = site.target.join("centrifuge.toml");
    let text = format!(
        "open = false\n\
         [[token_key]]\nalgorithm = \"HS256\"\nsecret_file = {:?}\n\
         [[channel]]\nname = \"kept.>\"\nhistory = \"20/5m\"\n\
         [[channel]]\nname = \"here.>\"\npresence = true\njoin_leave = true\n",
        secret.display().to_string()
    );
    std::fs::write(&secret, TOKEN_SECRET).map_err(|error| error.to_string())?;
    std::fs::write(&settings, text).map_err(|error| error.to_string())?;
    Ok([format!("--config={}", settings.display())])
}

/// Runs the client with the admin address of a balancer that has two backends: the first is up, and
/// the second is down.
fn check_balancer(site: &Site, client: Command, chromium: &str) -> Result<Tally, Stop> {
    let backend = Server::start(site, &[])?;
    let token = site.target.join("balancer-token");
    std::fs::write(&token, "a-token-of-the-test\n").map_err(|error| error.to_string())?;
    let flags = [
        format!("--backend={}", backend.address),
        "--backend=127.0.0.1:1".to_owned(),
        format!("--admin-token-file={}", token.display()),
        "--set=health.check.kind=tcp".to_owned(),
    ];
    let tally = check(Server::start_balancer(site, &flags)?, client, site, &[chromium])?;
    backend.stop()?;
    Ok(tally)
}

/// Checks with each of these clients, and with curl, against `throng.exe serve` under Wine.
pub(super) fn run_under_wine(site: &Site) -> Result<Tally, Stop> {
    let server = Wine::find(site)?.start_server(&[])?;
    let there = site.with_server(server.address);
    let mut tally = Tally::default();
    for run in [run_node, run_python, run_tungstenite, run_go, run_curl, run_chromium] {
        tally.add(run(&there)?);
    }
    server.stop_by("INT")?;
    Ok(tally)
}

/// Checks with curl: the page at `/`.
fn run_curl(site: &Site) -> Result<Tally, Stop> {
    let curl = program(&["curl"], &["curl"])?;
    let mut page = Command::new(curl);
    page.args(["--silent", "--show-error", "--include", "--max-time", "30"]);
    let address = site.server.map(|address| format!("http://{address}/"));
    let answer = run_shown(page.args(address), LIMIT)?.stdout;
    let is_page = answer.starts_with("HTTP/1.1 200 ") && answer.contains("</html>");
    let mut tally = Tally::default();
    tally.record("curl gets the page", is_page.then_some(()).ok_or(answer));
    Ok(tally)
}

/// The versions of TLS. A client offers only one at a time.
const TLS_VERSIONS: [&str; 2] = ["1.3", "1.2"];

/// Runs the client against a server without TLS, then with each version against a server with TLS.
/// The client finds the authority where its library expects it.
fn check_with_and_without_tls(
    site: &Site,
    further: &[&str],
    client: impl Fn() -> Command,
) -> Result<Tally, Stop> {
    let mut tally = check_server(site, client(), &[], further)?;
    if site.server.is_some() {
        return Ok(tally);
    }
    let certificate = Certificate::make(site)?;
    for version in TLS_VERSIONS {
        println!("with TLS {version}");
        let mut secured = client();
        secured.env("THRONG_TLS", version);
        for variable in ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"] {
            secured.env(variable, &certificate.authority);
        }
        tally.add(check_server(site, secured, &certificate.flags(), further)?);
    }
    Ok(tally)
}

/// Starts the server and runs the client against it.
fn check_server(
    site: &Site,
    client: Command,
    flags: &[String],
    further: &[&str],
) -> Result<Tally, Stop> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    check(Server::start(site, &flags)?, client, site, further)
}

/// Runs the client with the server's address, counts the client's results, and shuts the server
/// down gracefully: it must still be running and must exit with 0.
fn check(
    server: Server,
    mut client: Command,
    site: &Site,
    further: &[&str],
) -> Result<Tally, Stop> {
    client.arg(server.address.to_string()).args(further).current_dir(&site.root);
    let finished = run_shown(&mut client, LIMIT)?;
    let tally = count(&finished.stdout);
    server.stop()?;
    if !finished.status.success() && tally.failures.is_empty() {
        let last = last_lines(&finished.stdout, 5);
        return Err(Stop::Failed(format!("the client ended with {}: {last}", finished.status)));
    }
    if tally == Tally::default() {
        return Err(Stop::Failed("the client checked nothing".into()));
    }
    Ok(tally)
}

/// Counts the lines `ok NAME` and `FAILED NAME: why`.
fn count(output: &str) -> Tally {
    let failures = output.lines().filter_map(|line| line.strip_prefix("FAILED "));
    Tally {
        passed: output.lines().filter(|line| line.starts_with("ok ")).count(),
        failures: failures.map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_lines_are_counted() {
        let output = "ok a\nnoise\nFAILED b: not ok\nok c\n";
        assert_eq!(count(output), Tally { passed: 2, failures: vec!["b: not ok".into()] });
    }
}
