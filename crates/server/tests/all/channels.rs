//! Publications, broadcasts, filters and subscriptions over real sockets and several shards: the
//! receivers, and the exact counts.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use throng::channel::{Delivery, Receipt};
use throng::prelude::*;
use throng::server::Shards;
use throng_proto::ws::Opcode;

use crate::support::events::Events;
use crate::support::served::{self, figure, start, stop, total};
use crate::support::{BACKENDS, Client, EXTREMES, Got, counts_of, dial, eventually};

/// The connections, by the name given as `?name=`: the handle, and the shard's thread.
type Register = Arc<Mutex<BTreeMap<String, (Handle, String)>>>;

/// `/ws?name=N&in=A,B` joins the channels named.
fn joining(register: &Register) -> Ws<(String, String)> {
    let register = Arc::clone(register);
    Ws::from_request(|request| {
        let of = |key| request.query(key).unwrap_or_default().to_owned();
        Ok((of("name"), of("in")))
    })
    .on_open(move |ws, (name, channels)| {
        for channel in channels.split(',').filter(|channel| !channel.is_empty()) {
            ws.subscribe_pattern(channel).unwrap();
        }
        let shard = std::thread::current().name().unwrap_or_default().to_owned();
        register.lock().unwrap().insert(name.clone(), (ws.handle(), shard));
    })
    .on_message(|ws, _, message| ws.send(message))
    .subprotocols(["v2", "v1"])
}

/// Answers once the server has opened the session and joined its channels.
fn join(address: SocketAddr, name: &str, channels: &str, subprotocol: &str) -> Client {
    let offered = [subprotocol];
    let offered = if subprotocol.is_empty() { &[][..] } else { &offered };
    let target = format!("/ws?name={name}&in={channels}");
    let mut client = Client::upgrade(dial(address), &target, offered, &[]).unwrap();
    client.send_text("here?");
    assert_eq!(client.next(), Got::Text("here?".to_owned()));
    client
}

/// All that came before "end".
fn until_end(client: &mut Client) -> Vec<String> {
    let mut heard = Vec::new();
    loop {
        match client.next() {
            Got::Text(text) if text == "end" => return heard,
            Got::Text(text) => heard.push(text),
            other => panic!("{other:?} after {heard:?}"),
        }
    }
}

#[test]
fn a_receipt_counts_every_receiver_of_every_shard_once() {
    let register = Register::default();
    let server = Server::new(
        served::app()
            .ws("/ws", joining(&register))
            .sse("/sse/{channel}", |request| Ok(request.param("channel").unwrap().to_owned())),
    );
    let (address, running) = start(server.shards(3));
    let hub = running.hub();
    let mut clients: Vec<Client> = (0..30)
        .map(|n| {
            let channels = if n % 3 == 0 { "all,third" } else { "all" };
            join(address, &n.to_string(), channels, "")
        })
        .collect();
    let mut streams: Vec<Events> = (0..4).map(|_| Events::open(address, "/sse/third")).collect();
    eventually("the streams listen", || hub.subscribers("third") == 14);
    assert_eq!(hub.subscribers("all"), 30);
    let delivered = |delivered| counts_of(|counts| counts.delivered = delivered);
    for (name, receipt, expected) in [
        ("to all", hub.publish("all", "a"), 30),
        ("to a third", hub.publish("third", "b"), 14),
        ("to no one", hub.publish("empty", "c"), 0),
        ("to everyone", hub.broadcast("d"), 34),
        ("to the channel", hub.broadcast_to(&Filter::new().channel("third"), "e"), 14),
        ("the end", hub.broadcast("end"), 34),
    ] {
        assert_eq!(total(&receipt.unwrap()), delivered(expected), "{name}");
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let expected: &[&str] = if n % 3 == 0 { &["a", "b", "d", "e"] } else { &["a", "d"] };
        assert_eq!(until_end(client), expected, "client {n}");
    }
    for stream in &mut streams {
        for text in ["b", "d", "e", "end"] {
            assert_eq!(stream.next_event(), Some(format!("data: {text}")));
        }
    }
    // The same in the figures that Prometheus gets: 30 + 14 + 34 + 14 + 34.
    eventually("all are counted", || figure(address, "default", "delivered") == 126);
    stop(running);
}

