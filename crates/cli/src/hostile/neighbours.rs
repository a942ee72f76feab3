//! The well-behaved clients of the attacked server, and the effects on them.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use crate::wire::{Client, request};

/// Sessions that send messages for the whole time.
const SESSIONS: usize = 8;
/// The pause of each between two messages.
const MESSAGE_PAUSE: Duration = Duration::from_millis(10);
/// The pause between two rounds of new connections.
const ARRIVAL_PAUSE: Duration = Duration::from_millis(50);
/// The body that each round uploads.
const BODY: usize = 100_000;

/// Latencies and failures that the well-behaved clients see.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Times from a message to its echo, in microseconds.
    latencies: Mutex<Vec<u64>>,
    /// New connections that were served: a session, an upload, a health check.
    pub(super) arrivals: AtomicU64,
    /// New connections that were not served.
    pub(super) refused: AtomicU64,
    /// Sessions that the server ended.
    pub(super) disconnected: AtomicU64,
    /// The first error of a new connection or a session, as text.
    first_error: Mutex<Option<String>>,
}

impl Totals {
    /// Returns the times from messages to their echoes in microseconds, in ascending order.
    pub(super) fn latencies(&self) -> Vec<u64> {
        let mut sorted = self.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sorted.sort_unstable();
        sorted
    }

    /// Returns whether there are results of both kinds of clients, which on a busy machine takes
    /// longer than a short attack.
    pub(super) fn has_some_of_each(&self) -> bool {
        let arrivals = self.arrivals.load(Relaxed) + self.refused.load(Relaxed);
        let has_ended = self.disconnected.load(Relaxed) > 0;
        let latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals > 0 && (has_ended || !latencies.is_empty())
    }

    /// Returns the first error of a new connection or a session, as text.
    pub(super) fn first_error(&self) -> Option<String> {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, what: &str, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.arrivals.fetch_add(1, Relaxed),
            Err(error) => {
                self.record(what, &error);
                self.refused.fetch_add(1, Relaxed)
            }
        };
    }

    fn record(&self, what: &str, error: &io::Error) {
        let mut first = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| format!("{what}: {error}"));
    }
}

/// Opens the sessions, then starts threads for the clients, which end when `stop` is set. Results
/// count only while `counts` is set.
///
/// # Errors
/// A session could not be opened.
pub(super) fn start<'s>(
    scope: &'s Scope<'s, '_>,
    address: SocketAddr,
    (counts, stop): (&'s AtomicBool, &'s AtomicBool),
    totals: &'s Totals,
) -> io::Result<()> {
    for number in 0..SESSIONS {
        // Half of them through a channel.
        let path = match number % 2 {
            0 => "/echo".to_owned(),
            _ => format!("/ws/neighbour-{number}?echo=1"),
        };
        let client = Client::open(address, &path, "")?;
        scope.spawn(move || talk(client, (counts, stop), totals));
    }
    scope.spawn(move || arrive(address, (counts, stop), totals));
    Ok(())
}

fn talk(mut client: Client, (counts, stop): (&AtomicBool, &AtomicBool), totals: &Totals) {
    let mut number = 0u64;
    while !stop.load(Relaxed) {
        number += 1;
        let counted = counts.load(Relaxed);
        let begun = Instant::now();
        if let Err(error) = client.echo(&number.to_string()) {
            totals.record("a session", &error);
            totals.disconnected.fetch_add(1, Relaxed);
            return;
        }
        if counted {
            let mut latencies = totals.latencies.lock().unwrap_or_else(PoisonError::into_inner);
            latencies.push(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        thread::sleep(MESSAGE_PAUSE);
    }
}

fn arrive(address: SocketAddr, (counts, stop): (&AtomicBool, &AtomicBool), totals: &Totals) {
    let health = format!("GET /livez HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let upload = format!(
        "POST /body HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {BODY}\r\n\r\n"
    );
    let upload = [upload.as_bytes(), &vec![b'x'; BODY]].concat();
    while !stop.load(Relaxed) {
        if counts.load(Relaxed) {
            let opened = Client::open(address, "/echo", "");
            totals.count("a new session", opened.and_then(|mut client| client.echo("new")));
            totals.count("a health check", request(address, health.as_bytes()));
            totals.count("an upload", request(address, &upload));
        }
        thread::sleep(ARRIVAL_PAUSE);
    }
}
