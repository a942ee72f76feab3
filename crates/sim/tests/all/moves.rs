//! Upgrades that move to the shard of their session before it opens.

use std::time::Duration;

use throng_engine::DrainPlan;
use throng_sim::plan::Drain;
use throng_sim::{Do, Expect, SECOND, SimPlan, World, WorldOutcome};

use crate::support::text;

/// Peers with placed sessions that send data right after their request.
fn plan(seed: u64, shards: usize, peers: usize) -> SimPlan {
    let mut plan = SimPlan::calm(seed);
    plan.shards = shards;
    for _ in 0..peers {
        let script = vec![
            text("early"),
            Do::UntilReceived(1),
            text("later"),
            Do::UntilReceived(2),
            Do::Close(1000),
        ];
        let number = plan.add("placed", Expect::Clean, script);
        plan.parts[number].place();
    }
    plan
}

fn finish(world: World) -> WorldOutcome {
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    outcome
}

#[test]
fn placed_sessions_open_on_the_shard_of_their_key() {
    let mut world = World::new(plan(1, 3, 60));
    while world.step() {}
    let record = world.record.borrow();
    assert!(record.moves.arrived > 20, "{:?}", record.moves);
    assert!(record.moves.returned.is_empty() && record.moves.lost.is_empty());
    for (peer, session) in &record.sessions {
        assert_eq!(session.id.shard(), *peer as usize % 3);
    }
    drop(record);
    assert_eq!(finish(world).stats.opened, 60);
}

#[test]
fn without_room_on_the_way_sessions_stay_where_they_are() {
    for capacity in [0, 1] {
        let mut plan = plan(2, 3, 60);
        plan.handover_capacity = Some(capacity);
        let mut world = World::new(plan);
        while world.step() {}
        let record = world.record.borrow();
        let moves = &record.moves;
        assert!(!moves.returned.is_empty() && moves.lost.is_empty(), "{moves:?}");
        assert_eq!(moves.arrived > 0, capacity > 0, "{moves:?}");
        drop(record);
        assert_eq!(finish(world).stats.opened, 60);
    }
}

#[test]
fn a_connection_that_its_new_shard_cannot_adopt_is_given_back_to_the_service_once() {
    let mut plan = plan(3, 3, 60);
    plan.faults.adopt_fails = 3;
    let mut world = World::new(plan);
    while world.step() {}
    let record = world.record.borrow();
    assert!(record.moves.arrived > 0 && !record.moves.lost.is_empty(), "{:?}", record.moves);
    for peer in &record.moves.lost {
        assert!(!record.sessions.contains_key(peer), "peer {peer}");
    }
    drop(record);
    finish(world);
}

#[test]
fn a_shard_that_has_ended_gets_no_sessions() {
    let mut returned = 0;
    for seed in 0..16 {
        let mut plan = plan(seed, 2, 1);
        plan.parts[0].expect = Expect::Anything;
        // The connection is accepted before the drain, and sends its request after a shard without
        // connections has stopped.
        plan.parts[0].script.insert(0, Do::Pause(3 * SECOND));
        let mut handing_over = DrainPlan::default();
        handing_over.hand_over = true;
        plan.drain = Some(Drain { at: SECOND, plan: handing_over.grace(Duration::from_secs(30)) });
        let mut world = World::new(plan);
        while world.step() {}
        assert_eq!(world.peer(0).reader.statuses, [101], "seed {seed}");
        returned += world.record.borrow().moves.returned.len();
        finish(world);
    }
    assert!((1..16).contains(&returned), "{returned}");
}

#[test]
fn sessions_that_come_at_once_share_turns_with_others() {
    let mut plan = plan(4, 2, 80);
    // All of them to the first shard.
    for part in plan.parts.iter_mut().skip(1).step_by(2) {
        (part.script, part.expect) = (vec![Do::Reset], Expect::Anything);
    }
    let mut world = World::new(plan);
    world.record.borrow_mut().opening_takes = 400_000;
    let (mut before, mut most) = (0, 0);
    while world.step() {
        let arrived = world.record.borrow().moves.arrived;
        most = most.max(arrived - before);
        before = arrived;
    }
    // A turn has a millisecond for them.
    assert!(before > 10 && most == 3, "{most} of {before} in one turn");
    finish(world);
}

/// The input of a session is held for two reasons: the session has moved, and its service has
/// stopped it.
#[test]
fn a_session_that_is_stopped_right_behind_its_upgrade_waits() {
    let mut arrived = 0;
    for seed in 0..20 {
        let mut plan = plan(seed, 2, 8);
        for part in &mut plan.parts {
            part.script.splice(1..1, [text("!stop 700 time"), text("one"), text("two")]);
            // While the client reads it sends nothing, then it sends everything at once.
            part.script.truncate(4);
            part.script.extend([Do::UntilReceived(2), Do::Close(1000)]);
        }
        let mut world = World::new(plan);
        while world.step() {}
        arrived += world.record.borrow().moves.arrived;
        finish(world);
    }
    assert!(arrived > 20, "{arrived}");
}
