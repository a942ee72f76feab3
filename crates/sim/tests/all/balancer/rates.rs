//! Minimum rates of bodies, and exemptions from them.

use throng_balance::{BackendReport, Failure, Settings, Timeouts};
use throng_sim::balance::{PeerEnd, PeerId, Script};

use super::{HOUR, assert_nothing_is_held, open, secs, unmasked};

const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const LONG: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n";

/// Sends a request, and the head of its answer: the client and the backend's side.
fn answer(script: &mut Script, head: &[u8]) -> (PeerId, PeerId) {
    let client = script.connect();
    script.send(client, GET);
    let server = script.accept(0);
    script.receive(server);
    script.send(server, head);
    assert!(script.receive_text(client).starts_with("HTTP/1.1 200 OK\r\n"));
    (client, server)
}

#[test]
fn a_request_body_that_trickles_is_answered_with_408() {
    for head in [POST, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n600\r\n"] {
        let mut script = Script::new(1, Settings::default());
        let client = script.connect();
        script.send(client, head);
        let server = script.accept(0);
        // Silent for less than `timeouts.body` each time.
        script.run(secs(50));
        script.send(client, b"x");
        script.run(secs(15));
        let answer = script.receive_text(client);
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        script.receive(server);
        assert_eq!(script.end(server), Some(PeerEnd::Finished));
        assert!(script.reports.try_recv().is_err(), "not the backend's fault");
        script.close(client);
        assert_nothing_is_held(&mut script);
    }
}

