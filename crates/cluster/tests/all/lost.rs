//! Three nodes and a server that loses data under traffic: members learn of each loss, and are at
//! the server's place afterwards.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use throng_testkit::{Random, Redis, eventually};

use crate::kept::kept_by;
use crate::nodes::{CHANNELS, Node, keep, three, traffic};

fn losses(nodes: &[Node]) -> usize {
    nodes.iter().map(|node| (0..CHANNELS).map(|at| node.got(at).losses).sum::<usize>()).sum()
}

/// Waits until members on every node have the end of the server's publications. Members without an
/// announced loss must have all of them.
fn check_announced(redis: &Redis, nodes: &[Node; 3], rounds: u64) {
    eventually("each has an outcome", || {
        nodes.iter().all(|node| node.bus.status().snapshot().pending_bytes == 0)
    });
    // Even a server that evicts keys may be out of memory for a while.
    let of = |node: &Node| node.bus.status().snapshot();
    let refused: u64 = nodes.iter().map(|node| of(node).refused).sum();
    assert!(nodes.iter().all(|node| of(node).unknown == 0));
    for channel in 0..CHANNELS {
        eventually("it is published", || nodes[0].publish(channel, b"after", keep()));
        eventually("it is the last one of the server", || {
            kept_by(redis, channel).last().is_some_and(|last| last == b"after")
        });
        let kept = kept_by(redis, channel);
        for (number, node) in nodes.iter().enumerate() {
            // The history may be lost while the place remains, or be longer than a node requests.
            eventually("members are where the server is", || {
                let sequence = &node.got(channel).sequence;
                sequence.ends_with(&kept) || kept.ends_with(sequence) && !sequence.is_empty()
            });
            let got = node.got(channel);
            let (came, all) = (got.payloads.len() as u64, rounds * 3 + 1);
            let is_whole = (all.saturating_sub(refused)..=all).contains(&came);
            assert!(got.losses > 0 || is_whole, "node {number} misses some: {came} of {all}");
        }
    }
}

#[test]
fn members_learn_of_histories_that_are_evicted_under_traffic() {
    let Some(redis) = Redis::start("evicted", &[]) else { return };
    let nodes = three(&redis.url(""));
    redis.ask("CONFIG SET maxmemory-policy allkeys-random");
    let mut is_full = false;
    let rounds = traffic(&nodes, 2_000, |rounds| {
        if rounds > 20 && !is_full {
            is_full = true;
            redis.ask("CONFIG SET maxmemory 4mb");
            eventually("keys of several histories are evicted", || losses(&nodes) > 6);
            redis.ask("CONFIG SET maxmemory 0");
        }
        rounds < 100
    });
    check_announced(&redis, &nodes, rounds);
}

#[test]
fn members_learn_of_a_record_or_a_stream_that_is_lost_under_traffic() {
    let Some(redis) = Redis::start("parts", &[]) else { return };
    let nodes = three(&redis.url(""));
    let (mut times, mut random) = (0, Random::new(5));
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 5 * times && times < 40 {
            times += 1;
            let kind = ["o", "s"][random.below(2)];
            redis.ask(&format!("DEL test.{kind}.c{}", random.below(CHANNELS)));
            if random.below(3) == 0 {
                redis.ask("CLIENT KILL TYPE pubsub");
            }
        }
        times < 40 || rounds < 220
    });
    check_announced(&redis, &nodes, rounds);
    eventually("a loss was announced", || losses(&nodes) > 0);
}

#[test]
fn members_learn_of_a_server_that_is_flushed_under_traffic() {
    let Some(redis) = Redis::start("flushed-often", &[]) else { return };
    let nodes = three(&redis.url(""));
    let mut times = 0;
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 20 * times && times < 5 {
            times += 1;
            let before = losses(&nodes);
            redis.ask("FLUSHALL");
            eventually("each has learned of it", || losses(&nodes) >= before + 3 * CHANNELS);
        }
        times < 5 || rounds < 120
    });
    check_announced(&redis, &nodes, rounds);
}
