//! A route of the Centrifuge protocol in a program of its own, whose type decides about clients.

use std::net::SocketAddr;
use std::time::Duration;

use throng::centrifuge::{
    Authority, Centrifuge, ConnectRequest, Disconnect, ErrorCode, Grant, Identity, Limits, Refusal,
};
use throng::prelude::*;

use crate::support::served::{self, start, stop};
use crate::support::{Client, Got};

/// A token is a user's name. Every user may talk in channels that begin with `chat.`.
struct Chat;

impl Authority for Chat {
    type Claims = usize;

    fn connect(&self, request: &ConnectRequest) -> Result<Identity<usize>, Refusal> {
        match request.token.as_str() {
            "" => Err(Disconnect::InvalidToken.into()),
            user => Ok(Identity {
                user: user.to_owned(),
                data: b"{\"hello\":1}".to_vec(),
                claims: user.len(),
                ..Identity::default()
            }),
        }
    }

    fn refresh(&self, _: &Identity<usize>, _: &str) -> Result<Identity<usize>, Refusal> {
        Err(ErrorCode::NotAvailable.into())
    }

    fn subscribe(
        &self,
        _: &Identity<usize>,
        channel: &str,
        _: Option<&str>,
    ) -> Result<Grant, Refusal> {
        if !channel.starts_with("chat.") {
            return Err(ErrorCode::UnknownChannel.into());
        }
        Ok(Grant { publishes: true, ..Grant::default() })
    }

    fn without_subscription(&self, _: &Identity<usize>, _: &str) -> Grant {
        Grant::default()
    }

    fn call(&self, client: &Identity<usize>, method: &str, _: &[u8]) -> Result<Vec<u8>, Refusal> {
        match method {
            "length" => Ok(client.claims.to_string().into_bytes()),
            _ => Err(ErrorCode::MethodNotFound.into()),
        }
    }

    fn take(&self, _: &Identity<usize>, data: &[u8]) -> Result<(), Disconnect> {
        if data == b"1" { Ok(()) } else { Err(Disconnect::TooManyErrors) }
    }
}

fn connect(address: SocketAddr) -> Client {
    let mut client = Client::connect(address, "/c");
    client.send_text("{\"id\":1,\"connect\":{\"token\":\"ann\"}}");
    let Got::Text(connected) = client.next() else { panic!("no text") };
    assert!(connected.contains("\"data\":{\"hello\":1}"), "{connected}");
    client
}

fn ask(client: &mut Client, command: &str, reply: &str) {
    client.send_text(command);
    assert_eq!(client.next(), Got::Text(reply.to_owned()));
}

#[test]
fn a_program_answers_calls_and_takes_messages() {
    let app = served::app().ws("/c", Centrifuge::new(Chat).route());
    let (address, running) = start(Server::new(app).shards(2));
    let mut ann = connect(address);
    let length = "{\"id\":2,\"rpc\":{\"method\":\"length\",\"data\":null}}";
    ask(&mut ann, length, "{\"id\":2,\"rpc\":{\"data\":3}}");
    let unknown = "{\"id\":3,\"rpc\":{\"method\":\"other\"}}";
    let error = "{\"id\":3,\"error\":{\"code\":104,\"message\":\"method not found\"}}";
    ask(&mut ann, unknown, error);
    let other = "{\"id\":4,\"subscribe\":{\"channel\":\"other\"}}";
    let error = "{\"id\":4,\"error\":{\"code\":102,\"message\":\"unknown channel\"}}";
    ask(&mut ann, other, error);
    ask(
        &mut ann,
        "{\"send\":{\"data\":1}}\n{\"id\":5,\"subscribe\":{\"channel\":\"chat.a\"}}",
        "{\"id\":5,\"subscribe\":{}}",
    );
    // Sessions of both event loops, and messages of other threads.
    let mut others: Vec<_> = (0..4).map(|_| connect(address)).collect();
    for other in &mut others {
        ask(
            other,
            "{\"id\":2,\"subscribe\":{\"channel\":\"chat.a\"}}",
            "{\"id\":2,\"subscribe\":{}}",
        );
    }
    let hub = running.hub();
    hub.publish("chat.a", "{\"n\":1}").unwrap();
    hub.broadcast("to all").unwrap();
    others.push(ann);
    for client in &mut others {
        let push = "{\"push\":{\"channel\":\"chat.a\",\"pub\":{\"data\":{\"n\":1}}}}";
        assert_eq!(client.next(), Got::Text(push.to_owned()));
        let push = "{\"push\":{\"message\":{\"data\":\"to all\"}}}";
        assert_eq!(client.next(), Got::Text(push.to_owned()));
    }
    let mut ann = others.pop().unwrap();
    ann.send_text("{\"send\":{\"data\":2}}");
    assert_eq!(ann.next().close_code(), Some(3509));
    stop(running);
}

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

#[test]
fn limits_of_time_are_kept() {
    let connects = limits(|limits| limits.connect_timeout = Duration::from_millis(200));
    let pings = limits(|limits| {
        limits.ping_interval = Duration::from_millis(200);
        limits.pong_timeout = Duration::from_secs(3);
    });
    let app = served::app()
        .ws("/slow", Centrifuge::new(Chat).limits(connects).route())
        .ws("/c", Centrifuge::new(Chat).limits(pings).route());
    let (address, running) = start(Server::new(app).shards(1));
    let mut silent = Client::connect(address, "/slow");
    assert_eq!(silent.next(), Got::Close(3502, "stale".to_owned()));
    let mut ann = connect(address);
    for _ in 0..2 {
        assert_eq!(ann.next(), Got::Text("{}".to_owned()));
        ann.send_text("{}");
    }
    let end = loop {
        match ann.next() {
            Got::Text(ping) => assert_eq!(ping, "{}"),
            other => break other,
        }
    };
    assert_eq!(end, Got::Close(3012, "no pong".to_owned()));
    stop(running);
}
