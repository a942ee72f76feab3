//! Messages between shards: none are lost, at any speed of a well-behaved publisher.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use throng::prelude::*;
use throng::server::Shards;
use throng_engine::MAILBOX_CAPACITY;
use throng_proto::ws::{self, Opcode};

use crate::support::served::{self, figure, start, stop, total};
use crate::support::{BACKENDS, Client, Got, TIMEOUT, eventually};

/// The shard (its thread's name) of each session, by the name given as `?name=`.
type ShardNames = Arc<Mutex<BTreeMap<String, String>>>;

/// In the register once a shard is occupied.
const BLOCKED: &str = "blocked";

/// Occupies the shard of this client.
fn block(client: &mut Client, shards: &ShardNames) {
    client.send(Opcode::Text, b"block");
    eventually("its shard is occupied", || shards.lock().unwrap().contains_key(BLOCKED));
}

/// `/ws?name=N` publishes all it receives to the channel "feed"; `/ws?name=N&in=feed` joins it. The
/// message "block" occupies the shard until `release` has something.
fn publishing(shards: &ShardNames, release: mpsc::Receiver<()>) -> Ws<(String, String)> {
    let (blocking, release) = (Arc::clone(shards), Mutex::new(release));
    let shards = Arc::clone(shards);
    Ws::from_request(|request| {
        let of = |key| request.query(key).unwrap_or_default().to_owned();
        Ok((of("name"), of("in")))
    })
    .on_open(move |ws, (name, channel)| {
        if !channel.is_empty() {
            ws.subscribe_pattern(channel).unwrap();
        }
        let shard = thread::current().name().unwrap_or_default().to_owned();
        shards.lock().unwrap().insert(name.clone(), shard);
    })
    .on_message(move |ws, _, message| match message {
        Message::Text("block") => {
            blocking.lock().unwrap().insert(BLOCKED.to_owned(), String::new());
            release.lock().unwrap().recv().unwrap();
        }
        // All in one callback, which cannot be delayed.
        Message::Text(count) => {
            let frame = Frame::text(count);
            for _ in 0..count.parse::<u32>().unwrap() {
                ws.publish("feed", &frame);
            }
        }
        Message::Binary([]) => {
            ws.send("still here");
        }
        Message::Binary(_) => {
            ws.publish("feed", message);
        }
    })
}

/// Readers may be as slow as this machine makes them: any loss is between shards.
fn patient() -> Limits {
    Limits::default().max_backlog(1 << 30)
}

fn server(shards: usize) -> (SocketAddr, Running, ShardNames, mpsc::Sender<()>) {
    server_with(shards, SlowPolicy::Close)
}

fn server_with(
    shards: usize,
    policy: SlowPolicy,
) -> (SocketAddr, Running, ShardNames, mpsc::Sender<()>) {
    let (register, (release, blocked)) = (ShardNames::default(), mpsc::channel());
    let server = Server::new(served::app().ws("/ws", publishing(&register, blocked)));
    let server = server.backpressure(Backpressure::new(policy));
    let (address, running) = start(server.limits(patient()).shards(shards));
    (address, running, register, release)
}

/// Members of "feed" until each of the server's shards has one, by shard.
fn members(address: SocketAddr, count: usize, shards: &ShardNames) -> BTreeMap<String, Client> {
    members_of(address, "feed", count, shards)
}

fn members_of(
    address: SocketAddr,
    channel: &str,
    count: usize,
    shards: &ShardNames,
) -> BTreeMap<String, Client> {
    let mut members = BTreeMap::new();
    for n in 0.. {
        let name = format!("member{n}");
        let client = Client::connect(address, &format!("/ws?name={name}&in={channel}"));
        eventually("it has joined", || shards.lock().unwrap().contains_key(&name));
        let shard = shards.lock().unwrap()[&name].clone();
        members.entry(shard).or_insert(client);
        if members.len() == count {
            break;
        }
    }
    members
}

/// A publisher, and the name of its shard.
fn publisher(address: SocketAddr, shards: &ShardNames) -> (Client, String) {
    let client = Client::connect(address, "/ws?name=publisher");
    eventually("it is there", || shards.lock().unwrap().contains_key("publisher"));
    let shard = shards.lock().unwrap()["publisher"].clone();
    (client, shard)
}

/// Writes so many numbered messages as fast as TCP takes them.
fn write_all(client: &mut Client, count: u32) {
    let mut bytes = Vec::new();
    for n in 0..count {
        ws::encode_masked(Opcode::Binary, &n.to_be_bytes(), [1, 2, 3, 4], &mut bytes);
        if bytes.len() > 1 << 16 || n + 1 == count {
            client.stream.write_all(&bytes).unwrap();
            bytes.clear();
        }
    }
}

