//! The server over real sockets: limits, admission, start and end.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng::prelude::*;
use throng::server::{IoBackend, Observe, Shards, SocketOptions};
use throng_proto::ws::Opcode;

use crate::support::{BACKENDS, Client, Got, dial, eventually, exchange, read_head, served};

pub(crate) const NO_WAIT: DrainPlan = {
    let mut plan = DrainPlan::DEFAULT;
    plan.window = Duration::ZERO;
    plan
};

pub(crate) fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

/// These tests run twice: with one descriptor table, and in `own_tables.rs` with one for each
/// shard.
pub(crate) fn start(server: Server) -> (SocketAddr, Running) {
    #[cfg(feature = "descriptor-tables")]
    let server = match module_path!().starts_with("own_tables") {
        true => server.descriptor_tables(throng_io::tables::DescriptorTables::PerShard),
        false => server,
    };
    let bound = server.bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    (bound.local_addr(), bound.start().unwrap())
}

fn echo_app() -> App {
    App::new().ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message))).health()
}

pub(crate) fn echo() -> Server {
    Server::new(echo_app())
}

#[test]
fn echoes_on_every_driver_and_shard_count() {
    for io in BACKENDS {
        for shards in [1, 3] {
            let (address, running) = start(echo().shards(Shards::new().io(io).count(shards)));
            let mut clients: Vec<_> = (0..9).map(|_| Client::connect(address, "/echo")).collect();
            for (i, client) in clients.iter_mut().enumerate() {
                let payload = vec![i as u8; i * 40_000];
                client.send(Opcode::Binary, &payload);
                client.send_text("häuser");
                assert_eq!(client.next(), Got::Binary(payload));
                assert_eq!(client.next(), Got::Text("häuser".into()));
            }
            running.stopper().shutdown(NO_WAIT);
            for client in &mut clients {
                assert_eq!(client.next(), Got::Close(1001, "going away".into()));
                client.send(Opcode::Close, &1001u16.to_be_bytes());
            }
            assert_eq!(running.wait().unwrap().forced, 0);
        }
    }
}

/// Large answers are sent from the message's own memory: whole or in part, borrowed or joined from
/// fragments.
#[test]
fn large_answers_made_of_the_message_come_whole_and_in_order() {
    let part = |bytes: &[u8]| bytes[1000..bytes.len() - 1000].to_vec();
    for io in BACKENDS {
        let handler = Ws::new().on_message(move |ws, (), message| {
            let bytes = message.as_bytes();
            ws.send(message);
            ws.send(&bytes[1000..bytes.len() - 1000]);
            ws.send("small");
            ws.send(message);
        });
        let server =
            Server::new(App::new().ws("/", handler)).limits(limits(|l| l.max_backlog = 8 << 20));
        let (address, running) = start(server.shards(Shards::new().io(io).count(1)));
        let mut client = Client::connect(address, "/");
        let sizes = [3000, 16 * 1024, 70_000, 600_000, 1_500_000, 20_000];
        let pattern = |len: usize| (0..len).map(|i| (i * 7 + i / 256 + len) as u8).collect();
        let payloads: Vec<Vec<u8>> = sizes.into_iter().map(pattern).collect();
        for pair in payloads.chunks(2) {
            pair.iter().for_each(|payload| client.send(Opcode::Binary, payload));
            for payload in pair {
                assert!(client.next() == Got::Binary(payload.clone()), "{}", payload.len());
                assert!(client.next() == Got::Binary(part(payload)), "{}", payload.len());
                assert_eq!(client.next(), Got::Text("small".into()));
                assert!(client.next() == Got::Binary(payload.clone()), "{}", payload.len());
            }
        }
        running.stopper().shutdown(NO_WAIT);
    }
}

