//! Large messages over real sockets: cut into fragments (RFC 6455 section 5.4), whole again on the
//! other side, in order, with control frames between the fragments and never with anything else.

use std::net::SocketAddr;
use std::time::Duration;

use throng::prelude::*;
use throng_testkit::noise;

use crate::support::deflating::Peer;
use crate::support::served::{self, dial_narrow, figure, start_narrow, stop, total};
use crate::support::wire::Received;
use crate::support::{TIMEOUT, eventually};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

fn limits() -> Limits {
    Limits::default().max_message_size(64 * MIB).max_backlog(256 * MIB)
}

/// Joins "feed", and executes text messages: `send LEN`, `frame LEN`, `close`, `panic`; others are
/// echoed.
fn member() -> Ws {
    Ws::new()
        .on_open(|ws, ()| {
            ws.subscribe("feed");
        })
        .on_message(|ws, (), message| {
            let Message::Text(text) = message else {
                ws.send(message);
                return;
            };
            for line in text.split(';') {
                let (what, argument) = line.split_once(' ').unwrap_or((line, ""));
                let bytes = || noise(argument.parse().unwrap(), argument.len() as u64);
                match what {
                    "send" => drop(ws.send(bytes())),
                    "frame" => drop(ws.send(Frame::binary(bytes()))),
                    "publish" => drop(ws.publish_to_others("feed", bytes())),
                    "say" => drop(ws.send(argument)),
                    "close" => ws.close(CloseCode::new(4000), "as asked"),
                    "panic" => panic!("as asked"),
                    other => panic!("{other}"),
                }
            }
        })
}

fn serve(limits: Limits, rules: impl Into<Backpressure>) -> (SocketAddr, Running) {
    start_narrow(
        Server::new(served::app().ws("/", member()))
            .limits(limits)
            .backpressure(rules.into())
            .shards(1),
    )
}

fn expected(len: usize) -> Vec<u8> {
    noise(len, len.to_string().len() as u64)
}

fn join(address: SocketAddr) -> Peer {
    Peer::connect(address, "/", "")
}

fn narrow(address: SocketAddr) -> Peer {
    Peer::over(dial_narrow(address), "/", "")
}

fn frames_of(len: usize, size: usize) -> Vec<usize> {
    let mut frames = vec![size; len / size];
    if !len.is_multiple_of(size) {
        frames.push(len % size);
    }
    frames
}

#[test]
fn rfc6455_5_4_above_the_threshold_in_fragments_and_at_it_whole() {
    for (threshold, size) in [(MIB, 64 * KIB), (1000, 300), (100, 1), (20_000, 1 << 40), (0, 7)] {
        let limits = limits().fragment_threshold(threshold).fragment_size(size);
        let (address, running) = serve(limits, SlowPolicy::Close);
        let (mut peer, mut other) = (join(address), join(address));
        eventually("both listen", || running.hub().subscribers("feed") == 2);
        for len in [threshold, threshold + 1, threshold + size.min(5 * MIB), 3 * threshold + 17] {
            let due = expected(len);
            let frames = if len > threshold { frames_of(len, size) } else { vec![len] };
            let check = |peer: &mut Peer, how: &str| {
                let (_, got) = peer.expect_message(&due);
                assert!(
                    got == frames,
                    "{how} {len}: {} frames, {} were due",
                    got.len(),
                    frames.len()
                );
            };
            peer.say(true, format!("send {len}").as_bytes());
            check(&mut peer, "send");
            peer.say(true, format!("frame {len}").as_bytes());
            check(&mut peer, "frame");
            peer.say(true, format!("publish {len}").as_bytes());
            check(&mut other, "publish");
            peer.say(false, &due);
            check(&mut peer, "echo");
            drop(running.hub().publish("feed", &due).unwrap());
            check(&mut peer, "from outside");
            check(&mut other, "from outside");
        }
        stop(running);
    }
}

#[test]
fn a_threshold_of_the_largest_number_is_never() {
    let limits = limits().fragment_threshold(None);
    let (address, running) = serve(limits, SlowPolicy::Close);
    let mut peer = join(address);
    peer.say(true, format!("send {};frame {}", 5 * MIB, 5 * MIB).as_bytes());
    for _ in 0..2 {
        assert_eq!(peer.expect_message(&expected(5 * MIB)).1, [5 * MIB]);
    }
    stop(running);
}

