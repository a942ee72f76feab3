//! Servers whose Redis refuses messages, or is away: each publisher is notified of every lost
//! message, and no other client is affected.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(all(feature = "redis", unix))]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;
use throng_proto::ws::Opcode;
use throng_testkit::{Redis, eventually};

use crate::support::{Answer, Client, Got, Served, exchange};

/// Arguments for a server that is killed: members would learn of lost data.
const KEEPS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn serve(url: &str, channels: &[&str]) -> Served {
    let words = ["--listen", "127.0.0.1:0", "--set", "public_metrics=true", "--cluster", url];
    let rules = channels.iter().flat_map(|rule| ["--channel", rule]);
    Served::start(&words.into_iter().chain(rules).collect::<Vec<_>>())
}

fn get(server: &Served, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let Answer { head, body } = exchange(&mut server.dial(), &request);
    format!("{} {}", &head[9..12], String::from_utf8(body).unwrap())
}

fn figure(server: &Served, name: &str) -> u64 {
    let stats = get(server, "/stats.json");
    let stats: Value = serde_json::from_str(&stats[4..]).unwrap();
    stats["cluster"][name].as_u64().unwrap()
}

fn is_degraded(server: &Served) -> bool {
    get(server, "/readyz").starts_with("200 degraded: ")
}

fn is_ready(server: &Served) -> bool {
    get(server, "/readyz") == "200 ready\n"
}

/// A client that publishes messages with its name and a number.
struct Publisher {
    client: Client,
    channel: String,
    name: String,
    sent: u32,
}

impl Publisher {
    fn open(at: SocketAddr, channel: &str, name: String) -> Self {
        let client = Client::connect(at, &format!("/ws/{channel}"));
        Self { client, channel: channel.to_owned(), name, sent: 0 }
    }

    fn publish(&mut self) -> String {
        self.sent += 1;
        let text = format!("{} {}", self.name, self.sent);
        self.client.send_text(&text);
        text
    }

    /// Waits until it is notified that messages were refused.
    fn learns(&mut self) {
        loop {
            match self.client.next() {
                Got::Text(_) => {}
                got => break assert_eq!(got.close_code(), Some(1013), "{}: {got:?}", self.name),
            }
        }
    }

    /// It got no notification: it is read, and answered.
    fn is_here(&mut self) {
        self.client.send(Opcode::Ping, b"here");
        loop {
            match self.client.next_of_any_kind() {
                Got::Pong(_) => break,
                Got::Text(_) | Got::Ping(_) => {}
                got => panic!("{}: {got:?}", self.name),
            }
        }
    }
}

/// Several publishers in each channel.
fn publishers<'a>(
    at: impl Fn(usize) -> SocketAddr,
    channels: impl IntoIterator<Item = &'a str>,
) -> Vec<Publisher> {
    let names = channels.into_iter().flat_map(|channel| (0..3).map(move |at| (channel, at)));
    names.map(|(channel, no)| Publisher::open(at(no), channel, format!("{channel}/{no}"))).collect()
}

/// A member that only listens.
struct Member {
    client: Client,
    texts: BTreeSet<String>,
}

impl Member {
    fn join(at: SocketAddr, channel: &str) -> Self {
        Self { client: Client::connect(at, &format!("/ws/{channel}")), texts: BTreeSet::new() }
    }

    /// Reads what has been sent to it until now.
    fn collect(&mut self) {
        self.client.send(Opcode::Ping, b"");
        while !matches!(self.read(), Got::Pong(_)) {}
    }

    /// Reads until it gets a message.
    fn await_text(&mut self, text: &str) {
        while !self.texts.contains(text) {
            self.read();
        }
    }

    fn read(&mut self) -> Got {
        let got = self.client.next_of_any_kind();
        match &got {
            Got::Text(text) => assert!(self.texts.insert(text.clone()), "each once"),
            Got::Ping(_) | Got::Pong(_) => {}
            got => panic!("a member is not concerned: {got:?}"),
        }
        got
    }
}

#[test]
fn each_publisher_learns_of_every_message_that_a_full_redis_did_not_take() {
    let Some(redis) = Redis::start("full", &[]) else { return };
    let rules = ["log.>=close,history=100/5m"];
    let servers = [serve(&redis.url(""), &rules), serve(&redis.url(""), &rules)];
    let at = |number: usize| servers[number % 2].addresses[0];
    let mut member = Member::join(at(0), "log.a");
    let mut writers = publishers(at, ["log.a", "log.b"]);
    let mut others = publishers(at, ["plain"]);
    redis.ask("CONFIG SET maxmemory 1");
    // Each has sent several when the first is refused.
    let lost: Vec<_> = (0..5)
        .flat_map(|_| writers.iter_mut().map(Publisher::publish).collect::<Vec<_>>())
        .collect();
    eventually("both are degraded", || servers.iter().all(is_degraded));
    writers.iter_mut().for_each(Publisher::learns);
    others.iter_mut().for_each(Publisher::is_here);
    eventually("each message is counted", || {
        servers.iter().map(|server| figure(server, "refused")).sum::<u64>() == lost.len() as u64
    });
    assert!(servers.iter().all(|server| figure(server, "unknown") == 0));
    redis.ask("CONFIG SET maxmemory 0");
    eventually("both are ready", || servers.iter().all(is_ready));
    let mut back = Publisher::open(at(1), "log.a", "back".to_owned());
    let text = back.publish();
    member.await_text(&text);
    assert_eq!(member.texts.len(), 1, "no member has got what was refused: {:?}", member.texts);
}

