//! Events that the server reports: each refusal and fault, with its cause.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use throng::http::SourcePull;
use throng::prelude::*;
use throng::server::{EndReason, Limit, Observe, ServerEvent, Subject};

use crate::support::served::{self, dial_narrow, start, stop};
use crate::support::{Client, Got, TIMEOUT, exchange, read_head};

/// A server whose events arrive as their kind, route and text.
fn reporting(app: App) -> (Server, Receiver<(&'static str, String, String)>) {
    let (sender, reported) = mpsc::channel();
    let server = Server::new(app).shards(1).observe(Observe::new().on_event(move |event| {
        let (kind, route) = match event {
            ServerEvent::Refused { route, .. } => ("refused", route.unwrap_or("")),
            ServerEvent::ProtocolError { route, .. } => ("protocol", *route),
            ServerEvent::SlowConsumer { route, .. } => ("slow", *route),
            ServerEvent::BodyFailed { route, .. } => ("body", route.unwrap_or("")),
            ServerEvent::Panicked { route, .. } => ("panic", route.unwrap_or("")),
            _ => return,
        };
        let _ = sender.send((kind, route.to_owned(), event.to_string()));
    }));
    (server, reported)
}

fn next(reported: &Receiver<(&'static str, String, String)>) -> (&'static str, String, String) {
    reported.recv_timeout(TIMEOUT).unwrap()
}

#[test]
fn a_foreign_origin_is_reported_and_the_answer_names_the_setting() {
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let (server, reported) = reporting(App::new().ws("/echo", echo));
    let (address, running) = start(server);
    let request = "GET /echo HTTP/1.1\r\nHost: api.example\r\nUpgrade: websocket\r\n\
                   Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                   Origin: http://localhost:5173\r\n\r\n";
    let mut stream = crate::support::dial(address);
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let (kind, route, text) = next(&reported);
    assert_eq!((kind, route.as_str()), ("refused", "/echo"));
    for reported in [answer, text] {
        for part in ["http://localhost:5173", "Server::origins", "allowed_origins"] {
            assert!(reported.contains(part), "no {part} in {reported}");
        }
    }
    drain(running);
}

#[test]
fn a_body_whose_source_fails_is_reported_with_the_error() {
    let fails = |_: &Request<'_>| {
        let mut parts = 0;
        Response::new(Status::OK).with_stream(None, move |_, out: &mut Vec<u8>| {
            parts += 1;
            if parts == 2 {
                return Err(std::io::Error::other("the database is away"));
            }
            out.extend_from_slice(b"first part");
            Ok(SourcePull::More)
        })
    };
    let is_short = |_: &Request<'_>| {
        Response::new(Status::OK).with_stream(Some(10), |_, out: &mut Vec<u8>| {
            out.extend_from_slice(b"short");
            Ok(SourcePull::End)
        })
    };
    let app = App::new().get("/fails", fails).get("/short", is_short);
    let (server, reported) = reporting(app);
    let (address, running) = start(server);
    for (path, reason) in [("/fails", "the database is away"), ("/short", "its length is not")] {
        let mut stream = crate::support::dial(address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.ends_with(b"\r\n0\r\n\r\n"), "a client would take it for complete");
        let (kind, route, text) = next(&reported);
        assert_eq!((kind, route.as_str()), ("body", path));
        assert!(text.contains(reason), "{text}");
    }
    drain(running);
}

