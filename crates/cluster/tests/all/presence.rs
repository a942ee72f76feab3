//! Members of channels on several nodes, which end, are taken for dead, or lose their Redis server.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use throng_cluster::redis::{AskError, Bus, Listed, Members, Settings, Tls, block_on};
use throng_cluster::{Announcement, Control, Place, Tail};
use throng_testkit::{Redis, eventually};

/// A join or leave: whether it is a join, node, client and information.
type Reported = (bool, u64, u64, String);

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Reported>>>);

impl Members for Recorder {
    fn begin(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>, _: bool) {}
    fn deliver(&mut self, _: &Arc<str>, _: Place, _: &[u8]) {}
    fn refill(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>) {}
    fn live(&mut self, _: &Arc<str>) {}
    fn publish(&mut self, _: &str, _: &[u8]) {}

    fn end(&mut self, _: &Arc<str>) -> bool {
        true
    }

    fn control(&mut self, _: Control<'_>) {
        unreachable!("no node sends commands here");
    }

    fn subscribers(&mut self, _: &str) -> u64 {
        unreachable!("no node asks here");
    }

    fn presence(&mut self, channel: &str, announcement: Announcement<'_>) {
        assert_eq!(channel, "a");
        let Announcement { is_join, node, client, info } = announcement;
        self.0.lock().unwrap().push((is_join, node, client, info.to_owned()));
    }
}

struct Node {
    bus: Bus,
    reported: Recorder,
}

impl Node {
    fn start(redis: &Redis, node: u64) -> Self {
        Self::start_as(redis, node, "")
    }

    fn start_as(redis: &Redis, node: u64, user: &str) -> Self {
        let settings =
            Settings { url: redis.url(user), prefix: "test".to_owned(), node, tls: Tls::default() };
        let (bus, starter) = Bus::new(settings).unwrap();
        let reported = Recorder::default();
        starter.start(reported.clone()).unwrap();
        bus.follow("a".into(), None);
        bus.watch("a".into());
        let node = Self { bus, reported };
        // Its subscription comes before its question.
        node.list("a", 1).unwrap();
        node
    }

    fn enter(&self, client: u64, info: &str) {
        self.bus.enter("a".into(), client, info.into(), true);
    }

    fn exit(&self, client: u64) {
        self.bus.exit("a".into(), client);
    }

    fn list(&self, channel: &str, most: usize) -> Result<Listed, AskError> {
        block_on(self.bus.presence(channel.into(), most))
    }

    /// Members on other nodes.
    fn others(&self) -> BTreeSet<(u64, u64, String)> {
        let Ok(listed) = self.list("a", 1_000) else { return BTreeSet::new() };
        assert_eq!(listed.total, listed.members.len() as u64);
        let members = listed.members.into_iter();
        members.map(|member| (member.node, member.client, member.info.to_string())).collect()
    }

    fn reported(&self) -> Vec<Reported> {
        self.reported.0.lock().unwrap().clone()
    }

    /// The joins (true) and leaves that it has received for one client.
    fn reported_of(&self, node: u64, client: u64) -> Vec<bool> {
        let of = |(_, other, who, _): &Reported| (*other, *who) == (node, client);
        self.reported()
            .iter()
            .filter(|reported| of(reported))
            .map(|(is_join, ..)| *is_join)
            .collect()
    }

    /// Ends the node without leaves of its members.
    fn kill(self) -> Recorder {
        self.bus.stop();
        self.reported
    }
}

/// Starts a node that has its own user at the server.
fn start_alone(redis: &Redis, node: u64) -> Node {
    redis.ask(&format!("ACL SETUSER node{node} on >secret ~* &* +@all"));
    Node::start_as(redis, node, &format!("node{node}:secret@"))
}

/// Makes the server close the node's connections, and refuse new ones until [`let_in`].
fn shut_out(redis: &Redis, number: u64, node: &Node) {
    redis.ask(&format!("ACL SETUSER node{number} off"));
    redis.ask(&format!("CLIENT KILL USER node{number}"));
    eventually("it is noticed", || !node.bus.status().is_up());
}

fn let_in(redis: &Redis, number: u64) {
    redis.ask(&format!("ACL SETUSER node{number} on"));
}

