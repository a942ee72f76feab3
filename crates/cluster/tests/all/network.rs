//! Three nodes on a network with faults, under traffic whose every message is accounted for.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::sync::atomic::{AtomicU64, Ordering};

use throng_testkit::{Redis, eventually};

use crate::forwarder::Forwarder;
use crate::nodes::{Node, check_all, keep, three, traffic};
use crate::relay::Relay;

fn reconnects(nodes: &[Node]) -> Vec<u64> {
    nodes.iter().map(|node| node.bus.status().snapshot().reconnects).collect()
}

fn set(fault: &AtomicU64, value: u64) {
    fault.store(value, Ordering::SeqCst);
}

/// Waits until each node has replaced the connections that it had at these counts.
fn have_moved(nodes: &[Node], before: &[u64]) {
    eventually("all have new connections", || {
        let now = reconnects(nodes);
        now.iter().zip(before).all(|(now, before)| now > before)
            && nodes.iter().all(|node| node.bus.status().is_up())
    });
}

#[test]
fn bytes_that_vanish_in_one_direction_lose_no_message() {
    for (name, is_to_server) in [("vanish-to", true), ("vanish-from", false)] {
        let Some(redis) = Redis::start(name, &[]) else { return };
        let relay = Relay::start(&redis);
        let nodes = three(&relay.url());
        let mut has_failed = false;
        let rounds = traffic(&nodes, 10, |rounds| {
            if rounds > 20 && !has_failed {
                has_failed = true;
                let before = reconnects(&nodes);
                relay.faults().vanish(is_to_server);
                have_moved(&nodes, &before);
            }
            !has_failed || rounds < 60
        });
        check_all(&nodes, rounds);
    }
}

#[test]
fn a_slow_network_loses_no_message() {
    let Some(redis) = Redis::start("latency", &[]) else { return };
    let relay = Relay::start(&redis);
    let nodes = three(&relay.url());
    let before = reconnects(&nodes);
    set(&relay.faults().latency, 200);
    let mut is_cut = false;
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 20 && !is_cut {
            is_cut = true;
            redis.ask("CLIENT KILL TYPE pubsub");
            have_moved(&nodes, &before);
        }
        !is_cut || rounds < 60
    });
    check_all(&nodes, rounds);
    // A round trip with 200 ms each way must not end a connection.
    assert!(reconnects(&nodes).iter().zip(&before).all(|(now, before)| *now == before + 1));
}

#[test]
fn a_network_of_little_bandwidth_loses_no_message() {
    let Some(redis) = Redis::start("bandwidth", &[]) else { return };
    let relay = Relay::start(&redis);
    let nodes = three(&relay.url());
    set(&relay.faults().bandwidth, 200_000);
    let mut cuts = 0;
    // About 2 MB for each node, several times the bytes in flight in buffers.
    let rounds = traffic(&nodes, 1_000, |rounds| {
        if rounds > 30 * (cuts + 1) && cuts < 3 {
            cuts += 1;
            redis.ask("CLIENT KILL TYPE pubsub");
        }
        rounds < 150
    });
    check_all(&nodes, rounds);
}

#[test]
fn an_end_that_is_noticed_late_loses_no_message() {
    let Some(redis) = Redis::start("close", &[]) else { return };
    let relay = Relay::start(&redis);
    let nodes = three(&relay.url());
    set(&relay.faults().slow_close, 1_000);
    let mut cuts = 0;
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 20 * cuts && cuts < 4 {
            let kind = ["pubsub", "normal"][cuts as usize % 2];
            let before = reconnects(&nodes);
            redis.ask(&format!("CLIENT KILL TYPE {kind}"));
            have_moved(&nodes, &before);
            cuts += 1;
        }
        cuts < 4 || rounds < 100
    });
    check_all(&nodes, rounds);
}

/// The situation after a failover that leaves a proxy or an address with the old master.
#[test]
fn subscriptions_that_were_moved_to_another_server_are_found_and_nothing_is_lost() {
    let Some(redis) = Redis::start("moved", &[]) else { return };
    let Some(other) = Redis::start("moved-to", &[]) else { return };
    for is_busy in [false, true] {
        let forwarder = Forwarder::start(&redis);
        let moved = Node::start_at(forwarder.url(), 1, keep());
        let stays = Node::start(&redis, 2, keep());
        eventually("it has had its first probe", || moved.bus.status().is_up());
        let beats = redis.calls("smembers");
        forwarder.move_subscriptions(&other);
        assert!(stays.publish(0, b"hello", keep()));
        eventually("the message comes", || {
            // The other server's traffic must not count as delivery by the right server.
            if is_busy {
                other.ask("PUBLISH test.c.0000000000000001 hello");
            }
            moved.got(0).payloads == [b"hello"]
        });
        // Each node sends a heartbeat every three seconds: the fault is found within fifteen
        // seconds.
        let beats = redis.calls("smembers") - beats;
        assert!(beats <= 2 * 6, "{beats} signs of life");
        let status = moved.bus.status().snapshot();
        assert_eq!((status.probe_failures, moved.got(0).losses), (1, 0));
        assert!(stays.publish(0, b"live", keep()));
        eventually("it is live", || moved.got(0).payloads.len() == 2);
        // The next round begins with channels without a record.
        redis.ask("FLUSHALL");
    }
}
