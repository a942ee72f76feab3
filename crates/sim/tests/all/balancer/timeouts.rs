//! Timeouts of connections, and the cost of waiting for them.

use throng_balance::shard_over_driver::BalanceCommand;
use throng_balance::{BackendReport, Failure, Settings, Timeouts};
use throng_sim::balance::{PeerEnd, Script};

use super::{
    HOUR, accepted, assert_nothing_is_held, close_of_balancer, close_of_client, masked, open, secs,
    unmasked, upgrade,
};

fn with(timeouts: Timeouts) -> Settings {
    Settings { timeouts, ..Settings::default() }
}

#[test]
fn a_silent_tunnel_is_closed_with_1001_and_traffic_either_way_keeps_it() {
    let mut script = Script::new(1, with(Timeouts { tunnel: HOUR, ..Timeouts::default() }));
    let (client, server) = open(&mut script);
    for turn in 0..6 {
        script.run(HOUR - secs(1));
        if turn % 2 == 0 {
            script.send(server, &unmasked("hello"));
            assert_eq!(script.receive(client), unmasked("hello"));
        } else {
            script.send(client, &masked("hello"));
            assert_eq!(script.receive(server), masked("hello"));
        }
    }
    script.run(HOUR - secs(1));
    assert_eq!(script.receive(client), b"");
    script.run(secs(3));
    assert_eq!(script.receive(client), close_of_balancer(1001));
    script.send(client, &close_of_client(1001));
    assert_eq!(script.receive(server), close_of_client(1001));
    assert_eq!(
        (script.end(client), script.end(server)),
        (Some(PeerEnd::Finished), Some(PeerEnd::Finished))
    );
    script.close(client);
    script.close(server);
    assert_nothing_is_held(&mut script);
}

#[test]
fn a_shorter_timeout_of_tunnels_holds_for_those_that_are_open() {
    let mut script = Script::new(1, Settings::default());
    let (client, _server) = open(&mut script);
    script.run(secs(100));
    script.configure(with(Timeouts { tunnel: secs(60), ..Timeouts::default() }));
    script.run(secs(2));
    assert_eq!(script.receive(client), close_of_balancer(1001));
}

#[test]
fn a_longer_timeout_of_tunnels_holds_for_those_that_are_open() {
    let mut script = Script::new(1, with(Timeouts { tunnel: secs(60), ..Timeouts::default() }));
    let (client, _server) = open(&mut script);
    script.configure(with(Timeouts { tunnel: HOUR, ..Timeouts::default() }));
    script.run(HOUR - secs(1));
    assert_eq!(script.receive(client), b"");
    script.run(secs(3));
    assert_eq!(script.receive(client), close_of_balancer(1001));
}

#[test]
fn a_half_closed_tunnel_ends_in_time() {
    let timeouts = Timeouts { half_closed: secs(300), ..Timeouts::default() };
    let mut script = Script::new(1, with(timeouts));
    let (client, server) = open(&mut script);
    script.finish(client);
    script.run(secs(299));
    assert_eq!(script.metrics().tunnels, 1);
    script.run(secs(3));
    assert_eq!(script.end(server), Some(PeerEnd::Finished));
    assert_nothing_is_held(&mut script);
}

