//! The memory of all connections together stays below its limit, for any kind of use, and
//! connections that use little are not affected.

use std::net::SocketAddr;

use throng_engine::{
    Answer, BuildOptions, Close, Cx, Frame, Limits, Message, Refusal, Service, Shard, build,
};
use throng_proto::http1::{Request, ResponseHead};
use throng_proto::ws::handshake::{Key, check_request, encode_request, encode_response};
use throng_proto::ws::{Opcode, encode_masked};
use throng_sim::net::{LinkId, LinkOptions, Side};
use throng_sim::{Faults, Net, Rng, SharedNet, SimDriver, Waiting};

/// The limit on memory.
const LIMIT: usize = 4 << 20;

/// All sessions are members of one channel. Binary messages are published, text messages echoed.
struct Chat;

fn respond(cx: &mut Cx<'_>, status: u16) {
    cx.write(|out| {
        let head = ResponseHead::start(out, status, "Status").header("Connection", "close");
        head.expect("a valid header").content_length(0).finish();
    });
}

impl Service for Chat {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        let Ok(key) = check_request(request.method(), request.is_http11(), request) else {
            return Answer::Body { max_body: 1 << 20 };
        };
        cx.write(|out| encode_response(&key.accept(), None, out).expect("no subprotocol"));
        Answer::Upgraded
    }

    fn on_body(&mut self, cx: &mut Cx<'_>, _: &Request<'_>, _: &[u8]) -> Answer {
        respond(cx, 200);
        Answer::Done { keep_alive: false }
    }

    fn on_bad_request(&mut self, cx: &mut Cx<'_>, status: u16, _: &str) {
        respond(cx, status);
    }

    fn on_refused(&mut self, cx: &mut Cx<'_>, _: Refusal) {
        respond(cx, 503);
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        assert!(cx.subscribe("news"));
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        match message {
            Message::Text(_) => drop(cx.send(message)),
            Message::Binary(bytes) => drop(cx.publish_unordered("news", &Frame::binary(bytes))),
        }
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, _: &mut Cx<'_>, _: Close<'_>) {}
}

struct World {
    net: SharedNet,
    shards: Vec<Shard<SimDriver, Chat>>,
    /// The address of each shard.
    listeners: Vec<usize>,
    links: usize,
    /// The maximum memory of connections between two turns.
    most: usize,
}

impl World {
    fn new() -> Self {
        Self::of(1)
    }

    fn of(shards: u16) -> Self {
        let net = Net::shared();
        let (mut drivers, mut listeners) = (Vec::new(), Vec::new());
        for shard in 0..shards {
            let listener = net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1 + shard)));
            let (faults, rng) = (Faults::default(), Rng::new(1));
            let mut driver = SimDriver::new(&net, shard, faults, rng, Waiting::Never);
            driver.add_listener(listener);
            drivers.push(driver);
            listeners.push(listener);
        }
        let limits = Limits::default().max_memory(LIMIT);
        // Shards with their own descriptor tables do not pass connections to each other.
        let own_tables = (shards > 1).then_some(10_000);
        let options = BuildOptions { limits, own_tables, seed: Some(1), ..BuildOptions::default() };
        let shards = build(drivers, &options, |_, _, _| Chat).expect("valid limits").shards;
        Self { net, shards, listeners, links: 0, most: 0 }
    }

    /// Connects a client whose link holds `capacity` bytes, and sends `bytes`.
    fn connect(&mut self, capacity: usize, bytes: &[u8]) -> LinkId {
        let link = self.dial(0, capacity, bytes);
        self.settle();
        link
    }

    /// Dials this shard, which has not noticed it yet.
    fn dial(&mut self, shard: usize, capacity: usize, bytes: &[u8]) -> LinkId {
        let options = LinkOptions { latency: 1000, capacity, cut_after: None };
        let from = SocketAddr::from(([127, 0, 0, 2], 1000 + self.links as u16));
        self.links += 1;
        let mut net = self.net.borrow_mut();
        let link = net.dial(self.listeners[shard], from, options).expect("it listens");
        net.write(link, Side::Dialer, bytes);
        link
    }

    fn session(&mut self, capacity: usize) -> LinkId {
        let mut request = Vec::new();
        encode_request("sim", "/", &Key::new([7; 16]), &[], &[], &mut request).expect("valid");
        self.connect(capacity, &request)
    }

    /// Runs turns of all shards until they are idle for a while.
    fn settle(&mut self) {
        (0..20).for_each(|_| self.turn(0..self.shards.len()));
    }

    /// Runs a turn of each shard in this range that has something to do.
    fn turn(&mut self, shards: std::ops::Range<usize>) {
        let now = self.net.borrow().now();
        for shard in &mut self.shards[shards] {
            shard.driver().progress();
            let is_due = shard.next_deadline().is_some_and(|at| at.0 <= now);
            if shard.driver().is_ready() || is_due {
                assert_eq!(shard.turn().expect("a wait does not fail"), None);
            }
        }
        self.most = self.most.max(self.held());
        self.net.borrow_mut().advance_to(now + 1_000_000);
    }

    /// Returns the memory that the connections of all shards hold.
    fn held(&self) -> usize {
        self.shards.iter().map(|shard| shard.audit().memory).sum()
    }

    fn send(&mut self, link: LinkId, bytes: &[u8]) {
        self.net.borrow_mut().write(link, Side::Dialer, bytes);
        self.settle();
    }

    /// Checks that the limit was reached and kept, that some connections were ended for it, and
    /// that a client which keeps to the rules is still answered.
    fn check(self, honest: LinkId) {
        assert!(self.most > LIMIT / 2, "{} bytes are no storm", self.most);
        assert!(self.shards[0].core().stats().memory_ended > 0);
        self.check_limit(honest);
    }

    fn check_limit(mut self, honest: LinkId) {
        assert!(self.most <= LIMIT + LIMIT / 8, "{} bytes were held", self.most);
        let mut echo = Vec::new();
        encode_masked(Opcode::Text, b"still here", [0; 4], &mut echo);
        let answered = self.shards[0].core().stats().messages_out;
        self.send(honest, &echo);
        assert_eq!(self.shards[0].core().stats().messages_out, answered + 1);
        assert!(!self.net.borrow().is_gone(honest, Side::Acceptor), "it is still connected");
    }
}

