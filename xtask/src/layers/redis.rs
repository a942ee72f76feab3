//! Clusters of nodes, and of whole servers, on a Redis server that is killed, stopped and emptied:
//! tests that an ordinary `cargo test` skips where there is none.

use std::time::Duration;

use super::cargo_test;
use crate::command::{cargo, run_shown};
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::Site;

const LIMIT: Duration = Duration::from_secs(600);

/// Installs the server and runs the tests.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    provision::program(&["redis-server"], &["redis-server"])?;
    let mut test = cargo(site);
    test.args(["test", "-p", "throng-cluster", "-p", "throng-cli", "-p", "throng"]);
    test.args(["--features", "throng-cluster/redis,throng/redis"]);
    for name in [
        "redis",
        "network",
        "lost",
        "sentinel",
        "servers",
        "cluster",
        "nodes",
        "presence",
        "control",
        "cluster_hub",
    ] {
        test.args(["--test", name]);
    }
    test.env("TEST_PEERS", "1");
    cargo_test::tally(run_shown(&mut test, LIMIT)?)
}