#[test]
fn one_path_has_a_websocket_and_pages() {
    let server = Server::new(
        App::new()
            .ws("/{*rest}", Ws::new().on_message(|ws, (), message| ws.send(message)))
            .any("/{*rest}", |request| request.method().to_owned()),
    );
    let (address, running) = start(server.shards(1));
    for method in ["GET", "POST", "BREW"] {
        for lines in
            ["", "Connection: Upgrade, close\r\nUpgrade: h2c\r\n", "Upgrade: websocket\r\n"]
        {
            let close = "Connection: close\r\n";
            let request = format!("{method} /a HTTP/1.1\r\nHost: x\r\n{close}{lines}\r\n");
            let answer = exchange(address, request.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 200 "), "{request}{answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{method}")), "{request}{answer}");
        }
    }
    for path in ["/", "/a", "/a/b"] {
        let mut client = Client::connect(address, path);
        client.send_text("same place");
        assert_eq!(client.next(), Got::Text("same place".into()));
    }
    running.stopper().shutdown(NO_WAIT);
}

/// The second address takes the port of the first; on Linux all of 127.0.0.0/8 is the loopback.
#[cfg(target_os = "linux")]
#[test]
fn it_listens_on_several_addresses() {
    for io in BACKENDS {
        for shards in [1, 2] {
            let server = echo().shards(Shards::new().io(io).count(shards)).bind_also("127.0.0.2:0");
            let bound = server.bind("127.0.0.1:0").unwrap();
            let addresses = bound.local_addrs().to_vec();
            assert_eq!((addresses.len(), addresses[0]), (2, bound.local_addr()));
            let expected = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), addresses[0].port()));
            assert_eq!(addresses[1], expected);
            let running = bound.start().unwrap();
            for address in addresses.iter().flat_map(|address| [*address; 5]) {
                let mut client = Client::connect(address, "/echo");
                client.send_text("here");
                assert_eq!(client.next(), Got::Text("here".into()));
            }
            running.shutdown(NO_WAIT).wait().unwrap();
            for address in addresses {
                assert!(std::net::TcpStream::connect(address).is_err(), "{address} is still there");
            }
        }
    }
    let mistake = echo().bind_also("nonsense").bind("127.0.0.1:0").unwrap_err();
    assert!(mistake.to_string().contains("address"), "{mistake}");
}

/// The shard of the listener keeps a third, as where only one shard can accept: every system but
/// Linux.
#[test]
fn the_shard_that_accepts_for_all_hands_connections_to_those_with_fewer() {
    const SHARDS: usize = 3;
    for io in [IoBackend::Auto, IoBackend::Portable] {
        let app = served::app().ws("/echo", Ws::new().on_message(|ws, (), m| ws.send(m)));
        let shards = Shards::new().io(io).count(SHARDS);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = Server::new(app).shards(shards).listen_on([socket]).unwrap();
        let (address, running) = (bound.local_addr(), bound.start().unwrap());
        let mut clients = Vec::new();
        for number in 1..=3 * SHARDS {
            clients.push(Client::connect(address, "/echo"));
            eventually("it is served", || running.stats().sessions == number as u64);
        }
        for client in &mut clients {
            client.send_text("here");
            assert_eq!(client.next(), Got::Text("here".into()));
        }
        let metrics = served::get(address, "/metrics");
        for shard in 0..SHARDS {
            let line = format!("throng_sessions{{shard=\"{shard}\"}} 3\n");
            assert!(metrics.contains(&line), "{io:?}, shard {shard}: {metrics}");
        }
        served::stop(running);
    }
}

#[test]
fn it_accepts_on_sockets_that_listen_already() {
    for io in BACKENDS {
        for shards in [1, 3] {
            let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let sockets = [listen(), listen()];
            let expected: Vec<_> = sockets.iter().map(|it| it.local_addr().unwrap()).collect();
            let server = echo().shards(Shards::new().io(io).count(shards)).bind_also("127.0.0.1:0");
            // The port of the first address is taken.
            assert!(matches!(server.listen_on(sockets), Err(throng::Error::Bind { .. })));
            let sockets = expected.iter().map(|it| std::net::TcpListener::bind(it).unwrap());
            let bound =
                echo().shards(Shards::new().io(io).count(shards)).listen_on(sockets).unwrap();
            assert_eq!(bound.local_addrs(), expected);
            let running = bound.start().unwrap();
            for address in expected.iter().flat_map(|address| [*address; 5]) {
                let mut client = Client::connect(address, "/echo");
                client.send_text("here");
                assert_eq!(client.next(), Got::Text("here".into()));
            }
            running.shutdown(NO_WAIT).wait().unwrap();
        }
    }
    let mistake = echo().listen_on(Vec::<throng::server::Listener>::new()).unwrap_err();
    assert!(mistake.to_string().contains("no listener"), "{mistake}");
}

