//! Admission of connections at a full server, and the choice of their event loop.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use throng::server::Limit;

use crate::server::{NO_WAIT, echo, limits, start};
use crate::support::{Client, Got, dial, eventually, exchange, read_head};

/// Counts of connections that never return to 0 fill a server up.
#[test]
fn a_full_server_says_so_and_counts_come_back() {
    let limits = limits(|limits| {
        limits.max_connections = Some(3);
        limits.max_connections_per_address = Limit::AtMost(2);
    });
    let (address, running) = start(echo().limits(limits).shards(2));
    let first = Client::connect(address, "/echo");
    let second = Client::connect(address, "/echo");
    let answer = exchange(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    let from = |ip: [u8; 4]| {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        let stream: std::net::TcpStream = socket.into();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    let mut third = from([127, 0, 0, 2]);
    third.write_all(b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(read_head(&mut third).starts_with("HTTP/1.1 404 "));
    let mut fourth = from([127, 0, 0, 3]);
    fourth.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let answer = read_head(&mut fourth);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: "), "{answer}");
    // Statistics are up to a second old: the first may be from before these connections.
    eventually("all are counted", || running.stats().connections >= 3);
    drop((first, second, third, fourth));
    eventually("all are gone", || running.stats().connections == 0);
    let mut again = Client::connect(address, "/echo");
    again.send_text("back");
    assert_eq!(again.next(), Got::Text("back".into()));
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn a_full_server_still_answers_health_checks() {
    let limits = limits(|limits| limits.max_connections = Some(20));
    let (address, running) = start(echo().limits(limits).shards(1));
    let mut clients: Vec<_> = (0..20).map(|_| Client::connect(address, "/echo")).collect();
    // Silent connections beyond the limit do not keep others from being answered.
    let silent: Vec<_> = (0..100).map(|_| dial(address)).collect();
    let ask = |line: &str| {
        let request = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
        exchange(address, request.as_bytes())
    };
    for _ in 0..3 {
        for (line, body) in [("GET /livez", "alive\n"), ("GET /readyz", "ready\n")] {
            let answer = ask(line);
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(body), "{answer}");
            assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
        }
        let head = ask("HEAD /livez");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
        for line in ["GET /metrics", "GET /echo", "POST /none"] {
            let answer = ask(line);
            assert!(answer.starts_with("HTTP/1.1 503 "), "{line}: {answer}");
            assert!(answer.contains("\r\nRetry-After: 5\r\n"), "{line}: {answer}");
        }
    }
    // A second request of the same connection is not answered.
    let twice = ask("GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez");
    assert_eq!(twice.matches("HTTP/1.1 ").count(), 1, "{twice}");
    for (number, client) in clients.iter_mut().enumerate() {
        client.send_text(&number.to_string());
        assert_eq!(client.next(), Got::Text(number.to_string()));
    }
    drop((clients, silent));
    eventually("all are gone", || running.stats().connections == 0);
    running.shutdown(NO_WAIT).wait().unwrap();
}

#[test]
fn connections_without_a_request_are_closed_for_new_ones() {
    for pending in [Limit::Unlimited, Limit::AtMost(10), Limit::Auto] {
        let limits = limits(|limits| {
            limits.max_connections = Some(40);
            limits.max_pending_handshakes = pending;
            limits.handshake_timeout = Duration::from_secs(3600);
        });
        let (address, running) = start(echo().limits(limits).shards(1));
        let mut sessions: Vec<_> = (0..5).map(|_| Client::connect(address, "/echo")).collect();
        eventually("five are counted", || running.stats().sessions == 5);
        let before = running.stats().bytes_in;
        let mut half = dial(address);
        half.write_all(b"GET /livez HTTP/1.1\r\nHo").unwrap();
        eventually("half a request was read", || running.stats().bytes_in >= before + 23);
        let silent: Vec<_> = (0..500).map(|_| dial(address)).collect();
        assert!(read_head(&mut half).starts_with("HTTP/1.1 408 "), "the oldest gets the reason");
        for _ in 0..30 {
            sessions.push(Client::connect(address, "/echo"));
        }
        for (number, client) in sessions.iter_mut().enumerate() {
            client.send_text(&number.to_string());
            assert_eq!(client.next(), Got::Text(number.to_string()));
        }
        drop((sessions, silent));
        eventually("all are gone", || running.stats().connections == 0);
        running.shutdown(NO_WAIT).wait().unwrap();
    }
}

/// Where processes share a listener, one of them may take nearly every WebSocket.
#[test]
fn no_shard_holds_more_than_a_quarter_above_the_mean() {
    let (address, running) = start(echo().shards(4));
    let clients: Vec<_> = (0..800).map(|_| Client::connect(address, "/echo")).collect();
    eventually("all are counted", || running.stats().sessions == 800);
    let loads: Vec<u64> = running.shard_stats().iter().map(|stats| stats.sessions).collect();
    assert!(*loads.iter().max().unwrap() <= 250, "{loads:?}");
    drop(clients);
    running.shutdown(NO_WAIT).wait().unwrap();
}
