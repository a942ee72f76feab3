//! All members of a channel get its messages in the order of publication, with publishers and
//! members on any shards. A message sent to a session after its own publication arrives after that
//! publication.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use throng_engine::{
    Answer, BuildOptions, Built, Close, Cx, Frame, Message, Refusal, Remote, Sent, Service, Shard,
    UserEvent, build,
};
use throng_proto::http1::Request;
use throng_proto::ws::handshake::{Key, check_request, encode_request, encode_response};
use throng_proto::ws::{Opcode, encode_masked};
use throng_sim::net::{LinkId, LinkOptions, Side};
use throng_sim::turns::turn_any;
use throng_sim::{Faults, Net, Rng, SharedNet, SimDriver, Waiting};

const SHARDS: usize = 3;
const MEMBERS: usize = 9;
const ROUNDS: u32 = 60;

/// Numbers publications. Everything runs on one thread, so numbering and publishing together need
/// no lock.
#[derive(Clone, Default)]
struct Numbers(Rc<RefCell<u16>>);

impl Numbers {
    fn next(&self) -> Frame {
        let mut number = self.0.borrow_mut();
        *number += 1;
        Frame::binary(number.to_be_bytes())
    }
}

/// All sessions are members of one channel. A session publishes once for each byte of a message,
/// and the byte selects how.
struct Room {
    numbers: Numbers,
    remote: Remote,
}

impl Room {
    /// Publishes a number, and sends the publisher that number and two more bytes.
    fn publish_and_acknowledge(&self, cx: &mut Cx<'_>) {
        let frame = self.numbers.next();
        let acknowledgement = [frame.payload(), b"ok"].concat();
        cx.publish("room", &frame);
        let sent = cx.send(Message::Binary(&acknowledgement));
        assert!(matches!(sent, Sent::Accepted | Sent::Queued), "{sent:?}");
    }
}

/// Returns the publications among received frames. Each acknowledgement must follow its
/// publication.
fn publications(received: &[u8]) -> Result<Vec<u8>, String> {
    let (mut publications, mut rest) = (Vec::new(), received);
    while let [0x82, len @ (2 | 4), payload @ ..] = rest {
        let (payload, after) = payload.split_at(usize::from(*len).min(payload.len()));
        match payload {
            [high, low] => publications.extend_from_slice(&[0x82, 2, *high, *low]),
            [number @ .., b'o', b'k'] => {
                let has_come = publications.chunks(4).any(|frame| frame[2..] == *number);
                if !has_come {
                    return Err(format!("{number:?} was acknowledged before it came"));
                }
            }
            other => return Err(format!("{other:?} is no message")),
        }
        rest = after;
    }
    if rest.is_empty() { Ok(publications) } else { Err(format!("{rest:?} is no frame")) }
}

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
        for way in message.as_bytes() {
            match way % 4 {
                0 => {
                    let frame = self.numbers.next();
                    let _ = self.remote.publish("room", &frame, None).expect("there is room");
                }
                1 => self.remote.post(cx.id(), Box::new(())),
                2 => self.publish_and_acknowledge(cx),
                _ => drop(cx.publish("room", &self.numbers.next())),
            }
        }
    }

    /// Called while later commands wait.
    fn on_user_event(&mut self, cx: &mut Cx<'_>, _: UserEvent) {
        self.publish_and_acknowledge(cx);
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, _: &mut Cx<'_>, _: Close<'_>) {}
}

/// Shards whose members are on links, some on each shard.
struct Rooms {
    net: SharedNet,
    shards: Vec<Shard<SimDriver, Room>>,
    links: Vec<LinkId>,
    rng: Rng,
    numbers: Numbers,
    remote: Remote,
}

