//! `lab` as people run it.

mod comparisons;
mod io_models;
mod netbench;
mod proxies;
mod serve_blocking;
mod serve_netbench;
mod serve_probe;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;
