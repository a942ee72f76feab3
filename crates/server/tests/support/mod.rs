//! A blocking client that does nothing on its own, for tests of real servers over real sockets.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod deflating;
pub(crate) mod events;
pub(crate) mod served;
pub(crate) mod wire;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use throng::server::IoBackend;
use throng_proto::ws::Opcode;
#[allow(unused_imports, reason = "each test file uses a part")]
pub(crate) use throng_testkit::{Client, Got, TIMEOUT, dial, eventually, read_head};

/// The system's own backend, the portable one, and a thread for each connection.
pub(crate) const BACKENDS: [IoBackend; 3] =
    [IoBackend::Auto, IoBackend::Portable, IoBackend::Threads];

/// The backends that differ most.
pub(crate) const EXTREMES: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Threads];

/// Counts its live instances.
pub(crate) struct Alive(Arc<AtomicUsize>);

impl Alive {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A session that answers a drain's Close frame, on a separate thread.
pub(crate) fn polite(address: SocketAddr, path: &str) -> JoinHandle<()> {
    let mut client = Client::connect(address, path);
    thread::spawn(move || {
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.try_send(Opcode::Close, &1001u16.to_be_bytes());
        assert_eq!(client.next(), Got::End);
    })
}

/// Sends raw bytes and reads until the server ends the stream.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = dial(address);
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server did not end the stream: {error}"),
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The counts of a publication.
pub(crate) fn counts_of(
    set: impl FnOnce(&mut throng::channel::Delivery),
) -> throng::channel::Delivery {
    let mut counts = throng::channel::Delivery::default();
    set(&mut counts);
    counts
}