#[test]
fn a_batch_is_one_command_a_shard_and_comes_whole_and_in_order() {
    for io in EXTREMES {
        for shards in [1, 3] {
            let register = Register::default();
            let app = served::app().ws("/ws", joining(&register));
            let server = Server::new(app).shards(Shards::new().io(io).count(shards));
            let history = History::new(100, Duration::from_secs(600));
            let (address, running) =
                start(server.channels(Channels::new().history("kept", history)));
            let hub = running.hub();
            let mut clients: Vec<Client> =
                (0..12).map(|n| join(address, &n.to_string(), "all,kept", "")).collect();
            let texts = |who: &str| (0..50).map(|n| format!("{who} {n}")).collect::<Vec<_>>();
            // Two at once: neither comes in between the messages of the other.
            let other = hub.clone();
            let mine = texts("mine");
            let thread = std::thread::spawn(move || other.publish_all("all", mine).unwrap());
            let receipt = hub.publish_all("all", texts("yours")).unwrap();
            assert_eq!(total(&receipt).receivers(), 50 * 12);
            assert_eq!(total(&thread.join().unwrap()).receivers(), 50 * 12);
            // By a channel with history they are one publication each.
            let receipt = hub.publish_all("kept", texts("kept")).unwrap();
            assert_eq!(total(&receipt).receivers(), 50 * 12, "{io:?}, {shards} shards");
            assert_eq!(hub.history("kept", 100).unwrap().publications.len(), 50);
            assert_eq!(total(&hub.publish_all("all", [""; 0]).unwrap()), Delivery::default());
            hub.broadcast("end").unwrap();
            let first = until_end(&mut clients[0]);
            let (one, two) = match first[0].starts_with("mine") {
                true => ("mine", "yours"),
                false => ("yours", "mine"),
            };
            assert_eq!(first, [texts(one), texts(two), texts("kept")].concat(), "{io:?}");
            for client in &mut clients[1..] {
                assert_eq!(until_end(client), first, "{io:?}, {shards} shards");
            }
            stop(running);
        }
    }
}

#[test]
fn a_message_to_a_session_that_has_ended_is_counted_for_no_one() {
    for io in BACKENDS {
        let (sender, handles) = mpsc::channel();
        let opened = Ws::new().on_open(move |ws, ()| sender.send(ws.handle()).unwrap());
        let server =
            Server::new(served::app().ws("/ws", opened)).shards(Shards::new().io(io).count(2));
        let (address, running) = start(server);
        let hub = running.hub();
        let client = Client::connect(address, "/ws");
        let handle = handles.recv().unwrap();
        let sent = total(&hub.send(handle, "while it is there").unwrap());
        assert_eq!((sent.receivers(), sent.unreached), (1, 0), "{io:?}");
        drop(client);
        eventually("it has ended", || {
            // The system may report the end late: until then the session takes messages.
            let sent = total(&hub.send(handle, "after its end").unwrap());
            assert_eq!(sent.unreached, 0, "{io:?}");
            sent == Delivery::default()
        });
        stop(running);
    }
}

