//! Presence over real sockets: members are listed, and each join has exactly one leave, for any end
//! of the connection.

#[path = "../../examples/presence.rs"]
mod example;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use throng::channel::{PresenceEvent, PresenceSwitch};
use throng::http::EventStream;
use throng::prelude::*;
use throng::server::Shards;

use crate::support::events::Events;
use crate::support::served::{self, start, stop, total};
use crate::support::{Client, EXTREMES, Got, TIMEOUT, dial, eventually};

/// `/ws?name=` joins `chat.a`; a message may panic, be published, or leave.
fn app() -> App {
    let chat = Ws::from_request(|request| Ok(request.query("name").unwrap_or_default().to_owned()))
        .on_open(|ws, name| {
            let joined = ws.subscribe_as("chat.a", name, None).joined;
            assert!(joined && !ws.subscribe_as("chat.a", "another", None).joined);
            ws.subscribe("other");
        })
        .on_message(|ws, _, message| match message {
            Message::Text("panic") => panic!("as it was asked to"),
            Message::Text("leave") => assert!(ws.unsubscribe("chat.a")),
            message => drop(ws.publish("chat.a", message)),
        });
    let stream = |request: &Request<'_>| {
        Ok(EventStream::new("chat.a").info(request.query("name").unwrap_or_default()))
    };
    served::app().ws("/ws", chat).sse("/sse", stream)
}

fn server(presence: Presence) -> Server {
    let limits = Limits::default().close_timeout(Duration::from_millis(500));
    Server::new(app()).limits(limits).channels(Channels::new().presence("chat.*", presence))
}

fn names(hub: &Hub) -> Vec<String> {
    let present = hub.presence("chat.a", 100).unwrap();
    let mut names: Vec<_> = present.into_iter().map(|one| one.info.to_string()).collect();
    names.sort_unstable();
    names
}

fn text(client: &mut Client) -> String {
    match client.next() {
        Got::Text(text) => text,
        other => panic!("not a text: {other:?}"),
    }
}

/// A join or leave without the handle.
fn event(client: &mut Client) -> (String, String) {
    let text = text(client);
    let event: serde_json::Value = serde_json::from_str(&text).unwrap();
    let change = if event["join"].is_string() { "join" } else { "leave" };
    assert_eq!(event[change].as_str().map(str::len), Some(16), "{text}");
    (change.to_owned(), event["info"].as_str().unwrap().to_owned())
}

#[test]
fn each_join_has_its_leave_once_however_the_connection_ends_on_every_backend() {
    for io in EXTREMES {
        let (address, running) =
            start(server(Presence::new().join_leave(true)).shards(Shards::new().io(io).count(2)));
        let hub = running.hub();
        let open = |name: &str| {
            Client::upgrade(dial(address), &format!("/ws?name={name}"), &[], &[]).unwrap()
        };
        let mut watcher = open("watcher");
        eventually("the watcher has joined", || names(&hub) == ["watcher"]);
        let mut expect = |change: &str, name: &str| {
            assert_eq!(event(&mut watcher), (change.to_owned(), name.to_owned()));
        };
        for end in ["close", "leave", "panic", "fault", "end"] {
            let mut client = open(end);
            expect("join", end);
            assert_eq!(names(&hub).len(), 2, "{end}");
            match end {
                "close" => client.stream.write_all(b"\x88\x82\0\0\0\0\x03\xe8").unwrap(),
                "leave" | "panic" => client.send_text(end),
                "fault" => client.stream.write_all(&[0xff; 8]).unwrap(),
                _ => client.stream.shutdown(Shutdown::Both).unwrap(),
            }
            expect("leave", end);
            drop(client);
            assert_eq!(names(&hub), ["watcher"], "{end}");
        }
        let stream = Events::open(address, "/sse?name=stream");
        expect("join", "stream");
        drop(stream);
        expect("leave", "stream");
        // Nothing came twice.
        total(&hub.publish("chat.a", "last").unwrap());
        assert_eq!(text(&mut watcher), "last");
        assert!(hub.presence("other", 100).is_none());
        stop(running);
        assert_eq!(names(&hub), [""; 0], "a shutdown is an end like any other");
    }
}

#[test]
fn a_stream_of_events_gets_joins_and_leaves_as_events_of_these_names() {
    let (address, running) = start(server(Presence::new().join_leave(true)).shards(2));
    let hub = running.hub();
    let mut stream = Events::open(address, "/sse?name=stream");
    eventually("the stream has joined", || names(&hub).len() == 1);
    let client = Client::upgrade(dial(address), "/ws?name=%22b%22", &[], &[]).unwrap();
    let join = stream.next_event().unwrap();
    let handle = hub.presence("chat.a", 100).unwrap();
    let handle = handle.iter().find(|present| &*present.info == "\"b\"").unwrap().handle;
    assert_eq!(
        join,
        format!("event: join\ndata: {{\"join\":\"{handle}\",\"info\":\"\\\"b\\\"\"}}")
    );
    drop(client);
    assert!(stream.next_event().unwrap().starts_with("event: leave\n"));
    stop(running);
}

