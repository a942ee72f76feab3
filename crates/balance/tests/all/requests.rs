//! Requests: forwarded and answered, retried, refused; and the handling of broken backends and
//! clients.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use throng_balance::shard_over_driver::BalanceCommand;
use throng_balance::{
    Backend, BackendReport, Configuration, Failure, SameSite, Settings, State, Sticky, Target,
    Timeouts,
};

use crate::support::{
    Balancer, ByHand, KEY, Peer, Scripted, TIMEOUT, accepted, unused_address, upgrade,
};

const GET: &[u8] = b"GET /a?b=c HTTP/1.1\r\nHost: example.com\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn one_failure(balancer: &Balancer) -> Failure {
    let BackendReport::Failed { backend, failure, .. } =
        balancer.reports.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(backend.address(), balancer.backends[0].address());
    failure
}

#[test]
fn requests_on_one_connection_share_a_kept_backend_connection() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(GET);
    let mut server = backend.accept();
    for turn in 0..3 {
        let head = server.head();
        assert!(head.starts_with("GET /a?b=c HTTP/1.1\r\nHost: example.com\r\n"), "{head}");
        server.send(OK);
        let (head, body) = client.answer();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body == "ok", "{head}{body}");
        assert!(!head.contains("close"), "{head}");
        if turn < 2 {
            client.send(GET);
        }
    }
    drop(client);
    balancer.assert_nothing_is_held();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(&[GET, GET, GET].concat());
    let mut server = backend.accept();
    for turn in 0..3 {
        server.head();
        server.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{turn}").as_bytes());
    }
    for turn in 0..3 {
        assert_eq!(client.answer().1, turn.to_string());
    }
}

#[test]
fn bodies_pass_as_they_come_in_chunks_and_by_length() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    let mut server = backend.accept();
    let head = server.head();
    assert!(head.contains("Transfer-Encoding: chunked\r\n"), "{head}");
    assert_eq!(server.exactly(8), b"3\r\nabc\r\n");
    client.send(b"2;x=y\r\nde\r\n0\r\nChecksum: 1\r\n\r\n");
    assert_eq!(server.exactly(25), b"2\r\nde\r\n0\r\nChecksum: 1\r\n\r\n".as_slice());
    server.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n");
    assert!(client.head().contains("Transfer-Encoding: chunked\r\n"));
    assert_eq!(client.exactly(9), b"4\r\nwxyz\r\n");
    server.send(b"0\r\n\r\n");
    assert_eq!(client.exactly(5), b"0\r\n\r\n");
    // The connection continues, with a Content-Length this time.
    client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc");
    server.head();
    assert_eq!(server.exactly(3), b"abc");
    client.send(b"def");
    assert_eq!(server.exactly(3), b"def");
    server.send(OK);
    assert_eq!(client.answer().1, "ok");
}

/// The size of a backend's answer is up to its operator, and costs no memory.
#[test]
fn max_body_limits_requests_and_no_answers() {
    let backend = Scripted::bind();
    let settings = Settings { max_body: 10, ..Settings::default() };
    let balancer = Balancer::start(&[backend.address], settings);
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello world",
    ] {
        let mut client = balancer.connect();
        client.send(
            b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 10\r\n\r\n\
            0123456789",
        );
        let mut server = backend.accept();
        server.head();
        assert_eq!(server.exactly(10), b"0123456789");
        server.send(answer);
        drop(server);
        let got = String::from_utf8(client.rest()).unwrap();
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.contains("hello world"), "{got}");
    }
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world");
    assert!(client.head().starts_with("HTTP/1.1 413 "));
}

#[test]
fn an_answer_until_close_is_chunked_for_http11_and_ends_the_connection_for_http10() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    for (request, whole) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", "abc"),
    ] {
        let mut client = balancer.connect();
        client.send(request.as_bytes());
        let mut server = backend.accept();
        server.head();
        server.send(b"HTTP/1.1 200 OK\r\n\r\nabc");
        drop(server);
        client.head();
        assert_eq!(client.exactly(whole.len()), whole.as_bytes());
        if request.contains("1.0") {
            assert!(client.is_at_end());
        }
    }
}

