//! One connection takes a bounded part of a turn, for any cost of its input.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use throng_engine::{
    Answer, BuildOptions, Close, Cx, Message, Refusal, Remote, Service, Shard, UserEvent, build,
};
use throng_io::ConnId;
use throng_proto::http1::{Request, ResponseHead};
use throng_proto::ws::deflate::{Deflater, Policy, Settings};
use throng_proto::ws::handshake::{Key, check_request, encode_request, encode_response_with};
use throng_proto::ws::{Opcode, encode_deflated, encode_masked};
use throng_sim::net::{LinkId, LinkOptions, Side};
use throng_sim::{Faults, Net, Rng, SharedNet, SimDriver, Waiting};

/// Cost of each request and each message in virtual nanoseconds.
const COST: u64 = 50_000;

/// Maximum requests or messages of one connection in a turn: twice as many as between two readings
/// of the clock, because the rest continues once after the other connections' events.
const MAX: usize = 128;

/// Requests or messages of each connection.
const EACH: usize = 2000;

/// Handlers that take time and send nothing, or an answer without a body.
struct Slow {
    net: SharedNet,
    handled: Rc<Cell<usize>>,
    events: Rc<Cell<usize>>,
    opened: Rc<Cell<Option<ConnId>>>,
    /// Requests and messages handled, by slot.
    by: Rc<RefCell<BTreeMap<usize, usize>>>,
}

impl Slow {
    fn work(&self, cx: &Cx<'_>) {
        self.handled.set(self.handled.get() + 1);
        *self.by.borrow_mut().entry(cx.id().slot()).or_default() += 1;
        let now = self.net.borrow().now();
        self.net.borrow_mut().advance_to(now + COST);
    }
}

impl Service for Slow {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        if let Ok(key) = check_request(request.method(), request.is_http11(), request) {
            let policy = policy();
            let accepted = policy.accept(request).expect("well formed");
            if let Some(accepted) = &accepted {
                assert!(cx.set_deflate(policy, accepted.agreed));
            }
            let answer = accepted.as_ref().map(|accepted| &accepted.answer);
            cx.write(|out| encode_response_with(&key.accept(), None, answer, out).expect("valid"));
            return Answer::Upgraded;
        }
        self.work(cx);
        cx.write(|out| ResponseHead::start(out, 204, "No Content").finish());
        Answer::Done { keep_alive: true }
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, status: u16, reason: &str) {
        panic!("{status} {reason}");
    }

    fn on_refused(&mut self, _: &mut Cx<'_>, why: Refusal) {
        panic!("{why:?}");
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        self.opened.set(Some(cx.id()));
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, _: Message<'_>) {
        self.work(cx);
    }

    /// Events of one kind take the time of a whole turn, and cause another event.
    fn on_user_event(&mut self, cx: &mut Cx<'_>, event: UserEvent) {
        self.events.set(self.events.get() + 1);
        if event.0.downcast_ref() == Some(&"causes another") {
            let now = self.net.borrow().now();
            self.net.borrow_mut().advance_to(now + 40 * COST);
            let id = cx.id();
            cx.core().remote().post(id, Box::new("another"));
        }
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, _: &mut Cx<'_>, _: Close<'_>) {}
}

struct Server {
    net: SharedNet,
    shard: Shard<SimDriver, Slow>,
    links: Vec<LinkId>,
    handled: Rc<Cell<usize>>,
    events: Rc<Cell<usize>>,
    opened: Rc<Cell<Option<ConnId>>>,
    remote: Remote,
    by: Rc<RefCell<BTreeMap<usize, usize>>>,
    /// The maximum requests or messages in one turn, and the number of turns with any.
    most: usize,
    turns: usize,
    /// The maximum requests or messages in any turn except the first turn with any.
    most_later: usize,
    /// The maximum lead of one connection over another after a turn, until one of them has
    /// finished.
    ahead: usize,
}

fn policy() -> Policy {
    let settings = Settings::default().enabled(true);
    settings.check().expect("valid settings").expect("enabled")
}

/// A server with one connection, which has sent `first`.
fn server(first: &[u8]) -> Server {
    crowded(first, 1)
}

