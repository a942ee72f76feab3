//! Clients behind proxies.

mod support;

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;

use support::served::{start, stop};
use support::{Client, Got, TIMEOUT, exchange};
use throng::prelude::*;
use throng::{Access, AccessLog, IoBackend};

const CLAIM: &str = "X-Forwarded-For: 192.0.2.66, 198.51.100.7\r\n";

fn app() -> App {
    let client = |request: &Request<'_>| request.client().map(|client| client.to_string());
    let greet = |ws: &mut Socket<'_, String>| {
        let _ = ws.send(ws.data().clone());
    };
    let now = Ws::on_upgrade(move |request| Ok(client(request).unwrap_or_default()));
    let later = Ws::on_upgrade_blocking(move |request| {
        Ok(Accept::new(client(request).unwrap_or_default()))
    });
    App::new()
        .get("/now", move |request| client(request))
        .post("/body", move |request| client(request))
        .blocking(Method::Get, "/blocking", move |request| client(request))
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
    for io in [IoBackend::Auto, IoBackend::Threads] {
        let (address, running) = start(Server::new(app()).io(io));
        assert!(clients(address, CLAIM).iter().all(|client| client == "127.0.0.1"), "no proxy");
        stop(running);
        let (address, running) = start(Server::new(app()).io(io).trusted_proxies(["127.0.0.0/8"]));
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
        let (address, running) = start(Server::new(app()).limits(limits).trusted_proxies(networks));
        let clients: Vec<_> =
            (0..5).filter_map(|_| Client::request(address, "/ws", &[]).ok()).collect();
        assert_eq!(clients.len(), expected);
        drop(clients);
        stop(running);
    }
}

#[test]
fn a_network_that_is_none_is_refused_by_name() {
    let error = Server::new(app()).trusted_proxies(["10.0.0.0/99"]).check().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("10.0.0.0/99") && text.contains("2001:db8::/32"), "{text}");
}

#[test]
fn refusals_and_records_name_the_client_behind_the_proxy() {
    let (sender, reported) = mpsc::channel();
    let refuse = |_: &Request<'_>| -> Result<(), Reject> { Err(Reject::forbidden()) };
    let later = |_: &Request<'_>| -> Result<Accept<()>, Reject> { Err(Reject::forbidden()) };
    let app =
        App::new().ws("/ws", Ws::on_upgrade(refuse)).ws("/later", Ws::on_upgrade_blocking(later));
    let (logged, log) = mpsc::channel();
    let server = Server::new(app)
        .trusted_proxies(["127.0.0.0/8"])
        .access_log(Clients(logged))
        .on_event(move |event| {
            if let throng::Event::Refused { client, .. } = event {
                sender.send((*client, event.to_string())).unwrap();
            }
        });
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
    fn record(&self, access: &Access<'_>) {
        self.0.send(access.client).unwrap();
    }
}
