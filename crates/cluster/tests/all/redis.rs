//! Three nodes and a Redis server that is killed, stopped, disconnected and emptied, under traffic.
//! The tests account for every message.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use throng_cluster::redis::{Bus, Members, Outgoing, Settings, Tls, block_on};
use throng_cluster::{Announcement, Control, Envelope, Place, Tail, WhileDown, encode};
use throng_testkit::{Random, Redis, documented_user, eventually};

use crate::nodes::{CHANNELS, Node, check_all, keep, three, traffic};
use crate::relay::Relay;
use crate::support::{Got, Recorder, Seen, name};

#[test]
fn three_nodes_get_every_message_once_in_one_order() {
    let Some(redis) = Redis::start("order", &[]) else { return };
    let nodes = three(&redis.url(""));
    let rounds = traffic(&nodes, 10, |rounds| rounds < 300);
    check_all(&nodes, rounds);
}

#[test]
fn channels_without_history_are_delivered_to_every_node() {
    let Some(redis) = Redis::start("plain", &[]) else { return };
    let nodes = [1, 2].map(|node| Node::start(&redis, node, None));
    // The node's own subscription is acknowledged before; the other node's is acknowledged once it
    // gets the first message.
    let mut sent = 0;
    eventually("both are subscribed", || {
        assert!(nodes[0].publish(0, format!("{sent}").as_bytes(), None));
        sent += 1;
        !nodes[1].got(0).payloads.is_empty()
    });
    eventually("all come", || nodes[0].got(0).payloads.len() == sent);
}

#[test]
fn each_gap_is_reported_to_members_of_channels_without_history() {
    let Some(redis) = Redis::start("gaps", &[]) else { return };
    let node = Node::start(&redis, 1, None);
    for gaps in 0..3 {
        eventually("it is delivered", || {
            node.publish(0, format!("{gaps}").as_bytes(), None);
            node.got(0).payloads.last().is_some_and(|last| *last == format!("{gaps}").as_bytes())
        });
        assert_eq!(node.got(0).gaps, gaps);
        redis.ask("CLIENT KILL TYPE pubsub");
        eventually("it is reported", || node.got(0).gaps == gaps + 1);
    }
    assert!(node.bus.status().snapshot().gaps >= 3);
}

#[test]
fn a_server_that_is_killed_and_keeps_its_data_loses_nothing() {
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut redis) = Redis::start("killed", &arguments) else { return };
    let nodes = three(&redis.url(""));
    let mut kills = 0;
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 20 + 20 * kills && kills < 3 {
            redis.kill();
            eventually("it is noticed", || nodes.iter().all(|node| !node.bus.status().is_up()));
            redis.run();
            eventually("all are back", || nodes.iter().all(|node| node.bus.status().is_up()));
            kills += 1;
        }
        kills < 3 || rounds < 100
    });
    check_all(&nodes, rounds);
}

#[test]
fn every_node_learns_once_that_a_server_has_lost_its_data() {
    let Some(mut redis) = Redis::start("emptied", &[]) else { return };
    let nodes = three(&redis.url(""));
    traffic(&nodes, 10, |rounds| rounds < 20);
    redis.kill();
    redis.run();
    eventually("each has learned of the loss", || {
        nodes.iter().all(|node| (0..CHANNELS).all(|channel| node.got(channel).losses > 0))
    });
    let before = nodes[0].got(0).payloads.len();
    eventually("it is published", || nodes[1].publish(0, b"after", keep()));
    // Publications of other nodes, sent again, may follow it.
    eventually("all are live", || {
        nodes.iter().all(|node| node.got(0).payloads.iter().any(|payload| payload == b"after"))
    });
    assert!(nodes[0].got(0).payloads.len() > before);
    for node in &nodes {
        (0..CHANNELS).for_each(|channel| assert_eq!(node.got(channel).losses, 1));
    }
}