#[test]
fn the_program_may_choose_what_members_get_and_its_panics_end_nothing() {
    let make = |event: &PresenceEvent<'_>| match event.info {
        "silent" => None,
        "panic" => panic!("as it was asked to"),
        name => Some(Frame::text(format!("{name} {:?} {}", event.change, event.channel))),
    };
    let (address, running) = start(server(Presence::new().join_leave_with(make)).shards(1));
    let hub = running.hub();
    let open = |name: &str| {
        let client = Client::upgrade(dial(address), &format!("/ws?name={name}"), &[], &[]).unwrap();
        eventually("the client has joined", || names(&hub).contains(&name.to_owned()));
        client
    };
    let mut watcher = open("watcher");
    let _others = (open("silent"), open("panic"));
    drop(open("ann"));
    assert_eq!(text(&mut watcher), "ann Join chat.a");
    assert_eq!(text(&mut watcher), "ann Leave chat.a");
    stop(running);
}

#[test]
fn presence_is_in_the_metrics_and_bounded_and_who_is_not_listed_is_a_member() {
    let limits = Limits::default().max_presence_memory(700);
    let server = server(Presence::new().join_leave(true)).limits(limits);
    let (address, running) = start(server.shards(1));
    let hub = running.hub();
    let open = |_| Client::upgrade(dial(address), "/ws?name=x", &[], &[]).unwrap();
    let mut clients: Vec<_> = (0..5).map(open).collect();
    eventually("all have joined", || hub.subscribers("chat.a") == 5);
    let metrics = served::get(address, "/metrics");
    for line in [
        "throng_presence_channels 1",
        "throng_presence_clients 3",
        "throng_presence_max_bytes 700",
        "throng_presence_joins_total 3",
        "throng_presence_unlisted_total 2",
    ] {
        assert!(metrics.lines().any(|other| other == line), "no {line} in {metrics}");
    }
    assert_eq!(total(&hub.publish("chat.a", "to all").unwrap()).receivers(), 5);
    let last = &mut clients[4];
    assert_eq!(text(last), "to all");
    drop(clients);
    eventually("all have left", || hub.subscribers("chat.a") == 0 && names(&hub).is_empty());
    let metrics = served::get(address, "/metrics");
    assert!(metrics.lines().any(|line| line == "throng_presence_bytes 0"), "{metrics}");
    stop(running);
}

/// When `n` members leave together, each of the others would get `n` messages.
#[test]
fn a_channel_of_many_members_gets_no_joins_and_learns_when_it_gets_them_again() {
    let presence = Presence::new().join_leave(true).max_announced(8);
    let (address, running) = start(server(presence).shards(2));
    let hub = running.hub();
    let mut count = 0;
    let mut open = || {
        let path = format!("/ws?name=m{count}");
        let client = Client::upgrade(dial(address), &path, &[], &[]).unwrap();
        count += 1;
        eventually("it has joined", || names(&hub).len() == count);
        client
    };
    let mut first = open();
    let mut others: Vec<_> = (1..8).map(|_| open()).collect();
    for at in 1..8 {
        assert_eq!(event(&mut first), ("join".to_owned(), format!("m{at}")));
    }
    // The ninth member, and later ones.
    others.extend((8..20).map(|_| open()));
    let switched = "{\"members\":9,\"announced\":false}";
    assert_eq!(text(&mut first), switched);
    // The ninth gets the messages for all, and later ones get them when they join.
    for (at, client) in others.iter_mut().enumerate().skip(7) {
        let given = format!("{{\"members\":{},\"announced\":false}}", at + 2);
        loop {
            let got = text(client);
            if got == given {
                break;
            }
            // Earlier joins may still be queued for the client's event loop.
            assert!(got.starts_with("{\"join\"") || got == switched, "{got}");
        }
    }
    for at in (6..20).rev() {
        drop(others.pop());
        eventually("it has left", || names(&hub).len() == at);
    }
    // Three quarters of eight are left.
    assert_eq!(text(&mut first), "{\"members\":6,\"announced\":true}");
    let mut expected: Vec<_> = (0..6).map(|at| format!("m{at}")).collect();
    assert_eq!(names(&hub), expected, "from here on a list is complete");
    drop(others.pop());
    assert_eq!(event(&mut first), ("leave".to_owned(), expected.pop().unwrap()));
    stop(running);
}

