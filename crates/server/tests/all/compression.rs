//! permessage-deflate over real sockets, against peers that compress and decompress as plain
//! streams: messages arrive intact in any order and at any receiver.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::net::SocketAddr;

use throng::prelude::*;
use throng::ws::{Compression, Deflate, Incompressible};

use crate::support::deflating::Peer;
use crate::support::served::{self, dial_narrow, start, start_narrow, stop, total};
use crate::support::wire::Received;
use crate::support::{dial, eventually};

const PLAIN: &str = "";
const DEFLATE: &str = "permessage-deflate; client_max_window_bits";

/// Randomness of a test, from its seed.
struct Dice(u64);

impl Dice {
    fn draw(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize
    }

    fn below(&mut self, n: usize) -> usize {
        self.draw() % n
    }

    /// Words that repeat, in another order each time.
    fn prose(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 8] =
            ["{\"symbol\":\"", "EURUSD", "\",\"price\":", "1.0", "73", "42", "true", "},\n"];
        let mut out = Vec::with_capacity(len + 16);
        while out.len() < len {
            out.extend_from_slice(WORDS[self.below(8)].as_bytes());
        }
        out.truncate(len);
        out
    }

    fn noise(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.draw() as u8).collect()
    }

    fn body(&mut self, len: usize) -> Vec<u8> {
        match self.below(7) {
            0 => self.noise(len),
            // Repetitions at a distance: too far for some windows.
            6 => {
                let period = 1 + [400, 900, 3000][self.below(3)].min(len);
                self.noise(period).iter().copied().cycle().take(len).collect()
            }
            1 => vec![b'z'; len],
            _ => self.prose(len),
        }
    }

    fn len(&mut self) -> usize {
        let most = [0, 1, 5, 60, 125, 300, 1100, 5000, 40_000][self.below(9)];
        self.below(most + 1)
    }
}

#[test]
fn negotiation_forms_end_to_end() {
    let window = |bits| Compression::Window { bits };
    let server = Server::new(
        served::app()
            .ws("/off", Ws::new().on_message(|ws, (), message| ws.send(message)))
            .ws(
                "/shared",
                Ws::new().on_message(|ws, (), m| ws.send(m)).compression(Compression::Shared),
            )
            .ws("/w10", Ws::new().on_message(|ws, (), m| ws.send(m)).compression(window(10)))
            .ws("/w15", Ws::new().on_message(|ws, (), m| ws.send(m)).compression(window(15))),
    );
    let (address, running) = start(server.shards(1));
    let both = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    let cases = [
        ("/off", DEFLATE, None),
        ("/shared", PLAIN, None),
        ("/shared", "x-webkit-deflate-frame", None),
        ("/shared", "permessage-deflate", Some(both)),
        ("/shared", DEFLATE, Some(both)),
        ("/shared", "permessage-deflate; server_max_window_bits=8", None),
        ("/shared", "permessage-deflate; server_max_window_bits=07", None),
        ("/shared", "permessage-deflate; server_max_window_bits=16", None),
        ("/shared", "permessage-deflate; magic", None),
        ("/shared", "permessage-deflate; server_max_window_bits=8, permessage-deflate", Some(both)),
        (
            "/shared",
            "permessage-deflate; server_max_window_bits=9; client_max_window_bits=9",
            Some(
                "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
                 server_max_window_bits=9; client_max_window_bits=9",
            ),
        ),
        ("/w10", "permessage-deflate", Some("permessage-deflate; client_no_context_takeover")),
        ("/w10", DEFLATE, Some("permessage-deflate; client_max_window_bits=10")),
        (
            "/w10",
            "permessage-deflate; client_max_window_bits=9; server_max_window_bits=\"12\"",
            Some("permessage-deflate; server_max_window_bits=12; client_max_window_bits=9"),
        ),
        (
            "/w10",
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
            Some(both),
        ),
        ("/w15", DEFLATE, Some("permessage-deflate")),
        (
            "/w15",
            "permessage-deflate; server_no_context_takeover",
            Some("permessage-deflate; server_no_context_takeover"),
        ),
    ];
    let mut dice = Dice(1);
    for (path, offer, expected) in cases {
        let mut peer = Peer::connect(address, path, offer);
        let answer = peer.head.lines().find_map(|l| l.strip_prefix("Sec-WebSocket-Extensions: "));
        assert_eq!(answer, expected, "{path} {offer}");
        for len in [300, 3000, 0, 5, 70_000, 300] {
            let message = dice.prose(len);
            peer.say(true, &message);
            let (deflated, _) = peer.expect_message(&message);
            if len >= 300 {
                assert_eq!(deflated, expected.is_some(), "{path} {offer}: {len}");
            }
        }
    }
    stop(running);
}

