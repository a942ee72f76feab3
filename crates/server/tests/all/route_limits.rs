//! Limits that a route has instead of the server's.

use std::io::Write;
use std::time::Duration;

use throng::prelude::*;
use throng::server::Limit;
use throng_proto::ws::{self, Opcode};

use crate::support::served::{self, start, stop};
use crate::support::{Client, Got};

fn echo() -> Ws {
    Ws::new().on_message(|ws, (), message| ws.send(message))
}

fn serve(app: App, limits: Limits) -> (std::net::SocketAddr, Running) {
    start(Server::new(app.merge(served::app())).limits(limits).shards(1))
}

#[test]
fn a_route_has_heartbeats_of_its_own() {
    let second = Duration::from_secs(1);
    let app = App::new()
        .ws("/pinged", echo().heartbeat_interval(second).heartbeat_timeout(second * 2))
        .ws("/usual", echo())
        .ws("/silent", echo().heartbeat_interval(None));
    let (address, running) = serve(app, Limits::default().heartbeat_interval(second * 3600));
    let mut others = ["/usual", "/silent"].map(|path| Client::connect(address, path));
    let mut pinged = Client::connect(address, "/pinged");
    for _ in 0..2 {
        assert_eq!(pinged.next_of_any_kind(), Got::Ping(Vec::new()));
        pinged.send(Opcode::Text, b"here");
        assert_eq!(pinged.next_of_any_kind(), Got::Text("here".into()));
    }
    assert_eq!(pinged.next_of_any_kind(), Got::Ping(Vec::new()));
    assert_eq!(pinged.next_of_any_kind(), Got::End, "it did not answer within the timeout");
    for other in &mut others {
        other.send(Opcode::Text, b"first");
        assert_eq!(other.next_of_any_kind(), Got::Text("first".into()), "no ping came before");
    }
    stop(running);
}

#[test]
fn a_route_has_rates_of_its_own() {
    let app = App::new()
        .ws("/two", echo().max_messages_per_second(2))
        .ws("/bytes", echo().max_bytes_per_second(100))
        .ws("/usual", echo())
        .ws("/free", echo().max_messages_per_second(Limit::Unlimited));
    let (address, running) = serve(app, Limits::default().max_messages_per_second(50));
    // They come in one write, so they are read in one second.
    let closed = Got::Close(1008, "too much in one second".into());
    for (path, messages, is_closed) in [
        ("/two", 5, true),
        ("/bytes", 30, true),
        ("/usual", 40, false),
        ("/usual", 101, true),
        ("/free", 300, false),
    ] {
        let mut client = Client::connect(address, path);
        let mut frames = Vec::new();
        for _ in 0..messages {
            ws::encode_masked(Opcode::Text, b"x", [1, 2, 3, 4], &mut frames);
        }
        client.stream.write_all(&frames).unwrap();
        let echo = Got::Text("x".into());
        let mut all = std::iter::repeat_with(|| client.next());
        match is_closed {
            true => assert_eq!(all.find(|got| *got != echo), Some(closed.clone()), "{path}"),
            false => assert!(all.take(messages).all(|got| got == echo), "{path} {messages}"),
        }
    }
    stop(running);
}

#[test]
fn a_route_has_a_longest_lifetime_of_its_own() {
    let short = Duration::from_secs(1);
    let app = App::new().ws("/short", echo().max_lifetime(short)).ws("/usual", echo());
    let (address, running) = serve(app, Limits::default());
    let mut usual = Client::connect(address, "/usual");
    let mut ending = Client::connect(address, "/short");
    assert_eq!(ending.next(), Got::Close(1001, "session lifetime exceeded".into()));
    usual.send(Opcode::Text, b"still here");
    assert_eq!(usual.next(), Got::Text("still here".into()));
    stop(running);
}

#[test]
fn a_route_with_a_limit_that_cannot_work_is_an_error_that_names_it() {
    let zero = Duration::ZERO;
    for (route, setting) in [
        (echo().heartbeat_interval(zero), "heartbeat_interval"),
        (echo().heartbeat_timeout(zero), "heartbeat_timeout"),
        (echo().max_lifetime(zero), "max_lifetime"),
        (echo().max_messages_per_second(0), "max_messages_per_second"),
        (echo().max_bytes_per_second(0), "max_bytes_per_second"),
    ] {
        let error = Server::new(App::new().ws("/chat", route)).check().unwrap_err().to_string();
        assert!(error.contains(&format!("/chat: {setting} is 0")), "{error}");
    }
}
