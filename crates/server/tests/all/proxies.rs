//! Clients behind proxies.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use throng::http::Next;
use throng::prelude::*;
use throng::server::{AccessEntry, AccessLog, IoBackend, Observe, Proxies, Shards};

use crate::support::served::{start, stop};
use crate::support::{BACKENDS, Client, EXTREMES, Got, TIMEOUT, dial, eventually, exchange};

const CLAIM: &str = "X-Forwarded-For: 192.0.2.66, 198.51.100.7\r\n";

fn app() -> App {
    let client = |request: &Request<'_>| request.client().map(|client| client.to_string());
    let greet = |ws: &mut Socket<'_, String>, client: &mut String| ws.send(&*client);
    let now = Ws::from_request(move |request| Ok(client(request).unwrap_or_default()));
    let later = Ws::from_request_blocking(move |request| Ok(client(request).unwrap_or_default()));
    App::new()
        .get("/now", move |request| client(request))
        .post("/body", move |request| client(request))
        .route("/blocking", Route::on(Method::Get, move |request| client(request)).blocking())
        .layer(move |request: &mut Request<'_>| match request.path() {
            "/layer" => Next::respond(client(request)),
            _ => Next::Continue,
        })
        .ws("/ws", now.on_open(greet))
        .ws("/later", later.on_open(greet))
}

/// The client that each kind of handler sees, for a request with this header.
fn clients(address: SocketAddr, header: &str) -> Vec<String> {
    let ask = |line: &str, rest: &str| {
        let request =
            format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}{rest}\r\n");
        let answer = exchange(address, request.as_bytes());
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let mut seen = vec![
        ask("GET /now", ""),
        ask("GET /blocking", ""),
        ask("GET /layer", ""),
        ask("POST /body", "Content-Length: 1\r\n\r\nx"),
    ];
    let (name, value) = header.trim_end().split_once(": ").unwrap();
    for path in ["/ws", "/later"] {
        let mut client = Client::request(address, path, &[(name, value)]).ok().unwrap();
        match client.next() {
            Got::Text(text) => seen.push(text),
            other => panic!("{other:?}"),
        }
    }
    seen
}

#[test]
fn every_handler_sees_the_client_that_a_trusted_proxy_names() {
    for io in EXTREMES {
        let (address, running) = start(Server::new(app()).shards(Shards::new().io(io)));
        assert!(clients(address, CLAIM).iter().all(|client| client == "127.0.0.1"), "no proxy");
        stop(running);
        let (address, running) = start(
            Server::new(app())
                .shards(Shards::new().io(io))
                .proxies(Proxies::new().trusted(["127.0.0.0/8"])),
        );
        let seen = clients(address, CLAIM);
        assert!(seen.iter().all(|client| client == "198.51.100.7"), "{seen:?}");
        let seen = clients(address, "Forwarded: for=\"[2001:db8::1]:99\";proto=https\r\n");
        assert!(seen.iter().all(|client| client == "2001:db8::1"), "{seen:?}");
        stop(running);
    }
}

#[test]
fn connections_of_a_trusted_proxy_have_no_cap_by_address() {
    for (networks, expected) in [(&[][..], 2), (&["127.0.0.1"][..], 5)] {
        let limits = Limits::default().max_connections_per_address(2);
        let (address, running) =
            start(Server::new(app()).limits(limits).proxies(Proxies::new().trusted(networks)));
        let clients: Vec<_> =
            (0..5).filter_map(|_| Client::request(address, "/ws", &[]).ok()).collect();
        assert_eq!(clients.len(), expected);
        drop(clients);
        stop(running);
    }
}

#[test]
fn a_network_that_is_none_is_refused_by_name() {
    let error =
        Server::new(app()).proxies(Proxies::new().trusted(["10.0.0.0/99"])).check().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("10.0.0.0/99") && text.contains("2001:db8::/32"), "{text}");
}

