//! permessage-deflate and fragments in simulated worlds: peers that compress and decompress as
//! plain streams check every message, under any behaviour of the network, the kernel and other
//! receivers. Also tests both roles of the engine against each other.

#[path = "../../../server/tests/support/wire.rs"]
mod wire;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use throng_engine::{
    Answer, Backpressure, BuildOptions, Classes, Close, Cx, Filter, Frame, Limits, Message,
    Refusal, Sent, Service, Shard, SlowPolicy, build,
};
use throng_io::ConnId;
use throng_proto::http1::Request;
use throng_proto::ws::deflate::{Mode, Policy, Settings};
use throng_proto::ws::handshake::{check_request, encode_response_with};
use throng_sim::net::{LinkId, LinkOptions, Readable, Side};
use throng_sim::{Faults, Net, Rng, SharedNet, SimDriver, Waiting};
use wire::{Reader, Received, Terms, Writer};

/// A message: true for text, and its payload.
type Said = (bool, Rc<Vec<u8>>);

/// Messages that each peer must receive, and messages that each peer has sent.
#[derive(Default)]
struct Ledger {
    due: Vec<Vec<Said>>,
    said: Vec<Vec<Said>>,
    /// The number of sent messages that the service has received.
    got: Vec<usize>,
    /// Sessions, by peer.
    open: Vec<Option<ConnId>>,
    /// The service closed it, or panicked.
    dismissed: Vec<bool>,
}

struct Server {
    ledger: Rc<RefCell<Ledger>>,
    policies: Vec<Policy>,
    rng: Rng,
    counter: u32,
    frames: Vec<Frame>,
}

fn prose(rng: &mut Rng, len: usize) -> Vec<u8> {
    const WORDS: [&str; 6] = ["the quick ", "brown fox ", "{\"id\":", "0", "1.25,", "jumps "];
    let mut out = Vec::new();
    while out.len() < len {
        out.extend_from_slice(WORDS[rng.below(WORDS.len())].as_bytes());
    }
    out.truncate(len);
    out
}

/// Some of it repeats, some of it does not.
fn body(rng: &mut Rng, most: usize) -> Vec<u8> {
    let len = [0, 3, 70, 300, 2000, 20_000, 120_000][rng.below(7)].min(most);
    let len = rng.below(len + 1);
    match rng.below(6) {
        0 => rng.bytes(len),
        // The text repeats only at a distance that is too far for some windows.
        5 => {
            let period = 1 + rng.pick(&[400, 900, 3000]).min(len);
            rng.bytes(period).iter().copied().cycle().take(len).collect()
        }
        1 => vec![b'a'; len],
        2 => [rng.bytes(len / 3), prose(rng, len / 3), rng.bytes(len / 3)].concat(),
        _ => prose(rng, len),
    }
}

fn of(message: Message<'_>) -> Said {
    let text = matches!(message, Message::Text(_));
    (text, Rc::new(message.as_bytes().to_vec()))
}

fn message_of((text, bytes): &Said) -> Message<'_> {
    match text {
        true => Message::Text(std::str::from_utf8(bytes).expect("said as text")),
        false => Message::Binary(bytes),
    }
}

fn frame_of((text, bytes): &Said) -> Frame {
    match text {
        true => Frame::text(std::str::from_utf8(bytes).expect("said as text")),
        false => Frame::binary(&**bytes),
    }
}

impl Server {
    /// Returns a message that was not sent before.
    fn new_message(&mut self, most: usize) -> Said {
        self.counter += 1;
        let mut bytes = format!("#{}|", self.counter).into_bytes();
        bytes.extend(body(&mut self.rng, most));
        (bytes.is_ascii() && self.rng.one_in(2), Rc::new(bytes))
    }

    fn note(&self, sent: Sent, to: usize, said: &Said) {
        if matches!(sent, Sent::Accepted | Sent::Queued) {
            self.ledger.borrow_mut().due[to].push(said.clone());
        }
    }

    fn publish(&mut self, cx: &mut Cx<'_>, me: usize, said: &Said, frame: &Frame) {
        let all = self.rng.one_in(2);
        if all {
            cx.core().broadcast(&Filter::default().into(), frame);
        } else {
            cx.publish_unordered("all", frame);
        }
        let mut ledger = self.ledger.borrow_mut();
        for to in 0..ledger.open.len() {
            if ledger.open[to].is_some() && (all || to != me) {
                ledger.due[to].push(said.clone());
            }
        }
    }