/// Expects each number below `count`, in order.
fn expect_all(client: &mut Client, count: u32, who: &str) {
    for n in 0..count {
        match client.next() {
            Got::Binary(message) => assert_eq!(message, n.to_be_bytes(), "{who} at {n}"),
            other => panic!("{who} got {other:?} instead of {n}"),
        }
    }
}

#[test]
fn a_publisher_is_held_back_while_another_shard_is_busy_and_nothing_is_lost() {
    const COUNT: u32 = 300_000;
    let (address, running, shards, release) = server(2);
    let mut members = members(address, 2, &shards);
    let (mut publisher, own) = publisher(address, &shards);
    let mut neighbour = members.remove(&own).unwrap();
    let (_, mut elsewhere) = members.pop_first().unwrap();
    block(&mut elsewhere, &shards);
    let writer = thread::spawn(move || {
        write_all(&mut publisher, COUNT);
        publisher
    });
    eventually("it is held back, or loses messages", || {
        let stats = running.stats();
        stats.publishers_held + stats.commands_dropped > 0
    });
    // Only the publisher waits, and not its shard.
    neighbour.send(Opcode::Binary, b"");
    while neighbour.next() != Got::Text("still here".to_owned()) {}
    assert_eq!(running.stats().commands_dropped, 0);
    release.send(()).unwrap();
    expect_all(&mut elsewhere, COUNT, "the member on the shard that was busy");
    drop(writer.join().unwrap());
    stop(running);
}

#[test]
fn quick_readers_on_other_shards_get_every_message_of_a_fast_publisher_in_order() {
    const COUNT: u32 = 400_000;
    for count in [2, 4] {
        let (address, running, shards, _release) = server(count);
        let members = members(address, count, &shards);
        let (mut publisher, _) = publisher(address, &shards);
        let readers: Vec<_> = members
            .into_iter()
            .map(|(shard, mut client)| {
                thread::spawn(move || expect_all(&mut client, COUNT, &shard))
            })
            .collect();
        write_all(&mut publisher, COUNT);
        for reader in readers {
            reader.join().unwrap();
        }
        stop(running);
    }
}

/// More than fits in a queue, from one callback: receivers with a gap are closed.
#[test]
fn receivers_of_what_is_lost_between_shards_are_closed_or_it_is_counted() {
    const COUNT: u64 = 300_000;
    for policy in [SlowPolicy::Close, SlowPolicy::DropNewest] {
        let (address, running, shards, release) = server_with(2, policy);
        let mut members = members(address, 2, &shards);
        let (mut publisher, own) = publisher(address, &shards);
        drop(members.remove(&own));
        let (_, mut elsewhere) = members.pop_first().unwrap();
        block(&mut elsewhere, &shards);
        publisher.send(Opcode::Text, COUNT.to_string().as_bytes());
        eventually("some are lost", || running.stats().commands_dropped > 0);
        eventually("all are published", || running.stats().publishes == COUNT);
        release.send(()).unwrap();
        let lost = running.stats().commands_dropped;
        match policy {
            SlowPolicy::Close => {
                assert_eq!(elsewhere.next(), Got::Close(1008, "slow consumer".to_owned()));
                eventually("it is counted", || running.stats().slow_consumers == 1);
            }
            _ => {
                for _ in 0..COUNT - lost {
                    assert_eq!(elsewhere.next(), Got::Text(COUNT.to_string()));
                }
                eventually("they are counted", || figure(address, "default", "lost") == lost);
                assert_eq!(running.stats().slow_consumers, 0);
            }
        }
        stop(running);
    }
}

/// A shard gets only publications to channels with members there, and to names that match a pattern
/// there.
#[test]
fn shards_without_members_are_not_posted_to() {
    for (subscription, reached) in [("other", "other"), ("other.*", "other.one")] {
        let (register, (release, blocked)) = (ShardNames::default(), mpsc::channel());
        let server = Server::new(served::app().ws("/ws", publishing(&register, blocked)));
        let (address, running) = start(server.limits(patient()).shards(2));
        let mut members = members_of(address, subscription, 2, &register);
        let (_, mut busy) = members.pop_first().unwrap();
        drop(members);
        let hub = running.hub();
        eventually("one is left", || hub.subscribers(subscription) == 1);
        block(&mut busy, &register);
        for _ in 0..=MAILBOX_CAPACITY {
            assert!(hub.publish("feed", "x").is_ok(), "its queue is full");
        }
        assert!(hub.publish(reached, "first").is_ok());
        let mut full = None;
        for n in 1..=MAILBOX_CAPACITY {
            full = full.or(hub.publish(reached, "x").err().map(|_| n));
        }
        assert!(full.is_some(), "what has a member is posted");
        // Losses are counted, and receipts arrive.
        let lost = full.unwrap();
        let error = hub.publish(reached, "x").unwrap_err();
        let counts = error.receipt.expect("a publication has a receipt").wait(TIMEOUT).unwrap();
        assert_eq!((counts.unreached, counts.receivers()), (1, 0));
        let waits = hub.publish_timeout(reached, "later", Duration::ZERO);
        assert!(waits.is_err(), "there is no room at once");
        release.send(()).unwrap();
        assert!(hub.publish_timeout(reached, "later", TIMEOUT).is_ok());
        assert_eq!(busy.next(), Got::Text("first".to_owned()));
        let stats: serde_json::Value =
            serde_json::from_str(&served::get(address, "/stats.json")).unwrap();
        assert_eq!(stats["hub_commands_dropped"], MAILBOX_CAPACITY - lost + 3);
        assert_eq!(stats["hub_publishes"], 2 * MAILBOX_CAPACITY + 5);
        stop(running);
    }
}

