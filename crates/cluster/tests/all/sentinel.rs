//! Three nodes and a master that sentinels replace, under traffic. The tests account for every
//! message.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use throng_cluster::redis::{Bus, KeepRule, Outgoing, Settings, Tls};
use throng_cluster::{Envelope, WhileDown, encode};
use throng_testkit::{Redis, eventually};

use crate::kept::kept_by;
use crate::support::{Got, Recorder, Seen, lock, name};

const CHANNELS: usize = 3;

/// A node whose members have joined all channels.
struct Node {
    bus: Bus,
    seen: Seen,
    /// Accepted payloads of this node's publishers, and the number of refused ones.
    accepted: Mutex<Vec<(usize, Vec<u8>)>>,
    refused: Mutex<u64>,
}

impl Node {
    fn start(url: &str, node: u64) -> Self {
        let settings =
            Settings { url: url.to_owned(), prefix: "test".to_owned(), node, tls: Tls::default() };
        let (bus, starter) = Bus::new(settings).unwrap();
        let seen: Seen = (0..CHANNELS).map(|_| Mutex::default()).collect();
        starter.start(Recorder(Arc::clone(&seen))).unwrap();
        (0..CHANNELS).for_each(|channel| bus.follow(name(channel), keep()));
        let node = Self { bus, seen, accepted: Mutex::default(), refused: Mutex::default() };
        eventually("all channels are live", || {
            (0..CHANNELS).all(|channel| node.got(channel).is_live)
        });
        node
    }

    fn got(&self, channel: usize) -> MutexGuard<'_, Got> {
        lock(&self.seen[channel])
    }

    /// Publishes a message, and records whether it was accepted.
    fn publish(&self, channel: usize, payload: &[u8]) -> bool {
        let mut envelope = Vec::new();
        encode(&Envelope { payload, ..Envelope::default() }, &mut envelope);
        let (envelope, while_down) = (envelope.into(), WhileDown::Refuse);
        let outgoing = Outgoing { channel: name(channel), envelope, keep: keep(), while_down };
        let is_accepted = self.bus.publish(outgoing);
        match is_accepted {
            true => self.accepted.lock().unwrap().push((channel, payload.to_vec())),
            false => *self.refused.lock().unwrap() += 1,
        }
        is_accepted
    }

    fn has(&self, channel: usize, payload: &[u8]) -> bool {
        self.got(channel).payloads.iter().any(|got| got == payload)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.bus.stop();
    }
}

fn keep() -> Option<KeepRule> {
    Some(KeepRule { count: 50_000, bytes: 256 << 20, age: Duration::from_secs(300) })
}

fn three(url: &str) -> [Node; 3] {
    [1, 2, 3].map(|node| Node::start(url, node))
}

fn are_up(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| node.bus.status().is_up())
}

/// Returns whether each node has closed its first connections. A node may be up again before
/// another node notices.
fn have_noticed(nodes: &[Node]) -> bool {
    nodes
        .iter()
        .all(|node| !node.bus.status().is_up() || node.bus.status().snapshot().reconnects > 0)
}

/// Publishes on every node until `fault` returns.
fn traffic(nodes: &[Node], fault: impl FnOnce()) {
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for (number, node) in nodes.iter().enumerate() {
            let goes_on = &goes_on;
            scope.spawn(move || {
                for round in 0.. {
                    if !goes_on.load(Ordering::Relaxed) {
                        break;
                    }
                    for channel in 0..CHANNELS {
                        node.publish(channel, format!("{number} {round}").as_bytes());
                    }
                    // A refused publication costs nothing: the pause lets the next attempt meet
                    // another state.
                    throng_testkit::hold_up(Duration::from_millis(1));
                }
            });
        }
        // If `fault` panics, the threads must still end.
        let fault = std::panic::catch_unwind(std::panic::AssertUnwindSafe(fault));
        goes_on.store(false, Ordering::Relaxed);
        if let Err(failure) = fault {
            std::panic::resume_unwind(failure);
        }
    });
}