/// Returns how often the server has executed each command.
fn all_calls(server: &Redis) -> BTreeMap<String, u64> {
    let mut connection = redis::Client::open(server.url("")).unwrap().get_connection().unwrap();
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_"));
    let counts = lines.map(|line| {
        let (name, figures) = line.split_once(":calls=").unwrap();
        (name.to_owned(), figures.split(',').next().unwrap().parse().unwrap())
    });
    counts.collect()
}

fn calls(server: &Redis, command: &str) -> u64 {
    all_calls(server).get(command).copied().unwrap_or_default()
}

/// Makes the server list client 7 as a member of a node, and reports its join.
fn plant(redis: &Redis, node: u64) {
    let client = "0000000000000007";
    redis.ask(&format!("HSET test.p.{node:016x}.a {client} ann"));
    redis.ask(&format!("SADD test.w.a {node:016x}"));
    redis.ask(&format!("PUBLISH test.m.a \"\\x01\\x02j{node:016x}{client}ann\""));
}

fn members<const N: usize>(members: [(u64, u64, &str); N]) -> BTreeSet<(u64, u64, String)> {
    members.map(|(node, client, info)| (node, client, info.to_owned())).into()
}

#[test]
fn nodes_list_each_others_members_and_are_reported_of_joins_and_leaves_once() {
    let Some(redis) = Redis::start("listed", &[]) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    one.enter(7, "ann \"a\"");
    one.enter(8, "");
    two.enter(7, "bob");
    // A channel whose members get no joins and leaves.
    one.bus.enter("b".into(), 7, "ann".into(), false);
    eventually("they see each other", || {
        two.others() == members([(1, 7, "ann \"a\""), (1, 8, "")])
            && one.others() == members([(2, 7, "bob")])
    });
    eventually("the other channel's is listed", || two.list("b", 9).unwrap().total == 1);
    one.exit(7);
    eventually("it has left", || two.others() == members([(1, 8, "")]));
    for node in [&one, &two] {
        eventually("all is reported", || node.reported().len() == 4);
        assert_eq!(node.reported_of(1, 7), [true, false]);
        assert_eq!((node.reported_of(1, 8), node.reported_of(2, 7)), (vec![true], vec![true]));
    }
    assert!(one.reported().contains(&(false, 1, 7, "ann \"a\"".to_owned())), "a leave knows who");
    one.exit(8);
    one.bus.exit("b".into(), 7);
    two.exit(7);
    one.kill();
    two.kill();
    // The epoch is left.
    assert_eq!(redis.ask("DBSIZE"), ":1", "nodes that end leave nothing behind");
}

#[test]
fn members_of_a_killed_node_leave_once() {
    let Some(redis) = Redis::start("dead", &[]) else { return };
    let [one, two, three] = [1, 2, 3].map(|node| Node::start(&redis, node));
    // More than one call removes.
    (0..1_200).for_each(|client| one.enter(client, "x"));
    one.bus.enter("b".into(), 7, "".into(), false);
    two.enter(1, "y");
    for node in [&two, &three] {
        eventually("all have joined", || node.reported().len() == 1_201);
    }
    one.kill();
    // Each heartbeat reads the list of nodes once.
    let beats = calls(&redis, "smembers");
    eventually("it is removed", || redis.ask("EXISTS test.i.0000000000000001") == ":0");
    // A fifth heartbeat in a row is 12 seconds after the first.
    assert!(calls(&redis, "smembers") <= beats + 2 * 5);
    for node in [&two, &three] {
        eventually("all have left", || node.reported().len() >= 2_401);
    }
    eventually("nothing is left of it", || {
        redis.ask("SISMEMBER test.nodes 0000000000000001") == ":0"
    });
    assert_eq!((three.others(), two.others()), (members([(2, 1, "y")]), members([])));
    assert_eq!(redis.ask("EXISTS test.i.0000000000000001 test.w.b"), ":0");
    for node in [two, three] {
        assert_eq!(node.reported().len(), 2_401);
        (0..1_200).for_each(|client| assert_eq!(node.reported_of(1, client), [true, false]));
        node.kill();
    }
}

