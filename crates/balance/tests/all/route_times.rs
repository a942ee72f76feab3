//! Times and limits of routes.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use throng_balance::Config;
use throng_testkit::eventually;

use crate::sites::{Running, get};
use crate::support::{Peer, Scripted, TIMEOUT, unused_address, upgrade};

/// A backend that accepts requests and does not answer.
fn file(backend: &Scripted) -> String {
    format!(
        "backends = [\"{}\"]\nretries = 0\n[[site]]\nhosts = [\"*\"]\n\
         timeouts.response = \"1h\"\nmax_body = \"10\"\nroutes = [\
         {{ path = \"/quick\", timeouts.response = \"100ms\" }}, \
         {{ path = \"/ws\", timeouts.upgrade = \"100ms\" }}, \
         {{ path = \"/large\", max_body = \"unlimited\" }}, \
         {{ path = \"/slow\", timeouts.body = \"100ms\" }}]\n",
        backend.address
    )
}

#[test]
fn a_route_has_its_own_timeouts_of_answers() {
    let backend = Scripted::bind();
    let running = Running::start(&file(&backend));
    for (request, status) in [(get("a", "/quick"), "504"), (upgrade("/ws"), "504")] {
        let mut client = running.connect();
        client.send(&request);
        let mut server = backend.accept();
        server.head();
        let (head, body) = client.answer();
        assert_eq!(&head[9..12], status, "{head}{body}");
    }
    // A body that stops.
    let mut client = running.connect();
    client.send(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
    let mut server = backend.accept();
    server.head();
    let (head, _) = client.answer();
    assert_eq!(&head[9..12], "408", "{head}");
}

#[test]
fn a_route_has_its_own_size_of_bodies() {
    let backend = Scripted::bind();
    let running = Running::start(&file(&backend));
    for (path, length, status) in [("/", 10, "200"), ("/", 11, "413"), ("/large", 1000, "200")] {
        for is_chunked in [false, true] {
            let mut client = running.connect();
            let body = "x".repeat(length);
            let text = match is_chunked {
                true => {
                    format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n")
                }
                false => format!("Content-Length: {length}\r\n\r\n{body}"),
            };
            client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{text}").as_bytes());
            if status == "200" {
                let mut server = backend.accept();
                server.head();
                server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
            let (head, _) = client.answer();
            assert_eq!(&head[9..12], status, "{path} {length} {is_chunked}: {head}");
        }
    }
}

fn open(running: &Running, backend: &Scripted, path: &str) -> (Peer, Peer) {
    let mut client = running.connect();
    client.send(&upgrade(path));
    let server = backend.open();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    (client, server)
}

fn is_open((client, server): &mut (Peer, Peer)) {
    client.send_text("hello");
    assert_eq!(server.text(), "hello");
}

/// Timeouts of a route reach its open tunnels; without the route they stay as they were.
#[test]
fn tunnels_have_the_timeouts_of_their_route_for_as_long_as_they_live() {
    let backend = Scripted::bind();
    let text = |top: &str, routes: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nshards = 1\nbackends = [\"{}\"]\ntimeouts.tunnel = {top:?}\n\
             [[site]]\nhosts = [\"*\"]\nroutes = [{routes}]\n",
            backend.address
        )
    };
    let own = |time: &str| format!("{{ path = \"/own\", timeouts.tunnel = {time:?} }}");
    let start = text("1h", &own("2h"));
    let (_, start) = start.split_once("shards = 1\n").unwrap();
    let running = Running::start(start);
    let reload = |top: &str, routes: &str| {
        let config = Config::parse(&text(top, routes), "b.toml").unwrap();
        assert!(running.0.apply(config).unwrap().settings);
    };
    let mut with_own = open(&running, &backend, "/own");
    let mut other = open(&running, &backend, "/other");
    // The route is gone, and its tunnel stays as it was.
    reload("100ms", "");
    assert_eq!(other.0.close_code(), 1001);
    is_open(&mut with_own);
    // It is back with another timeout.
    reload("1h", &own("100ms"));
    assert_eq!(with_own.0.close_code(), 1001);
    let mut other = open(&running, &backend, "/other");
    let mut with_own = open(&running, &backend, "/own");
    assert_eq!(with_own.0.close_code(), 1001);
    is_open(&mut other);
}

/// Sends the client's body byte by byte until an answer comes, or for `most`. Returns whether one
/// has come.
fn is_answered_while_it_sends(client: &mut Peer, most: Duration) -> bool {
    let began = Instant::now();
    client.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut is_answered = false;
    while !is_answered && began.elapsed() < most {
        // The connection may have been ended.
        let _ = client.stream.write_all(b"x");
        is_answered = match client.stream.peek(&mut [0]) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        };
    }
    client.stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    is_answered
}

