//! `cargo test --workspace`, and the counting of libtest's results.

use std::path::PathBuf;
use std::time::Duration;

use crate::command::{EVERYTHING, Finished, cargo, run_shown};
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::Site;

/// Time limit from a clean checkout on two slow cores, including compilation.
const LIMIT: Duration = Duration::from_secs(2400);

/// Servers of others that some tests start. Without them those tests are skipped, but not on CI.
const PEERS: [&str; 3] = ["redis-server", "nginx", "haproxy"];

/// Tests that run at once.
const THREADS: &str = "4";

/// Runs the unit, integration and doc tests of every crate.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let mut test = cargo(site);
    // One failing crate does not hide the results of the others.
    test.arg("test").args(EVERYTHING).arg("--no-fail-fast");
    let mut has_peers = true;
    for peer in PEERS {
        if let Err(Stop::Failed(why) | Stop::Missing(why)) = provision::program(&[peer], &[peer]) {
            println!("{why}");
            has_peers = false;
        }
    }
    match pebble(site) {
        Ok(folder) => drop(test.env("TEST_PEBBLE", folder)),
        Err(Stop::Failed(why) | Stop::Missing(why)) => {
            println!("{why}");
            has_peers = false;
        }
    }
    // Most tests wait rather than compute.
    test.env("RUST_TEST_THREADS", THREADS);
    // Not THRONG_*: those are settings of the binary, which the tests start.
    if has_peers || site.ci {
        test.env("TEST_PEERS", "1");
    }
    tally(run_shown(&mut test, LIMIT)?)
}

/// Builds pebble, the authority for tests of Let's Encrypt, and its resolver. Debian's version has
/// no renewal information (RFC 9773).
fn pebble(site: &Site) -> Result<PathBuf, Stop> {
    let module = "github.com/letsencrypt/pebble/v2";
    provision::go_programs(site, module, "v2.10.1", &["pebble", "pebble-challtestsrv"])
}

/// Returns the counts of a run of `cargo test`. A run that failed without a failed test did not
/// compile, or was killed.
pub(super) fn tally(finished: Finished) -> Result<Tally, Stop> {
    let tally = count(&finished.stdout);
    match (finished.status.success(), tally.failed) {
        (false, 0) => Err(Stop::Failed(format!("cargo test ended with {}", finished.status))),
        _ => Ok(tally),
    }
}

/// Adds up the lines `test result: ok. 3 passed; 0 failed; ...`.
fn count(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines().filter(|line| line.starts_with("test result:")) {
        let mut words = line.split_whitespace();
        let mut before = "";
        for word in words.by_ref() {
            let number = before.parse::<usize>();
            match (word.trim_end_matches(';'), number) {
                ("passed", Ok(number)) => tally.passed += number,
                ("failed", Ok(number)) => tally.failed += number,
                _ => {}
            }
            before = word;
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_lines_of_libtest_are_added_up() {
        let output = "running 2 tests\ntest a ... ok\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; finished in 0.00s\n\
            test result: FAILED. 5 passed; 1 failed; 0 ignored; finished in 0.00s\n";
        assert_eq!(count(output), Tally { passed: 7, failed: 1 });
    }
}
