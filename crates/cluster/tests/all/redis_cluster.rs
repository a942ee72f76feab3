//! Three nodes and a Redis Cluster of three masters with replicas, whose slots move under traffic.
//! The tests account for every message.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::nodes::{Node, check_all, keep, traffic_with};
use crate::support::{Got, Recorder, name};
use throng_cluster::redis::{
    AskError, Bus, Members, Outgoing, Recipients, Settings, Tls, block_on,
};
use throng_cluster::{
    Announcement, Control, Envelope, NodeCommand, Place, Tail, Target, WhileDown, encode,
};
use throng_testkit::{Redis, RedisCluster, documented_user, eventually};

/// Channels, which are in as many of the 128 partitions: four at the first master, two of them in
/// its first 1,000 slots and one in its first 300.
const CHANNELS: usize = 14;

/// Time between two messages of a node to a channel: slots move by many commands of `redis-cli`.
const PAUSE: Duration = Duration::from_millis(20);

fn three(cluster: &RedisCluster) -> [Node; 3] {
    [1, 2, 3].map(|node| Node::start_with(cluster.url(""), node, keep(), CHANNELS))
}

/// Waits until each node has got more of each channel.
fn await_more(nodes: &[Node; 3]) {
    let count = |node: &Node, channel| node.got(channel).payloads.len();
    let before: Vec<_> = (0..CHANNELS).map(|channel| count(&nodes[0], channel)).collect();
    eventually("messages come", || {
        nodes.iter().all(|node| (0..CHANNELS).all(|at| count(node, at) > before[at]))
    });
}

/// Returns the connections of the nodes to a master, without the test's own.
fn connections(cluster: &RedisCluster, master: usize) -> usize {
    let list = cluster.cli_at(master, &["CLIENT", "LIST", "TYPE", "NORMAL"]);
    let pubsub = cluster.cli_at(master, &["CLIENT", "LIST", "TYPE", "PUBSUB"]);
    let own = |line: &&str| !line.contains("cmd=client|list") && !line.trim().is_empty();
    list.lines().chain(pubsub.lines()).filter(own).count()
}

#[test]
fn three_nodes_get_every_message_once_in_one_order_by_two_connections_to_each_master() {
    let Some(cluster) = RedisCluster::start("order", 3) else { return };
    let nodes = three(&cluster);
    let rounds = traffic_with(&nodes, 10, PAUSE, |rounds| rounds < 60);
    check_all(&nodes, rounds);
    for master in 0..3 {
        assert!(cluster.servers[master].calls("spublish") > 0, "each has partitions");
        eventually("each node has two connections", || connections(&cluster, master) == 6);
    }
    for node in &nodes {
        let status = node.bus.status().snapshot();
        let counts = (status.published, status.refused, status.unknown, status.reconnects);
        assert_eq!(counts, (rounds * CHANNELS as u64, 0, 0, 0));
    }
}

#[test]
fn a_replica_that_becomes_the_master_under_traffic_loses_nothing() {
    let Some(cluster) = RedisCluster::start("failover", 3) else { return };
    let nodes = three(&cluster);
    let mut master = 0;
    let rounds = traffic_with(&nodes, 10, PAUSE, |_| {
        await_more(&nodes);
        // There and back again, and another one.
        master = cluster.fail_over(if master == 0 { 0 } else { master });
        await_more(&nodes);
        master != 0
    });
    check_all(&nodes, rounds);
    let status = nodes[0].bus.status().snapshot();
    assert!(status.reconnects > 0 && status.is_up, "{status:?}");
}

#[test]
fn slots_that_are_moved_under_traffic_lose_nothing() {
    let Some(cluster) = RedisCluster::start("reshard", 3) else { return };
    let nodes = three(&cluster);
    let mut is_moved = false;
    let rounds = traffic_with(&nodes, 10, PAUSE, |_| {
        await_more(&nodes);
        if !is_moved {
            cluster.reshard(0, 1, 1_000);
        }
        !std::mem::replace(&mut is_moved, true)
    });
    check_all(&nodes, rounds);
    let status = nodes[0].bus.status().snapshot();
    assert!(status.reconnects > 0 && status.is_up, "{status:?}");
}