impl Rooms {
    fn new(seed: u64, count: usize, mark: usize) -> Self {
        let (net, mut rng, numbers) = (Net::shared(), Rng::new(seed), Numbers::default());
        let mut listeners = Vec::new();
        let drivers = (0..count as u16)
            .map(|shard| {
                let listener =
                    net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1 + shard)));
                let mut driver =
                    SimDriver::new(&net, shard, Faults::default(), rng.fork(), Waiting::Never);
                driver.add_listener(listener);
                listeners.push(listener);
                driver
            })
            .collect();
        let options =
            BuildOptions { seed: Some(seed), mailbox_mark: Some(mark), ..BuildOptions::default() };
        let service = |_: usize, _: &_, remote: &Remote| Room {
            numbers: numbers.clone(),
            remote: remote.clone(),
        };
        let Built { shards, remote, .. } = build(drivers, &options, service).expect("valid limits");
        let mut request = Vec::new();
        encode_request("sim", "/", &Key::new([7; 16]), &[], &[], &mut request).expect("valid");
        let links = (0..MEMBERS)
            .map(|n| {
                let options = LinkOptions { latency: 1000, capacity: 1 << 20, cut_after: None };
                let from = SocketAddr::from(([127, 0, 0, 2], 1000 + n as u16));
                let mut net = net.borrow_mut();
                let link = net.dial(listeners[n % count], from, options).expect("it listens");
                net.write(link, Side::Dialer, &request);
                link
            })
            .collect();
        let mut rooms = Self { net, shards, links, rng, numbers, remote };
        rooms.settle();
        // The answers to the handshakes.
        for number in 0..MEMBERS {
            let head = rooms.received(number);
            assert!(head.ends_with(b"\r\n\r\n"), "{:?}", String::from_utf8_lossy(&head));
        }
        rooms
    }

    /// Runs a turn of one shard that has something to do, picked at random. Returns false if no
    /// shard has.
    fn turn_any(&mut self) -> bool {
        turn_any(&self.net, &mut self.shards, &mut self.rng)
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            while self.turn_any() {}
            let now = self.net.borrow().now();
            self.net.borrow_mut().advance_to(now + 1_000_000);
        }
    }

    fn received(&mut self, member: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.net.borrow_mut().read(self.links[member], Side::Dialer, usize::MAX, &mut bytes);
        bytes
    }
}

fn publish_at_random(seed: u64, shards: usize, mark: usize) {
    let mut rooms = Rooms::new(seed, shards, mark);
    for _ in 0..ROUNDS {
        let member = rooms.rng.below(MEMBERS);
        let ways: Vec<u8> = (0..=rooms.rng.below(3)).map(|_| rooms.rng.below(256) as u8).collect();
        let mut message = Vec::new();
        encode_masked(Opcode::Binary, &ways, [0; 4], &mut message);
        rooms.net.borrow_mut().write(rooms.links[member], Side::Dialer, &message);
        let now = rooms.net.borrow().now();
        let later = rooms.rng.between(0, 3000);
        rooms.net.borrow_mut().advance_to(now + later);
        if rooms.rng.below(4) == 0 {
            let frame = rooms.numbers.next();
            let _ = rooms.remote.publish("room", &frame, None).expect("there is room");
        }
        for _ in 0..rooms.rng.below(4) {
            rooms.turn_any();
        }
    }
    rooms.settle();
    let last = *rooms.numbers.0.borrow();
    let expected: Vec<u8> =
        (1..=last).flat_map(|n| [&[0x82, 2][..], &n.to_be_bytes()].concat()).collect();
    for member in 0..MEMBERS {
        let received = rooms.received(member);
        let received = publications(&received);
        assert!(received.as_ref() == Ok(&expected), "seed {seed}, member {member}: {received:?}");
    }
}

#[test]
fn members_on_several_shards_get_messages_in_the_order_they_were_published() {
    for seed in 0..40 {
        publish_at_random(seed, SHARDS, 1000);
    }
}

/// A callback that publishes first through the hub and then directly is not overtaken on its own
/// shard.
#[test]
fn members_of_one_shard_get_messages_in_the_order_they_were_published() {
    for seed in 0..20 {
        publish_at_random(seed, 1, 1000);
    }
}

#[test]
fn publishers_that_are_held_back_keep_the_order() {
    for seed in 0..20 {
        publish_at_random(seed, SHARDS, 0);
    }
}
