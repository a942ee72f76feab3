//! Compression work of one connection does not keep the others of its shard waiting.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use throng::prelude::*;
use throng::ws::Compression;

use crate::support::deflating::Peer;
use crate::support::served::{self, start, stop};
use crate::support::{Client, Got, eventually};

const DEFLATE: &str = "permessage-deflate; client_max_window_bits";

/// Floods a blocked shard until both messages are there. Returns how many messages of the flood
/// were processed before the message of another connection that waited at the same time.
fn handled_first(flood_of: &[u8], times: usize, context: &[u8]) -> usize {
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let ((entered, is_held), (release, released)) = (mpsc::channel(), mpsc::channel());
    let released = Mutex::new(released);
    let ws = Ws::new().on_message(move |ws, (), message| match message.as_bytes() {
        b"hold" => {
            entered.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
        b"how many" => {
            ws.send(count.load(Ordering::Relaxed).to_string());
        }
        _ => {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let server =
        Server::new(served::app().ws("/", ws)).compression(Compression::Window { bits: 15 });
    let (address, running) = start(server.shards(1));
    let mut flooder = Peer::connect(address, "/", DEFLATE);
    flooder.say(false, context);
    eventually("the context is there", || handled.load(Ordering::Relaxed) == 1);
    let mut flood = Vec::new();
    for _ in 0..times {
        flood.extend(flooder.writer.message(false, flood_of, true));
    }
    let mut other = Client::connect(address, "/");
    let mut holder = Client::connect(address, "/");
    holder.send_text("hold");
    is_held.recv().unwrap();
    // On loopback, written bytes reach the receiver at once: first the flood, then the other
    // message. Then the shard reads both.
    let mut writing = flooder.stream.try_clone().unwrap();
    let written = writing.write(&flood).unwrap();
    let writer = std::thread::spawn(move || writing.write_all(&flood[written..]).unwrap());
    other.send_text("how many");
    release.send(()).unwrap();
    let Got::Text(answer) = other.next() else { panic!("no answer") };
    eventually("all are handled", || handled.load(Ordering::Relaxed) == 1 + times);
    writer.join().unwrap();
    stop(running);
    answer.parse().unwrap()
}

/// Each is shown 32 KiB of context: together, 640 MiB.
#[test]
fn tiny_messages_with_much_context_are_spread_over_turns() {
    let context: Vec<u8> = (0..40_000u32).map(|n| ((n * n) >> 7) as u8).collect();
    let first = handled_first(b"tiny", 20_000, &context);
    assert!(first < 2000, "{first} of 20,000 came first");
}

/// Each is a mebibyte, within the limit, from a kilobyte.
#[test]
fn bombs_within_the_limit_are_spread_over_turns() {
    let first = handled_first(&[0; 1 << 20], 300, b"");
    assert!(first < 50, "{first} of 300 came first");
}