#[test]
fn refusals_and_records_name_the_client_behind_the_proxy() {
    let (sender, reported) = mpsc::channel();
    let refuse = |_: &Request<'_>| -> Result<(), Reject> { Err(Reject::forbidden()) };
    let app = App::new()
        .ws("/ws", Ws::from_request(refuse))
        .ws("/later", Ws::from_request_blocking(refuse));
    let (logged, log) = mpsc::channel();
    let server = Server::new(app).proxies(Proxies::new().trusted(["127.0.0.0/8"])).observe(
        Observe::new().access_log(Clients(logged)).on_event(move |event| {
            if let throng::server::ServerEvent::Refused { subject, .. } = event {
                sender.send((subject.client, event.to_string())).unwrap();
            }
        }),
    );
    let (address, running) = start(server);
    for path in ["/ws", "/later"] {
        let headers = [("X-Forwarded-For", "198.51.100.7")];
        assert!(Client::request(address, path, &headers).is_err());
        let (client, text) = reported.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(client, Some([198, 51, 100, 7].into()), "{path}");
        assert!(text.starts_with("refused 198.51.100.7 (through 127.0.0.1:"), "{text}");
        assert_eq!(log.recv_timeout(TIMEOUT).unwrap(), client, "{path}");
    }
    stop(running);
}

struct Clients(mpsc::Sender<Option<IpAddr>>);

impl AccessLog for Clients {
    fn record(&self, access: &AccessEntry<'_>) {
        self.0.send(access.subject.client).unwrap();
    }
}

/// The start of a PROXY header of version 1 for a client with this address.
fn header_for(client: &str) -> String {
    format!("PROXY TCP4 {client} 192.0.2.1 4711 80\r\n")
}

/// Returns a PROXY header of version 2 for a client.
fn binary_header_for(client: &str) -> Vec<u8> {
    let mut header = Vec::new();
    let client = SocketAddr::new(client.parse().unwrap(), 4711);
    throng_proto::proxy_protocol::encode(client, "192.0.2.1:80".parse().unwrap(), &mut header);
    header
}

/// A server behind a proxy on this machine that sends PROXY headers.
fn behind_proxy(app: App) -> Server {
    Server::new(app).proxies(Proxies::new().trusted(["127.0.0.1"]).proxy_protocol(true))
}

const ASK: &[u8] = b"GET /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[test]
fn a_connection_has_the_address_of_its_proxy_header() {
    for io in BACKENDS {
        let (address, running) = start(behind_proxy(app()).shards(Shards::new().io(io)));
        let line = header_for("198.51.100.7").into_bytes();
        let binary = binary_header_for("2001:db8::7");
        let mut local = Vec::new();
        throng_proto::proxy_protocol::encode_local(&mut local);
        // Section 2.1: receivers must ignore everything after the word.
        let unknown = b"PROXY UNKNOWN\r\n".to_vec();
        let longer = b"PROXY UNKNOWN ffff:f...f:ffff 65535 65535\r\n".to_vec();
        for (header, client) in [
            (&line, "198.51.100.7"),
            (&binary, "2001:db8::7"),
            (&local, "127.0.0.1"),
            (&unknown, "127.0.0.1"),
            (&longer, "127.0.0.1"),
        ] {
            let answer = exchange(address, &[header, ASK].concat());
            assert!(answer.ends_with(&format!("\r\n\r\n{client}")), "{io:?}: {answer}");
            // In several reads. The last read also has the first bytes of the request.
            let mut stream = dial(address);
            stream.set_nodelay(true).unwrap();
            let (first, rest) = header.split_at(header.len() - 3);
            for part in [&first[..1], &first[1..], &[rest, &ASK[..5]].concat(), &ASK[5..]] {
                stream.write_all(part).unwrap();
                std::thread::yield_now();
            }
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with(&format!("\r\n\r\n{client}")), "{io:?}: {answer}");
        }
        assert_eq!(running.stats().proxy_errors, 0);
        stop(running);
    }
}