/// Publishes in every channel until each node has received a publication that follows all earlier
/// ones.
fn is_live_again(nodes: &[Node]) {
    for channel in 0..CHANNELS {
        let payload = format!("after {channel}");
        eventually("it is accepted", || nodes[0].publish(channel, payload.as_bytes()));
        eventually("it comes to every node", || {
            nodes.iter().all(|node| node.has(channel, payload.as_bytes()))
        });
    }
}

/// Checks that each publication has an outcome, and that members on every node have exactly the new
/// master's publications: if they received any other publication, a loss was announced to them.
/// Returns how many publications the old master has acknowledged and then lost without an announced
/// loss.
fn account(nodes: &[Node], master: &Redis) -> u64 {
    let (mut late, mut missing) = (0, 0);
    for node in nodes {
        eventually("each has an outcome", || node.bus.status().snapshot().pending_bytes == 0);
        let status = node.bus.status().snapshot();
        let (accepted, known_refused) =
            (node.accepted.lock().unwrap(), *node.refused.lock().unwrap());
        let outcomes = status.published + status.refused + status.unknown;
        assert_eq!(outcomes, accepted.len() as u64 + known_refused, "{status:?}");
        assert_eq!(status.unknown, 0, "all have a history: {status:?}");
        late += status.refused - known_refused;
    }
    for channel in 0..CHANNELS {
        let sent: HashSet<Vec<u8>> = nodes
            .iter()
            .flat_map(|node| node.accepted.lock().unwrap().clone())
            .filter_map(|(to, payload)| (to == channel).then_some(payload))
            .collect();
        let kept = kept_by(master, channel);
        let survivors: HashSet<_> = kept.iter().cloned().collect();
        assert_eq!(survivors.len(), kept.len(), "one is there twice in channel {channel}");
        assert!(survivors.is_subset(&sent));
        for node in nodes {
            eventually("members have what the master has", || node.got(channel).sequence == kept);
            let got = node.got(channel);
            assert!(got.losses > 0 || got.payloads == kept, "a loss is announced");
            assert!(got.payloads.iter().all(|payload| sent.contains(payload)));
        }
        if nodes.iter().all(|node| node.got(channel).losses == 0) {
            missing += sent.difference(&survivors).count() as u64;
        }
    }
    missing.saturating_sub(late)
}

/// A master, its replica, and a sentinel that knows both.
struct Watched {
    master: Redis,
    replica: Redis,
    sentinel: Redis,
}

impl Watched {
    /// Starts a master, a replica and a sentinel, which replaces a master after `silent` without an
    /// answer.
    fn start(name: &str, silent: Duration) -> Option<Self> {
        let master = Redis::start(name, &["--enable-debug-command", "local"])?;
        let replica = master.start_replica(&format!("{name}-replica"));
        let configuration = format!(
            "sentinel monitor mymaster 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds mymaster {}\n\
             sentinel failover-timeout mymaster 10000\n",
            master.port(),
            silent.as_millis()
        );
        let sentinel = Redis::start_sentinel(&format!("{name}-sentinel"), &configuration);
        eventually("it knows the replica", || sentinel.ask("SENTINEL REPLICAS mymaster") == "*1");
        Some(Self { master, replica, sentinel })
    }

    /// Returns a URL whose first sentinel does not run.
    fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:1,127.0.0.1:{}/mymaster", self.sentinel.port())
    }

    /// Makes the sentinel name the replica, as after a failover unknown to it.
    fn name_replica(&self) {
        self.sentinel.ask("SENTINEL REMOVE mymaster");
        let port = self.replica.port();
        self.sentinel.ask(&format!("SENTINEL MONITOR mymaster 127.0.0.1 {port} 1"));
    }

    /// Returns whether this many nodes have moved to the replica: each has two connections there,
    /// and one of them is subscribed to its probe channel.
    fn has_moved(&self, nodes: usize) -> bool {
        self.replica.ask("PUBSUB NUMPAT") == ":0"
            && self.replica.ask("PUBSUB CHANNELS test.q.*") == format!("*{nodes}")
    }
}

