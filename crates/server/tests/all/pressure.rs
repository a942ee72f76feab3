//! Nothing is lost under pressure, and sessions over their rate or lifetime are closed.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use throng::prelude::*;
use throng_proto::ws::{self, Opcode};

use crate::support::{Client, Got, TIMEOUT, dial, eventually};

fn start(server: Server) -> (SocketAddr, Running) {
    let bound = server.bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    (bound.local_addr(), bound.start().unwrap())
}

fn stop(running: Running) {
    running.shutdown(DrainPlan::DEFAULT.window(Duration::ZERO)).wait().unwrap();
}

#[test]
fn frames_larger_than_the_backlog_reach_a_member_that_reads() {
    for shards in [1, 2] {
        let room = Ws::new()
            .on_open(|ws, ()| {
                ws.subscribe("room");
            })
            .on_message(|ws, (), message| {
                ws.publish_to_others("room", message);
            });
        let (address, running) = start(Server::new(App::new().ws("/", room)).shards(shards));
        let mut reader = Client::connect(address, "/");
        let writer = Client::connect(address, "/");
        eventually("both are members", || running.stats().sessions == 2);
        let (small, large) = (vec![1; 100], vec![2; 1_300_000]);
        for round in 0..20 {
            // Written from another thread: the sockets' buffers do not hold it all.
            let mut writing = writer.stream.try_clone().unwrap();
            let mut frames = Vec::new();
            ws::encode_masked(Opcode::Binary, &small, [1; 4], &mut frames);
            ws::encode_masked(Opcode::Binary, &large, [1; 4], &mut frames);
            let thread = std::thread::spawn(move || writing.write_all(&frames).unwrap());
            // Not with `assert_eq`, which would print megabytes.
            assert!(reader.next() == Got::Binary(small.clone()), "the small one of round {round}");
            assert!(reader.next() == Got::Binary(large.clone()), "the large one of round {round}");
            thread.join().unwrap();
        }
        stop(running);
    }
}

#[test]
fn a_handler_that_answers_far_more_than_it_gets_loses_nothing() {
    let limits = Limits::default().max_backlog(64 << 10);
    let amplify = Ws::new().on_message(|ws, (), message| {
        let answer = message.as_bytes().repeat(5000);
        ws.send(answer)
    });
    let (address, running) =
        start(Server::new(App::new().ws("/", amplify)).limits(limits).shards(1));
    let mut client = Client::connect(address, "/");
    let mut requests = Vec::new();
    for n in 0..400u32 {
        ws::encode_masked(Opcode::Binary, &n.to_be_bytes(), [3; 4], &mut requests);
    }
    client.stream.write_all(&requests).unwrap();
    for n in 0..400u32 {
        assert!(client.next() == Got::Binary(n.to_be_bytes().repeat(5000)), "answer {n}");
    }
    stop(running);
}

#[test]
fn pipelined_requests_are_all_answered_in_order() {
    let server = Server::new(
        App::new().get("/{n}", |request| request.param("n").unwrap_or_default().repeat(1000)),
    );
    let (address, running) = start(server.shards(1));
    let mut stream = dial(address);
    let mut requests = Vec::new();
    for n in 1000..3000 {
        let last = if n == 2999 { "Connection: close\r\n" } else { "" };
        write!(requests, "GET /{n} HTTP/1.1\r\nHost: x\r\n{last}\r\n").unwrap();
    }
    let mut writing = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || writing.write_all(&requests).unwrap());
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    writer.join().unwrap();
    let mut at = 0;
    for n in 1000..3000 {
        let body = n.to_string().repeat(1000);
        at += answers[at..].find(&body).unwrap_or_else(|| panic!("answer {n} is missing"));
    }
    stop(running);
}

/// One packet of tiny messages to many members must not become gigabytes.
#[test]
fn a_packet_of_tiny_publications_is_spread_over_turns() {
    let room = Ws::new()
        .on_open(|ws, ()| {
            ws.subscribe("room");
        })
        .on_message(|ws, (), message| {
            ws.publish_to_others("room", message);
        });
    let (address, running) = start(Server::new(App::new().ws("/", room)).shards(1));
    let mut members: Vec<_> = (0..50).map(|_| Client::connect(address, "/")).collect();
    eventually("all are members", || running.stats().sessions == 50);
    let mut packet = Vec::new();
    for n in 0..40_000u32 {
        ws::encode_masked(Opcode::Binary, &n.to_be_bytes()[1..], [1; 4], &mut packet);
    }
    let mut publisher = members.pop().unwrap();
    publisher.stream.write_all(&packet).unwrap();
    for member in &mut members {
        for n in 0..40_000u32 {
            assert_eq!(member.next(), Got::Binary(n.to_be_bytes()[1..].to_vec()));
        }
    }
    stop(running);
}