#[test]
fn a_server_that_hangs_is_noticed_and_nothing_is_lost() {
    let Some(redis) = Redis::start("hangs", &[]) else { return };
    let nodes = three(&redis.url(""));
    let mut is_stopped = false;
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 20 && !is_stopped {
            is_stopped = true;
            redis.signal("-STOP");
            eventually("it is noticed", || nodes.iter().all(|node| !node.bus.status().is_up()));
            redis.signal("-CONT");
            eventually("all are back", || nodes.iter().all(|node| node.bus.status().is_up()));
        }
        !is_stopped || rounds < 60
    });
    check_all(&nodes, rounds);
}

#[test]
fn subscriptions_that_are_cut_again_and_again_lose_nothing() {
    let Some(redis) = Redis::start("cut", &[]) else { return };
    let nodes = three(&redis.url(""));
    let mut cuts = 0;
    let mut random = Random::new(9);
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 3 * cuts && cuts < 40 {
            cuts += 1;
            let kind = ["pubsub", "normal"][usize::from(random.below(4) == 0)];
            redis.ask(&format!("CLIENT KILL TYPE {kind}"));
        }
        cuts < 40 || rounds < 150
    });
    let reconnects = nodes[0].bus.status().snapshot().reconnects;
    assert!(reconnects > 0, "no connection was cut");
    check_all(&nodes, rounds);
}

#[test]
fn a_node_that_the_server_cuts_off_for_its_backlog_gets_the_rest_from_the_history() {
    let Some(redis) = Redis::start("limit", &[]) else { return };
    let nodes = three(&redis.url(""));
    redis.ask("CONFIG SET client-output-buffer-limit \"pubsub 64kb 0 0\"");
    let rounds = traffic(&nodes, 20_000, |rounds| rounds < 60);
    check_all(&nodes, rounds);
}

#[test]
fn scripts_that_the_server_forgets_are_loaded_again_and_the_order_holds() {
    let Some(redis) = Redis::start("scripts", &[]) else { return };
    let nodes = three(&redis.url(""));
    let mut flushes = 0;
    // The server executes a part of each node's pipeline in turn: a script that one node has loaded
    // again serves the rest of another node's pipeline.
    let rounds = traffic(&nodes, 1_000, |rounds| {
        let before = nodes[0].got(0).payloads.len();
        redis.ask("SCRIPT FLUSH");
        flushes += 1;
        // If flushes came faster than a node can load the scripts, no publication would ever
        // succeed.
        eventually("messages come between two of them", || nodes[0].got(0).payloads.len() > before);
        rounds < 2_000 || flushes <= 100
    });
    check_all(&nodes, rounds);
    for node in &nodes {
        eventually("all is acknowledged", || node.bus.status().snapshot().pending_bytes == 0);
    }
}

#[test]
fn a_server_that_is_flushed_is_a_loss_that_every_node_learns_of() {
    let Some(redis) = Redis::start("flushed", &[]) else { return };
    let nodes = three(&redis.url(""));
    let rounds = traffic(&nodes, 10, |rounds| rounds < 20);
    check_all(&nodes, rounds);
    redis.ask("FLUSHALL");
    for channel in 0..CHANNELS {
        assert!(nodes[0].publish(channel, b"after", keep()));
        eventually("each has learned of the loss", || {
            nodes.iter().all(|node| node.got(channel).losses == 1)
        });
    }
}

/// Returns how often publications of a node were refused for now.
fn postponed(node: &Node) -> u64 {
    node.bus.status().snapshot().postponed
}

