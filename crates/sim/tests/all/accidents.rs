//! Failures of other servers, each reproduced by a run without randomness.

use std::time::Duration;

use throng_engine::{Frame, MAILBOX_CAPACITY};
use throng_proto::ws::{Opcode, encode_masked};
use throng_sim::plan::Outside;
use throng_sim::plan::adversary::violations;
use throng_sim::{
    Do, End, Expect, Pace, SECOND, SimPlan, World, WorldOutcome, hush_planned_panics,
};

fn text(text: &str) -> Do {
    Do::Message { text: true, payload: text.as_bytes().to_vec(), fragments: 1, pinging: false }
}

fn finish(mut world: World) -> WorldOutcome {
    while world.step() {}
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    outcome
}

/// Adds a neighbour that the failure must not affect: it echoes during the whole run.
fn neighbour(plan: &mut SimPlan) {
    let mut script = vec![Do::UntilOpen];
    for round in 1..=50 {
        script.push(text("still well?"));
        script.push(Do::UntilReceived(round));
        script.push(Do::Pause(SECOND / 4));
    }
    script.push(Do::Close(1000));
    plan.add("neighbour", Expect::Clean, script);
}

/// NATS, swift-nio, undici, fastwebsockets, uWebSockets: each broken rule has its close code for
/// any cut of the data, even in the packet of the handshake.
#[test]
fn each_broken_rule_is_answered_with_its_code() {
    for cut in [(0, 0), (1, 0)] {
        for eager in [false, true] {
            let mut plan = SimPlan::calm(11);
            plan.limits.ws.max_frame_size = 700;
            plan.limits.ws.max_message_size = 1000;
            neighbour(&mut plan);
            for (name, code, bytes) in violations(700, 1000) {
                let mut script = vec![Do::UntilOpen, text("hello"), Do::Write(bytes)];
                script.extend([Do::Pause(100 * SECOND), Do::Reset]);
                if eager {
                    script.remove(0);
                }
                let number = plan.add(name, Expect::Code(code), script);
                plan.parts[number].cut = cut;
            }
            let rules = plan.parts.len() as u64 - 1;
            let outcome = finish(World::new(plan));
            assert_eq!(outcome.stats.protocol_errors, rules);
        }
    }
}

/// ws CVE-2026-48779: tiny fragments pin memory. Here they are joined, and cost their bytes.
#[test]
fn a_message_of_many_tiny_fragments_arrives_and_costs_its_bytes() {
    let mut plan = SimPlan::calm(12);
    let len = 20_000;
    let message =
        Do::Message { text: false, payload: vec![7; len], fragments: len, pinging: false };
    let script = vec![Do::UntilOpen, message, Do::UntilReceived(1), Do::Close(1000)];
    plan.add("fragments", Expect::Clean, script);
    let mut world = World::new(plan);
    let mut most = 0;
    while world.step() {
        most = most.max(world.audits()[0].largest_partial);
    }
    assert!(most <= len, "{most} bytes held");
    finish(world);
}

/// sgcWebSockets 2026.6: a frame header split at each byte boundary; fastwebsockets #64: header
/// bytes lost.
#[test]
fn a_stream_cut_at_every_byte_is_the_same_stream() {
    let mut plan = SimPlan::calm(13);
    let mut script = vec![];
    for len in [0, 1, 125, 126, 127, 65_536] {
        let payload = vec![b'x'; len];
        script.push(Do::Message { text: true, payload, fragments: 2, pinging: true });
    }
    script.extend([Do::UntilReceived(6), Do::Close(1000)]);
    let number = plan.add("cut", Expect::Clean, script);
    plan.parts[number].cut = (1, 0);
    plan.faults.cut_receives = 1;
    finish(World::new(plan));
}