#[test]
fn data_channels_and_handles_work_across_shards() {
    let handles = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&handles);
    let room = Ws::from_request(|request| {
        Ok(request.query("name").ok_or(Reject::bad_request("give a name"))?.to_owned())
    })
    .on_open(move |ws, name| {
        ws.subscribe("room");
        noted.lock().unwrap().push((name.clone(), ws.handle()));
    })
    .on_message(|ws, name, message| {
        let Message::Text(text) = message else {
            return ws.close(CloseCode::UNSUPPORTED_DATA, "text only");
        };
        let line = format!("{name}: {text}");
        ws.publish_to_others("room", Frame::text(line));
    });
    let (address, running) = start(Server::new(App::new().ws("/room", room)).shards(4));
    let refused = Client::request(address, "/room", &[]).err().unwrap();
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    let mut clients: Vec<_> =
        (0..12).map(|i| Client::connect(address, &format!("/room?name=u{i}"))).collect();
    eventually("all have joined", || handles.lock().unwrap().len() == 12);
    clients[3].send_text("hi");
    for (i, client) in clients.iter_mut().enumerate() {
        if i != 3 {
            assert_eq!(client.next(), Got::Text("u3: hi".into()), "to client {i}");
        }
    }
    let hub = running.hub();
    hub.publish("room", "to all").unwrap();
    for client in &mut clients {
        assert_eq!(client.next(), Got::Text("to all".into()));
    }
    let of = |name: &str| handles.lock().unwrap().iter().find(|(n, _)| n == name).unwrap().1;
    let received = |to, text: &str| {
        let receipt = hub.send(to, text).unwrap();
        receipt.wait(Duration::from_secs(60)).expect("the shard has counted").receivers()
    };
    assert_eq!(received(of("u7"), "to you"), 1);
    assert_eq!(clients[7].next(), Got::Text("to you".into()));
    hub.close(of("u7"), 4000, "enough").unwrap();
    assert_eq!(clients[7].next(), Got::Close(4000, "enough".into()));
    clients[5].send(Opcode::Binary, b"\0");
    assert_eq!(clients[5].next(), Got::Close(1003, "text only".into()));
    // An old handle, and an invented one, reach no connection.
    eventually("the session has ended", || received(of("u7"), "too late") == 0);
    assert_eq!(received(Handle::from_bits(u64::MAX), "to no one"), 0);
    running.shutdown(NO_WAIT).wait().unwrap();
}