/// Extensions and trailers do not count as body: they must not keep a request alive.
#[test]
fn chunk_extensions_do_not_count_as_body() {
    let settings = Settings { min_body_rate: 0, ..Settings::default() };
    let mut script = Script::new(1, settings);
    let client = script.connect();
    script.send(client, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n600;");
    script.run(secs(50));
    script.send(client, b"x");
    script.run(secs(15));
    let answer = script.receive_text(client);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[test]
fn a_request_body_at_the_minimum_rate_is_forwarded() {
    let mut script = Script::new(1, Settings::default());
    let client = script.connect();
    script.send(client, POST);
    let server = script.accept(0);
    let (mut sent, mut received) = (0, script.receive(server).len());
    while sent < 600_000 {
        script.run(secs(20));
        sent += script.try_send(client, &vec![b'x'; (20 * 1024 + 100).min(600_000 - sent)]);
        received += script.receive(server).len();
    }
    assert!(received > 600_000);
    script.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(script.receive_text(client).starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn a_minimum_of_0_limits_silence_alone() {
    let settings = Settings { min_body_rate: 0, min_response_rate: 0, ..Settings::default() };
    let mut script = Script::new(1, settings);
    let client = script.connect();
    script.send(client, POST);
    let server = script.accept(0);
    for _ in 0..100 {
        script.run(secs(50));
        script.send(client, b"x");
    }
    assert_eq!(script.receive(client), b"");
    assert!(script.receive_text(server).ends_with(&"x".repeat(100)));
    let (client, server) = answer(&mut script, LONG);
    for _ in 0..100 {
        script.run(secs(50));
        script.send(server, b"x");
    }
    assert_eq!(script.receive(client).len(), 100);
}

/// The rate applies to the client only while the balancer reads from it.
#[test]
fn time_for_which_the_backend_takes_no_body_is_not_held_against_the_client() {
    let timeouts = Timeouts { response: HOUR, ..Timeouts::default() };
    let mut script = Script::new(1, Settings { timeouts, ..Settings::default() });
    let client = script.connect();
    script.send(client, POST);
    let server = script.accept(0);
    let body = vec![b'x'; 600_000];
    let (mut sent, mut received) = (0, 0);
    while sent < body.len() {
        let more = script.try_send(client, &body[sent..]);
        assert!(more > 0, "the client was not read");
        sent += more;
        script.run(HOUR / 2);
        received += script.receive(server).len();
    }
    received += script.receive(server).len();
    assert!(received > body.len());
    assert_eq!(script.receive(client), b"");
}

#[test]
fn an_answer_that_trickles_is_cut() {
    let mut script = Script::new(1, Settings::default());
    let (client, server) = answer(&mut script, LONG);
    for _ in 0..3 {
        script.run(secs(50));
        script.try_send(server, b"x");
    }
    // The client must not treat the answer as complete.
    script.receive(client);
    assert_eq!(script.end(client), Some(PeerEnd::Reset));
    let report = script.reports.try_recv();
    let failure = Failure::ResponseTimeout;
    assert!(
        matches!(&report, Ok(BackendReport::Failed { failure: it, .. }) if *it == failure),
        "{report:?}"
    );
    assert_nothing_is_held(&mut script);
}

/// A request must be answered within `timeouts.response`, and a single byte is not an answer.
#[test]
fn a_head_of_an_answer_that_trickles_is_answered_with_504() {
    let mut script = Script::new(1, Settings::default());
    let client = script.connect();
    script.send(client, GET);
    let server = script.accept(0);
    for byte in LONG.iter().take(3) {
        script.try_send(server, &[*byte]);
        script.run(secs(50));
    }
    assert!(script.receive_text(client).starts_with("HTTP/1.1 504 "));
}

/// A backend that reports progress with an interim answer may take longer.
#[test]
fn an_interim_answer_extends_the_time_for_the_final_one() {
    let mut script = Script::new(1, Settings::default());
    let client = script.connect();
    script.send(client, GET);
    let server = script.accept(0);
    for _ in 0..10 {
        script.run(secs(50));
        script.send(server, b"HTTP/1.1 102 Processing\r\n\r\n");
    }
    script.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(script.receive_text(client).contains("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn an_answer_at_the_minimum_rate_is_forwarded() {
    let mut script = Script::new(1, Settings::default());
    let (client, server) = answer(&mut script, LONG);
    let (mut sent, mut received) = (0, 0);
    while sent < 600_000 {
        script.run(secs(20));
        sent += script.try_send(server, &vec![b'x'; (20 * 256 + 100).min(600_000 - sent)]);
        received += script.receive(client).len();
    }
    assert_eq!(received, 600_000);
}

/// Streams of events, logs and long polls end by themselves, and are slow because little happens.
#[test]
fn an_answer_without_a_length_may_be_as_slow_as_it_likes() {
    for (head, event) in [
        (
            &b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
               Transfer-Encoding: chunked\r\n\r\n"[..],
            &b"2\r\n:\n\r\n"[..],
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", b":\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ] {
        let mut script = Script::new(1, Settings::default());
        let (client, server) = answer(&mut script, head);
        for _ in 0..200 {
            script.run(secs(50));
            script.send(server, event);
            assert!(!script.receive(client).is_empty());
        }
        // Silence ends it.
        script.run(secs(65));
        assert_eq!(script.end(client), Some(PeerEnd::Reset));
    }
}

/// The rate applies to the backend only while its client takes the answer.
#[test]
fn an_answer_that_waits_for_its_client_is_not_held_against_the_backend() {
    let settings = Settings { min_response_rate: 100_000, ..Settings::default() };
    let mut script = Script::new(1, settings);
    let (client, server) = answer(&mut script, LONG);
    let (mut sent, mut received) = (0, 0);
    let body = vec![b'x'; 600_000];
    while sent < body.len() {
        sent += script.try_send(server, &body[sent..]);
        script.run(secs(50));
        received += script.receive(client).len();
    }
    received += script.receive(client).len();
    assert_eq!(received, body.len());
}

#[test]
fn a_client_that_takes_an_answer_byte_by_byte_is_reset() {
    let mut script = Script::new(1, Settings::default());
    let (client, server) = answer(&mut script, LONG);
    script.try_send(server, &vec![b'x'; 600_000]);
    for _ in 0..3 {
        script.run(secs(30));
        script.receive_some(client, 1);
    }
    script.receive(client);
    assert_eq!(script.end(client), Some(PeerEnd::Reset));
    assert!(script.reports.try_recv().is_err(), "not the backend's fault");
    assert_nothing_is_held(&mut script);
}

#[test]
fn a_tunnel_may_be_as_slow_as_it_likes() {
    let mut script = Script::new(1, Settings::default());
    let (client, server) = open(&mut script);
    for _ in 0..100 {
        script.run(secs(3000));
        script.send(server, &unmasked("x"));
        assert_eq!(script.receive(client), unmasked("x"));
    }
}

/// A client that waits for the backend's 100 sends nothing until it comes.
#[test]
fn the_time_of_a_body_that_was_asked_for_begins_with_the_asking() {
    let mut script = Script::new(1, Settings::default());
    let client = script.connect();
    let head =
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 600000\r\n\r\n";
    script.send(client, head);
    let server = script.accept(0);
    script.run(secs(50));
    script.send(server, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(script.receive_text(client).starts_with("HTTP/1.1 100 "));
    script.run(secs(20));
    assert_eq!(script.receive(client), b"");
    script.run(secs(45));
    assert!(script.receive_text(client).starts_with("HTTP/1.1 408 "));
}