#[test]
fn publications_that_find_no_memory_arrive_when_there_is_some() {
    let Some(redis) = Redis::start("full", &[]) else { return };
    let nodes = three(&redis.url(""));
    let (mut times, mut random) = (0, Random::new(3));
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 10 * times && times < 10 {
            times += 1;
            let before: Vec<_> = nodes.iter().map(postponed).collect();
            redis.ask("CONFIG SET maxmemory 1");
            eventually("it refuses publications of each", || {
                nodes.iter().zip(&before).all(|(node, before)| postponed(node) > *before)
            });
            if random.below(2) == 0 {
                redis.ask("CLIENT KILL TYPE normal");
            }
            redis.ask("CONFIG SET maxmemory 0");
        }
        times < 10 || rounds < 120
    });
    check_all(&nodes, rounds);
    for node in &nodes {
        eventually("all is acknowledged", || node.bus.status().snapshot().pending_bytes == 0);
        let status = node.bus.status().snapshot();
        let counts = (status.published, status.refused, status.unknown);
        assert_eq!(counts, (rounds * CHANNELS as u64, 0, 0));
    }
}

#[test]
fn publications_that_meet_a_long_script_arrive_when_it_has_ended() {
    let Some(redis) = Redis::start("busy", &[]) else { return };
    for keep in [keep(), None] {
        let nodes = [1, 2].map(|node| Node::start(&redis, node, keep));
        eventually("both are subscribed", || {
            assert!(nodes[0].publish(0, b"first", keep));
            !nodes[1].got(0).payloads.is_empty()
        });
        redis.ask("CONFIG SET lua-time-limit 1");
        redis.ask_nothing("EVAL \"while true do end\" 0");
        let mut sent = 0;
        let mut publish = || {
            assert!(nodes[0].publish(0, format!("{sent}").as_bytes(), keep));
            sent += 1;
        };
        eventually("it refuses them", || {
            publish();
            postponed(&nodes[0]) > 0
        });
        (0..100).for_each(|_| publish());
        redis.ask("SCRIPT KILL");
        let last = (sent - 1).to_string().into_bytes();
        eventually("the last comes", || nodes[1].got(0).payloads.last() == Some(&last));
        let got = nodes[1].got(0).payloads.clone();
        let later: Vec<_> = got.into_iter().filter(|payload| payload != b"first").collect();
        let all: Vec<_> = (0..sent).map(|at| at.to_string().into_bytes()).collect();
        assert_eq!(later, all, "each once and in order");
    }
}

#[test]
fn publications_that_are_refused_for_long_count_as_that_and_not_as_published() {
    let Some(redis) = Redis::start("refuses", &[]) else { return };
    let nodes = [1, 2].map(|node| Node::start(&redis, node, keep()));
    redis.ask("CONFIG SET maxmemory 1");
    let outgoing = Outgoing {
        channel: name(0),
        envelope: [].into(),
        keep: keep(),
        while_down: WhileDown::Refuse,
    };
    let counted = nodes[0].bus.publish_counted(outgoing, Duration::from_secs(5));
    for at in 0..499 {
        assert!(nodes[0].publish(at % CHANNELS, b"refused", keep()));
    }
    let status = || nodes[0].bus.status().snapshot();
    eventually("all are refused", || status().refused == 500);
    eventually("their memory is free", || status().pending_bytes == 0);
    assert_eq!((status().published, status().reconnects), (0, 0));
    let counted = block_on(counted).map_err(|error| error.to_string());
    assert!(counted.is_err_and(|error| error.contains("refused")));
    redis.ask("CONFIG SET maxmemory 0");
    assert!(nodes[0].publish(0, b"later", keep()));
    eventually("it comes", || nodes[1].got(0).payloads == [b"later"]);
    eventually("it is counted", || status().published == 1);
}

#[test]
fn accepted_publications_arrive_however_fast_they_came() {
    let Some(redis) = Redis::start("fast", &[]) else { return };
    let nodes = [1, 2].map(|node| Node::start(&redis, node, keep()));
    redis.signal("-STOP");
    let payload = [7; 10_000];
    let mut accepted = 0;
    eventually("the memory for what waits is used up", || {
        let is_accepted = nodes[0].publish(0, &payload, keep());
        accepted += usize::from(is_accepted);
        !is_accepted
    });
    assert!((500..900).contains(&accepted), "{accepted} of 10 KB in 8 MiB");
    redis.signal("-CONT");
    eventually("all come", || nodes[1].got(0).payloads.len() == accepted);
    eventually("its memory is free", || {
        nodes[0].bus.status().snapshot().pending_bytes == 0 && nodes[0].publish(0, &payload, keep())
    });
}