/// Other servers miss the end of a session, report it twice, or accept unmasked frames.
#[test]
fn every_way_out_calls_close_exactly_once() {
    let (opened, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (o, c) = (Arc::clone(&opened), Arc::clone(&closed));
    let handler = Ws::from_request(|request| Ok(request.query("n").unwrap_or_default().to_owned()))
        .on_open(move |_, _| {
            o.fetch_add(1, Ordering::SeqCst);
        })
        .on_message(|ws, _, message| match message {
            Message::Text("close") => ws.close(CloseCode::new(4001), "bye"),
            Message::Text("abort") => ws.abort(),
            Message::Text("panic") => panic!("a handler's bug"),
            _ => {}
        })
        .on_close(move |_, name, close| {
            c.lock().unwrap().push((name.clone(), close.code.get()));
        });
    let (address, running) = start(Server::new(App::new().ws("/", handler)).shards(2));
    let mut connect = |n: usize| Client::connect(address, &format!("/?n={n}"));
    // 0: the peer closes; 1: the handler closes; 2: the handler resets; 3: the handler panics; 4:
    // the peer sends an unmasked frame; 5: the peer goes without a word; 6: the peer resets; 7:
    // shutdown.
    let mut clients: Vec<_> = (0..8).map(&mut connect).collect();
    clients[0].send(Opcode::Close, &4002u16.to_be_bytes());
    clients[1].send_text("close");
    clients[2].send_text("abort");
    clients[3].send_text("panic");
    clients[4].stream.write_all(&[0x81, 0x01, b'a']).unwrap();
    clients[5].stream.shutdown(std::net::Shutdown::Write).unwrap();
    socket2::SockRef::from(&clients[6].stream).set_linger(Some(Duration::ZERO)).unwrap();
    let seventh = clients.remove(7);
    drop(clients.remove(6));
    assert_eq!(clients[0].next(), Got::Close(4002, String::new()));
    assert_eq!(clients[1].next(), Got::Close(4001, "bye".into()));
    assert_eq!(clients[2].next(), Got::End);
    assert!(matches!(clients[3].next(), Got::Close(1011, _)));
    assert!(matches!(clients[4].next(), Got::Close(1002, _)));
    assert_eq!(clients[5].next(), Got::End);
    clients[1].send(Opcode::Close, &4001u16.to_be_bytes());
    eventually("seven are closed", || closed.lock().unwrap().len() == 7);
    running.shutdown(NO_WAIT).wait().unwrap();
    drop(seventh);
    let mut closed = closed.lock().unwrap().clone();
    closed.sort();
    let expected = [4002, 4001, 1006, 1011, 1002, 1006, 1006, 1001];
    let expected: Vec<_> =
        expected.iter().enumerate().map(|(n, code)| (n.to_string(), *code)).collect();
    assert_eq!((closed, opened.load(Ordering::SeqCst)), (expected, 8));
}

#[test]
fn rfc6455_7_4_1_a_code_that_may_not_be_sent_is_none_to_both_sides() {
    let closed = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&closed);
    let handler = Ws::new()
        .on_message(|ws, (), message| {
            let text = std::str::from_utf8(message.as_bytes()).unwrap();
            ws.close(CloseCode::new(text.parse().unwrap()), "");
        })
        .on_close(move |_, (), close| recorded.lock().unwrap().push(close.code.get()));
    let (address, running) = start(Server::new(App::new().ws("/", handler)));
    for code in ["1004", "1005", "1006", "1015", "999", "5000"] {
        let mut client = Client::connect(address, "/");
        client.send_text(code);
        let got = client.next();
        assert!(matches!(&got, Got::Close(1005, reason) if reason.is_empty()), "{code}: {got:?}");
        drop(client);
        eventually("it is closed", || closed.lock().unwrap().pop() == Some(1005));
    }
    running.shutdown(NO_WAIT).wait().unwrap();
}

/// WebSockets of other servers escape a graceful shutdown, or a stop with many of them deadlocks.
#[test]
fn a_drain_closes_every_session_and_aborts_those_that_do_not_answer() {
    let drained = |polite: usize, silent: usize, grace: Duration| {
        let (address, running) = start(echo().shards(2));
        let threads: Vec<_> =
            (0..polite).map(|_| crate::support::polite(address, "/echo")).collect();
        let silent: Vec<_> = (0..silent).map(|_| Client::connect(address, "/echo")).collect();
        let forced = running.shutdown(NO_WAIT.grace(grace)).wait().unwrap().forced;
        for thread in threads {
            thread.join().unwrap();
        }
        drop(silent);
        assert!(std::net::TcpStream::connect(address).is_err(), "it still listens");
        forced
    };
    // Clients that answer are waited for, even on a busy machine.
    assert_eq!(drained(20, 0, Duration::from_secs(3600)), 0);
    // Beside clients that do not answer: the time is longer than a busy machine needs.
    assert_eq!(drained(20, 3, Duration::from_secs(5)), 3);
}

