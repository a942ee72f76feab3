//! Large messages in fragments, and compressed ones, with a simulated network and clock: how much
//! leaves in a turn, and both roles of the engine against each other.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use throng_engine::{
    Answer, BuildOptions, Close, Cx, Limits, Message, Refusal, Service, Shard, build,
};
use throng_io::Closed;
use throng_proto::http1::{Request, Response};
use throng_proto::ws::deflate::{Mode, Policy, Settings};
use throng_proto::ws::handshake::{
    Key, check_request, check_response_with, encode_request_with, encode_response_with,
};
use throng_sim::net::{LinkOptions, Side};
use throng_sim::{Faults, Net, Rng, SharedNet, SimDriver, Waiting};

/// A message: true for text, and its payload.
type Said = (bool, Vec<u8>);

/// Messages that a session sends after its opening, one for each received message; and the received
/// messages.
#[derive(Default)]
struct Session {
    says: Vec<Said>,
    received: Vec<Said>,
    closed: Option<u16>,
}

type Sessions = Rc<RefCell<Vec<Session>>>;

struct Role {
    policy: Option<Policy>,
    /// By the number of the call.
    sessions: Sessions,
}

fn key(number: u32) -> Key {
    let mut nonce = [9; 16];
    nonce[..4].copy_from_slice(&number.to_le_bytes());
    Key::new(nonce)
}

fn message_of((text, bytes): &Said) -> Message<'_> {
    match text {
        true => Message::Text(std::str::from_utf8(bytes).expect("planned as text")),
        false => Message::Binary(bytes),
    }
}

impl Service for Role {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        let key = check_request(request.method(), request.is_http11(), request).expect("our own");
        let accepted =
            self.policy.and_then(|policy| Some((policy, policy.accept(request).expect("ours")?)));
        if let Some((policy, accepted)) = &accepted {
            assert!(cx.set_deflate(*policy, accepted.agreed));
        }
        let answer = accepted.as_ref().map(|(_, accepted)| &accepted.answer);
        cx.write(|out| encode_response_with(&key.accept(), None, answer, out).expect("sendable"));
        cx.set_route(0, request.path()[1..].parse().expect("a number"));
        Answer::Upgraded
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, status: u16, reason: &str) {
        assert_eq!(status, 408, "{reason}");
    }

    fn on_refused(&mut self, _: &mut Cx<'_>, why: Refusal) {
        panic!("no request is refused here: {why:?}");
    }

    fn on_connected(&mut self, cx: &mut Cx<'_>) {
        let number = cx.data();
        let (key, target) = (key(number), format!("/{number}"));
        let offer = self.policy.map(|policy| policy.offer());
        cx.write(|out| {
            encode_request_with("sim", &target, &key, &[], offer.as_ref(), &[], out).expect("ours");
        });
    }

    fn on_response(&mut self, cx: &mut Cx<'_>, response: &Response<'_>) -> Answer {
        let (status, key, policy) = (response.status(), key(cx.data()), self.policy.as_ref());
        let opened = check_response_with(status, response, &key, &[], policy).expect("our own");
        if let Some((policy, agreed)) = self.policy.zip(opened.deflate) {
            assert!(cx.set_deflate(policy, agreed));
        }
        Answer::Upgraded
    }

    fn on_failed(&mut self, cx: &mut Cx<'_>, _: Closed) {
        panic!("call {} failed", cx.data());
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        self.say(cx, 3);
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let text = matches!(message, Message::Text(_));
        let received = (text, message.as_bytes().to_vec());
        self.sessions.borrow_mut()[cx.data() as usize].received.push(received);
        self.say(cx, 1);
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>) {
        self.sessions.borrow_mut()[cx.data() as usize].closed = Some(close.code.get());
    }
}

impl Role {
    fn say(&self, cx: &mut Cx<'_>, count: usize) {
        let mut sessions = self.sessions.borrow_mut();
        let session = &mut sessions[cx.data() as usize];
        for said in session.says.drain(..count.min(session.says.len())) {
            let _ = cx.send(message_of(&said));
        }
    }
}

