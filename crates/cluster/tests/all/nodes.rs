//! Three nodes with members and traffic. The tests account for every message.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use throng_cluster::redis::{Bus, KeepRule, Outgoing, Settings, Tls};
use throng_cluster::{Envelope, WhileDown, encode};
use throng_testkit::{Redis, eventually, hold_up};

use crate::support::{Got, Recorder, Seen, lock, name};

pub(crate) const CHANNELS: usize = 4;

/// A node whose members have joined all channels, and a thread that publishes to them.
pub(crate) struct Node {
    pub(crate) bus: Bus,
    pub(crate) seen: Seen,
}

pub(crate) fn keep() -> Option<KeepRule> {
    Some(KeepRule { count: 5_000, bytes: 256 << 20, age: Duration::from_secs(300) })
}

impl Node {
    pub(crate) fn start(redis: &Redis, node: u64, keep: Option<KeepRule>) -> Self {
        Self::start_at(redis.url(""), node, keep)
    }

    pub(crate) fn start_at(url: String, node: u64, keep: Option<KeepRule>) -> Self {
        Self::start_with(url, node, keep, CHANNELS)
    }

    /// Starts a node with this many channels.
    pub(crate) fn start_with(
        url: String,
        node: u64,
        keep: Option<KeepRule>,
        channels: usize,
    ) -> Self {
        Self::start_secured((url, Tls::default()), node, keep, channels)
    }

    /// Starts a node with these TLS settings.
    pub(crate) fn start_secured(
        (url, tls): (String, Tls),
        node: u64,
        keep: Option<KeepRule>,
        channels: usize,
    ) -> Self {
        let settings = Settings { url, prefix: "test".to_owned(), node, tls };
        let (bus, starter) = Bus::new(settings).unwrap();
        let seen: Seen = (0..channels).map(|_| Mutex::default()).collect();
        starter.start(Recorder(Arc::clone(&seen))).unwrap();
        (0..channels).for_each(|channel| bus.follow(name(channel), keep));
        let node = Self { bus, seen };
        if keep.is_some() {
            eventually("all channels are live", || {
                (0..channels).all(|channel| node.got(channel).is_live)
            });
        }
        node
    }

    pub(crate) fn got(&self, channel: usize) -> MutexGuard<'_, Got> {
        lock(&self.seen[channel])
    }

    pub(crate) fn publish(&self, channel: usize, payload: &[u8], keep: Option<KeepRule>) -> bool {
        let mut envelope = Vec::new();
        encode(&Envelope { payload, ..Envelope::default() }, &mut envelope);
        self.publish_envelope(channel, envelope, keep, WhileDown::Buffer)
    }

    pub(crate) fn publish_or_refuse(&self, channel: usize, payload: &[u8]) -> bool {
        let mut envelope = Vec::new();
        encode(&Envelope { payload, ..Envelope::default() }, &mut envelope);
        self.publish_envelope(channel, envelope, keep(), WhileDown::Refuse)
    }

    pub(crate) fn publish_envelope(
        &self,
        channel: usize,
        envelope: Vec<u8>,
        keep: Option<KeepRule>,
        while_down: WhileDown,
    ) -> bool {
        let channel = name(channel);
        self.bus.publish(Outgoing { channel, envelope: envelope.into(), keep, while_down })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.bus.stop();
    }
}

pub(crate) fn three(url: &str) -> [Node; 3] {
    [1, 2, 3].map(|node| Node::start_at(url.to_owned(), node, keep()))
}

/// Ends the traffic, also when a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Publishes on every node, in turn with `fault`, which gets the number of messages so far and
/// returns false when it has finished. Returns how many messages each node has published to each
/// channel.
pub(crate) fn traffic(nodes: &[Node; 3], size: usize, fault: impl FnMut(u64) -> bool) -> u64 {
    traffic_with(nodes, size, Duration::ZERO, fault)
}

/// Publishes as `traffic` does, with this pause between two messages of a node to a channel.
pub(crate) fn traffic_with(
    nodes: &[Node; 3],
    size: usize,
    pause: Duration,
    mut fault: impl FnMut(u64) -> bool,
) -> u64 {
    let (goes_on, rounds) = (AtomicBool::new(true), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let padding = "x".repeat(size);
            while goes_on.load(Ordering::Relaxed) {
                let round = rounds.load(Ordering::Relaxed);
                for (number, node) in nodes.iter().enumerate() {
                    for channel in 0..node.seen.len() {
                        let payload = format!("{number} {round} {padding}");
                        eventually("it is accepted", || {
                            node.publish(channel, payload.as_bytes(), keep())
                        });
                    }
                }
                rounds.store(round + 1, Ordering::Relaxed);
                hold_up(pause);
                // A few messages stay in flight, so that each fault meets some. Not many, so that
                // none expires on a busy machine.
                eventually("the broker keeps up", || {
                    nodes.iter().all(|node| node.bus.status().snapshot().pending_bytes < 1 << 16)
                        || !goes_on.load(Ordering::Relaxed)
                });
            }
        });
        let _ends = Ends(&goes_on);
        while fault(rounds.load(Ordering::Relaxed)) {
            std::thread::yield_now();
        }
    });
    rounds.load(Ordering::Relaxed)
}

/// Waits until every node has each message once, in one order, without a loss.
pub(crate) fn check_all(nodes: &[Node; 3], rounds: u64) {
    let all = rounds as usize * 3;
    for channel in 0..nodes[0].seen.len() {
        eventually("every message arrives", || {
            nodes.iter().all(|node| node.got(channel).payloads.len() >= all)
        });
        let order = nodes[0].got(channel).payloads.clone();
        for node in nodes {
            let got = node.got(channel);
            assert_eq!(got.losses, 0);
            assert_eq!(got.payloads.len(), all);
            assert!(got.payloads == order, "nodes have different orders");
        }
        let mut next = [0; 3];
        for payload in &order {
            let text = str::from_utf8(payload).unwrap();
            let mut words = text.split(' ').map_while(|word| word.parse::<u64>().ok());
            let (node, round) = (words.next().unwrap(), words.next().unwrap());
            assert_eq!(round, next[node as usize], "of node {node} in channel {channel}");
            next[node as usize] += 1;
        }
    }
}
