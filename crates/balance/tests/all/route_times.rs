//! Times and limits of routes.

use throng_balance::Config;

use crate::sites::{Running, get};
use crate::support::{Peer, Scripted, upgrade};

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