const NEVER: Duration = Duration::from_secs(600);

#[test]
fn a_failover_that_the_sentinels_order_is_followed_at_once_and_accounted_for() {
    let Some(watched) = Watched::start("ordered", NEVER) else { return };
    let nodes = three(&watched.url());
    traffic(&nodes, || {
        eventually("there is traffic", || nodes[0].got(0).payloads.len() > 50);
        // The sentinel must first know the state of the replica.
        watched.sentinel.ask_until_taken("SENTINEL FAILOVER mymaster");
        eventually("all nodes are at the new master", || {
            watched.has_moved(nodes.len()) && are_up(&nodes)
        });
        let before = nodes[0].got(0).payloads.len();
        eventually("there is traffic", || nodes[0].got(0).payloads.len() > before + 50);
    });
    is_live_again(&nodes);
    // Replication is asynchronous: the old master may have lost some publications.
    account(&nodes, &watched.replica);
}

#[test]
fn a_master_that_is_killed_is_replaced_and_every_message_accounted_for() {
    let Some(mut watched) = Watched::start("killed", Duration::from_secs(2)) else { return };
    let nodes = three(&watched.url());
    traffic(&nodes, || {
        eventually("there is traffic", || nodes[0].got(0).payloads.len() > 50);
        // The master stops between two turns of its loop. Each turn writes all its replies.
        watched.master.ask_nothing("DEBUG SLEEP 600");
        eventually("it is noticed", || have_noticed(&nodes));
        watched.master.kill();
        eventually("all nodes are at the new master", || {
            watched.has_moved(nodes.len()) && are_up(&nodes)
        });
        let before = nodes[0].got(0).payloads.len();
        eventually("there is traffic", || nodes[0].got(0).payloads.len() > before + 50);
    });
    is_live_again(&nodes);
    assert_eq!(account(&nodes, &watched.replica), 0);
    let refused: u64 = nodes.iter().map(|node| *node.refused.lock().unwrap()).sum();
    assert!(refused > 0, "publications are refused while there is no master");
}

#[test]
fn members_learn_of_what_the_new_master_has_never_had() {
    let Some(mut watched) = Watched::start("tail", NEVER) else { return };
    let nodes = three(&watched.url());
    traffic(&nodes, || {
        eventually("there is traffic", || nodes[0].got(0).payloads.len() > 20);
        watched.replica.ask("REPLICAOF NO ONE");
        let at = |node: &Node, channel| node.got(channel).payloads.len();
        let before: Vec<_> = (0..CHANNELS).map(|channel| at(&nodes[0], channel)).collect();
        eventually("each gets some that only the old master has", || {
            nodes.iter().all(|node| (0..CHANNELS).all(|c| at(node, c) > before[c] + 20))
        });
        watched.name_replica();
        watched.master.kill();
        eventually("all nodes are at the new master", || {
            watched.has_moved(nodes.len()) && are_up(&nodes)
        });
    });
    is_live_again(&nodes);
    for node in &nodes {
        (0..CHANNELS).for_each(|channel| assert_eq!(node.got(channel).losses, 1));
    }
    assert_eq!(account(&nodes, &watched.replica), 0);
}

#[test]
fn a_master_that_hangs_without_traffic_is_noticed_and_replaced() {
    let Some(watched) = Watched::start("hangs", Duration::from_secs(3)) else { return };
    let nodes = three(&watched.url());
    is_live_again(&nodes);
    watched.master.signal("-STOP");
    let began = Instant::now();
    eventually("it is noticed", || have_noticed(&nodes));
    let noticed = began.elapsed();
    eventually("all nodes are at the new master", || {
        watched.has_moved(nodes.len()) && are_up(&nodes)
    });
    // When the old master continues, it soon stops being a master, and no node listens to it.
    watched.master.signal("-CONT");
    for (number, node) in nodes.iter().enumerate() {
        let payload = format!("later {number}");
        eventually("it is accepted", || node.publish(0, payload.as_bytes()));
        eventually("it comes", || nodes.iter().all(|node| node.has(0, payload.as_bytes())));
    }
    assert_eq!(account(&nodes, &watched.replica), 0);
    // Five seconds of silence, and five for the probe.
    assert!(noticed < Duration::from_secs(15), "{noticed:?}");
}