#[test]
fn a_session_over_its_message_rate_is_closed_with_1008() {
    let limits = Limits::default().max_messages_per_second(10);
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let (address, running) = start(Server::new(App::new().ws("/", echo)).limits(limits).shards(1));
    let mut client = Client::connect(address, "/");
    let mut packet = Vec::new();
    for _ in 0..50 {
        ws::encode_masked(Opcode::Text, b"spam", [7; 4], &mut packet);
    }
    client.stream.write_all(&packet).unwrap();
    loop {
        match client.next() {
            Got::Text(_) => {}
            other => break assert!(matches!(other, Got::Close(1008, _)), "{other:?}"),
        }
    }
    stop(running);
}

#[test]
fn a_session_ends_with_its_lifetime() {
    let limits = Limits::default().max_lifetime(Duration::from_secs(1));
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let (address, running) = start(Server::new(App::new().ws("/", echo)).limits(limits).shards(1));
    let mut client = Client::connect(address, "/");
    assert!(matches!(client.next(), Got::Close(1001, _)));
    stop(running);
}

#[test]
fn a_panic_before_the_session_is_answered_with_500() {
    let server = Server::new(App::new().get("/", |_| -> String { panic!("a handler's bug") }));
    let (address, running) = start(server.shards(1));
    let answer = crate::support::exchange(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    stop(running);
}

/// Within a callback, the kernel cannot report whether the peer reads.
#[test]
fn a_callback_that_sends_without_end_is_stopped() {
    let (sent, count) = mpsc::channel();
    let sent = Mutex::new(sent);
    let flood = Ws::new().on_message(move |ws, (), message| {
        let mut bytes = 0;
        while matches!(ws.send(message), Sent::Accepted | Sent::Queued) {
            bytes += message.as_bytes().len();
            assert!(bytes < 1 << 30, "nothing stops it");
        }
        sent.lock().unwrap().send(bytes).unwrap();
    });
    let limits = Limits::default().max_backlog(100 << 10);
    let (address, running) = start(Server::new(App::new().ws("/", flood)).limits(limits).shards(1));
    let mut client = Client::connect(address, "/");
    client.send(Opcode::Binary, &[7; 10_000]);
    let bytes = count.recv_timeout(TIMEOUT).unwrap();
    assert!((1 << 20..=2 << 20).contains(&bytes), "{bytes}");
    while matches!(client.next(), Got::Binary(_)) {}
    running.shutdown(DrainPlan::DEFAULT.window(Duration::ZERO)).wait().unwrap();
}

/// Clients that repeatedly fill the memory of all connections, on all event loops, lose their own
/// connections. New clients that need little are served each time.
#[test]
fn new_clients_are_served_while_others_fill_the_memory_again_and_again() {
    /// Connections of each of two threads.
    const ATTACKERS: usize = 12;
    let limits = Limits::default().max_memory(4 << 20).max_message_size(1 << 20);
    let echo = Ws::new().on_message(|ws, (), message| {
        ws.send(message);
    });
    let app = App::new().ws("/", echo).get("/page", |_| "a page");
    let (address, running) = start(Server::new(app).limits(limits).shards(2));
    let mut unfinished = Vec::new();
    ws::encode_masked(Opcode::Binary, &vec![1; 1 << 20], [0; 4], &mut unfinished);
    unfinished.truncate(300_000);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut attackers = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(mut attacker) = Client::upgrade(dial(address), "/", &[], &[]) else {
                        continue;
                    };
                    let _ = attacker.stream.write_all(&unfinished);
                    attackers.push_back(attacker);
                    if attackers.len() > ATTACKERS {
                        attackers.pop_front();
                    }
                }
            });
        }
        eventually("the memory is full", || running.stats().memory_ended > 10);
        let before = running.stats().memory_ended;
        for number in 0..200 {
            let page = crate::support::exchange(
                address,
                b"GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            );
            assert!(page.ends_with("a page"), "{number}: {page}");
            let mut client = Client::connect(address, "/");
            client.send_text("hello");
            assert_eq!(client.next(), Got::Text("hello".into()), "{number}");
        }
        eventually("it was filled again", || running.stats().memory_ended > before + 10);
        is_over.store(true, Ordering::Relaxed);
    });
    stop(running);
}