#[test]
fn closing_receivers_are_counted_as_closed_and_stopped_servers_as_unreached() {
    let register = Register::default();
    let (address, running) =
        start(Server::new(served::app().ws("/ws", joining(&register))).shards(2));
    let hub = running.hub();
    let mut clients: Vec<Client> =
        (0..6).map(|n| join(address, &n.to_string(), "room", "")).collect();
    let handles: Vec<Handle> = register.lock().unwrap().values().map(|(id, _)| *id).collect();
    hub.close(handles[2], 1000, "enough").unwrap();
    let expected = counts_of(|counts| {
        counts.delivered = 5;
        counts.closed = 1
    });
    let delivery = total(&hub.publish("room", "a").unwrap());
    assert_eq!((delivery, delivery.receivers()), (expected, 6));
    // Included handles are counted; an excluded one is not a receiver.
    let included = Filter::new().include(handles.iter().copied());
    assert_eq!(total(&hub.broadcast_to(&included, "b").unwrap()), expected);
    let everyone = counts_of(|counts| counts.delivered = 5);
    assert_eq!(total(&hub.broadcast("end").unwrap()), everyone);
    for (n, client) in clients.iter_mut().enumerate() {
        match n {
            2 => assert_eq!(client.next(), Got::Close(1000, "enough".to_owned())),
            _ => assert_eq!(until_end(client), ["a", "b"]),
        }
    }
    drop(clients);
    eventually("the room is empty", || hub.subscribers("room") == 0);
    assert_eq!(total(&hub.publish("room", "c").unwrap()), Delivery::default());
    stop(running);
    let none = counts_of(|counts| counts.unreached = 2);
    assert_eq!(total(&hub.publish("room", "d").unwrap()), none);
}

#[test]
fn all_conditions_of_a_filter_must_hold_and_exclude_wins() {
    let register = Register::default();
    let (address, running) =
        start(Server::new(served::app().ws("/ws", joining(&register))).shards(3));
    let hub = running.hub();
    // By number: even ones in "even", multiples of three speak v1, of five v2, the rest nothing.
    let subprotocol = |n: usize| match n {
        n if n % 3 == 0 => "v1",
        n if n % 5 == 0 => "v2",
        _ => "",
    };
    let mut clients: Vec<Client> = (0..20)
        .map(|n| {
            let channel = if n % 2 == 0 { "even" } else { "odd" };
            join(address, &format!("{n:02}"), channel, subprotocol(n))
        })
        .collect();
    let handles: Vec<Handle> = register.lock().unwrap().values().map(|(id, _)| *id).collect();
    let named = |wanted: &[usize]| wanted.iter().map(|&n| handles[n]).collect::<Vec<_>>();
    type Wanted = fn(usize) -> bool;
    let cases: [(&str, Filter, Wanted); 9] = [
        ("everyone", Filter::new(), |_| true),
        ("channel", Filter::new().channel("even"), |n| n % 2 == 0),
        ("subprotocol", Filter::new().subprotocol("v1"), |n| n % 3 == 0),
        ("unknown subprotocol", Filter::new().subprotocol("v3"), |_| false),
        ("include", Filter::new().include(named(&[1, 2, 3])).include(named(&[7])), |n| {
            [1, 2, 3, 7].contains(&n)
        }),
        ("include none", Filter::new().include([]), |_| false),
        ("exclude", Filter::new().exclude(named(&[0, 19])).exclude(named(&[5])), |n| {
            ![0, 5, 19].contains(&n)
        }),
        ("exclude wins", Filter::new().exclude(named(&[2])).include(named(&[2, 4])), |n| n == 4),
        (
            "all of them",
            Filter::new()
                .channel("even")
                .subprotocol("v1")
                .include(named(&[0, 1, 2, 3, 6, 12, 15]))
                .exclude(named(&[12])),
            |n| [0, 6].contains(&n),
        ),
    ];
    for (name, filter, wanted) in &cases {
        let delivered = (0..20).filter(|n| wanted(*n)).count() as u64;
        let delivery = total(&hub.broadcast_to(filter, *name).unwrap());
        assert_eq!(delivery, counts_of(|counts| counts.delivered = delivered), "{name}");
    }
    hub.broadcast("end").unwrap();
    for (n, client) in clients.iter_mut().enumerate() {
        let expected: Vec<_> =
            cases.iter().filter(|(.., wanted)| wanted(n)).map(|(name, ..)| *name).collect();
        assert_eq!(until_end(client), expected, "client {n}");
    }
    stop(running);
}