#[test]
fn nodes_leave_a_master_that_is_well_when_the_sentinels_name_another() {
    let Some(watched) = Watched::start("left", NEVER) else { return };
    let nodes = three(&watched.url());
    watched.replica.ask("REPLICAOF NO ONE");
    watched.name_replica();
    eventually("all nodes are at the new master", || {
        watched.has_moved(nodes.len()) && are_up(&nodes)
    });
    is_live_again(&nodes);
    for node in &nodes {
        assert_eq!(node.bus.status().snapshot().probe_failures, 0);
    }
}

#[test]
fn a_sentinel_that_ends_is_replaced_by_another() {
    let Some(watched) = Watched::start("ends", NEVER) else { return };
    let configuration =
        format!("sentinel monitor mymaster 127.0.0.1 {} 1\n", watched.master.port());
    let mut first = Redis::start_sentinel("ends-first", &configuration);
    let ports = [first.port(), watched.sentinel.port()];
    let url = format!("redis-sentinel://127.0.0.1:{},127.0.0.1:{}/mymaster", ports[0], ports[1]);
    let nodes = [Node::start(&url, 1)];
    first.kill();
    // The old master still works, so only the other sentinel can report the change.
    watched.replica.ask("REPLICAOF NO ONE");
    watched.name_replica();
    eventually("the node is at the new master", || watched.has_moved(1) && are_up(&nodes));
    is_live_again(&nodes);
}

#[test]
fn errors_at_the_start_name_the_setting_the_answer_and_the_remedy() {
    let Some(redis) = Redis::start("names", &["--requirepass", "secret"]) else { return };
    let port = redis.port();
    let configuration = |more: &str| {
        format!(
            "sentinel monitor mymaster 127.0.0.1 {port} 1\n\
             sentinel auth-pass mymaster secret\n{more}"
        )
    };
    let open = Redis::start_sentinel("names-open", &configuration(""));
    let locked = Redis::start_sentinel("names-locked", &configuration("requirepass watch\n"));
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
    let [open, locked] = [&open, &locked].map(|sentinel| format!("127.0.0.1:{}", sentinel.port()));
    // A sentinel that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    for (url, parts) in [
        (format!("redis-sentinel://{open}/other"), ["\"other\"", "sentinel monitor"]),
        (format!("redis-sentinel://127.0.0.1:1,{silent}/mymaster"), ["127.0.0.1:1", "do they run"]),
        (format!("redis-sentinel://127.0.0.1:{port}/mymaster"), ["NOAUTH", "sentinel_password="]),
        (format!("redis-sentinel://:secret@{locked}/mymaster"), [&locked, "sentinel_password="]),
        (
            format!("redis-sentinel://:secret@{locked}/mymaster?sentinel_password=wrong"),
            [&locked, "sentinel_password="],
        ),
        (format!("redis-sentinel://{open}/mymaster"), ["the master of", "user and password"]),
        (format!("redis-sentinel://:wrong@{open}/mymaster"), ["the master", "user and password"]),
    ] {
        let error = start(&url).unwrap_err();
        assert!(error.contains("cluster.url"), "{url}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{url}: {error}");
        assert!(!error.contains("wrong@") && !error.contains("=wrong"), "{error}");
    }
    let right =
        format!("redis-sentinel://:secret@{silent},{locked}/mymaster?sentinel_password=watch");
    assert_eq!(start(&right), Ok(()));
    assert_eq!(start(&format!("redis-sentinel://:secret@{open}/mymaster/1")), Ok(()));
}
