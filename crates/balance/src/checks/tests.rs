use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use throng_proto::ws::handshake::accept_key;

use super::*;
use crate::settings::CheckKind;

/// Long enough for any machine; a test that needs it fails.
const LONG: Duration = Duration::from_secs(20);

fn check(kind: CheckKind, timeout: Duration) -> Check {
    Check { interval: Duration::from_millis(20), timeout, ..Check::new(kind) }
}

/// A server that does `serve` with one connection.
fn server(serve: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || serve(listener.accept().unwrap().0));
    address
}

/// Reads up to the end of a head.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A probe without a source address; the error is the backend's fault.
fn probe(address: SocketAddr, check: &Check) -> Result<(), String> {
    probe::probe(&target(address, false), None, check).map_err(|wrong| match wrong {
        CheckFailure::Backend(why) => why,
        CheckFailure::Ours(failure) => panic!("{failure}"),
    })
}

/// Answers a GET with `answer`, and returns the outcome.
fn get(answer: &'static str) -> Result<(), String> {
    let address = server(move |mut stream| {
        let head = read_head(&mut stream);
        assert!(head.starts_with("GET /live?x=1 HTTP/1.1\r\nHost: 127.0.0.1:"), "{head}");
        stream.write_all(answer.as_bytes()).unwrap();
    });
    probe(address, &check(CheckKind::Http("/live?x=1".to_owned()), LONG))
}

#[test]
fn a_get_passes_with_2xx_and_3xx() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.0 200 OK\r\n\r\nbody",
    ] {
        assert_eq!(get(answer), Ok(()), "{answer}");
    }
    for (answer, why) in [
        (
            "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
            "was answered 503 instead of 2xx or 3xx",
        ),
        ("HTTP/1.1 404 Not Found\r\n\r\n", "answered 404"),
        ("HTTP/1.1 200", "it ended the connection before its answer"),
        ("", "it ended the connection before its answer"),
        ("220 smtp ready\r\n\r\n", "not valid HTTP"),
    ] {
        let error = get(answer).unwrap_err();
        assert!(error.contains(why), "{answer}: {error}");
    }
}

#[test]
fn a_check_names_the_host_that_is_set() {
    for kind in [CheckKind::Http("/".to_owned()), CheckKind::WebSocket("/".to_owned())] {
        let (sender, heads) = mpsc::channel();
        let address = server(move |mut stream| sender.send(read_head(&mut stream)).unwrap());
        let named = Check { host: Some("app.example.com:8080".to_owned()), ..check(kind, LONG) };
        let _ = probe(address, &named);
        let head = heads.recv_timeout(LONG).unwrap();
        assert!(head.contains("\r\nHost: app.example.com:8080\r\n"), "{head}");
    }
}

/// Opens the WebSocket of a check, then runs `serve` for the frames.
fn open(serve: impl FnOnce(&mut TcpStream) + Send + 'static) -> Result<(), String> {
    let address = server(move |mut stream| {
        let head = read_head(&mut stream);
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let accept = String::from_utf8(accept_key(key).to_vec()).unwrap();
        // A first message in the same segment as the head.
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n\u{1}"
        );
        let mut bytes = answer.into_bytes();
        *bytes.last_mut().unwrap() = 0x81;
        bytes.extend(b"\x02hi");
        stream.write_all(&bytes).unwrap();
        serve(&mut stream);
    });
    probe(address, &check(CheckKind::WebSocket("/ws".to_owned()), LONG))
}

/// The payload of the ping that comes.
fn read_ping(stream: &mut TcpStream) -> Vec<u8> {
    let mut frame = [0; 14];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(frame[..2], [0x89, 0x88]);
    (0..8).map(|at| frame[6 + at] ^ frame[2 + at % 4]).collect()
}

#[test]
fn a_websocket_passes_with_the_pong_to_our_ping() {
    let passed = open(|stream| {
        let payload = read_ping(stream);
        // An unsolicited pong comes first, and the answer in two parts.
        stream.write_all(b"\x8a\x01x\x8a").unwrap();
        stream.write_all(&[&[8][..], &payload].concat()).unwrap();
        // A Close frame with 1000, then the end.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest[..2], [0x88, 0x82]);
    });
    assert_eq!(passed, Ok(()));
    let closed = open(|stream| stream.write_all(&[0x88, 2, 3, 0xf4]).unwrap());
    assert!(closed.unwrap_err().contains("it closed the WebSocket"));
    let garbage = open(|stream| stream.write_all(&[0xff; 8]).unwrap());
    assert!(garbage.unwrap_err().contains("broke a rule of WebSocket"));
    let refused = server(|mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let refused = probe(refused, &check(CheckKind::WebSocket("/".to_owned()), LONG));
    assert!(refused.unwrap_err().contains("200 instead of 101"));
}

#[test]
fn a_connection_passes_and_a_refusal_does_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    assert_eq!(probe(address, &check(CheckKind::Tcp, LONG)), Ok(()));
    drop(listener);
    let error = probe(address, &check(CheckKind::Tcp, LONG)).unwrap_err();
    assert!(error.contains("cannot connect"), "{error}");
}