#[test]
fn accepted_publications_arrive_also_while_connections_are_made_again() {
    let Some(redis) = Redis::start("again", &[]) else { return };
    let nodes = [1, 2].map(|node| Node::start(&redis, node, keep()));
    // So many that subscribing to them again takes a while.
    (0..20_000).for_each(|at| nodes[0].bus.follow(format!("more{at}").into(), None));
    let channels = || nodes[0].bus.status().snapshot().channels;
    eventually("they are followed", || channels() == 20_000 + CHANNELS as u64);
    let mut accepted = 0;
    for _ in 0..10 {
        let before = nodes[0].bus.status().snapshot().reconnects;
        // The history keeps more messages: no node that is disconnected this long misses one.
        let most = accepted + 2_000;
        redis.ask("CLIENT KILL TYPE pubsub");
        eventually("it has connected again", || {
            let up = nodes[0].bus.status().snapshot();
            let text = format!("{accepted}");
            if accepted < most {
                accepted += usize::from(nodes[0].publish_or_refuse(0, text.as_bytes()));
            }
            up.is_up && up.reconnects > before
        });
        eventually("all come", || nodes[1].got(0).payloads.len() >= accepted);
    }
    let got = nodes[1].got(0);
    let expected = (0..accepted).map(|at| at.to_string().into_bytes());
    assert!(got.payloads.iter().cloned().eq(expected), "each once and in order");
}

#[test]
fn a_connection_that_is_open_and_delivers_nothing_is_found_and_replaced() {
    let Some(redis) = Redis::start("silenced", &[]) else { return };
    let relay = Relay::start(&redis);
    let behind = Node::start_at(relay.url(), 1, keep());
    let other = Node::start(&redis, 2, keep());
    eventually("it has had its first probe", || behind.bus.status().is_up());
    relay.faults().silence();
    let began = Instant::now();
    assert!(other.publish(0, b"hello", keep()));
    eventually("the message comes", || behind.got(0).payloads == [b"hello"]);
    // Five seconds of silence and five for the probe; after forty the channel would be asked about.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let status = behind.bus.status().snapshot();
    assert_eq!((status.probe_failures, behind.got(0).losses), (1, 0));
    assert!(other.publish(0, b"live", keep()));
    eventually("it is live", || behind.got(0).payloads.len() == 2);
}

#[test]
fn a_silent_channel_whose_history_has_expired_is_continued() {
    let Some(redis) = Redis::start("expired", &[]) else { return };
    let relay = Relay::start(&redis);
    let behind = Node::start_at(relay.url(), 1, keep());
    let other = Node::start(&redis, 2, keep());
    assert!(other.publish(0, b"first", keep()));
    eventually("it comes", || behind.got(0).payloads == [b"first"]);
    // As after the age of the history.
    redis.ask("DEL test.s.c0");
    relay.faults().silence();
    assert!(other.publish(0, b"second", keep()));
    eventually("it is published", || other.got(0).payloads.len() == 2);
    redis.ask("CLIENT KILL TYPE pubsub");
    eventually("what was missed comes", || {
        let got = behind.got(0);
        assert_eq!(got.losses, 0, "nothing was lost");
        got.payloads == [&b"first"[..], b"second"]
    });
}