fn shard_of(
    net: &SharedNet,
    (number, seed): (u16, u64),
    faults: Faults,
    limits: Limits,
    role: Role,
    listener: Option<usize>,
) -> Shard<SimDriver, Role> {
    let mut driver = SimDriver::new(net, number, faults, Rng::new(seed), Waiting::Never);
    if let Some(listener) = listener {
        driver.add_listener(listener);
    }
    let options = BuildOptions { limits, seed: Some(seed), ..BuildOptions::default() };
    let mut role = Some(role);
    let built = build(vec![driver], &options, |_, _, _| role.take().expect("one shard"));
    built.expect("valid limits").shards.remove(0)
}

/// Turns each shard that has something to do, until `over`.
fn drive(net: &SharedNet, shards: &mut [Shard<SimDriver, Role>], mut over: impl FnMut() -> bool) {
    let mut rng = Rng::new(1);
    for _ in 0..2_000_000 {
        if over() {
            return;
        }
        let now = net.borrow().now();
        let (mut ready, mut next) = (Vec::new(), None);
        for (index, shard) in shards.iter_mut().enumerate() {
            shard.driver().progress();
            let due = match shard.driver().is_ready() {
                true => Some(now),
                false => {
                    let deadline = shard.next_deadline().map(|deadline| deadline.0);
                    [deadline, shard.driver().next_event_at()].into_iter().flatten().min()
                }
            };
            match due {
                Some(at) if at <= now => ready.push(index),
                Some(at) => next = Some(next.map_or(at, |known: u64| known.min(at))),
                None => {}
            }
        }
        if !ready.is_empty() {
            let index = rng.pick(&ready);
            assert_eq!(shards[index].turn().expect("a wait does not fail"), None);
            net.borrow_mut().advance_to(now + 1_000);
        } else if let Some(at) = next {
            net.borrow_mut().advance_to(at);
        } else {
            panic!("nothing more will happen");
        }
    }
    panic!("it does not end");
}

fn prose(rng: &mut Rng, len: usize) -> Vec<u8> {
    const WORDS: [&str; 6] = ["some ", "words ", "that ", "repeat ", "4711", "\n"];
    let mut out = Vec::new();
    while out.len() < len {
        out.extend_from_slice(WORDS[rng.below(WORDS.len())].as_bytes());
    }
    out.truncate(len);
    out
}

