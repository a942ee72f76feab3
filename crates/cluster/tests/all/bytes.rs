//! Tests the bytes that the server keeps of a channel, and the bytes that it reads at once.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::time::Duration;

use throng_cluster::redis::KeepRule;
use throng_testkit::{Redis, eventually};

use crate::nodes::Node;
use crate::relay::Relay;

/// Maximum bytes that a channel keeps in these tests.
const LIMIT: usize = 1 << 20;

fn keep() -> Option<KeepRule> {
    Some(KeepRule { count: 100, bytes: LIMIT, age: Duration::from_secs(300) })
}

/// Publishes on a node once there is room for it.
fn publish(node: &Node, payload: &[u8]) {
    eventually("it is accepted", || node.publish(0, payload, keep()));
}

/// A message of so many bytes that begins with a number.
fn message(number: usize, bytes: usize) -> Vec<u8> {
    let mut message = number.to_string().into_bytes();
    message.resize(bytes, b' ');
    message
}

fn number(reply: &str) -> usize {
    reply.strip_prefix(':').unwrap().parse().unwrap()
}

/// Returns the memory of a channel's history at the server.
fn memory(redis: &Redis) -> usize {
    number(&redis.ask("MEMORY USAGE test.s.c0 SAMPLES 0"))
}

/// Returns a figure of the memory that the server has.
fn memory_of_server(redis: &Redis, name: &str) -> usize {
    let info = format!("string.match(redis.call('INFO', 'memory'), '{name}:(%d+)')");
    number(&redis.ask(&format!("EVAL \"return tonumber({info})\" 0")))
}

/// Adds publications of this size, with offsets from `first` to `last`, as a node with a greater
/// limit does.
fn publish_without_limit(redis: &Redis, first: usize, last: usize, bytes: usize) {
    let script = format!(
        "local add = function(at, d) redis.call('XADD', KEYS[2], at .. '-1', 'd', d) end \
         for at = {first}, {last} do add(at, KEYS[3] .. string.rep('x', {bytes})) end \
         redis.call('HSET', KEYS[1], 'e', '00000000000000ab', 'p', '{last} 1 {last}')"
    );
    // An envelope without fields, as other tests of this crate have it.
    let mut envelope = Vec::new();
    throng_cluster::encode(&throng_cluster::Envelope::default(), &mut envelope);
    let head: String = envelope.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    redis.ask_until_taken(&format!("EVAL \"{script}\" 3 test.o.c0 test.s.c0 \"{head}\""));
}

#[test]
fn the_bytes_of_a_channel_are_limited_at_the_server() {
    let Some(redis) = Redis::start("bytes", &[]) else { return };
    let node = Node::start(&redis, 1, keep());
    let sizes = [50_000, 300_000, 10, 100_000, 1_000, 700_000];
    let mut number = 0;
    for size in sizes.iter().cycle().take(100) {
        publish(&node, &message(number, *size));
        number += 1;
    }
    eventually("all come", || node.got(0).payloads.len() == number);
    assert!(memory(&redis) < LIMIT * 5 / 4, "{}", memory(&redis));
    let small = message(0, 5_000);
    (0..300).for_each(|_| publish(&node, &small));
    eventually("all come", || node.got(0).payloads.len() == number + 300);
    assert_eq!(redis.ask("XLEN test.s.c0"), ":101", "as many as the rule says are kept, and one");
    // The server keeps the end of the sequence, as far as it fits.
    publish(&node, &message(1, 600_000));
    publish(&node, &message(2, 300_000));
    eventually("all come", || node.got(0).payloads.len() == number + 302);
    let all = node.got(0).payloads.clone();
    let later = Node::start(&redis, 2, keep());
    let got = later.got(0).sequence.clone();
    assert!(all.ends_with(&got) && got.len() > 20, "{}", got.len());
}

