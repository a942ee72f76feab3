//! Publications of one turn leave in one send to each subscriber.

use std::net::SocketAddr;

use throng_engine::{
    Answer, BuildOptions, Close, Cx, Frame, Message, Refusal, Service, Shard, build,
};
use throng_proto::http1::Request;
use throng_proto::ws::handshake::{Key, check_request, encode_request, encode_response};
use throng_proto::ws::{Opcode, encode_masked};
use throng_sim::net::{LinkId, LinkOptions, Side};
use throng_sim::{Faults, Net, Rng, SharedNet, SimDriver, Waiting};

const SUBSCRIBERS: u64 = 10;
const PUBLICATIONS: usize = 5;

/// All sessions are members of one channel, and a message is published several times.
struct Room;

impl Service for Room {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        let key = check_request(request.method(), request.is_http11(), request).expect("our own");
        cx.write(|out| encode_response(&key.accept(), None, out).expect("no subprotocol"));
        Answer::Upgraded
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, status: u16, reason: &str) {
        panic!("{status} {reason}");
    }

    fn on_refused(&mut self, _: &mut Cx<'_>, why: Refusal) {
        panic!("{why:?}");
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        assert!(cx.subscribe("room"));
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        for _ in 0..PUBLICATIONS {
            cx.publish_unordered("room", &Frame::from(message));
        }
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, _: &mut Cx<'_>, _: Close<'_>) {}
}

/// Runs turns of the shard until it is idle for a while.
fn settle(net: &SharedNet, shard: &mut Shard<SimDriver, Room>) {
    for _ in 0..50 {
        shard.driver().progress();
        if shard.driver().is_ready() {
            assert_eq!(shard.turn().expect("a wait does not fail"), None);
        }
        let now = net.borrow().now();
        net.borrow_mut().advance_to(now + 1_000_000);
    }
}

/// A room of one shard, and the link of each of `members`.
fn room(members: u64) -> (SharedNet, Shard<SimDriver, Room>, Vec<LinkId>) {
    let net = Net::shared();
    let listener = net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1)));
    let mut driver = SimDriver::new(&net, 0, Faults::default(), Rng::new(1), Waiting::Never);
    driver.add_listener(listener);
    let options = BuildOptions { seed: Some(1), ..BuildOptions::default() };
    let built = build(vec![driver], &options, |_, _, _| Room).expect("valid limits");
    let mut shard = built.shards.into_iter().next().expect("one driver, one shard");
    let mut request = Vec::new();
    encode_request("sim", "/", &Key::new([7; 16]), &[], &[], &mut request).expect("valid");
    let links: Vec<_> = (0..members)
        .map(|n| {
            let options = LinkOptions { latency: 1000, capacity: 1 << 20, cut_after: None };
            let from = SocketAddr::from(([127, 0, 0, 2], 1000 + n as u16));
            let mut net = net.borrow_mut();
            let link = net.dial(listener, from, options).expect("it listens");
            net.write(link, Side::Dialer, &request);
            link
        })
        .collect();
    settle(&net, &mut shard);
    (net, shard, links)
}

#[test]
fn publications_of_one_turn_leave_in_one_send_to_each_subscriber() {
    // Small publications are copied into the queue, and large ones are shared.
    for size in [20, 100, 2000] {
        let (net, mut shard, links) = room(1 + SUBSCRIBERS);
        let (sends, bytes) = (shard.driver().calls.sends, shard.driver().calls.bytes_sent);
        let mut frame = Vec::new();
        encode_masked(Opcode::Binary, &vec![1; size], [0; 4], &mut frame);
        net.borrow_mut().write(links[0], Side::Dialer, &frame);
        settle(&net, &mut shard);
        let calls = shard.driver().calls;
        let header = if size < 126 { 2 } else { 4 };
        assert_eq!(
            calls.bytes_sent - bytes,
            SUBSCRIBERS * (PUBLICATIONS * (size + header)) as u64,
            "all of it, of {size} bytes each, to all others"
        );
        assert_eq!(calls.sends - sends, SUBSCRIBERS, "one send to each, of {size} bytes each");
    }
}

/// Returns the maximum number of messages accepted within one turn, when one subscriber sends
/// `count` empty messages at once.
fn most_in_a_turn(subscribers: u64, count: usize) -> u64 {
    let (net, mut shard, links) = room(1 + subscribers);
    let mut packet = Vec::new();
    (0..count).for_each(|_| encode_masked(Opcode::Binary, &[], [0; 4], &mut packet));
    net.borrow_mut().write(links[0], Side::Dialer, &packet);
    let (mut most, mut before) = (0, 0);
    while before < count as u64 {
        shard.driver().progress();
        // Delayed messages follow without an event.
        let now = net.borrow().now();
        let is_due = shard.next_deadline().is_some_and(|at| at.0 <= now);
        if shard.driver().is_ready() || is_due {
            assert_eq!(shard.turn().expect("a wait does not fail"), None);
        }
        let said = shard.core().stats().messages_in;
        most = most.max(said - before);
        before = said;
        net.borrow_mut().advance_to(now + 1_000_000);
    }
    most
}

/// Publications that are not yet queued cost time and lists: other connections get their turn in
/// between.
#[test]
fn a_packet_of_many_tiny_publications_is_spread_over_turns() {
    let (subscribers, each) = (1000, PUBLICATIONS as u64);
    let most = most_in_a_turn(subscribers, 1000) * each * subscribers;
    // A turn accepts some of the new messages and some of the delayed ones.
    assert!(most <= 2 * ((1 << 19) + each * subscribers), "{most} in one turn");
}
