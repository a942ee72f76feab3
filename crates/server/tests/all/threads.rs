//! One thread for each connection: the same server, and handlers that may block.

use std::collections::HashSet;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use throng::prelude::*;
use throng::server::{IoBackend, Shards};
use throng::ws::Compression;
use throng_proto::ws::{Opcode, encode_masked};
use throng_testkit::hold_up;

use crate::support::served::{self, start, stop};
use crate::support::{Client, Got, TIMEOUT, dial, eventually, exchange, read_head};

const NO_WAIT: DrainPlan = {
    let mut plan = DrainPlan::DEFAULT;
    plan.window = Duration::ZERO;
    plan
};

fn threads(app: App) -> Server {
    Server::new(app).shards(shards())
}

fn shards() -> Shards {
    Shards::new().io(IoBackend::Threads)
}

fn echo() -> Ws {
    Ws::new().on_message(|ws, (), message| ws.send(message))
}

/// Each publishes its messages to its channel, and receives all publications of the others there.
fn members() -> Ws<String> {
    Ws::from_request(|request| Ok(request.param("channel").unwrap_or_default().to_owned()))
        .on_open(|ws, channel| ws.subscribe_pattern(channel).unwrap())
        .on_message(|ws, channel, message| ws.publish_to_others(channel, message))
}

#[test]
fn echoes_small_and_large_and_leaves_nothing_behind() {
    let (address, running) =
        start(threads(served::app().ws("/", echo()).get("/hello", |_| "hello")));
    let mut clients: Vec<_> = (0..20).map(|_| Client::connect(address, "/")).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        let payload = vec![i as u8; i * 70_000];
        client.send(Opcode::Binary, &payload);
        client.send_text("häuser");
        assert!(client.next() == Got::Binary(payload), "message of client {i}");
        assert_eq!(client.next(), Got::Text("häuser".into()));
    }
    assert!(served::get(address, "/hello").ends_with("hello"));
    eventually("twenty are counted", || running.stats().sessions == 20);
    for client in &mut clients {
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        assert_eq!(client.next(), Got::Close(1000, String::new()));
    }
    eventually("all are gone", || running.stats().connections == 0);
    let stats = running.stats();
    assert_eq!((stats.opened, stats.closed_clean, stats.messages_in), (20, 20, 40));
    assert_eq!(running.shutdown(NO_WAIT).wait().unwrap().forced, 0);
    assert!(std::net::TcpStream::connect(address).is_err(), "it still listens");
}

/// Fifty handlers wait for each other: none returns before all have begun, which takes fifty
/// threads.
#[test]
fn blocking_handlers_of_different_connections_run_in_parallel() {
    const CONNECTIONS: usize = 50;
    let barrier = Arc::new(Barrier::new(CONNECTIONS));
    let names = Arc::new(Mutex::new(HashSet::new()));
    let (all, named) = (Arc::clone(&barrier), Arc::clone(&names));
    let handler = Ws::new().on_message(move |ws, (), message| {
        all.wait();
        hold_up(Duration::from_millis(50));
        named.lock().unwrap().insert(std::thread::current().id());
        ws.send(message)
    });
    let (address, running) = start(threads(served::app().ws("/", handler)));
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| Client::connect(address, "/")).collect();
    for round in ["one", "two"] {
        clients.iter_mut().for_each(|client| client.send_text(round));
        for client in &mut clients {
            assert_eq!(client.next(), Got::Text(round.into()));
        }
    }
    assert_eq!(names.lock().unwrap().len(), CONNECTIONS, "a connection keeps its thread");
    stop(running);
}