/// The cost of a sweep depends on the due timeouts, and not on the number of tunnels.
#[test]
fn idle_tunnels_are_hardly_looked_at_however_many_they_are() {
    let looked_at = |tunnels: usize| {
        let mut script = Script::new(1, Settings::default());
        let mut opened = Vec::new();
        for _ in 0..tunnels {
            opened.push(open(&mut script));
        }
        // A connection that is kept for the next request: sweeps are frequent now.
        let client = script.connect();
        script.send(client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let server = script.accept(0);
        script.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        script.run(secs(20));
        let before = script.audit().deadlines_looked_at;
        script.run(secs(40));
        assert_eq!(script.audit().sides, 2 * tunnels);
        script.audit().deadlines_looked_at - before
    };
    assert_eq!((looked_at(10), looked_at(1000)), (0, 0), "none was due");
}

/// A client that sends its whole request before it reads still gets the early answer.
#[test]
fn a_client_that_uploads_on_after_a_refusal_gets_it() {
    let mut script = Script::new(1, Settings { max_body: 10, ..Settings::default() });
    let client = script.connect();
    script.send(client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    for _ in 0..20 {
        script.run(secs(1));
        script.send(client, b"more of the body");
    }
    assert!(script.receive_text(client).starts_with("HTTP/1.1 413 "));
    assert_eq!(script.end(client), Some(PeerEnd::Finished));
    // But not forever.
    for _ in 0..20 {
        script.run(secs(1));
        script.try_send(client, b"more of the body");
    }
    assert_eq!(script.end(client), Some(PeerEnd::Reset));
    assert_nothing_is_held(&mut script);
}

#[test]
fn a_client_that_is_silent_after_a_refusal_is_closed_soon() {
    let mut script = Script::new(1, Settings { max_body: 10, ..Settings::default() });
    let client = script.connect();
    script.send(client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    script.run(secs(3));
    assert!(script.receive_text(client).starts_with("HTTP/1.1 413 "));
    assert_nothing_is_held(&mut script);
}

/// A request has the timeout of a response; a handshake has the timeout of an upgrade.
#[test]
fn a_backend_that_never_answers_is_504_when_its_time_is_over() {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    for (request, response, upgrade) in [(request, secs(10), HOUR), (upgrade(), HOUR, secs(10))] {
        let timeouts = Timeouts { response, upgrade, ..Timeouts::default() };
        let mut script = Script::new(1, Settings { retries: 0, ..with(timeouts) });
        let client = script.connect();
        script.send(client, &request);
        let _server = script.accept(0);
        script.run(secs(9));
        assert_eq!(script.receive_text(client), "");
        script.run(secs(2));
        let answer = script.receive_text(client);
        assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
        let reports: Vec<BackendReport> = script.reports.try_iter().collect();
        assert!(
            matches!(
                &reports[..],
                [BackendReport::Failed { failure: Failure::ResponseTimeout, .. }]
            ),
            "{reports:?}"
        );
        assert_eq!(script.backend(0).requests() + script.backend(0).handshakes(), 0);
    }
}

#[test]
fn a_client_that_does_not_finish_its_head_is_answered_with_408() {
    let mut script = Script::new(1, with(Timeouts { head: secs(10), ..Timeouts::default() }));
    let client = script.connect();
    script.send(client, b"GET /");
    script.run(secs(9));
    assert_eq!(script.receive_text(client), "");
    script.run(secs(2));
    let answer = script.receive_text(client);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_eq!(script.try_accept(0), None);
    script.close(client);
    script.run(secs(10));
    assert_nothing_is_held(&mut script);
}

#[test]
fn the_time_of_a_first_head_runs_since_the_accept_and_that_of_later_ones_since_their_first_byte() {
    let mut script = Script::new(1, with(Timeouts { head: secs(10), ..Timeouts::default() }));
    let client = script.connect();
    script.run(secs(6));
    script.send(client, b"GET /");
    script.run(secs(5));
    assert!(script.receive_text(client).starts_with("HTTP/1.1 408 "));
    // A client that has sent nothing gets no response.
    let silent = script.connect();
    script.run(secs(11));
    assert_eq!(script.receive_text(silent), "");
    assert_eq!(script.end(silent), Some(PeerEnd::Finished));
    let client = script.connect();
    script.send(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let server = script.accept(0);
    script.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    script.run(secs(20));
    assert!(script.receive_text(client).starts_with("HTTP/1.1 200 "));
    script.send(client, b"GET /");
    script.run(secs(9));
    assert_eq!(script.receive_text(client), "");
    script.run(secs(2));
    assert!(script.receive_text(client).starts_with("HTTP/1.1 408 "));
}

#[test]
fn rfc9112_9_6_a_client_that_announced_its_last_request_is_closed_with_its_response() {
    let mut script = Script::new(1, Settings::default());
    let client = script.connect();
    script.send(client, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let server = script.accept(0);
    script.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let answer = script.receive_text(client);
    assert!(answer.contains("Connection: close\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(script.end(client), Some(PeerEnd::Finished));
    // It does not wait for the end of the client's stream.
    assert_eq!(script.metrics().connections, 0);
}

#[test]
fn requests_that_came_before_the_end_of_the_stream_are_answered() {
    const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    // After the whole requests the client sends half a request, or a body that never ends, or
    // nothing.
    let half_a_body = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf";
    for rest in ["", "GET /ha", half_a_body] {
        let mut script = Script::new(1, Settings::default());
        let client = script.connect();
        script.send(client, format!("{GET}{GET}{GET}{rest}").as_bytes());
        script.finish(client);
        let server = script.accept(0);
        for request in 0..3 {
            assert_eq!(script.receive_text(client), "", "{rest}, before {request}");
            script.send(server, answer);
            assert!(script.receive_text(client).starts_with("HTTP/1.1 200 "), "{rest}, {request}");
        }
        assert_eq!(script.end(client), Some(PeerEnd::Finished), "{rest}");
        assert_eq!(script.metrics().connections, 0, "{rest}");
        // No backend receives a request that its client cannot finish.
        let requests = script.receive_text(server);
        assert_eq!((requests.matches("GET ").count(), requests.contains("POST ")), (3, false));
        assert_eq!(script.end(server), None, "{rest}");
    }
}

#[test]
fn a_handshake_that_gets_no_place_in_time_is_503() {
    let timeouts = Timeouts { queue: secs(10), upgrade: HOUR, ..Timeouts::default() };
    let mut script = Script::new(1, Settings { max_handshakes: 1, ..with(timeouts) });
    let (first, second) = (script.connect(), script.connect());
    script.send(first, &upgrade());
    let server = script.accept(0);
    script.send(second, &upgrade());
    script.run(secs(9));
    assert_eq!(script.receive_text(second), "");
    script.run(secs(2));
    let answer = script.receive_text(second);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("busy"), "{answer}");
    script.send(server, accepted().as_bytes());
    assert!(script.receive_text(first).starts_with("HTTP/1.1 101 "));
}

#[test]
fn shutting_down_sends_1001_to_all_and_resets_clients_that_do_not_answer() {
    let mut script = Script::new(1, with(Timeouts { close: HOUR, ..Timeouts::default() }));
    let (polite, its_server) = open(&mut script);
    let (unresponsive, _) = open(&mut script);
    script.command(BalanceCommand::ShutDown {
        window: secs(2),
        deadline: secs(10),
        hand_over: false,
    });
    script.run(secs(3));
    assert_eq!(script.receive(polite), close_of_balancer(1001));
    script.send(polite, &close_of_client(1001));
    assert_eq!(script.receive(its_server), close_of_client(1001));
    assert_eq!(script.end(polite), Some(PeerEnd::Finished));
    script.run(secs(6));
    assert_eq!(script.receive(unresponsive), close_of_balancer(1001));
    assert_eq!(script.end(unresponsive), None);
    script.run(secs(2));
    assert!(script.end(unresponsive).is_some());
}
