//! A hub that is made before its server, for the handlers of routes.

use std::time::Duration;

use throng::prelude::*;

use crate::support::served::{start, stop};
use crate::support::{Client, Got, eventually, exchange};

fn app(hub: &Hub) -> App {
    let publisher = hub.clone();
    let news = Ws::new().on_open(|ws, ()| {
        ws.subscribe("news");
    });
    App::new().ws("/", news).post("/news", move |request| {
        publisher
            .publish("news", request.body_text().unwrap_or_default())
            .map_or(Status::SERVICE_UNAVAILABLE, |_| Status::NO_CONTENT)
    })
}

#[test]
fn a_handler_publishes_by_a_hub_that_was_made_before_its_server() {
    let hub = Hub::new();
    let server = Server::new(app(&hub)).with_hub(&hub);
    let wait = Duration::from_secs(60);
    let early = [hub.publish("news", "early").unwrap(), hub.broadcast("early").unwrap()];
    for receipt in early {
        assert_eq!(receipt.wait(wait).expect("no one is waited for").receivers(), 0);
    }
    assert!(hub.channels().is_empty() && hub.history("news", 1).is_none());
    let (address, running) = start(server);
    let mut client = Client::connect(address, "/");
    eventually("it is a member", || hub.subscribers("news") == 1);
    let request =
        "POST /news HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
    let response = exchange(address, request.as_bytes());
    assert!(response.starts_with("HTTP/1.1 204 "), "{response}");
    assert_eq!(client.next(), Got::Text("hi".into()));
    stop(running);
}

#[test]
fn a_hub_has_one_server() {
    let hub = Hub::new();
    let first = Server::new(app(&hub)).with_hub(&hub).bind("127.0.0.1:0").unwrap();
    for taken in [hub, first.hub()] {
        let error = Server::new(app(&taken)).with_hub(&taken).bind("127.0.0.1:0").unwrap_err();
        assert!(error.to_string().contains("Hub::new()"), "{error}");
    }
}