#[test]
fn publications_reach_the_members_on_their_threads() {
    for wildcards in [false, true] {
        let server = threads(served::app().ws("/{channel}", members()));
        let (address, running) = start(server);
        let hub = running.hub();
        let mut north: Vec<_> = (0..5).map(|_| Client::connect(address, "/news.north")).collect();
        let mut south: Vec<_> = (0..5).map(|_| Client::connect(address, "/news.south")).collect();
        let mut all = wildcards.then(|| Client::connect(address, "/news.*"));
        let members = |channel| hub.subscribers(channel);
        eventually("all have joined", || {
            let of_all = usize::from(wildcards);
            members("news.north") == 5 && members("news.south") == 5 && members("news.*") == of_all
        });
        north[0].send_text("snow");
        for client in north[1..].iter_mut().chain(&mut all) {
            assert_eq!(client.next(), Got::Text("snow".into()));
        }
        let receipt = hub.publish("news.south", "sun").unwrap();
        for client in south.iter_mut().chain(&mut all) {
            assert_eq!(client.next(), Got::Text("sun".into()));
        }
        let reached = receipt.wait(TIMEOUT).unwrap();
        assert_eq!((reached.delivered, reached.unreached), (5 + u64::from(wildcards), 0));
        let receipt = hub.broadcast("end").unwrap();
        for client in north.iter_mut().chain(&mut south).chain(&mut all) {
            assert_eq!(client.next(), Got::Text("end".into()), "and nothing of the other channel");
        }
        assert_eq!(receipt.wait(TIMEOUT).unwrap().delivered, 10 + u64::from(wildcards));
        let none = hub.publish("news.west", "fog").unwrap();
        assert_eq!(none.wait(TIMEOUT).unwrap().receivers(), u64::from(wildcards));
        // A client that has left gets no command.
        drop(north);
        eventually("the north has left", || members("news.north") == 0);
        let none = hub.publish("news.north", "ice").unwrap();
        assert_eq!(none.wait(TIMEOUT).unwrap().receivers(), u64::from(wildcards));
        stop(running);
        let unreached = hub.publish("news.north", "late").unwrap().wait(TIMEOUT).unwrap();
        assert_eq!((unreached.receivers(), unreached.unreached), (0, 1));
    }
}

/// A thread number is reused, but a handle of its earlier connection does not reach the new one.
#[test]
fn handles_of_the_past_reach_no_one() {
    let handles = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&handles);
    let handler = Ws::new().on_open(move |ws, ()| {
        noted.lock().unwrap().push(ws.handle());
    });
    let (address, running) = start(threads(served::app().ws("/", handler)));
    let hub = running.hub();
    for round in 0..5 {
        let mut client = Client::connect(address, "/");
        eventually("it is open", || handles.lock().unwrap().len() == round + 1);
        let handles = handles.lock().unwrap().clone();
        for &past in &handles[..round] {
            hub.send(past, "to the past").unwrap();
            hub.close(past, 4000, "").unwrap();
        }
        hub.send(handles[round], "to you").unwrap();
        assert_eq!(client.next(), Got::Text("to you".into()));
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        assert_eq!(client.next(), Got::Close(1000, String::new()));
        assert_eq!(client.next(), Got::End);
        eventually("it is gone", || running.stats().connections == 0);
    }
    let distinct: HashSet<_> = handles.lock().unwrap().iter().copied().collect();
    assert_eq!(distinct.len(), 5);
    stop(running);
}

#[test]
fn a_panic_closes_its_connection_and_no_other() {
    let handler = Ws::new().on_message(|ws, (), message| match message {
        Message::Text("panic") => panic!("a handler's bug"),
        message => ws.send(message),
    });
    let (address, running) = start(threads(served::app().ws("/", handler)));
    let mut well = Client::connect(address, "/");
    for _ in 0..3 {
        let mut ill = Client::connect(address, "/");
        ill.send_text("panic");
        assert!(matches!(ill.next(), Got::Close(1011, _)));
        well.send_text("still here");
        assert_eq!(well.next(), Got::Text("still here".into()));
    }
    eventually("they are counted", || running.stats().handler_panics == 3);
    stop(running);
}

#[test]
fn silence_is_pinged_and_the_dead_are_buried() {
    let limits = Limits::default()
        .heartbeat_interval(Duration::from_secs(1))
        .heartbeat_timeout(Duration::from_secs(2));
    let (address, running) = start(threads(served::app().ws("/", echo())).limits(limits));
    let mut client = Client::connect(address, "/");
    for _ in 0..2 {
        assert_eq!(client.next_of_any_kind(), Got::Ping(Vec::new()));
        client.send(Opcode::Pong, b"");
    }
    assert_eq!(client.next_of_any_kind(), Got::Ping(Vec::new()));
    assert_eq!(client.next_of_any_kind(), Got::End, "it has stopped answering");
    eventually("it is counted", || running.stats().timeouts == 1);
    stop(running);
}

/// The head of the answer to a request on a connection beyond the limit.
fn refused(address: SocketAddr) -> String {
    let mut stream = dial(address);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    read_head(&mut stream)
}