/// Each client publishes, all are members, on several shards. Numbers are given out under a lock
/// that is held until the message is published.
#[test]
fn members_on_all_shards_see_publications_in_one_order() {
    const CLIENTS: usize = 6;
    const EACH: usize = 50;
    for (io, shards) in BACKENDS.into_iter().flat_map(|io| [(io, 1), (io, 3)]) {
        let next = Arc::new(Mutex::new(0));
        let room = Ws::new()
            .on_open(|ws, ()| {
                ws.subscribe("room");
            })
            .on_message(move |ws, (), message| {
                let mut next = next.lock().unwrap();
                *next += 1;
                // Some come from a hub, as from another thread.
                match message.as_bytes()[0] % 8 {
                    0 | 1 => drop(ws.hub().publish("room", next.to_string()).unwrap()),
                    2 => {
                        let no_wait = Duration::ZERO;
                        let hub = ws.hub();
                        drop(hub.publish_timeout("room", next.to_string(), no_wait).unwrap());
                    }
                    3 => drop(ws.broadcast_to(&Filter::new(), next.to_string())),
                    4 => {
                        let members = Filter::new().channel("room");
                        drop(ws.broadcast_to(&members, next.to_string()));
                    }
                    5 => drop(ws.hub().broadcast(next.to_string()).unwrap()),
                    _ => drop(ws.publish("room", next.to_string())),
                }
            });
        let server =
            Server::new(served::app().ws("/room", room)).shards(Shards::new().io(io).count(shards));
        let (address, running) = start(server);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(address, "/room")).collect();
        let hub = running.hub();
        eventually("all are members", || hub.subscribers("room") == CLIENTS);
        for n in 0..EACH {
            for client in &mut clients {
                client.send(Opcode::Binary, &[n as u8]);
            }
        }
        for client in &mut clients {
            for expected in 1..=CLIENTS * EACH {
                let got = client.next();
                assert_eq!(got, Got::Text(expected.to_string()), "{io:?}, {shards} shards");
            }
        }
        drop(clients);
        stop(running);
    }
}

/// The hub's publication waits for the shard, and so do the callback's publications after it.
#[test]
fn a_broadcast_comes_after_what_its_sender_published_before() {
    for (io, shards) in BACKENDS.into_iter().flat_map(|io| [(io, 1), (io, 3)]) {
        let receipts = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&receipts);
        let room = Ws::new()
            .on_open(|ws, ()| {
                ws.subscribe("room");
            })
            .on_message(move |ws, (), _| {
                let members = Filter::new().channel("room");
                let me = Filter::new().include([ws.handle()]);
                *kept.lock().unwrap() = vec![
                    ws.hub().publish("room", "0").unwrap(),
                    ws.publish("room", "1"),
                    ws.broadcast_to(&Filter::new(), "2"),
                    ws.publish("room", "3"),
                    ws.broadcast_to(&members, "4"),
                    ws.broadcast("to others"),
                    ws.broadcast_to(&me, "to me"),
                    ws.publish("room", "5"),
                ];
            });
        let server =
            Server::new(served::app().ws("/room", room)).shards(Shards::new().io(io).count(shards));
        let (address, running) = start(server);
        let mut clients: Vec<_> = (0..6).map(|_| Client::connect(address, "/room")).collect();
        let hub = running.hub();
        eventually("all are members", || hub.subscribers("room") == 6);
        clients[0].send_text("go");
        for (n, client) in clients.iter_mut().enumerate() {
            let special = if n == 0 { "to me" } else { "to others" };
            for expected in ["0", "1", "2", "3", "4", special, "5"] {
                let got = client.next();
                assert_eq!(got, Got::Text(expected.to_owned()), "{io:?}, {shards} shards, {n}");
            }
        }
        let counts: Vec<u64> =
            receipts.lock().unwrap().iter().map(|it| total(it).receivers()).collect();
        assert_eq!(counts, [6, 6, 6, 6, 6, 5, 1, 6], "{io:?}, {shards} shards");
        drop(clients);
        stop(running);
    }
}