#[test]
fn faults_of_clients_and_panics_are_reported_with_their_route() {
    let handler = Ws::new().on_message(|ws, (), message| {
        assert!(message.as_bytes().is_empty(), "as the test wants it");
        ws.send(message)
    });
    let app = App::new().ws("/panics", handler).get("/boom", |_| -> &str { panic!("too") });
    let (server, reported) = reporting(app);
    let (address, running) = start(server);
    let mut client = Client::connect(address, "/panics");
    client.send_text("go");
    let (kind, route, text) = next(&reported);
    assert_eq!((kind, route.as_str()), ("panic", "/panics"), "{text}");
    let own = client.stream.local_addr().unwrap().to_string();
    assert!(text.contains(&own), "no {own} in {text}");
    assert!(matches!(client.next(), Got::Close(1011, _)));
    exchange(address, b"GET /boom HTTP/1.1\r\nHost: x\r\n\r\n");
    let panicked = next(&reported);
    assert_eq!((panicked.0, panicked.1.as_str()), ("panic", "/boom"));
    // The 500 is also reported.
    assert_eq!(next(&reported).0, "refused");
    let mut client = Client::connect(address, "/panics");
    client.stream.write_all(&[0x81, 0x01, b'a']).unwrap();
    let (kind, route, text) = next(&reported);
    assert_eq!((kind, route.as_str()), ("protocol", "/panics"));
    assert!(text.contains("1002 (protocol error)") && text.contains("mask"), "{text}");
    let own = client.stream.local_addr().unwrap().to_string();
    assert!(text.contains(&own), "no {own} in {text}");
    let mut garbage = crate::support::dial(address);
    garbage.write_all(b"hello\r\n\r\n").unwrap();
    let (kind, _, text) = next(&reported);
    assert!(kind == "refused" && text.contains("127.0.0.1") && text.contains("400"), "{text}");
    drain(running);
}

#[test]
fn slow_consumers_are_reported_with_the_remedy() {
    let feed = Ws::new().on_open(|ws, ()| {
        ws.subscribe("feed");
    });
    let (server, reported) = reporting(served::app().ws("/feed", feed));
    let (address, running) = start(server.limits(Limits::default().max_backlog(64 << 10)));
    let client = Client::upgrade(dial_narrow(address), "/feed", &[], &[]).unwrap();
    let hub = running.hub();
    crate::support::eventually("it listens", || hub.subscribers("feed") == 1);
    let message = Frame::binary(vec![0; 32 << 10]);
    crate::support::eventually("it is closed", || {
        let _ = hub.publish("feed", &message);
        running.stats().slow_consumers > 0
    });
    drop(client);
    let (kind, route, text) = next(&reported);
    assert_eq!((kind, route.as_str()), ("slow", "/feed"));
    assert!(text.contains("max_backlog"), "{text}");
    stop(running);
}

/// Ends a session of a server with these limits by the client's actions. Returns the subject that
/// the event names, without the number of the session and the client's address.
fn ended(
    reason: EndReason,
    limits: Limits,
    break_it: impl FnOnce(&mut Client),
) -> (Subject, String, SocketAddr) {
    let (sender, reported) = mpsc::channel();
    let session = Ws::new()
        .on_open(|ws, ()| {
            let own = ws.handle().to_string();
            ws.send(own);
        })
        .on_message(|ws, (), message| {
            if message == Message::Text("busy") {
                ws.close_for(EndReason::Workers);
            }
        });
    let app = served::app().ws("/ws", session);
    let server =
        Server::new(app).shards(1).limits(limits).observe(Observe::new().on_event(move |event| {
            if let ServerEvent::Ended { subject, route, reason, .. } = event {
                let _ = sender.send((*subject, route.map(str::to_owned), *reason));
            }
        }));
    let (address, running) = start(server);
    let mut client = Client::connect(address, "/ws");
    let Got::Text(number) = client.next() else { panic!("no number") };
    break_it(&mut client);
    let (subject, route, why) = reported.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((route.as_deref(), why), (Some("/ws"), reason));
    let count = format!("throng_connections_ended_total{{reason=\"{}\"}} 1\n", reason.word());
    assert!(served::get(address, "/metrics").contains(&count), "no {count}");
    let own = client.stream.local_addr().unwrap();
    stop(running);
    (subject, number, own)
}

