//! Sessions over TLS that move to the event loop of their key.

use std::io::Write;
use std::time::Duration;

use throng::prelude::*;
use throng::server::{IoBackend, Shards};
use throng::tls::RequestTls;
use throng_proto::ws::Opcode;

use super::{Files, Stream, connect, end, secure};
use crate::support::{Client, Got};

#[test]
fn a_session_that_moves_to_another_event_loop_keeps_its_keys() {
    #[derive(Default)]
    struct Rooms(std::collections::HashMap<String, usize>);
    let files = Files::new("placed");
    for io in [IoBackend::Auto, IoBackend::Portable] {
        let room = Ws::from_request(|request| Ok(request.param("room").unwrap().to_owned()))
            .place_by(|room| room)
            .on_open(|ws, room| {
                let count = ws.shard_state::<Rooms>().0.entry(room.clone()).or_default();
                *count += 1;
                let text = count.to_string();
                ws.send(text);
            })
            .on_message(|ws, _, message| ws.send(message));
        let server =
            Server::new(App::new().ws("/{room}", room)).shards(Shards::new().io(io).count(3));
        let running = server.tls(files.tls()).bind("127.0.0.1:0").unwrap().start().unwrap();
        let mut all = Vec::new();
        for room in 0..4 {
            for count in 1..=4 {
                let path = format!("/{room}");
                let mut client = connect(running.local_addr(), &path, &files.trust());
                assert_eq!(client.next(), Got::Text(count.to_string()), "{io:?}");
                all.push(client);
            }
        }
        crate::support::eventually("some have moved", || {
            running.shard_stats().iter().any(|stats| stats.handed_over > 0)
        });
        for len in [1, 16_384, 200_000] {
            for client in &mut all {
                let message: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
                client.send(Opcode::Binary, &message);
                assert!(client.next() == Got::Binary(message), "{io:?}, {len} bytes");
            }
        }
        for client in &mut all {
            client.send(Opcode::Close, &1000u16.to_be_bytes());
            assert_eq!(client.next(), Got::Close(1000, String::new()));
            assert_eq!(client.next(), Got::End, "with close_notify");
        }
        end(running);
    }
}

/// The first text of a session, with the head of the response to its upgrade.
fn head_of(mut stream: Stream, path: &str) -> (String, Client<Stream>) {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let head = crate::support::read_head(&mut stream);
    (head, Client::opened(stream))
}

/// Echoes, after the name in the client's certificate.
fn named(ws: Ws<(String, String)>) -> Ws<(String, String)> {
    ws.place_by(|(room, _)| room)
        .on_open(|ws, data| {
            ws.send(&*data.1);
        })
        .on_message(|ws, _, message| ws.send(message))
}

fn room_and_name(request: &Request<'_>) -> Result<(String, String), Reject> {
    let certificate = request.tls().and_then(|tls| tls.client_certificate());
    let name = certificate.map_or("anonymous".to_owned(), |it| it.names().join(" "));
    Ok((request.param("room").unwrap().to_owned(), name))
}

#[test]
fn rfc6797_7_sessions_that_move_get_the_header_and_keep_the_certificate_of_their_client() {
    let files = Files::new("moved");
    let (authority, config) = files.with_certificate("client.example");
    let tls = files.tls().hsts(Duration::from_secs(5), false).client_auth(&authority, false);
    let app = App::new()
        .ws("/now/{room}", named(Ws::from_request(room_and_name)))
        .ws("/blocking/{room}", named(Ws::from_request_blocking(room_and_name)));
    let server = Server::new(app).shards(3).tls(tls);
    let running = server.bind("127.0.0.1:0").unwrap().start().unwrap();
    let address = running.local_addr();
    for (config, name) in [(files.trust(), "anonymous"), (config, "client.example")] {
        for path in ["/now/", "/blocking/"] {
            for room in 0..8 {
                let (head, mut client) =
                    head_of(secure(address, &config), &format!("{path}{room}"));
                assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
                let line = "\r\nStrict-Transport-Security: max-age=5\r\n";
                assert_eq!(head.matches(line).count(), 1, "{head}");
                assert_eq!(client.next(), Got::Text(name.to_owned()), "{path}{room}");
                client.send_text("still here");
                assert_eq!(client.next(), Got::Text("still here".to_owned()));
            }
        }
    }
    crate::support::eventually("some have moved", || {
        running.shard_stats().iter().any(|stats| stats.handed_over > 0)
    });
    end(running);
}