#[test]
#[cfg(feature = "balance")]
fn behind_the_balancer_no_client_is_closed_while_redis_is_away_but_publishers_who_lose() {
    let Some(mut redis) = Redis::start("away", &KEEPS) else { return };
    let rules = ["log.>=close,history=100/5m", "here.>=close,scope=local"];
    let servers = [serve(&redis.url(""), &rules), serve(&redis.url(""), &rules)];
    let mut command = crate::support::throng();
    command.args(["balance", "--shards", "1", "--listen", "127.0.0.1:0"]);
    for server in &servers {
        command.args(["--backend", &server.addresses[0].to_string()]);
    }
    let balancer = Served::spawn(command.stderr(std::process::Stdio::null()));
    let front = |_| balancer.addresses[0];
    let channels = ["log.a", "plain"];
    let mut members = channels.map(|channel| Member::join(front(0), channel));
    let mut writers = publishers(front, channels);
    let mut local = publishers(front, ["here.a"]);
    // Each channel works.
    for (member, number) in members.iter_mut().zip([0, 3]) {
        let mut last = String::new();
        eventually("one arrives", || {
            last = writers[number].publish();
            member.collect();
            !member.texts.is_empty()
        });
        member.await_text(&last);
    }
    redis.kill();
    eventually("both are degraded", || servers.iter().all(is_degraded));
    let lost: Vec<_> = writers.iter_mut().map(Publisher::publish).collect();
    writers.iter_mut().for_each(Publisher::learns);
    // New clients are served.
    let mut late = publishers(front, ["here.b", "plain"]);
    late.iter_mut().chain(&mut local).for_each(Publisher::is_here);
    redis.run();
    eventually("both are ready", || servers.iter().all(is_ready));
    local.iter_mut().for_each(Publisher::is_here);
    for (member, channel) in members.iter_mut().zip(channels) {
        let mut back = Publisher::open(front(0), channel, format!("{channel} back"));
        let text = back.publish();
        member.await_text(&text);
        assert!(lost.iter().all(|text| !member.texts.contains(text)));
    }
}

#[test]
fn one_of_several_redis_servers_that_is_away_concerns_its_channels_alone() {
    let Some(mut first) = Redis::start("one-of-three", &KEEPS) else { return };
    let others = ["two-of-three", "three-of-three"].map(|name| Redis::start(name, &[]).unwrap());
    let url = [&first, &others[0], &others[1]].map(|redis| redis.url("")).join(",");
    let rules = ["log.>=close,history=100/5m"];
    let servers = [serve(&url, &rules), serve(&url, &rules)];
    let at = |number: usize| servers[number % 2].addresses[0];
    let names: Vec<_> = (0..16).map(|number| format!("log.{number}")).collect();
    let mut members: Vec<_> = names.iter().map(|name| Member::join(at(1), name)).collect();
    let mut writers = publishers(at, names.iter().map(String::as_str));
    let is_first = |name: &str| first.ask(&format!("PUBSUB CHANNELS throng.m.{name}")) == "*1";
    eventually("each channel is at a server", || {
        names.iter().all(|name| {
            let question = format!("PUBSUB CHANNELS throng.m.{name}");
            is_first(name) || others.iter().any(|other| other.ask(&question) == "*1")
        })
    });
    let concerned: BTreeSet<_> = names.iter().filter(|name| is_first(name)).cloned().collect();
    assert!(!concerned.is_empty() && concerned.len() < names.len(), "{concerned:?}");
    first.kill();
    eventually("both are degraded", || servers.iter().all(is_degraded));
    for writer in &mut writers {
        let text = writer.publish();
        let number = names.iter().position(|name| *name == writer.channel).unwrap();
        match concerned.contains(&writer.channel) {
            true => writer.learns(),
            false => {
                members[number].await_text(&text);
                writer.is_here();
            }
        }
    }
    first.run();
    eventually("both are ready", || servers.iter().all(is_ready));
    for (name, member) in names.iter().zip(&mut members) {
        let mut back = Publisher::open(at(0), name, format!("{name} back"));
        let text = back.publish();
        member.await_text(&text);
        let lost = usize::from(concerned.contains(name)) * 3;
        assert_eq!(member.texts.len(), 1 + 3 - lost, "{name}");
    }
}