    fn act(&mut self, cx: &mut Cx<'_>, me: usize, message: Message<'_>) {
        let said = of(message);
        match self.rng.below(24) {
            0..6 => {
                let sent = cx.send(message);
                self.note(sent, me, &said);
            }
            6..8 => {
                for _ in 0..2 {
                    let sent = cx.send(message);
                    self.note(sent, me, &said);
                }
                let bytes = message.as_bytes();
                let part = &bytes[..bytes.len() / 2];
                let sent = cx.send(Message::Binary(part));
                self.note(sent, me, &(false, Rc::new(part.to_vec())));
            }
            8..11 => {
                // Sends the message to another peer, directly from the received memory.
                let others = self.ledger.borrow().open.len();
                let to = self.rng.below(others);
                let id = self.ledger.borrow().open[to];
                if let Some(id) = id {
                    let sent = cx.core().send(id, message);
                    self.note(sent, to, &said);
                }
            }
            11..14 => {
                let frame = frame_of(&said);
                let frame = if self.rng.one_in(4) { frame.incompressible() } else { frame };
                self.publish(cx, me, &said, &frame);
            }
            14..16 => {
                // A message of few frames, which is sent repeatedly.
                if self.frames.len() < 3 {
                    let said = self.new_message(30_000);
                    self.frames.push(frame_of(&said));
                }
                let frame = self.frames[self.rng.below(self.frames.len())].clone();
                let text = frame.as_bytes()[0] & 0xf == 1;
                let said = (text, Rc::new(frame.payload().to_vec()));
                if self.rng.one_in(2) {
                    let sent = cx.send_frame(&frame);
                    self.note(sent, me, &said);
                } else {
                    self.publish(cx, me, &said, &frame.keyed(1));
                }
            }
            16..18 => {
                let said = self.new_message(120_000);
                let sent = match self.rng.one_in(3) {
                    true => cx.send_incompressible(message_of(&said)),
                    false => cx.send(message_of(&said)),
                };
                self.note(sent, me, &said);
            }
            18..20 => {
                let mut modified = message.as_bytes().to_vec();
                modified.push(7);
                let sent = cx.send(Message::Binary(&modified));
                self.note(sent, me, &(false, Rc::new(modified)));
            }
            20 if self.rng.one_in(6) => {
                self.ledger.borrow_mut().dismissed[me] = true;
                cx.close(4001, "enough");
            }
            21 if self.rng.one_in(3) => {
                self.ledger.borrow_mut().dismissed[me] = true;
                std::panic::panic_any(throng_sim::exchange::Planned);
            }
            _ => {}
        }
    }
}

impl Service for Server {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        let key = check_request(request.method(), request.is_http11(), request).expect("ours");
        let number: u32 = request.path()[1..].parse().expect("a peer's number");
        let policy = self.policies[number as usize];
        let accepted = policy.accept(request).expect("well formed");
        if let Some(accepted) = &accepted {
            assert!(cx.set_deflate(policy, accepted.agreed));
        }
        let answer = accepted.as_ref().map(|accepted| &accepted.answer);
        cx.write(|out| encode_response_with(&key.accept(), None, answer, out).expect("sendable"));
        cx.set_route(0, number);
        Answer::Upgraded
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, status: u16, reason: &str) {
        assert_eq!(status, 408, "{reason}");
    }

    fn on_refused(&mut self, _: &mut Cx<'_>, why: Refusal) {
        panic!("no request is refused here: {why:?}");
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        cx.subscribe("all");
        self.ledger.borrow_mut().open[cx.data() as usize] = Some(cx.id());
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let me = cx.data() as usize;
        {
            let mut ledger = self.ledger.borrow_mut();
            let at = ledger.got[me];
            ledger.got[me] += 1;
            let (text, bytes) = &ledger.said[me][at];
            assert_eq!(*text, matches!(message, Message::Text(_)), "peer {me}, message {at}");
            assert!(**bytes == message.as_bytes(), "peer {me}: message {at} came damaged");
        }
        self.act(cx, me, message);
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, cx: &mut Cx<'_>, _: Close<'_>) {
        self.ledger.borrow_mut().open[cx.data() as usize] = None;
    }
}

/// A client that sends this many messages, closes, and reads at its own pace.
struct Peer {
    number: usize,
    link: LinkId,
    head: Option<Vec<u8>>,
    reader: Reader,
    writer: Writer,
    out: Vec<u8>,
    left: usize,
    /// Maximum bytes of a read and of a write.
    most: (usize, usize),
    /// The client reads once in this many of its turns; a slow client only does so for a while.
    lazy: usize,
    turns: usize,
    received: Vec<Said>,
    closed: bool,
    close: Option<(u16, bool)>,
    pongs: usize,
    end: bool,
    rng: Rng,
}

