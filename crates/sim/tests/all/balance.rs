//! The balancer: a thousand seeds, every seed that ever failed, and planted bugs.
//!
//! `THRONG_SIM_SEED=7` runs only that seed, `THRONG_SIM_SEEDS=100000` that many, from
//! `THRONG_SIM_FROM` on; `THRONG_SIM_LOG=1` prints all events.

use throng_sim::Seeds;
use throng_sim::balance::{
    BalancePlan, World, run_capacity_seed, run_metered_seed, run_reloads_seed, run_seed,
};
use throng_sim::net::Bug;

/// Seeds that once found a fault. The meaning of a seed changes with the plans, so this list keeps
/// the seed and not the case; ends that cross have their own tests in balancer/closing.rs.
const REGRESSIONS: &[u64] = &[
    4335,  // a silent tunnel cut without a reset while its backend's Close still left
    2077,  // the same, with many
    1738,  // a client without its backend ended in silence before its Close was due
    12621, // the same, with many
];

const SEEDS: Seeds =
    Seeds { package: "throng-sim", test: "balance", run: |seed| run_seed(seed).map(drop) };

#[test]
fn a_thousand_seeds_break_no_rule() {
    SEEDS.check_many();
}

const RELOADS: Seeds = Seeds {
    package: "throng-sim",
    test: "balance::reloads",
    run: |seed| run_reloads_seed(seed).map(drop),
};

/// Backends move between pools under tunnels and requests: none ends for it.
#[test]
fn reloads_of_pools_break_no_rule() {
    RELOADS.check_up_to(400);
}

const CAPACITY: Seeds = Seeds {
    package: "throng-sim",
    test: "balance::capacity",
    run: |seed| run_capacity_seed(seed).map(drop),
};

/// No backend ever has more than its limit, all who wait are served in calm runs, and every permit
/// is free at the end, in each way that requests and tunnels end.
#[test]
fn capacity_of_backends_breaks_no_rule() {
    CAPACITY.check_up_to(600);
}

const METERED: Seeds = Seeds {
    package: "throng-sim",
    test: "balance::metered",
    run: |seed| run_metered_seed(seed).map(drop),
};

/// Clients beyond a rate of their tunnels lose nothing, are served in calm runs, and hold nothing
/// afterwards.
#[test]
fn metered_tunnels_break_no_rule() {
    METERED.check_up_to(400);
    let outcomes = (0..60).filter_map(|seed| run_metered_seed(seed).ok());
    let (throttled, lives) = outcomes.fold((0, 0), |(throttled, lives), it| {
        (throttled + it.metrics.throttled, lives + it.metrics.lifetime_ended)
    });
    assert!(throttled > 50 && lives > 0, "{throttled} {lives}");
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    SEEDS.check(REGRESSIONS.to_vec());
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..50 {
        let trace = || World::new(BalancePlan::of(seed)).run().trace;
        assert_eq!(trace(), trace(), "seed {seed} is not deterministic");
    }
}

#[test]
fn bytes_that_are_lost_or_swapped_are_found() {
    for bug in [Bug::Lose, Bug::Swap] {
        let is_found = |seed: &u64| {
            let world = World::new(BalancePlan::of(*seed)).with_bug(bug, 5);
            !world.run().violations.is_empty()
        };
        let found = (0..40).filter(is_found).count();
        assert!(found > 10, "{bug:?} was found by {found} of 40 seeds");
    }
}
