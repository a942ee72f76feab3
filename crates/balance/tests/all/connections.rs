//! Admission of many clients: one address cannot take all connections, and idle connections make
//! room.

use throng_balance::Settings;

use crate::support::{Balancer, Peer, Scripted, upgrade};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A client whose request has reached the backend.
fn served(balancer: &Balancer, backend: &Scripted) -> (Peer, Peer) {
    let mut client = balancer.connect();
    client.send(&upgrade("/"));
    let server = backend.open();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    (client, server)
}

/// The status line that a new client beyond a limit gets.
fn refused(balancer: &Balancer) -> String {
    let mut client = balancer.connect();
    client.send(GET);
    let (head, _) = client.answer();
    assert!(head.contains("\r\nRetry-After: 1\r\n") && client.is_at_end(), "{head}");
    head.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn an_address_has_no_more_connections_than_its_part() {
    let backend = Scripted::bind();
    let settings = Settings { max_connections_per_address: Some(2), ..Settings::default() };
    let balancer = Balancer::start(&[backend.address], settings.clone());
    let first = served(&balancer, &backend);
    let _second = served(&balancer, &backend);
    assert_eq!(refused(&balancer), "HTTP/1.1 429 Too Many Requests");
    // When one client has gone (here with a tunnel), there is room for another.
    drop(first);
    balancer.until("it has gone", |it| it.backends[0].tunnels() == 1);
    let _third = served(&balancer, &backend);
    assert_eq!(refused(&balancer), "HTTP/1.1 429 Too Many Requests");
    balancer.until("both are counted", |it| it.shards.metrics().answered_full_address == 2);
    // A trusted proxy forwards requests of many clients.
    let trusted = Settings { trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()], ..settings };
    let balancer = Balancer::start(&[backend.address], trusted);
    let _all: Vec<_> = (0..5).map(|_| served(&balancer, &backend)).collect();
}

#[test]
fn a_newcomer_takes_the_place_of_the_oldest_that_has_asked_nothing() {
    let backend = Scripted::bind();
    let settings = Settings { max_connections: 3, ..Settings::default() };
    let balancer = Balancer::start(&[backend.address], settings);
    let mut served = served(&balancer, &backend);
    let (mut silent, mut half) = (balancer.connect(), balancer.connect());
    half.send(b"GET / HT");
    balancer.until("they are let in", |it| it.shards.metrics().connections == 3);
    let mut client = balancer.connect();
    client.send(GET);
    let mut server = backend.accept();
    server.head();
    assert!(silent.is_at_end());
    // The new client has sent a request and stays. The next one to be closed is the client with
    // half a head.
    let mut next = balancer.connect();
    next.send(&upgrade("/"));
    let _tunnel = backend.open();
    assert!(next.head().starts_with("HTTP/1.1 101 ") && half.is_at_end());
    // Now all clients have sent a request.
    assert_eq!(refused(&balancer), "HTTP/1.1 503 Service Unavailable");
    server.send(OK);
    assert_eq!(client.answer().1, "ok");
    served.0.send_text("still here");
    assert_eq!(served.1.text(), "still here");
}
