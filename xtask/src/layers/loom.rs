//! The loom models of the engine: every interleaving of its threads, not only the few that a
//! machine happens to execute.

use std::time::Duration;

use super::cargo_test;
use crate::command::{cargo, run_shown};
use crate::outcome::{Stop, Tally};
use crate::site::Site;

const LIMIT: Duration = Duration::from_secs(600);
const PACKAGE: &str = "throng-engine";
const TESTS: [&str; 2] = ["loom_mailbox", "loom_totals"];

/// Runs the models in a target folder of their own: `--cfg loom` rebuilds every dependency.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
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
    cargo_test::tally(run_shown(&mut test, LIMIT)?)
}