#[test]
fn limits_hold_and_what_left_makes_room() {
    let limits =
        Limits::default().max_connections(3).max_messages_per_second(5).max_message_size(1000);
    let (address, running) = start(threads(served::app().ws("/", echo())).limits(limits));
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(address, "/")).collect();
    let head = refused(address);
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{head}");
    clients[0].send(Opcode::Binary, &[0; 1001]);
    assert!(matches!(clients[0].next(), Got::Close(1009, _)));
    // So many that there are more than five in a second, wherever it begins.
    let mut packet = Vec::new();
    (0..50).for_each(|_| encode_masked(Opcode::Text, b"x", [1, 2, 3, 4], &mut packet));
    clients[1].stream.write_all(&packet).unwrap();
    let mut last = clients[1].next();
    while last == Got::Text("x".into()) {
        last = clients[1].next();
    }
    assert!(matches!(last, Got::Close(1008, _)), "{last:?}");
    drop(clients);
    // A connection's figures may be a second old: it is not counted as gone before it is counted as
    // open.
    eventually("there is room", || {
        let stats = running.stats();
        stats.opened == 3 && stats.connections == 0
    });
    let mut again = Client::connect(address, "/");
    again.send_text("x");
    assert_eq!(again.next(), Got::Text("x".into()));
    eventually("the refused one is counted", || running.stats().refused == 1);
    stop(running);
}

