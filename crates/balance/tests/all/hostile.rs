//! Hostile or slow clients and backends do not affect others.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use throng_balance::{CloseOrder, Closing, Settings, Sticky, Timeouts};

use crate::support::{Balancer, Scripted, TIMEOUT, accepted, upgrade};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Longer than any test waits, so a test fails if only a timeout would end the connection.
const FOR_EVER: Duration = Duration::from_secs(3600);

fn with(timeouts: Timeouts) -> Settings {
    Settings { timeouts, ..Settings::default() }
}

#[test]
fn a_slow_upload_is_answered_as_any_other() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ");
    let mut server = backend.accept();
    server.head();
    assert_eq!(server.exactly(5), b"half ");
    client.send(b"later");
    assert_eq!(server.exactly(5), b"later");
    server.send(OK);
    assert_eq!(client.answer().1, "ok");
}

/// A client bound to a full backend waits for it, and does not delay the clients of other backends.
#[test]
fn a_full_backend_holds_up_only_its_own_clients() {
    let (one, other) = (Scripted::bind(), Scripted::bind());
    let settings =
        Settings { max_handshakes: 1, sticky: Sticky::Query("to".into()), ..Settings::default() };
    let balancer = Balancer::start(&[one.address, other.address], settings);
    // Plain requests show which value leads to which backend.
    let names: Vec<_> = (0..16).map(|n| format!("/?to={n}")).collect();
    let mut of = [None, None];
    let backends = [&one, &other];
    for name in &names {
        let mut client = balancer.connect();
        client.send(format!("GET {name} HTTP/1.0\r\n\r\n").as_bytes());
        balancer.until("it is passed on", |balancer| {
            balancer.backends.iter().any(|backend| backend.requests() > 0)
        });
        let at = balancer.backends.iter().position(|backend| backend.requests() > 0).unwrap();
        let mut server = backends[at].accept();
        server.head();
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        client.rest();
        of[at].get_or_insert(name.clone());
        balancer.assert_nothing_is_held();
    }
    let [Some(slow), Some(quick)] = of else { panic!("all 16 belong to one: {of:?}") };
    let mut clients = Vec::new();
    let mut ask = |name: &str| {
        let mut client = balancer.connect();
        client.send(&upgrade(name));
        clients.push(client);
    };
    let until_waiting = |count| {
        balancer.until("it waits", |balancer| balancer.shards.metrics().queued == count);
    };
    ask(&slow);
    let mut held = one.accept();
    held.head();
    ask(&quick);
    let mut waited_for = other.accept();
    waited_for.head();
    // Both are full, and one client waits for each; the client of the slow one waits longer.
    ask(&slow);
    until_waiting(1);
    ask(&quick);
    until_waiting(2);
    waited_for.send(&accepted());
    let mut next = other.accept();
    assert!(next.head().contains(&quick));
    next.send(&accepted());
    assert!(clients[3].head().starts_with("HTTP/1.1 101 "));
}

/// Clients that vanish while they wait are neither counted nor served.
#[test]
fn clients_that_vanish_from_the_queue_are_not_counted() {
    let backend = Scripted::bind();
    let settings = Settings { max_handshakes: 1, ..Settings::default() };
    let balancer = Balancer::start(&[backend.address], settings);
    let mut clients: Vec<_> = (0..20).map(|_| balancer.connect()).collect();
    for client in &mut clients {
        client.send(&upgrade("/"));
    }
    let mut server = backend.accept();
    server.head();
    balancer.until("19 wait", |balancer| balancer.shards.metrics().queued == 19);
    clients.truncate(2);
    balancer.until("one waits", |balancer| balancer.shards.metrics().queued == 1);
    drop(clients);
    balancer.assert_nothing_is_held();
    balancer.until("no client waits", |balancer| balancer.shards.metrics().queued == 0);
    assert!(server.is_at_end());
}

/// A permit is for the handshake. A client that reads a refusal slowly must not keep it.
#[test]
fn a_handshake_that_is_declined_gives_its_place_back_at_once() {
    let backend = Scripted::bind();
    let settings = Settings { max_handshakes: 1, ..Settings::default() };
    let balancer = Balancer::start(&[backend.address], settings);
    let mut slow = balancer.connect();
    slow.send(&upgrade("/large"));
    let mut server = backend.accept();
    server.head();
    server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegin");
    slow.head();
    let mut next = balancer.connect();
    next.send(GET);
    let mut other = backend.accept();
    other.head();
    other.send(OK);
    assert_eq!(next.answer().1, "ok");
}