#[test]
fn a_refused_connection_is_tried_on_another_backend() {
    let backend = Scripted::bind();
    let settings = Settings { pick: throng_balance::Pick::RoundRobin, ..Settings::default() };
    let balancer = Balancer::start(&[unused_address(), backend.address], settings);
    for _ in 0..2 {
        let mut client = balancer.connect();
        // A body does not prevent a retry, because no backend has read any of it.
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
        let mut server = backend.accept();
        server.head();
        assert_eq!(server.exactly(2), b"hi");
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        assert_eq!(client.answer().1, "ok");
    }
    assert_eq!(one_failure(&balancer), Failure::Refused);
}

#[test]
fn a_backend_that_ends_before_its_answer_is_asked_again_elsewhere_only_if_that_does_no_harm() {
    let (one, other) = (Scripted::bind(), Scripted::bind());
    let settings = Settings { pick: throng_balance::Pick::RoundRobin, ..Settings::default() };
    let balancer = Balancer::start(&[one.address, other.address], settings);
    // The turns may begin at any backend; here they begin at the first.
    balancer.backends[1].set_state(State::Down);
    let mut client = balancer.connect();
    client.send(GET);
    let mut failing = one.accept();
    failing.head();
    balancer.backends[1].set_state(State::Up);
    drop(failing);
    let mut server = other.accept();
    server.head();
    server.send(OK);
    assert_eq!(client.answer().1, "ok");
    // A backend may have carried out a POST.
    balancer.backends[1].set_state(State::Down);
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    drop_after_head(&one);
    let (head, body) = client.answer();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert!(body.contains("ended the connection"), "{body}");
}

fn drop_after_head(backend: &Scripted) {
    backend.accept().head();
}

/// An idle connection may end just as a request is sent on it; that is not the backend's fault.
#[test]
fn a_kept_connection_that_ends_is_replaced_without_a_failure() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(GET);
    let mut server = backend.accept();
    server.head();
    server.send(OK);
    client.answer();
    client.send(GET);
    server.head();
    drop(server);
    let mut server = backend.accept();
    server.head();
    server.send(OK);
    assert_eq!(client.answer().1, "ok");
    assert!(balancer.reports.try_recv().is_err());
}

#[test]
fn without_a_backend_to_ask_the_answer_is_503() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    balancer.backends[0].set_state(State::Draining);
    let mut client = balancer.connect();
    client.send(GET);
    let (head, body) = client.answer();
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{head}");
    assert_eq!(body, "there is no backend\n");
    assert!(client.is_at_end());
}

/// A backend that is down may be up by now: a client is sent to it rather than refused, first to
/// the backend that accepted connections most recently.
#[test]
fn where_no_backend_is_up_one_that_is_down_is_asked() {
    let backend = Scripted::bind();
    let list = [unused_address(), unused_address(), backend.address, unused_address()];
    let balancer = Balancer::start(&list, Settings { retries: 0, ..Settings::default() });
    for other in &balancer.backends {
        other.set_state(State::Down);
    }
    let is_served = |request: &[u8]| {
        let mut client = balancer.connect();
        client.send(request);
        std::thread::scope(|scope| {
            let head = scope.spawn(|| client.head());
            while !head.is_finished() {
                if let Some(mut server) = backend.try_accept() {
                    server.head();
                    server.send(OK);
                }
                std::thread::yield_now();
            }
            head.join().unwrap().starts_with("HTTP/1.1 200 ")
        })
    };
    // The pick is random among backends that have not refused a connection yet, so each of the
    // three others is tried in vain at most once.
    let refused = (0..20).filter(|_| !is_served(GET)).count();
    assert!(refused <= 3, "{refused} of 20");
    let refusals: Vec<u32> = balancer.backends.iter().map(|backend| backend.refusals()).collect();
    assert_eq!((refusals[2], refusals.iter().sum::<u32>() as usize), (0, refused));
}

