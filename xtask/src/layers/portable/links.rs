//! `throng` linked for systems that nothing here can run, by zig's compiler and linker, which bring
//! their headers and libraries.

use std::path::Path;
use std::time::Duration;

use crate::command::{cargo, run_step};
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::Site;

/// Time limit of a build from nothing on two slow cores.
const LIMIT: Duration = Duration::from_secs(2400);

/// The targets whose programs are linked.
const LINKED: &[&str] = &["aarch64-apple-darwin", "x86_64-apple-darwin", "x86_64-unknown-freebsd"];

/// Links the program for each target. Without zig it prints the reason, and links nothing.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let mut tally = Tally::default();
    let requirements = site.root.join("conformance/zig/requirements.txt");
    let python = match provision::python_environment(site, "zig", &requirements) {
        Ok(python) => python,
        Err(Stop::Missing(why)) => {
            println!("nothing is linked: {why}");
            return Ok(tally);
        }
        Err(stop) => return Err(stop),
    };
    for target in LINKED {
        tally.record(&format!("{target}: throng is linked"), link(site, target, &python));
    }
    Ok(tally)
}

fn link(site: &Site, target: &str, python: &Path) -> Result<(), String> {
    let tools = python.parent().unwrap_or(python);
    // Apart from the checks, whose objects of C code are empty.
    let folder = site.target.join("linked");
    let mut build = cargo(site);
    build.args(["zigbuild", "--package", "throng-cli", "--bin", "throng", "--target", target]);
    build.env("CARGO_TARGET_DIR", &folder);
    let path = std::env::var("PATH").unwrap_or_default();
    build.env("PATH", format!("{}:{path}", tools.display()));
    run_step(&mut build, LIMIT)?;
    let program = folder.join(target).join("debug/throng");
    match std::fs::metadata(&program) {
        Ok(file) if file.len() > 0 => Ok(()),
        _ => Err(format!("there is no {}", program.display())),
    }
}