#[test]
fn connections_of_a_client_behind_a_proxy_are_capped_by_its_own_address() {
    for io in EXTREMES {
        let limits = Limits::default().max_connections_per_address(2);
        let (address, running) =
            start(behind_proxy(app()).shards(Shards::new().io(io)).limits(limits));
        let connect = |client: &str| {
            let mut stream = dial(address);
            stream.write_all(header_for(client).as_bytes()).unwrap();
            Client::upgrade(stream, "/ws", &[], &[])
        };
        let first = connect("198.51.100.7").unwrap();
        let _second = connect("198.51.100.7").unwrap();
        let refused = connect("198.51.100.7").map(drop).expect_err("the third is refused");
        assert!(refused.starts_with("HTTP/1.1 429 "), "{io:?}: {refused}");
        assert!(connect("198.51.100.8").is_ok(), "{io:?}: another client");
        drop(first);
        eventually("its place is free", || connect("198.51.100.7").is_ok());
        stop(running);
    }
}

#[test]
fn silent_connections_of_a_client_behind_a_proxy_are_bounded_too() {
    for io in EXTREMES {
        let limits = Limits::default().max_connections_per_address(1);
        let (address, running) =
            start(behind_proxy(app()).shards(Shards::new().io(io).count(1)).limits(limits));
        let silent = || {
            let mut stream = dial(address);
            stream.write_all(header_for("198.51.100.7").as_bytes()).unwrap();
            stream
        };
        let mut all: Vec<_> = (0..50).map(|_| silent()).collect();
        // One has a place, and 32 may send a request to get their refusal.
        eventually("the others are closed", || {
            let stats = running.stats();
            stats.accepted == 50 && stats.connections == 33
        });
        all.iter_mut().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let is_open = |stream: &mut TcpStream| {
            stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let open: u64 = all.iter_mut().map(|stream| u64::from(is_open(stream))).sum();
        assert_eq!(open, 33, "{io:?}");
        drop(all);
        eventually("their places are free", || running.stats().connections == 0);
        stop(running);
    }
}

/// Sends these bytes to a server that wants a PROXY header, and returns the event
/// that reports them.
fn refusal_of(bytes: &[u8], trusted: &str, io: IoBackend) -> String {
    let (sender, reported) = mpsc::channel();
    let limits = Limits::default().handshake_timeout(Duration::from_secs(1));
    let observe = Observe::new().on_event(move |event| {
        if let throng::server::ServerEvent::ProxyRefused { subject, .. } = event {
            sender.send((subject.peer, event.to_string())).unwrap();
        }
    });
    let proxies = Proxies::new().trusted([trusted]).proxy_protocol(true);
    let server = Server::new(app()).shards(Shards::new().io(io)).limits(limits);
    let (address, running) = start(server.proxies(proxies).observe(observe));
    let mut stream = dial(address);
    let own = stream.local_addr().unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(String::from_utf8_lossy(&answer), "", "nothing is said to it");
    let (peer, text) = reported.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(peer, Some(own));
    eventually("it is counted", || running.stats().proxy_errors == 1);
    eventually("its place is free", || running.stats().connections == 0);
    stop(running);
    text
}

#[test]
fn a_proxy_that_sends_no_header_is_closed_without_an_answer_and_counted() {
    for io in EXTREMES {
        let text = refusal_of(ASK, "127.0.0.1", io);
        assert!(text.contains("does not begin with a PROXY protocol header"), "{text}");
        let text = refusal_of(b"PROXY TCP4 1.2.3.4 1.2.3.4 0 99999\r\n", "127.0.0.1", io);
        assert!(text.contains("of version 1 is malformed"), "{text}");
        let text = refusal_of(b"PROXY TCP4 1.2.3.4", "127.0.0.1", io);
        assert!(text.contains("within handshake_timeout"), "{text}");
    }
}

#[test]
fn a_peer_that_is_no_trusted_proxy_cannot_claim_an_address() {
    for io in EXTREMES {
        let header = header_for("198.51.100.7");
        let text = refusal_of(&[header.as_bytes(), ASK].concat(), "10.0.0.0/8", io);
        assert!(text.contains("it is not in trusted_proxies"), "{text}");
    }
}

#[test]
fn proxy_protocol_needs_the_names_of_the_proxies() {
    let error = Server::new(app())
        .proxies(Proxies::new().proxy_protocol(true))
        .check()
        .unwrap_err()
        .to_string();
    assert!(error.contains("trusted_proxies") && error.contains("10.0.0.0/8"), "{error}");
}