#[test]
fn a_malformed_offer_is_400() {
    let echo =
        Ws::new().on_message(|ws, (), message| ws.send(message)).compression(Compression::Shared);
    let (address, running) = start(Server::new(served::app().ws("/", echo)).shards(1));
    for offer in
        ["permessage-deflate;", "permessage-deflate; =9", ",;", "permessage-deflate; a=\"b"]
    {
        let head = Peer::upgrade(dial(address), "/", offer).err();
        assert!(head.is_some_and(|head| head.starts_with("HTTP/1.1 400 ")), "{offer}");
    }
    stop(running);
}

/// The first byte of a message selects the action; the second and third are its author's number.
fn act(ws: &mut Socket<'_>, (): &mut (), message: Message<'_>) {
    let bytes = message.as_bytes();
    let text = matches!(message, Message::Text(_));
    let send = |ws: &mut Socket<'_>, bytes: &[u8]| {
        match text {
            true => ws.send(std::str::from_utf8(bytes).unwrap()),
            false => ws.send(bytes),
        };
    };
    match bytes.first() {
        Some(b'e') | None => send(ws, bytes),
        Some(b'2') => {
            send(ws, bytes);
            send(ws, bytes);
        }
        // A part of the message, and all of it as another kind.
        Some(b's') => {
            send(ws, &bytes[..bytes.len() - 1]);
            send(ws, &bytes[1..]);
            ws.send(bytes);
        }
        Some(b'm') => {
            let mut modified = bytes.to_vec();
            modified[0] = b'M';
            send(ws, &modified);
        }
        Some(b'i') => {
            let _ = match message {
                Message::Text(text) => ws.send(Incompressible(text)),
                Message::Binary(bytes) => ws.send(Incompressible(bytes)),
            };
        }
        Some(b'p') => {
            let frame = Frame::from(message);
            ws.publish_to_others("all", &frame);
            send(ws, bytes);
            ws.send(&frame);
        }
        Some(b'P') => drop(ws.publish_to_others("all", Frame::from(message).incompressible())),
        Some(b'b') => drop(ws.broadcast(message)),
        other => panic!("{other:?}"),
    }
}

/// Whether it is text, and its payload.
type SentMessage = (bool, Vec<u8>);

/// Messages that `act` sends to its author, and to each other client.
fn due(text: bool, bytes: &[u8]) -> (Vec<SentMessage>, Vec<SentMessage>) {
    let whole = (text, bytes.to_vec());
    match bytes.first() {
        Some(b'e' | b'i') | None => (vec![whole], vec![]),
        Some(b'2') => (vec![whole.clone(), whole], vec![]),
        Some(b's') => {
            let (head, tail) = (bytes[..bytes.len() - 1].to_vec(), bytes[1..].to_vec());
            (vec![(text, head), (text, tail), (false, bytes.to_vec())], vec![])
        }
        Some(b'm') => (vec![(text, [b"M", &bytes[1..]].concat())], vec![]),
        Some(b'p') => (vec![whole.clone(), whole.clone()], vec![whole]),
        _ => (vec![], vec![whole]),
    }
}

/// Returns the author of a message: the number after the action, if the action is still there.
fn author(payload: &[u8]) -> usize {
    let digits: Vec<u8> = payload.iter().copied().filter(u8::is_ascii_digit).take(2).collect();
    let at = usize::from(payload.first() == Some(&b'2'));
    match payload.len() {
        0 => usize::MAX,
        _ if at == 1 => usize::from(payload[1] - b'0') * 10 + usize::from(payload[2] - b'0'),
        _ => usize::from(digits[0] - b'0') * 10 + usize::from(digits[1] - b'0'),
    }
}

