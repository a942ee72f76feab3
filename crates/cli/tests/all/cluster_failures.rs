//! Servers that share channels. One is killed or suspended: tests presence, and the messages of its
//! clients at other servers.
//!
//! Small by default. With `THRONG_CLUSTER_CLIENTS=9000` one test has this many clients behind a
//! balancer; each needs a descriptor here and two in the balancer.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(all(feature = "redis", unix))]

use std::net::SocketAddr;

use serde_json::Value;
use throng_testkit::{Redis, eventually};

use crate::support::operated::{Operated, get};
use crate::support::{Client, Got, Served};

/// The words of a server of the cluster.
fn words(redis: &Redis) -> Vec<String> {
    let rules = "chat.>=close,history=1000/5m,presence=true,join_leave=true;\
                 log.>=close,history=1000/5m;>=close";
    // These clients do not answer pings.
    let settings = [format!("channels={rules}"), "heartbeat.interval=0s".to_owned()];
    let mut words = vec!["--cluster".to_owned(), redis.url("")];
    words.extend(settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]));
    words
}

fn operated(redis: &Redis) -> Operated {
    let words = words(redis);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Operated::start(&[&["--admin", "127.0.0.1:0"], &words[..]].concat())
}

fn served(redis: &Redis) -> Served {
    let words = words(redis);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Served::start(&[&["--listen", "127.0.0.1:0"], &words[..]].concat())
}

/// A join or leave of a client: whether it joined, its id and its name.
type Change = (bool, String, String);

/// A client in a channel with history, which numbers its messages.
struct Member {
    client: Client,
    epoch: String,
    at: u64,
    tag: String,
    is_recovered: bool,
    texts: Vec<String>,
    changes: Vec<Change>,
}

impl Member {
    fn open(address: SocketAddr, target: &str, since: &str) -> Self {
        let mut client = Client::connect(address, &format!("{target}since={since}"));
        let Got::Text(line) = client.next() else { panic!("no position") };
        let line: Value = serde_json::from_str(&line).unwrap();
        let epoch = line["epoch"].as_str().unwrap().to_owned();
        let is_recovered = line["recovered"].as_bool().unwrap();
        let part = |number: usize| since.split(':').nth(number).unwrap();
        let (at, tag) = match is_recovered {
            true => (part(1).parse().unwrap(), part(2).to_owned()),
            false => (line["offset"].as_u64().unwrap(), line["tag"].as_str().unwrap().to_owned()),
        };
        Self { client, epoch, at, tag, is_recovered, texts: Vec::new(), changes: Vec::new() }
    }

    fn join(address: SocketAddr, name: &str) -> Self {
        Self::open(address, &format!("/ws/chat.a?info={name}&"), "")
    }

    /// The client after it has come back to a server.
    fn back(&self, address: SocketAddr, name: &str) -> Self {
        Self::open(address, &format!("/ws/chat.a?info={name}&"), &self.position())
    }

    fn position(&self) -> String {
        format!("{}:{}:{}", self.epoch, self.at, self.tag)
    }

    /// Reads the next message; false: the connection has ended.
    fn read(&mut self) -> bool {
        let text = match self.client.next() {
            Got::Text(text) => text,
            Got::End | Got::Close(..) => return false,
            other => panic!("no text: {other:?}"),
        };
        if text.starts_with('{') {
            let change: Value = serde_json::from_str(&text).unwrap();
            let is_join = change["join"].is_string();
            let id = if is_join { &change["join"] } else { &change["leave"] };
            let of = |value: &Value| value.as_str().unwrap().to_owned();
            self.changes.push((is_join, of(id), of(&change["info"])));
        } else {
            let (place, text) = text.split_once(' ').unwrap();
            let (offset, tag) = place.split_once(':').unwrap();
            self.at += 1;
            self.tag = tag.to_owned();
            assert_eq!(offset.parse(), Ok(self.at), "in order, each once");
            self.texts.push(text.to_owned());
        }
        true
    }