#[test]
fn a_channel_that_is_only_joined_is_remembered_as_long_as_nodes_follow_it_and_a_minute_longer() {
    let Some(redis) = Redis::start("joined", &[]) else { return };
    let nodes = [1, 2].map(|node| Node::start(&redis, node, keep()));
    let left = || redis.ask("PTTL test.o.c0")[1..].parse::<i64>().unwrap();
    assert!((1..=60_000).contains(&left()), "{} ms", left());
    // The state of a server to which no node has sent the longest age yet.
    redis.ask("DEL test.o.c0");
    for node in &nodes {
        node.got(0).is_live = false;
        node.bus.check(name(0));
        eventually("it is live", || node.got(0).is_live);
        assert_eq!(node.got(0).losses, 0, "nothing was published");
    }
    assert!(nodes[0].publish(0, b"first", keep()));
    for node in &nodes {
        eventually("it comes", || node.got(0).payloads == [b"first"]);
    }
    assert!(left() > 3_600_000, "{} ms", left());
    // After a loss of data, publications may also be lost.
    redis.ask("FLUSHALL");
    nodes[1].bus.check(name(1));
    eventually("it learns of it", || nodes[1].got(1).losses == 1);
}

/// The situation while operators change the rules of one server after the other.
#[test]
fn nodes_with_and_without_a_history_get_all_publications_of_each_other() {
    let Some(redis) = Redis::start("mixed", &[]) else { return };
    let nodes = [keep(), keep(), None, None].into_iter().zip(1..);
    let nodes: Vec<_> = nodes.map(|(keep, node)| (Node::start(&redis, node, keep), keep)).collect();
    let without = |at: usize| nodes[2 + at].0.got(0).payloads.len();
    let mut first = 1;
    eventually("those without a history are subscribed", || {
        assert!(nodes[0].0.publish(0, b"first", keep()));
        first += 1;
        without(0) > 0 && without(1) > 0
    });
    assert!(nodes[0].0.publish(0, b"begin", keep()));
    let begins = |got: &Got| got.payloads.last().is_some_and(|last| last == b"begin");
    eventually("all begin", || nodes.iter().all(|(node, _)| begins(&node.got(0))));
    let before = [without(0), without(1)];
    let mut published = 0_u64;
    for round in 0..200 {
        for (at, (node, keep)) in nodes.iter().enumerate() {
            let payload = format!("{round} of {at}");
            let mut encoded = Vec::new();
            let envelope = Envelope {
                origin: at as u64,
                published: round + 1,
                payload: payload.as_bytes(),
                ..Envelope::default()
            };
            encode(&envelope, &mut encoded);
            assert!(node.publish_envelope(0, encoded, *keep, WhileDown::Buffer));
            published += 1;
        }
    }
    let all = published as usize;
    for (at, (node, keep)) in nodes.iter().enumerate() {
        let has = if keep.is_some() { first } else { before[at - 2] };
        eventually("all came", || node.got(0).payloads.len() >= has + all);
        let counts = |got: &Got| {
            let later: HashSet<_> = got.payloads[has..].iter().collect();
            (later.len(), got.payloads.len(), got.losses)
        };
        assert_eq!(counts(&node.got(0)), (all, has + all, 0), "node {at}");
        // Publications that have received a place since are delivered to the other nodes again.
        let counted = if keep.is_some() { 400 } else { has as u64 + 800 };
        eventually("all are counted", || node.bus.status().snapshot().other_rules == counted);
    }
    // Nodes with a history have the same order.
    let [one, two] = [0, 1].map(|at: usize| nodes[at].0.got(0).payloads.clone());
    assert_eq!(one, two);
}

/// Clocks of nodes differ, and can jump.
#[test]
fn the_time_of_day_of_a_node_decides_nothing() {
    let Some(redis) = Redis::start("clocks", &[]) else { return };
    let nodes = [1, 2].map(|node| Node::start(&redis, node, keep()));
    let mut payloads = Vec::new();
    for (at, published) in [u64::MAX, 0, 1, u64::MAX / 2, 0].into_iter().enumerate() {
        let payload = at.to_string();
        let envelope = Envelope { published, payload: payload.as_bytes(), ..Envelope::default() };
        let mut encoded = Vec::new();
        encode(&envelope, &mut encoded);
        assert!(nodes[at % 2].publish_envelope(0, encoded, keep(), WhileDown::Buffer));
        payloads.push(payload.into_bytes());
        // In this order.
        eventually("it comes", || nodes.iter().all(|node| node.got(0).payloads == payloads));
    }
    // Publications from the history are identical to delivered ones.
    redis.ask("CLIENT KILL TYPE pubsub");
    let third = Node::start(&redis, 3, keep());
    assert_eq!(third.got(0).sequence, payloads);
    assert!(nodes.iter().all(|node| node.got(0).losses == 0));
}