#[test]
fn a_callback_broadcasts_to_the_others_or_to_whom_it_wants() {
    let speaking = Ws::new().on_message(|ws, (), message| {
        match message.as_bytes() {
            b"others" => ws.broadcast("to others"),
            b"all" => ws.broadcast_to(&Filter::new(), "to all"),
            b"which?" => {
                let name = ws.subprotocol().unwrap_or("none").to_owned();
                let me = Filter::new().include([ws.handle()]);
                ws.broadcast_to(&me, name)
            }
            _ => ws.broadcast_to(&Filter::new(), "end"),
        };
    });
    let speaking = speaking.subprotocols(["v1"]);
    let (address, running) = start(Server::new(served::app().ws("/", speaking)).shards(2));
    let connect = |_| Client::upgrade(dial(address), "/", &["v0", "v1"], &[]).unwrap();
    let mut clients: Vec<Client> = (0..6).map(connect).collect();
    eventually("all are there", || running.stats().sessions == 6);
    for text in ["others", "all", "which?", "the end"] {
        clients[0].send_text(text);
    }
    assert_eq!(until_end(&mut clients[0]), ["to all", "v1"]);
    for client in &mut clients[1..] {
        assert_eq!(until_end(client), ["to others", "to all"]);
    }
    stop(running);
}

#[test]
fn peers_that_fail_in_the_middle_stop_no_other() {
    let register = Register::default();
    let (address, running) =
        start(Server::new(served::app().ws("/ws", joining(&register))).shards(3));
    let hub = running.hub();
    let mut clients: Vec<Client> =
        (0..30).map(|n| join(address, &n.to_string(), "feed", "")).collect();
    let mut failing: Vec<Client> = clients.split_off(24);
    let mut received = 0;
    for n in 0..300u32 {
        if n % 50 == 25 {
            // With unread input, and without lingering: a reset.
            let client = failing.pop().unwrap();
            socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        let delivery = total(&hub.publish("feed", n.to_string()).unwrap());
        // A client that failed is counted, or no longer there.
        assert!((24..=30).contains(&delivery.receivers()), "{delivery:?}");
        assert_eq!(delivery.unreached, 0);
        received += delivery.delivered;
    }
    assert!(failing.is_empty() && received >= 24 * 300, "{received}");
    hub.broadcast("end").unwrap();
    let all: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    for client in &mut clients {
        assert_eq!(until_end(client), all);
    }
    eventually("those that failed are gone", || hub.subscribers("feed") == 24);
    stop(running);
}

#[test]
fn threads_broadcast_while_connections_come_and_go() {
    const THREADS: usize = 3;
    const EACH: usize = 200;
    let register = Register::default();
    let (address, running) =
        start(Server::new(served::app().ws("/ws", joining(&register))).shards(3));
    let mut steady: Vec<Client> =
        (0..10).map(|n| join(address, &format!("steady-{n}"), "", "")).collect();
    let ended = AtomicBool::new(false);
    let receipts: Vec<Receipt> = std::thread::scope(|scope| {
        for churner in 0..2 {
            let ended = &ended;
            scope.spawn(move || {
                let mut round = 0;
                while !ended.load(Ordering::Relaxed) {
                    let mut client = Client::connect(address, &format!("/ws?name=c{churner}"));
                    if round % 3 == 0 {
                        client.send(Opcode::Close, &1000u16.to_be_bytes());
                    }
                    round += 1;
                }
            });
        }
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let hub = running.hub();
                scope.spawn(move || -> Vec<Receipt> {
                    let send = |n| hub.broadcast(format!("{thread} {n}")).unwrap();
                    (0..EACH).map(send).collect()
                })
            })
            .collect();
        let receipts = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        ended.store(true, Ordering::Relaxed);
        receipts
    });
    let (mut delivered, mut queued) = (0, 0);
    for delivery in receipts.iter().map(total) {
        assert!(delivery.delivered >= 10, "{delivery:?}");
        assert_eq!((delivery.dropped, delivery.unreached), (0, 0));
        delivered += delivery.delivered;
        queued += delivery.queued;
    }
    assert_eq!(receipts.len(), THREADS * EACH);
    running.hub().broadcast_to(&Filter::new().subprotocol("unused"), "x").unwrap();
    eventually("the figures say the same as the receipts", || {
        let of = |name| figure(address, "default", name);
        (of("delivered"), of("queued")) == (delivered, queued)
    });
    running.hub().broadcast("end").unwrap();
    for client in &mut steady {
        let heard = until_end(client);
        for thread in 0..THREADS {
            let of_thread: Vec<&str> =
                heard.iter().filter_map(|text| text.strip_prefix(&format!("{thread} "))).collect();
            let all: Vec<String> = (0..EACH).map(|n| n.to_string()).collect();
            assert_eq!(of_thread, all, "in the order in which their thread sent them");
        }
    }
    stop(running);
}