fn mixed(compression: impl Fn(Compression) -> Deflate) -> (SocketAddr, Running) {
    let member = |chosen: Compression| {
        Ws::new()
            .on_open(|ws, ()| {
                ws.subscribe("all");
            })
            .on_message(act)
            .compression(compression(chosen))
    };
    let limits = Limits::default().max_backlog(256 << 20).max_message_size(8 << 20);
    start(
        Server::new(
            served::app()
                .ws("/plain", member(Compression::Off))
                .ws("/shared", member(Compression::Shared))
                .ws("/w9", member(Compression::Window { bits: 9 }))
                .ws("/w10", member(Compression::Window { bits: 10 }))
                .ws("/w12", member(Compression::Window { bits: 12 }))
                .ws("/w15", member(Compression::Window { bits: 15 })),
        )
        .limits(limits)
        .shards(2),
    )
}

/// All clients send at once; each gets all messages in each author's order.
fn converse(
    compression: impl Fn(Compression) -> Deflate,
    seed: u64,
    messages: usize,
    large: usize,
) {
    let (address, running) = mixed(compression);
    let ends = [
        ("/plain", DEFLATE),
        ("/shared", PLAIN),
        ("/shared", DEFLATE),
        ("/shared", "permessage-deflate; server_max_window_bits=9; client_max_window_bits=10"),
        ("/w9", DEFLATE),
        ("/w10", DEFLATE),
        ("/w10", "permessage-deflate; server_max_window_bits=9; client_max_window_bits=9"),
        ("/w10", "permessage-deflate; server_no_context_takeover; client_max_window_bits"),
        ("/w12", DEFLATE),
        ("/w12", "permessage-deflate; server_max_window_bits=10"),
        ("/w15", DEFLATE),
        ("/w15", "permessage-deflate; client_no_context_takeover"),
    ];
    let peers: Vec<Peer> =
        ends.iter().map(|(path, offer)| Peer::connect(address, path, offer)).collect();
    eventually("all listen", || running.hub().subscribers("all") == ends.len());
    let mut dice = Dice(seed);
    // By receiver and author.
    let mut expected: Vec<HashMap<usize, VecDeque<SentMessage>>> =
        ends.iter().map(|_| HashMap::new()).collect();
    let mut scripts: Vec<Vec<SentMessage>> = vec![Vec::new(); ends.len()];
    for n in 0..messages {
        let by = dice.below(ends.len());
        let action = b"ee22ssmmiippPPbb"[dice.below(16)];
        let len = if n < large { 3 << 20 } else { dice.len() };
        let mut message = format!("{}{by:02}|{n}|", action as char).into_bytes();
        let body = dice.body(len);
        let text = body.is_ascii() && dice.below(2) == 0;
        message.extend(body);
        let (own, others) = due(text, &message);
        for (to, expected) in expected.iter_mut().enumerate() {
            let due = if to == by { &own } else { &others };
            expected.entry(by).or_default().extend(due.iter().cloned());
        }
        scripts[by].push((text, message));
    }
    std::thread::scope(|scope| {
        for ((mut peer, script), (mut expected, end)) in
            peers.into_iter().zip(scripts).zip(expected.into_iter().zip(ends))
        {
            let mut stream = peer.stream.try_clone().unwrap();
            let mut writer =
                std::mem::replace(&mut peer.writer, crate::support::wire::Writer::of_client(None));
            let mut dice = Dice(seed ^ script.len() as u64);
            scope.spawn(move || {
                for (text, message) in script {
                    let compress = writer.can_deflate() && dice.below(5) > 0;
                    let fragments = [1, 1, 2, 7][dice.below(4)];
                    let bytes = writer.message_cut(text, &message, compress, fragments);
                    stream.write_all(&bytes).unwrap();
                }
            });
            scope.spawn(move || {
                let mut left: usize = expected.values().map(VecDeque::len).sum();
                while left > 0 {
                    let Some(Received::Message { text, payload, .. }) = peer.next() else {
                        panic!("{end:?}: the end, with {left} messages missing")
                    };
                    let from = author(&payload);
                    let due = expected.get_mut(&from).and_then(VecDeque::pop_front);
                    let (due_text, due) = due.unwrap_or_else(|| panic!("nothing due from {from}"));
                    assert!(
                        text == due_text && payload == due,
                        "{end:?}: {} bytes instead of {} from {from}",
                        payload.len(),
                        due.len()
                    );
                    left -= 1;
                }
            });
        }
    });
    stop(running);
}