/// `bench/cluster/run --only resubscribe` measures the same with 100,000 channels.
#[test]
fn channels_are_subscribed_again_with_512_in_a_command() {
    const MANY: u64 = 20_000;
    let Some(redis) = Redis::start("commands", &[]) else { return };
    let node = Node::start(&redis, 1, None);
    let channels = || redis.ask("EVAL \"return #redis.call('PUBSUB','CHANNELS','test.m.*')\" 0");
    let expected = format!(":{}", MANY + CHANNELS as u64);
    let before = redis.calls("subscribe");
    (0..MANY).for_each(|at| node.bus.follow(format!("many{at}").into(), None));
    eventually("they are subscribed", || channels() == expected);
    // Names that arrive one by one are collected while a command is in flight.
    let commands = redis.calls("subscribe") - before;
    assert!(commands <= MANY / 128, "{commands} commands at first");
    for _ in 0..3 {
        let before = redis.calls("subscribe");
        let reconnects = node.bus.status().snapshot().reconnects;
        redis.ask("CLIENT KILL TYPE pubsub");
        eventually("they are subscribed again", || {
            let status = node.bus.status().snapshot();
            status.reconnects > reconnects && status.is_up && channels() == expected
        });
        // One more for the node's own names.
        let commands = redis.calls("subscribe") - before;
        let most = (MANY + CHANNELS as u64).div_ceil(512) + 1;
        assert!(commands <= most, "{commands} commands, of {most}");
    }
}

/// Members that return at the moment when their channel is dropped.
struct ComesBack(Bus, Recorder);

impl Members for ComesBack {
    fn begin(&mut self, name: &Arc<str>, tail: Tail<Vec<u8>>, is_loss: bool) {
        self.1.begin(name, tail, is_loss);
    }

    fn deliver(&mut self, name: &Arc<str>, place: Place, envelope: &[u8]) {
        self.1.deliver(name, place, envelope);
    }

    fn refill(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>) {
        unreachable!("nothing is fetched here");
    }

    fn live(&mut self, name: &Arc<str>) {
        self.1.live(name);
    }

    fn publish(&mut self, _: &str, _: &[u8]) {
        unreachable!("all channels have a history here");
    }

    fn presence(&mut self, _: &str, _: Announcement<'_>) {
        unreachable!("no channel has presence here");
    }

    fn control(&mut self, _: Control<'_>) {
        unreachable!("no node sends commands here");
    }

    fn subscribers(&mut self, _: &str) -> u64 {
        unreachable!("no node asks here");
    }

    fn end(&mut self, name: &Arc<str>) -> bool {
        *self.1.of(name) = Got { losses: 1, ..Got::default() };
        self.0.follow(Arc::clone(name), keep());
        true
    }
}

