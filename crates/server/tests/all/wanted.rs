//! Filters of receivers: the selected messages, the messages that pass anyway, and the counts.

use std::net::SocketAddr;
use std::time::Duration;

use throng::channel::{History, Position};
use throng::prelude::*;

use crate::support::served::{self, figure, start, stop, total};
use crate::support::{Client, Got, counts_of, eventually};

/// The number at the front of a payload.
fn size(frame: &Frame) -> u32 {
    let size = frame.payload().split(|byte| *byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(size).ok().and_then(|size| size.parse().ok()).expect("a number")
}

/// `/trades?since=P` sends its missed trades. A client sends its smallest size, or `all`, or
/// `panic` for a filter that panics; it gets the same text back.
fn trades() -> Ws<String> {
    Ws::from_request(|request| Ok(request.query("since").unwrap_or_default().to_owned()))
        .on_open(|ws, since: &mut String| {
            if let Ok(since) = since.parse::<Position>() {
                ws.deliver_if(|frame| size(frame) >= 5);
                let recovery = ws.subscribe_since("trades", since);
                ws.send_missed(&recovery);
            } else {
                ws.subscribe("trades");
            }
        })
        .on_message(|ws, _, message| {
            let Message::Text(text) = message else { return };
            match text.parse() {
                Ok(least) => ws.deliver_if(move |frame| size(frame) >= least),
                Err(_) if text == "all" => ws.deliver_all(),
                Err(_) => ws.deliver_if(|_| panic!("as the test wants")),
            }
            ws.send(text);
        })
}

fn join(address: SocketAddr, target: &str) -> Client {
    let mut client = Client::connect(address, target);
    want(&mut client, "all");
    client
}

fn want(client: &mut Client, what: &str) {
    client.send_text(what);
    assert_eq!(client.next(), Got::Text(what.to_owned()));
}

fn serve(shards: usize) -> (SocketAddr, Running) {
    let history = History::new(100, Duration::from_secs(600));
    let server = Server::new(served::app().ws("/trades", trades())).shards(shards);
    start(server.channels(Channels::new().history("trades", history)))
}

#[test]
fn a_filter_selects_publications_and_broadcasts_and_not_messages_to_its_session() {
    for shards in [1, 3] {
        let (address, running) = serve(shards);
        let hub = running.hub();
        let mut clients: Vec<Client> = (0..6).map(|_| join(address, "/trades")).collect();
        for (client, least) in clients.iter_mut().zip(["all", "5", "9", "all", "5", "9"]) {
            want(client, least);
        }
        let counts = |delivered, filtered| {
            counts_of(|counts| (counts.delivered, counts.filtered) = (delivered, filtered))
        };
        assert_eq!(total(&hub.publish("trades", "4 a").unwrap()), counts(2, 4));
        assert_eq!(total(&hub.publish("trades", "7 b").unwrap()), counts(4, 2));
        assert_eq!(total(&hub.broadcast("9 c").unwrap()), counts(6, 0));
        assert_eq!(total(&hub.broadcast("8 d").unwrap()), counts(4, 2));
        // A filter replaces the one before, and may be removed.
        want_between(&mut clients[1], "9", &["7 b", "9 c", "8 d"]);
        want_between(&mut clients[2], "all", &["9 c"]);
        assert_eq!(total(&hub.publish("trades", "6 e").unwrap()), counts(4, 2));
        assert_eq!(total(&hub.publish("trades", "9 end").unwrap()), counts(6, 0));
        let expected: [&[&str]; 6] = [
            &["4 a", "7 b", "9 c", "8 d", "6 e"],
            &[],
            &["6 e"],
            &["4 a", "7 b", "9 c", "8 d", "6 e"],
            &["7 b", "9 c", "8 d", "6 e"],
            &["9 c"],
        ];
        for (client, expected) in clients.iter_mut().zip(expected) {
            for text in expected.iter().chain(&["9 end"]) {
                assert_eq!(client.next(), Got::Text((*text).to_owned()));
            }
        }
        let filtered = || ["default", "trades"].map(|class| figure(address, class, "filtered"));
        eventually("all are counted", || filtered() == [2, 8]);
        stop(running);
    }
}

/// Changes what a client wants, which gets these messages before the answer.
fn want_between(client: &mut Client, what: &str, before: &[&str]) {
    client.send_text(what);
    for text in before.iter().chain(&[what]) {
        assert_eq!(client.next(), Got::Text((*text).to_owned()));
    }
}

#[test]
fn missed_publications_are_filtered_as_live_ones() {
    let (address, running) = serve(1);
    let hub = running.hub();
    let position = |receipt: throng::channel::Receipt| {
        total(&receipt);
        receipt.position().expect("the channel has a history")
    };
    let first = position(hub.publish("trades", "1 a").unwrap());
    for text in ["5 b", "2 c", "7 d"] {
        total(&hub.publish("trades", text).unwrap());
    }
    let mut client = Client::connect(address, &format!("/trades?since={first}"));
    for text in ["5 b", "7 d"] {
        assert_eq!(client.next(), Got::Text(text.to_owned()));
    }
    total(&hub.publish("trades", "3 e").unwrap());
    total(&hub.publish("trades", "5 f").unwrap());
    assert_eq!(client.next(), Got::Text("5 f".to_owned()));
    stop(running);
}

#[test]
fn a_filter_that_panics_ends_its_session_and_nothing_else() {
    let (address, running) = serve(1);
    let hub = running.hub();
    let mut clients: Vec<Client> = (0..3).map(|_| join(address, "/trades")).collect();
    want(&mut clients[1], "panic");
    let counts = counts_of(|counts| (counts.delivered, counts.closed) = (2, 1));
    assert_eq!(total(&hub.publish("trades", "1 a").unwrap()), counts);
    for n in [0, 2] {
        assert_eq!(clients[n].next(), Got::Text("1 a".to_owned()));
    }
    assert_eq!(clients[1].next().close_code(), Some(1011));
    let panics = || {
        let stats: serde_json::Value =
            serde_json::from_str(&served::get(address, "/stats.json")).unwrap();
        stats["handler_panics"].as_u64()
    };
    eventually("the panic is counted", || panics() == Some(1));
    stop(running);
}