#[test]
fn a_node_writes_one_key_at_each_sign_of_life_whatever_its_members() {
    let Some(redis) = Redis::start("steady", &[]) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    (0..1_000).for_each(|client| one.enter(client, "x"));
    two.enter(1, "y");
    for node in [&one, &two] {
        eventually("all have joined", || node.reported().len() == 1_001);
    }
    let before = all_calls(&redis);
    let mut after = BTreeMap::new();
    eventually("signs of life are shown", || {
        after = all_calls(&redis);
        after["set"] >= before["set"] + 6
    });
    let delta = |name: &str| after[name] - before.get(name).copied().unwrap_or_default();
    // One script for each heartbeat; the probes of delivery and this test's questions come on top.
    assert_eq!(delta("evalsha"), delta("set"));
    let of_beats = ["set", "sadd", "exists", "get", "smembers", "evalsha", "pttl"];
    let besides = ["publish", "info", "hello", "client|setinfo"];
    for name in after.keys().filter(|name| delta(name) > 0) {
        assert!(of_beats.contains(&&**name) || besides.contains(&&**name), "{name}");
    }
}

#[test]
fn a_node_that_was_taken_for_dead_and_lives_brings_its_members_back() {
    let Some(redis) = Redis::start("sleeper", &[]) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    one.enter(1, "ann");
    one.enter(2, "bob");
    eventually("they have joined", || two.reported().len() == 2);
    eventually("its members leave", || {
        redis.ask("DEL test.n.0000000000000001");
        two.reported_of(1, 1).contains(&false) && two.reported_of(1, 2).contains(&false)
    });
    one.exit(2);
    eventually("who is there is back", || two.others() == members([(1, 1, "ann")]));
    eventually("it is reported", || two.reported_of(1, 1).last() == Some(&true));
    for (client, is_there) in [(1, true), (2, false)] {
        eventually("the last is right", || two.reported_of(1, client).last() == Some(&is_there));
        let reported = two.reported_of(1, client);
        assert!(reported[0] && reported.windows(2).all(|pair| pair[0] != pair[1]), "{reported:?}");
    }
}

#[test]
fn after_an_outage_that_lasts_nodes_have_the_time_to_come_back() {
    let Some(redis) = Redis::start("outage", &[]) else { return };
    let [one, two, three] = [1, 2, 3].map(|node| start_alone(&redis, node));
    one.enter(1, "ann");
    two.enter(1, "bob");
    three.enter(1, "cid");
    for node in [&one, &two] {
        eventually("they have joined", || node.reported().len() == 3);
    }
    three.kill();
    for (number, node) in [(1, &one), (2, &two)] {
        shut_out(&redis, number, node);
    }
    // So long that all are taken for dead.
    redis.ask("DEL test.n.0000000000000001 test.n.0000000000000002 test.n.0000000000000003");
    let_in(&redis, 1);
    // The effects of the node's first heartbeat precede its writes.
    one.enter(2, "new");
    eventually("it is back", || one.reported_of(1, 2) == [true]);
    assert_eq!(one.reported_of(2, 1), [true]);
    let all = members([(2, 1, "bob"), (3, 1, "cid")]);
    assert_eq!(one.others(), all, "those that may come back are listed");
    let_in(&redis, 2);
    eventually("the other one is back", || two.bus.status().is_up());
    eventually("one that is not is removed", || one.reported_of(3, 1) == [true, false]);
    for node in [&one, &two] {
        assert_eq!((node.reported_of(1, 1), node.reported_of(2, 1)), (vec![true], vec![true]));
    }
    assert_eq!(one.others(), members([(2, 1, "bob")]));
}

#[test]
fn a_node_is_reported_of_what_it_has_missed_when_it_is_back() {
    let Some(redis) = Redis::start("missed", &[]) else { return };
    let (one, two) = (Node::start(&redis, 1), start_alone(&redis, 2));
    for (client, info) in [(1, "stays"), (2, "goes"), (3, "old")] {
        one.enter(client, info);
    }
    two.enter(1, "own");
    two.enter(2, "leaves");
    for node in [&one, &two] {
        eventually("all have joined", || node.reported().len() == 5);
    }
    shut_out(&redis, 2, &two);
    one.exit(2);
    one.exit(3);
    eventually("they have left", || one.reported_of(1, 3) == [true, false]);
    one.enter(3, "new");
    one.enter(4, "comes");
    two.exit(2);
    eventually("they have joined", || one.reported_of(1, 4) == [true]);
    let_in(&redis, 2);
    let expected = [(1, 2, "goes"), (1, 3, "old"), (2, 2, "leaves")];
    for (node, client, info) in expected {
        let left = (false, node, client, info.to_owned());
        eventually("a leave is reported", || two.reported().contains(&left));
    }
    for (client, info) in [(3, "new"), (4, "comes")] {
        let joined = (true, 1, client, info.to_owned());
        eventually("a join is reported", || two.reported().contains(&joined));
    }
    assert_eq!(two.reported_of(1, 3), [true, false, true]);
    // Five joins, three leaves, two joins.
    assert_eq!(two.reported().len(), 10);
    one.exit(4);
    eventually("it goes on", || two.reported_of(1, 4) == [true, false]);
}