#[test]
fn a_channel_that_is_joined_again_while_it_is_let_go_of_is_followed() {
    let Some(redis) = Redis::start("rejoined", &[]) else { return };
    let settings =
        Settings { url: redis.url(""), prefix: "test".to_owned(), node: 1, tls: Tls::default() };
    let (bus, starter) = Bus::new(settings).unwrap();
    let seen: Seen = (0..CHANNELS).map(|_| Mutex::default()).collect();
    starter.start(ComesBack(bus.clone(), Recorder(Arc::clone(&seen)))).unwrap();
    let node = Node { bus, seen };
    (0..CHANNELS).for_each(|channel| node.bus.follow(name(channel), keep()));
    let all = |is: fn(&Got) -> bool| (0..CHANNELS).all(|channel| is(&node.got(channel)));
    eventually("all are live", || all(|got| got.is_live));
    (0..CHANNELS).for_each(|channel| node.bus.unfollow(name(channel)));
    // A subscribe command is nearly always in flight, which delays the unsubscribe commands.
    let mut more = 0;
    while !all(|got| got.losses == 1) {
        if more < node.bus.status().snapshot().channels + 100 {
            node.bus.follow(format!("more{more}").into(), None);
            more += 1;
        }
        std::thread::yield_now();
    }
    eventually("all are live again", || all(|got| got.is_live));
}

#[test]
fn a_history_that_is_read_too_slowly_is_asked_for_again_on_the_same_connections() {
    let Some(redis) = Redis::start("slow", &[]) else { return };
    let node = Node::start(&redis, 1, keep());
    node.got(0).is_live = false;
    // The next question is sent three seconds after the first, and its answer is also too late.
    let before = redis.calls("evalsha");
    eventually("a sign of life has been taken", || redis.calls("evalsha") > before);
    redis.signal("-STOP");
    node.bus.check(name(0));
    let status = || node.bus.status().snapshot();
    eventually("the answer is too late", || status().failed_reads == 1);
    redis.signal("-CONT");
    eventually("it is asked again", || node.got(0).is_live);
    assert_eq!(status().reconnects, 0);
}

#[test]
fn a_channel_that_the_server_cannot_read_does_not_concern_others() {
    let Some(redis) = Redis::start("unreadable", &[]) else { return };
    redis.ask("SET test.o.c1 text");
    let settings =
        Settings { url: redis.url(""), prefix: "test".to_owned(), node: 1, tls: Tls::default() };
    let (bus, starter) = Bus::new(settings).unwrap();
    let seen: Seen = (0..CHANNELS).map(|_| Mutex::default()).collect();
    starter.start(Recorder(Arc::clone(&seen))).unwrap();
    let node = Node { bus, seen };
    (0..2).for_each(|channel| node.bus.follow(name(channel), keep()));
    eventually("the other is live", || node.got(0).is_live);
    assert!(node.publish(0, b"hello", keep()));
    eventually("its message comes", || node.got(0).payloads == [b"hello"]);
    eventually("the failure is counted", || node.bus.status().snapshot().failed_reads > 1);
    assert_eq!(node.bus.status().snapshot().reconnects, 0);
    redis.ask("DEL test.o.c1");
    eventually("it is live, once it can be read", || node.got(1).is_live);
}

#[test]
fn a_channel_that_cannot_be_read_is_not_asked_for_when_it_was_let_go_of() {
    let Some(redis) = Redis::start("let-go", &[]) else { return };
    let keys = [0, 1].map(|channel| format!("test.o.c{channel}"));
    keys.iter().for_each(|key| drop(redis.ask(&format!("SET {key} text"))));
    let settings =
        Settings { url: redis.url(""), prefix: "test".to_owned(), node: 1, tls: Tls::default() };
    let (bus, starter) = Bus::new(settings).unwrap();
    starter.start(Recorder((0..CHANNELS).map(|_| Mutex::default()).collect())).unwrap();
    let status = || bus.status().snapshot();
    let fails = |times: u64| {
        let before = status().failed_reads;
        eventually("it is asked again", || status().failed_reads >= before + times);
    };
    bus.follow(name(0), keep());
    fails(1);
    bus.unfollow(name(0));
    eventually("it is let go of", || status().channels == 0);
    bus.follow(name(1), keep());
    // By now the messages in flight for the first channel are answered.
    fails(2);
    redis.ask(&format!("DEL {}", keys[0]));
    fails(3);
    assert_eq!(redis.ask(&format!("EXISTS {}", keys[0])), ":0", "who asks makes a record");
    bus.stop();
}

