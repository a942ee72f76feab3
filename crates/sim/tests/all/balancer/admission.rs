//! New clients of an address that has as many connections as it may.

use std::time::Duration;

use throng_balance::Settings;
use throng_sim::balance::Script;

use super::{masked, open};

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
        script.send(newcomer, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
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
