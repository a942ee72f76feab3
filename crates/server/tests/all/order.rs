//! The order of a session's publications, messages, joins and leaves, also when publications of
//! others wait for its event loop. A publication of the hub makes the next ones of callbacks wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use throng::prelude::*;
use throng::server::Shard;
use throng::test::{LocalClient, LocalServer, TestServer};
use throng::ws::Incompressible;

/// All texts that have come.
fn texts(client: &mut LocalClient) -> Vec<String> {
    let text = |message: OwnedMessage| String::from_utf8(message.as_bytes().to_vec()).unwrap();
    std::iter::from_fn(|| client.try_recv()).map(text).collect()
}

/// A server whose sessions join "room" and then do what `on_message` does.
fn room<F>(on_message: F) -> LocalServer
where
    F: Fn(&mut Socket<'_>, &str) + Send + Sync + 'static,
{
    let ws = Ws::new()
        .on_open(|ws, ()| {
            ws.subscribe("room");
        })
        .on_message(move |ws, (), message| {
            let Message::Text(text) = message else { return };
            on_message(ws, text);
        })
        .on_drained(|ws, ()| {
            ws.send("drained");
        });
    let mut limits = Limits::default();
    limits.max_backlog = 1000;
    LocalServer::start(Server::new(App::new().ws("/", ws)).limits(limits))
}

#[test]
fn a_message_arrives_after_what_its_session_has_published_before() {
    let server = room(|ws, text| match text {
        "text" => {
            drop(ws.publish("room", "a"));
            ws.send("1");
            ws.send(Frame::text("2"));
            drop(ws.publish("room", "b"));
            ws.send(Incompressible("3"));
        }
        "broadcast" => {
            drop(ws.broadcast_to(&Filter::new(), "a"));
            ws.send("1");
        }
        "close" => {
            drop(ws.publish("room", "a"));
            ws.send("1");
            ws.close(CloseCode::new(4000), "done");
            assert_eq!(ws.send("2"), Sent::Closed);
            assert!(!ws.subscribe("other"));
        }
        "others" => {
            drop(ws.publish_to_others("room", "a"));
            ws.send("1");
        }
        "elsewhere" => {
            drop(ws.publish("another", "a"));
            ws.send("1");
        }
        again => {
            ws.send(again);
        }
    });
    for (what, expected) in [
        ("text", &["before", "a", "1", "2", "b", "3"][..]),
        ("broadcast", &["before", "a", "1"]),
        ("close", &["before", "a", "1"]),
        // The session gets none of these publications, so the message cannot overtake them.
        ("others", &["1", "before"]),
        ("elsewhere", &["1", "before"]),
    ] {
        let mut client = server.ws("/");
        for before in [false, true] {
            if before {
                drop(server.hub().publish("room", "before").unwrap());
            }
            client.send(what);
            let is_closed = what == "close";
            let expected = if before { expected } else { &[][..] };
            let got = texts(&mut client);
            if before {
                assert_eq!(got, expected, "{what}");
            }
            if is_closed {
                assert_eq!(client.close_frame().map(|close| close.code.get()), Some(4000));
                client = server.ws("/");
            }
        }
        if what != "close" {
            client.send("again");
            assert_eq!(texts(&mut client), ["again"], "nothing is held any more");
        }
    }
}

#[test]
fn limits_hold_for_what_waits_for_a_publication() {
    let server = room(|ws, text| {
        drop(ws.publish("room", "published"));
        let count: usize = text.parse().unwrap();
        let sent: Vec<Sent> = (0..count).map(|_| ws.send("x".repeat(400))).collect();
        assert_eq!(sent[..2], [Sent::Accepted, Sent::Queued], "{sent:?}");
        assert!(ws.backlog() >= 800);
        let is_over = sent.iter().any(|sent| matches!(sent, Sent::Dropped | Sent::Closed));
        assert_eq!(is_over, count > 50, "{count}");
    });
    let mut client = server.ws("/");
    drop(server.hub().publish("room", "before").unwrap());
    client.send("3");
    let got = texts(&mut client);
    assert_eq!((&got[..2], got.len()), (&["before".to_owned(), "published".to_owned()][..], 6));
    assert_eq!(got[5], "drained");
    drop(server.hub().publish("room", "before").unwrap());
    client.send("100");
    while client.try_recv().is_some() {}
    assert_eq!(client.close_frame().map(|close| close.code.get()), Some(1008));
}

#[test]
fn a_member_gets_what_is_published_from_its_join_on() {
    let server = room(|ws, text| match text {
        "join" => {
            drop(ws.publish("chat", "mine"));
            ws.subscribe("chat");
            ws.send("snapshot");
        }
        "pattern" => {
            drop(ws.publish("chat", "mine"));
            assert_eq!(ws.subscribe_pattern("*"), Ok(true));
        }
        "again" => {
            ws.unsubscribe("chat");
            ws.subscribe("chat");
        }
        "leave" => {
            ws.unsubscribe("chat");
        }
        _ => {}
    });
    let publish = |text: &str| drop(server.hub().publish("chat", text).unwrap());
    let mut client = server.ws("/");
    let after = |client: &mut LocalClient, what: &str| {
        publish("before");
        client.send(what);
        publish("after");
        texts(client)
    };
    assert_eq!(after(&mut client, "join"), ["snapshot", "after"]);
    assert_eq!(after(&mut client, "nothing"), ["before", "after"]);
    assert_eq!(after(&mut client, "again"), ["after"], "it has left and joined again");
    // An existing member misses nothing by another subscription.
    assert_eq!(after(&mut client, "pattern"), ["before", "mine", "after"]);
    assert_eq!(after(&mut client, "leave"), ["before", "after"], "by the pattern");
    assert_eq!(after(&mut client, "join"), ["before", "mine", "snapshot", "after"]);
    let mut other = server.ws("/");
    assert_eq!(after(&mut other, "pattern"), ["after"]);
}

#[test]
fn a_timer_of_the_event_loop_sends_behind_what_it_has_published() {
    #[derive(Default)]
    struct Members(Vec<Handle>);
    let ws = Ws::new().on_open(|ws, ()| {
        ws.subscribe("room");
        let member = ws.handle();
        ws.shard_state::<Members>().0.push(member);
    });
    let tick = |members: &mut Members, shard: &mut Shard<'_>| {
        drop(shard.hub().publish("room", "before"));
        shard.publish("room", "published");
        for member in members.0.drain(..) {
            assert_eq!(shard.send(member, "sent"), Sent::Accepted);
            shard.close(member, 4000, "");
        }
    };
    let period = Duration::from_secs(1);
    let server = Server::new(App::new().ws("/", ws)).every_on_shard(period, tick);
    let server = LocalServer::start(server);
    let mut client = server.ws("/");
    server.advance(Duration::from_secs(2));
    assert_eq!(texts(&mut client), ["before", "published", "sent"]);
    assert_eq!(client.close_frame().map(|close| close.code.get()), Some(4000));
}