impl Peer {
    fn turn(&mut self, net: &mut Net, ledger: &RefCell<Ledger>) -> Result<(), String> {
        self.turns += 1;
        match net.readable(self.link, Side::Dialer) {
            Readable::Reset => {
                self.end = true;
                net.close(self.link, Side::Dialer);
                return Ok(());
            }
            Readable::Finished => {
                self.end = true;
                if self.close.is_none() && self.head.is_none() {
                    return Err("the end without a Close frame".to_owned());
                }
                net.close(self.link, Side::Dialer);
                return Ok(());
            }
            Readable::Bytes(_) if self.turns > 400 || self.rng.one_in(self.lazy) => {
                let mut bytes = Vec::new();
                let max = 1 + self.rng.below(self.most.0);
                net.read(self.link, Side::Dialer, max, &mut bytes);
                self.take(&bytes)?;
            }
            _ => {}
        }
        if self.out.is_empty() && self.head.is_none() && !self.closed {
            self.say(ledger);
        }
        let n = self.out.len().min(1 + self.rng.below(self.most.1));
        let n = n.min(net.space(self.link, Side::Dialer));
        net.write(self.link, Side::Dialer, &self.out[..n]);
        self.out.drain(..n);
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut bytes = bytes.to_vec();
        if let Some(head) = &mut self.head {
            head.extend_from_slice(&bytes);
            let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") else {
                return Ok(());
            };
            bytes = head.split_off(end + 4);
            let text = String::from_utf8(self.head.take().unwrap_or_default()).expect("ASCII");
            assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
            let terms = Terms::of_head(&text);
            (self.reader, self.writer) = (Reader::of_server(terms), Writer::of_client(terms));
        }
        self.reader.push(&bytes);
        while let Some(received) = self.reader.next()? {
            match received {
                Received::Message { text, payload, .. } => {
                    self.received.push((text, Rc::new(payload)));
                }
                Received::Ping(_) => {}
                Received::Pong { .. } => self.pongs += 1,
                Received::Close { code, inside, .. } => {
                    if !self.closed {
                        self.closed = true;
                        // A close that interrupts a message leaves a part of a frame, but the frame
                        // is still sent completely.
                        let mut frame = Vec::new();
                        self.writer.frame(0x88, &code.to_be_bytes(), &mut frame);
                        self.out.extend(frame);
                    }
                    self.close = Some((code, inside.is_some()));
                }
            }
        }
        Ok(())
    }

    fn say(&mut self, ledger: &RefCell<Ledger>) {
        if self.left == 0 {
            self.closed = true;
            self.writer.frame(0x88, &1000_u16.to_be_bytes(), &mut self.out);
            return;
        }
        self.left -= 1;
        if self.rng.one_in(6) {
            self.writer.frame(0x89, b"ping", &mut self.out);
        }
        let number = format!("{}:{}|", self.number, self.left);
        let bytes = [number.as_bytes(), &body(&mut self.rng, 50_000)].concat();
        let text = bytes.is_ascii() && self.rng.one_in(2);
        let compress = self.writer.can_deflate() && !self.rng.one_in(4);
        let fragments = self.rng.pick(&[1, 1, 2, 5]);
        self.out.extend(self.writer.message_cut(text, &bytes, compress, fragments));
        ledger.borrow_mut().said[self.number].push((text, Rc::new(bytes)));
    }
}

const OFFERS: [&str; 6] = [
    "",
    "permessage-deflate",
    "permessage-deflate; client_max_window_bits",
    "permessage-deflate; server_max_window_bits=9; client_max_window_bits=9",
    "permessage-deflate; server_max_window_bits=10; client_max_window_bits=15",
    "permessage-deflate; server_no_context_takeover; client_max_window_bits=12",
];

fn policy(rng: &mut Rng) -> Policy {
    let mode = match rng.below(4) {
        0 => Mode::Shared,
        _ => Mode::Window { bits: rng.pick(&[9, 10, 12, 15]) },
    };
    let settings = Settings::new(mode).level(rng.pick(&[1, 6])).threshold(rng.pick(&[
        None,
        Some(0),
        Some(100),
    ]));
    settings.check().expect("valid settings").expect("enabled")
}

/// Sums of one world's run.
#[derive(Debug, Default)]
struct Sums {
    received: usize,
    cut: usize,
    dismissed: usize,
    slow: usize,
    pongs: usize,
    dropped: usize,
}