/// Client and server agree on some window, and each understands the other: compressed in the
/// context of earlier messages, in fragments, masked or not.
#[test]
fn both_roles_understand_each_other_in_every_mode() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut faults = Faults::of(&mut rng);
        (faults.clock_leaps, faults.accept_fails, faults.adopt_fails) = (0, 0, 0);
        faults.receive_buffer = faults.receive_buffer.max(4096);
        faults.cut_receives = if faults.cut_receives == 0 { 0 } else { 1000 };
        let policy = |rng: &mut Rng| {
            let mode = match rng.below(3) {
                0 => Mode::Shared,
                _ => Mode::Window { bits: rng.pick(&[9, 10, 12, 15]) },
            };
            let settings = Settings::default()
                .enabled(rng.below(5) > 0)
                .mode(mode)
                .level(rng.pick(&[1, 5]))
                .threshold(rng.pick(&[None, Some(0)]))
                .server_max_window_bits(rng.pick(&[15, 15, 10, 9]))
                .client_max_window_bits(rng.pick(&[15, 15, 10, 9]));
            settings.check().expect("valid settings")
        };
        let limits = Limits::default()
            .fragment_threshold(rng.pick(&[100, 10_000, 1 << 20]))
            .fragment_size(rng.pick(&[33, 5000, 64 << 10]))
            .max_backlog(64 << 20);
        let net = Net::shared();
        let here = SocketAddr::from(([127, 0, 0, 1], 1));
        let listener = net.borrow_mut().listen(here);
        let count = 1 + rng.below(4);
        let mut sessions = || -> (Sessions, Vec<Vec<Said>>) {
            let says: Vec<Vec<Said>> = (0..count)
                .map(|_| {
                    let message = |_| {
                        let most = [10, 200, 3000, 40_000][rng.below(4)];
                        let len = rng.below(most);
                        match rng.below(4) {
                            0 => (false, rng.bytes(len)),
                            _ => (rng.one_in(2), prose(&mut rng, len)),
                        }
                    };
                    (0..12).map(message).collect()
                })
                .collect();
            let session = |says: &Vec<_>| Session { says: says.clone(), ..Session::default() };
            (Rc::new(RefCell::new(says.iter().map(session).collect())), says)
        };
        let ((served, of_server), (called, of_client)) = (sessions(), sessions());
        let server = Role { policy: policy(&mut rng), sessions: Rc::clone(&served) };
        let client = Role { policy: policy(&mut rng), sessions: Rc::clone(&called) };
        let compressed = server.policy.is_some() && client.policy.is_some();
        let mut shards = [
            shard_of(&net, (0, seed), faults.clone(), limits.clone(), server, Some(listener)),
            shard_of(&net, (1, seed), faults, limits, client, None),
        ];
        for number in 0..count {
            shards[1].connect(here, None, number as u32).expect("it can be begun");
        }
        let all = |sessions: &Sessions| sessions.borrow().iter().all(|it| it.received.len() == 12);
        drive(&net, &mut shards, || all(&served) && all(&called));
        for (received, said) in [(&served, of_client), (&called, of_server)] {
            for (session, said) in received.borrow().iter().zip(said) {
                assert!(session.received == said, "seed {seed}: not what was said");
                assert_eq!(session.closed, None, "seed {seed}");
            }
        }
        let stats = shards[0].core().stats();
        assert_eq!(stats.deflate_input_bytes + stats.inflate_input_bytes > 0, compressed, "{seed}");
    }
}

/// Even if the kernel takes any amount, a shard returns to its other connections.
#[test]
fn of_a_message_of_64_mib_no_more_than_a_little_leaves_in_a_turn() {
    let len = 64 << 20;
    let net = Net::shared();
    let listener = net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1)));
    let session = Session { says: vec![(false, vec![7; len])], ..Session::default() };
    let sessions: Sessions = Rc::new(RefCell::new(vec![session]));
    let limits = Limits::default().max_backlog(1 << 20);
    let role = Role { policy: None, sessions };
    let mut shard = shard_of(&net, (0, 1), Faults::default(), limits, role, Some(listener));
    let options = LinkOptions { latency: 1000, capacity: 1 << 30, cut_after: None };
    let from = SocketAddr::from(([127, 0, 0, 2], 2));
    let link = net.borrow_mut().dial(listener, from, options).expect("it listens");
    let request = b"GET /0 HTTP/1.1\r\nHost: sim\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                                    Sec-WebSocket-Version: 13\r\n\
                                    Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n";
    net.borrow_mut().write(link, Side::Dialer, request);
    let (mut got, mut most, mut turns) = (Vec::new(), 0, 0);
    while got.len() < len {
        turns += 1;
        assert!(turns < 10_000, "it does not end");
        let now = net.borrow().now();
        shard.driver().progress();
        let deadline = shard.next_deadline().is_some_and(|deadline| deadline.0 <= now);
        if shard.driver().is_ready() || deadline {
            let before = shard.core().stats().bytes_out;
            assert_eq!(shard.turn().expect("a wait does not fail"), None);
            most = most.max(shard.core().stats().bytes_out - before);
        }
        net.borrow_mut().advance_to(now + 1_000_000);
        net.borrow_mut().read(link, Side::Dialer, usize::MAX, &mut got);
    }
    assert!(most <= 2 << 20, "{most} bytes left in one turn");
    assert!(got.ends_with(&[7; 1000]));
}
