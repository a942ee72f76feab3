//! Upgrades that are decided on later: by a worker, or by a future.

use std::io::Write;
use std::net::TcpStream;
#[cfg(feature = "tokio")]
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use throng::asynchronous::AsyncOptions;
use throng::prelude::*;
use throng::server::Shards;
use throng_proto::ws::handshake::{Key, encode_request};
use throng_proto::ws::{Opcode, encode_masked};

use crate::support::served::{self, start, stop};
use crate::support::{BACKENDS, Client, Got, dial, eventually, read_head};

/// Greets the connection by the name of its user, and echoes.
fn greet(ws: Ws<String>) -> Ws<String> {
    ws.on_accept(|user, headers| {
        let (name, _) = user.split_once(' ').unwrap();
        headers.add("Set-Cookie", format!("user={name}; HttpOnly"))
    })
    .on_open(|ws, user| ws.send(format!("hello {user}")))
    .on_message(|ws, _, message| ws.send(message))
}

/// Answers as a database of users would.
fn log_in(request: &Request<'_>) -> Result<String, Reject> {
    let user = match request.bearer() {
        Some("token of ada") => "ada",
        Some("token of a bug") => panic!("as the test wants it"),
        _ => return Err(Reject::unauthorized()),
    };
    let room = request.param("room").unwrap_or("none");
    Ok(format!("{user} in {room}"))
}

/// Each sends to `begun`, then waits for the gate.
fn gated(begun: Sender<()>, gate: Receiver<()>) -> Ws<String> {
    let (begun, gate) = (Mutex::new(begun), Mutex::new(gate));
    greet(Ws::from_request_blocking(move |request| {
        begun.lock().unwrap().send(()).unwrap();
        let _ = gate.lock().unwrap().recv();
        log_in(request)
    }))
}

/// Sends an upgrade request with this token, and a message immediately after it.
fn knock(mut stream: &TcpStream, token: &str, first: &str) {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", &*authorization)];
    let mut bytes = Vec::new();
    let key = Key::new(*b"0123456789abcdef");
    encode_request("localhost", "/lobby", &key, &["chat.v1"], &headers, &mut bytes).unwrap();
    encode_masked(Opcode::Text, first.as_bytes(), [1, 2, 3, 4], &mut bytes);
    stream.write_all(&bytes).unwrap();
}