/// No policy drops anything while it is not known whether the receiver is slow.
#[test]
fn a_receiver_that_keeps_up_gets_all_messages_in_order() {
    for policy in
        [SlowPolicy::Close, SlowPolicy::DropOldest, SlowPolicy::DropNewest, SlowPolicy::Latest]
    {
        let limits =
            limits().fragment_threshold(10 * KIB).fragment_size(4 * KIB).max_backlog(64 * KIB);
        let (address, running) = serve(limits, policy);
        let mut peer = join(address);
        eventually("it listens", || running.hub().subscribers("feed") == 1);
        // All in one callback, before any send; few enough bytes that the kernel takes all at once.
        let lens = [40 * KIB, 10, 50 * KIB, 20 * KIB, 11, 12, 10 * KIB + 1, 300, 40 * KIB];
        let lines: Vec<String> = lens
            .iter()
            .enumerate()
            .map(|(n, len)| format!("{} {len}", if n % 3 == 0 { "frame" } else { "send" }))
            .collect();
        for _ in 0..5 {
            peer.say(true, lines.join(";").as_bytes());
            for len in lens {
                peer.expect_message(&expected(len));
            }
        }
        stop(running);
    }
}

/// Reads until so many bytes of a message that is not over are there.
fn read_into(peer: &mut Peer, bytes: usize) {
    while peer.reader.inside().unwrap_or(0) < bytes {
        assert!(peer.read(4096));
        assert_eq!(peer.reader.next().map(|heard| heard.is_some()), Ok(false));
    }
}

/// With the limits as they are by default.
#[test]
fn rfc6455_5_5_a_ping_is_answered_between_the_fragments() {
    let (address, running) = serve(Limits::default(), SlowPolicy::Close);
    let mut peer = narrow(address);
    let len = 16 * MIB;
    peer.say(true, format!("send {len};say behind").as_bytes());
    read_into(&mut peer, 100 * KIB);
    for n in 0..5_u32 {
        let payload = n.to_be_bytes().to_vec();
        peer.ping(&payload);
        let Some(Received::Pong { payload: pong, inside }) = peer.next() else { panic!("no pong") };
        assert_eq!(pong, payload);
        let inside = inside.expect("between two fragments");
        assert!(inside < len - MIB && inside % (64 * KIB) == 0, "after {inside} bytes");
    }
    peer.expect_message(&expected(len));
    peer.expect_message(b"behind");
    stop(running);
}

#[test]
fn pings_during_a_fragmented_message_are_answered_after_it() {
    let (address, running) = serve(Limits::default(), SlowPolicy::Close);
    let mut peer = narrow(address);
    peer.say(true, format!("send {}", 8 * MIB).as_bytes());
    read_into(&mut peer, 100 * KIB);
    for n in 0..100_u32 {
        peer.say(false, &n.to_be_bytes());
    }
    peer.expect_message(&expected(8 * MIB));
    for n in 0..100_u32 {
        peer.expect_message(&n.to_be_bytes());
    }
    stop(running);
}

#[test]
fn a_close_comes_after_the_whole_message_however_it_is_asked_for() {
    for policy in [SlowPolicy::Close, SlowPolicy::Latest] {
        for how in ["together", "callback", "hub", "own", "drain", "fault"] {
            let (address, running) = serve(limits(), policy);
            let mut peer = narrow(address);
            eventually("it listens", || running.hub().subscribers("feed") == 1);
            let len = 6 * MIB + 5;
            match how {
                "together" => peer.say(true, format!("send {len};close").as_bytes()),
                _ => peer.say(true, format!("send {len}").as_bytes()),
            }
            read_into(&mut peer, 100 * KIB);
            let mut draining = None;
            let code = match how {
                "together" => 4000,
                "callback" => {
                    peer.say(true, b"close");
                    4000
                }
                "hub" => {
                    for _ in 0..2 {
                        total(&running.hub().broadcast("behind").unwrap());
                    }
                    peer.say(true, b"close");
                    4000
                }
                "own" => {
                    peer.write_frame(0x88, &3001_u16.to_be_bytes());
                    3001
                }
                "fault" => {
                    peer.write_frame(0x8f, b"");
                    1002
                }
                _ => 1001,
            };
            let mut running = Some(running);
            if how == "drain"
                && let Some(running) = running.take()
            {
                // A slow machine gets enough time.
                let plan = DrainPlan::DEFAULT.grace(TIMEOUT * 10);
                let drain = move || running.shutdown(plan).wait().unwrap();
                draining = Some(std::thread::spawn(drain));
            }
            let what = format!("{policy} {how}");
            let (mut behind, mut whole) = (0, 0);
            loop {
                match peer.next() {
                    Some(Received::Message { payload, .. }) if payload == b"behind" => behind += 1,
                    Some(Received::Message { payload, .. }) => {
                        assert!(payload == expected(len), "{what}");
                        whole += 1;
                    }
                    Some(Received::Close { code: got, inside, .. }) => {
                        assert_eq!((got, inside, whole), (code, None, 1), "{what}");
                        break;
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
            if how == "hub" {
                assert_eq!(behind, if policy == SlowPolicy::Latest { 1 } else { 2 }, "{what}");
            }
            if how == "drain" {
                peer.write_frame(0x88, &1001_u16.to_be_bytes());
            }
            drop(peer);
            draining.map(|draining| draining.join().unwrap());
            if let Some(running) = running {
                stop(running);
            }
        }
    }
}

/// A message cut off by a panic of its handler stays incomplete: a Close frame may come between two
/// fragments.
#[test]
fn a_failure_cuts_a_message_between_two_fragments() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains("as asked") {
            hook(info);
        }
    }));
    let (address, running) = serve(limits(), SlowPolicy::Close);
    let mut peer = narrow(address);
    peer.say(true, format!("send {}", 16 * MIB).as_bytes());
    read_into(&mut peer, 100 * KIB);
    peer.say(true, b"panic");
    let Some(Received::Close { code, inside, .. }) = peer.next() else { panic!("no Close") };
    assert_eq!(code, 1011);
    assert!(inside.is_some_and(|bytes| bytes < 15 * MIB), "{inside:?}");
    stop(running);
}

