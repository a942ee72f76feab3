//! Event loops that stay on their CPUs, on every system that has it. `pinning.rs` reads on Linux
//! where their threads run.
#![cfg(any(target_os = "linux", windows))]

use std::collections::BTreeSet;

use throng::prelude::*;
use throng::server::{CpuAffinity, Shards};

use crate::support::served::{self, get, stop};

#[test]
fn each_shard_has_a_cpu_of_its_own_and_none_is_refused() {
    let count = throng_io::affinity::usable_cpus().unwrap().len();
    let bind = |shards| {
        let shards = Shards::new().count(shards).pin(CpuAffinity::Cores);
        Server::new(served::app().get("/", |_| "hello")).shards(shards).bind("127.0.0.1:0")
    };
    let bound = bind(count).unwrap();
    let placement = bound.placement().unwrap().clone();
    let cpus: BTreeSet<usize> = placement.places().iter().map(|place| place.cpu).collect();
    assert_eq!(cpus.len(), count, "{placement}");
    let running = bound.start().unwrap();
    assert_eq!(get(running.local_addr(), "/"), "hello");
    assert_eq!(running.placement(), Some(&placement), "nothing was refused");
    stop(running);
    let error = bind(count + 1).unwrap_err().to_string();
    assert!(error.contains(&format!("shards is {}", count + 1)), "{error}");
}