#[test]
fn a_client_learns_that_joins_are_not_announced_though_its_event_loop_is_far_behind() {
    let gone = Arc::new(OnceLock::<Handle>::new());
    let to = Arc::clone(&gone);
    let chat = Ws::new().on_open(move |ws, ()| {
        let hub = ws.hub();
        // Sends to a client that has left, until there is no room for any command.
        while to.get().is_some_and(|to| hub.send(*to, "x").is_ok()) {}
        ws.subscribe("chat.a");
    });
    let presence = Presence::new().join_leave(true).max_announced(1);
    let server = Server::new(served::app().ws("/ws", chat))
        .channels(Channels::new().presence("chat.*", presence));
    let (address, running) = start(server.shards(1));
    let hub = running.hub();
    let mut count = 0;
    let mut open = || {
        count += 1;
        let client = Client::upgrade(dial(address), "/ws", &[], &[]).unwrap();
        eventually("it has joined", || hub.presence("chat.a", 9).unwrap().len() == count);
        client
    };
    let (_first, mut leaves) = (open(), open());
    assert_eq!(text(&mut leaves), "{\"members\":2,\"announced\":false}");
    let handle = hub.presence("chat.a", 9).unwrap().pop().unwrap().handle;
    let mut third = open();
    assert_eq!(text(&mut third), "{\"members\":3,\"announced\":false}");
    drop(leaves);
    eventually("it has left", || hub.presence("chat.a", 9).unwrap().len() == 2);
    gone.set(handle).unwrap();
    let mut late = Client::upgrade(dial(address), "/ws", &[], &[]).unwrap();
    assert_eq!(text(&mut late), "{\"members\":3,\"announced\":false}");
    assert_eq!(running.stats().commands_dropped, 0, "and nothing is counted as dropped");
    stop(running);
}

#[test]
fn the_members_of_the_example_see_each_other() {
    let (address, running) = start(example::server().shards(2));
    let open = |name: &str| {
        let path = format!("/chat?name={name}");
        let mut client = Client::upgrade(dial(address), &path, &[], &[]).unwrap();
        let list = text(&mut client);
        (client, list)
    };
    let (mut ann, list) = open("ann");
    assert_eq!(list, "* here: ann");
    let (mut bob, mut list) = open("bob");
    list.retain(|c| c.is_alphabetic());
    assert!(["hereannbob", "herebobann"].contains(&&*list), "{list}");
    assert_eq!(text(&mut ann), "* bob joined");
    bob.send_text("hello");
    assert_eq!(text(&mut ann), "bob: hello");
    drop(bob);
    assert_eq!(text(&mut ann), "* bob left");
    stop(running);
}

/// Two event loops that switch at the same time: the members of both must end with the last
/// decision.
#[test]
fn a_switch_that_is_out_of_date_when_it_would_be_sent_is_not() {
    let (made, is_made) = mpsc::channel();
    let (send, may_send) = mpsc::channel::<()>();
    let may_send = Mutex::new(may_send);
    // The event loop that announces joins again waits until others have switched back.
    let switch = move |switch: &PresenceSwitch<'_>| {
        if !switch.is_announced {
            made.send(()).unwrap();
            let _ = may_send.lock().unwrap().recv_timeout(TIMEOUT);
        }
        Some(switch.to_frame())
    };
    let presence = Presence::new().join_leave_with(|_| None).max_announced(4).switch_with(switch);
    let chat = Ws::new()
        .on_open(|ws, ()| {
            ws.send(format!("{:?}", std::thread::current().id()));
        })
        .on_message(|ws, (), message| match message {
            Message::Text("join") => {
                ws.subscribe("chat.a");
                ws.send("joined");
            }
            message => drop(ws.publish("chat.a", message)),
        });
    let server = Server::new(served::app().ws("/ws", chat))
        .channels(Channels::new().presence("chat.*", presence));
    let (address, running) = start(server.shards(2));
    let hub = running.hub();
    // Clients by event loop, until one has a client, and another one four.
    let mut by_loop = BTreeMap::<String, Vec<Client>>::new();
    eventually("clients of two event loops", || {
        let mut client = Client::upgrade(dial(address), "/ws", &[], &[]).unwrap();
        let name = text(&mut client);
        by_loop.entry(name).or_default().push(client);
        by_loop.len() == 2 && by_loop.values().any(|clients| clients.len() >= 4)
    });
    let mut of_loops: Vec<_> = by_loop.into_values().collect();
    of_loops.sort_by_key(Vec::len);
    let (mut members, mut last) = (of_loops.pop().unwrap(), of_loops.pop().unwrap());
    members.truncate(4);
    for client in &mut members {
        client.send_text("join");
        assert_eq!(text(client), "joined");
    }
    let last = &mut last[0];
    last.send_text("join");
    is_made.recv_timeout(TIMEOUT).unwrap();
    // The fifth member's switch is made, and not sent. Three quarters of four are left:
    members.truncate(2);
    let member = &mut members[0];
    assert_eq!(text(member), "{\"members\":3,\"announced\":true}");
    assert_eq!(hub.presence("chat.a", 9).unwrap().len(), 3);
    send.send(()).unwrap();
    last.send_text("end");
    assert_eq!(text(member), "end", "and nothing that the other event loop decided before");
    stop(running);
}
