//! Checks that every example that is a server does what its first lines state: it serves the URL
//! named there, and answers a greeting. Tests of the library run the examples that are clients.

pub(super) mod greeting;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{EVERYTHING, cargo, end_tree, run_step};
use crate::outcome::{Stop, Tally};
use crate::site::Site;
use greeting::Url;

const BUILD: Duration = Duration::from_secs(600);
/// Time limit from starting the program to its response.
const LIMIT: Duration = Duration::from_secs(20);
/// The packages with examples that are servers.
const PACKAGES: [&str; 2] = ["throng", "throng-balance"];

/// Builds the examples, then starts and greets one after the other.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let mut examples = Vec::new();
    for name in PACKAGES {
        let package = site.package(name).ok_or_else(|| format!("unknown package {name}"))?;
        let servers = Site::targets(package, "example").into_iter();
        let before = examples.len();
        examples.extend(
            servers.filter(|name| !name.starts_with("client")).map(|server| (package, server)),
        );
        if examples.len() == before {
            return Err(Stop::Failed(format!("{name} has no example")));
        }
    }
    let mut build = cargo(site);
    build.args(["build", "--quiet"]).args(EVERYTHING);
    for (_, example) in &examples {
        build.args(["--example", example]);
    }
    run_step(&mut build, BUILD)?;
    let mut tally = Tally::default();
    for (package, example) in examples {
        tally.record(example, try_example(site, package, example));
    }
    Ok(tally)
}

fn try_example(site: &Site, package: &serde_json::Value, example: &str) -> Result<(), String> {
    let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let source = targets
        .iter()
        .find(|target| target["name"] == example)
        .and_then(|target| target["src_path"].as_str())
        .ok_or("cargo does not name its source")?;
    let source = std::fs::read_to_string(Path::new(source)).map_err(|error| error.to_string())?;
    let url = Url::in_first_lines(&source)?;
    // Another server at that address would respond instead.
    if greeting::connect(&url).is_ok() {
        return Err(format!("another program already listens on {}", url.address));
    }
    // Files that the example writes go there.
    let folder = site.target.join("tmp/examples").join(example);
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let mut child = Command::new(site.target.join("debug/examples").join(example))
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start it: {error}"))?;
    let answer = greet(&mut child, &url);
    end_tree(&mut child);
    answer
}

/// Connects as soon as it listens, and expects a response that contains the greeting.
fn greet(child: &mut Child, url: &Url) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    let stream = loop {
        match greeting::connect(url) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() >= deadline => {
                return Err(format!("it does not listen on {}: {error}", url.address));
            }
            Err(_) => {
                if let Ok(Some(status)) = child.try_wait() {
                    return Err(format!("it ended with {status}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    };
    let answer = greeting::exchange(stream, url, "hello").map_err(|error| error.to_string())?;
    if answer.contains("hello") { Ok(()) } else { Err(format!("it answered `{answer}`")) }
}