#[test]
fn an_unused_address_is_502() {
    let balancer = Balancer::start(&[unused_address()], Settings::default());
    let mut client = balancer.connect();
    client.send(GET);
    let (head, body) = client.answer();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert_eq!(body, "the backend refused the connection\n");
}

/// Answers of backends, each with a word from the reason for the 502.
#[test]
fn a_connect_that_fails_at_once_is_the_backends_failure() {
    let unreachable = "127.255.255.255:9".parse().unwrap();
    let balancer = Balancer::start(&[unreachable], Settings::default());
    let mut client = balancer.connect();
    client.send(GET);
    let (head, body) = client.answer();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}{body}");
    assert_eq!(one_failure(&balancer), Failure::Refused);
    assert_eq!(balancer.backends[0].totals().failures.load(Relaxed), 1);
}

/// The source address is from a network reserved for documentation: no host has it, so no local
/// port can be bound there.
#[test]
fn a_connect_that_fails_for_want_of_a_port_is_ours() {
    let backend = Scripted::bind();
    let settings =
        Settings { sources: ["192.0.2.1".parse().unwrap()].into(), ..Settings::default() };
    let balancer = Balancer::start(&[backend.address], settings);
    let mut client = balancer.connect();
    client.send(GET);
    let (head, body) = client.answer();
    assert!(head.starts_with("HTTP/1.1 503 ") && body.contains("no port"), "{head}{body}");
    assert_eq!(one_failure(&balancer), Failure::NoPort);
    assert_eq!(balancer.backends[0].totals().failures.load(Relaxed), 0);
    balancer.until("it is counted as ours", |it| it.shards.metrics().own_failures == 1);
}

#[test]
fn answers_that_break_a_rule_are_502_and_their_connections_are_not_used_again() {
    let accept = String::from_utf8(accepted()).unwrap();
    let table: &[(&[u8], String, &str)] = &[
        (GET, "SSH-2.0-OpenSSH\r\n\r\n".into(), "not valid HTTP"),
        (
            GET,
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx".into(),
            "Content-Length",
        ),
        (
            GET,
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx".into(),
            "not valid HTTP",
        ),
        (GET, "HTTP/1.1 200 OK\r\nA : b\r\n\r\n".into(), "not valid HTTP"),
        (GET, accept.clone(), "asked for no upgrade"),
        (
            &upgrade("/"),
            accept.replace("Accept: ", "Accept: x"),
            "does not answer the client's key",
        ),
        (&upgrade("/"), accept.replace("Upgrade: websocket\r\n", ""), "no Upgrade: websocket"),
        (&upgrade("/"), accept.replace("HTTP/1.1", "HTTP/1.0"), "HTTP/1.0"),
    ];
    for (request, answer, why) in table {
        let backend = Scripted::bind();
        let balancer = Balancer::start(&[backend.address], Settings::default());
        let mut client = balancer.connect();
        client.send(request);
        let mut server = backend.accept();
        server.head();
        server.send(answer.as_bytes());
        let (head, body) = client.answer();
        assert!(head.starts_with("HTTP/1.1 502 ") && body.contains(why), "{answer}: {head}{body}");
        assert!(server.is_at_end());
        balancer.assert_nothing_is_held();
    }
}

/// Bytes before the 101 are the head of an answer, or garbage, but never frames.
#[test]
fn a_body_before_the_101_is_garbage() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(&upgrade("/"));
    let mut server = backend.accept();
    server.head();
    // Sent in one piece: the first bytes alone get the connection reset, and a second send would
    // fail.
    server.send(&[&b"\x81\x02hi"[..], &accepted()].concat());
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
}

#[test]
fn a_refused_handshake_is_an_answer_like_any_other() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(&upgrade("/"));
    let mut server = backend.accept();
    server.head();
    server.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    let (head, body) = client.answer();
    assert!(head.starts_with("HTTP/1.1 403 ") && body == "no", "{head}");
    balancer.until("the request is over", |balancer| balancer.backends[0].requests() == 0);
    assert_eq!(balancer.backends[0].handshakes(), 0);
}

