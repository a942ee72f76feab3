//! Handlers that are futures: order, back-pressure, cancellation, and every way a session ends.

mod drain;
mod endings;
mod order;
mod pressure;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use throng::prelude::*;
use throng::server::{IoBackend, Shards};
use throng::ws::IntoWs;
use throng_proto::ws::{self, Opcode};
use tokio::runtime::{self, Runtime};

use crate::support::served::{self, start};
use crate::support::{Client, Got};

fn runtime() -> Runtime {
    runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Both families of drivers; the first with two shards.
fn families() -> Vec<fn(App) -> Server> {
    vec![|app| Server::new(app).shards(2), |app| {
        Server::new(app).shards(Shards::new().io(IoBackend::Threads))
    }]
}

fn serve(handler: impl IntoWs) -> (SocketAddr, Running) {
    start(Server::new(served::app().ws("/", handler)).shards(1))
}

fn counter() -> Arc<AtomicUsize> {
    Arc::default()
}

fn is(count: &AtomicUsize, expected: usize) -> bool {
    count.load(Ordering::SeqCst) == expected
}

/// Sends `count` numbered messages in one go from a thread of its own, and expects them back in
/// order.
fn exchange_numbers(client: &mut Client, count: usize) {
    let mut writer = client.stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        let mut frames = Vec::new();
        for i in 0..count {
            ws::encode_masked(Opcode::Text, i.to_string().as_bytes(), [7, 1, 2, 3], &mut frames);
        }
        writer.write_all(&frames).unwrap();
    });
    for i in 0..count {
        assert_eq!(client.next(), Got::Text(i.to_string()));
    }
    sender.join().unwrap();
}

fn close(mut client: Client) {
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    loop {
        match client.next() {
            Got::Close(code, _) => return assert_eq!(code, 1000),
            Got::End => panic!("no Close came"),
            _ => {}
        }
    }
}