/// Only a peer that does not read is closed, with 1008, when its backlog is full.
#[test]
fn only_a_slow_consumer_is_closed() {
    let mut plan = SimPlan::calm(14);
    plan.limits.max_backlog = 50_000;
    neighbour(&mut plan);
    let slow = plan.add(
        "slow consumer",
        Expect::Code(1008),
        vec![
            Do::UntilOpen,
            text("!sub news"),
            Do::Read(Pace::Never),
            // Full after less than two seconds; the peer reads the reason if it reads again within
            // the close timeout.
            Do::Pause(4 * SECOND),
            Do::Read(Pace::Prompt),
            Do::Pause(100 * SECOND),
            Do::Reset,
        ],
    );
    let fill = "x".repeat(900);
    let mut script = vec![Do::UntilOpen, text("!sub news"), Do::Pause(SECOND)];
    for _ in 0..300 {
        script.push(text(&format!("!pub news {fill}")));
        script.push(Do::Pause(SECOND / 100));
    }
    script.push(Do::Close(1000));
    plan.add("publisher", Expect::Clean, script);
    let reader = plan.add(
        "good reader",
        Expect::Clean,
        vec![Do::UntilOpen, text("!sub news"), Do::UntilReceived(300), Do::Close(1000)],
    );
    let mut world = World::new(plan);
    while world.step() {}
    assert_eq!(world.peer(reader).reader.received.len(), 300);
    let (code, reason) = world.peer(slow).reader.closed.clone().expect("it read the reason");
    assert_eq!((code, reason.as_str()), (1008, "slow consumer"));
    let outcome = finish(world);
    assert_eq!((outcome.stats.slow_consumers, outcome.stats.messages_dropped), (1, 1));
}

/// After a send that returned `Queued`, `on_drain` follows when the backlog has fallen.
#[test]
fn on_drain_reports_a_peer_that_catches_up() {
    let mut plan = SimPlan::calm(15);
    plan.limits.max_backlog = 400_000;
    let number = plan.add(
        "catches up",
        Expect::Clean,
        vec![
            Do::UntilOpen,
            Do::Read(Pace::Slow(10_000, SECOND / 100)),
            text("!flood 15 20000"),
            Do::UntilReceived(15),
            Do::Pause(SECOND),
            text("what is left?"),
            Do::UntilReceived(16),
            Do::Close(1000),
        ],
    );
    let mut world = World::new(plan);
    let behind = |world: &World| {
        let record = world.record.borrow();
        record.sessions.get(&(number as u32)).is_some_and(|session| session.behind)
    };
    assert!(world.run_until(|world| behind(world)), "it never fell behind");
    assert!(world.run_until(|world| world.peer(number).reader.received.len() == 16));
    assert!(!behind(&world), "on_drain is missing");
    finish(world);
}

/// A panic in any callback ends its own connection with 1011, or with an answer of 500 before there
/// is a session.
#[test]
fn a_panicking_handler_ends_its_own_connection_only() {
    hush_planned_panics();
    let mut plan = SimPlan::calm(16);
    neighbour(&mut plan);
    for _ in 0..5 {
        let script = vec![text("!panic"), text("more"), Do::Pause(9 * SECOND), Do::Reset];
        plan.add("in a message", Expect::Code(1011), script);
    }
    let number = plan.add("in a request", Expect::Anything, vec![Do::Pause(9 * SECOND), Do::Reset]);
    plan.parts[number].script[0] = Do::Write(b"GET /panic HTTP/1.1\r\nHost: x\r\n\r\n".to_vec());
    let opening =
        plan.add("in on_open", Expect::Code(1011), vec![Do::Pause(9 * SECOND), Do::Reset]);
    let key = plan.parts[opening].key;
    plan.parts[opening].script[0] =
        Do::Write(throng_sim::plan::upgrade_request("/ws-panic", opening as u32, &key));
    let mut world = World::new(plan);
    while world.step() {}
    assert_eq!(world.peer(number).end.map(|(end, _)| end), Some(End::Finished));
    assert_eq!(finish(world).stats.handler_panics, 7);
}

/// Without descriptors, accepting pauses without spinning, and continues when descriptors are free
/// again.
#[test]
fn accept_at_the_descriptor_limit_neither_spins_nor_dies() {
    let mut plan = SimPlan::calm(17);
    for _ in 0..10 {
        plan.add("waits", Expect::Clean, vec![Do::UntilOpen, Do::Close(1000)]);
    }
    let mut world = World::new(plan);
    world.shards[0].driver().inner().starving = true;
    assert!(world.run_until(|world| world.now() > 10 * SECOND));
    let turns = world.stats().turns;
    assert!(turns <= 10 * 5 * 2 + 30, "{turns} turns in 10 s");
    assert_eq!(world.stats().accepted, 0);
    world.shards[0].driver().inner().starving = false;
    assert_eq!(finish(world).stats.opened, 10);
}