#[test]
fn an_answer_cut_short_is_cut_short_for_the_client_too() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf",
    ] {
        let backend = Scripted::bind();
        let balancer = Balancer::start(&[backend.address], Settings::default());
        let mut client = balancer.connect();
        client.send(GET);
        let mut server = backend.accept();
        server.head();
        server.send(answer.as_bytes());
        client.head();
        drop(server);
        let rest = String::from_utf8(client.rest()).unwrap();
        assert!(!rest.contains("0\r\n\r\n") && rest.len() < 10, "{rest:?}");
        balancer.assert_nothing_is_held();
    }
}

#[test]
fn interim_answers_pass_and_expect_continue_works() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    let mut server = backend.accept();
    assert!(server.head().contains("Expect: 100-continue"));
    server.send(b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 100 "));
    client.send(b"hi");
    assert_eq!(server.exactly(2), b"hi");
    server.send(OK);
    assert_eq!(client.answer().1, "ok");
}

#[test]
fn an_early_answer_to_a_long_body_ends_the_connection() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\npart");
    let mut server = backend.accept();
    server.head();
    server.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n");
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 413 ") && head.contains("Connection: close"), "{head}");
    assert!(client.is_at_end());
    assert!(server.rest().len() < 100);
}

#[test]
fn requests_that_break_a_rule_reach_no_backend() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "400"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "400",
        ),
        (b"GET / HTTP/1.1\nHost: a\n\n", "400"),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", "501"),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", "505"),
    ] {
        let mut client = balancer.connect();
        client.send(request);
        let (head, _) = client.answer();
        let line = format!("HTTP/1.1 {status} ");
        assert!(head.starts_with(&line), "{:?}: {head}", String::from_utf8_lossy(request));
        assert!(client.is_at_end());
    }
    let connects = &balancer.backends[0].totals().connects;
    assert_eq!(connects.load(Relaxed), 0);
    balancer.assert_nothing_is_held();
}

/// Allows one handshake at a time, and this long a wait for a place.
fn one_at_a_time(queue: Duration) -> Settings {
    let timeouts = Timeouts { queue, ..Timeouts::default() };
    Settings { max_handshakes: 1, timeouts, ..Settings::default() }
}

#[test]
fn a_handshake_beyond_the_cap_waits_for_a_place() {
    let backend = Scripted::bind();
    let settings = one_at_a_time(Duration::from_secs(3600));
    let balancer = Balancer::start(&[backend.address], settings);
    let (mut first, mut second) = (balancer.connect(), balancer.connect());
    first.send(&upgrade("/"));
    let mut server = backend.accept();
    server.head();
    second.send(&upgrade("/"));
    balancer.until("it waits", |balancer| balancer.shards.metrics().queued == 1);
    assert_eq!(balancer.backends[0].handshakes(), 1);
    server.send(&accepted());
    first.head();
    let mut server = backend.accept();
    server.head();
    server.send(&accepted());
    second.head();
}

#[test]
fn a_cookie_binds_a_client_until_its_backend_is_gone() {
    let (one, other) = (Scripted::bind(), Scripted::bind());
    let settings = Settings { sticky: Sticky::Cookie("node".into()), ..Settings::default() };
    let balancer = Balancer::start(&[one.address, other.address], settings);
    let answer = |address| {
        let backend = if address == one.address { &one } else { &other };
        let mut server = backend.accept();
        let head = server.head();
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        head
    };
    let mut client = balancer.connect();
    client.send(GET);
    balancer.until("it is picked for", |balancer| {
        balancer.backends.iter().any(|backend| backend.requests() > 0)
    });
    let bound = balancer.backends.iter().position(|backend| backend.requests() > 0).unwrap();
    answer(balancer.backends[bound].address());
    let (head, _) = client.answer();
    let cookie = head.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let again = format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: x=y; {cookie}\r\n\r\n");
    for _ in 0..5 {
        client.send(again.as_bytes());
        answer(balancer.backends[bound].address());
        let (head, _) = client.answer();
        assert!(!head.contains("Set-Cookie"), "{head}");
    }
    balancer.backends[bound].set_state(State::Down);
    client.send(again.as_bytes());
    answer(balancer.backends[1 - bound].address());
    let (head, _) = client.answer();
    assert!(head.contains("Set-Cookie: node="), "{head}");
}