#[test]
fn a_full_mailbox_is_an_error_and_a_receipt_waits_for_the_last_shard() {
    let register = Register::default();
    let (unblock, blocked) = mpsc::channel::<()>();
    let (blocked, entered) = (Mutex::new(blocked), Arc::new(AtomicBool::new(false)));
    let seen = Arc::clone(&entered);
    let blocking = Ws::new()
        .on_open(|ws, ()| {
            ws.subscribe("feed");
        })
        .on_message(move |_, (), _| {
            seen.store(true, Ordering::Relaxed);
            let _ = blocked.lock().unwrap().recv();
        });
    let publishing = Ws::new().on_message(|ws, (), _| {
        let delivery = ws.publish_unordered("feed", "from a callback");
        ws.send(format!("{delivery:?}"))
    });
    let server = Server::new(
        served::app()
            .ws("/ws", joining(&register))
            .ws("/block", blocking)
            .ws("/publish", publishing),
    );
    let (address, running) = start(server.shards(2));
    let hub = running.hub();
    // Where one shard accepts for all, this one keeps it, and another shard is blocked.
    let _of_the_first = dial(address);
    // The shard to block is whichever got this one; the other has the publisher.
    let mut blocker = Client::connect(address, "/block");
    blocker.send_text("now");
    eventually("a shard is blocked", || entered.load(Ordering::Relaxed));
    let receipt = hub.publish("feed", "waits").unwrap();
    assert_eq!((receipt.wait(Duration::from_millis(20)), receipt.total()), (None, None));
    while hub.publish("feed", "more").is_ok() {}
    // New connections may reach the blocked shard, so the test opens many until one is answered.
    let delivery = answered(address);
    // A connection's publications still have room, so that the connection can be delayed instead.
    assert!(delivery.contains("unreached: 0"), "{delivery}");
    unblock.send(()).unwrap();
    assert_eq!(total(&receipt), counts_of(|counts| counts.delivered = 1));
    stop(running);
}

