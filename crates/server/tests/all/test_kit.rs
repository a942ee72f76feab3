//! The test kit, with and without a network. Tests of some examples also use it.

use std::time::Duration;

use throng::prelude::*;
use throng::test::{LocalServer, TestServer};

fn echo() -> App {
    App::new()
        .ws("/", Ws::new().on_message(|ws, (), message| ws.send(message)))
        .get("/hello/{name}", |request| format!("hello {}", request.param("name").unwrap_or("you")))
        .post("/length", |request| request.body().len().to_string())
}

#[test]
fn a_server_stops_when_it_is_dropped() {
    let server = TestServer::start(Server::new(echo()));
    let address = server.address();
    let mut client = server.ws("/");
    client.send("hello").unwrap();
    assert_eq!(client.recv().unwrap(), Some(Message::Text("hello")));
    assert_eq!(server.get("/hello/ada").text(), "hello ada");
    assert_eq!(server.post("/length", [0; 5000]).text(), "5000");
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err(), "the port is free again");
}

#[test]
fn handlers_run_without_a_network() {
    let server = LocalServer::start(Server::new(echo()));
    assert_eq!(server.get("/hello/ada").text(), "hello ada");
    assert_eq!(server.get("/nowhere").status, 404);
    assert_eq!(server.post("/length", vec![0; 100_000]).text(), "100000");
    let mut client = server.ws("/");
    for len in [0, 1, 125, 126, 70_000, 1_000_000] {
        let sent = "a".repeat(len);
        client.send(&sent);
        assert_eq!(client.recv(), OwnedMessage::from(sent));
    }
    assert_eq!(client.try_recv(), None);
    assert_eq!(client.close(1000, "done").code, 1000);
    assert!(client.is_ended());
}

#[test]
fn a_handlers_close_and_a_clients_absence_are_seen() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let handler = Ws::new()
        .on_message(|ws, (), message| match message {
            Message::Text("bye") => ws.close(CloseCode::new(4000), "as you wish"),
            _ => ws.close(CloseCode::UNSUPPORTED_DATA, "no"),
        })
        .on_close(move |_, (), close| sender.send(close.code.get()).unwrap());
    let server = LocalServer::start(Server::new(App::new().ws("/", handler)));
    let mut client = server.ws("/");
    client.send("bye");
    assert_eq!(client.try_recv(), None);
    let close = client.close_frame().unwrap();
    assert_eq!((close.code.get(), close.reason.as_str()), (4000, "as you wish"));
    assert_eq!(receiver.try_recv(), Ok(4000));
    drop(server.ws("/"));
    assert_eq!(receiver.try_recv(), Ok(1006));
}

#[test]
fn time_passes_when_the_test_says_so() {
    let handler = Ws::new().on_open(|ws, ()| {
        ws.after(Duration::from_secs(60), |ws, ()| {
            ws.send("a minute");
        });
    });
    let limits = Limits::default();
    let server = LocalServer::start(Server::new(App::new().ws("/", handler)).limits(limits));
    let mut client = server.ws("/");
    server.advance(Duration::from_secs(59));
    assert_eq!(client.try_recv(), None, "but the heartbeat's pings are answered");
    server.advance(Duration::from_secs(1));
    assert_eq!(client.recv(), OwnedMessage::from("a minute"));
}

#[test]
fn a_hub_reaches_clients_without_a_network() {
    let handler = Ws::new().on_open(|ws, ()| {
        ws.subscribe("news");
    });
    let server = LocalServer::start(Server::new(App::new().ws("/", handler)));
    let mut clients = [server.ws("/"), server.ws("/")];
    server.hub().publish("news", "extra").unwrap();
    for client in &mut clients {
        assert_eq!(client.recv(), OwnedMessage::from("extra"));
    }
}

#[test]
fn a_refusal_has_its_status() {
    let private = Ws::from_request(|request| match request.header("authorization") {
        Some("Bearer 42") => Ok(()),
        _ => Err(Reject::unauthorized()),
    });
    let server = LocalServer::start(Server::new(App::new().ws("/", private)));
    let builder = throng::client::Client::builder("ws://localhost/");
    let error = server.connect(&builder).unwrap_err();
    assert!(
        matches!(error, throng::client::ClientError::Refused(refused) if refused.status == 401)
    );
    assert!(server.connect(&builder.header("Authorization", "Bearer 42")).is_ok());
}