/// A shard that has fallen far behind refuses commands, loses no accepted command, and catches up.
#[test]
fn a_full_mailbox_says_so_and_the_shard_catches_up() {
    let mut plan = SimPlan::calm(18);
    plan.limits.max_backlog = 64 << 20;
    let number = plan.add(
        "member",
        Expect::Anything,
        vec![Do::UntilOpen, text("!sub flood"), Do::Pause(3 * SECOND), Do::Close(1000)],
    );
    let mut world = World::new(plan);
    assert!(world.run_until(|world| world.audits()[0].memberships == 1));
    let frame = Frame::text("c|flood|99|1|");
    for _ in 0..MAILBOX_CAPACITY {
        world.act(Outside::Publish {
            channel: "flood".to_owned(),
            key: String::new(),
            except: None,
            fill: 1,
        });
    }
    assert!(world.remote.publish("flood", &frame, None).is_err());
    // Without members, nothing is posted.
    assert!(world.remote.publish("elsewhere", &frame, None).is_ok());
    assert!(world.run_until(|world| world.peer(number).reader.received.len() == MAILBOX_CAPACITY));
    finish(world);
}

/// tungstenite CVE-2023-43669, ws CVE-2024-37890, and every slow loris: an unfinished request ends
/// on time.
#[test]
fn an_unfinished_request_is_answered_408_on_time() {
    let mut plan = SimPlan::calm(19);
    plan.limits.handshake_timeout = Duration::from_secs(4);
    let mut script = vec![];
    for _ in 0..30 {
        script.extend([Do::Pause(SECOND / 2), Do::Write(b"x".to_vec())]);
    }
    script.push(Do::Reset);
    let number = plan.add("drip", Expect::Status(&[408]), script);
    plan.parts[number].script[0] = Do::Write(b"GET / HTTP/1.1\r\nHost: sim\r\nx: ".to_vec());
    let mut world = World::new(plan);
    while world.step() {}
    let (_, at) = world.peer(number).end.expect("it has gone");
    assert!((4 * SECOND..=9 * SECOND).contains(&at), "it took {} ms", at / 1_000_000);
    finish(world);
}

/// A message does not time out merely because the reads of its stream always end inside a message.
#[test]
fn the_reassembly_deadline_is_each_messages_own() {
    let mut plan = SimPlan::calm(24);
    plan.limits.reassembly_timeout = Duration::from_secs(2);
    let mut frame = Vec::new();
    encode_masked(Opcode::Text, &[b'x'; 1000], [7; 4], &mut frame);
    let mut script = vec![Do::UntilOpen, Do::Write(frame[..500].to_vec())];
    for _ in 0..20 {
        // The end of one message and half of the next, in one write.
        let both = [&frame[500..], &frame[..500]].concat();
        script.extend([Do::Pause(SECOND / 2), Do::Write(both)]);
    }
    // From now on the rest of a message never arrives.
    script.extend([Do::Pause(100 * SECOND), Do::Reset]);
    let number = plan.add("always within a message", Expect::Code(1008), script);
    plan.parts[number].raw = true;
    let mut world = World::new(plan);
    while world.step() {}
    assert_eq!(world.peer(number).reader.received.len(), 20);
    let (_, at) = world.peer(number).end.expect("it was closed");
    assert!((12 * SECOND..=15 * SECOND).contains(&at), "after {} ms", at / 1_000_000);
    finish(world);
}

/// A shard without connections once slept through its sweeps, and the next client was answered 408
/// at once.
#[test]
fn a_client_after_a_long_silence_has_all_of_its_time() {
    let mut plan = SimPlan::calm(23);
    for (name, at) in [("first", 60), ("second", 200)] {
        let script =
            vec![Do::UntilOpen, text("good morning"), Do::UntilReceived(1), Do::Close(1000)];
        let number = plan.add(name, Expect::Clean, script);
        plan.parts[number].at = at * SECOND;
        plan.parts[number].script.insert(0, Do::Pause(7 * SECOND));
    }
    assert_eq!(finish(World::new(plan)).stats.timeouts, 0);
}

/// One worker once took every WebSocket (ingress-nginx 2734): the connections of one listener are
/// spread over the shards.
#[test]
fn no_shard_holds_more_than_a_quarter_over_the_mean() {
    let mut plan = SimPlan::calm(20);
    plan.shards = 3;
    for _ in 0..300 {
        plan.add(
            "stays",
            Expect::Clean,
            vec![Do::UntilOpen, Do::Pause(20 * SECOND), Do::Close(1000)],
        );
    }
    let mut world = World::new(plan);
    assert!(world.run_until(|world| world.now() > 5 * SECOND));
    let loads: Vec<usize> = world.audits().iter().map(|audit| audit.sessions).collect();
    assert_eq!(loads.iter().sum::<usize>(), 300);
    assert!(loads.iter().all(|load| *load <= 125), "{loads:?}");
    finish(world);
}
