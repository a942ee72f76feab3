//! Messages that arrive in chunks: larger than any limit on memory, and never buffered whole.

mod support;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use support::{Client, Got};
use throng::prelude::*;
use throng::ws::Compression;
use throng_proto::ws::{Fragment, Opcode};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const KEY: [u8; 4] = [1, 2, 3, 4];

fn fragment(opcode: Opcode, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    Fragment { opcode, fin, deflated: false, payload }.encode(Some(KEY), &mut frame);
    frame
}

/// Sends `len` bytes as one message in frames of `frame` bytes, with a ping after each.
fn upload(client: &mut Client, len: usize, frame: usize) {
    let piece: Vec<u8> = (0..frame).map(|i| (i % 251) as u8).collect();
    let (mut sent, mut opcode) = (0, Opcode::Binary);
    let mut masked = Vec::new();
    while sent < len {
        let size = frame.min(len - sent);
        sent += size;
        masked.clear();
        masked.extend(fragment(opcode, sent == len, &piece[..size]));
        masked.extend(fragment(Opcode::Ping, true, &[]));
        client.stream.write_all(&masked).unwrap();
        opcode = Opcode::Continuation;
    }
}

#[test]
fn a_message_larger_than_any_buffer_takes_no_memory() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let largest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&largest);
    let count = Ws::from_request(|_| Ok((0u64, 0u64)))
        .on_chunk(move |ws, (bytes, sum), piece| {
            seen.fetch_max(piece.bytes.len(), Ordering::Relaxed);
            *bytes += piece.bytes.len() as u64;
            *sum += piece.bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            if piece.last {
                let total = format!("{bytes} {sum}");
                (*bytes, *sum) = (0, 0);
                ws.send(total);
            }
        })
        .max_message_size(1 << 30);
    let bound = Server::new(App::new().ws("/", count)).shards(1).bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();
    let mut client = Client::connect(address, "/");
    let (len, frame) = (192 << 20, 3 << 20);
    let tell = |len: usize, client: &mut Client| {
        let sum: u64 = (0..len).map(|i| ((i % frame) % 251) as u64).sum();
        loop {
            match client.next() {
                Got::Pong(_) => {}
                other => return assert_eq!(other, Got::Text(format!("{len} {sum}"))),
            }
        }
    };
    upload(&mut client, frame, frame);
    tell(frame, &mut client);
    let before = dhat::HeapStats::get();
    upload(&mut client, len, frame);
    tell(len, &mut client);
    let after = dhat::HeapStats::get();
    // Nothing buffers more than the client's own frame.
    let grown = after.max_bytes.saturating_sub(before.curr_bytes);
    assert!(grown < 8 * frame, "{grown} bytes for a message of {len}");
    assert!(largest.load(Ordering::Relaxed) <= 512 << 10, "no piece is more than was received");
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

#[test]
fn pieces_come_in_order_and_limits_still_hold() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let pieces = Ws::new()
        .on_chunk(move |_, (), piece| {
            let text = String::from_utf8_lossy(piece.bytes).into_owned();
            record.lock().unwrap().push((piece.text, piece.first, piece.last, text));
        })
        .max_message_size(1000)
        .compression(Compression::Shared);
    let bound = Server::new(App::new().ws("/", pieces)).shards(1).bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();
    let mut client = Client::connect(address, "/");
    client.send_text("whole");
    // Read one by one: each pong shows that the earlier input was processed.
    client.stream.write_all(&fragment(Opcode::Text, false, b"one ")).unwrap();
    client.stream.write_all(&fragment(Opcode::Ping, true, b"1")).unwrap();
    assert_eq!(client.next(), Got::Pong(b"1".to_vec()));
    client
        .stream
        .write_all(&fragment(Opcode::Continuation, true, "zw\u{f6}lf".as_bytes()))
        .unwrap();
    client.stream.write_all(&fragment(Opcode::Binary, false, &[b'x'; 600])).unwrap();
    client.stream.write_all(&fragment(Opcode::Continuation, true, &[b'x'; 401])).unwrap();
    loop {
        match client.next() {
            Got::Close(code, _) => break assert_eq!(code, 1009),
            Got::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let seen = seen.lock().unwrap();
    let expected = |text, first, last, bytes: &str| (text, first, last, bytes.to_owned());
    assert_eq!(seen[0], expected(true, true, true, "whole"));
    assert_eq!(seen[1], expected(true, true, false, "one "));
    let rest: Vec<_> = seen[2..].iter().filter(|piece| piece.0).collect();
    let joined: String = rest.iter().map(|piece| &*piece.3).collect();
    assert_eq!(joined, "zw\u{f6}lf");
    assert!(rest.iter().all(|piece| !piece.1) && rest.last().unwrap().2);
    let more: usize = seen.iter().filter(|piece| !piece.0).map(|piece| piece.3.len()).sum();
    assert!(more <= 600, "the frame that passed the limit was not given");
    running.shutdown(DrainPlan::default()).wait().unwrap();
}
