//! Sessions over TLS, and their fate when certificates change.

use std::io::{Read, Write};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use throng::prelude::*;
use throng::server::{IoBackend, Proxies, Shards};
use throng_proto::ws::Opcode;

use super::{Files, backends, connect, end, secure, start};
use crate::support::{Got, dial};

#[test]
fn messages_of_every_size_are_echoed_on_every_backend() {
    let files = Files::new("echo");
    for io in backends() {
        let running = start(&files, io);
        let mut client = connect(running.local_addr(), "/echo", &files.trust());
        for len in [0, 1, 125, 126, 16_000, 16_384, 17_000, 65_536, 200_000, 3_000_000] {
            let message: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            client.send(Opcode::Binary, &message);
            assert!(client.next() == Got::Binary(message), "{io:?}, {len} bytes");
        }
        for round in 0..100u32 {
            client.send(Opcode::Binary, &round.to_be_bytes());
        }
        for round in 0..100u32 {
            assert_eq!(client.next(), Got::Binary(round.to_be_bytes().to_vec()));
        }
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        assert_eq!(client.next(), Got::Close(1000, String::new()));
        // The end comes with close_notify: rustls reports any other as an error.
        assert_eq!(client.next(), Got::End);
        end(running);
    }
}

#[test]
fn a_publication_reaches_every_secured_member() {
    let files = Files::new("publish");
    let running = start(&files, IoBackend::Auto);
    let trust = files.trust();
    let mut clients: Vec<_> =
        (0..20).map(|_| connect(running.local_addr(), "/all", &trust)).collect();
    crate::support::eventually("all members", || running.stats().subscriptions >= 20);
    let (sender, receivers) = clients.split_first_mut().unwrap();
    for round in 0..50u32 {
        sender.send(Opcode::Text, format!("message {round}").as_bytes());
    }
    for client in receivers {
        for round in 0..50u32 {
            assert_eq!(client.next(), Got::Text(format!("message {round}")));
        }
    }
    end(running);
}

#[test]
fn a_renewed_certificate_serves_new_connections_and_leaves_sessions_alone() {
    let files = Files::new("renew");
    let running = start(&files, IoBackend::Auto);
    let old = files.trust();
    let mut session = connect(running.local_addr(), "/echo", &old);
    files.renew();
    running.reload_tls().unwrap();
    let mut renewed = connect(running.local_addr(), "/echo", &files.trust());
    for client in [&mut session, &mut renewed] {
        client.send(Opcode::Text, b"still here");
        assert_eq!(client.next(), Got::Text("still here".into()));
    }
    std::fs::write(&files.key, "no key").unwrap();
    let error = running.reload_tls().unwrap_err().to_string();
    assert!(error.contains("it.key") && error.contains("private key"), "{error}");
    connect(running.local_addr(), "/echo", &files.trust());
    end(running);
}

/// The header comes before the handshake, in the same packet or alone.
#[test]
fn a_proxy_header_comes_before_the_handshake() {
    let files = Files::new("proxied");
    for io in backends() {
        let client = |request: &Request<'_>| request.client().map(|client| client.to_string());
        let app = App::new().get("/client", move |request| client(request));
        let server =
            Server::new(app).proxies(Proxies::new().trusted(["127.0.0.1"]).proxy_protocol(true));
        let running = server
            .shards(Shards::new().io(io))
            .tls(files.tls())
            .bind("127.0.0.1:0")
            .unwrap()
            .start()
            .unwrap();
        let header = b"PROXY TCP4 198.51.100.7 192.0.2.1 4711 443\r\n";
        for is_alone in [true, false] {
            let mut tcp = dial(running.local_addr());
            let name = ServerName::try_from("localhost").unwrap();
            let mut client = ClientConnection::new(files.trust(), name).unwrap();
            let mut first = header.to_vec();
            if !is_alone {
                client.write_tls(&mut first).unwrap();
            }
            tcp.write_all(&first).unwrap();
            let mut stream = StreamOwned::new(client, tcp);
            let request = "GET /client HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("\r\n\r\n198.51.100.7"), "{io:?}, {is_alone}: {answer}");
        }
        // A handshake without a header is closed.
        let mut stream = secure(running.local_addr(), &files.trust());
        assert!(stream.write_all(b"GET").and_then(|()| stream.flush()).is_err());
        assert_eq!(running.stats().handler_panics, 0);
        end(running);
    }
}