#[test]
fn a_master_that_is_added_and_removed_under_traffic_loses_nothing() {
    let Some(mut cluster) = RedisCluster::start("added", 3) else { return };
    let nodes = three(&cluster);
    let mut step = 0;
    let rounds = traffic_with(&nodes, 10, PAUSE, |_| {
        await_more(&nodes);
        match step {
            0 => assert_eq!(cluster.add("added-new"), 6),
            1 => cluster.reshard(0, 6, 300),
            2 => {
                eventually("each node has two connections", || connections(&cluster, 6) == 6);
                cluster.reshard(6, 1, 300);
            }
            _ => cluster.remove(6),
        }
        step += 1;
        await_more(&nodes);
        step < 4
    });
    check_all(&nodes, rounds);
}

#[test]
fn a_master_that_is_killed_concerns_its_partitions_alone_until_its_replica_is_the_master() {
    let Some(mut cluster) = RedisCluster::start("killed", 3) else { return };
    let nodes = three(&cluster);
    let rounds = traffic_with(&nodes, 10, PAUSE, |rounds| rounds < 5);
    check_all(&nodes, rounds);
    for master in 0..3 {
        eventually("its replica has all", || cluster.has_replicated(master));
    }
    let replica = cluster.replica_of(1);
    cluster.servers[1].kill();
    eventually("it is noticed", || nodes.iter().all(|node| !node.bus.status().is_up()));
    let (_, why) = nodes[0].bus.status().down().unwrap();
    assert!(why.contains(" of 128 partitions: "), "{why}");
    let accepted: Vec<_> = (0..CHANNELS)
        .filter(|channel| nodes[0].publish_or_refuse(*channel, b"0 0 meanwhile"))
        .collect();
    assert!(!accepted.is_empty(), "the other masters take messages");
    eventually("those of other masters come", || {
        let came = |channel: &usize| nodes[2].got(*channel).payloads.len() as u64 > 3 * rounds;
        accepted.iter().all(came)
    });
    eventually("the replica is the master", || cluster.is_master(replica));
    eventually("all are back", || nodes.iter().all(|node| node.bus.status().is_up()));
    for channel in 0..CHANNELS {
        eventually("it is accepted", || nodes[1].publish(channel, b"1 0 after", keep()));
    }
    eventually("the last comes to all", || {
        nodes.iter().all(|node| {
            let is_last = |got: &Got| got.payloads.last().is_some_and(|last| last == b"1 0 after");
            (0..CHANNELS).all(|channel| is_last(&node.got(channel)))
        })
    });
    nodes.iter().for_each(|node| (0..CHANNELS).for_each(|at| assert_eq!(node.got(at).losses, 0)));
}

#[test]
fn a_partition_whose_master_hangs_at_its_first_use_is_down_and_serves_its_channels_meanwhile() {
    let Some(cluster) = RedisCluster::start("hangs", 3) else { return };
    let notes = Notes::default();
    let bus = start(cluster.url(""), 1, notes.clone()).unwrap();
    // These partitions were never used before. Before a replica takes over, the suspended master is
    // asked.
    cluster.servers[1].signal("-STOP");
    let publish = |channel: usize| {
        let mut envelope = Vec::new();
        encode(&Envelope { payload: b"x", ..Envelope::default() }, &mut envelope);
        let (channel, envelope) = (name(channel), envelope.into());
        let while_down = WhileDown::Local;
        assert!(bus.publish(Outgoing { channel, envelope, keep: None, while_down }));
    };
    (0..CHANNELS).for_each(publish);
    let why = || bus.status().down().map(|(_, why)| why).unwrap_or_default();
    eventually("it is down", || why().contains("not connected to its master yet"));
    let came = |channel| {
        let text = format!("message in {}", name(channel));
        notes.0.lock().unwrap().iter().filter(|at| **at == text).count()
    };
    let here: Vec<_> = (0..CHANNELS).filter(|channel| came(*channel) == 1).collect();
    assert!(!here.is_empty() && here.len() < CHANNELS, "{here:?}");
    here.iter().copied().for_each(publish);
    eventually("members of this node get them", || here.iter().all(|at| came(*at) == 2));
    // A question about a channel there has no answer now.
    let counted = block_on(bus.count(name(here[0]), Duration::from_secs(5)));
    assert_eq!(counted, Err(AskError::NoAnswer));
    cluster.servers[1].signal("-CONT");
    eventually("it is back", || bus.status().is_up());
    let counted = block_on(bus.count(name(here[0]), Duration::from_secs(5))).unwrap();
    assert_eq!((counted.total, counted.missing), (3, vec![]));
    bus.stop();
}