#[test]
fn each_end_by_a_rule_names_its_session_and_client_and_is_counted() {
    let (second, usual) = (Duration::from_secs(1), Limits::default);
    let silent = |_: &mut Client| {};
    for (subject, number, own) in [
        ended(EndReason::Rate, usual().max_messages_per_second(1), |client| {
            (0..5).for_each(|_| client.send_text("much"));
        }),
        // The first frame of a message, and no more.
        ended(EndReason::Reassembly, usual().reassembly_timeout(second), |client| {
            client.stream.write_all(&[0x01, 0x81, 0, 0, 0, 0, b'a']).unwrap();
        }),
        ended(
            EndReason::Heartbeat,
            usual().heartbeat_interval(second).heartbeat_timeout(second),
            silent,
        ),
        ended(EndReason::Lifetime, usual().max_lifetime(second), silent),
        ended(EndReason::Workers, usual(), |client| client.send_text("busy")),
    ] {
        assert_eq!(subject.handle.unwrap().to_string(), number);
        assert_eq!((subject.peer, subject.client), (Some(own), Some(own.ip())));
    }
}

/// Starts a server with these limits, and returns its reports of ended connections and requests:
/// the reason or the status, the client, and the text.
fn ending(limits: Limits) -> (SocketAddr, Running, Receiver<(String, Subject, String)>) {
    let (sender, reported) = mpsc::channel();
    let server = Server::new(served::app().ws("/ws", Ws::new())).shards(1).limits(limits);
    let (address, running) = start(server.observe(Observe::new().on_event(move |event| {
        let (what, subject) = match event {
            ServerEvent::Ended { subject, reason, .. } => (reason.word().to_owned(), subject),
            ServerEvent::Refused { subject, status, .. } => (status.code().to_string(), subject),
            _ => return,
        };
        let _ = sender.send((what, *subject, event.to_string()));
    })));
    (address, running, reported)
}

#[test]
fn connections_that_make_room_are_reported_with_their_client_and_the_setting() {
    let expect = |reported: &Receiver<_>, stream: &TcpStream, reason: &str, setting: &str| {
        let (what, subject, text): (String, Subject, String) =
            reported.recv_timeout(TIMEOUT).unwrap();
        let own = stream.local_addr().unwrap();
        assert_eq!((what.as_str(), subject.peer), (reason, Some(own)), "{text}");
        assert!(subject.handle.is_some() && text.contains(setting), "{text}");
    };
    let second = Duration::from_secs(1);
    let (address, running, reported) = ending(Limits::default().max_connections(Some(1)));
    let silent = crate::support::dial(address);
    let mut half = crate::support::dial(address);
    expect(&reported, &silent, "place", "max_connections");
    half.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    crate::support::eventually("half of it is read", || running.stats().bytes_in > 0);
    let next = crate::support::dial(address);
    expect(&reported, &half, "408", "max_connections");
    assert!(read_head(&mut half).starts_with("HTTP/1.1 408 "));
    drop(next);
    drain(running);
    // Where none can make room, a connection that sends no request to be refused.
    let limits = Limits::default().max_connections(Some(1)).handshake_timeout(second);
    let (address, running, reported) = ending(limits);
    let client = Client::connect(address, "/ws");
    let silent = crate::support::dial(address);
    expect(&reported, &silent, "place", "max_connections");
    drop(client);
    drain(running);
    let limits = Limits::default().max_connections_per_address(Limit::AtMost(1));
    let (address, running, reported) = ending(limits);
    let silent = crate::support::dial(address);
    let mut others = Vec::new();
    let mut first = None;
    crate::support::eventually("it makes room", || {
        others.push(crate::support::dial(address));
        first = reported.try_recv().ok();
        first.is_some()
    });
    let (what, subject, text) = first.unwrap();
    assert_eq!(what, "place_of_address", "{text}");
    assert!(subject.peer.is_some() && text.contains("max_connections_per_address"), "{text}");
    drop((silent, others));
    drain(running);
    let (address, running, reported) = ending(Limits::default().handshake_timeout(second));
    let silent = crate::support::dial(address);
    expect(&reported, &silent, "handshake", "handshake_timeout");
    drain(running);
}

fn drain(running: Running) {
    running
        .shutdown(DrainPlan::default().window(Duration::ZERO).grace(Duration::ZERO))
        .wait()
        .unwrap();
}