/// Echoes by publications and messages, on two event loops.
fn busy() -> TestServer {
    let ws = Ws::new().on_message(|ws, (), message| {
        let Message::Text(text) = message else { return };
        match text.split_once(' ') {
            Some(("publish,send", n)) => {
                drop(ws.publish("room", format!("published {n}")));
                ws.send(format!("sent {n}"));
            }
            Some(("publish,join", n)) => {
                drop(ws.publish("room", format!("mine {n}")));
                ws.subscribe("room");
            }
            Some(("leave", _)) => {
                ws.unsubscribe("room");
            }
            _ if text == "join" => {
                ws.subscribe("room");
            }
            _ => drop(ws.publish("room", text)),
        }
    });
    TestServer::start(Server::new(App::new().ws("/", ws)).shards(2))
}

#[test]
fn nothing_is_overtaken_between_event_loops() {
    let server = busy();
    let rounds = |client: usize| {
        let builder = server.client("/");
        move || {
            let mut ws = builder.connect().unwrap();
            ws.send("join").unwrap();
            for n in 0..100 {
                let mark = format!("{client}/{n}");
                ws.send(format!("publish,send {mark}").as_str()).unwrap();
                let mut is_published = false;
                loop {
                    let Some(Message::Text(text)) = ws.recv().unwrap() else { panic!("it ended") };
                    match text.split_once(' ').unwrap() {
                        ("published", of) => is_published |= of == mark,
                        (_, of) => {
                            assert!(is_published && of == mark, "{text} overtook {mark}");
                            break;
                        }
                    }
                }
            }
        }
    };
    let clients: Vec<_> = (0..8).map(|n| std::thread::spawn(rounds(n))).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_join_between_event_loops_begins_behind_what_its_session_published() {
    let server = busy();
    let is_over = Arc::new(AtomicBool::new(false));
    let noise = |number: usize| {
        let (builder, is_over) = (server.client("/"), Arc::clone(&is_over));
        move || {
            let mut ws = builder.connect().unwrap();
            ws.send("join").unwrap();
            for round in 0.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let mark = format!("noise-{number}-{round}");
                ws.send(mark.as_str()).unwrap();
                while ws.recv().unwrap() != Some(Message::Text(&mark)) {}
            }
        }
    };
    let noises: Vec<_> = (0..6).map(|n| std::thread::spawn(noise(n))).collect();
    let mut ws = server.ws("/");
    for n in 0..200 {
        ws.send(format!("publish,join {n}").as_str()).unwrap();
        ws.send(format!("end-{n}").as_str()).unwrap();
        loop {
            let Some(Message::Text(text)) = ws.recv().unwrap() else { panic!("it ended") };
            assert!(!text.starts_with("mine"), "{text}");
            if text == format!("end-{n}") {
                break;
            }
        }
        ws.send("leave it").unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    noises.into_iter().for_each(|noise| noise.join().unwrap());
}