#[test]
fn a_worker_accepts_or_refuses_with_headers_and_loses_no_message() {
    for io in BACKENDS {
        let ws = greet(Ws::from_request_blocking(log_in)).subprotocols(["chat.v1"]);
        let app = served::app().ws("/{room}", ws).get("/page", |_| "page");
        let (address, running) = start(Server::new(app).shards(Shards::new().io(io)));
        let mut stream = dial(address);
        knock(&stream, "token of ada", "early");
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 101 "), "{io:?}: {head}");
        assert!(head.contains("\r\nSet-Cookie: user=ada; HttpOnly\r\n"), "{head}");
        assert!(head.contains("\r\nSec-WebSocket-Protocol: chat.v1\r\n"), "{head}");
        let mut client = Client::opened(stream);
        assert_eq!(client.next(), Got::Text("hello ada in lobby".to_owned()));
        assert_eq!(client.next(), Got::Text("early".to_owned()));
        client.send_text("late");
        assert_eq!(client.next(), Got::Text("late".to_owned()));
        for (token, status) in [("none", "401"), ("token of a bug", "500")] {
            let authorization = format!("Bearer {token}");
            let headers = [("Authorization", &*authorization)];
            let head = Client::request(address, "/lobby", &headers).expect_err("it is refused");
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{io:?}: {head}");
        }
        // A refusal does not end the connection.
        let mut stream = dial(address);
        let no_token = "GET /lobby HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(no_token.as_bytes()).unwrap();
        stream.write_all(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 401 "));
        drop((stream, client));
        let stats = || running.stats();
        eventually("one was opened", || (stats().opened, stats().sessions) == (1, 0));
        stop(running);
    }
}

#[test]
fn a_decision_is_bounded_by_the_handshake_timeout() {
    for io in BACKENDS {
        let ((begun, _has_begun), (open, gate)) = (channel(), channel());
        let limits = Limits::default().handshake_timeout(Duration::from_secs(1));
        let app = served::app().ws("/{room}", gated(begun, gate));
        let (address, running) =
            start(Server::new(app).shards(Shards::new().io(io)).limits(limits));
        let mut stream = dial(address);
        knock(&stream, "token of ada", "early");
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 503 "), "{io:?}: {head}");
        // The decision comes too late, and opens nothing.
        open.send(()).unwrap();
        stop(running);
    }
}

#[test]
fn a_decision_that_ends_while_the_server_drains_opens_no_session() {
    for io in BACKENDS {
        let ((begun, has_begun), (open, gate)) = (channel(), channel());
        let app = served::app().ws("/{room}", gated(begun, gate));
        let (address, running) = start(Server::new(app).shards(Shards::new().io(io)));
        let mut stream = dial(address);
        knock(&stream, "token of ada", "early");
        has_begun.recv().unwrap();
        running.stopper().shutdown(DrainPlan::DEFAULT.window(Duration::ZERO));
        open.send(()).unwrap();
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 503 "), "{io:?}");
        drop(stream);
        assert_eq!(running.wait().unwrap().forced, 0);
    }
}

#[test]
fn a_client_that_has_gone_opens_no_session() {
    for io in BACKENDS {
        let ((begun, has_begun), (open, gate)) = (channel(), channel());
        let app = served::app().ws("/{room}", gated(begun, gate));
        let (address, running) = start(Server::new(app).shards(Shards::new().io(io)));
        for is_half_closed in [false, true] {
            let stream = dial(address);
            knock(&stream, "token of ada", "early");
            has_begun.recv().unwrap();
            match is_half_closed {
                true => stream.shutdown(std::net::Shutdown::Write).unwrap(),
                false => drop(stream.try_clone()),
            }
            drop(stream);
            open.send(()).unwrap();
            eventually("its connection has ended", || running.stats().connections == 0);
        }
        assert_eq!(running.stats().sessions, 0, "{io:?}");
        stop(running);
    }
}

#[test]
fn a_handler_that_decides_at_once_can_set_headers_and_no_field_of_the_handshake() {
    let cookie = Ws::from_request(|request| Ok(request.query("field").map(str::to_owned)))
        .on_accept(|field, headers| match field.take() {
            Some(field) => headers.add(field, "x"),
            None => headers.add("Set-Cookie", "a=b").and_then(|()| headers.add("X-Two", "2")),
        });
    let (address, running) = start(Server::new(served::app().ws("/", cookie)));
    let mut stream = dial(address);
    let request = |target: &str| {
        let mut bytes = Vec::new();
        let key = Key::new(*b"0123456789abcdef");
        encode_request("localhost", target, &key, &[], &[], &mut bytes).unwrap();
        bytes
    };
    stream.write_all(&request("/")).unwrap();
    let head = read_head(&mut stream);
    assert!(head.ends_with("\r\nSet-Cookie: a=b\r\nX-Two: 2\r\n\r\n"), "{head}");
    for field in ["Upgrade", "sec-websocket-accept", "Connection", "a%20b"] {
        let mut stream = dial(address);
        stream.write_all(&request(&format!("/?field={field}"))).unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 500 "), "{field}: {head}");
    }
    stop(running);
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;

    /// Sends when it is dropped.
    struct Dropped(Sender<()>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn a_future_accepts_refuses_panics_or_is_dropped_with_its_client() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        for io in BACKENDS {
            let (dropped, is_dropped) = channel();
            let (begun, has_begun) = channel();
            let senders = Arc::new(Mutex::new((begun, dropped)));
            let ws = greet(Ws::from_request_async(runtime.handle().clone(), move |request| {
                let (begun, dropped) = senders.lock().unwrap().clone();
                async move {
                    tokio::task::yield_now().await;
                    if request.as_request().bearer() == Some("never") {
                        let _dropped = Dropped(dropped);
                        begun.send(()).unwrap();
                        std::future::pending::<()>().await;
                    }
                    log_in(&request.as_request())
                }
            }));
            let (address, running) =
                start(Server::new(served::app().ws("/{room}", ws)).shards(Shards::new().io(io)));
            let mut stream = dial(address);
            knock(&stream, "token of ada", "early");
            assert!(read_head(&mut stream).starts_with("HTTP/1.1 101 "), "{io:?}");
            let mut client = Client::opened(stream);
            assert_eq!(client.next(), Got::Text("hello ada in lobby".to_owned()));
            assert_eq!(client.next(), Got::Text("early".to_owned()));
            for (token, status) in [("none", "401"), ("token of a bug", "500")] {
                let mut stream = dial(address);
                knock(&stream, token, "early");
                let head = read_head(&mut stream);
                assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{io:?}: {head}");
            }
            eventually("the panic is counted", || running.stats().handler_panics == 1);
            let stream = dial(address);
            stream.set_nodelay(true).unwrap();
            let mut bytes = Vec::new();
            let key = Key::new(*b"0123456789abcdef");
            let headers = [("Authorization", "Bearer never")];
            encode_request("localhost", "/x", &key, &[], &headers, &mut bytes).unwrap();
            (&stream).write_all(&bytes).unwrap();
            has_begun.recv().unwrap();
            drop(stream);
            is_dropped.recv().unwrap();
            stop(running);
        }
    }

    #[test]
    fn an_async_handler_can_have_an_upgrade_that_blocks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let ws = Ws::from_request_blocking(log_in)
            .on_message_async(runtime.handle().clone(), |session, _| async move {
                session.send(session.data().clone()).await
            })
            .async_options(AsyncOptions::new().credits(4));
        let (address, running) = start(Server::new(served::app().ws("/{room}", ws)));
        let mut stream = dial(address);
        knock(&stream, "token of ada", "who am I?");
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 101 "));
        let mut client = Client::opened(stream);
        assert_eq!(client.next(), Got::Text("ada in lobby".to_owned()));
        stop(running);
    }
}
