//! Tunnels that move to a successor: here another balancer of the same process, or a test that
//! breaks the rules.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_balance::{
    Backend, Configuration, MovedTunnels, Moves, OnBound, Passage, Settings, Target,
};
use throng_carry::Inbox;
use throng_carry::link::LinkMessage;
use throng_io::handover;
use throng_proto::ws::{Opcode, encode, encode_masked};
use throng_testkit::eventually;

use crate::support::{Balancer, Peer, Scripted, TIMEOUT};

/// A balancer, its backend, and open tunnels: the client of each, and its server.
struct Served {
    shards: usize,
    balancer: Balancer,
    backend: Scripted,
    tunnels: Vec<(Peer, Peer)>,
}

impl Served {
    fn start(shards: usize, tunnels: usize) -> Self {
        let backend = Scripted::bind();
        let balancer = Balancer::start_with(shards, &[backend.address], Settings::default(), false);
        let mut it = Self { shards, balancer, backend, tunnels: Vec::new() };
        (0..tunnels).for_each(|_| it.open());
        it
    }

    fn open(&mut self) {
        let mut client = self.balancer.connect();
        client.send(&crate::support::upgrade("/chat"));
        let server = self.backend.open();
        assert!(client.head().starts_with("HTTP/1.1 101 "));
        self.tunnels.push((client, server));
    }

    /// Sends a message over each tunnel, both ways.
    fn talk(&mut self, text: &str) {
        for (client, server) in &mut self.tunnels {
            client.send_text(text);
            assert_eq!(server.text(), text);
            server.send_text_unmasked(text);
            assert_eq!(client.text(), text);
        }
    }

    fn begin(&self) -> (Moves, Vec<Passage>) {
        let (moves, passages) = self.balancer.shards.begin_moves();
        (moves.unwrap(), passages.unwrap())
    }

    /// Replaces the balancer by a successor with these backends. Returns the old one.
    fn succeed_with(&mut self, backends: &[&Scripted]) -> (Balancer, MovedTunnels) {
        let (moves, passages) = self.begin();
        let target = |backend: &&Scripted| Target {
            backend: Arc::new(Backend::new(backend.address, 1)),
            send_proxy: false,
            tls: None,
            passthrough: Arc::default(),
            name: None,
        };
        let backends = backends.iter().map(target).collect();
        let configuration = Configuration::new(Settings::default(), backends);
        let expected = self.shards;
        let on_bound = OnBound(Box::new(move |shards| {
            assert_eq!(shards, Some(expected));
            Ok(passages)
        }));
        let new = Balancer::of_bound(expected, configuration, Some(on_bound));
        let moved = moves.run(Instant::now() + TIMEOUT, &mut || true).unwrap();
        moves.end();
        (std::mem::replace(&mut self.balancer, new), moved)
    }

    fn succeed(&mut self) -> (Balancer, MovedTunnels) {
        let backend = std::mem::replace(&mut self.backend, Scripted::bind());
        let outcome = self.succeed_with(&[&backend]);
        self.backend = backend;
        outcome
    }
}

#[test]
fn tunnels_move_with_all_their_bytes_and_end_in_the_successor() {
    // More than go into one batch of a shard.
    let mut served = Served::start(2, 100);
    served.talk("before");
    // Halves of frames, in both directions.
    let [mut up, mut down] = [Vec::new(), Vec::new()];
    encode_masked(Opcode::Text, b"up, in two parts", [1, 2, 3, 4], &mut up);
    encode(Opcode::Text, b"down, in two parts", &mut down);
    for (client, server) in &mut served.tunnels[..10] {
        client.send(&up[..9]);
        server.send(&down[..9]);
    }
    // More than the kernel and the balancer hold together.
    let long = "long".repeat(2_000_000);
    let (client, server) = served.tunnels.pop().unwrap();
    let (mut slow, mut fast) = (client, Peer::new(server.stream.try_clone().unwrap()));
    let text = long.clone();
    let sender = std::thread::spawn(move || fast.send_text_unmasked(&text));
    eventually("the client is behind", || served.balancer.shards.metrics().bytes_down > 200_000);

    let (old, moved) = served.succeed();
    assert_eq!(moved.tunnels, 100);
    assert!(moved.stays.is_empty(), "{moved:?}");
    let metrics = old.shards.metrics();
    assert_eq!((metrics.connections, metrics.tunnels), (0, 0));
    let metrics = served.balancer.shards.metrics();
    assert_eq!((metrics.connections, metrics.tunnels), (100, 100));
    assert_eq!(served.balancer.backends[0].tunnels(), 100);
    assert_eq!(old.backends[0].tunnels(), 0);
    drop(old);

    assert!(slow.text() == long, "bytes are missing or in another order");
    sender.join().unwrap();
    served.tunnels.push((slow, server));
    for (client, server) in &mut served.tunnels[..10] {
        client.send(&up[9..]);
        server.send(&down[9..]);
        assert_eq!(server.text(), "up, in two parts");
        assert_eq!(client.text(), "down, in two parts");
    }
    served.talk("after");
    // New tunnels have other ids, and all move once more.
    served.open();
    let (old, moved) = served.succeed();
    assert_eq!(moved.tunnels, 101);
    drop(old);
    served.talk("and again");
    for (mut client, mut server) in served.tunnels.drain(..) {
        client.send_close(1000);
        assert_eq!(server.close_code(), 1000);
        let mut close = Vec::new();
        throng_proto::ws::encode_close(1000, "", None, &mut close);
        server.send(&close);
        drop(server);
        assert_eq!(client.close_code(), 1000);
        assert!(client.is_at_end());
    }
    served.balancer.assert_nothing_is_held();
}