#[test]
fn members_of_a_node_that_ended_while_data_was_lost_leave() {
    let Some(mut redis) = Redis::start("ended", &[]) else { return };
    let [one, two, three] = [1, 2, 3].map(|node| Node::start(&redis, node));
    two.enter(1, "bob");
    three.enter(1, "cid");
    for node in [&one, &two] {
        eventually("they have joined", || node.reported().len() == 2);
    }
    redis.kill();
    for node in [&one, &two, &three] {
        eventually("it is noticed", || !node.bus.status().is_up());
    }
    three.kill();
    redis.run();
    for node in [&one, &two] {
        eventually("it has left", || node.reported_of(3, 1) == [true, false]);
        assert_eq!(node.reported_of(2, 1), [true]);
    }
}

#[test]
fn a_node_that_was_removed_and_writes_before_it_knows_is_removed_again() {
    let Some(redis) = Redis::start("again", &[]) else { return };
    let one = Node::start(&redis, 1);
    eventually("it has shown that it lives", || {
        redis.ask("SISMEMBER test.nodes 0000000000000001") == ":1"
    });
    // The state after a removal by another node.
    redis.ask("SREM test.nodes 0000000000000001");
    one.enter(1, "ann");
    eventually("it has joined", || redis.ask("EXISTS test.i.0000000000000001") == ":1");
    assert_eq!(redis.ask("SISMEMBER test.nodes 0000000000000001"), ":1", "it can be found");
}

#[test]
fn a_node_that_ends_without_its_last_leaves_at_the_server_is_removed() {
    let Some(redis) = Redis::start("leaves", &[]) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    // The state after a failover to a server that had not yet received the leave.
    redis.ask("HSET test.i.0000000000000001 a 1");
    plant(&redis, 1);
    one.kill();
    eventually("it has left", || two.reported_of(1, 7) == [true, false]);
    eventually("nothing is left of it", || {
        redis.ask("SISMEMBER test.nodes 0000000000000001") == ":0"
    });
    two.kill();
    assert_eq!(redis.ask("DBSIZE"), ":1", "the epoch is left");
}

#[test]
fn a_server_that_comes_back_empty_has_all_members_again_and_none_joins_twice() {
    let Some(mut redis) = Redis::start("forgot", &[]) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    for client in [1, 2, 3] {
        one.enter(client, "x");
    }
    eventually("they have joined", || two.reported().len() == 3);
    redis.kill();
    eventually("it is noticed", || !one.bus.status().is_up() && !two.bus.status().is_up());
    one.exit(1);
    one.enter(4, "new");
    one.enter(5, "came and went");
    one.exit(5);
    redis.run();
    let expected = members([(1, 2, "x"), (1, 3, "x"), (1, 4, "new")]);
    eventually("all are there", || two.others() == expected);
    eventually("what has changed is reported", || {
        two.reported_of(1, 1) == [true, false] && two.reported_of(1, 4) == [true]
    });
    assert_eq!((two.reported_of(1, 2), two.reported_of(1, 3)), (vec![true], vec![true]));
    assert_eq!(two.reported_of(1, 5), [true; 0]);
    redis.ask("FLUSHALL");
    eventually("all are there again", || two.others() == expected);
    one.exit(2);
    eventually("it has left", || two.reported_of(1, 2) == [true, false]);
    assert_eq!(two.reported_of(1, 3), [true]);
}