#[test]
fn the_cookie_has_the_same_site_of_the_settings() {
    for (cookie_same_site, attributes) in [
        (SameSite::Lax, "; Path=/; HttpOnly; SameSite=Lax"),
        (SameSite::Strict, "; Path=/; HttpOnly; SameSite=Strict"),
        (SameSite::None, "; Path=/; HttpOnly; SameSite=None; Secure"),
    ] {
        let backend = Scripted::bind();
        let sticky = Sticky::Cookie("node".into());
        let settings = Settings { sticky, cookie_same_site, ..Settings::default() };
        let balancer = Balancer::start(&[backend.address], settings);
        let mut client = balancer.connect();
        client.send(GET);
        let mut server = backend.accept();
        server.head();
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let (head, _) = client.answer();
        let cookie = head.lines().find_map(|line| line.strip_prefix("Set-Cookie: node=")).unwrap();
        assert_eq!(cookie.split_at(16).1, attributes);
    }
}

#[test]
fn forwarded_addresses_are_believed_from_trusted_proxies_only() {
    for (trusted, expected) in
        [("10.0.0.0/8", "127.0.0.1"), ("127.0.0.0/8", "192.0.2.7, 127.0.0.1")]
    {
        let backend = Scripted::bind();
        let settings =
            Settings { trusted_proxies: vec![trusted.parse().unwrap()], ..Settings::default() };
        let balancer = Balancer::start(&[backend.address], settings);
        let mut client = balancer.connect();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n");
        let head = backend.accept().head();
        let line = format!("X-Forwarded-For: {expected}\r\n");
        assert!(head.to_ascii_lowercase().contains(&line.to_ascii_lowercase()), "{head}");
    }
}

#[test]
fn proxy_headers_name_the_client_in_and_out() {
    let backend = Scripted::bind();
    let settings = Settings {
        accept_proxy: true,
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..Settings::default()
    };
    let balancer = Balancer::start_with(1, &[backend.address], settings, true);
    let mut header = Vec::new();
    let source = "192.0.2.7:1234".parse().unwrap();
    throng_proto::proxy_protocol::encode(source, balancer.address, &mut header);
    let mut client = balancer.connect();
    client.send(&header);
    client.send(GET);
    let mut server = backend.accept();
    let mut expected = Vec::new();
    throng_proto::proxy_protocol::encode(source, backend.address, &mut expected);
    assert_eq!(server.exactly(expected.len()), expected);
    let head = server.head();
    assert!(head.contains("192.0.2.7"), "{head}");
    server.send(OK);
    client.answer();
    // The PROXY header names this client, so no other client may use the connection.
    assert!(server.is_at_end());

    let mut untrusted = balancer.connect();
    untrusted.send(GET);
    assert!(untrusted.is_at_end(), "no PROXY header");
}

#[test]
fn clients_beyond_the_limit_are_turned_away() {
    let backend = Scripted::bind();
    let settings = Settings { max_connections: 1, ..Settings::default() };
    let balancer = Balancer::start(&[backend.address], settings);
    let mut client = balancer.connect();
    client.send(GET);
    let mut server = backend.accept();
    server.head();
    let mut other = balancer.connect();
    other.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = other.head();
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nRetry-After: 1\r\n"), "{head}");
    assert!(other.is_at_end(), "no body follows");
    server.send(OK);
    assert_eq!(client.answer().1, "ok");
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_body_takes_its_request_back() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\npart");
    let mut server: Peer = backend.accept();
    server.head();
    drop(client);
    assert!(server.rest().len() < 100);
    balancer.assert_nothing_is_held();
    assert!(balancer.reports.try_recv().is_err(), "not the backend's fault");
}

