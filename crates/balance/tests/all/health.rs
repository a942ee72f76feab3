//! The effect of clients on the health of backends: a request that fails at a backend counts as one
//! failure.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use throng_balance::{Balancer, Config, Status};
use throng_testkit::eventually;

use crate::support::{Peer, accepted, unused_address, upgrade};

const PICKS: [&str; 6] =
    ["power_of_two", "least_connections", "round_robin", "rendezvous", "random", "ip_hash"];

/// A backend that ends the connection without an answer if the path begins with `/bad`, as Node's
/// servers do to refuse an upgrade. It answers `/head/N` with a head of N bytes, and everything
/// else normally.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let peer = Peer::new(stream.unwrap());
            thread::spawn(move || answer(peer));
        }
    });
    address
}

fn answer(mut peer: Peer) {
    while !peer.is_at_end() && answer_one(&mut peer) {}
}

/// False: the connection ends without an answer.
fn answer_one(peer: &mut Peer) -> bool {
    let head = peer.head();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    if path.starts_with("/bad") {
        return false;
    }
    if let Some(size) = path.strip_prefix("/head/") {
        let (begin, end) =
            ("HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\nLocation: /", "\r\n\r\n");
        let padding = size.parse::<usize>().unwrap() - begin.len() - end.len();
        peer.send(format!("{begin}{}{end}", "a".repeat(padding)).as_bytes());
    } else if head.contains("Upgrade: websocket") {
        peer.send(&accepted());
    } else {
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
    true
}

fn start(backends: &[SocketAddr], more: &str) -> Balancer {
    let list: Vec<_> = backends.iter().map(|address| format!("\"{address}\"")).collect();
    let text =
        format!("listen = \"127.0.0.1:0\"\nshards = 1\nbackends = [{}]\n{more}", list.join(", "));
    Balancer::start(Config::parse(&text, "test.toml").unwrap()).unwrap()
}

/// The first line of the answer to `request`.
fn ask(balancer: &Balancer, request: &[u8]) -> String {
    let mut peer = Peer::new(TcpStream::connect(balancer.addresses()[0]).unwrap());
    peer.send(request);
    peer.head().lines().next().unwrap().to_owned()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

/// Waits until `holds`, that is until the reports of the shards have reached the control thread.
fn until(balancer: &Balancer, what: &str, holds: impl Fn(&Status) -> bool) {
    eventually(what, || holds(&balancer.status()));
}

/// Counts the failures once the last failure of each backend is recorded.
fn failures(status: &Status) -> u64 {
    let is_noted =
        status.backends.iter().all(|row| row.totals.failures == 0 || row.last_failure.is_some());
    if is_noted { status.backends.iter().map(|row| row.totals.failures).sum() } else { 0 }
}

fn all_up(status: &Status) -> bool {
    status.backends.iter().all(|row| row.state == "up")
}

fn end(balancer: &Balancer) {
    balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
}

/// Sends twelve bad handshakes, each enough of a failure to take down two or three backends if it
/// counted for each, and a good one after each.
#[test]
fn handshakes_that_backends_destroy_leave_everybody_else_served() {
    for pick in PICKS {
        let backends = [serve(), serve(), serve()];
        let balancer = start(&backends, &format!("pick = \"{pick}\""));
        for bad in 1..=12 {
            let line = ask(&balancer, &upgrade("/bad"));
            assert!(line.starts_with("HTTP/1.1 502 "), "{pick}: {line}");
            // A handshake is a GET, so all three backends are tried.
            until(&balancer, "they are counted", |status| failures(status) >= 3 * bad);
            let line = ask(&balancer, &upgrade("/good"));
            assert!(line.starts_with("HTTP/1.1 101 "), "{pick}, after {bad} bad ones: {line}");
            let line = ask(&balancer, &get("/"));
            assert!(line.starts_with("HTTP/1.1 200 "), "{pick}, after {bad} bad ones: {line}");
        }
        assert!(all_up(&balancer.status()), "{pick}: {:?}", balancer.status());
        end(&balancer);
    }
}

/// A redirect repeats the path of the request, which was just below the limit for requests.
#[test]
fn a_backend_may_answer_with_a_larger_head_than_a_client_may_send() {
    let balancer = start(&[serve(), serve()], "max_response_header_bytes = \"64KiB\"");
    for size in [16_500, 65_536] {
        let line = ask(&balancer, &get(&format!("/head/{size}")));
        assert!(line.starts_with("HTTP/1.1 301 "), "{size}: {line}");
    }
    for bad in 1..=9 {
        let line = ask(&balancer, &get("/head/70000"));
        assert!(line.starts_with("HTTP/1.1 502 "), "{line}");
        until(&balancer, "it is counted", |status| failures(status) == bad);
    }
    assert!(all_up(&balancer.status()), "{:?}", balancer.status());
    assert!(ask(&balancer, &get("/")).starts_with("HTTP/1.1 200 "));
    end(&balancer);
}

/// Even if answers are observed, at least half of the backends stay up.
#[test]
fn where_answers_are_observed_clients_still_cannot_take_all_backends_down() {
    for pick in PICKS {
        let backends = [serve(), serve(), serve()];
        let more = format!("pick = \"{pick}\"\n[health]\nobserve = \"answers\"\nfailures = 1");
        let balancer = start(&backends, &more);
        for bad in 1..=12 {
            let before = failures(&balancer.status());
            let line = ask(&balancer, &upgrade("/bad"));
            assert!(line.starts_with("HTTP/1.1 502 "), "{pick}: {line}");
            until(&balancer, "they are counted", |status| failures(status) > before);
            let line = ask(&balancer, &upgrade("/good"));
            assert!(line.starts_with("HTTP/1.1 101 "), "{pick}, after {bad} bad ones: {line}");
        }
        let status = balancer.status();
        let up = status.backends.iter().filter(|row| row.state == "up").count();
        assert!(up >= 2, "{pick}: {status:?}");
        end(&balancer);
    }
}

/// Two backends are down because they refused connections. When one of them works again, clients
/// use it before its retry time.
#[test]
fn backends_that_are_down_are_tried_before_a_client_is_refused() {
    let (gone, other) = (unused_address(), unused_address());
    let balancer = start(&[gone, other], "[health]\nfailures = 1\ndown_for = \"1h\"");
    assert!(ask(&balancer, &get("/")).starts_with("HTTP/1.1 502 "));
    until(&balancer, "both are down", |status| {
        status.backends.iter().all(|row| row.state == "down")
    });
    // They are tried nevertheless, and their answers are returned.
    assert!(ask(&balancer, &get("/")).starts_with("HTTP/1.1 502 "));
    let back = serve();
    balancer.add(back, 1, false).unwrap();
    balancer.drain(back, None).unwrap();
    assert!(ask(&balancer, &get("/")).starts_with("HTTP/1.1 502 "), "one in a drain is not asked");
    end(&balancer);
}

#[test]
fn no_failures_at_all_means_no_passive_checks() {
    let dead = unused_address();
    let balancer = start(&[dead, serve()], "pick = \"round_robin\"\nhealth.failures = 0");
    for _ in 0..20 {
        assert!(ask(&balancer, &get("/")).starts_with("HTTP/1.1 200 "));
    }
    until(&balancer, "they are counted", |status| failures(status) >= 5);
    assert!(all_up(&balancer.status()), "{:?}", balancer.status());
    end(&balancer);
}

/// Neither a client nor a failed connection ends a tunnel that works.
#[test]
fn a_backend_that_goes_down_keeps_its_tunnels_unless_checks_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let balancer = start(&[address], "[health]\nfailures = 1\ndown_for = \"1h\"");
    let mut client = Peer::new(TcpStream::connect(balancer.addresses()[0]).unwrap());
    client.send(&upgrade("/"));
    let mut server = Peer::new(listener.accept().unwrap().0);
    server.head();
    server.send(&accepted());
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    // The backend accepts no new connections, and serves the existing ones.
    drop(listener);
    assert!(ask(&balancer, &get("/")).starts_with("HTTP/1.1 502 "));
    until(&balancer, "it is down", |status| status.backends[0].state == "down");
    assert!(balancer.status().backends[0].keeps_tunnels);
    server.send_text_unmasked("still here");
    assert_eq!(client.text(), "still here");
    client.stream.write_all(&[0x88, 0x80, 0, 0, 0, 0]).unwrap();
    assert_eq!(server.frame().0, 8);
    assert_eq!(balancer.status().metrics.closed, 0);
    end(&balancer);
}