/// Sends an answer's body byte by byte until its client is ended, or for `most`. Returns whether it
/// is.
fn is_ended_while_its_answer_comes(client: &mut Peer, server: &mut Peer, most: Duration) -> bool {
    let began = Instant::now();
    client.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut is_ended = false;
    while !is_ended && began.elapsed() < most {
        is_ended = server.stream.write_all(b"x").is_err();
        is_ended |= match client.stream.read(&mut [0; 64]) {
            Ok(length) => length == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        };
    }
    is_ended
}

/// Bodies that come byte by byte, so that no connection is ever silent for `timeouts.body`.
#[test]
fn a_route_has_its_own_rates_of_bodies() {
    let backend = Scripted::bind();
    let running = Running::start(&format!(
        "backends = [\"{}\"]\nretries = 0\nkeep_alive = 0\nmin_body_rate = 0\n\
         min_response_rate = 0\ntimeouts.body = \"1s\"\n[[site]]\nhosts = [\"*\"]\nroutes = [\
         {{ path = \"/fast\", min_body_rate = \"1MiB\", min_response_rate = \"1MiB\" }}]\n",
        backend.address
    ));
    let long = Duration::from_millis(2_500);
    for (path, most, is_cut) in [("/fast", TIMEOUT, true), ("/", long, false)] {
        let mut client = running.connect();
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
        client.send(head.as_bytes());
        let mut server = backend.accept();
        server.head();
        assert_eq!(is_answered_while_it_sends(&mut client, most), is_cut, "{path}");
        if is_cut {
            assert!(client.head().starts_with("HTTP/1.1 408 "));
        }
        let mut client = running.connect();
        client.send(&get("a", path));
        let mut server = backend.accept();
        server.head();
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        let ended = is_ended_while_its_answer_comes(&mut client, &mut server, most);
        assert_eq!(ended, is_cut, "{path}");
    }
}

#[test]
fn a_route_has_its_own_retries() {
    let backend = Scripted::bind();
    let running = Running::start(&format!(
        "backends = [\"{}\", \"{}\"]\npick = \"round_robin\"\nhealth.failures = 0\n\
         keep_alive = 0\n[[site]]\nhosts = [\"*\"]\n\
         routes = [{{ path = \"/once\", retries = 0 }}]\n",
        backend.address,
        unused_address()
    ));
    let ask = |path: &str| {
        let mut client = running.connect();
        client.send(&get("a", path));
        client.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut is_answered = false;
        while !is_answered {
            is_answered = client.stream.peek(&mut [0]).is_ok();
            if let Some(mut server) = backend.try_accept() {
                server.head();
                server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                break;
            }
        }
        client.stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.head()[9..12].to_owned()
    };
    // Each backend has its turn.
    let mut once = [ask("/once"), ask("/once")];
    once.sort();
    assert_eq!(once, ["200", "502"]);
    assert_eq!([ask("/"), ask("/")], ["200", "200"]);
}

#[test]
fn a_route_has_its_own_time_of_half_closed_tunnels() {
    let backend = Scripted::bind();
    let running = Running::start(&format!(
        "backends = [\"{}\"]\ntimeouts.half_closed = \"1h\"\n[[site]]\nhosts = [\"*\"]\nroutes = \
         [{{ path = \"/own\", timeouts.half_closed = \"100ms\" }}]\n",
        backend.address
    ));
    let [(own, mut of_own), (other, mut of_other)] =
        ["/own", "/other"].map(|path| open(&running, &backend, path));
    for (client, server) in [(&own, &mut of_own), (&other, &mut of_other)] {
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert!(server.is_at_end());
    }
    eventually("one has had its time", || running.0.status().metrics.tunnels == 1);
    assert_eq!(running.0.status().metrics.half_closed_ended, 1);
    // The other still brings what its backend sends.
    let mut other = other;
    of_other.send_text_unmasked("late");
    assert_eq!(other.text(), "late");
}
