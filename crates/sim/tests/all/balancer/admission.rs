//! New clients of an address that has as many connections as it may.

use std::time::Duration;

use throng_balance::Settings;
use throng_sim::balance::Script;

use super::{masked, open};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_silent_client_makes_room_for_its_address_from_its_minimum_age_on() {
    let settings = Settings { max_connections_per_address: Some(3), ..Settings::default() };
    let mut script = Script::new(1, settings);
    let (tunnel, server) = open(&mut script);
    let (half, silent) = (script.connect(), script.connect());
    script.send(half, b"GET / HT");
    script.run(Duration::from_millis(900));
    let early = script.connect();
    assert!(script.end(early).is_some(), "no one has had the time for a handshake");
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
    script.run(Duration::from_secs(2));
    let late = script.connect();
    assert!(script.end(late).is_some(), "all have asked");
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
    let early = connect(&mut script, "192.0.2.7:3");
    assert!(script.end(early).is_some(), "no one of its address has had the time for a request");
    let other = connect(&mut script, "192.0.2.8:1");
    assert_eq!(script.end(other), None);
    script.run(Duration::from_millis(1100));
    let newcomer = connect(&mut script, "192.0.2.7:4");
    assert!(script.end(silent).is_some(), "the oldest makes room");
    answered(&mut script, newcomer, &mut backend);
    let late = connect(&mut script, "192.0.2.7:5");
    assert!(script.end(late).is_some(), "all have asked");
    // One that leaves makes room.
    script.close(active);
    let last = connect(&mut script, "192.0.2.7:6");
    answered(&mut script, last, &mut backend);
    assert_eq!((script.end(other), script.audit().addresses), (None, 2));
}