#[test]
fn a_tunnel_whose_backend_the_successor_does_not_have_stays() {
    let mut served = Served::start(2, 3);
    let other = Scripted::bind();
    let (old, moved) = served.succeed_with(&[&other]);
    assert_eq!((moved.tunnels, moved.stays.values().sum::<u64>()), (0, 3));
    served.talk("still here");
    old.shards.shut_down(Duration::ZERO, TIMEOUT, true);
    for (client, _) in &mut served.tunnels {
        assert_eq!(client.close_code(), 1001);
    }
}

/// Receives the next message of a link.
fn receive(link: &UnixStream) -> LinkMessage {
    let mut inbox = Inbox::new(1 << 20);
    loop {
        let mut buffer = [0; 1000];
        let (count, descriptors) = handover::receive(link, &mut buffer).unwrap();
        assert!(count > 0, "the link has ended");
        drop(descriptors);
        inbox.push(&buffer[..count]);
        if let Some(message) = inbox.next_message().unwrap() {
            return LinkMessage::decode(&message).unwrap().unwrap();
        }
    }
}

/// Receives a batch, and returns its number and ids.
fn receive_batch(link: &UnixStream) -> (u64, Vec<u64>) {
    match receive(link) {
        LinkMessage::Batch { number, records } => {
            (number, records.iter().map(|record| record.id).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// The answer of a successor to the first batch of a shard. It returns whether it lives.
type Fault = fn(&UnixStream) -> bool;

#[test]
fn a_successor_that_breaks_the_rules_leaves_all_to_the_old_process() {
    let faults: [(&str, Fault); 7] = [
        ("says nothing", |_| true),
        ("ends", |link| {
            receive_batch(link);
            false
        }),
        ("closes the link", |link| {
            receive_batch(link);
            link.shutdown(std::net::Shutdown::Both).unwrap();
            true
        }),
        ("sends no message", |mut link| {
            receive_batch(link);
            let _ = link.write_all(b"GET / HTTP/1.1\r\n\r\n");
            true
        }),
        ("takes another batch", |mut link| {
            receive_batch(link);
            let wrong = LinkMessage::Taken { number: 7, refused: Vec::new() };
            link.write_all(&wrong.encode()).unwrap();
            true
        }),
        ("refuses a stranger", |mut link| {
            let (number, _) = receive_batch(link);
            let wrong = LinkMessage::Taken { number, refused: vec![u64::MAX] };
            link.write_all(&wrong.encode()).unwrap();
            true
        }),
        ("gives", |mut link| {
            let (number, _) = receive_batch(link);
            link.write_all(&LinkMessage::Yours { number }.encode()).unwrap();
            true
        }),
    ];
    let mut served = Served::start(1, 4);
    for (what, fault) in faults {
        let (moves, passages) = served.begin();
        let lives = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            for Passage { link, .. } in &passages {
                scope.spawn(|| {
                    if !fault(link) {
                        lives.store(false, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
            let mut is_alive = || lives.load(std::sync::atomic::Ordering::Relaxed);
            let failed = moves.run(Instant::now() + TIMEOUT, &mut is_alive);
            assert!(failed.is_err(), "{what}: {failed:?}");
        });
        // It is ended, and with it its duplicates.
        drop(passages);
        moves.abandon();
        served.talk(what);
        served.open();
        let metrics = served.balancer.shards.metrics();
        assert_eq!(metrics.tunnels, served.tunnels.len() as u64, "{what}");
    }
    // An obedient successor takes everything.
    let (_old, moved) = served.succeed();
    assert_eq!(moved.tunnels, served.tunnels.len() as u64);
    served.talk("at last");
}

#[test]
fn a_tunnel_that_a_successor_refuses_stays_and_is_not_offered_again() {
    let mut served = Served::start(2, 4);
    let (moves, passages) = served.begin();
    std::thread::scope(|scope| {
        for Passage { link, .. } in &passages {
            scope.spawn(move || {
                let mut refused = 0;
                let mut inbox = Inbox::new(1 << 20);
                let mut buffer = [0; 1000];
                // The link ends with the move.
                while let Ok((count @ 1.., _)) = handover::receive(link, &mut buffer) {
                    inbox.push(&buffer[..count]);
                    while let Some(message) = inbox.next_message().unwrap() {
                        let message = LinkMessage::decode(&message).unwrap().unwrap();
                        let LinkMessage::Batch { number, records } = message else {
                            panic!("{message:?}")
                        };
                        let ids: Vec<_> = records.iter().map(|record| record.id).collect();
                        refused += ids.len();
                        let answer = LinkMessage::Taken { number, refused: ids };
                        let mut link = link;
                        link.write_all(&answer.encode()).unwrap();
                    }
                }
                assert!(refused <= 4, "{refused}");
            });
        }
        let moved = moves.run(Instant::now() + TIMEOUT, &mut || true).unwrap();
        moves.end();
        assert_eq!((moved.tunnels, moved.stays.values().sum::<u64>()), (0, 4));
    });
    served.talk("stayed");
}