fn world(seed: u64, sums: &mut Sums) {
    let mut rng = Rng::new(seed);
    let mut faults = Faults::of(&mut rng);
    (faults.clock_leaps, faults.accept_fails, faults.adopt_fails) = (0, 0, 0);
    faults.receive_buffer = faults.receive_buffer.max(1000);
    // Such long messages take too long byte by byte; the other plans cover that.
    faults.cut_receives = if faults.cut_receives == 0 { 0 } else { faults.cut_receives.max(500) };
    let net = Net::shared();
    let listener = net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1)));
    let mut driver = SimDriver::new(&net, 0, faults.clone(), rng.fork(), Waiting::Never);
    driver.add_listener(listener);
    let slow_policy = rng.pick(&[
        SlowPolicy::Close,
        SlowPolicy::Close,
        SlowPolicy::DropOldest,
        SlowPolicy::DropNewest,
        SlowPolicy::Latest,
    ]);
    let mut classes = Classes::default();
    let mut rules = Backpressure::new(slow_policy);
    if slow_policy != SlowPolicy::Close && rng.one_in(3) {
        rules = rules.max_age(Duration::from_millis(20));
    }
    classes.set_default(rules);
    let limits = Limits::default()
        .fragment_threshold(rng.pick(&[100, 5000, 30_000, 1 << 20]))
        .fragment_size(rng.pick(&[100, 1000, 20_000, 64 << 10]))
        .max_backlog(rng.pick(&[4000, 60_000, 1 << 20, 16 << 20]))
        .heartbeat_interval(None)
        .write_timeout(Duration::from_secs(3600))
        .reassembly_timeout(Duration::from_secs(3600))
        .close_timeout(Duration::from_secs(3600))
        .handshake_timeout(Duration::from_secs(3600));
    let count = 2 + rng.below(6);
    let ledger = Rc::new(RefCell::new(Ledger {
        due: vec![Vec::new(); count],
        said: vec![Vec::new(); count],
        got: vec![0; count],
        open: vec![None; count],
        dismissed: vec![false; count],
    }));
    let policies: Vec<Policy> = (0..count).map(|_| policy(&mut rng)).collect();
    let options = BuildOptions { limits, classes, seed: Some(seed), ..BuildOptions::default() };
    let built = build(vec![driver], &options, |_, _, _| Server {
        ledger: Rc::clone(&ledger),
        policies: policies.clone(),
        rng: Rng::new(seed ^ 0x5e),
        counter: 0,
        frames: Vec::new(),
    });
    let mut shard = built.expect("valid limits").shards.remove(0);
    let mut peers: Vec<Peer> = (0..count)
        .map(|number| {
            let options = LinkOptions {
                latency: rng.pick(&[1000, 100_000]),
                capacity: rng.pick(&[3000, 20_000, 64 << 10, 4 << 20]),
                cut_after: rng.one_in(8).then(|| rng.between(1, 100_000)),
            };
            let from = SocketAddr::from(([127, 0, 0, 2], 1000 + number as u16));
            let link = net.borrow_mut().dial(listener, from, options).expect("it listens");
            let offer = rng.pick(&OFFERS);
            let extensions = match offer {
                "" => String::new(),
                offer => format!("Sec-WebSocket-Extensions: {offer}\r\n"),
            };
            let request = format!(
                "GET /{number} HTTP/1.1\r\nHost: sim\r\n\
                 Upgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\
                 {extensions}\r\n"
            );
            let pace = rng.pick(&[50, 3000, 100_000]);
            Peer {
                number,
                link,
                head: Some(Vec::new()),
                reader: Reader::of_server(None),
                writer: Writer::of_client(None),
                out: request.into_bytes(),
                left: rng.below(25),
                most: (pace.max(options.capacity / 20), rng.pick(&[900, 9000, 1 << 20])),
                lazy: rng.pick(&[1, 1, 4, 200]),
                turns: 0,
                received: Vec::new(),
                closed: false,
                close: None,
                pongs: 0,
                end: false,
                rng: rng.fork(),
            }
        })
        .collect();
    run(seed, &net, &mut shard, &mut peers, &ledger, &mut rng);
    let ledger = ledger.borrow();
    for peer in &peers {
        let what = format!("seed {seed}, peer {} of {slow_policy}", peer.number);
        let due = &ledger.due[peer.number];
        check(&what, slow_policy, peer, due);
        let (code, inside) = peer.close.unwrap_or((0, false));
        assert!(!inside || [1011, 1008].contains(&code), "{what}: {code} inside of a message");
        assert!(
            [0, 1000, 4001, 1011, 1008].contains(&code),
            "{what}: closed with {code} after {} messages",
            peer.received.len()
        );
        assert_eq!(
            code == 4001 || code == 1011,
            ledger.dismissed[peer.number] && code != 0 && code != 1000 && code != 1008,
            "{what}"
        );
        // The client's own Close was answered after everything else.
        if code == 1000 && slow_policy == SlowPolicy::Close {
            assert_eq!(peer.received.len(), due.len(), "{what}: some of it never came");
            assert_eq!(ledger.got[peer.number], ledger.said[peer.number].len(), "{what}");
        }
        sums.received += peer.received.len();
        sums.cut += usize::from(inside);
        sums.dismissed += usize::from(ledger.dismissed[peer.number]);
        sums.slow += usize::from(code == 1008);
        sums.pongs += peer.pongs;
        sums.dropped += usize::from(code == 1000 && peer.received.len() < due.len());
    }
    let audit = shard.audit();
    assert_eq!((audit.connections, audit.admitted, audit.cold), (0, 0, 0), "seed {seed}");
}

