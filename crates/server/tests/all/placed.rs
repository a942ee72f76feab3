//! Sessions that are placed on event loops by key, and the state that they share there.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use throng::asynchronous::AsyncOptions;
use throng::prelude::*;
use throng::server::{AccessEntry, AccessLog, IoBackend, Observe, Shard, Shards};
use throng_proto::ws;
use throng_proto::ws::Opcode;
use throng_proto::ws::handshake::{Key, encode_request};

use crate::support::served::{dial_narrow, start, start_narrow, stop};
use crate::support::{Client, Got, TIMEOUT, dial, eventually, read_head};

const BACKENDS: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Portable];

/// Members of the rooms of one event loop.
#[derive(Default)]
struct Rooms(HashMap<String, Vec<Handle>>);

fn room_of(request: &Request<'_>) -> Result<String, Reject> {
    match request.param("room") {
        Some("locked") | None => Err(Reject::forbidden()),
        Some(room) => Ok(room.to_owned()),
    }
}

/// A room that sends its members their number, and echoes.
fn counted(ws: Ws<String>) -> Ws<String> {
    ws.place_by(|room| room)
        .on_open(|ws, room| {
            let member = ws.handle();
            let members = ws.shard_state::<Rooms>().0.entry(room.clone()).or_default();
            members.push(member);
            let text = members.len().to_string();
            ws.send(text);
        })
        .on_close(|ws, room, _| {
            let member = ws.handle();
            let members = ws.shard_state::<Rooms>().0.get_mut(room);
            members.expect("its own room").retain(|other| *other != member);
        })
        .on_message(|ws, _, message| ws.send(message))
}

fn app() -> App {
    App::new()
        .ws("/now/{room}", counted(Ws::from_request(room_of)))
        .ws(
            "/blocking/{room}",
            counted(Ws::from_request_blocking(room_of))
                .on_accept(|_, headers| headers.add("X-Room", "yours")),
        )
        .get("/", |_| "page")
        .get("/large", |_| "0123456789".repeat(30_000))
}

/// Connections that event loops have given to others.
fn moved(running: &Running) -> u64 {
    running.shard_stats().iter().map(|stats| stats.handed_over).sum()
}

/// Upgrades on a connection, with a message right behind the request.
fn upgrade(mut stream: TcpStream, path: &str, first: &str) -> (String, Client) {
    let mut bytes = Vec::new();
    let key = Key::new(*b"0123456789abcdef");
    encode_request("localhost", path, &key, &[], &[], &mut bytes).unwrap();
    ws::encode_masked(Opcode::Text, first.as_bytes(), [1, 2, 3, 4], &mut bytes);
    stream.write_all(&bytes).unwrap();
    let head = read_head(&mut stream);
    (head, Client::opened(stream))
}

fn leave(mut client: Client) {
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    assert_eq!(client.next(), Got::Close(1000, String::new()));
    assert_eq!(client.next(), Got::End);
}

/// Rooms of [`visit`]: so many that they are not all on one of three loops by chance.
const ROOMS: usize = 20;
const VISITS: usize = 4 * ROOMS;

/// Lets members join each of the rooms in turn, and leave.
fn visit(address: SocketAddr, path: &str, what: &str) {
    let mut all = Vec::new();
    for count in 1..=VISITS / ROOMS {
        for room in 0..ROOMS {
            let (head, mut client) = upgrade(dial(address), &format!("{path}{room}"), "early");
            assert!(head.starts_with("HTTP/1.1 101 "), "{what}: {head}");
            for expected in [count.to_string(), "early".to_owned()] {
                assert_eq!(client.next(), Got::Text(expected), "{what}, room {room}");
            }
            client.send_text("later");
            assert_eq!(client.next(), Got::Text("later".into()), "{what}");
            all.push(client);
        }
    }
    all.into_iter().for_each(leave);
}

#[test]
fn all_sessions_of_a_key_share_the_state_of_one_event_loop() {
    for io in BACKENDS {
        // As many as there are sessions: none may count twice, or remain.
        let limits =
            Limits::default().max_connections(2 * VISITS).max_connections_per_address(VISITS);
        let (address, running) =
            start(Server::new(app()).shards(Shards::new().io(io).count(3)).limits(limits));
        let sessions = 2 * 2 * VISITS as u64;
        for path in ["/now/", "/blocking/"] {
            for round in 0..2 {
                visit(address, path, &format!("{io:?} {path} {round}"));
                eventually("they are gone", || running.stats().connections == 0);
            }
        }
        eventually("some have moved", || moved(&running) > 0);
        eventually("all are counted", || running.stats().closed_clean == sessions);
        let used = running.shard_stats().iter().filter(|stats| stats.opened > 0).count();
        assert!(used > 1, "{io:?}: all rooms on one of three loops");
        let stats = running.stats();
        assert_eq!((stats.opened, stats.closed_clean), (sessions, sessions), "{io:?}");
        assert_eq!((stats.handler_panics, stats.protocol_errors), (0, 0), "{io:?}");
        stop(running);
    }
}

