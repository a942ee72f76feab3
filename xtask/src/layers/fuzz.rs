//! A few seconds of each fuzz target: checks that it builds, runs, and finds nothing immediately.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::command::{run_quietly, run_step};
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::{Site, clean_cargo_environment};

/// The version that is built when none is installed.
const CARGO_FUZZ: &str = "0.13.2";
/// Seconds for each target. For a long run use `cargo +nightly fuzz run TARGET`.
const SECONDS: u32 = 5;
/// Number of parallel targets: each keeps one core busy.
const AT_ONCE: usize = 2;
/// Time limit of the build, beside another layer.
const BUILD: Duration = Duration::from_secs(1800);

/// Builds all targets.
pub(super) fn prepare(site: &Site) -> Result<(), Stop> {
    Ok(run_step(&mut CargoFuzz::find(site)?.command(&["build"]), BUILD)?)
}

/// Builds all targets, then runs each.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let cargo_fuzz = CargoFuzz::find(site)?;
    let fuzz = |arguments: &[&str]| cargo_fuzz.command(arguments);
    let list = run_quietly(&mut fuzz(&["list"]), Duration::from_secs(60))?;
    let targets: Vec<&str> =
        list.stdout.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if targets.is_empty() {
        return Err(Stop::Failed("cargo fuzz lists no target".into()));
    }
    println!("building {} targets", targets.len());
    run_step(&mut fuzz(&["build"]), BUILD)?;
    let run_target = |target: &str| {
        let time = format!("-max_total_time={SECONDS}");
        // A new folder for findings per run would hide an old finding; git ignores the default one.
        let run = fuzz(&[
            "run",
            target,
            "--",
            &time,
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-verbosity=0",
        ]);
        run_step(&mut { run }, BUILD)
    };
    let mut tally = Tally::default();
    for targets in targets.chunks(AT_ONCE) {
        let results: Vec<_> = thread::scope(|scope| {
            let run_target = &run_target;
            let running: Vec<_> =
                targets.iter().map(|target| scope.spawn(move || run_target(target))).collect();
            running.into_iter().map(|thread| thread.join()).collect()
        });
        for (target, result) in targets.iter().zip(results) {
            let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            tally.record(target, result);
        }
    }
    Ok(tally)
}

/// The tool, with a nightly compiler, which the sanitizers need.
struct CargoFuzz<'a> {
    site: &'a Site,
    tool: PathBuf,
}

impl<'a> CargoFuzz<'a> {
    /// Finds or installs both.
    fn find(site: &'a Site) -> Result<CargoFuzz<'a>, Stop> {
        if !site.root.join("fuzz/Cargo.toml").exists() {
            return Err(Stop::Failed("fuzz/Cargo.toml is missing".into()));
        }
        provision::nightly()?;
        let tool = provision::cargo_tool(site, "cargo-fuzz", CARGO_FUZZ)?;
        Ok(CargoFuzz { site, tool })
    }

    /// Returns `cargo fuzz` with these arguments.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly"]).arg(&self.tool).arg("fuzz").args(arguments);
        command.current_dir(&self.site.root);
        clean_cargo_environment(&mut command);
        command.env("CARGO_TARGET_DIR", self.site.target.join("fuzz"));
        command
    }
}