#[test]
fn while_draining_readiness_is_off_and_upgrades_are_refused() {
    let (address, running) = start(echo().shards(1));
    let mut kept = dial(address);
    kept.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(read_head(&mut kept).starts_with("HTTP/1.1 200 "));
    let mut body = [0; 6];
    kept.read_exact(&mut body).unwrap();
    // Half a request is here when the drain begins, so it is still answered.
    kept.write_all(b"GET /readyz HTTP/1.1\r\nHo").unwrap();
    eventually("the half request was read", || running.stats().bytes_in > 37);
    running.stopper().shutdown(NO_WAIT);
    kept.write_all(b"st: x\r\n\r\n").unwrap();
    let head = read_head(&mut kept);
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Connection: close"), "{head}");
    assert!(head.contains("Retry-After: "), "{head}");
    running.wait().unwrap();
}

#[test]
fn a_request_that_never_ends_is_timed_out_with_408() {
    let limits = limits(|limits| limits.handshake_timeout = Duration::from_secs(1));
    let (address, running) = start(echo().limits(limits).shards(1));
    let answer = exchange(address, b"GET /echo HTTP/1.1\r\nHost: x\r\nX-Slow: ");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // RFC 9112 section 9.2: without a request there is no response.
    assert_eq!(exchange(address, b""), "");
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn silence_is_pinged_and_a_peer_that_never_answers_is_reset() {
    let limits = limits(|limits| {
        limits.heartbeat_interval = Some(Duration::from_secs(1));
        limits.heartbeat_timeout = Duration::from_secs(3);
    });
    let (address, running) = start(echo().limits(limits).shards(1));
    let mut client = Client::connect(address, "/echo");
    for _ in 0..2 {
        assert_eq!(client.next_of_any_kind(), Got::Ping(Vec::new()));
        client.send(Opcode::Pong, b"");
    }
    // Now it stops answering.
    assert_eq!(client.next_of_any_kind(), Got::Ping(Vec::new()));
    assert_eq!(client.next_of_any_kind(), Got::End);
    eventually("it is counted", || running.stats().timeouts == 1);
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn a_slow_consumer_is_closed_and_its_neighbours_are_not() {
    let limits = limits(|limits| {
        limits.max_backlog = 64 << 10;
        limits.close_timeout = Duration::from_secs(1);
        // The session is closed, and has the usual write timeout to take the Close frame.
        limits.write_timeout = Duration::from_secs(2);
    });
    let feed = Ws::new().on_open(|ws, ()| {
        ws.subscribe("feed");
    });
    let (address, running) =
        start(Server::new(App::new().ws("/feed", feed)).limits(limits).shards(1));
    let slow = Client::connect(address, "/feed");
    let mut quick = Client::connect(address, "/feed");
    eventually("both listen", || running.stats().sessions == 2);
    let (hub, mut sent, mut heard) = (running.hub(), 0, 0);
    while running.stats().slow_consumers == 0 {
        hub.publish("feed", vec![7u8; 32 << 10]).unwrap();
        sent += 1;
        while heard < sent {
            assert!(matches!(quick.next(), Got::Binary(_)));
            heard += 1;
        }
        assert!(sent < 100_000, "the slow consumer was never noticed");
    }
    eventually("the slow one is gone", || running.stats().sessions == 1);
    assert_eq!(heard, sent);
    drop(slow);
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn a_writer_that_respects_back_pressure_loses_nothing() {
    const TOTAL: u32 = 40_000;
    fn push(ws: &mut Socket<'_, u32>, n: &mut u32) {
        while *n < TOTAL {
            let mut message = vec![0; 1024];
            message[..4].copy_from_slice(&n.to_be_bytes());
            let sent = ws.send(message);
            match sent {
                Sent::Accepted => *n += 1,
                Sent::Queued => {
                    *n += 1;
                    return;
                }
                Sent::Dropped => panic!("Queued came first, and was respected"),
                Sent::Closed => return,
            }
        }
    }
    let firehose = Ws::from_request(|_| Ok(0)).on_open(push).on_drained(push);
    let (address, running) = start(Server::new(App::new().ws("/push", firehose)).shards(1));
    let mut client = Client::connect(address, "/push");
    for n in 0..TOTAL {
        let Got::Binary(message) = client.next() else { panic!("message {n} is missing") };
        assert_eq!(message[..4], n.to_be_bytes());
    }
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn http_answers_teach() {
    let app = echo_app()
        .get("/hello/{name}", |request| format!("hello {}", request.param("name").unwrap_or("you")))
        .metrics("/metrics")
        .route("/stats.json", throng::metrics::stats());
    let (address, running) = start(Server::new(app).shards(1));
    let get = |path: &str| {
        exchange(
            address,
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
        )
    };
    assert!(get("/hello/w%C3%B6rld").ends_with("\r\n\r\nhello wörld"));
    assert!(get("/nothing").starts_with("HTTP/1.1 404 "));
    assert!(get("/livez").starts_with("HTTP/1.1 200 "));
    assert!(get("/metrics").contains("throng_connections_accepted_total{shard=\"0\"}"));
    assert!(get("/stats.json").contains("\"connections\":"));
    let upgrade = get("/echo");
    assert!(
        upgrade.starts_with("HTTP/1.1 426 ") && upgrade.contains("Upgrade: websocket"),
        "{upgrade}"
    );
    let post = exchange(
        address,
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("Allow: "), "{post}");
    // At a WebSocket's path every method gets the same answer.
    let handshake = "Upgrade: websocket\r\nConnection: Upgrade, close\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    for (method, status) in [("HEAD", 405), ("POST", 405), ("OPTIONS", 204)] {
        for lines in [handshake, "Connection: close\r\n"] {
            let head = format!("{method} /echo HTTP/1.1\r\nHost: x\r\n{lines}");
            let answer = exchange(address, format!("{head}\r\n").as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method}: {answer}");
            assert!(answer.contains("\r\nAllow: GET, OPTIONS\r\n"), "{method}: {answer}");
        }
    }
    let version = exchange(
        address,
        b"GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
          Sec-WebSocket-Version: 8\r\n\
          Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nContent-Length: 0\r\n\r\n GET",
    );
    assert!(
        version.contains(" 426 ") && version.contains("Sec-WebSocket-Version: 13"),
        "{version}"
    );
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn foreign_pages_are_refused_and_same_host_is_not() {
    let (address, running) = start(echo().shards(1));
    let refused = Client::request(address, "/echo", &[("Origin", "https://evil.example")]);
    assert!(refused.err().unwrap().starts_with("HTTP/1.1 403 "));
    assert!(Client::request(address, "/echo", &[("Origin", "http://localhost")]).is_ok());
    let body = exchange(
        address,
        b"GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\
          Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
          Content-Length: 2\r\n\r\n\x81\x00",
    );
    assert!(body.starts_with("HTTP/1.1 400 "), "its body would be taken for frames: {body}");
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn a_panic_in_on_close_does_not_cut_the_closing_handshake() {
    let handler = Ws::new().on_close(|_, (), close| assert_eq!(close.code, 4999, "not this one"));
    let (address, running) = start(Server::new(App::new().ws("/", handler)).shards(1));
    let mut client = Client::connect(address, "/");
    client.send(Opcode::Close, &4002u16.to_be_bytes());
    assert_eq!(client.next(), Got::Close(4002, String::new()));
    assert_eq!(client.next(), Got::End);
    eventually("it is counted", || running.stats().handler_panics == 1);
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn mistakes_are_errors_of_bind() {
    let error_of = |server: Server| match server.bind("127.0.0.1:0") {
        Err(error) => error.to_string(),
        Ok(_) => panic!("bound"),
    };
    assert!(error_of(echo().limits(limits(|l| l.max_backlog = 0))).contains("max_backlog"));
    let many = error_of(echo().limits(Limits::default().max_connections(1 << 40)));
    assert!(many.contains(if cfg!(unix) { "ulimit -n" } else { "max_connections" }), "{many}");
    assert!(error_of(echo().shards(5000)).contains("shards is 5000"));
    assert!(error_of(echo().shards(0)).contains("shards is 0"));
    assert!(
        error_of(echo().observe(Observe::new().stall_warning(Duration::ZERO)))
            .contains("stall_warning is 0")
    );
    assert!(
        error_of(echo().sockets(SocketOptions::new().unsent_limit(0)))
            .contains("unsent_limit is 0")
    );
    let Err(error) = echo().bind("9001") else { panic!("bound") };
    assert_eq!(error.blame(), throng::server::Blame::Configuration);
    let error = error.to_string();
    assert!(error.contains("\"9001\"") && error.contains("HOST:PORT"), "{error}");
    let twice = Server::new(App::new().get("/x", |_| "a").get("/x", |_| "b")).bind("127.0.0.1:0");
    assert!(twice.err().unwrap().to_string().contains("/x"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = echo().bind(taken.local_addr().unwrap()).err().unwrap().to_string();
    assert!(error.contains("another program has this port"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_shared_port_is_in_use_for_a_server_that_does_not_share() {
    let first = echo().sockets(SocketOptions::new().reuse_port(true)).bind("127.0.0.1:0").unwrap();
    let port = first.local_addr();
    assert_eq!(
        echo().sockets(SocketOptions::new().reuse_port(true)).bind(port).unwrap().local_addr(),
        port
    );
    assert!(echo().bind(port).is_err());
}

#[test]
fn answers_of_5xx_are_counted() {
    let app = App::new()
        .get("/works", |_| "a")
        .get("/fails", |_| Status::SERVICE_UNAVAILABLE)
        .get("/panics", |_| -> &'static str { panic!("a handler of the test") });
    let (address, running) = start(Server::new(app).shards(1));
    for (path, status) in [("works", 200), ("fails", 503), ("nothing", 404), ("panics", 500)] {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = exchange(address, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
    eventually("two are counted", || running.stats().server_errors == 2);
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn a_burst_of_publications_reaches_a_member_that_keeps_up() {
    let limits = limits(|limits| limits.max_backlog = 256 << 10);
    let feed = Ws::new().on_open(|ws, ()| {
        ws.subscribe("feed");
    });
    let (address, running) =
        start(Server::new(App::new().ws("/feed", feed)).limits(limits).shards(1));
    let mut client = Client::connect(address, "/feed");
    eventually("it listens", || running.stats().sessions == 1);
    // More than the backlog allows, and so fast that one turn of the shard finds many at once.
    let hub = running.hub();
    let reader = std::thread::spawn(move || {
        for n in 0..320u32 {
            let Got::Binary(message) = client.next() else { panic!("publication {n} is missing") };
            assert_eq!(message[..4], n.to_be_bytes());
        }
    });
    for n in 0..320u32 {
        let mut message = vec![0; 4096];
        message[..4].copy_from_slice(&n.to_be_bytes());
        hub.publish("feed", message).unwrap();
        // The reader sets the pace, except for bursts of 80 messages or 320 KiB.
        if n % 80 == 79 {
            eventually("the burst was queued", || running.stats().messages_out > u64::from(n));
        }
    }
    reader.join().unwrap();
    assert_eq!(running.stats().messages_dropped, 0);
    running.shutdown(NO_WAIT).wait().unwrap();
}

/// A server that awaits the end of its clients answers one request a second.
#[test]
fn requests_without_keep_alive_are_answered_and_the_server_ends_each_connection() {
    for io in BACKENDS {
        let (address, running) = start(echo().shards(Shards::new().io(io).count(2)));
        for version in ["1.1", "1.0"] {
            for n in 0..100 {
                let mut stream = dial(address);
                let request = format!(
                    "GET /livez?{n} HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).expect("the server ends it, and with no reset");
                assert!(answer.starts_with("HTTP/1.1 200 "), "{n}: {answer}");
                assert!(answer.contains("Connection: close\r\n"), "{n}: {answer}");
            }
        }
        running.shutdown(NO_WAIT).wait().unwrap();
    }
}