#[test]
fn everyone_gets_everything_whatever_the_windows() {
    for seed in 0..3 {
        converse(Deflate::from, seed, 400, 0);
    }
}

#[test]
fn the_same_with_every_message_compressed_and_higher_levels() {
    let all = |chosen: Compression| Deflate::from(chosen).threshold(Some(0)).level(6).mem_level(1);
    converse(all, 7, 300, 0);
}

#[test]
fn the_same_with_messages_of_megabytes_among_them() {
    converse(Deflate::from, 11, 60, 5);
}

/// A compressed message is forwarded as it came, but only while its callback runs: the next message
/// lies in the same memory.
#[test]
fn a_message_sent_on_as_it_came_is_never_taken_for_the_next_one() {
    let server = Server::new(
        served::app()
            .ws(
                "/shared",
                Ws::new().on_message(|ws, (), m| ws.send(m)).compression(Compression::Shared),
            )
            .ws(
                "/w15",
                Ws::new().on_message(|ws, (), m| ws.send(m)).compression(
                    Deflate::from(Compression::Window { bits: 15 })
                        .server_no_context_takeover(Some(true)),
                ),
            ),
    );
    let (address, running) = start(server.shards(1));
    let mut dice = Dice(77);
    let mut shared = Peer::connect(address, "/shared", DEFLATE);
    let mut keeps = Peer::connect(address, "/w15", DEFLATE);
    for _ in 0..10 {
        let len = 400 + dice.below(1000);
        let (first, second, noise) = (dice.prose(len), dice.prose(len), dice.noise(len));
        shared.say(false, &first);
        assert!(shared.expect_message(&first).0);
        // Compressed, but not forwardable: it did not shrink.
        shared.say(false, &noise);
        assert!(!shared.expect_message(&noise).0);
        // The same, because it refers to earlier messages.
        keeps.say(false, &first);
        keeps.expect_message(&first);
        shared.say(false, &first);
        shared.expect_message(&first);
        keeps.say(false, &second);
        assert!(keeps.expect_message(&second).0);
        // Together in one packet: the second not compressed, the third again.
        let mut bytes = shared.writer.message(false, &first, true);
        bytes.extend(shared.writer.message(false, &second, false));
        bytes.extend(shared.writer.message(false, &noise, true));
        bytes.extend(shared.writer.message(false, &second, true));
        shared.stream.write_all(&bytes).unwrap();
        for due in [&first, &second, &noise, &second] {
            shared.expect_message(due);
        }
    }
    stop(running);
}

#[test]
fn a_message_that_would_be_sent_in_fragments_is_sent_on_as_it_came() {
    let echo = Ws::new().on_message(|ws, (), m| ws.send(m));
    let app = served::app().ws("/", echo.compression(Compression::Shared));
    let (address, running) = start(Server::new(app).shards(1));
    let large = Dice(7).prose(3 << 20);
    let mut peer = Peer::connect(address, "/", DEFLATE);
    for _ in 0..2 {
        peer.say(false, &large);
        assert!(peer.expect_message(&large).0, "compressed");
    }
    eventually("both are counted", || running.stats().messages_out == 2);
    assert_eq!(running.stats().deflate_input_bytes, 0);
    stop(running);
}

/// A member of "feed" that does not read yet.
fn slow(rules: Backpressure, compression: Deflate, offer: &str) -> (Running, Peer) {
    let member = Ws::new()
        .on_open(|ws, ()| {
            ws.subscribe("feed");
        })
        .on_message(|ws, (), message| ws.send(message))
        .compression(compression)
        .backpressure(rules);
    let (address, running) = start_narrow(Server::new(served::app().ws("/", member)).shards(1));
    let peer = Peer::over(dial_narrow(address), "/", offer);
    assert!(peer.terms.is_some_and(|terms| terms.server_context));
    eventually("it listens", || running.hub().subscribers("feed") == 1);
    (running, peer)
}

