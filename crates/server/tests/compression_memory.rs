//! Memory of compression: bombs use no more than the limit, connections no more than their window.
//! In a separate file, because it counts every byte of the process's heap.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use support::deflating::Peer;
use support::served::{self, start, stop, total};
use support::wire::{Terms, Writer};
use throng::prelude::*;
use throng::ws::Compression;
use throng_testkit::eventually;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const MIB: usize = 1 << 20;
const DEFLATE: &str = "permessage-deflate; client_max_window_bits";
const CONNECTIONS: usize = 1500;

/// Bytes on the heap, after a sweep of the shard, which releases unused memory, and the end of that
/// turn.
fn heap(running: &Running) -> usize {
    let none = Filter::new().subprotocol("of none");
    let turn = || {
        total(&running.hub().broadcast_to(&none, "x").unwrap());
    };
    let published = running.stats().turns;
    eventually("the shard sweeps", || {
        turn();
        running.stats().turns != published
    });
    turn();
    dhat::HeapStats::get().curr_bytes
}

/// One after the other: each measures the whole process.
#[test]
fn compression_costs_no_more_memory_than_it_says() {
    let _profiler = dhat::Profiler::builder().testing().build();
    bombs();
    connections();
}

fn bombs() {
    let echo = |compression: Compression| {
        Ws::new()
            .on_message(|ws, (), message| ws.send(&message.as_bytes()[..1]))
            .compression(compression)
    };
    let server = Server::new(
        served::app()
            .ws("/shared", echo(Compression::Shared))
            .ws("/w10", echo(Compression::Window { bits: 10 })),
    )
    // Windows has no memory on demand for the tables of more connections.
    .limits(Limits::default().max_message_size(MIB).max_connections(1000));
    let (address, running) = start(server.shards(1));
    // Blocks without a reference to what is before them may be repeated.
    let terms =
        Terms { server_bits: 15, client_bits: 15, server_context: false, client_context: false };
    let mut block = Writer::of_client(Some(terms)).deflate(&vec![0; MIB]);
    block.extend_from_slice(&[0, 0, 0xff, 0xff]);
    for path in ["/shared", "/w10"] {
        let mut before = 0;
        for round in 0..4 {
            // A GiB, in one frame and in a thousand.
            for fragments in [1, 1000] {
                let bomb = block.repeat(1024);
                let bomb = &bomb[..bomb.len() - 4];
                let mut peer = Peer::connect(address, path, DEFLATE);
                let size = bomb.len().div_ceil(fragments);
                let mut bytes = Vec::new();
                for (at, piece) in bomb.chunks(size).enumerate() {
                    let first = if at == 0 { 0x42 } else { 0 };
                    let fin = if (at + 1) * size >= bomb.len() { 0x80 } else { 0 };
                    peer.writer.frame(first | fin, piece, &mut bytes);
                }
                // The connection may be closed before it has everything.
                let _ = peer.stream.write_all(&bytes);
                assert_eq!(peer.expect_close().0, 1009, "{path}");
            }
            // Exactly the limit passes, and one byte more does not.
            let mut peer = Peer::connect(address, path, DEFLATE);
            for _ in 0..3 {
                peer.say(false, &vec![0; MIB]);
                peer.expect_message(&[0]);
            }
            peer.say(false, &vec![0; MIB + 1]);
            assert_eq!(peer.expect_close().0, 1009, "{path}");
            drop(peer);
            eventually("all are gone", || {
                running.hub().broadcast("x").is_ok_and(|receipt| total(&receipt).receivers() == 0)
            });
            let now = heap(&running);
            if round == 0 {
                before = now;
            }
            assert!(now < before + 64 * 1024, "{path}: {} bytes more", now - before);
        }
    }
    // The inflater has a MiB; the joined fragments, the receive buffer and codecs have theirs; the
    // test also needs some.
    let most = dhat::HeapStats::get().max_bytes;
    assert!(most < 16 * MIB, "{most} bytes at once");
    stop(running);
}

struct Clients {
    address: SocketAddr,
    streams: Vec<TcpStream>,
}

impl Clients {
    /// Connections on which nothing was sent yet.
    fn open(address: SocketAddr, path: &str, offer: &str) -> Self {
        let peers = (0..CONNECTIONS).map(|_| Peer::connect(address, path, offer).stream);
        Self { address, streams: peers.collect() }
    }

    /// Each sends these bytes, and reads an answer of `answer` bytes.
    fn exchange(&mut self, bytes: &[u8], answer: usize) {
        let mut buffer = vec![0; answer];
        for stream in &mut self.streams {
            stream.write_all(bytes).unwrap();
            stream.read_exact(&mut buffer).unwrap();
        }
    }

