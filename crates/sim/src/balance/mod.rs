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
/// What was broken, and how to repeat it.
pub fn run_seed(seed: u64) -> Result<Outcome, String> {
    let outcome = World::new(Plan::of(seed)).run();
    match outcome.violations.is_empty() {
        true => Ok(outcome),
        false => Err(format!(
            "seed {seed}:\n  {}\n\
             repeat: THRONG_SIM_SEED={seed} cargo test -p throng-sim --test all balance::",
            outcome.violations.join("\n  ")
        )),
    }
}
