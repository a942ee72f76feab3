//! New clients from an address that is at its connection limit.

use std::time::Duration;

use throng_balance::Settings;
use throng_sim::balance::{PeerId, Script};

use super::{masked, open, upgrade};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Checks that a new client is refused with this status and a time to retry.
#[track_caller]
fn assert_refused(script: &mut Script, status: u16, why: &str) {
    let newcomer = script.connect();
    script.send(newcomer, GET);
    let answer = script.receive_text(newcomer);
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{why}: {answer}");
    assert!(answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");
    script.close(newcomer);
}

fn full(most: usize) -> Script {
    Script::new(1, Settings { max_connections: most, ..Settings::default() })
}

/// Makes the backend answer a client's request.
#[track_caller]
fn answer(script: &mut Script, client: PeerId, backend: &mut Option<PeerId>) {
    script.send(client, GET);
    let server = *backend.get_or_insert_with(|| script.accept(0));
    assert!(script.receive_text(server).starts_with("GET / "));
    script.send(server, OK);
    assert!(script.receive_text(client).starts_with("HTTP/1.1 200 "));
}

/// The client that has been idle for longest ends first, regardless of how often it was served.
#[test]
fn idle_clients_make_room_the_longest_first() {
    let mut script = full(100);
    let mut backend = None;
    let mut idle = Vec::new();
    for _ in 0..100 {
        let client = script.connect();
        answer(&mut script, client, &mut backend);
        script.run(Duration::from_millis(130));
        idle.push(client);
    }
    // The first client has sent another request, so it is now the last to end.
    answer(&mut script, idle[0], &mut backend);
    script.run(Duration::from_millis(130));
    for &oldest in &idle[1..13] {
        let newcomer = script.connect();
        assert!(script.end(oldest).is_some(), "the one that is idle for longest goes");
        answer(&mut script, newcomer, &mut backend);
    }
    assert_eq!((script.end(idle[0]), script.end(idle[13])), (None, None));
    let metrics = script.metrics();
    assert_eq!((metrics.ended_idle, metrics.refused_full, metrics.answered_full), (12, 12, 0));
}

/// Clients that sent a request and left, while their backend still works for them.
#[test]
fn clients_that_have_gone_make_room() {
    let mut script = full(200);
    for _ in 0..200 {
        let client = script.connect();
        script.send(client, GET);
        script.finish(client);
        script.accept(0);
    }
    script.run(Duration::from_millis(4900));
    assert_refused(&mut script, 503, "they may only have ended their stream");
    script.run(Duration::from_millis(300));
    let mut backend = None;
    for _ in 0..12 {
        let newcomer = script.connect();
        answer(&mut script, newcomer, &mut backend);
    }
    let metrics = script.metrics();
    assert_eq!((metrics.ended_gone, metrics.answered_full), (12, 1));
}

/// A client that has ended its stream and waits is served, as long as there is capacity.
#[test]
fn a_client_that_ended_its_stream_gets_its_answer_where_there_is_room() {
    let mut script = full(10);
    let client = script.connect();
    script.send(client, GET);
    script.finish(client);
    let server = script.accept(0);
    script.run(Duration::from_secs(20));
    script.send(server, OK);
    assert!(script.receive_text(client).starts_with("HTTP/1.1 200 "));
}

/// A tunnel whose client ended its stream without a Close frame does not occupy capacity either.
#[test]
fn a_tunnel_whose_client_has_gone_makes_room() {
    let mut script = full(2);
    let (_stays, _) = open(&mut script);
    let (gone, _) = open(&mut script);
    script.finish(gone);
    script.run(Duration::from_millis(5200));
    let newcomer = script.connect();
    script.send(newcomer, &upgrade());
    let server = script.accept(0);
    assert!(script.receive_text(server).contains("Upgrade: websocket"));
    let metrics = script.metrics();
    assert_eq!((metrics.ended_gone, metrics.tunnels, metrics.refused_full), (1, 1, 1));
}

#[test]
fn beyond_the_limit_a_request_gets_its_answer_and_a_crowd_does_not_shut_it() {
    let mut script = full(1);
    let (tunnel, server) = open(&mut script);
    let silent: Vec<PeerId> = (0..100).map(|_| script.connect()).collect();
    assert_eq!(script.audit().beyond_limits, 32);
    assert!(script.end(silent[0]).is_some(), "the oldest leaves the reserve");
    assert_eq!(script.end(silent[99]), None);
    assert_refused(&mut script, 503, "the tunnel stays");
    script.run(Duration::from_secs(30));
    let metrics = script.metrics();
    assert_eq!((script.audit().beyond_limits, metrics.connections), (0, 1));
    assert_eq!((metrics.refused_full, metrics.answered_full), (101, 1));
    script.send(tunnel, &masked("still here"));
    assert_eq!(script.receive(server), masked("still here"));
}

#[test]
fn a_silent_client_makes_room_for_its_address_from_its_minimum_age_on() {
    let settings = Settings { max_connections_per_address: Some(3), ..Settings::default() };
    let mut script = Script::new(1, settings);
    let (tunnel, server) = open(&mut script);
    let (half, silent) = (script.connect(), script.connect());
    script.send(half, b"GET / HT");
    script.run(Duration::from_millis(900));
    assert_refused(&mut script, 429, "no one has had the time for a handshake");
    assert_eq!((script.end(half), script.end(silent)), (None, None));
    script.run(Duration::from_millis(200));
    let mut backend = None;
    for oldest in [half, silent] {
        let newcomer = script.connect();
        assert!(script.end(oldest).is_some(), "the oldest makes room");
        script.send(newcomer, GET);
        let server = *backend.get_or_insert_with(|| script.accept(0));
        assert!(script.receive_text(server).starts_with("GET / "));
        script.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(script.receive_text(newcomer).starts_with("HTTP/1.1 200 "));
    }
    // Clients without a pending answer end in turn in favour of new ones; a tunnel never does.
    script.run(Duration::from_secs(2));
    let metrics = script.metrics();
    assert_eq!((metrics.answered_full_address, metrics.ended_idle), (1, 0));
    let _newcomer = script.connect();
    assert_eq!(script.metrics().ended_idle, 1);
    script.send(tunnel, &masked("still here"));
    assert_eq!(script.receive(server), masked("still here"));
}

#[test]
fn clients_behind_a_proxy_are_counted_by_the_address_in_its_header() {
    let settings = Settings {
        accept_proxy: true,
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        max_connections_per_address: Some(2),
        ..Settings::default()
    };
    let mut script = Script::new(1, settings);
    let header = |source: &str| {
        let mut header = Vec::new();
        let to = "127.0.0.1:80".parse().unwrap();
        throng_proto::proxy_protocol::encode(source.parse().unwrap(), to, &mut header);
        header
    };
    let connect = |script: &mut Script, source: &str| {
        let client = script.connect();
        script.send(client, &header(source));
        client
    };
    let answered = |script: &mut Script, client, backend: &mut Option<_>| {
        script.send(client, GET);
        let server = *backend.get_or_insert_with(|| script.accept(0));
        assert!(script.receive_text(server).starts_with("GET / "));
        script.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(script.receive_text(client).starts_with("HTTP/1.1 200 "));
    };
    let mut backend = None;
    let silent = connect(&mut script, "192.0.2.7:1");
    let active = connect(&mut script, "192.0.2.7:2");
    answered(&mut script, active, &mut backend);
    // One client of the address has not had the time for a request, and the served one has not been
    // idle for long enough.
    let early = connect(&mut script, "192.0.2.7:3");
    script.send(early, GET);
    assert!(script.receive_text(early).starts_with("HTTP/1.1 429 "));
    script.close(early);
    let other = connect(&mut script, "192.0.2.8:1");
    assert_eq!(script.end(other), None);
    script.run(Duration::from_millis(1100));
    // The idle client ends in favour of a new one before the client that has only just connected.
    let newcomer = connect(&mut script, "192.0.2.7:4");
    assert!(script.end(active).is_some(), "it waits for nothing");
    assert_eq!(script.end(silent), None);
    answered(&mut script, newcomer, &mut backend);
    // A client that leaves frees its slot.
    script.close(newcomer);
    let last = connect(&mut script, "192.0.2.7:6");
    answered(&mut script, last, &mut backend);
    assert_eq!((script.end(other), script.audit().addresses), (None, 2));
}