/// Runs a turn of each shard and peer that has something to do, until all peers have left.
fn run(
    seed: u64,
    net: &SharedNet,
    shard: &mut Shard<SimDriver, Server>,
    peers: &mut [Peer],
    ledger: &RefCell<Ledger>,
    rng: &mut Rng,
) {
    for _ in 0..3_000_000 {
        let now = net.borrow().now();
        shard.driver().progress();
        let deadline = shard.next_deadline().map(|deadline| deadline.0);
        let due = [deadline, shard.driver().next_event_at()].into_iter().flatten().min();
        if (shard.driver().is_ready() || due.is_some_and(|at| at <= now)) && rng.one_in(2) {
            assert_eq!(shard.turn().expect("a wait does not fail"), None);
        }
        let mut alive: Vec<&mut Peer> = peers.iter_mut().filter(|peer| !peer.end).collect();
        if alive.is_empty() {
            if shard.driver().connections() == 0 && due.is_none_or(|at| at > now) {
                return;
            }
            net.borrow_mut().advance_to(now + 1_000_000);
            continue;
        }
        let index = rng.below(alive.len());
        let peer = &mut alive[index];
        if let Err(error) = peer.turn(&mut net.borrow_mut(), ledger) {
            panic!("seed {seed}, peer {}: {error}", peer.number);
        }
        net.borrow_mut().advance_to(now + rng.between(1, 50_000));
    }
    let audit = shard.audit();
    let left: Vec<_> = peers
        .iter()
        .filter(|peer| !peer.end)
        .map(|peer| (peer.number, peer.closed, peer.close, peer.out.len(), peer.left, peer.turns))
        .collect();
    panic!("seed {seed}: it does not end: {audit:?}, peers {left:?}");
}

/// Checks that a peer received the messages due: all of them up to some point, or those not
/// dropped, in order.
fn check(what: &str, policy: SlowPolicy, peer: &Peer, due: &[Said]) {
    let mut at = 0;
    for (n, received) in peer.received.iter().enumerate() {
        let found = match policy {
            SlowPolicy::Close => (due.get(at) == Some(received)).then_some(at),
            // A newer value takes the place of an older one.
            SlowPolicy::Latest => due.iter().position(|due| due == received),
            _ => due.iter().skip(at).position(|due| due == received).map(|skipped| at + skipped),
        };
        let Some(found) = found else {
            let len = received.1.len();
            panic!("{what}: message {n} of {len} bytes was not due behind {at} of {}", due.len());
        };
        at = found + 1;
    }
}

/// Seeds that found something once.
const REGRESSIONS: &[u64] = &[];

#[test]
fn peers_with_a_plain_inflater_understand_everything() {
    throng_sim::hush_planned_panics();
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let mut sums = Sums::default();
    if let Some(seed) = number("THRONG_SIM_SEED") {
        return world(seed, &mut sums);
    }
    REGRESSIONS.iter().for_each(|seed| world(*seed, &mut sums));
    let from = number("THRONG_SIM_FROM").unwrap_or(0);
    for seed in from..from + number("THRONG_SIM_SEEDS").unwrap_or(120) {
        world(seed, &mut sums);
    }
    // Asserts that the worlds reach the states that they should test.
    let Sums { received, cut, dismissed, slow, pongs, dropped } = sums;
    assert!(received > 1000 && dismissed > 3 && slow > 3 && pongs > 50, "{sums:?}");
    assert!(cut > 0 && dropped > 3, "{sums:?}");
}
