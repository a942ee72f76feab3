//! The production balancer on the simulated driver: real shards between simulated clients and
//! backends.
//!
//! [`Plan::of`] says what a seed means, [`World::run`] runs it, and `checks` judges the end;
//! [`run_seed`] is all of them.

mod backend;
mod checks;
mod client;
mod frames;
mod plan;
mod run;
mod script;
pub mod through;
mod wire;
mod world;

pub(crate) use checks::held_too_much;
pub use plan::Plan;
pub use script::{PeerEnd, PeerId, Script};
pub use world::{Outcome, World};

/// Runs the plan of a seed.
///
/// # Errors
/// The rules that were broken, with the command that repeats the run.
pub fn run_seed(seed: u64) -> Result<Outcome, String> {
    run_plan(seed, Plan::of(seed), "balance")
}

/// Runs the plan of a seed with TLS.
///
/// # Errors
/// The rules that were broken, with the command that repeats the run.
pub fn run_secured_seed(seed: u64) -> Result<Outcome, String> {
    run_plan(seed, Plan::secured(seed), "secured::balancers")
}

fn run_plan(seed: u64, plan: Plan, test: &str) -> Result<Outcome, String> {
    let outcome = World::new(plan).run();
    match outcome.violations.is_empty() {
        true => Ok(outcome),
        false => Err(format!(
            "seed {seed}:\n  {}\n\
             repeat: THRONG_SIM_SEED={seed} cargo test -p throng-sim --test all {test}",
            outcome.violations.join("\n  ")
        )),
    }
}
