//! The life of a server: stopped, dropped, detached, drained without blocking.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use throng::prelude::*;
use throng::server::{IoBackend, Shards, SocketOptions};

use crate::support::served::start;
use crate::support::{BACKENDS, Client, Got, dial, eventually};

fn echo() -> App {
    App::new().ws("/", Ws::new().on_message(|ws, (), message| ws.send(message)))
}

fn assert_ended(address: SocketAddr, client: &mut Client) {
    // The Close frame may be lost in the reset.
    while client.next() != Got::End {}
    drop(TcpListener::bind(address).expect("the port is free"));
}

#[test]
fn a_server_that_is_stopped_or_dropped_ends_at_once_and_frees_its_port() {
    for io in BACKENDS {
        for is_dropped in [true, false] {
            let (address, running) = start(Server::new(echo()).shards(Shards::new().io(io)));
            let mut client = Client::connect(address, "/");
            match is_dropped {
                true => drop(running),
                false => drop(running.shutdown(DrainPlan::NOW).wait().unwrap()),
            }
            assert_ended(address, &mut client);
        }
    }
}

#[test]
fn a_server_that_is_dropped_by_a_panic_ends() {
    let (address, running) = start(Server::new(echo()));
    let mut client = Client::connect(address, "/");
    let test = thread::spawn(move || {
        let _running = running;
        panic!("as the test wants it");
    });
    assert!(test.join().is_err());
    assert_ended(address, &mut client);
}

#[test]
fn a_server_that_is_detached_runs_on() {
    let (address, running) = start(Server::new(echo()));
    running.detach();
    let mut client = Client::connect(address, "/");
    client.send_text("still there?");
    assert_eq!(client.next(), Got::Text("still there?".to_owned()));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_drain_can_be_awaited() {
    let (address, running) = start(Server::new(echo()));
    let client = crate::support::polite(address, "/");
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let plan = DrainPlan::DEFAULT.window(Duration::ZERO);
    let mut draining = std::pin::pin!(running.shutdown(plan).into_future());
    let drained = loop {
        match draining.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(drained) => break drained.unwrap(),
            Poll::Pending => thread::park(),
        }
    };
    assert_eq!(drained.forced, 0);
    client.join().unwrap();
}

/// A server whose `GET /` answers `name`, with sessions and event streams.
fn named(name: &'static str, io: IoBackend) -> Server {
    let later = Ws::from_request_blocking(|_| Ok(()));
    let app = App::new()
        .get("/", move |_| name)
        .ws("/ws", Ws::new().on_message(|ws, (), message| ws.send(message)))
        .ws("/later", later.on_message(|ws, (), message| ws.send(message)))
        .sse("/events", |_| Ok("news"));
    Server::new(app)
        .shards(Shards::new().io(io).count(2))
        .sockets(SocketOptions::new().reuse_port(true))
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// Returns who answered, or nothing for a connection that was reset when a listener was closed.
fn ask(address: SocketAddr) -> Option<String> {
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    Some(answer.rsplit("\r\n").next().unwrap_or_default().to_owned())
}

/// Starts a server's successor on its port, and begins its drain. Returns the successor when the
/// old one no longer gets connections.
#[cfg(target_os = "linux")]
fn succeed(address: SocketAddr, old: &Running, io: IoBackend) -> Running {
    let new = named("new", io).bind(address).unwrap().start().unwrap();
    old.stopper().shutdown(DrainPlan::DEFAULT.hand_over(true).grace(Duration::from_secs(60)));
    let mut in_a_row = 0;
    eventually("only the successor answers", || {
        match ask(address).as_deref() {
            Some("new") => in_a_row += 1,
            _ => in_a_row = 0,
        }
        in_a_row == 40
    });
    new
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_that_hands_over_leaves_new_connections_to_its_successor() {
    for io in BACKENDS {
        let (address, old) = start(named("old", io));
        // Accepted before the drain, asked afterwards.
        let mut early: Vec<_> = (0..4).map(|_| dial(address)).collect();
        eventually("they are accepted", || old.stats().connections == 4);
        let new = succeed(address, &old, io);
        for stream in &mut early {
            stream.write_all(GET).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(answer.ends_with("old"), "{answer}");
        }
        assert_eq!(old.wait().unwrap().forced, 0);
        new.shutdown(DrainPlan::NOW).wait().unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_that_hands_over_serves_sessions_and_streams_that_it_has_accepted() {
    const UPGRADE: &str = "HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    for io in BACKENDS {
        let (address, old) = start(named("old", io));
        let mut early: Vec<_> = (0..3).map(|_| dial(address)).collect();
        eventually("they are accepted", || old.stats().connections == 3);
        let new = succeed(address, &old, io);
        for (path, mut stream) in ["/ws", "/later"].into_iter().zip(early.drain(..2)) {
            stream.write_all(format!("GET {path} {UPGRADE}").as_bytes()).unwrap();
            let head = crate::support::read_head(&mut stream);
            assert!(head.starts_with("HTTP/1.1 101 "), "{path}: {head}");
            let mut close = [0; 4];
            stream.read_exact(&mut close).unwrap();
            assert_eq!((close[0], &close[2..]), (0x88, &1001u16.to_be_bytes()[..]), "{path}");
        }
        let mut events = early.pop().unwrap();
        events.write_all(b"GET /events HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut stream = String::new();
        events.read_to_string(&mut stream).unwrap();
        assert!(stream.starts_with("HTTP/1.1 200 "), "{stream}");
        assert_eq!(old.wait().unwrap().forced, 0);
        new.shutdown(DrainPlan::NOW).wait().unwrap();
    }
}
