//! Slow peers: the other side is slowed down, no data is lost, and the slow side gets the blame.

use throng_balance::{Settings, Timeouts};
use throng_proto::ws::{Opcode, encode_masked};
use throng_sim::balance::{PeerEnd, Script};

use super::{HOUR, open, secs, unmasked, upgrade};

/// Megabytes for a side that does not receive wait in the network instead of the balancer, and
/// finally arrive completely.
#[test]
fn a_side_that_does_not_receive_stops_the_other_and_loses_nothing() {
    let mut script = Script::new(1, Settings::default());
    let (client, server) = open(&mut script);
    let payload: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut frame = Vec::new();
    encode_masked(Opcode::Binary, &payload, [0; 4], &mut frame);
    let (mut sent, mut received) = (script.try_send(client, &frame), Vec::new());
    script.run(HOUR / 2);
    assert!(sent < 500_000, "{sent} bytes fit into the network");
    assert_eq!(script.try_send(client, &frame[sent..]), 0);
    while received.len() < frame.len() {
        received.extend(script.receive(server));
        sent += script.try_send(client, &frame[sent..]);
    }
    assert!(received == frame);
    script.send(server, &unmasked("all of it"));
    script.close(server);
    assert!(script.receive(client).starts_with(&unmasked("all of it")));
}

/// Far more than the network holds, in both directions at the same time: back-pressure bounds the
/// memory, and every byte arrives.
#[test]
fn large_bodies_either_way_are_whole() {
    const SIZE: usize = 1_000_000;
    let timeouts = Timeouts { body: HOUR, response: HOUR, ..Timeouts::default() };
    let mut script = Script::new(1, Settings { timeouts, ..Settings::default() });
    let body: Vec<u8> = (0..SIZE as u32).map(|n| (n % 253) as u8).collect();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n");
    let request = [head.as_bytes(), &body].concat();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n");
    let answer = [head.as_bytes(), &body].concat();
    let client = script.connect();
    let mut sent = script.try_send(client, &request);
    let server = script.accept(0);
    let (mut answered, mut to_server, mut to_client) = (0, Vec::new(), Vec::new());
    while !(to_server.ends_with(&body[SIZE - 1000..]) && to_client.len() >= answer.len()) {
        script.run(secs(30));
        to_server.extend(script.receive(server));
        sent += script.try_send(client, &request[sent..]);
        answered += script.try_send(server, &answer[answered..]);
        script.run(secs(30));
        assert!(script.audit().most.client_output < 300_000);
        to_client.extend(script.receive(client));
    }
    assert!(to_server.ends_with(&body) && to_client.ends_with(&body));
}

/// Answers to a client that does not receive must not accumulate, even over many requests.
#[test]
fn a_client_that_asks_on_and_does_not_receive_has_to_wait() {
    let mut script = Script::new(1, Settings::default());
    let client = script.connect();
    let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
    script.try_send(client, &requests);
    let server = script.accept(0);
    let answer =
        [&b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"[..], &[b'x'; 60_000]].concat();
    let mut answered = 0;
    while !script.receive(server).is_empty() {
        script.try_send(server, &answer);
        answered += 1;
        assert!(answered < 20, "{answered} answers were taken without a receiver");
    }
    assert!(answered > 1);
    script.run(secs(50));
    assert_eq!(script.receive(server), b"", "nothing is asked while the client takes nothing");
}

/// The time for an answer begins with the request's last byte.
#[test]
fn a_slow_upload_is_not_the_backends_fault() {
    let timeouts = Timeouts { response: secs(5), ..Timeouts::default() };
    let mut script = Script::new(1, Settings { timeouts, ..Settings::default() });
    let client = script.connect();
    script.send(client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ");
    let server = script.accept(0);
    script.run(secs(50));
    assert!(script.receive_text(server).ends_with("\r\n\r\nhalf "));
    assert!(script.reports.try_recv().is_err(), "not the backend's fault");
    script.send(client, b"later");
    assert_eq!(script.receive(server), b"later");
    script.run(secs(4));
    assert_eq!(script.receive(client), b"");
    script.run(secs(3));
    assert!(script.receive_text(client).starts_with("HTTP/1.1 504 "));
    assert!(script.reports.try_recv().is_ok());
}

/// Input after the answer is read and dropped: closing with unread input would cause a reset, which
/// may overtake the answer.
#[test]
fn an_upload_that_its_backend_does_not_read_is_read_away_behind_the_answer() {
    const SIZE: usize = 1_000_000;
    let timeouts = Timeouts { response: secs(5), ..Timeouts::default() };
    let mut script = Script::new(1, Settings { timeouts, ..Settings::default() });
    let client = script.connect();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n");
    script.send(client, head.as_bytes());
    let _server = script.accept(0);
    let body = vec![b'x'; SIZE];
    let mut sent = script.try_send(client, &body);
    script.run(secs(4));
    assert_eq!(script.try_send(client, &body[sent..]), 0, "both sides are stuck");
    script.run(secs(2));
    while sent < SIZE {
        let more = script.try_send(client, &body[sent..]);
        assert!(more > 0, "{sent} bytes were read");
        sent += more;
    }
    script.finish(client);
    assert!(script.receive_text(client).starts_with("HTTP/1.1 504 "));
    assert_eq!(script.end(client), Some(PeerEnd::Finished));
}

/// A body that arrives while its request waits for a permit does not extend the wait.
#[test]
fn a_queued_request_whose_body_comes_late_waits_no_longer() {
    for rest in [&b"st"[..], b"s"] {
        let timeouts = Timeouts { upgrade: HOUR, ..Timeouts::default() };
        let settings = Settings { max_handshakes: 1, timeouts, ..Settings::default() };
        let mut script = Script::new(1, settings);
        let first = script.connect();
        script.send(first, &upgrade());
        let _server = script.accept(0);
        let second = script.connect();
        script.send(second, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nre");
        script.run(secs(5));
        script.send(second, rest);
        script.run(secs(4));
        assert_eq!(script.receive(second), b"");
        script.run(secs(2));
        assert!(script.receive_text(second).starts_with("HTTP/1.1 503 "));
    }
}

#[test]
fn a_proxy_header_in_pieces_names_the_client() {
    let settings = Settings {
        accept_proxy: true,
        trusted_proxies: vec!["127.0.0.0/8".parse().expect("a network")],
        ..Settings::default()
    };
    let mut script = Script::new(1, settings);
    let mut header = Vec::new();
    let address = |text: &str| text.parse().expect("an address");
    let (source, target) = (address("192.0.2.7:1234"), address("127.0.0.1:80"));
    throng_proto::proxy_protocol::encode(source, target, &mut header);
    let client = script.connect();
    for byte in header {
        script.send(client, &[byte]);
    }
    script.send(client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let server = script.accept(0);
    let head = script.receive_text(server);
    assert!(head.contains("X-Forwarded-For: 192.0.2.7"), "{head}");
}
