//! The production balancer on the simulated driver: real shards between simulated clients and
//! backends.
//!
//! A plan gives a seed its meaning: [`BalancePlan::of`], [`BalancePlan::secured`] with TLS, and
//! [`BalancePlan::passed_through`] with connections that are passed through by their server name.
//! [`World::run`] runs the plan, and `checks` checks the end; [`run_seed`] and its variants do
//! both. A `Node` is a shard, both here and in simulations with real servers.

mod backend;
mod client;
mod frames;
pub(crate) mod node;
mod peers;
mod plan;
mod run;
mod script;
mod through;
mod wire;
mod world;

pub use plan::BalancePlan;
pub use script::{MoveEnd, PeerEnd, PeerId, Script};
pub use world::{BalanceOutcome, World};

/// Runs the plan of a seed.
///
/// # Errors
/// The broken rules, with the command that repeats the run.
pub fn run_seed(seed: u64) -> Result<BalanceOutcome, String> {
    run_plan(seed, BalancePlan::of(seed), "balance")
}

/// Runs the plan of a seed with TLS.
///
/// # Errors
/// The broken rules, with the command that repeats the run.
pub fn run_secured_seed(seed: u64) -> Result<BalanceOutcome, String> {
    run_plan(seed, BalancePlan::secured(seed), "secured::balancers")
}

/// Runs the plan of a seed with reloads alone.
///
/// # Errors
/// The broken rules, with the command that repeats the run.
pub fn run_reloads_seed(seed: u64) -> Result<BalanceOutcome, String> {
    run_plan(seed, BalancePlan::reloads(seed), "balance::reloads")
}

/// Runs the plan of a seed in which backends have limits of connections, backups and a fallback.
///
/// # Errors
/// The broken rules, with the command that repeats the run.
pub fn run_capacity_seed(seed: u64) -> Result<BalanceOutcome, String> {
    run_plan(seed, BalancePlan::capacity(seed), "balance::capacity")
}

/// Runs the plan of a seed in which tunnels have rates and longest lives.
///
/// # Errors
/// The broken rules, with the command that repeats the run.
pub fn run_metered_seed(seed: u64) -> Result<BalanceOutcome, String> {
    run_plan(seed, BalancePlan::metered(seed), "balance::metered")
}

/// Runs the plan of a seed whose connections are passed through.
///
/// # Errors
/// The broken rules, with the command that repeats the run.
pub fn run_passed_through_seed(seed: u64) -> Result<BalanceOutcome, String> {
    run_plan(seed, BalancePlan::passed_through(seed), "through::")
}

fn run_plan(seed: u64, plan: BalancePlan, test: &str) -> Result<BalanceOutcome, String> {
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
