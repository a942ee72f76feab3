//! The loom models of the engine: every interleaving of its threads, not only the few that a
//! machine happens to execute.

use std::process::Command;
use std::time::Duration;

use super::cargo_test;
use crate::command::{cargo, run_shown, run_step};
use crate::outcome::{Stop, Tally};
use crate::site::Site;

/// Time limit, including compilation beside another layer.
const LIMIT: Duration = Duration::from_secs(1200);
const PACKAGE: &str = "throng-engine";
const TESTS: [&str; 2] = ["loom_mailbox", "loom_totals"];

/// Builds the models.
pub(super) fn prepare(site: &Site) -> Result<(), Stop> {
    Ok(run_step(test(site)?.arg("--no-run"), LIMIT)?)
}

/// Runs the models.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    cargo_test::tally(run_shown(&mut test(site)?, LIMIT)?)
}

/// Returns the command with a separate target folder, because `--cfg loom` rebuilds every
/// dependency.
fn test(site: &Site) -> Result<Command, Stop> {
    let package = site.package(PACKAGE).ok_or_else(|| format!("unknown package {PACKAGE}"))?;
    let targets = Site::targets(package, "test");
    let mut test = cargo(site);
    test.args(["test", "--package", PACKAGE, "--release"]);
    for name in TESTS {
        if !targets.contains(&name) {
            return Err(Stop::Failed(format!("{PACKAGE} has no test {name}")));
        }
        test.args(["--test", name]);
    }
    test.env("RUSTFLAGS", "--cfg loom");
    test.env("CARGO_TARGET_DIR", site.target.join("loom"));
    Ok(test)
}
