//! Connections that the balancer passes through by the server name in their ClientHello, simulated.
//!
//! A real shard on the real TLS driver, on the simulated one. Clients begin with a ClientHello,
//! whole or not, however it is cut; backends are slow, mute, gone, or end first. [`Plan::of`] says
//! what a seed means, [`World::run`] runs it, and `checks` judges the end; [`run_seed`] is all of
//! them.

mod backend;
mod checks;
mod client;
mod hello;
mod plan;
mod world;

pub use plan::Plan;
pub use world::World;

use super::Outcome;

/// Runs the plan of a seed.
///
/// # Errors
/// The rules that were broken, with the command that repeats the run.
pub fn run_seed(seed: u64) -> Result<Outcome, String> {
    let outcome = World::new(Plan::of(seed)).run();
    match outcome.violations.is_empty() {
        true => Ok(outcome),
        false => Err(format!(
            "seed {seed}:\n  {}\n\
             repeat: THRONG_SIM_SEED={seed} cargo test -p throng-sim --test all through::",
            outcome.violations.join("\n  ")
        )),
    }
}