/// Messages dropped from a queue are not in the context; messages delivered are.
#[test]
fn dropping_for_a_slow_receiver_never_corrupts_its_context() {
    const MANY: usize = 1200;
    for policy in [SlowPolicy::DropOldest, SlowPolicy::DropNewest, SlowPolicy::Latest] {
        for bits in [9, 10, 15] {
            let rules = Backpressure::new(policy).max_backlog(60_000);
            let (running, mut peer) =
                slow(rules, Compression::Window { bits }.into(), "permessage-deflate");
            let hub = running.hub();
            let mut dice = Dice(u64::from(bits));
            let messages: Vec<Vec<u8>> = (0..MANY)
                .map(|n| {
                    // Half noise, so that it fills the kernel's buffers, and half what others have
                    // in common.
                    let mut message = format!("{n}|").into_bytes();
                    let (prose, noise) = (dice.below(600), dice.below(600));
                    message.extend(dice.prose(prose));
                    message.extend(dice.noise(noise));
                    message.extend(dice.prose(100));
                    message
                })
                .collect();
            let publish = |(n, message): (usize, &Vec<u8>)| {
                let frame = Frame::binary(message).keyed(n % 5);
                let frame = if n % 17 == 0 { frame.incompressible() } else { frame };
                hub.publish("feed", &frame).unwrap()
            };
            let receipts: Vec<_> = messages.iter().enumerate().map(publish).collect();
            let admitted: Vec<bool> =
                receipts.iter().map(|receipt| total(receipt).dropped == 0).collect();
            let last_admitted = admitted.iter().rposition(|admitted| *admitted).unwrap();
            let number = |payload: &[u8]| -> usize {
                let text = payload.split(|byte| *byte == b'|').next().unwrap();
                std::str::from_utf8(text).unwrap().parse().unwrap()
            };
            let (mut got, mut newest) = (Vec::new(), 0);
            loop {
                let heard = peer.next().unwrap();
                let n = number(heard.payload());
                assert!(heard.payload() == messages[n], "{policy} {bits}: message {n} damaged");
                assert!(policy == SlowPolicy::Latest || got.last() < Some(&n), "{policy} {bits}");
                newest += usize::from(n >= MANY - 5);
                got.push(n);
                match policy {
                    SlowPolicy::Latest if newest == 5 => break,
                    SlowPolicy::DropOldest | SlowPolicy::DropNewest if n == last_admitted => break,
                    _ => {}
                }
            }
            assert!(got.len() < MANY, "{policy} {bits}: nothing was dropped");
            // Both directions of the context are still intact.
            for n in 0..20 {
                let echo = [&messages[n][..], b"again"].concat();
                drop(hub.publish("feed", Frame::binary(&messages[n + 1])).unwrap());
                peer.say(false, &echo);
                let (a, b) = (peer.next().unwrap(), peer.next().unwrap());
                let (a, b) = (a.payload(), b.payload());
                assert!((a == echo && b == messages[n + 1]) || (b == echo && a == messages[n + 1]));
            }
            stop(running);
        }
    }
}

#[test]
fn a_close_behind_what_waits_comes_after_all_of_it() {
    for by_drain in [false, true] {
        let rules = Backpressure::new(SlowPolicy::DropOldest).max_backlog(100_000);
        let (running, mut peer) =
            slow(rules, Compression::Window { bits: 10 }.into(), "permessage-deflate");
        let hub = running.hub();
        let mut dice = Dice(5);
        let message = dice.noise(900);
        let frame = Frame::binary(&message);
        let mut queued = 0;
        while queued < 50 {
            let receipt = hub.publish("feed", &frame).unwrap();
            queued += total(&receipt).queued;
        }
        let prose = dice.prose(700);
        total(&hub.publish("feed", Frame::binary(&prose)).unwrap());
        let (drained, running) = if by_drain {
            let drain = move || running.shutdown(DrainPlan::default()).wait().unwrap();
            (Some(std::thread::spawn(drain)), None)
        } else {
            // Its own Close is answered after the queued messages.
            peer.write_frame(0x88, &1000u16.to_be_bytes());
            (None, Some(running))
        };
        let mut last = Vec::new();
        let close = loop {
            match peer.next() {
                Some(Received::Message { payload, .. }) => {
                    assert!(payload == message || payload == prose);
                    last = payload;
                }
                Some(Received::Close { code, .. }) => break code,
                other => panic!("{other:?}"),
            }
        };
        assert!(last == prose, "the newest is the last before the Close");
        assert_eq!(close, if by_drain { 1001 } else { 1000 });
        if by_drain {
            peer.write_frame(0x88, &1001u16.to_be_bytes());
        }
        drop(peer);
        drained.map(|drained| drained.join().unwrap());
        if let Some(running) = running {
            stop(running);
        }
    }
}