#[test]
fn a_command_at_the_first_use_of_a_partition_is_sent_though_the_node_is_stopped_at_once() {
    let Some(cluster) = RedisCluster::start("stops", 3) else { return };
    let notes = Notes::default();
    let bus = start(cluster.url(""), 1, notes.clone()).unwrap();
    let close = |channel: usize| {
        let (channel, command) = (name(channel), NodeCommand::Close { code: 4001, reason: "" });
        let close = Control { target: Target::Members(&channel), command };
        bus.control(Recipients::Of(&channel), close.encode().unwrap())
    };
    let replies: Vec<_> = (0..CHANNELS).map(close).collect();
    bus.stop();
    replies.into_iter().for_each(|reply| assert_eq!(block_on(reply), Ok(1)));
}

/// Members that record commands, joins and leaves.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Members for Notes {
    fn begin(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>, _: bool) {}
    fn deliver(&mut self, _: &Arc<str>, _: Place, _: &[u8]) {}
    fn refill(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>) {}
    fn live(&mut self, _: &Arc<str>) {}
    fn publish(&mut self, channel: &str, _: &[u8]) {
        self.0.lock().unwrap().push(format!("message in {channel}"));
    }
    fn end(&mut self, _: &Arc<str>) -> bool {
        true
    }
    fn presence(&mut self, channel: &str, Announcement { is_join, node, .. }: Announcement<'_>) {
        let verb = if is_join { "joins" } else { "leaves" };
        self.0.lock().unwrap().push(format!("{node} {verb} {channel}"));
    }
    fn control(&mut self, Control { target, .. }: Control<'_>) {
        self.0.lock().unwrap().push(format!("{target:?}"));
    }
    fn subscribers(&mut self, _: &str) -> u64 {
        3
    }
    fn answer(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        Some(question.to_vec())
    }
}

fn start(url: String, node: u64, members: impl Members) -> Result<Bus, String> {
    let settings = Settings { url, prefix: "throng".to_owned(), node, tls: Tls::default() };
    let (bus, starter) = Bus::new(settings).map_err(|error| error.to_string())?;
    starter.start(members).map_err(|error| error.to_string())?;
    Ok(bus)
}

/// The rights of docs/cluster.md.
fn rights() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cluster.md");
    let page = std::fs::read_to_string(page).unwrap();
    let sharded = page.lines().find(|line| line.starts_with("+ssubscribe ")).unwrap();
    format!("{} {sharded}", documented_user().strip_prefix("throng ").unwrap())
}

