//! Servers and balancers with TLS: the plans and rules of those without it, over secured links.
//!
//! `THRONG_SIM_SEED=7` runs that one seed, `THRONG_SIM_SEEDS=100000` that many, from
//! `THRONG_SIM_FROM` on; `THRONG_SIM_LOG=1` prints all events. A seed repeats all but the bytes of
//! records (see [`throng_sim::secured`]).

use throng_sim::{Plan, Seeds, World, balance, hush_planned_panics, run_secured_seed};

const SERVERS: Seeds = Seeds {
    package: "throng-sim",
    test: "secured::servers",
    run: |seed| run_secured_seed(seed).map(drop),
};

const BALANCERS: Seeds = Seeds {
    package: "throng-sim",
    test: "secured::balancers",
    run: |seed| balance::run_secured_seed(seed).map(drop),
};

#[test]
fn servers_with_tls_break_no_rule() {
    hush_planned_panics();
    SERVERS.check_up_to(200);
}

#[test]
fn balancers_with_tls_break_no_rule() {
    BALANCERS.check_up_to(200);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    hush_planned_panics();
    for seed in 0..8 {
        let trace = || World::new(Plan::secured(seed)).run().trace;
        assert_eq!(trace(), trace(), "seed {seed} is not deterministic");
        let trace = || balance::World::new(balance::Plan::secured(seed)).run().trace;
        assert_eq!(trace(), trace(), "seed {seed} of the balancer is not deterministic");
    }
}
