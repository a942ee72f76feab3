//! `cargo test --workspace`, and the counting of libtest's results.

use std::path::PathBuf;
use std::time::Duration;

use crate::command::{EVERYTHING, Finished, cargo, run_shown};
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::Site;

/// Time limit from a clean checkout on two slow cores, including compilation, while other layers
/// are built in parallel.
const LIMIT: Duration = Duration::from_secs(3600);

/// External programs that some tests start, with their packages. Without a program its tests are
/// skipped, except on CI. The programs of util-linux create the sandboxes of units.
const PEERS: [(&str, &str); 6] = [
    ("redis-server", "redis-server"),
    ("nginx", "nginx"),
    ("haproxy", "haproxy"),
    ("systemd-analyze", "systemd"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
];

/// Tests that run at once.
const THREADS: &str = "4";

/// Runs the unit, integration and doc tests of every crate.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let mut test = cargo(site);
    // One failing crate does not hide the results of the others.
    test.arg("test").args(EVERYTHING).arg("--no-fail-fast");
    let mut has_peers = true;
    for (peer, package) in PEERS {
        let found = provision::program(&[peer], &[package]);
        if let Err(Stop::Failed(why) | Stop::Missing(why)) = found {
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

/// Returns the results of a run of `cargo test`. A run that failed without a failed test did not
/// compile, or was killed.
pub(super) fn tally(finished: Finished) -> Result<Tally, Stop> {
    let tally = results(&finished.stdout);
    match (finished.status.success(), tally.failures.is_empty()) {
        (false, true) => Err(Stop::Failed(format!("cargo test ended with {}", finished.status))),
        _ => Ok(tally),
    }
}

/// Adds up the lines `test result: ok. 3 passed; 0 failed; ...`, and collects the names of failed
/// tests. libtest lists the names under a program's second line `failures:`. It prints their output
/// under the first such line; this output is kept with the last name.
fn results(output: &str) -> Tally {
    let mut tally = Tally::default();
    let mut printed = String::new();
    let mut lists = 0;
    for line in output.lines() {
        if let Some(counts) = line.strip_prefix("test result:") {
            tally.passed += passed(counts);
            if let Some(last) = tally.failures.last_mut() {
                last.push_str(&std::mem::take(&mut printed));
            }
            lists = 0;
        } else if line == "failures:" {
            lists += 1;
        } else if lists == 1 && !line.is_empty() {
            printed.extend(["\n", line]);
        } else if let (2, Some(name)) = (lists, line.strip_prefix("    ")) {
            tally.failures.push(name.to_owned());
        }
    }
    tally
}

/// Returns the number of ` ok. 3 passed; 0 failed; ...`.
fn passed(counts: &str) -> usize {
    let words: Vec<&str> = counts.split_whitespace().collect();
    let at = words.iter().position(|word| word.starts_with("passed"));
    at.and_then(|at| words.get(at.wrapping_sub(1))?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_libtest_are_added_up_and_its_failures_collected() {
        let output = "running 2 tests\ntest a ... ok\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; finished in 0.00s\n\
            test b ... FAILED\n\n\
            failures:\n\n---- b stdout ----\nit broke\n\n\nfailures:\n    b\n\n\
            test result: FAILED. 5 passed; 1 failed; 0 ignored; finished in 0.00s\n";
        let failures = vec!["b\n---- b stdout ----\nit broke".to_owned()];
        assert_eq!(results(output), Tally { passed: 7, failures });
    }
}
