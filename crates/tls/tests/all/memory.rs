//! The engine's memory account includes handshakes in progress and incomplete records.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use rustls::ClientConnection;
use throng_engine::{
    Answer, BuildOptions, Close, Cx, Limits, Message, Refusal, Service, Shard, build,
};
use throng_proto::http1::Request;
use throng_proto::ws::handshake::{Key, check_request, encode_request, encode_response};
use throng_proto::ws::{Opcode, encode_masked};
use throng_sim::net::{LinkId, LinkOptions, Side};
use throng_sim::{Faults, Net, Rng, SharedNet, SimDriver, Waiting};
use throng_tls::{Tls, TlsServer};

use crate::support::{client, client_config, hear, raw_server_config, said};

static SERVER: LazyLock<Arc<TlsServer>> = LazyLock::new(|| TlsServer::new(raw_server_config(None)));

/// The limit on memory.
const LIMIT: usize = 1 << 20;

struct Echo;

impl Service for Echo {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        let Ok(key) = check_request(request.method(), request.is_http11(), request) else {
            return Answer::Done { keep_alive: true };
        };
        cx.write(|out| encode_response(&key.accept(), None, out).expect("no subprotocol"));
        Answer::Upgraded
    }

    fn on_body(&mut self, _: &mut Cx<'_>, _: &Request<'_>, _: &[u8]) -> Answer {
        Answer::Done { keep_alive: true }
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, _: u16, _: &str) {}

    fn on_refused(&mut self, _: &mut Cx<'_>, _: Refusal) {}

    fn on_open(&mut self, _: &mut Cx<'_>) {}

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let _ = cx.send(message);
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, _: &mut Cx<'_>, _: Close<'_>) {}
}

struct World {
    net: SharedNet,
    shard: Shard<Tls<SimDriver>, Echo>,
    plain: usize,
    secured: usize,
    links: u16,
    /// The maximum memory of connections between two turns.
    most: usize,
}

impl World {
    fn new() -> Self {
        let net = Net::shared();
        let inner = SimDriver::new(&net, 0, Faults::default(), Rng::new(1), Waiting::Never);
        let mut driver = Tls::new(inner);
        let [plain, secured] =
            [1, 2].map(|port| net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], port))));
        driver.inner().add_listener(plain);
        let listener = driver.inner().add_listener(secured);
        driver.secure(listener, Arc::clone(&SERVER));
        let limits = Limits::default().max_memory(LIMIT);
        let options = BuildOptions { limits, seed: Some(1), ..BuildOptions::default() };
        let built = build(vec![driver], &options, |_, _, _| Echo).expect("valid limits");
        let shard = built.shards.into_iter().next().expect("one driver, one shard");
        Self { net, shard, plain, secured, links: 0, most: 0 }
    }

    fn dial(&mut self, listener: usize) -> LinkId {
        let options = LinkOptions { latency: 1000, capacity: 1 << 20, cut_after: None };
        let from = SocketAddr::from(([127, 0, 0, 2], 1000 + self.links));
        self.links += 1;
        self.net.borrow_mut().dial(listener, from, options).expect("it listens")
    }

    /// Sends bytes; returns the answer.
    fn send(&mut self, link: LinkId, bytes: &[u8]) -> Vec<u8> {
        self.net.borrow_mut().write(link, Side::Dialer, bytes);
        for _ in 0..20 {
            self.shard.driver().inner().progress();
            let now = self.net.borrow().now();
            let is_due = self.shard.next_deadline().is_some_and(|at| at.0 <= now);
            if self.shard.driver().inner().is_ready() || is_due {
                assert_eq!(self.shard.turn().expect("a wait does not fail"), None);
                self.most = self.most.max(self.shard.audit().memory);
            }
            self.net.borrow_mut().advance_to(now + 1_000_000);
        }
        let mut answer = Vec::new();
        self.net.borrow_mut().read(link, Side::Dialer, 1 << 20, &mut answer);
        answer
    }

    /// Connects a session without TLS, which sends the first half of a message.
    fn session(&mut self, half: usize) -> LinkId {
        let link = self.dial(self.plain);
        let mut request = Vec::new();
        encode_request("sim", "/", &Key::new([7; 16]), &[], &[], &mut request).expect("valid");
        self.send(link, &request);
        let mut message = Vec::new();
        encode_masked(Opcode::Text, &vec![b'x'; 2 * half], [0; 4], &mut message);
        self.send(link, &message[..half]);
        link
    }

    fn handshake(&mut self) -> (LinkId, ClientConnection) {
        let (link, mut tls) = (self.dial(self.secured), client(client_config()));
        while tls.is_handshaking() {
            let answer = self.send(link, &said(&mut tls));
            hear(&mut tls, &answer).unwrap();
        }
        let last = said(&mut tls);
        self.send(link, &last);
        (link, tls)
    }

    fn is_connected(&self, link: LinkId) -> bool {
        !self.net.borrow().is_gone(link, Side::Acceptor)
    }

    fn check(&self) {
        assert!(self.most > LIMIT / 2, "{} bytes are no storm", self.most);
        assert!(self.most <= LIMIT + LIMIT / 8, "{} bytes were held", self.most);
        assert!(self.shard.core().stats().memory_ended > 0);
    }
}

#[test]
fn handshakes_that_do_not_go_on_are_ended_before_sessions() {
    let mut world = World::new();
    let session = world.session(20_000);
    for at in 0..300 {
        let link = world.dial(world.secured);
        let answer = world.send(link, &said(&mut client(client_config())));
        assert!(at > 0 || answer.len() > 500, "it has an answer, and does not go on");
    }
    world.check();
    assert!(world.is_connected(session), "though it holds more than any handshake");
}

#[test]
fn a_client_hello_that_never_ends_is_counted() {
    let mut world = World::new();
    let session = world.session(10);
    let hello = [vec![22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb], vec![0; 15_000]].concat();
    for _ in 0..150 {
        let link = world.dial(world.secured);
        world.send(link, &hello);
    }
    world.check();
    assert!(world.is_connected(session));
}

#[test]
fn incomplete_records_are_counted() {
    let mut world = World::new();
    let session = world.session(10);
    for _ in 0..100 {
        let (link, mut tls) = world.handshake();
        tls.writer().write_all(&[0; 16_000]).unwrap();
        let record = said(&mut tls);
        world.send(link, &record[..record.len() - 1]);
    }
    world.check();
    assert!(world.is_connected(session));
}

#[test]
fn memory_of_handshakes_is_given_back() {
    let mut world = World::new();
    for _ in 0..20 {
        world.handshake();
    }
    assert_eq!(world.shard.audit().memory, 0);
    assert!(world.most >= 4_000, "{}", world.most);
}
