//! Messages for receivers that read too slowly, with real sockets and the kernel's own buffers:
//! each policy delivers as promised, and its counts add up.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use throng::channel::Delivery;
use throng::prelude::*;
use throng_proto::ws::Opcode;

use crate::support::served::{self, dial_narrow, figure, start_narrow, stop, total};
use crate::support::{Client, Got, eventually};

/// Bytes of a test message; its number is in the first four.
const SIZE: usize = 1000;
/// The backlog of a connection: 100 messages.
const CAP: usize = 100 * (SIZE + 4);
/// Far more than the cap and the kernel's buffers hold together.
const MANY: u32 = 1500;

fn message(n: u32) -> Vec<u8> {
    let mut message = vec![b'.'; SIZE];
    message[..4].copy_from_slice(&n.to_be_bytes());
    message
}

fn number(got: Got) -> u32 {
    match got {
        Got::Binary(message) => u32::from_be_bytes(message[..4].try_into().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// A server with these rules for the channel "feed", and a member of it that does not read yet.
fn feed(rules: Backpressure) -> (SocketAddr, Running, Client) {
    let member = Ws::new().on_open(|ws, ()| {
        ws.subscribe("feed");
    });
    let server = Server::new(served::app().ws("/", member))
        .channels(Channels::new().backpressure("feed", rules))
        .shards(2);
    let (address, running) = start_narrow(server);
    let client = Client::upgrade(dial_narrow(address), "/", &[], &[]).unwrap();
    eventually("it listens", || running.hub().subscribers("feed") == 1);
    (address, running, client)
}

fn capped(policy: SlowPolicy) -> Backpressure {
    Backpressure::new(policy).max_backlog(CAP)
}

/// Publishes all numbers below [`MANY`]; returns the outcome of each.
fn publish_all(running: &Running, frame: impl Fn(u32) -> Frame) -> Vec<Delivery> {
    let hub = running.hub();
    let receipts: Vec<_> = (0..MANY).map(|n| hub.publish("feed", frame(n)).unwrap()).collect();
    receipts.iter().map(total).collect()
}

fn sum(deliveries: &[Delivery], count: impl Fn(&Delivery) -> u64) -> u64 {
    deliveries.iter().map(count).sum()
}

/// Numbers up to and including the last.
fn read_to(client: &mut Client, last: u32) -> Vec<u32> {
    let mut numbers = Vec::new();
    while numbers.last() != Some(&last) {
        numbers.push(number(client.next()));
    }
    numbers
}

fn plain(n: u32) -> Frame {
    Frame::binary(message(n))
}

#[test]
fn drop_newest_delivers_exactly_what_was_not_refused() {
    let (address, running, mut client) = feed(capped(SlowPolicy::DropNewest));
    let deliveries = publish_all(&running, plain);
    let admitted: Vec<u32> = (0..MANY).filter(|&n| deliveries[n as usize].dropped == 0).collect();
    let dropped = sum(&deliveries, |delivery| delivery.dropped);
    assert!(dropped > 0 && admitted.len() > 100, "{dropped} dropped");
    assert_eq!(read_to(&mut client, *admitted.last().unwrap()), admitted);
    eventually("the figures agree", || figure(address, "feed", "dropped_newest") == dropped);
    // It has caught up: the next comes, with none in between.
    assert_eq!(total(&running.hub().publish("feed", plain(MANY)).unwrap()).delivered, 1);
    assert_eq!(number(client.next()), MANY);
    stop(running);
}

#[test]
fn drop_oldest_delivers_the_newest_in_order() {
    let (address, running, mut client) = feed(capped(SlowPolicy::DropOldest));
    let deliveries = publish_all(&running, plain);
    assert_eq!(sum(&deliveries, |delivery| delivery.delivered + delivery.queued), u64::from(MANY));
    let numbers = read_to(&mut client, MANY - 1);
    assert!(numbers.is_sorted() && numbers[0] == 0);
    let lost = u64::from(MANY) - numbers.len() as u64;
    assert!(lost > 0);
    // The messages queued at the end are complete: the cap's last hundred.
    let last: Vec<u32> = (MANY - 100..MANY).collect();
    assert!(numbers.ends_with(&last), "{:?}", &numbers[numbers.len().saturating_sub(110)..]);
    eventually("the figures agree", || figure(address, "feed", "dropped_oldest") == lost);
    stop(running);
}

#[test]
fn latest_delivers_the_newest_value_of_each_key() {
    const KEYS: u32 = 7;
    let (address, running, mut client) = feed(capped(SlowPolicy::Latest));
    publish_all(&running, |n| plain(n).keyed(n % KEYS));
    let mut newest = BTreeMap::new();
    let mut count = 0;
    while newest.values().filter(|&&n| n >= MANY - KEYS).count() < KEYS as usize {
        let n = number(client.next());
        assert!(newest.insert(n % KEYS, n) < Some(n), "of a key, never an older after a newer");
        count += 1;
    }
    let lost = u64::from(MANY) - count;
    assert!(lost > 100, "{lost} replaced");
    eventually("the figures agree", || figure(address, "feed", "conflated") == lost);
    assert_eq!(figure(address, "feed", "dropped_oldest"), 0, "seven values fit the cap");
    stop(running);
}

#[test]
fn latest_without_keys_is_the_latest_of_the_channel() {
    let (address, running, mut client) = feed(capped(SlowPolicy::Latest));
    publish_all(&running, plain);
    let numbers = read_to(&mut client, MANY - 1);
    assert!(numbers.is_sorted());
    let lost = u64::from(MANY) - numbers.len() as u64;
    eventually("the figures agree", || figure(address, "feed", "conflated") == lost);
    assert!(lost > 100);
    stop(running);
}

#[test]
fn close_closes_with_1008_and_other_members_miss_nothing() {
    let (address, running, mut client) = feed(capped(SlowPolicy::Close));
    let mut quick = Client::connect(address, "/");
    eventually("both listen", || running.hub().subscribers("feed") == 2);
    let heard = Arc::new(AtomicU32::new(0));
    let hears = Arc::clone(&heard);
    let reader = std::thread::spawn(move || {
        for n in 0..=MANY {
            assert_eq!(number(quick.next()), n);
            hears.store(n, Ordering::Relaxed);
        }
    });
    let (hub, mut refused) = (running.hub(), Delivery::default());
    for n in 0..=MANY {
        // At the pace of its fast member, which is slow otherwise.
        let delivery = total(&hub.publish("feed", plain(n)).unwrap());
        refused.dropped += delivery.dropped;
        refused.closed += delivery.closed;
        if n % 20 == 0 {
            eventually("the quick one keeps up", || heard.load(Ordering::Relaxed) == n);
        }
    }
    assert_eq!(refused.dropped, 1, "the message that made it close");
    reader.join().unwrap();
    let mut last = None;
    let end = loop {
        match client.next() {
            got @ Got::Binary(_) => {
                let n = number(got);
                assert_eq!(n, last.map_or(0, |last: u32| last + 1), "none is missing");
                last = Some(n);
            }
            other => break other,
        }
    };
    assert!(last < Some(MANY), "it got what the kernel had, not what waited");
    assert_eq!(end, Got::Close(1008, "slow consumer".to_owned()));
    eventually("the figures agree", || {
        (figure(address, "feed", "slow_consumers"), figure(address, "feed", "closed"))
            == (1, refused.closed)
    });
    stop(running);
}

#[test]
fn a_message_older_than_max_age_is_not_delivered() {
    // So long that even on a busy machine, messages sent at once are not too old.
    let age = Duration::from_secs(1);
    let (address, running, mut client) = feed(capped(SlowPolicy::DropNewest).max_age(age));
    let deliveries = publish_all(&running, plain);
    let admitted = sum(&deliveries, |delivery| delivery.delivered + delivery.queued);
    // No client reads, and a sweep every second drops what is too old.
    eventually("some are too old, and swept", || figure(address, "feed", "expired") > 0);
    // By its answer, the bytes in the kernel have been read: the last message finds room there, and
    // is sent before it can age.
    client.send(Opcode::Ping, b"all?");
    let mut numbers = Vec::new();
    loop {
        match client.next() {
            Got::Pong(payload) => break assert_eq!(payload, b"all?"),
            got => numbers.push(number(got)),
        }
    }
    let last = MANY + 1;
    assert_eq!(total(&running.hub().publish("feed", plain(last)).unwrap()).dropped, 0);
    numbers.extend(read_to(&mut client, last));
    assert!(numbers.is_sorted());
    let delivered = numbers.len() as u64 - 1;
    eventually("every message is accounted for", || {
        figure(address, "feed", "expired") == admitted - delivered
    });
    stop(running);
}

#[test]
fn messages_queued_for_a_receiver_that_disconnects_are_counted_as_discarded() {
    let (address, running, client) = feed(capped(SlowPolicy::DropOldest));
    let deliveries = publish_all(&running, plain);
    let queued = sum(&deliveries, |delivery| delivery.queued);
    drop(client);
    eventually("it is gone", || running.hub().subscribers("feed") == 0);
    let of = |name| figure(address, "feed", name);
    eventually("what waited is counted", || of("discarded") > 0);
    // The cap was full with the last publication. Since then the kernel may have taken a batch, so
    // that the driver has up to 64 KiB more, which count as the kernel's.
    let discarded = of("discarded");
    assert!((100 - 65..=100).contains(&discarded), "{discarded}");
    assert!(of("dropped_oldest") + discarded <= queued);
    stop(running);
}

#[test]
fn rules_of_the_channel_win_over_those_of_the_route_and_these_over_the_servers() {
    let member = |channel: &'static str| {
        Ws::new().on_open(move |ws, ()| {
            ws.subscribe(channel);
        })
    };
    let server = Server::new(
        served::app()
            .ws("/plain", member("plain"))
            .ws("/newest", member("route").backpressure(SlowPolicy::DropNewest))
            .ws("/channel", member("feed.a").backpressure(SlowPolicy::DropNewest)),
    )
    .limits(Limits::default().max_backlog(CAP))
    .backpressure(SlowPolicy::DropOldest)
    .channels(Channels::new().backpressure("feed.*", SlowPolicy::Latest));
    let (address, running) = start_narrow(server.shards(2));
    let cases = [
        ("/plain", "plain", "default", "dropped_oldest"),
        ("/newest", "route", "/newest", "dropped_newest"),
        ("/channel", "feed.a", "feed.*", "conflated"),
    ];
    let _clients: Vec<Client> = cases
        .iter()
        .map(|(path, ..)| Client::upgrade(dial_narrow(address), path, &[], &[]).unwrap())
        .collect();
    let hub = running.hub();
    eventually("all listen", || hub.channels().len() == 3);
    for (_, channel, ..) in cases {
        (0..MANY).for_each(|n| drop(hub.publish(channel, plain(n)).unwrap()));
    }
    for (_, _, class, figure_name) in cases {
        eventually(class, || figure(address, class, figure_name) > 0);
        for other in ["dropped_oldest", "dropped_newest", "conflated", "slow_consumers"] {
            assert!(other == figure_name || figure(address, class, other) == 0, "{class} {other}");
        }
    }
    stop(running);
}

#[test]
fn control_frames_pass_a_full_queue() {
    let (_, running, mut client) = feed(capped(SlowPolicy::DropOldest));
    publish_all(&running, plain);
    client.send(Opcode::Ping, b"still there?");
    let pong = loop {
        match client.next() {
            Got::Pong(payload) => break payload,
            got => assert_ne!(number(got), MANY, "the pong is behind what was queued, not lost"),
        }
        // All of it was read and no pong came: `next` would time out.
    };
    assert_eq!(pong, b"still there?");
    stop(running);
}

/// Messages in the kernel, and in a batch that has begun to leave, come first at any age.
#[test]
fn a_stalled_client_gets_little_that_is_old() {
    const KEYS: u32 = 20;
    const ROUNDS: u32 = 100;
    let rules = Backpressure::new(SlowPolicy::Latest);
    let (address, running, mut client) = feed(rules);
    let hub = running.hub();
    let publish = |n: u32| total(&hub.publish("feed", plain(n).keyed(n % KEYS)).unwrap());
    for n in 0..ROUNDS * KEYS {
        publish(n);
    }
    eventually("it has stalled", || figure(address, "feed", "conflated") > u64::from(KEYS));
    let newest = ROUNDS * KEYS..(ROUNDS + 1) * KEYS;
    for n in newest.clone() {
        publish(n);
    }
    let (mut old, mut new) = (0, 0);
    while new < KEYS {
        match newest.contains(&number(client.next())) {
            true => new += 1,
            false => old += 1,
        }
    }
    let old = old as usize * (SIZE + 4);
    assert!(old <= 64 << 10, "{old} bytes were old");
    stop(running);
}