/// A publication is in memory once, even if it is small and many receivers wait for it.
#[test]
fn receivers_that_do_not_read() {
    for size in [10, 60, 1000, 100_000] {
        let mut world = World::new();
        let publisher = world.session(1 << 20);
        for _ in 0..100 {
            world.session(4096);
        }
        let mut packet = Vec::new();
        let count = (100_000 / size).max(1);
        (0..count).for_each(|_| {
            encode_masked(Opcode::Binary, &vec![1; size], [0; 4], &mut packet);
        });
        for _ in 0..8 {
            world.send(publisher, &packet);
        }
        assert!(world.most > 300_000, "{} bytes of {size} each are no storm", world.most);
        assert!(world.most < LIMIT / 2, "{} bytes were held", world.most);
        world.check_limit(publisher);
    }
}

#[test]
fn clients_that_do_not_read_their_answers() {
    let mut world = World::new();
    let honest = world.session(1 << 20);
    let mut echo = Vec::new();
    encode_masked(Opcode::Text, &[b'x'; 200_000], [0; 4], &mut echo);
    for _ in 0..40 {
        let link = world.session(1 << 20);
        // Its link takes a mebibyte.
        (0..7).for_each(|_| world.send(link, &echo));
    }
    world.check(honest);
}

#[test]
fn messages_that_never_end() {
    let mut world = World::new();
    let honest = world.session(1 << 20);
    let mut message = Vec::new();
    encode_masked(Opcode::Binary, &vec![1; 1 << 20], [0; 4], &mut message);
    for _ in 0..20 {
        let link = world.session(1 << 20);
        world.send(link, &message[..500_000]);
    }
    world.check(honest);
}

#[test]
fn heads_and_bodies_that_never_end() {
    let head = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 15_000]].concat();
    let body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n".to_vec();
    let body = [body, vec![b'x'; 500_000]].concat();
    for (bytes, count) in [(head, 500), (body, 20)] {
        let mut world = World::new();
        let honest = world.session(1 << 20);
        for _ in 0..count {
            world.connect(1 << 20, &bytes);
        }
        world.check(honest);
    }
}

/// Repeatedly filling the memory does not keep other clients out, even if the event loop that must
/// free it sleeps: another event loop serves clients during that time, and wakes it.
#[test]
fn clients_are_served_while_the_memory_is_filled_again_and_again() {
    let mut world = World::of(2);
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    let body = |len| [&head[..], &vec![b'x'; len]].concat();
    for round in 0..5 {
        // The largest holders are all on the second shard, so the first shard has no connection to
        // end.
        for _ in 0..6 {
            world.dial(1, 1 << 20, &body(500_000));
            (0..20).for_each(|_| world.turn(1..2));
        }
        assert!(!world.shards[1].driver().is_ready(), "round {round}: it sleeps");
        let mut smaller = Vec::new();
        for _ in 0..16 {
            smaller.push(world.dial(0, 1 << 20, &body(100_000)));
            (0..20).for_each(|_| world.turn(0..1));
            let newcomer = world.dial(0, 1 << 20, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            (0..20).for_each(|_| world.turn(0..1));
            let mut answer = Vec::new();
            world.net.borrow_mut().read(newcomer, Side::Dialer, 20, &mut answer);
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 200 "), "round {round}: {answer:?}");
        }
        assert!(world.held() > LIMIT, "round {round}: the memory is full");
        assert!(world.shards[1].driver().is_ready(), "round {round}: it is woken");
        world.settle();
        assert!(world.held() <= LIMIT, "round {round}: {} bytes are held", world.held());
        for link in smaller {
            world.net.borrow_mut().reset(link, Side::Dialer);
        }
        // The remaining memory is measured once per second.
        (0..100).for_each(|_| world.settle());
    }
}

/// The buffer of a large message is kept while such messages arrive, and does not count as memory
/// of a slow client. A shard without work frees it and sleeps, with or without connections.
#[test]
fn the_memory_of_large_messages_is_kept_while_they_come() {
    let mut world = World::new();
    let (busy, slow) = (world.session(4 << 20), world.session(1 << 20));
    let mut echo = Vec::new();
    encode_masked(Opcode::Text, &[b'x'; 500_000], [0; 4], &mut echo);
    let spare = |world: &World| world.shards[0].audit().spare;
    for _ in 0..3 {
        let before = world.held();
        world.send(busy, &echo);
        assert!(spare(&world) >= 500_000, "{} bytes are kept", spare(&world));
        world.send(slow, &[0x81]);
        assert!(world.held() < before + 1000, "a byte took {} bytes", world.held() - before);
        world.send(slow, &[0x80, 0, 0, 0, 0]);
    }
    let seconds = |world: &mut World, count| (0..50 * count).for_each(|_| world.settle());
    seconds(&mut world, 3);
    assert_eq!(spare(&world), 0);
    world.send(busy, &echo);
    for link in [busy, slow] {
        world.net.borrow_mut().reset(link, Side::Dialer);
    }
    world.settle();
    assert!(spare(&world) > 0 && world.shards[0].next_deadline().is_some());
    seconds(&mut world, 3);
    assert_eq!((spare(&world), world.shards[0].next_deadline()), (0, None));
}
