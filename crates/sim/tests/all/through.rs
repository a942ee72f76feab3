//! Connections that the balancer passes through by their server name: a thousand seeds, the states
//! that they reach, and planted bugs.
//!
//! `THRONG_SIM_SEED=7` runs only that seed, `THRONG_SIM_SEEDS=100000` that many, from
//! `THRONG_SIM_FROM` on; `THRONG_SIM_LOG=1` prints all events.

use throng_sim::Seeds;
use throng_sim::balance::{BalancePlan, World, run_passed_through_seed};
use throng_sim::net::Bug;

const SEEDS: Seeds = Seeds {
    package: "throng-sim",
    test: "through",
    run: |seed| run_passed_through_seed(seed).map(drop),
};

#[test]
fn a_thousand_seeds_break_no_rule() {
    SEEDS.check_many();
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..50 {
        let trace = || World::new(BalancePlan::passed_through(seed)).run().trace;
        assert_eq!(trace(), trace(), "seed {seed} is not deterministic");
    }
}

#[test]
fn seeds_come_to_what_is_rare() {
    let mut sum = throng_balance::Metrics::default();
    for seed in 0..200 {
        sum += World::new(BalancePlan::passed_through(seed)).run().metrics;
    }
    assert!(sum.passed_through > 400 && sum.tunnels_opened > 300, "{sum:?}");
    assert!(sum.backend_errors > 30 && sum.retries > 10 && sum.closed > 10, "{sum:?}");
}

#[test]
fn bytes_that_are_lost_or_swapped_are_found() {
    for bug in [Bug::Lose, Bug::Swap] {
        let is_found = |seed: &u64| {
            let world = World::new(BalancePlan::passed_through(*seed)).with_bug(bug, 5);
            !world.run().violations.is_empty()
        };
        let found = (0..40).filter(is_found).count();
        assert!(found > 10, "{bug:?} was found by {found} of 40 seeds");
    }
}
