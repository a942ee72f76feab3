//! The blocking client against this server.

#[path = "../../examples/client.rs"]
mod example;

use std::net::SocketAddr;
use std::time::Duration;

use throng::client::{Client, ClientError, DialStep};
use throng::prelude::*;
use throng::ws::{Compression, Deflate, DeflateMode};

use crate::support::TIMEOUT;
use crate::support::served::{start, stop};

/// Echoes at /echo; subprotocols, refusals and Close frames at other paths.
fn server() -> Server {
    let echo = || Ws::new().on_message(|ws, (), message| ws.send(message));
    let app = App::new()
        .ws("/echo", echo())
        .ws("/chat", echo().subprotocols(["v2", "v1"]))
        .ws("/bye", Ws::new().on_message(|ws, (), _| ws.close(CloseCode::new(4001), "enough")))
        .ws(
            "/private",
            Ws::from_request(|request| match request.header("authorization") {
                Some("Bearer 42") => Ok(()),
                _ => Err(Reject::unauthorized().with_reason("a token is missing")),
            })
            .on_message(|ws, _, message| ws.send(message)),
        );
    Server::new(app).limits(Limits::default().max_backlog(64 << 20))
}

fn url(address: SocketAddr, path: &str) -> String {
    format!("ws://{address}{path}")
}

fn text(client: &mut Client) -> String {
    match client.recv().unwrap() {
        Some(Message::Text(text)) => text.to_owned(),
        other => panic!("not a text: {other:?}"),
    }
}

#[test]
fn the_example_gets_its_echo() {
    let (address, running) = start(server());
    assert_eq!(example::greet(&url(address, "/echo"), "hello").unwrap(), "hello");
    stop(running);
}

#[test]
fn messages_of_all_sizes_and_kinds_come_back() {
    let (address, running) = start(server());
    let mut client = Client::connect(&url(address, "/echo")).unwrap();
    for len in [0, 1, 125, 126, 1000, 65_535, 65_536, 200_000, 4 << 20] {
        let sent = throng_testkit::noise(len, len as u64);
        client.send(&sent).unwrap();
        assert_eq!(client.recv().unwrap(), Some(Message::Binary(&sent)), "{len}");
        let sent = "ä".repeat(len / 2);
        client.send(&sent).unwrap();
        assert_eq!(client.recv().unwrap(), Some(Message::Text(&sent)), "{len}");
    }
    assert_eq!(client.close(1000, "done").unwrap().code, 1000);
    assert_eq!(client.recv().unwrap(), None);
    assert!(matches!(client.send("x"), Err(ClientError::Closed(None))));
    stop(running);
}

#[test]
fn queued_messages_leave_together_and_keep_their_order() {
    let (address, running) = start(server());
    let mut client = Client::connect(&url(address, "/echo")).unwrap();
    for number in 0..1000 {
        client.queue(&number.to_string()).unwrap();
    }
    for number in 0..1000 {
        assert_eq!(text(&mut client), number.to_string());
    }
    stop(running);
}

#[test]
fn compressed_messages_come_back_with_and_without_a_context() {
    for mode in [DeflateMode::Shared, DeflateMode::Window { bits: 12 }] {
        let (address, running) = start(server().compression(Deflate::new(mode)));
        let builder = Client::builder(&url(address, "/echo")).compression(Deflate::new(mode));
        let mut client = builder.connect().unwrap();
        assert!(client.is_compressed());
        for round in 0..20 {
            let sent = format!("{{\"round\": {round}, \"text\": \"{}\"}}", "again ".repeat(100));
            client.send(&sent).unwrap();
            assert_eq!(text(&mut client), sent);
        }
        client.send("").unwrap();
        assert_eq!(text(&mut client), "");
        client.close(1000, "").unwrap();
        stop(running);
    }
    let (address, running) = start(server());
    let offer = Client::builder(&url(address, "/echo")).compression(Compression::Shared);
    assert!(!offer.connect().unwrap().is_compressed(), "the server may decline");
    stop(running);
}

#[test]
fn headers_and_subprotocols_reach_the_server() {
    let (address, running) = start(server());
    let offers = Client::builder(&url(address, "/chat")).subprotocol("v1").subprotocol("v3");
    assert_eq!(offers.connect().unwrap().subprotocol(), Some("v1"));
    let private = Client::builder(&url(address, "/private"));
    let Err(ClientError::Refused(refused)) = private.clone().connect() else {
        panic!("not refused")
    };
    assert_eq!(refused.status, 401);
    assert!(refused.body.ends_with(b"a token is missing\n"));
    assert!(refused.header("content-length").is_some());
    let mut client = private.header("Authorization", "Bearer 42").connect().unwrap();
    client.send("in").unwrap();
    assert_eq!(text(&mut client), "in");
    stop(running);
}

#[test]
fn the_servers_close_is_answered_and_reported() {
    let (address, running) = start(server());
    let mut client = Client::connect(&url(address, "/bye")).unwrap();
    client.send("x").unwrap();
    assert_eq!(client.recv().unwrap(), None);
    let close = client.close_frame().unwrap();
    assert_eq!((close.code.get(), close.reason.as_str()), (4001, "enough"));
    assert_eq!(client.recv().unwrap(), None, "also afterwards");
    stop(running);
}

#[test]
fn a_large_message_is_sent_and_received_in_parts() {
    let (address, running) = start(server());
    let builder = Client::builder(&url(address, "/echo")).receive_chunks();
    let mut client = builder.connect().unwrap();
    let sent = throng_testkit::noise(3_000_000, 1);
    assert_eq!(client.send_reader(false, &sent[..]).unwrap(), 3_000_000);
    let (mut received, mut longest) = (Vec::new(), 0);
    while let Some(chunk) = client.recv_chunk().unwrap() {
        assert_eq!((chunk.first, chunk.text), (received.is_empty(), false));
        longest = longest.max(chunk.bytes.len());
        received.extend_from_slice(chunk.bytes);
        if chunk.last {
            break;
        }
    }
    assert!(received == sent && longest <= 256 << 10, "a chunk of {longest} bytes");
    assert!(matches!(client.recv(), Err(ClientError::Setting(_))));
    client.close(1000, "").unwrap();
    stop(running);
}

#[test]
fn no_message_in_time_does_not_end_the_session() {
    let (address, running) = start(server());
    let mut client = Client::connect(&url(address, "/echo")).unwrap();
    let error = client.recv_timeout(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Receiving, .. }), "{error}");
    client.send("still here").unwrap();
    assert_eq!(client.recv_timeout(TIMEOUT).unwrap(), Some(Message::Text("still here")));
    stop(running);
}
