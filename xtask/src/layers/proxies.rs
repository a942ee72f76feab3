//! nginx and HAProxy under `lab proxies`, a small version of each table: the only test that an
//! ordinary `cargo test` skips where neither is installed.

use std::time::Duration;

use super::cargo_test;
use crate::command::{EVERYTHING, cargo, run_shown};
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::Site;

const LIMIT: Duration = Duration::from_secs(600);
const PACKAGE: &str = "throng-lab";
const TEST: &str = "proxies";

/// Installs the proxies and runs the test.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let package = site.package(PACKAGE).ok_or_else(|| format!("unknown package {PACKAGE}"))?;
    if !Site::targets(package, "test").contains(&TEST) {
        return Err(Stop::Failed(format!("{PACKAGE} has no test {TEST}")));
    }
    for proxy in ["nginx", "haproxy"] {
        provision::program(&[proxy], &[proxy])?;
    }
    let mut test = cargo(site);
    // Not THRONG_*: those are settings of the binary, which the tests start.
    test.arg("test").args(EVERYTHING).args(["--test", TEST]).env("TEST_PEERS", "1");
    cargo_test::tally(run_shown(&mut test, LIMIT)?)
}