/// A message in progress is never cut; queued messages may be dropped.
#[test]
fn slow_readers_lose_whole_messages_only() {
    for policy in [SlowPolicy::DropOldest, SlowPolicy::DropNewest, SlowPolicy::Latest] {
        let limits = limits().fragment_threshold(100 * KIB).max_backlog(800 * KIB);
        let (address, running) = serve(limits, policy);
        let mut peer = narrow(address);
        eventually("it listens", || running.hub().subscribers("feed") == 1);
        let len = |n: usize| if n.is_multiple_of(2) { 150 * KIB + n } else { 1000 + n };
        let of = |n: usize| [&(n as u32).to_be_bytes()[..], &noise(len(n), n as u64)].concat();
        const MANY: usize = 60;
        let frame = |n: usize| Frame::binary(of(n)).keyed(n % 4);
        let publish = |n: usize| total(&running.hub().publish("feed", frame(n)).unwrap());
        let dropped: Vec<bool> = (0..MANY).map(|n| publish(n).dropped == 1).collect();
        let last = dropped.iter().rposition(|dropped| !dropped).unwrap();
        let (mut got, mut newest) = (Vec::new(), 0);
        loop {
            let Some(Received::Message { payload, frames, .. }) = peer.next() else { panic!() };
            let n = u32::from_be_bytes(payload[..4].try_into().unwrap()) as usize;
            assert!(payload == of(n), "{policy}: message {n} is damaged");
            assert_eq!(frames.len() > 1, n.is_multiple_of(2), "{policy}");
            assert!(policy == SlowPolicy::Latest || got.last() < Some(&n));
            got.push(n);
            newest += usize::from(n >= MANY - 4);
            match policy {
                SlowPolicy::Latest if newest == 4 => break,
                SlowPolicy::DropOldest | SlowPolicy::DropNewest if n == last => break,
                _ => {}
            }
        }
        assert!(got.len() < MANY, "{policy}: nothing was dropped");
        assert_eq!(got[0], 0, "{policy}: it had begun to leave");
        stop(running);
    }
}

#[test]
fn a_message_that_has_begun_does_not_grow_too_old() {
    // So long that even on a busy machine, messages sent at once are not too old.
    let age = Duration::from_secs(1);
    let rules = Backpressure::new(SlowPolicy::DropNewest).max_age(age).max_backlog(100 * MIB);
    let (address, running) = serve(limits(), rules);
    let mut peer = narrow(address);
    eventually("it listens", || running.hub().subscribers("feed") == 1);
    let large = noise(5 * MIB, 1);
    drop(running.hub().publish("feed", &large).unwrap());
    drop(running.hub().publish("feed", "too old by then").unwrap());
    eventually("it is too old", || figure(address, "default", "expired") == 1);
    peer.expect_message(&large);
    drop(running.hub().publish("feed", "the next").unwrap());
    peer.expect_message(b"the next");
    stop(running);
}

/// A message larger than the backlog does not make its receiver slow while it leaves.
#[test]
fn a_small_message_behind_a_very_large_one_does_not_make_a_slow_consumer() {
    let (address, running) = serve(Limits::default(), SlowPolicy::Close);
    let mut peer = narrow(address);
    eventually("it listens", || running.hub().subscribers("feed") == 1);
    let large = noise(8 * MIB, 1);
    drop(running.hub().publish("feed", &large).unwrap());
    read_into(&mut peer, 100 * KIB);
    assert_eq!(total(&running.hub().publish("feed", "small").unwrap()).queued, 1);
    peer.expect_message(&large);
    peer.expect_message(b"small");
    stop(running);
}

#[test]
fn others_of_the_shard_are_served_while_64_mib_drip() {
    let (address, running) = serve(limits(), SlowPolicy::Close);
    let (mut slow, mut quick) = (narrow(address), join(address));
    slow.say(true, format!("send {}", 64 * MIB).as_bytes());
    read_into(&mut slow, 70 * KIB);
    for n in 0..200_u32 {
        assert!(slow.read(4096), "it drips");
        assert_eq!(slow.reader.next().map(|heard| heard.is_some()), Ok(false));
        quick.say(false, &n.to_be_bytes());
        quick.expect_message(&n.to_be_bytes());
    }
    stop(running);
}