    /// Returns the length of one connection's answer, which is the same for all.
    fn answer_to(&self, path: &str, bytes: &[u8]) -> usize {
        let mut peer = Peer::connect(self.address, path, DEFLATE);
        peer.stream.write_all(bytes).unwrap();
        let mut buffer = [0; 65_536];
        peer.stream.read(&mut buffer).unwrap()
    }
}

/// Bytes in which a window finds few repetitions, enough to fill it.
fn filling() -> Vec<u8> {
    let mut state = 7_u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'a' + (state >> 28) as u8
    };
    (0..6000).map(|_| draw()).collect()
}

fn connections() {
    let echo = |compression: Compression| {
        Ws::new()
            .on_open(|ws, ()| {
                ws.subscribe("all");
            })
            .on_message(|ws, (), message| ws.send(message))
            .compression(compression)
    };
    let server = Server::new(
        served::app()
            .ws("/off", echo(Compression::Off))
            .ws("/shared", echo(Compression::Shared))
            .ws("/w10", echo(Compression::Window { bits: 10 }))
            .ws("/w12", echo(Compression::Window { bits: 12 })),
    );
    let (address, running) = start(server.shards(1));
    let message = filling();
    // Warm-up: tables reach their size, and codecs allocate their memory.
    for path in ["/off", "/shared", "/w10", "/w12"] {
        let mut clients = Clients::open(address, path, DEFLATE);
        let sent = first_message(path, &message);
        let answer = clients.answer_to(path, &sent);
        clients.exchange(&sent, answer);
        let frame = Frame::binary(&message);
        total(&running.hub().publish("all", &frame).unwrap());
        drop(clients);
        eventually("all are gone", || running.hub().subscribers("all") == 0);
    }
    let measure = |path: &str, offer: &str| {
        let before = heap(&running);
        let mut clients = Clients::open(address, path, offer);
        let fair = |now: usize| (now as i64 - before as i64) / CONNECTIONS as i64;
        eventually("all listen", || running.hub().subscribers("all") == CONNECTIONS);
        let idle = fair(heap(&running));
        let sent = first_message(if offer.is_empty() { "/off" } else { path }, &message);
        let answer = match offer {
            "" => message.len() + 4,
            _ => clients.answer_to(path, &sent),
        };
        clients.exchange(&sent, answer);
        eventually("only they are left", || running.hub().subscribers("all") == CONNECTIONS);
        let talked = fair(heap(&running));
        drop(clients);
        eventually("all are gone", || running.hub().subscribers("all") == 0);
        (idle, talked)
    };
    // The less of two: where the machine is busy, many connections begin or end in one turn, and a
    // queue of the shard grows once more.
    let each = |path: &str, offer: &str| {
        let (first, again) = (measure(path, offer), measure(path, offer));
        (first.0.min(again.0), first.1.min(again.1))
    };
    let (off, off_talked) = each("/off", "");
    let (declined, declined_talked) = each("/shared", "");
    let (shared, shared_talked) = each("/shared", DEFLATE);
    let (w10, w10_talked) = each("/w10", DEFLATE);
    let (w12, w12_talked) = each("/w12", DEFLATE);
    println!("heap bytes a connection, idle and after a message of 6,000 bytes each way:");
    println!("off {off} {off_talked}, declined {declined} {declined_talked}, ");
    println!("shared {shared} {shared_talked}, w10 {w10} {w10_talked}, w12 {w12} {w12_talked}");
    // All tables have their size already: an idle connection costs no more, in any mode. The rest
    // belongs to the shard and to the measurement.
    const SLACK: i64 = 16;
    for (idle, talked) in [(declined, declined_talked), (shared, shared_talked)] {
        assert!(idle <= off + SLACK && talked <= off_talked + SLACK);
    }
    assert!(w10 <= off + SLACK && w12 <= off + SLACK, "contexts are made when they are used");
    let (of_10, of_12) = ((w10_talked - off_talked) / 2, (w12_talked - off_talked) / 2);
    println!("for each direction in use: w10 {of_10}, w12 {of_12}");
    assert!((1024..=1024 + 96).contains(&of_10), "{of_10} a direction");
    assert!((4096..=4096 + 96).contains(&of_12), "{of_12} a direction");
    stop(running);
}

/// The message as a client's first.
fn first_message(path: &str, message: &[u8]) -> Vec<u8> {
    let terms = match path {
        "/off" => None,
        "/shared" => Some((15, false)),
        "/w10" => Some((10, true)),
        _ => Some((12, true)),
    };
    let terms = terms.map(|(client_bits, client_context)| Terms {
        server_bits: 15,
        client_bits,
        server_context: client_context,
        client_context,
    });
    let mut writer = Writer::of_client(terms);
    let compress = writer.can_deflate();
    writer.message(false, message, compress)
}