#[test]
fn broken_streams_and_misplaced_bits_are_refused() {
    let echo = |compression: Compression| {
        Ws::new().on_message(|ws, (), message| ws.send(message)).compression(compression)
    };
    let server = Server::new(
        served::app()
            .ws("/shared", echo(Compression::Shared))
            .ws("/w10", echo(Compression::Window { bits: 10 })),
    );
    let (address, running) = start(server.shards(1));
    let prose = Dice(3).prose(2000);
    for path in ["/shared", "/w10"] {
        let connect = || {
            let mut peer = Peer::connect(address, path, DEFLATE);
            peer.say(true, &prose);
            peer.expect_message(&prose);
            peer
        };
        // Garbage, truncated and followed by garbage, in one frame or two.
        let good = connect().writer.deflate(&prose);
        let cut = &good[..good.len() / 2];
        let more = [&good[..], &[0xff, 0xff, 0xff]].concat();
        for bad in [&[0xff_u8, 0xfe, 0xfd][..], &[0x07, 0x03], cut, &more] {
            for fragments in [1, 2] {
                let mut peer = connect();
                let (first, second) = bad.split_at(if fragments == 2 { 1 } else { bad.len() });
                if fragments == 2 {
                    peer.write_frame(0x41, first);
                    peer.ping(b"between");
                    peer.write_frame(0x80, second);
                } else {
                    peer.write_frame(0xc1, first);
                }
                let (code, reason) = peer.expect_close();
                assert_eq!(code, 1007, "{path}: {} bytes: {reason}", bad.len());
            }
        }
        // Invalid text, detectable only after it is inflated.
        let mut peer = connect();
        let deflated = peer.writer.deflate(&[b"caf\xe9".as_slice(), &prose].concat());
        peer.write_frame(0xc1, &deflated);
        assert_eq!(peer.expect_close().0, 1007);
        // RSV1 on a control frame, on a continuation; RSV2 beside it.
        for first in [0xc9, 0xc8, 0xe1, 0xd1] {
            let mut peer = connect();
            peer.write_frame(first, b"");
            assert_eq!(peer.expect_close().0, 1002, "{first:x}");
        }
        for start in [0x01, 0x41] {
            let mut peer = connect();
            peer.write_frame(start, b"");
            peer.write_frame(0xc0, b"");
            assert_eq!(peer.expect_close().0, 1002);
        }
    }
    // Not negotiated: RSV1 is a violation.
    let mut peer = Peer::connect(address, "/shared", PLAIN);
    peer.write_frame(0xc1, b"");
    assert_eq!(peer.expect_close().0, 1002);
    stop(running);
}

#[test]
fn a_compressed_message_in_ten_thousand_fragments_with_pings_between() {
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let server =
        Server::new(served::app().ws("/", echo.compression(Compression::Window { bits: 12 })));
    let (address, running) = start(server.shards(1));
    let mut peer = Peer::connect(address, "/", DEFLATE);
    let mut dice = Dice(9);
    let message = dice.noise(12_000);
    for _ in 0..2 {
        let deflated = peer.writer.deflate(&message);
        let size = deflated.len() / 10_000;
        let (mut bytes, mut pings) = (Vec::new(), 0);
        let pieces: Vec<&[u8]> = deflated.chunks(size.max(1)).collect();
        assert!(pieces.len() >= 10_000);
        for (at, piece) in pieces.iter().enumerate() {
            let fin = if at + 1 == pieces.len() { 0x80 } else { 0 };
            let first = if at == 0 { 0x42 } else { 0 };
            peer.writer.frame(fin | first, piece, &mut bytes);
            if at % 100 == 0 {
                peer.writer.frame(0x89, &at.to_be_bytes(), &mut bytes);
                pings += 1;
            }
        }
        peer.stream.write_all(&bytes).unwrap();
        let mut pongs = 0;
        loop {
            match peer.next().unwrap() {
                Received::Pong { .. } => pongs += 1,
                Received::Message { payload, .. } => break assert!(payload == message),
                other => panic!("{other:?}"),
            }
        }
        assert!(pongs > 0 && pongs <= pings, "{pongs} pongs");
    }
    stop(running);
}