#[test]
fn presence_commands_and_counts_reach_other_nodes_with_the_rights_of_the_docs() {
    let Some(cluster) = RedisCluster::start("notes", 3) else { return };
    for server in &cluster.servers {
        server.ask(&format!("ACL SETUSER throng {}", rights()));
    }
    let url = || cluster.url("throng:secret@");
    let notes = [1, 2].map(|_| Notes::default());
    let buses = [1, 2].map(|node| start(url(), node, notes[node as usize - 1].clone()).unwrap());
    let noted = |node: usize, text: &str| notes[node].0.lock().unwrap().iter().any(|at| at == text);
    for channel in (0..8).map(name) {
        let follow = |bus: &Bus| {
            bus.follow(Arc::clone(&channel), None);
            bus.watch(Arc::clone(&channel));
        };
        buses.iter().for_each(follow);
        // The other one may not be subscribed yet.
        let of = &channel;
        eventually("a message reaches the other node", || {
            let mut envelope = Vec::new();
            encode(&Envelope { payload: b"x", ..Envelope::default() }, &mut envelope);
            let (channel, envelope) = (Arc::clone(of), envelope.into());
            let while_down = WhileDown::Buffer;
            assert!(buses[0].publish(Outgoing { channel, envelope, keep: None, while_down }));
            noted(1, &format!("message in {of}"))
        });
        // The first list of members includes a client that joined before the list.
        let mut clients = 0;
        eventually("a join comes", || {
            clients += 1;
            buses[0].enter(Arc::clone(of), clients, "ann".into(), true);
            noted(1, &format!("1 joins {of}"))
        });
        eventually("all are listed", || {
            let listed = block_on(buses[1].presence(Arc::clone(of), 10_000)).unwrap();
            listed.total == clients
        });
        let counted = block_on(buses[1].count(Arc::clone(&channel), Duration::from_secs(5)));
        let counted = counted.unwrap();
        assert_eq!((counted.total, counted.missing), (6, vec![]));
        let command = NodeCommand::Close { code: 4001, reason: "" };
        let close = Control { target: Target::Members(&channel), command };
        let all = Recipients::Of(&channel);
        assert_eq!(block_on(buses[0].control(all, close.encode().unwrap())), Ok(2));
        eventually("the command comes", || noted(1, &format!("{:?}", close.target)));
        (1..=clients).for_each(|client| buses[0].exit(Arc::clone(of), client));
        eventually("a leave comes", || noted(1, &format!("1 leaves {channel}")));
    }
    let command = NodeCommand::Close { code: 4001, reason: "" };
    let close = Control { target: Target::Client(9), command }.encode().unwrap();
    eventually("a command for one node comes", || {
        block_on(buses[0].control(Recipients::Node(2), close.clone())) == Ok(1)
    });
    eventually("it is there", || noted(1, "Client(9)"));
    assert_eq!(block_on(buses[0].control(Recipients::Node(3), close)), Ok(0));
    buses.iter().for_each(Bus::stop);
}

#[test]
fn a_local_message_goes_to_all_nodes_by_way_of_a_master_and_stays_on_its_node_without_one() {
    let Some(mut cluster) = RedisCluster::start("local", 3) else { return };
    let notes = [1, 2].map(|_| Notes::default());
    let buses =
        [1, 2].map(|node| start(cluster.url(""), node, notes[node as usize - 1].clone()).unwrap());
    let came = |node: usize, channel| {
        let text = format!("message in {}", name(channel));
        notes[node].0.lock().unwrap().iter().filter(|at| **at == text).count()
    };
    let publish_with = |node: usize, channel: usize, while_down| {
        let mut envelope = Vec::new();
        encode(&Envelope { payload: b"x", ..Envelope::default() }, &mut envelope);
        let (channel, envelope) = (name(channel), envelope.into());
        buses[node].publish(Outgoing { channel, envelope, keep: None, while_down })
    };
    let publish = |node, channel| assert!(publish_with(node, channel, WhileDown::Local));
    // A node's message comes back to it: it is subscribed.
    (0..CHANNELS).for_each(|channel| {
        buses[1].follow(name(channel), None);
        publish(1, channel);
    });
    eventually("the second node is subscribed", || (0..CHANNELS).all(|at| came(1, at) == 1));
    (0..CHANNELS).for_each(|channel| publish(0, channel));
    eventually("the first message to each partition waits for its connection", || {
        (0..CHANNELS).all(|channel| came(1, channel) == 2)
    });
    (0..CHANNELS).for_each(|channel| buses[0].follow(name(channel), None));
    for master in 0..3 {
        eventually("its replica has all", || cluster.has_replicated(master));
    }
    cluster.servers[1].kill();
    let mut alone = Vec::new();
    eventually("it is noticed", || {
        alone = (0..CHANNELS).filter(|at| !publish_with(0, *at, WhileDown::Refuse)).collect();
        !alone.is_empty()
    });
    assert!(alone.len() < CHANNELS);
    let before: Vec<_> = alone.iter().map(|channel| came(0, *channel)).collect();
    alone.iter().for_each(|channel| publish(0, *channel));
    eventually("members of its node get each", || {
        alone.iter().zip(&before).all(|(channel, before)| came(0, *channel) > *before)
    });
    eventually("all are back", || buses.iter().all(|bus| bus.status().is_up()));
    let before: Vec<_> = alone.iter().map(|channel| came(1, *channel)).collect();
    eventually("messages come to the other node again", || {
        alone.iter().for_each(|channel| publish(0, *channel));
        alone.iter().zip(&before).all(|(channel, before)| came(1, *channel) > *before)
    });
    buses.iter().for_each(Bus::stop);
}

