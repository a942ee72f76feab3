//! Receivers of publications and broadcasts, and their counts, while other peers do anything.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{Filter, Frame, SlowPolicy};
use throng_io::ConnId;
use throng_sim::plan::Outside;
use throng_sim::reader::Received;
use throng_sim::world::OUTSIDER;
use throng_sim::{Audience, Do, Expect, Pace, Rules, SECOND, SimPlan, World};

use crate::support::{COUNT, EVERY, FIRST_AT, MILLI, publish, sequences, text};

fn plan_of_many(shards: usize) -> (SimPlan, Vec<usize>) {
    let mut plan = SimPlan::calm(36);
    plan.shards = shards;
    plan.limits.heartbeat_interval = None;
    let mut quick = Vec::new();
    for n in 0..60 {
        let reads = vec![Do::UntilOpen, text("!sub news"), Do::Pause(30 * SECOND), Do::Close(1000)];
        let number = match n % 6 {
            0 => plan.add_stream("stream", "news", vec![Do::Pause(40 * SECOND), Do::Reset]),
            _ => plan.add("member", Expect::Clean, reads),
        };
        quick.push(number);
    }
    (plan, quick)
}

/// Several publishes in one turn leave in one write per subscriber.
#[test]
fn publications_of_one_turn_leave_in_one_write_per_subscriber() {
    let (mut plan, quick) = plan_of_many(2);
    let script = (0..30).map(|n| text(&format!("!pub news {n}")));
    let script = [Do::UntilOpen].into_iter().chain(script).chain([Do::Close(1000)]).collect();
    let publisher = plan.add("publisher", Expect::Clean, script);
    plan.parts[publisher].at = 5 * SECOND;
    plan.limits.ws.max_message_size = 1000;
    let mut world = World::new(plan);
    let sends = |world: &mut World| -> u64 {
        world.shards.iter_mut().map(|shard| shard.driver().inner().calls.sends).sum()
    };
    assert!(world.run_until(|world| world.now() >= 3 * SECOND));
    let before = sends(&mut world);
    for _ in 0..50 {
        world.act(publish(""));
    }
    assert!(world.run_until(|world| world.now() >= 4 * SECOND));
    assert_eq!(sends(&mut world) - before, 60, "50 publications from outside");
    for peer in &quick {
        assert_eq!(sequences(&world, *peer).len(), 50);
    }
    while world.step() {}
    for peer in &quick {
        assert_eq!(sequences(&world, *peer).len(), 80);
    }
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

/// A failing peer never stops the other peers, for any kind of failure; and concurrent subscribing,
/// leaving and publishing is safe.
#[test]
fn failing_and_churning_peers_do_not_affect_others() {
    for shards in [1, 2, 3] {
        let (mut plan, quick) = plan_of_many(shards);
        plan.limits.max_backlog = 20_000;
        plan.limits.close_timeout = Duration::from_secs(1);
        for n in 0..90 {
            let mut script = vec![Do::UntilOpen, text("!sub news")];
            let pause = Do::Pause(FIRST_AT + n * 20 * MILLI);
            match n % 9 {
                0 => script.extend([pause, Do::Reset]),
                1 => script.extend([pause, Do::Vanish]),
                2 => script.extend([pause, Do::Finish]),
                3 => script.extend([Do::Read(Pace::Never), pause]),
                4 => script.extend([pause, text("!close 4001"), Do::Pause(2 * SECOND), Do::Reset]),
                5 => script.extend([pause, text("!abort")]),
                6 => script.extend([pause, Do::Write(vec![0xff; 9])]),
                7 => {
                    for _ in 0..20 {
                        script.extend([
                            Do::Pause(30 * MILLI),
                            text("!unsub news"),
                            Do::Pause(30 * MILLI),
                            text("!sub news"),
                        ]);
                    }
                    script.push(Do::Close(1000));
                }
                _ => script.extend([pause, text("!pub news x"), Do::Close(1000)]),
            }
            let number = plan.add("fails", Expect::Anything, script);
            plan.parts[number].polite = n % 9 != 4;
            plan.parts[number].raw = n % 9 == 6;
            plan.parts[number].link.capacity = 3000;
        }
        for n in 0..u64::from(COUNT) {
            plan.outside.push((FIRST_AT + n * EVERY, publish("")));
        }
        let mut world = World::new(plan);
        while world.step() {}
        let ours =
            |received: &&Received| matches!(received, Received::Published { by: OUTSIDER, .. });
        for peer in quick {
            let received = world.peer(peer).reader.received.iter().filter(ours).count();
            assert_eq!(received, COUNT as usize, "peer {peer}");
        }
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
        assert!(outcome.stats.slow_consumers > 0 && outcome.stats.timeouts > 0);
    }
}

/// Every condition narrows the audience, an excluded peer never gets a message, and the counts
/// agree with the shards' counts.
#[test]
fn broadcasts_reach_exactly_who_the_filter_lets_through() {
    let set = |peers: &[u32]| peers.iter().copied().collect::<BTreeSet<u32>>();
    // Peers 0, 6, 12 ... are streams, and all of them are members; every third of the other peers
    // uses "chat".
    let chat: Vec<u32> = (0..60).filter(|n| n % 3 == 1).collect();
    let streams: Vec<u32> = (0..60).filter(|n| n % 6 == 0).collect();
    let channel = || Some("news".to_owned());
    let speaks = || Some("chat".to_owned());
    let all: Vec<u32> = (0..63).collect();
    let cases: Vec<(Audience, Vec<u32>)> = vec![
        (Audience::default(), all.clone()),
        (Audience { channel: channel(), ..Audience::default() }, (0..60).collect()),
        (Audience { subprotocol: speaks(), ..Audience::default() }, [&chat[..], &[61]].concat()),
        (Audience { include: Some(set(&[1, 2, 60])), ..Audience::default() }, vec![1, 2, 60]),
        (
            Audience { include: Some(set(&[1, 2, 60])), exclude: set(&[2]), ..Audience::default() },
            vec![1, 60],
        ),
        (
            Audience { channel: channel(), include: Some(set(&[1, 2, 60])), ..Audience::default() },
            vec![1, 2],
        ),
        (
            Audience {
                channel: channel(),
                subprotocol: speaks(),
                exclude: set(&[1, 4]),
                include: None,
            },
            chat.iter().copied().filter(|n| *n > 4).collect(),
        ),
        (
            Audience { exclude: set(&streams), ..Audience::default() },
            all.iter().copied().filter(|n| !streams.contains(n)).collect(),
        ),
        (Audience { include: Some(set(&[])), ..Audience::default() }, vec![]),
        (Audience { include: Some(set(&[5])), exclude: set(&[5]), ..Audience::default() }, vec![]),
    ];
    for shards in [1, 3] {
        let (mut plan, _) = plan_of_many(shards);
        for _ in 0..3 {
            let script = vec![Do::UntilOpen, Do::Pause(30 * SECOND), Do::Close(1000)];
            plan.add("bystander", Expect::Clean, script);
        }
        let mut world = World::new(plan);
        assert!(world.run_until(|world| world.now() >= SECOND));
        for (audience, expected) in &cases {
            let before: Vec<usize> = (0..63).map(|n| world.peer(n).reader.received.len()).collect();
            world.act(Outside::Broadcast { audience: audience.clone(), fill: 100 });
            let until = world.now() + SECOND;
            assert!(world.run_until(|world| world.now() >= until));
            let got: Vec<u32> = (0..63u32)
                .filter(|n| world.peer(*n as usize).reader.received.len() > before[*n as usize])
                .collect();
            assert_eq!(got, *expected, "{audience:?}");
            let record = world.record.borrow();
            let total = record.receipts.last().and_then(|it| it.receipt.total());
            let total = total.expect("every shard has counted");
            assert_eq!((total.delivered, total.receivers()), (got.len() as u64, got.len() as u64));
        }
        while world.step() {}
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    }
}

/// An id from another server, or an invented id, matches no receiver.
#[test]
fn made_up_ids_in_a_filter_are_closed_receivers_and_nothing_else() {
    let (mut plan, quick) = plan_of_many(1);
    plan.rules = Rules::default().route(0, SlowPolicy::DropOldest);
    let mut world = World::new(plan);
    assert!(world.run_until(|world| world.now() >= SECOND));
    let mut filter = Filter::default();
    let ours = world.record.borrow().sessions[&(quick[1] as u32)].id;
    let made_up = [ConnId::new(0, 70_000, 1), ConnId::new(0, 3, 77), ConnId::new(9, 1, 1)];
    filter.include(made_up.into_iter().chain([ours]));
    let receipt = world.remote.broadcast(&Arc::new(filter), &Frame::text("x")).unwrap();
    assert!(world.run_until(|world| world.now() >= 2 * SECOND));
    let total = receipt.total().expect("the shard has counted");
    assert_eq!((total.delivered, total.closed, total.receivers()), (1, 2, 3));
}

/// In another server, the count never returned to 0.
#[test]
fn a_count_of_subscribers_is_right_at_every_moment() {
    let mut plan = SimPlan::calm(37);
    plan.shards = 3;
    plan.wildcards = true;
    for n in 0..40u64 {
        let mut script = vec![Do::UntilOpen];
        for round in 0..5 {
            let name = ["a.b", "a.*", ">", "b"][(n as usize + round) % 4];
            script.extend([text(&format!("!sub {name}")), Do::Pause(n * 7 * MILLI)]);
            if round % 2 == 1 {
                script.push(text(&format!("!unsub {name}")));
            }
        }
        script
            .push([Do::Close(1000), Do::Reset, Do::Finish, text("!abort")][n as usize % 4].clone());
        plan.add("comes and goes", Expect::Anything, script);
        let script = vec![Do::Pause(n * 11 * MILLI), Do::Reset];
        plan.add_stream("stream", ["a.b", "a.*"][n as usize % 2], script);
    }
    let mut world = World::new(plan);
    let mut most = 0;
    while world.step() {
        let record = world.record.borrow();
        for name in ["a.b", "a.*", ">", "b"] {
            assert_eq!(world.totals.count(name), record.subscribers(name), "{name}");
            most = most.max(world.totals.count(name));
        }
    }
    assert!(most >= 20, "{most}");
    assert_eq!((world.totals.channels(), world.totals.list()), (0, vec![]));
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}
