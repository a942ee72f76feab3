//! One connection takes a bounded part of a turn, whatever its input costs.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use throng_engine::{
    Answer, BuildOptions, Close, Cx, Message, Refusal, Service, Shard, UserEvent, build,
};
use throng_proto::http1::{Request, ResponseHead};
use throng_proto::ws::handshake::{Key, check_request, encode_request, encode_response};
use throng_proto::ws::{Opcode, encode_masked};
use throng_sim::net::{LinkId, LinkOptions, Side};
use throng_sim::{Faults, Net, Rng, SharedNet, SimDriver, Waiting};

/// Virtual nanoseconds that each request and each message takes.
const COST: u64 = 50_000;

/// The most requests or messages of one connection in a turn: twice those of two readings of the
/// clock, since the rest is continued once behind the other connections' events.
const MOST: usize = 128;

/// Handlers that take time and send nothing, or an answer without a body.
struct Slow {
    net: SharedNet,
    handled: Rc<Cell<usize>>,
}

impl Slow {
    fn work(&self) {
        self.handled.set(self.handled.get() + 1);
        let now = self.net.borrow().now();
        self.net.borrow_mut().advance_to(now + COST);
    }
}

impl Service for Slow {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        if let Ok(key) = check_request(request.method(), request.is_http11(), request) {
            cx.write(|out| encode_response(&key.accept(), None, out).expect("no subprotocol"));
            return Answer::Upgraded;
        }
        self.work();
        cx.write(|out| ResponseHead::start(out, 204, "No Content").finish());
        Answer::Done { keep_alive: true }
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, status: u16, reason: &str) {
        panic!("{status} {reason}");
    }

    fn on_refused(&mut self, _: &mut Cx<'_>, why: Refusal) {
        panic!("{why:?}");
    }

    fn on_open(&mut self, _: &mut Cx<'_>) {}

    fn on_message(&mut self, _: &mut Cx<'_>, _: Message<'_>) {
        self.work();
    }

    fn on_user_event(&mut self, _: &mut Cx<'_>, _: UserEvent) {}

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, _: &mut Cx<'_>, _: Close<'_>) {}
}

struct Server {
    net: SharedNet,
    shard: Shard<SimDriver, Slow>,
    link: LinkId,
    handled: Rc<Cell<usize>>,
    /// The most that was handled in one turn, and the turns that handled any.
    most: usize,
    turns: usize,
}

/// A server with one connection, which has sent `first`.
fn server(first: &[u8]) -> Server {
    let net = Net::shared();
    let listener = net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1)));
    let mut driver = SimDriver::new(&net, 0, Faults::default(), Rng::new(1), Waiting::Never);
    driver.add_listener(listener);
    let options = BuildOptions { seed: Some(1), ..BuildOptions::default() };
    let handled = Rc::new(Cell::new(0));
    let slow = |_, _: &_, _: &_| Slow { net: SharedNet::clone(&net), handled: Rc::clone(&handled) };
    let built = build(vec![driver], &options, slow).expect("valid limits");
    let shard = built.shards.into_iter().next().expect("one driver, one shard");
    let options = LinkOptions { latency: 1000, capacity: 1 << 20, cut_after: None };
    let from = SocketAddr::from(([127, 0, 0, 2], 1000));
    let link = net.borrow_mut().dial(listener, from, options).expect("it listens");
    net.borrow_mut().write(link, Side::Dialer, first);
    let mut server = Server { net, shard, link, handled, most: 0, turns: 0 };
    server.settle();
    server
}

impl Server {
    /// Turns the shard until it has nothing to do for a while.
    fn settle(&mut self) {
        for _ in 0..2000 {
            self.shard.driver().progress();
            let due = self.shard.next_deadline();
            let now = self.net.borrow().now();
            if self.shard.driver().is_ready() || due.is_some_and(|due| due.0 <= now) {
                let before = self.handled.get();
                assert_eq!(self.shard.turn().expect("a wait does not fail"), None);
                let handled = self.handled.get() - before;
                self.most = self.most.max(handled);
                self.turns += usize::from(handled > 0);
            }
            self.net.borrow_mut().advance_to(now + 10_000);
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.net.borrow_mut().write(self.link, Side::Dialer, bytes);
        self.settle();
    }
}

fn upgraded() -> Server {
    let mut request = Vec::new();
    encode_request("sim", "/", &Key::new([7; 16]), &[], &[], &mut request).expect("valid");
    server(&request)
}

fn frames(opcode: Opcode, count: usize) -> Vec<u8> {
    let mut frames = Vec::new();
    for _ in 0..count {
        encode_masked(opcode, b"x", [0; 4], &mut frames);
    }
    frames
}

#[test]
fn messages_whose_handlers_take_long_leave_room_for_others() {
    let mut server = upgraded();
    server.send(&frames(Opcode::Binary, 2000));
    assert_eq!(server.handled.get(), 2000, "each is handled in the end");
    assert!(server.most <= MOST, "{} in one turn", server.most);
}

#[test]
fn requests_that_are_answered_with_little_leave_room_for_others() {
    let mut server = server(&b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2000));
    assert_eq!(server.handled.get(), 2000, "each is handled in the end");
    assert!(server.most <= MOST, "{} in one turn", server.most);
    // The first request of another connection.
    server.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(server.handled.get(), 2001);
}

/// A few messages cost what they cost: the clock is not even read.
#[test]
fn a_few_messages_are_handled_in_one_turn() {
    let mut server = upgraded();
    server.send(&frames(Opcode::Binary, 30));
    assert_eq!((server.most, server.turns), (30, 1));
}
