//! Shutdowns that failed in other servers: stopping with many live connections deadlocked;
//! WebSockets escaped the graceful shutdown; closing all at one instant caused a reconnect storm.

use std::time::Duration;

use throng_engine::DrainPlan;
use throng_sim::plan::Drain;
use throng_sim::{Do, End, Expect, Pace, SECOND, SimPlan, World};

fn plan(shards: usize, window: u64, grace: u64) -> SimPlan {
    let mut plan = SimPlan::calm(3);
    plan.shards = shards;
    let plan_of_drain =
        DrainPlan::default().window(Duration::from_secs(window)).grace(Duration::from_secs(grace));
    plan.drain = Some(Drain { at: 5 * SECOND, plan: plan_of_drain });
    plan
}

fn stays() -> Vec<Do> {
    vec![Do::UntilOpen, Do::Pause(1000 * SECOND), Do::Reset]
}

#[test]
fn every_session_gets_1001_once_and_not_all_at_once() {
    for shards in [1, 3] {
        let mut plan = plan(shards, 10, 5);
        for _ in 0..900 {
            plan.add("stays", Expect::Code(1001), stays());
        }
        let mut world = World::new(plan);
        while world.step() {}
        let mut ends = Vec::new();
        for number in 0..900 {
            let peer = world.peer(number);
            assert_eq!(peer.reader.closed.as_ref().map(|(code, _)| *code), Some(1001));
            let (end, at) = peer.end.expect("everybody has gone");
            assert_eq!(end, End::Finished);
            ends.push(at);
        }
        ends.sort_unstable();
        // 200 closes a second and shard; with 900 on one shard that takes 4.5 s.
        let (first, last) = (ends[0], ends[899]);
        assert!(first >= 5 * SECOND && last <= 15 * SECOND + SECOND / 10);
        assert!(last - first >= SECOND, "all within {} ms", (last - first) / 1_000_000);
        let busiest =
            ends.chunk_by(|a, b| a / 20_000_000 == b / 20_000_000).map(<[u64]>::len).max();
        assert!(busiest <= Some(20 * shards), "{busiest:?} in one step");
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
        assert_eq!(outcome.forced, vec![Some(0); shards]);
    }
}

#[test]
fn the_deadline_forces_who_does_not_go() {
    let mut plan = plan(1, 1, 2);
    for number in 0..40 {
        match number % 4 {
            0 => plan.add("stays", Expect::Code(1001), stays()),
            1 => plan.add("vanished", Expect::Anything, vec![Do::UntilOpen, Do::Vanish]),
            2 => {
                let script = vec![Do::UntilOpen, Do::Read(Pace::Never)];
                plan.add("unresponsive", Expect::Anything, script)
            }
            _ => {
                let number = plan.add("silent", Expect::Anything, stays());
                plan.parts[number].polite = false;
                number
            }
        };
    }
    let mut world = World::new(plan);
    while world.step() {}
    let record = world.record.borrow();
    assert_eq!((record.opened, record.closed), (40, 40));
    drop(record);
    assert!(world.now() <= 9 * SECOND, "it took until {} ms", world.now() / 1_000_000);
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    assert_eq!(outcome.forced, [Some(30)]);
}

/// Until a load balancer has noticed, it sends new clients.
#[test]
fn clients_that_come_during_the_delay_are_served_and_closed_like_the_others() {
    for shards in [1, 3] {
        let mut plan = plan(shards, 1, 5);
        plan.drain.as_mut().unwrap().plan.delay = Duration::from_secs(10);
        for at in [0, 8 * SECOND].repeat(20) {
            let number = plan.add("stays", Expect::Code(1001), stays());
            plan.parts[number].at = at;
        }
        let late = plan.add("late", Expect::Anything, stays());
        plan.parts[late].at = 16 * SECOND;
        let mut world = World::new(plan);
        while world.step() {}
        for number in 0..40 {
            let peer = world.peer(number);
            assert_eq!(peer.reader.closed.as_ref().map(|(code, _)| *code), Some(1001), "{number}");
            let (end, at) = peer.end.expect("everybody has gone");
            assert_eq!(end, End::Finished);
            assert!((15 * SECOND..=17 * SECOND).contains(&at), "{number}: {} ms", at / 1_000_000);
        }
        assert_eq!(world.record.borrow().opened, 40, "the late one is refused");
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
        assert_eq!(outcome.forced, vec![Some(0); shards]);
    }
}

#[test]
fn an_empty_server_stops_at_once() {
    let mut world = World::new(plan(3, 10, 5));
    while world.step() {}
    assert!(world.now() <= 6 * SECOND);
    let outcome = world.finish();
    assert_eq!(outcome.forced, vec![Some(0); 3]);
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

#[test]
fn half_made_handshakes_and_idle_requests_do_not_hold_it_up() {
    let mut plan = plan(2, 1, 3);
    for _ in 0..20 {
        let number = plan.add("half", Expect::Anything, vec![Do::Pause(1000 * SECOND)]);
        if number.is_multiple_of(2) {
            plan.parts[number].script[0] = Do::Write(b"GET / HTTP/1.1\r\nHo".to_vec());
        } else {
            plan.parts[number].script[0] = Do::Write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec());
        }
        plan.parts[number].at = 4 * SECOND;
    }
    let mut world = World::new(plan);
    while world.step() {}
    assert!(world.now() <= 10 * SECOND, "it took until {} ms", world.now() / 1_000_000);
    assert_eq!(world.finish().forced, [Some(0); 2]);
}