#[test]
fn the_key_of_the_rfc_is_what_the_backend_sees() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.stream.write_all(&upgrade("/")).unwrap();
    let head = backend.accept().head();
    assert!(head.contains(&format!("Sec-WebSocket-Key: {KEY}\r\n")), "{head}");
}

fn target(backend: Arc<Backend>, name: Option<&str>) -> Target {
    Target {
        backend,
        send_proxy: false,
        tls: None,
        passthrough: Arc::default(),
        name: name.map(Arc::from),
    }
}

/// A configuration with this backend.
fn configuration(backend: SocketAddr, name: Option<&str>, loop_id: Option<&str>) -> Configuration {
    let target = target(Arc::new(Backend::new(backend, 1)), name);
    let configuration = Configuration::new(Settings::default(), vec![target]);
    let loop_id = loop_id.map_or_else(|| Arc::clone(&configuration.loop_id), Arc::from);
    Configuration { loop_id, ..configuration }
}

/// Two balancers are each other's backend.
#[test]
fn rfc8586_a_circle_of_balancers_ends_after_one_round() {
    let one = Balancer::start(&[unused_address()], Settings::default());
    let two = Balancer::start(&[one.address], Settings::default());
    let pools = configuration(two.address, None, None).pools;
    let circle = Configuration { pools, ..one.configuration.clone() };
    one.shards.configure(&Arc::new(circle));
    let answer = |request: &[u8]| {
        let mut client = one.connect();
        client.send(request);
        client.head()
    };
    one.until("the circle is closed", |_| {
        answer(GET).starts_with("HTTP/1.1 508 Loop Detected\r\n")
    });
    let connects = || two.backends[0].totals().connects.load(Relaxed);
    let before = connects();
    assert!(answer(&upgrade("/chat")).starts_with("HTTP/1.1 508 "));
    assert!(answer(GET).starts_with("HTTP/1.1 508 "));
    // At most one round of each.
    assert!(connects() <= before + 2, "{} after {before}", connects());
}

/// With the same id, balancers side by side count as one.
#[test]
fn a_circle_through_balancers_with_one_id_ends_at_the_second() {
    let second = Balancer::of(1, configuration(unused_address(), None, Some("edge")));
    let first = Balancer::of(1, configuration(second.address, None, Some("edge")));
    let mut client = first.connect();
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 508 "));
    first.until("the second has refused it", |_| second.shards.metrics().backend_errors == 1);
}

/// Node leaves the socket of an upgrade to a handler. A handler that answers by hand and keeps the
/// socket reads no further request.
#[test]
fn the_connection_of_a_refused_upgrade_carries_no_other_request() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(&upgrade("/chat"));
    let mut unresponsive = backend.accept();
    unresponsive.head();
    unresponsive.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    assert!(client.answer().0.starts_with("HTTP/1.1 403 "));
    assert!(unresponsive.is_at_end());
    // The client's own connection continues.
    client.send(GET);
    let mut server = backend.accept();
    server.head();
    server.send(OK);
    assert_eq!(client.answer().1, "ok");
}