#[test]
fn a_request_before_and_a_refusal_stay_where_they_are() {
    for io in BACKENDS {
        let (address, running) = start(Server::new(app()).shards(Shards::new().io(io).count(3)));
        for path in ["/now/locked", "/blocking/locked"] {
            let head = Client::request(address, path, &[]).unwrap_err();
            assert!(head.starts_with("HTTP/1.1 403 "), "{io:?}: {head}");
        }
        // A connection that has had an answer before it is upgraded.
        for room in 0..6 {
            let mut stream = dial(address);
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let head = read_head(&mut stream);
            assert!(head.starts_with("HTTP/1.1 200 "), "{io:?}: {head}");
            let mut page = [0; 4];
            std::io::Read::read_exact(&mut stream, &mut page).unwrap();
            let (head, mut client) = upgrade(stream, &format!("/now/{room}"), "early");
            assert!(head.starts_with("HTTP/1.1 101 "), "{io:?}: {head}");
            assert_eq!(client.next(), Got::Text("1".into()));
            assert_eq!(client.next(), Got::Text("early".into()));
            leave(client);
        }
        stop(running);
    }
}

#[test]
fn a_connection_that_still_has_to_get_a_response_is_refused_where_it_would_move() {
    let (address, running) = start_narrow(Server::new(app()).shards(2));
    let mut room = 0;
    eventually("one is refused", || {
        room += 1;
        let mut stream = dial_narrow(address);
        let mut bytes = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
        let (key, path) = (Key::new(*b"0123456789abcdef"), format!("/now/{room}"));
        encode_request("localhost", &path, &key, &[], &[], &mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let mut page = vec![0; 300_000];
        std::io::Read::read_exact(&mut stream, &mut page).unwrap();
        let head = read_head(&mut stream);
        match head.get(..13) {
            Some("HTTP/1.1 101 ") => false,
            Some("HTTP/1.1 503 ") => true,
            _ => panic!("{head}"),
        }
    });
    stop(running);
}

#[test]
fn clients_that_go_or_come_while_they_move_leave_nothing_behind() {
    for io in BACKENDS {
        let (logged, log) = mpsc::channel();
        let server = Server::new(app())
            .shards(Shards::new().io(io).count(3))
            .observe(Observe::new().access_log(Paths(logged)));
        let (address, running) = start(server);
        for round in 0..60 {
            let mut bytes = Vec::new();
            let (key, path) = (Key::new(*b"0123456789abcdef"), format!("/now/{round}"));
            encode_request("localhost", &path, &key, &[], &[], &mut bytes).unwrap();
            let mut stream = dial(address);
            stream.write_all(&bytes).unwrap();
            // Its end comes before the move, with it, or after it.
        }
        eventually("they are gone", || {
            let stats = running.stats();
            stats.accepted == 60 && stats.connections == 0
        });
        // Each is in the log once, as a session or as a failed request.
        let mut paths: Vec<String> =
            (0..60).map(|_| log.recv_timeout(TIMEOUT).expect("a record of each")).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!((paths.len(), log.try_recv().ok()), (60, None), "{io:?}");
        visit(address, "/now/again", &format!("{io:?}"));
        stop(running);
    }
}

struct Paths(mpsc::Sender<String>);

impl AccessLog for Paths {
    fn record(&self, access: &AccessEntry<'_>) {
        // After the test the receiver is gone.
        let _ = self.0.send(access.path.to_owned());
    }
}

/// A handler of the user's, whose route places its sessions.
struct Room;

impl Handler for Room {
    type Data = String;

    fn on_upgrade(&self, request: &Request<'_>) -> Result<String, Reject> {
        room_of(request)
    }

    fn on_event(&self, ws: &mut Socket<'_, String>, room: &mut String, event: SessionEvent<'_>) {
        if let SessionEvent::Open = event {
            let counts = ws.shard_state::<HashMap<String, u32>>();
            let count = counts.entry(room.clone()).or_default();
            *count += 1;
            let text = count.to_string();
            ws.send(text);
        }
    }

    fn on_message(&self, ws: &mut Socket<'_, String>, _: &mut String, message: Message<'_>) {
        ws.send(message);
    }
}

#[test]
fn sessions_of_a_handler_type_are_placed_by_their_route() {
    let route = || Ws::handler(Room).place_by(|room| room).max_message_size(100);
    let (address, running) =
        start(Server::new(App::new().ws("/handler/{room}", route())).shards(3));
    visit(address, "/handler/", "a type");
    eventually("some have moved", || moved(&running) > 0);
    stop(running);
    let threads =
        Server::new(App::new().ws("/{room}", route())).shards(Shards::new().io(IoBackend::Threads));
    let error = threads.check().unwrap_err().to_string();
    assert!(error.contains("Ws::place_by is used"), "{error}");
}

#[test]
fn each_event_loop_calls_its_timers_with_its_own_state() {
    #[derive(Default)]
    struct Beat {
        count: u64,
        members: Vec<Handle>,
    }
    fn tick(beat: &mut Beat, shard: &mut Shard<'_>) {
        beat.count += 1;
        for member in &beat.members {
            let _ = shard.send(*member, format!("{} {}", shard.number(), beat.count));
        }
        if beat.count.is_multiple_of(10) {
            shard.publish("tens", format!("ten {}", shard.number()));
        }
        if beat.count == 40 {
            for member in beat.members.drain(..) {
                shard.close(member, 4000, "over");
            }
        }
    }
    for io in BACKENDS {
        let panics = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&panics);
        let member = Ws::from_request(|request| Ok(request.query("n").unwrap_or("").to_owned()))
            .place_by(|n| n)
            .on_open(|ws, _| {
                let member = ws.handle();
                ws.subscribe("tens");
                let beat = ws.shard_state::<Beat>();
                // The loop's timer has run since the start.
                if beat.members.is_empty() {
                    beat.count = 0;
                }
                beat.members.push(member);
            });
        let server = Server::new(App::new().ws("/", member))
            .shards(Shards::new().io(io).count(3))
            .every_on_shard(Duration::from_millis(20), tick)
            .every_on_shard(Duration::from_millis(20), move |seen: &mut usize, _| {
                *seen += 1;
                counted.fetch_add(1, Ordering::SeqCst);
                panic!("as the test wants");
            });
        let (address, running) = start(server);
        let mut clients: Vec<Client> =
            (0..20).map(|n| Client::connect(address, &format!("/?n={n}"))).collect();
        let (mut numbers, mut tens) = (Vec::new(), 0);
        for client in &mut clients {
            let (mut last, mut number) = (None, None);
            loop {
                match client.next() {
                    Got::Text(text) if text.starts_with("ten ") => tens += 1,
                    Got::Text(text) => {
                        let (of, count) = text.split_once(' ').unwrap();
                        let count: u64 = count.parse().unwrap();
                        assert_eq!(*number.get_or_insert(of.to_owned()), of, "{io:?}");
                        assert!(last.is_none_or(|last| count == last + 1), "{io:?}: {last:?}");
                        last = Some(count);
                    }
                    Got::Close(4000, reason) => break assert_eq!(reason, "over"),
                    other => panic!("{io:?}: {other:?}"),
                }
            }
            numbers.extend(number);
        }
        assert!(tens > 0, "{io:?}");
        numbers.sort();
        numbers.dedup();
        assert!(numbers.len() > 1, "{io:?}: twenty keys on one of three loops");
        assert!(panics.load(Ordering::SeqCst) > 3, "{io:?}: again and again");
        stop(running);
    }
}