/// Creates a server with this many connections, which have all sent `first`.
fn crowded(first: &[u8], connections: u16) -> Server {
    let net = Net::shared();
    let listener = net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1)));
    let mut driver = SimDriver::new(&net, 0, Faults::default(), Rng::new(1), Waiting::Never);
    driver.add_listener(listener);
    let options = BuildOptions { seed: Some(1), ..BuildOptions::default() };
    let handled = Rc::new(Cell::new(0));
    let (events, opened) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
    let by = Rc::new(RefCell::default());
    let slow = |_, _: &_, _: &_| Slow {
        net: SharedNet::clone(&net),
        handled: Rc::clone(&handled),
        events: Rc::clone(&events),
        opened: Rc::clone(&opened),
        by: Rc::clone(&by),
    };
    let built = build(vec![driver], &options, slow).expect("valid limits");
    let remote = built.remote;
    let shard = built.shards.into_iter().next().expect("one driver, one shard");
    let options = LinkOptions { latency: 1000, capacity: 1 << 20, cut_after: None };
    let links: Vec<LinkId> = (0..connections)
        .map(|number| {
            let from = SocketAddr::from(([127, 0, 0, 2], 1000 + number));
            let link = net.borrow_mut().dial(listener, from, options).expect("it listens");
            net.borrow_mut().write(link, Side::Dialer, first);
            link
        })
        .collect();
    let mut server = Server {
        net,
        shard,
        links,
        handled,
        events,
        opened,
        remote,
        by,
        most: 0,
        turns: 0,
        most_later: 0,
        ahead: 0,
    };
    server.settle();
    server
}

impl Server {
    /// Runs turns of the shard until it is idle for a while.
    fn settle(&mut self) {
        let mut steps_without_any = 0;
        while steps_without_any < 3000 {
            steps_without_any += 1;
            self.shard.driver().progress();
            let due = self.shard.next_deadline();
            let now = self.net.borrow().now();
            if self.shard.driver().is_ready() || due.is_some_and(|due| due.0 <= now) {
                let before = self.handled.get();
                assert_eq!(self.shard.turn().expect("a wait does not fail"), None);
                let handled = self.handled.get() - before;
                if handled > 0 {
                    steps_without_any = 0;
                }
                self.most = self.most.max(handled);
                if self.turns > 0 {
                    self.most_later = self.most_later.max(handled);
                }
                self.turns += usize::from(handled > 0);
                let by = self.by.borrow();
                let (least, most) = (by.values().min(), by.values().max());
                if let (Some(least), Some(most)) = (least, most)
                    && *most < EACH
                {
                    self.ahead = self.ahead.max(most - least);
                }
            }
            self.net.borrow_mut().advance_to(now + 10_000);
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.net.borrow_mut().write(self.links[0], Side::Dialer, bytes);
        self.settle();
    }

    fn send_on_all(&mut self, bytes: &[u8]) {
        for &link in &self.links {
            self.net.borrow_mut().write(link, Side::Dialer, bytes);
        }
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
    server.send(&frames(Opcode::Binary, EACH));
    assert_eq!(server.handled.get(), EACH, "each is handled in the end");
    assert!(server.most <= MAX, "{} in one turn", server.most);
}

#[test]
fn requests_that_are_answered_with_little_leave_room_for_others() {
    let mut server = server(&b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(EACH));
    assert_eq!(server.handled.get(), EACH, "each is handled in the end");
    assert!(server.most <= MAX, "{} in one turn", server.most);
    // The first request of another connection.
    server.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(server.handled.get(), EACH + 1);
}

#[test]
fn many_connections_whose_input_waits_take_no_more_of_a_turn_than_one() {
    let mut server = crowded(&b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(EACH), 20);
    assert_eq!(server.handled.get(), 20 * EACH, "each is handled in the end");
    assert!(server.most_later <= MAX, "{} in one turn", server.most_later);
    assert!(server.ahead <= MAX, "one was ahead of another by {}", server.ahead);
    server.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(server.handled.get(), 20 * EACH + 1);
}

/// Each bomb takes about a millisecond, and the first of each connection comes in the same turn.
#[test]
fn bombs_of_many_connections_are_spread_over_turns() {
    let request = "GET / HTTP/1.1\r\nHost: sim\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\
                   Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
    let mut server = crowded(request.as_bytes(), 20);
    let mut bomb = Vec::new();
    assert!(Deflater::new(&policy()).deflate(&[0; 1 << 20], 15, None, &mut bomb));
    let mut message = Vec::new();
    encode_deflated(false, &bomb, Some([0; 4]), &mut message);
    server.send_on_all(&message.repeat(3));
    assert_eq!(server.handled.get(), 60, "each is handled in the end");
    assert!(server.most <= 2, "{} in one turn", server.most);
    assert!(server.ahead <= 2, "one was ahead of another by {}", server.ahead);
}

/// The turn takes the first nine events at once, but has no time for the last of them. The tenth
/// arrives while the shard is awake, so it does not wake the shard.
#[test]
fn an_event_that_comes_while_earlier_ones_are_handled_is_not_forgotten() {
    let mut server = upgraded();
    let id = server.opened.get().expect("it is open");
    for number in 0..9 {
        let event = if number == 0 { "causes another" } else { "plain" };
        server.remote.post(id, Box::new(event));
    }
    server.settle();
    assert_eq!(server.events.get(), 10);
}

/// A few messages are so cheap that the clock is not even read.
#[test]
fn a_few_messages_are_handled_in_one_turn() {
    let mut server = upgraded();
    server.send(&frames(Opcode::Binary, 30));
    assert_eq!((server.most, server.turns), (30, 1));
}