#[test]
fn a_backend_that_wants_proxy_headers_gets_one_of_the_local_kind() {
    let address = server(|mut stream| {
        let mut header = [0; 16];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header, *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    });
    assert_eq!(
        probe::probe(&target(address, true), None, &check(CheckKind::Http("/".to_owned()), LONG)),
        Ok(())
    );
}

#[test]
fn one_that_never_answers_fails_in_its_time_and_holds_up_no_other() {
    // It accepts (in the kernel's queue), and never answers.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let alive = TcpListener::bind("127.0.0.1:0").unwrap();
    let alive_address = alive.local_addr().unwrap();
    let answering = thread::spawn(move || {
        for _ in 0..5 {
            let (mut stream, _) = alive.accept().unwrap();
            read_head(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        }
    });
    let (reporter, outcomes) = mpsc::channel();
    let checks = Checks::new(move |backend, outcome| {
        let _ = reporter.send((backend.address(), outcome));
    });
    let backends: Vec<Arc<Backend>> = [mute.local_addr().unwrap(), alive_address]
        .map(|address| Arc::new(Backend::new(address, 1)))
        .into();
    // The silent one's check takes as long as it may: it is not over after the other's fifth.
    let check = check(CheckKind::Http("/".to_owned()), LONG);
    checks.set(backends.iter().map(|backend| (listed(backend), check.clone(), Arc::default())));
    for _ in 0..5 {
        let (address, outcome) = outcomes.recv_timeout(LONG / 2).unwrap();
        assert_eq!((address, outcome), (alive_address.into(), Ok(())));
    }
    answering.join().unwrap();
    // The silent one closes, so its thread also ends.
    checks.end();
    drop(mute);
    while checks.threads() > 0 {
        thread::yield_now();
    }
    let late = Duration::from_millis(30);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let check = Check { timeout: late, ..check };
    let error = probe(mute.local_addr().unwrap(), &check).unwrap_err();
    assert_eq!(error, "no answer within 30ms");
}

#[test]
fn threads_come_and_go_with_the_list() {
    let (reporter, outcomes) = mpsc::channel();
    let checks = Checks::new(move |backend, outcome| {
        let _ = reporter.send((backend.address(), outcome));
    });
    // No process listens at port 1: each check is refused.
    let backend = |octet| Arc::new(Backend::new(SocketAddr::from(([127, 0, 1, octet], 1)), 1));
    let backends: Vec<_> = (1..=20).map(backend).collect();
    let check = check(CheckKind::Tcp, LONG);
    checks.set(backends.iter().map(|backend| (listed(backend), check.clone(), Arc::default())));
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < backends.len() {
        let (address, outcome) = outcomes.recv_timeout(LONG).unwrap();
        assert!(outcome.is_err());
        seen.insert(address);
    }
    assert!(checks.threads() <= 20);
    checks
        .set(backends[..2].iter().map(|backend| (listed(backend), check.clone(), Arc::default())));
    while checks.threads() > 2 {
        thread::yield_now();
    }
    // Those two are still checked, for any threads that have ended.
    while outcomes.try_recv().is_ok() {}
    let mut left = std::collections::BTreeSet::new();
    while left.len() < 2 {
        left.insert(outcomes.recv_timeout(LONG).unwrap().0);
    }
    assert!(left.is_subset(&backends[..2].iter().map(|backend| backend.address()).collect()));
    checks.end();
    while checks.threads() > 0 {
        thread::yield_now();
    }
}

fn target(address: SocketAddr, send_proxy: bool) -> Target {
    Target {
        backend: Arc::new(Backend::new(address, 1)),
        send_proxy,
        tls: None,
        passthrough: Arc::default(),
        name: None,
    }
}

fn listed(backend: &Arc<Backend>) -> Target {
    Target {
        backend: Arc::clone(backend),
        send_proxy: false,
        tls: None,
        passthrough: Arc::default(),
        name: None,
    }
}