#[test]
fn a_node_that_is_stopped_publishes_what_it_has_accepted() {
    let Some(redis) = Redis::start("stopped", &[]) else { return };
    let nodes = [1, 2].map(|node| Node::start(&redis, node, keep()));
    let [one, two] = &nodes;
    for at in 0..2_000 {
        assert!(one.publish(0, format!("{at}").as_bytes(), keep()));
    }
    one.bus.stop();
    assert_eq!(one.bus.status().snapshot().published, 2_000, "stopping waits for it");
    eventually("all come", || two.got(0).payloads.len() == 2_000);
}

#[test]
fn errors_at_the_start_name_the_setting_the_answer_and_the_remedy() {
    let Some(redis) = Redis::start("errors", &["--requirepass", "secret"]) else { return };
    let start = |url: &str| {
        let settings = Settings {
            url: url.to_owned(),
            prefix: "test".to_owned(),
            node: 1,
            tls: Tls::default(),
        };
        let (_, starter) = Bus::new(settings).map_err(|error| error.to_string())?;
        starter.start(Recorder(Arc::new([]))).map_err(|error| error.to_string())
    };
    for (url, part) in [
        ("localhost".to_owned(), "redis://"),
        (redis.url(""), "user and password"),
        (redis.url(":wrong@"), "user and password"),
        ("redis://127.0.0.1:1".to_owned(), "does it run"),
    ] {
        let error = start(&url).unwrap_err();
        assert!(error.contains("cluster.url") && error.contains(part), "{error}");
        assert!(!error.contains("wrong@"), "{error}");
    }
    assert_eq!(start(&redis.url(":secret@")), Ok(()));
}

#[test]
fn a_server_whose_memory_is_full_is_an_error_at_the_start_that_says_so() {
    let Some(redis) = Redis::start("full-at-start", &["--maxmemory", "1"]) else { return };
    let settings =
        Settings { url: redis.url(""), prefix: "test".to_owned(), node: 1, tls: Tls::default() };
    let (_, starter) = Bus::new(settings).unwrap();
    let error = starter.start(Recorder(Arc::new([]))).unwrap_err().to_string();
    let parts = ["cluster.url", "OOM", "memory is full", "maxmemory"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    assert!(!error.contains("6.2"), "{error}");
}

#[test]
fn each_right_that_the_user_does_not_have_is_an_error_at_the_start_that_names_it() {
    let Some(redis) = Redis::start("rights", &[]) else { return };
    let start = || {
        let url = redis.url("throng:secret@");
        let settings = Settings { url, prefix: "throng".to_owned(), node: 1, tls: Tls::default() };
        let (bus, starter) = Bus::new(settings).unwrap();
        let started = starter.start(Recorder(Arc::new([]))).map_err(|error| error.to_string());
        bus.stop();
        started
    };
    let user = documented_user();
    redis.ask(&format!("ACL SETUSER {user}"));
    assert_eq!(start(), Ok(()));
    eventually("it leaves no key behind", || redis.ask("DBSIZE") == ":1");
    // The user lacks the rights to open a connection at first; one of them is for a URL with a
    // database.
    let of_connections = ["hello", "select"];
    let rights = user.split(' ').filter_map(|word| word.strip_prefix('+'));
    for right in rights.filter(|right| !of_connections.contains(right)) {
        redis
            .ask(&format!("ACL SETUSER throng reset {} -{right}", user.split_once(' ').unwrap().1));
        let error = start().expect_err(right);
        let parts = ["cluster.url", right, "give the user the rights"];
        assert!(parts.iter().all(|part| error.contains(part)), "{right}: {error}");
    }
    let others = user.replace("~throng.*", "~other.*");
    redis.ask(&format!("ACL SETUSER throng reset {}", others.split_once(' ').unwrap().1));
    let error = start().unwrap_err();
    assert!(error.contains("key") && error.contains("give the user the rights"), "{error}");
}
