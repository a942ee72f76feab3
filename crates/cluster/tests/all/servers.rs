//! Three nodes and several independent Redis servers, each with a part of the channels.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::sync::{Arc, Mutex};

use throng_cluster::redis::{Bus, Outgoing, Settings, Tls};
use throng_cluster::{Envelope, WhileDown, encode};
use throng_testkit::{Redis, eventually};

use crate::nodes::{CHANNELS, Node, check_all, keep, traffic};
use crate::support::{Recorder, Seen, lock, name};

const MANY: usize = 60;

fn start_servers(name: &str, arguments: &[&'static str]) -> Option<Vec<Redis>> {
    (0..3).map(|number| Redis::start(&format!("{name}-{number}"), arguments)).collect()
}

/// Returns the list of servers, beginning with the server of this number.
fn list(servers: &[Redis], first: usize) -> String {
    let urls: Vec<_> = (0..servers.len()).map(|at| servers[(first + at) % 3].url("")).collect();
    urls.join(",")
}

/// A node with members in many channels without history.
struct ManyChannels {
    bus: Bus,
    seen: Seen,
}

impl ManyChannels {
    fn start(url: String, node: u64) -> Self {
        let settings = Settings { url, prefix: "test".to_owned(), node, tls: Tls::default() };
        let (bus, starter) = Bus::new(settings).unwrap();
        let seen: Seen = (0..MANY).map(|_| Mutex::default()).collect();
        starter.start(Recorder(Arc::clone(&seen))).unwrap();
        (0..MANY).for_each(|channel| bus.follow(name(channel), None));
        Self { bus, seen }
    }

    fn publish(&self, channel: usize, payload: &[u8]) -> bool {
        let mut envelope = Vec::new();
        encode(&Envelope { payload, ..Envelope::default() }, &mut envelope);
        let (envelope, while_down) = (envelope.into(), WhileDown::Refuse);
        self.bus.publish(Outgoing { channel: name(channel), envelope, keep: None, while_down })
    }

    fn count(&self, channel: usize) -> usize {
        lock(&self.seen[channel]).payloads.len()
    }
}

impl Drop for ManyChannels {
    fn drop(&mut self) {
        self.bus.stop();
    }
}

#[test]
fn a_server_that_is_away_concerns_its_channels_alone() {
    let Some(mut servers) = start_servers("parts", &[]) else { return };
    // The order of the list makes no difference.
    let nodes = [0, 1].map(|node| ManyChannels::start(list(&servers, node), node as u64 + 1));
    let publish_to_all = |payload: &[u8]| -> Vec<usize> {
        (0..MANY).filter(|channel| nodes[0].publish(*channel, payload)).collect()
    };
    eventually("all are subscribed", || {
        publish_to_all(b"first");
        (0..MANY).all(|channel| nodes.iter().all(|node| node.count(channel) > 0))
    });
    for server in &servers {
        assert!(server.calls("publish") > 0, "each has channels");
    }
    let address = format!("127.0.0.1:{}", servers[1].port());
    servers[1].kill();
    eventually("it is noticed", || nodes.iter().all(|node| !node.bus.status().is_up()));
    let (_, why) = nodes[0].bus.status().down().unwrap();
    assert!(why.starts_with(&format!("1 of 3 servers: {address}: ")), "{why}");
    assert_eq!(nodes[0].bus.status().parts(), (3, 1));
    let before: Vec<_> = (0..MANY).map(|channel| nodes[1].count(channel)).collect();
    let accepted = publish_to_all(b"second");
    assert!(!accepted.is_empty() && accepted.len() < MANY, "{accepted:?}");
    eventually("those of the other servers come", || {
        accepted.iter().all(|channel| nodes[1].count(*channel) > before[*channel])
    });
    servers[1].run();
    eventually("it is back", || nodes.iter().all(|node| node.bus.status().is_up()));
    assert_eq!(publish_to_all(b"third").len(), MANY);
    eventually("the last comes to all", || {
        let last = |channel| lock(&nodes[1].seen[channel]).payloads.last().cloned();
        (0..MANY).all(|channel| last(channel).is_some_and(|payload| payload == b"third"))
    });
}

#[test]
fn servers_that_are_killed_in_turn_and_keep_their_data_lose_nothing() {
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut servers) = start_servers("turn", &arguments) else { return };
    let nodes = [0, 1, 2].map(|node| Node::start_at(list(&servers, node), node as u64 + 1, keep()));
    let mut kills = 0;
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 20 + 20 * kills && kills < 3 {
            let server = &mut servers[kills as usize];
            server.kill();
            eventually("it is noticed", || nodes.iter().all(|node| !node.bus.status().is_up()));
            server.run();
            eventually("all are back", || nodes.iter().all(|node| node.bus.status().is_up()));
            kills += 1;
        }
        kills < 3 || rounds < 100
    });
    check_all(&nodes, rounds);
    let status = nodes[0].bus.status().snapshot();
    assert_eq!((status.channels, status.published), (CHANNELS as u64, rounds * CHANNELS as u64));
}

#[test]
fn a_list_that_cannot_be_used_is_an_error_that_names_the_server() {
    let Some(redis) = Redis::start("list", &[]) else { return };
    let start = |url: String| {
        let settings = Settings { url, prefix: "test".to_owned(), node: 1, tls: Tls::default() };
        let (_, starter) = Bus::new(settings).map_err(|error| error.to_string())?;
        starter.start(Recorder(Arc::new([]))).map_err(|error| error.to_string())
    };
    let url = redis.url("");
    let twice = start(format!("{url},{url}")).unwrap_err();
    assert!(twice.contains(&format!("127.0.0.1:{} twice", redis.port())), "{twice}");
    let away = start(format!("{url},redis://127.0.0.1:1")).unwrap_err();
    assert!(away.contains("cluster.url: 127.0.0.1:1 "), "{away}");
}