/// A backend that refuses the rest of an upload resets the connection, and its answer may get lost.
/// This must not affect other clients.
#[test]
fn an_upload_that_is_reset_is_not_held_against_the_backend() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    let mut server = backend.accept();
    server.head();
    client.send(&[b'x'; 50_000]);
    // Unread input turns the close into a reset.
    server.stream.peek(&mut [0]).unwrap();
    drop(server);
    assert!(client.answer().0.starts_with("HTTP/1.1 502 "));
    assert!(balancer.reports.try_recv().is_err());
    // A request that the backend received whole and did not answer is reported.
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    let mut server = backend.accept();
    server.head();
    server.exactly(2);
    drop(server);
    assert!(client.answer().0.starts_with("HTTP/1.1 502 "));
    assert!(balancer.reports.recv_timeout(TIMEOUT).is_ok());
}

/// An interim answer is not the answer: a failure after it is reported.
#[test]
fn a_failure_behind_an_interim_answer_is_reported() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    let mut server = backend.accept();
    server.head();
    server.send(b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 100 "));
    client.send(b"hi");
    server.exactly(2);
    drop(server);
    assert!(client.answer().0.starts_with("HTTP/1.1 502 "));
    balancer.assert_nothing_is_held();
}

/// A client of HTTP/1.0 gets no interim answers. Their number is limited for every client.
#[test]
fn interim_answers_are_limited_in_number() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    for (version, interim, status) in
        [("1.1", 16, "204"), ("1.1", 17, "502"), ("1.0", 16, "204"), ("1.0", 17, "502")]
    {
        let mut client = balancer.connect();
        client.send(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n").as_bytes());
        let mut server = backend.accept();
        server.head();
        let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(interim);
        server.send(
            format!("{hints}HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").as_bytes(),
        );
        let final_head = std::iter::from_fn(|| Some(client.head()))
            .find(|head| !head.starts_with("HTTP/1.1 103 "));
        let head = final_head.unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{version} {interim}: {head}");
    }
    balancer.assert_nothing_is_held();
}

/// Timeouts so long that no silent side of a tunnel is ended.
fn patient() -> Timeouts {
    Timeouts { close: FOR_EVER, half_closed: FOR_EVER, ..Timeouts::default() }
}

/// The balancer's Close frame answers the client's, so there is nothing left to wait for.
#[test]
fn a_client_that_is_closing_already_is_not_waited_for() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], with(patient()));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| backend.open());
        let mut client = balancer.open();
        let mut server = server.join().unwrap();
        client.send_close(1000);
        assert_eq!(server.frame().0, 8);
        let closing = Closing {
            code: 1012,
            rate: 1000,
            order: CloseOrder::Shuffled,
            deadline: None,
            later: true,
        };
        balancer.shards.close_tunnels(&balancer.backends[0], &closing, None);
        assert_eq!(client.close_code(), 1012);
        assert!(client.is_at_end());
        assert!(server.is_at_end());
    });
    balancer.assert_nothing_is_held();
}

/// Many servers end the stream in answer to a Close frame. The balancer does not count that as a
/// loss, and ends the client's tunnel at once.
#[test]
fn a_backend_that_answers_a_close_frame_with_the_end_is_not_lost() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], with(patient()));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| backend.open());
        let mut client = balancer.open();
        let mut server = server.join().unwrap();
        client.send_close(1000);
        assert_eq!(server.frame().0, 8);
        drop(server);
        assert_eq!(client.close_code(), 1012);
        assert!(client.is_at_end());
    });
    balancer.assert_nothing_is_held();
    assert_eq!(balancer.backends[0].totals().lost.load(Relaxed), 0);
}