/// The first answer of `/publish`. Of several connections, some never get an answer.
fn answered(address: SocketAddr) -> String {
    use std::io::Write;
    let request = "GET /publish HTTP/1.1\r\nHost: localhost\r\n\
                   Upgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    let mut knocking: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = dial(address);
            stream.write_all(request.as_bytes()).unwrap();
            // "now", masked with zeros.
            stream.write_all(b"\x81\x83\0\0\0\0now").unwrap();
            stream.set_nonblocking(true).unwrap();
            (stream, Vec::new())
        })
        .collect();
    let mut found = None;
    eventually("the shard that is not blocked answers", || {
        for (stream, answer) in &mut knocking {
            let mut buffer = [0; 4096];
            if let Ok(n) = stream.read(&mut buffer) {
                answer.extend_from_slice(&buffer[..n]);
            }
            let text = String::from_utf8_lossy(answer);
            if text.contains("Delivery") && text.ends_with('}') {
                found = Some(text.into_owned());
            }
        }
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn the_number_of_subscribers_is_right_at_once() {
    let counting = Ws::new().on_message(|ws, (), message| {
        let text = String::from_utf8_lossy(message.as_bytes()).into_owned();
        let (what, channel) = text.split_at(1);
        let changed = match what {
            "+" => ws.subscribe_pattern(channel).unwrap_or(false),
            _ => ws.unsubscribe_pattern(channel),
        };
        ws.send(format!("{changed} {} {}", ws.subscribers(channel), ws.hub().subscribers(channel)))
    });
    let (address, running) = start(Server::new(served::app().ws("/", counting)).shards(3));
    let mut clients: Vec<Client> = (0..9).map(|_| Client::connect(address, "/")).collect();
    fn ask(client: &mut Client, text: &str) -> String {
        client.send_text(text);
        match client.next() {
            Got::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(ask(client, "+a.b"), format!("true {0} {0}", n + 1));
        assert_eq!(ask(client, "+a.b"), format!("false {0} {0}", n + 1));
        assert_eq!(ask(client, "+a.*"), format!("true {0} {0}", n + 1), "its own count");
        assert_eq!(ask(client, "+a..*"), "false 0 0", "malformed");
    }
    let channels = running.hub().channels().into_iter();
    let mut channels: Vec<_> = channels.map(|it| (it.name, it.members)).collect();
    channels.sort();
    assert_eq!(channels, [("a.*".into(), 9), ("a.b".into(), 9)]);
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(ask(client, "-a.b"), format!("true {0} {0}", 8 - n));
        assert_eq!(ask(client, "-a.b"), format!("false {0} {0}", 8 - n));
    }
    drop(clients);
    eventually("those that left do not count", || running.hub().channels().is_empty());
    stop(running);
}

/// A user with the name `*` must not get messages for others.
#[test]
fn a_name_of_a_user_is_literal_whatever_it_contains() {
    let inbox = Ws::from_request(|request| Ok(request.query("user").unwrap().to_owned())).on_open(
        |ws, user| {
            ws.subscribe(&format!("user.{user}"));
        },
    );
    let (address, running) = start(Server::new(served::app().ws("/", inbox)).shards(2));
    let mut mallory = Client::connect(address, "/?user=*");
    let mut bob = Client::connect(address, "/?user=bob");
    let hub = running.hub();
    let all = || ["user.*", "user.bob"].map(|channel| hub.subscribers(channel));
    eventually("both are members", || all() == [1, 1]);
    assert_eq!(total(&hub.publish("user.bob", "the key is 42").unwrap()).delivered, 1);
    assert_eq!(total(&hub.publish("user.*", "for the star").unwrap()).delivered, 1);
    assert_eq!(bob.next(), Got::Text("the key is 42".into()));
    assert_eq!(mallory.next(), Got::Text("for the star".into()));
    assert!(throng::channel::is_token("bob") && !throng::channel::is_token("*"));
    stop(running);
}

#[test]
fn a_connection_gets_a_message_once_however_many_of_its_patterns_match() {
    let register = Register::default();
    let server = Server::new(served::app().ws("/ws", joining(&register)));
    let (address, running) = start(server.shards(2));
    let hub = running.hub();
    let mut clients: Vec<Client> = (0..6)
        .map(|n| join(address, &n.to_string(), "news.eu,news.*,news.%3E,%3E,*.eu", ""))
        .collect();
    let mut elsewhere: Vec<Client> =
        (0..6).map(|n| join(address, &format!("e{n}"), "sport.*,news", "")).collect();
    let to = |delivered| counts_of(|counts| counts.delivered = delivered);
    for (channel, expected) in
        [("news.eu", 6), ("news.eu.de", 6), ("sport.eu", 12), ("news", 12), ("news.*", 6)]
    {
        assert_eq!(total(&hub.publish(channel, channel).unwrap()), to(expected), "{channel}");
    }
    hub.broadcast("end").unwrap();
    for client in &mut clients {
        let all = ["news.eu", "news.eu.de", "sport.eu", "news", "news.*"];
        assert_eq!(until_end(client), all);
    }
    for client in &mut elsewhere {
        assert_eq!(until_end(client), ["sport.eu", "news"]);
    }
    stop(running);
}

/// That they leave in one send each is counted in the simulator (`corked.rs`); here, that none
/// leaves before the callback is done, and all of them right after.
#[test]
fn publications_of_one_callback_leave_when_it_returns() {
    let watched = Arc::new(Mutex::new(None::<std::net::TcpStream>));
    let (to_watch, before_return) = (Arc::clone(&watched), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&before_return);
    let room = Ws::new()
        .on_open(|ws, ()| {
            ws.subscribe("room");
        })
        .on_message(move |ws, (), _| {
            for n in 0..5 {
                ws.publish_to_others("room", format!("message {n}"));
            }
            // The member's own end of the connection: what was written is there at once, on
            // loopback.
            let mut byte = [0; 64];
            let there = to_watch.lock().unwrap().as_ref().unwrap().peek(&mut byte);
            noted.lock().unwrap().push(there.is_ok());
        });
    let (address, running) = start(Server::new(served::app().ws("/", room)).shards(1));
    let (mut publisher, mut member) =
        (Client::connect(address, "/"), Client::connect(address, "/"));
    eventually("both are members", || running.hub().subscribers("room") == 2);
    *watched.lock().unwrap() = Some(member.stream.try_clone().unwrap());
    for _ in 0..20 {
        member.stream.set_nonblocking(true).unwrap();
        publisher.send_text("go");
        eventually("the callback has run", || before_return.lock().unwrap().len() == 1);
        member.stream.set_nonblocking(false).unwrap();
        assert_eq!(before_return.lock().unwrap().pop(), Some(false), "nothing came too early");
        for n in 0..5 {
            assert_eq!(member.next(), Got::Text(format!("message {n}")));
        }
    }
    stop(running);
}

#[test]
fn nothing_is_said_to_reach_a_connection_that_was_aborted() {
    let result = Arc::new(Mutex::new(None));
    let recorded = Arc::clone(&result);
    let aborting = Ws::new().on_message(move |ws, (), _| {
        ws.abort();
        let me = Filter::new().include([ws.handle()]);
        let delivery = ws.broadcast_to(&me, "too late").total().unwrap();
        *recorded.lock().unwrap() = Some((ws.send("too late"), delivery, ws.subscribe("room")));
    });
    let (address, running) = start(Server::new(served::app().ws("/", aborting)).shards(1));
    let mut client = Client::connect(address, "/");
    client.send_text("go");
    assert_eq!(client.next(), Got::End);
    let closed = counts_of(|counts| counts.closed = 1);
    assert_eq!(*result.lock().unwrap(), Some((Sent::Closed, closed, false)));
    stop(running);
}

#[test]
fn a_hub_closes_the_sessions_that_a_filter_selects() {
    for io in EXTREMES {
        let handles = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&handles);
        let room = Ws::from_request(|request| Ok(request.query("room").unwrap_or("").to_owned()))
            .on_open(move |ws, room| {
                ws.subscribe(room);
                noted.lock().unwrap().push(ws.handle());
            })
            .on_message(|ws, _, message| ws.send(message));
        let server =
            Server::new(served::app().ws("/ws", room)).shards(Shards::new().io(io).count(2));
        let (address, running) = start(server);
        let join = |room: &str| Client::connect(address, &format!("/ws?room={room}"));
        let mut spared = join("old");
        eventually("the first has joined", || handles.lock().unwrap().len() == 1);
        let first = handles.lock().unwrap()[0];
        let mut old: Vec<_> = (0..5).map(|_| join("old")).collect();
        let mut new: Vec<_> = (0..5).map(|_| join("new")).collect();
        let hub = running.hub();
        let joined = || hub.subscribers("old") + hub.subscribers("new");
        eventually("all have joined", || joined() == 11);
        let filter = Filter::new().channel("old").exclude([first]);
        let closed = total(&hub.close_all(&filter, 4002, "this room is closed").unwrap());
        assert_eq!((closed.delivered, closed.receivers()), (5, 5), "{io:?}");
        for client in &mut old {
            assert_eq!(client.next(), Got::Close(4002, "this room is closed".to_owned()));
        }
        for client in new.iter_mut().chain([&mut spared]) {
            client.send_text("still here");
            assert_eq!(client.next(), Got::Text("still here".to_owned()), "{io:?}");
        }
        drop((old, new, spared));
        stop(running);
    }
}