#[test]
fn changes_while_the_server_is_away_are_written_when_it_is_back() {
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut redis) = Redis::start("away", &arguments) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    one.enter(1, "stays");
    one.enter(2, "goes");
    eventually("they have joined", || two.reported().len() == 2);
    redis.kill();
    eventually("it is noticed", || !one.bus.status().is_up() && !two.bus.status().is_up());
    one.exit(2);
    one.enter(3, "comes");
    assert!(matches!(one.list("a", 9), Err(AskError::NoAnswer)), "a question has a time limit");
    // The server has a member unknown to its node, as in an old copy of the data.
    redis.run();
    redis.ask("HSET test.p.0000000000000001.a 0000000000000009 old");
    redis.ask("SCRIPT FLUSH");
    redis.ask("CLIENT KILL TYPE normal");
    let expected = members([(1, 1, "stays"), (1, 3, "comes")]);
    eventually("all is right", || two.others() == expected);
    assert_eq!(two.reported_of(1, 1), [true]);
}

#[test]
fn a_list_is_bounded_in_members_and_in_bytes() {
    let Some(redis) = Redis::start("bounded", &[]) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    let long = "x".repeat(100_000);
    (0..40).for_each(|client| one.bus.enter("b".into(), client, long.as_str().into(), false));
    (0..2_000).for_each(|client| one.bus.enter("c".into(), client, "".into(), false));
    eventually("all are there", || {
        two.list("b", 1).unwrap().total == 40 && two.list("c", 1).unwrap().total == 2_000
    });
    let reads = calls(&redis, "hmget");
    assert_eq!(two.list("b", 1_000).unwrap().members.len(), 10, "those that fit in 1 MiB");
    assert_eq!(calls(&redis, "hmget"), reads + 1, "others are not read");
    let listed = two.list("c", 1_500).unwrap();
    let different: BTreeSet<_> = listed.members.iter().map(|member| member.client).collect();
    assert_eq!(different.len(), 1_500);
}

#[test]
fn a_server_that_refuses_to_write_is_asked_again_and_others_go_on() {
    let Some(redis) = Redis::start("refuses", &[]) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    redis.ask("SET test.w.a text");
    one.enter(1, "ann");
    one.bus.enter("b".into(), 1, "ann".into(), false);
    eventually("the failure is counted", || one.bus.status().snapshot().failed_presence > 1);
    assert_eq!(two.list("b", 9).unwrap().total, 1);
    assert!(matches!(two.list("a", 9), Err(AskError::Failed(_))));
    redis.ask("DEL test.w.a");
    eventually("it is written", || two.others() == members([(1, 1, "ann")]));
    assert_eq!(one.bus.status().snapshot().reconnects, 0);
}

#[test]
fn a_node_that_cannot_be_removed_does_not_keep_others() {
    let Some(redis) = Redis::start("kept", &[]) else { return };
    let one = Node::start(&redis, 1);
    let dead: Vec<u64> = (10..18).collect();
    for node in &dead {
        redis.ask(&format!("SADD test.nodes {node:016x}"));
        let channels = format!("test.i.{node:016x}");
        if node % 2 == 0 {
            redis.ask(&format!("SET {channels} text"));
        } else {
            redis.ask(&format!("HSET {channels} a 1"));
            plant(&redis, *node);
        }
    }
    for node in dead.iter().filter(|node| *node % 2 == 1) {
        eventually("it is removed", || one.reported_of(*node, 7) == [true, false]);
    }
    // Their order is random: the others may come last.
    eventually("those that stay are counted", || one.bus.status().snapshot().failed_presence > 0);
    assert_eq!(one.bus.status().snapshot().reconnects, 0);
}

#[test]
fn a_comparison_with_the_server_that_it_refuses_is_made_again() {
    let Some(redis) = Redis::start("compared", &[]) else { return };
    let [one, two] = [1, 2].map(|node| Node::start(&redis, node));
    redis.ask("SET test.i.0000000000000001 text");
    // The node finds that others took it for dead.
    redis.ask("DEL test.n.0000000000000001");
    eventually("it is refused", || one.bus.status().snapshot().failed_presence > 0);
    plant(&redis, 1);
    redis.ask("HSET other a 1");
    redis.ask("RENAME other test.i.0000000000000001");
    eventually("who is no member has left", || two.reported_of(1, 7) == [true, false]);
    assert_eq!(two.others(), members([]));
}