#[test]
fn only_who_has_got_a_message_that_is_too_large_to_be_kept_can_go_on_behind_it() {
    for (has_got_it, losses) in [(true, 0), (false, 1)] {
        let Some(redis) = Redis::start("too-large", &[]) else { return };
        let relay = Relay::start(&redis);
        let behind = Node::start_at(relay.url(), 1, keep());
        let other = Node::start(&redis, 2, keep());
        let large = message(0, LIMIT);
        publish(&other, b"first");
        eventually("it comes", || behind.got(0).payloads == [b"first"]);
        if !has_got_it {
            relay.faults().silence();
        }
        publish(&other, &large);
        eventually("it is delivered", || other.got(0).payloads.last() == Some(&large));
        assert_eq!(redis.ask("EXISTS test.s.c0"), ":0", "nothing before it is kept, either");
        eventually("the others have it", || {
            !has_got_it || behind.got(0).payloads.last() == Some(&large)
        });
        relay.faults().silence();
        publish(&other, b"last");
        eventually("it is published", || other.got(0).payloads.len() == 3);
        redis.ask("CLIENT KILL TYPE pubsub");
        eventually("what is kept comes", || {
            behind.got(0).sequence.last().is_some_and(|payload| payload == b"last")
        });
        assert_eq!((behind.got(0).losses, other.got(0).losses), (losses, 0));
        let later = Node::start(&redis, 3, keep());
        assert_eq!(later.got(0).sequence, [b"last"]);
    }
}

#[test]
fn removed_messages_are_a_loss_only_for_members_that_are_behind_them() {
    // Three such messages are kept.
    for (missed, losses) in [(3, 0), (4, 1)] {
        let Some(redis) = Redis::start("removed", &[]) else { return };
        let relay = Relay::start(&redis);
        let behind = Node::start_at(relay.url(), 1, keep());
        let other = Node::start(&redis, 2, keep());
        let all: Vec<_> = (0..8).map(|at| message(at, 300_000)).collect();
        let (first, rest) = all.split_at(all.len() - missed);
        first.iter().for_each(|payload| publish(&other, payload));
        eventually("they come", || behind.got(0).payloads == first);
        relay.faults().silence();
        rest.iter().for_each(|payload| publish(&other, payload));
        eventually("the rest comes", || other.got(0).payloads == all);
        redis.ask("CLIENT KILL TYPE pubsub");
        eventually("what is kept comes", || behind.got(0).sequence.last() == all.last());
        assert_eq!(behind.got(0).losses, losses);
        if losses == 0 {
            assert!(behind.got(0).payloads == all, "each once and in order");
        }
    }
}

#[test]
fn the_history_of_a_node_with_a_greater_limit_is_read_and_shortened() {
    let Some(redis) = Redis::start("older", &[]) else { return };
    publish_without_limit(&redis, 1, 50, 100_000);
    let one = Node::start(&redis, 1, keep());
    assert_eq!(one.got(0).sequence.len(), 10, "those that fit into an answer");
    publish(&one, b"new");
    eventually("it comes", || one.got(0).payloads == [b"new"]);
    assert_eq!(one.got(0).losses, 0);
    assert!(memory(&redis) < LIMIT * 5 / 4, "{}", memory(&redis));
    // The other node continues to publish.
    publish_without_limit(&redis, 52, 60, 100_000);
    publish(&one, b"newest");
    eventually("all come", || one.got(0).payloads.last().is_some_and(|last| last == b"newest"));
    assert_eq!(one.got(0).payloads.len(), 11);
    assert_eq!(one.got(0).losses, 0);
    assert!(memory(&redis) < LIMIT * 5 / 4, "{}", memory(&redis));
}

#[test]
fn reading_a_history_takes_no_more_memory_of_the_server_than_the_answer() {
    let Some(redis) = Redis::start("reading", &[]) else { return };
    publish_without_limit(&redis, 1, 60, 1 << 20);
    let node = Node::start(&redis, 1, keep());
    assert_eq!(node.got(0).sequence.len(), 1);
    let [most, now] =
        ["used_memory_peak", "used_memory"].map(|name| memory_of_server(&redis, name));
    assert!(most - now < 8 << 20, "{most} with {now} at rest");
}