#[test]
fn a_request_that_never_ends_is_timed_out_with_408() {
    let limits = Limits::default().handshake_timeout(Duration::from_secs(1));
    let (address, running) = start(threads(served::app().ws("/", echo())).limits(limits));
    let answer = exchange(address, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // RFC 9112 section 9.2: without a request there is no response.
    assert_eq!(exchange(address, b""), "");
    stop(running);
}

#[test]
fn a_slow_reader_is_closed_while_its_thread_serves_it() {
    let limits = Limits::default()
        .max_backlog(64 << 10)
        .close_timeout(Duration::from_secs(1))
        .write_timeout(Duration::from_secs(1));
    let (address, running) =
        start(threads(served::app().ws("/{channel}", members())).limits(limits));
    let slow = Client::connect(address, "/feed");
    let mut quick = Client::connect(address, "/feed");
    let hub = running.hub();
    eventually("both listen", || hub.subscribers("feed") == 2);
    let mut sent = 0;
    while running.stats().slow_consumers == 0 {
        hub.publish("feed", vec![7u8; 32 << 10]).unwrap();
        assert!(matches!(quick.next(), Got::Binary(_)));
        sent += 1;
        assert!(sent < 100_000, "the slow one was never noticed");
    }
    eventually("the slow one is gone", || running.stats().connections == 1);
    drop(slow);
    stop(running);
}

#[test]
fn a_drain_closes_every_session_and_aborts_those_that_do_not_answer() {
    let drained = |polite: usize, silent: usize, grace: Duration| {
        let (address, running) = start(threads(served::app().ws("/", echo())));
        let threads: Vec<_> = (0..polite).map(|_| crate::support::polite(address, "/")).collect();
        let listeners: Vec<_> = (0..silent).map(|_| Client::connect(address, "/")).collect();
        // One of the answering clients has sent half a request.
        let half = (polite > 0).then(|| dial(address));
        if let Some(mut half) = half.as_ref() {
            half.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
        }
        let all = polite + silent + usize::from(half.is_some());
        eventually("all are here", || running.stats().connections == all as u64);
        let refused = half.map(|mut half| std::thread::spawn(move || read_head(&mut half)));
        let forced = running.shutdown(NO_WAIT.grace(grace)).wait().unwrap().forced;
        for thread in threads {
            thread.join().unwrap();
        }
        if let Some(refused) = refused {
            assert!(refused.join().unwrap().starts_with("HTTP/1.1 503 "));
        }
        drop(listeners);
        assert!(std::net::TcpStream::connect(address).is_err(), "it still listens");
        forced
    };
    // Clients that answer are waited for, even on a busy machine.
    assert_eq!(drained(20, 0, Duration::from_secs(3600)), 0);
    // Beside clients that do not answer: the time is longer than a busy machine needs.
    assert_eq!(drained(20, 3, Duration::from_secs(5)), 3);
}

/// A load balancer sends clients until it has noticed the drain.
#[test]
fn new_clients_are_served_during_the_delay_of_a_drain() {
    let drain_after = |delay: Duration| {
        let (address, running) = start(threads(served::app().ws("/", echo()).health()));
        let client = Client::connect(address, "/");
        running.stopper().shutdown(NO_WAIT.delay(delay));
        (address, running, client)
    };
    // Does not end during the test: this server is left to the end of the process.
    let (address, _running, mut client) = drain_after(Duration::from_secs(3600));
    let ask = |path: &str| {
        let mut stream = dial(address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_head(&mut stream)
    };
    assert!(ask("/readyz").starts_with("HTTP/1.1 503 "), "{}", ask("/readyz"));
    assert!(ask("/livez").starts_with("HTTP/1.1 200 "), "{}", ask("/livez"));
    let mut newcomer = Client::connect(address, "/");
    newcomer.send_text("served as well");
    assert_eq!(newcomer.next(), Got::Text("served as well".into()));
    client.send_text("still served");
    assert_eq!(client.next(), Got::Text("still served".into()));

    let (_, running, mut client) = drain_after(Duration::from_millis(500));
    assert_eq!(client.next(), Got::Close(1001, "going away".into()));
    client.send(Opcode::Close, &1001u16.to_be_bytes());
    assert_eq!(running.wait().unwrap().forced, 0);
}

/// A handler that does not return cannot be interrupted; the drain still ends, and reports the
/// remaining connection.
#[test]
fn a_handler_that_does_not_return_holds_up_no_drain() {
    assert_eq!(drained_beside_a_stuck_one(0), 1);
    // The idle one has a moment for its answer, which may be too short on a busy machine.
    let forced = drained_beside_a_stuck_one(1);
    assert!((1..=2).contains(&forced), "{forced}");
}

/// Drains a server with a handler that does not return, and `idle` idle connections. Returns the
/// number of forced connections.
fn drained_beside_a_stuck_one(idle: usize) -> usize {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let entered = Arc::new(AtomicBool::new(false));
    let (its, began) = (Arc::clone(&gate), Arc::clone(&entered));
    let handler = Ws::new().on_message(move |_, (), _| {
        began.store(true, Ordering::SeqCst);
        let mut open = its.0.lock().unwrap();
        while !*open {
            open = its.1.wait(open).unwrap();
        }
    });
    let (address, running) = start(threads(served::app().ws("/", handler)));
    let mut stuck = Client::connect(address, "/");
    let idle: Vec<_> = (0..idle).map(|_| Client::connect(address, "/")).collect();
    stuck.send_text("wait");
    eventually("its handler waits", || entered.load(Ordering::SeqCst));
    let polite: Vec<_> = idle
        .into_iter()
        .map(|mut idle| {
            std::thread::spawn(move || {
                assert_eq!(idle.next(), Got::Close(1001, "going away".into()));
                idle.try_send(Opcode::Close, &1001u16.to_be_bytes());
            })
        })
        .collect();
    let grace = Duration::from_millis(200);
    let drained = running.shutdown(NO_WAIT.grace(grace)).wait().unwrap();
    let routes: Vec<_> = drained
        .stuck_shards
        .iter()
        .map(|stuck| (stuck.route.as_str(), stuck.connections))
        .collect();
    assert_eq!(routes, [("/", 1)]);
    for thread in polite {
        thread.join().unwrap();
    }
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    drained.forced
}

#[test]
fn compression_events_and_figures_are_those_of_every_family() {
    let server = threads(
        served::app()
            .ws("/ws/{channel}", members())
            .sse("/sse/{channel}", |request| Ok(request.param("channel").unwrap().to_owned())),
    )
    .compression(Compression::Shared);
    let (address, running) = start(server);
    let mut stream = crate::support::events::Events::open(address, "/sse/news");
    assert_eq!(stream.next().as_deref(), Some(":"));
    let mut member = Client::connect(address, "/ws/news");
    let hub = running.hub();
    eventually("both listen", || hub.subscribers("news") == 2);
    member.send_text("to the stream");
    assert_eq!(stream.next().as_deref(), Some("data: to the stream"));
    eventually("figures are sums", || {
        let metrics = served::get(address, "/metrics");
        metrics.contains("throng_sessions{shard=\"0\"} 1")
            && metrics.contains("throng_streams{shard=\"0\"} 1")
            && metrics.contains("throng_subscriptions{shard=\"0\"} 2")
    });
    stop(running);
}

/// No address space has room for such a stack: the same as when the system has no thread left.
#[test]
fn connections_without_a_thread_are_answered_and_counted() {
    let (address, running) =
        start(threads(served::app().ws("/", echo())).shards(shards().thread_stack(1 << 47)));
    for _ in 0..3 {
        let head = refused(address);
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{head}");
    }
    eventually("they are counted", || running.stats().thread_failures == 3);
    assert_eq!(running.stats().refused, 3);
    eventually("no connection is left", || running.stats().connections == 0);
    stop(running);
}

#[test]
fn mistakes_are_errors() {
    let error = threads(served::app())
        .shards(shards().thread_stack(1000))
        .bind("127.0.0.1:0")
        .unwrap_err()
        .to_string();
    assert!(error.contains("thread_stack is 1000"), "{error}");
    let limits = Limits::default().max_connections(1 << 20);
    let error = threads(served::app()).limits(limits).bind("127.0.0.1:0").unwrap_err().to_string();
    assert!(error.contains("threads"), "{error}");
}