#[cfg(feature = "tokio")]
#[test]
fn futures_decide_on_upgrades_and_serve_sessions_that_are_placed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let decided = Ws::from_request_async(handle.clone(), |request| async move {
        tokio::task::yield_now().await;
        let request = request.as_request();
        room_of(&request)
    });
    let served = Ws::from_request(room_of)
        .place_by(|room| room)
        .on_open(|ws, room| {
            let members = ws.shard_state::<HashMap<String, u32>>();
            let count = members.entry(room.clone()).or_default();
            *count += 1;
            let text = count.to_string();
            ws.send(text);
        })
        .on_message_async(handle, |session, message| async move { session.send(message).await })
        .async_options(AsyncOptions::new().credits(4));
    let app = App::new().ws("/decided/{room}", counted(decided)).ws("/served/{room}", served);
    let (address, running) = start(Server::new(app).shards(3));
    for path in ["/decided/", "/served/"] {
        visit(address, path, path);
    }
    eventually("some have moved", || moved(&running) > 0);
    stop(running);
}

#[test]
fn with_a_thread_for_each_connection_there_is_no_place_to_choose() {
    let app = || App::new().ws("/{room}", counted(Ws::from_request(room_of)));
    let error = Server::new(app())
        .shards(Shards::new().io(IoBackend::Threads))
        .check()
        .unwrap_err()
        .to_string();
    assert!(error.contains("Ws::place_by is used") && error.contains("take io auto"), "{error}");
    let ticking = Server::new(App::new()).every_on_shard(TIMEOUT, |(): &mut (), _| {});
    let error =
        ticking.shards(Shards::new().io(IoBackend::Threads)).check().unwrap_err().to_string();
    assert!(error.contains("every_on_shard is used"), "{error}");
    let ticking = Server::new(App::new()).every_on_shard(Duration::ZERO, |(): &mut (), _| {});
    let error = ticking.check().unwrap_err().to_string();
    assert!(error.contains("a period of every_on_shard is 0"), "{error}");
}