    fn read_until(&mut self, condition: impl Fn(&Self) -> bool) {
        while !condition(self) {
            assert!(self.read(), "the connection has ended");
        }
    }

    fn await_text(&mut self, text: &str) {
        self.read_until(|member| member.texts.last().is_some_and(|last| last == text));
    }

    /// The joins (true) and leaves of clients of this name, by their ids.
    fn changes_of(&self, name: &str) -> Vec<(String, Vec<bool>)> {
        let mut of: Vec<(String, Vec<bool>)> = Vec::new();
        for (is_join, id, _) in self.changes.iter().filter(|(.., who)| who == name) {
            match of.iter_mut().find(|(other, _)| other == id) {
                Some((_, changes)) => changes.push(*is_join),
                None => of.push((id.clone(), vec![*is_join])),
            }
        }
        of
    }

    fn count(&self, is_join: bool) -> usize {
        self.changes.iter().filter(|(join, ..)| *join == is_join).count()
    }
}

/// The names of the members of a channel, as a server lists them.
fn names(server: &Operated) -> Vec<String> {
    let answer = get(server.admin, "/presence/chat.a", "");
    let answer: Value = serde_json::from_str(answer.text()).unwrap();
    let clients = answer["clients"].as_array().unwrap();
    let mut names: Vec<_> =
        clients.iter().map(|one| one["info"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Heartbeats so far: each server sends one every three seconds, and reads all servers then.
fn beats(redis: &Redis) -> u64 {
    redis.calls("smembers")
}

#[test]
fn clients_of_a_killed_server_leave_once_and_get_elsewhere_what_they_missed() {
    let Some(redis) = Redis::start("killed-node", &[]) else { return };
    let others = [operated(&redis), operated(&redis)];
    let killed = served(&redis);
    let mut stay: Vec<_> =
        (0..2).map(|at: usize| Member::join(others[at].address, &format!("stays{at}"))).collect();
    let goes = |at: usize| format!("goes{at}");
    let mut gone: Vec<_> = (0..10).map(|at| Member::join(killed.addresses[0], &goes(at))).collect();
    stay[0].read_until(|member| member.count(true) >= 11);
    stay[1].read_until(|member| member.count(true) >= 10);
    let mut writer = Client::connect(others[0].address, "/ws/chat.a?info=writer");
    writer.send_text("before");
    for member in gone.iter_mut().chain(&mut stay) {
        member.await_text("before");
    }
    let before = beats(&redis);
    killed.signal("-KILL");
    for member in &mut gone {
        while member.read() {}
    }
    for at in 0..10 {
        writer.send_text(&format!("missed {at}"));
    }
    let mut back: Vec<_> =
        (0..10).map(|at| gone[at].back(others[at % 2].address, &format!("back{at}"))).collect();
    for member in &mut back {
        assert!(member.is_recovered);
        member.await_text("missed 9");
        let missed = (0..10).map(|at| format!("missed {at}"));
        assert!(member.texts.iter().cloned().eq(missed), "{:?}", member.texts);
    }
    for member in &mut stay {
        member.read_until(|member| member.count(false) >= 10);
    }
    // Of both servers, in 12 s, including an early one for a possibly dead server.
    assert!(beats(&redis) <= before + 2 * 6, "{} signs of life", beats(&redis) - before);
    eventually("nothing is left of it", || redis.ask("SCARD throng.nodes") == ":2");
    writer.send_text("after");
    for member in &mut stay {
        member.await_text("after");
        assert_eq!(member.count(false), 10);
        for at in 0..10 {
            let [(_, changes)] = &member.changes_of(&goes(at))[..] else { panic!("other ids") };
            assert_eq!(changes, &[true, false], "{}", goes(at));
            let [(_, changes)] = &member.changes_of(&format!("back{at}"))[..] else { panic!() };
            assert_eq!(changes, &[true]);
        }
    }
    let mut expected: Vec<_> = (0..10).map(|at| format!("back{at}")).collect();
    expected.extend(["stays0", "stays1", "writer"].map(str::to_owned));
    for server in &others {
        assert_eq!(names(server), expected);
    }
}

/// Joins of others come while Redis is asked for a member's position.
#[test]
fn the_first_line_is_the_position_while_others_join() {
    let Some(redis) = Redis::start("first-line", &[]) else { return };
    let servers = [served(&redis), served(&redis)];
    for channel in 0..50 {
        let members = [0, 1].map(|at| {
            let target = format!("/ws/chat.{channel}?info=m{at}&since=");
            Client::connect(servers[at].addresses[0], &target)
        });
        for mut member in members {
            let Got::Text(line) = member.next() else { panic!("no position") };
            let line: Value = serde_json::from_str(&line).unwrap();
            assert!(line["epoch"].is_string(), "{line}");
        }
    }
}

#[test]
fn a_server_that_was_suspended_catches_up_and_brings_back_only_who_is_there() {
    let Some(redis) = Redis::start("suspended-node", &[]) else { return };
    let others = [operated(&redis), operated(&redis)];
    let sleeper = served(&redis);
    let mut stay: Vec<_> =
        (0..2).map(|at: usize| Member::join(others[at].address, &format!("stays{at}"))).collect();
    let of_sleeper = |name: &str| Member::join(sleeper.addresses[0], name);
    let mut asleep: Vec<_> = ["a", "b", "c"].map(of_sleeper).into();
    let dead: Vec<_> = ["x", "y", "z"].map(of_sleeper).into();
    // Its messages here exceed the kernel's buffers, so the server at the other end closes it. They
    // are not part of a history.
    let mut noise = Client::connect(others[0].address, "/ws/noise");
    let _quiet = Client::connect(sleeper.addresses[0], "/ws/noise");
    let followers =
        || redis.ask("EVAL \"return redis.call('PUBSUB','NUMSUB','throng.m.noise')[2]\" 0");
    eventually("both follow it", || followers() == ":2");
    let mut writer = Client::connect(others[0].address, "/ws/chat.a?info=writer");
    writer.send_text("before");
    for member in asleep.iter_mut().chain(&mut stay) {
        member.await_text("before");
        assert!(member.changes.len() >= 3);
    }
    redis.ask("CONFIG SET client-output-buffer-limit \"pubsub 64kb 0 0\"");
    let before = beats(&redis);
    sleeper.signal("-STOP");
    drop(dead);
    for member in &mut stay {
        member.read_until(|member| member.count(false) == 6);
    }
    assert!(beats(&redis) <= before + 2 * 6, "{} signs of life", beats(&redis) - before);
    writer.send_text("missed");
    let large = "x".repeat(60_000);
    eventually("it is cut off", || {
        noise.send_text(&large);
        followers() == ":1"
    });
    eventually("it has slept for 30 s", || beats(&redis) >= before + 2 * 10);
    let mut expected = vec!["stays0", "stays1", "writer"];
    assert_eq!(names(&others[0]), expected, "none of a server that is dead");
    sleeper.signal("-CONT");
    for member in &mut asleep {
        member.await_text("missed");
        assert_eq!(member.texts, ["before", "missed"]);
    }
    expected.splice(0..0, ["a", "b", "c"]);
    eventually("who is there is listed again", || names(&others[1]) == expected);
    asleep[0].client.send_text("awake");
    for member in stay.iter_mut().chain(&mut asleep[1..]) {
        member.await_text("awake");
    }
    for member in &stay {
        for (name, is_there) in [("a", true), ("b", true), ("c", true)].into_iter().chain([
            ("x", false),
            ("y", false),
            ("z", false),
        ]) {
            let [(_, changes)] = &member.changes_of(name)[..] else { panic!("other ids") };
            let is_paired = changes[0] && changes.windows(2).all(|pair| pair[0] != pair[1]);
            assert!(is_paired && changes.last() == Some(&is_there), "{name}: {changes:?}");
            assert!(changes[..2] == [true, false], "{name} has left with its server: {changes:?}");
        }
    }
}

/// Clients of one thread, each with its channel.
#[cfg(feature = "balance")]
type Group = Vec<(usize, Member)>;

/// Runs some work for all clients, on one thread for each group of them.
#[cfg(feature = "balance")]
fn each(groups: &mut [Group], work: impl Fn(usize, &mut Member) + Sync) {
    std::thread::scope(|scope| {
        for group in groups {
            scope.spawn(|| group.iter_mut().for_each(|(channel, member)| work(*channel, member)));
        }
    });
}

#[test]
#[cfg(feature = "balance")]
fn clients_of_a_killed_server_all_come_back_through_the_balancer() {
    use std::sync::Mutex;
    use std::time::Instant;

    const CHANNELS: usize = 20;
    const THREADS: usize = 16;
    let Some(redis) = Redis::start("killed-behind", &[]) else { return };
    let wanted = std::env::var("THRONG_CLUSTER_CLIENTS");
    let clients = wanted.map_or(600, |number| number.parse().expect("a number of clients"));
    throng_io::limits::prepare_descriptors(clients + 200).unwrap();
    let servers = [served(&redis), served(&redis), served(&redis)];
    let backends = servers.each_ref().map(|server| server.addresses[0].to_string());
    let mut command = crate::support::throng();
    command.args(["balance", "--shards", "1", "--listen", "127.0.0.1:0"]);
    command.args(["--set", "shutdown.window=0", "--set", "max_connections_per_address=0"]);
    command.args(backends.iter().flat_map(|backend| ["--backend", backend]));
    let balancer = Served::spawn(command.stderr(std::process::Stdio::null()));
    let through = balancer.addresses[0];
    let target = |channel: usize| format!("/ws/log.{channel}?");
    let mut groups: Vec<Group> = (0..THREADS).map(|_| Vec::new()).collect();
    std::thread::scope(|scope| {
        for (number, group) in groups.iter_mut().enumerate() {
            scope.spawn(move || {
                for at in (number..clients).step_by(THREADS) {
                    let channel = at / THREADS % CHANNELS;
                    group.push((channel, Member::open(through, &target(channel), "")));
                }
            });
        }
    });
    let mut writers: Vec<_> = (0..CHANNELS)
        .map(|channel| Client::connect(servers[0].addresses[0], &target(channel)))
        .collect();
    let mut publish = |text: &str| writers.iter_mut().for_each(|writer| writer.send_text(text));
    publish("before");
    each(&mut groups, |_, member| member.await_text("before"));
    // Each read of a history calls this once, and so does each publication.
    let before = redis.calls("hmget");
    servers[2].signal("-KILL");
    let killed = Instant::now();
    publish("missed");
    let times = Mutex::new(Vec::new());
    each(&mut groups, |channel, member| {
        while member.texts.last().is_none_or(|text| text != "missed") {
            if !member.read() {
                let since = member.position();
                let mut back = Member::open(through, &target(channel), &since);
                assert!(back.is_recovered);
                assert!(back.epoch == member.epoch && back.at == member.at);
                back.await_text("missed");
                times.lock().unwrap().push(killed.elapsed());
                *member = back;
            }
        }
    });
    let reads = redis.calls("hmget") - before - CHANNELS as u64;
    assert!(reads <= 2 * CHANNELS as u64, "{reads} reads for {CHANNELS} channels of 2 servers");
    publish("after");
    each(&mut groups, |_, member| {
        member.await_text("after");
        let is_back = member.texts.len() == 2;
        let all = ["before", "missed", "after"];
        assert_eq!(member.texts, all[usize::from(is_back)..], "each once");
    });
    let mut times = times.into_inner().unwrap();
    times.sort();
    assert!(times.len() >= clients / 6, "only {} have come back", times.len());
    let [half, most] = [50, 99].map(|part| times[(times.len() * part / 100).min(times.len() - 1)]);
    println!(
        "{} of {clients} clients have come back: half within {half:?}, 99 % within {most:?} of the \
         server's end; {reads} reads of histories",
        times.len()
    );
}
