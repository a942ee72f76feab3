//! Servers and balancers with TLS: the plans and rules of those without it, over secured links.
//!
//! `THRONG_SIM_SEED=7` runs that one seed, `THRONG_SIM_SEEDS=100000` that many, from
//! `THRONG_SIM_FROM` on; `THRONG_SIM_LOG=1` prints all events. A seed repeats all but the bytes of
//! records (see [`throng_sim::secured`]).

use std::net::SocketAddr;

use throng_sim::net::{LinkOptions, Side};
use throng_sim::secured::Configurations;
use throng_sim::{Net, Plan, Rng, Seeds, World, balance, hush_planned_panics, run_secured_seed};

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

/// Seeds beyond those that always run, and what broke a rule. The meaning of a seed changes with
/// the plans, so this keeps the dice, not the case.
const SERVER_REGRESSIONS: &[u64] = &[
    321, // a slow reader, given a record at a time, was reset by the write timeout
    399, // a client took a part of a record, and the space that this made went unnoticed
];

const BALANCER_REGRESSIONS: &[u64] = &[
    647, // two hundred requests of one client took longer than its plan
];

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    hush_planned_panics();
    SERVERS.check(SERVER_REGRESSIONS.to_vec());
    BALANCERS.check(BALANCER_REGRESSIONS.to_vec());
}

/// A driver looks for space before the peers have acted, and would sleep on.
#[test]
fn a_secured_end_makes_room_for_what_arrives_at_once() {
    let net = Net::shared();
    let mut net = net.borrow_mut();
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let listener = net.listen(address);
    let options = LinkOptions { latency: 0, capacity: 200, cut_after: None };
    let link = net.dial(listener, address, options).expect("it is open");
    net.secure(link, Side::Dialer, Configurations::new().client(&mut Rng::new(1)));
    // The beginning of a record of a handshake (RFC 8446 section 5.1).
    let mut part = vec![22, 3, 3, 16, 0];
    part.resize(options.capacity, 2);
    net.write(link, Side::Acceptor, &part);
    assert_eq!(net.space(link, Side::Acceptor), options.capacity);
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