#[test]
fn members_are_listed_in_a_slot_that_is_on_its_way_to_another_master() {
    let Some(cluster) = RedisCluster::start("listed", 3) else { return };
    let buses = [1, 2].map(|node| start(cluster.url(""), node, Notes::default()).unwrap());
    let channel = name(0);
    buses[0].enter(Arc::clone(&channel), 1, "ann".into(), false);
    let list = || buses[1].presence(Arc::clone(&channel), 10);
    let total = || block_on(list()).unwrap().total;
    eventually("it is listed", || total() == 1);
    let keys = |master| cluster.cli_at(master, &["KEYS", &format!("*.w.{channel}")]);
    let from = (0..3).find(|master| !keys(*master).trim().is_empty()).unwrap();
    let key = keys(from).trim().to_owned();
    let slot = cluster.cli_at(from, &["CLUSTER", "KEYSLOT", &key]).trim().to_owned();
    buses[0].exit(Arc::clone(&channel), 1);
    eventually("it is not listed", || total() == 0);
    // Of the two keys of a question one is missing.
    let to = cluster.cli_at((from + 1) % 3, &["CLUSTER", "MYID"]);
    let set = |state: &[&str]| {
        let words = [&["CLUSTER", "SETSLOT", &slot], state].concat();
        assert_eq!(cluster.cli_at(from, &words).trim(), "OK");
    };
    set(&["MIGRATING", to.trim()]);
    let refused = || {
        let info = cluster.cli_at(from, &["INFO", "commandstats"]);
        let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap().trim();
        let count = line.split("rejected_calls=").nth(1).unwrap().split(',').next().unwrap();
        count.parse::<u64>().unwrap()
    };
    let before = refused();
    let listed = list();
    eventually("the master refuses the question", || refused() > before + 2);
    set(&["STABLE"]);
    assert_eq!(block_on(listed).map(|listed| listed.total), Ok(0));
    buses.iter().for_each(Bus::stop);
}

#[test]
fn errors_at_the_start_name_the_setting_the_answer_and_the_remedy() {
    let Some(cluster) = RedisCluster::start("errors", 3) else { return };
    let Some(single) = Redis::start("single", &[]) else { return };
    let fails = |url: String, parts: &[&str]| {
        let error = start(url.clone(), 1, Recorder(Arc::new([]))).map(drop).unwrap_err();
        assert!(error.contains("cluster.url"), "{url}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{url}: {error}");
        assert!(!error.contains("secret"), "{error}");
    };
    let first = cluster.servers[0].url("");
    fails(first, &["is in cluster mode", "redis-cluster://"]);
    let single = format!("127.0.0.1:{}", single.port());
    fails(format!("redis-cluster://{single}"), &["not in cluster mode", "redis://"]);
    fails("redis-cluster://127.0.0.1:1".to_owned(), &["127.0.0.1:1", "do they run"]);
    let rights = rights() + " ";
    for (right, part) in [
        ("+ssubscribe", "ssubscribe"),
        ("+spublish", "spublish"),
        ("+cluster|slots", "cluster|slots"),
        ("+xadd", "+xadd"),
        ("+sunsubscribe", "sunsubscribe"),
        ("&throng.*", "channel"),
    ] {
        let without = rights.replace(&format!(" {right} "), " ");
        assert_ne!(without, rights, "{right} is in the docs");
        for server in &cluster.servers {
            server.ask("ACL DELUSER throng");
            server.ask(&format!("ACL SETUSER throng {without}"));
        }
        fails(cluster.url("throng:secret@"), &[part, "docs/cluster.md"]);
    }
    fails(cluster.url("throng:wrong@"), &["user and password"]);
    let braces =
        Settings { url: cluster.url(""), prefix: "a{b}".to_owned(), node: 1, tls: Tls::default() };
    assert!(Bus::new(braces).unwrap_err().to_string().contains("cluster.prefix"));
}
