//! Clients that talk through a balancer to servers: a thousand seeds, and planted bugs that must be
//! found.
//!
//! `THRONG_SIM_SEED=7` runs only that seed, `THRONG_SIM_SEEDS=100000` that many, from
//! `THRONG_SIM_FROM` on; `THRONG_SIM_LOG=1` prints all events.

use throng_balance::Settings;
use throng_sim::net::Bug;
use throng_sim::plan::BalancerPlan;
use throng_sim::{
    Do, Expect, Faults, SECOND, Seeds, SimPlan, World, hush_planned_panics, run_chained_seed,
};

const SEEDS: Seeds =
    Seeds { package: "throng-sim", test: "chain", run: |seed| run_chained_seed(seed).map(drop) };

#[test]
fn a_thousand_seeds_break_no_rule() {
    hush_planned_panics();
    SEEDS.check_many();
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    hush_planned_panics();
    for seed in 0..10 {
        let trace = || World::new(SimPlan::chained(seed)).run().trace;
        assert_eq!(trace(), trace(), "seed {seed} is not deterministic");
    }
}

/// An echo of ten messages through a balancer, in a network with a bug or with none.
fn echo(bug: Option<(Bug, usize)>) -> World {
    let mut plan = SimPlan::calm(1);
    let faults = Faults::default();
    plan.balancer = Some(BalancerPlan { shards: 1, settings: Settings::default(), faults });
    let say = |number: u8| {
        let payload = format!("message {number}").into_bytes();
        [Do::Message { text: true, payload, fragments: 1, pinging: false }, Do::Pause(10_000)]
    };
    let mut script = vec![Do::UntilOpen];
    script.extend((0..10).flat_map(say));
    script.extend([Do::Pause(SECOND), Do::Close(1000)]);
    plan.add("echo", Expect::Clean, script);
    let world = World::new(plan);
    world.net.borrow_mut().bug = bug;
    world
}

#[test]
fn an_echo_goes_through_the_balancer() {
    let mut world = echo(None);
    let is_over = |world: &mut World| world.tunnels_opened() == 1;
    assert!(world.run_until(is_over), "no tunnel was opened");
    assert_eq!(world.run().violations, [""; 0]);
}

/// The first two pieces from an acceptor are the 101 responses of the server and of the balancer.
#[test]
fn a_message_that_is_lost_on_its_way_back_is_missed() {
    for piece in 2..12 {
        let violations = echo(Some((Bug::Lose, piece))).run().violations;
        assert!(violations.iter().any(|it| it.contains("never came")), "{piece}: {violations:?}");
    }
}

#[test]
fn messages_that_change_places_are_noticed() {
    for piece in 2..12 {
        let violations = echo(Some((Bug::Swap, piece))).run().violations;
        let is_noticed = |it: &String| it.contains("came twice, or too late");
        assert!(violations.iter().any(is_noticed), "{piece}: {violations:?}");
    }
}

#[test]
fn a_server_that_is_not_there_is_noticed() {
    let world = echo(None);
    world.net.borrow_mut().stop_listening(0);
    let violations = world.run().violations;
    assert!(violations.iter().any(|it| it.contains("is there, and failed")), "{violations:?}");
}