/// The backend keeps its connections but stops reading them.
#[test]
fn a_backend_whose_reused_connections_time_out_twice_loses_its_idle_ones() {
    const IDLE: usize = 4;
    let backend = Scripted::bind();
    let settings = Settings { retries: 0, ..Settings::default() };
    let mut it = ByHand::new(&[backend.address], settings.clone());
    let ask = |it: &ByHand| {
        let mut client = Peer::new(TcpStream::connect(it.address).unwrap());
        client.send(GET);
        client
    };
    let is_readable = |peer: &Peer| {
        peer.stream.set_nonblocking(true).unwrap();
        let has_bytes = peer.stream.peek(&mut [0]).is_ok();
        peer.stream.set_nonblocking(false).unwrap();
        has_bytes
    };
    let mut clients: Vec<_> = (0..IDLE).map(|_| ask(&it)).collect();
    let mut servers = Vec::new();
    it.turn_until("each request has its connection", |_| {
        servers.extend(backend.try_accept());
        servers.len() == IDLE && servers.iter().all(is_readable)
    });
    for server in &mut servers {
        server.head();
        server.send(OK);
    }
    it.turn_until("all are answered", |_| clients.iter().all(is_readable));
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().1, "ok"));
    let timeouts = |response| Timeouts { response, ..Timeouts::default() };
    let configure = |it: &mut ByHand, response| {
        let settings = Settings { timeouts: timeouts(response), ..settings.clone() };
        let target = target(Arc::clone(&it.backends[0]), None);
        let configuration = Configuration::new(settings, vec![target]);
        it.mailbox.send_always(BalanceCommand::Configure(Arc::new(configuration)));
        it.shard.turn().unwrap();
    };
    configure(&mut it, Duration::from_millis(125));
    for _ in 0..2 {
        let mut client = ask(&it);
        it.turn_until("it has waited in vain", |_| is_readable(&client));
        assert!(client.head().starts_with("HTTP/1.1 504 "));
    }
    assert!(backend.try_accept().is_none(), "both were sent on idle connections");
    configure(&mut it, TIMEOUT);
    let mut client = ask(&it);
    let mut fresh = None;
    it.turn_until("the next one has a new connection", |_| {
        fresh = fresh.take().or_else(|| backend.try_accept());
        fresh.as_ref().is_some_and(is_readable)
    });
    fresh.as_mut().unwrap().send(OK);
    it.turn_until("it is answered", |_| is_readable(&client));
    assert_eq!(client.answer().1, "ok");
    it.turn_until("the idle ones are closed", |_| servers.iter().all(is_readable));
}

#[test]
fn an_http_1_0_request_without_a_host_is_for_the_backend_by_its_name() {
    for name in [None, Some("app.internal:8080")] {
        let backend = Scripted::bind();
        let balancer = Balancer::of(1, configuration(backend.address, name, None));
        let host = name.map_or_else(|| backend.address.to_string(), str::to_owned);
        let mut client = balancer.connect();
        client.send(b"GET /a HTTP/1.0\r\nX: y\r\n\r\n");
        let mut server = backend.accept();
        let head = server.head();
        assert!(head.starts_with(&format!("GET /a HTTP/1.1\r\nHost: {host}\r\n")), "{head}");
        assert!(head.contains("\r\nX: y\r\n"), "{head}");
        server.send(OK);
        assert_eq!(client.answer().1, "ok");
    }
}

#[test]
fn rfc9110_6_6_1_every_final_answer_has_a_date() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let mut client = balancer.connect();
    client.send(GET);
    let mut server = backend.accept();
    server.head();
    server.send(OK);
    let dates = |head: &str| head.lines().filter(|line| line.starts_with("Date: ")).count();
    let (head, _) = client.answer();
    assert_eq!(dates(&head), 1, "{head}");
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 400 ") && dates(&head) == 1, "{head}");
}

/// No byte of such an answer has been sent.
#[test]
fn a_fault_in_the_bytes_that_come_with_a_head_is_answered_with_502() {
    let interim = "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n";
    for body in ["2  \r\nok\r\n0\r\n\r\n", "2\r\nok\r\nzz\r\nok\r\n", "2\nok\r\n0\r\n\r\n"] {
        for before in ["", interim] {
            let backend = Scripted::bind();
            let balancer = Balancer::start(&[backend.address], Settings::default());
            let mut client = balancer.connect();
            client.send(GET);
            let mut server = backend.accept();
            server.head();
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            server.send(format!("{before}{head}{body}").as_bytes());
            if !before.is_empty() {
                assert_eq!(client.head(), interim);
            }
            let (head, text) = client.answer();
            assert!(head.starts_with("HTTP/1.1 502 "), "{body:?}: {head}");
            assert!(!text.contains("ok"), "{text}");
            assert!(matches!(one_failure(&balancer), Failure::BadResponse(_)));
        }
    }
}
