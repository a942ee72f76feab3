//! A backend in a separate process, so that it can be killed: this project's server, with a route
//! that numbers its messages and checks the numbers of received ones.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use throng::prelude::*;
use throng::server::{IoBackend, Shards};

use super::numbers::{self, Tunnel};
use super::support::{dial, exchange};

/// Counts of a backend.
#[derive(Default)]
struct Seen {
    handshakes: AtomicU64,
    most_handshakes: AtomicU64,
    received: AtomicU64,
    /// Messages out of order, or incomplete.
    faults: AtomicU64,
    /// Connections closed by a client that had sent its number of messages.
    closed: AtomicU64,
    /// Closed connections that had lost messages.
    short: AtomicU64,
    /// Connections ended without a Close frame.
    cut: AtomicU64,
}

/// The process: serves until it is killed. Each handshake takes `slow`; if that is not zero each
/// connection has a thread, so that handshakes run in parallel, and can be counted.
pub(crate) fn run(slow: Duration) {
    let seen = Arc::new(Seen::default());
    let [upgrading, receiving, closing, reporting] = [(); 4].map(|()| Arc::clone(&seen));
    let count = Ws::from_request(move |_| {
        let now = upgrading.handshakes.fetch_add(1, Relaxed) + 1;
        upgrading.most_handshakes.fetch_max(now, Relaxed);
        throng_testkit::hold_up(slow);
        upgrading.handshakes.fetch_sub(1, Relaxed);
        Ok(Tunnel::default())
    })
    .on_message(move |ws, tunnel, message| {
        receiving.received.fetch_add(1, Relaxed);
        let answers = tunnel.handle_question(message.as_bytes());
        let Some(answers) = answers else {
            receiving.faults.fetch_add(1, Relaxed);
            return ws.close(CloseCode::new(4001), "not the next message");
        };
        for answer in answers {
            ws.send(numbers::answer(answer));
        }
    })
    .on_close(move |_, tunnel, close| match close.reason.parse::<u64>() {
        Ok(sent) => {
            closing.closed.fetch_add(1, Relaxed);
            closing.short.fetch_add(u64::from(sent != tunnel.questions()), Relaxed);
        }
        Err(_) => drop(closing.cut.fetch_add(1, Relaxed)),
    });
    let report = move |_: &Request<'_>| {
        let get = |count: &AtomicU64| count.load(Relaxed);
        json!({
            "most_handshakes": get(&reporting.most_handshakes),
            "received": get(&reporting.received),
            "faults": get(&reporting.faults),
            "closed": get(&reporting.closed),
            "short": get(&reporting.short),
            "cut": get(&reporting.cut),
        })
        .to_string()
    };
    let io = if slow.is_zero() { IoBackend::Auto } else { IoBackend::Threads };
    let server = Server::new(App::new().ws("/count", count).get("/report", report))
        .shards(Shards::new().io(io).count(1));
    let bound = server.bind("127.0.0.1:0").unwrap();
    println!("{}", bound.local_addr());
    std::io::stdout().flush().unwrap();
    bound.run().unwrap();
}

/// A backend process, as the test that started it sees it.
pub(crate) struct Backend {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Backend {
    pub(crate) fn start() -> Self {
        Self::start_slow(Duration::ZERO)
    }

    pub(crate) fn start_slow(handshake: Duration) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["backend", &handshake.as_millis().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, address: line.trim().parse().unwrap() }
    }

    /// Returns its counts, by the names of [`run`].
    pub(crate) fn report(&self) -> Value {
        let answer = exchange(&mut dial(self.address), "GET /report HTTP/1.1\r\nHost: a\r\n\r\n");
        serde_json::from_str(answer.text()).unwrap()
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sums over `backends`.
pub(crate) fn sum(backends: &[Backend], key: &str) -> u64 {
    backends.iter().map(|backend| backend.report()[key].as_u64().unwrap()).sum()
}