/// Two answers to one request, split so that the first read ends with the first answer: the second
/// must reach no client.
#[test]
fn a_second_answer_reaches_no_client() {
    const READ_AT_ONCE: usize = 64 << 10;
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    for _ in 0..10 {
        let mut client = balancer.connect();
        client.send(&[GET, b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n"].concat());
        let mut server = backend.accept();
        server.head();
        let mut answers = b"HTTP/1.1 200 OK\r\nContent-Length: 65493\r\n\r\n".to_vec();
        answers.resize(READ_AT_ONCE, b'x');
        answers.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison");
        server.send(&answers);
        assert_eq!(client.answer().1.len(), 65493);
        let mut next = backend.accept();
        assert!(next.head().starts_with("GET /next "));
        next.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        assert_eq!(client.answer().1, "ok");
    }
}

/// Some servers do not read the body of a GET and take it for the next request: its answer would go
/// to the next client.
#[test]
fn a_backend_connection_that_carried_the_body_of_a_get_is_not_used_again() {
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "get", "FOO"] {
        let backend = Scripted::bind();
        let balancer = Balancer::start(&[backend.address], Settings::default());
        let smuggled = "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n";
        let length = smuggled.len();
        let request =
            format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{smuggled}");
        let mut attacker = balancer.connect();
        attacker.send(request.as_bytes());
        let mut server = backend.accept();
        assert!(server.head().contains("Connection: close\r\n"), "{method}");
        server.exactly(length);
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(attacker.answer().0.starts_with("HTTP/1.1 200 "));
        assert!(server.is_at_end(), "{method}");
        // The client's own connection continues, over a new connection to the backend.
        attacker.send(GET);
        let mut server = backend.accept();
        server.head();
        server.send(OK);
        assert_eq!(attacker.answer().1, "ok");
    }
}

/// A body that a backend did not read becomes its next request, for any method, and the response to
/// it must not reach another client. The client's own next request uses the connection again.
#[test]
fn a_backend_connection_that_carried_a_body_serves_no_other_client() {
    for method in ["POST", "PUT", "PATCH"] {
        let backend = Scripted::bind();
        let balancer = Balancer::start(&[backend.address], Settings::default());
        let smuggled = "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n";
        let length = smuggled.len();
        let request =
            format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{smuggled}");
        let mut attacker = balancer.connect();
        attacker.send(request.as_bytes());
        let mut poisoned = backend.accept();
        poisoned.head();
        // The backend answers without having read the body.
        poisoned.send(OK);
        assert_eq!(attacker.answer().1, "ok");
        let mut victim = balancer.connect();
        victim.send(GET);
        let mut clean = backend.accept();
        clean.head();
        poisoned.exactly(length);
        clean.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine");
        assert_eq!(victim.answer().1, "mine", "{method}");
        attacker.send(request.as_bytes());
        poisoned.head();
        poisoned.send(OK);
        assert_eq!(attacker.answer().1, "ok");
        // Once its client has gone, the connection serves no client.
        attacker.send(b"GET / HTTP/1.0\r\n\r\n");
        poisoned.exactly(length);
        poisoned.head();
        poisoned.send(OK);
        attacker.rest();
        assert!(poisoned.is_at_end(), "{method}");
    }
}

/// Other clients must not use the connection, and its own client will not return.
#[test]
fn a_backend_connection_that_carried_a_body_ends_with_its_client() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok";
    let mut clients = [balancer.connect(), balancer.connect()];
    let mut servers = Vec::new();
    for client in &mut clients {
        client.send(request);
        let mut server = backend.accept();
        server.head();
        server.exactly(2);
        server.send(OK);
        assert_eq!(client.answer().1, "ok");
        servers.push(server);
    }
    let [one, mut other] = clients;
    drop(one);
    assert!(servers[0].is_at_end());
    // The connection of the other client remains reserved for that client.
    other.send(request);
    servers[1].head();
    servers[1].exactly(2);
    servers[1].send(OK);
    assert_eq!(other.answer().1, "ok");
    drop(other);
    assert!(servers[1].is_at_end());
    balancer.assert_nothing_is_held();
}

/// Its own client sends no more requests, even if its tunnel lasts long.
#[test]
fn a_backend_connection_that_carried_a_body_ends_when_its_client_becomes_a_tunnel() {
    let backend = Scripted::bind();
    let timeouts = Timeouts { keep_alive: FOR_EVER, ..Timeouts::default() };
    let settings = Settings { timeouts, ..Settings::default() };
    let balancer = Balancer::start(&[backend.address], settings);
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
    let mut carrier = backend.accept();
    carrier.head();
    carrier.exactly(2);
    carrier.send(OK);
    assert_eq!(client.answer().1, "ok");
    client.send(&upgrade("/"));
    let mut server = backend.accept();
    server.head();
    server.send(&accepted());
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    assert!(carrier.is_at_end());
    client.send(b"\x81\x82\0\0\0\0hi");
    server.exactly(8);
    drop(client);
    assert!(server.is_at_end());
    drop(server);
    balancer.assert_nothing_is_held();
}

/// If the end of an answer depends on how the backend understood the request, the next client gets
/// another connection.
#[test]
fn a_backend_connection_whose_answer_may_go_on_is_not_used_again() {
    let table: &[(&[u8], &str)] = &[
        (b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK\r\nContent-Length: 5"),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK\r\nTransfer-Encoding: chunked"),
        (GET, "304 Not Modified\r\nContent-Length: 5"),
    ];
    for (request, answer) in table {
        let backend = Scripted::bind();
        let balancer = Balancer::start(&[backend.address], Settings::default());
        let mut client = balancer.connect();
        client.send(request);
        let mut server = backend.accept();
        server.head();
        server.send(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes());
        client.head();
        assert!(server.is_at_end(), "{answer}");
    }
}

/// The answer begins before the backend has the whole request, so it may not have read the rest.
#[test]
fn a_backend_connection_that_answered_early_is_not_used_again() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
    let mut server = backend.accept();
    server.head();
    server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
    client.head();
    client.send(b"dy");
    assert_eq!(server.exactly(4), b"body");
    server.send(b"ok");
    assert_eq!(client.exactly(2), b"ok");
    assert!(server.is_at_end());
}
