//! Full queues: connections that pause, offloads that are refused.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng::prelude::*;
use throng::server::{IoBackend, Shards};
use throng::workers::Overload;
use throng_proto::ws::Opcode;

use super::{Gate, Http, families, figure, gated, gated_app, workers};
use crate::support::served::{self, get, start, stop};
use crate::support::{Client, Got, eventually};

#[test]
fn while_the_queue_is_full_connections_pause_and_nothing_is_lost() {
    for io in families() {
        let gate = Gate::default();
        let server =
            gated(&gate, workers(1, 2, Overload::Pause)).shards(Shards::new().io(io).count(1));
        let (address, running) = start(server);
        let mut clients: Vec<_> = (0..4).map(|_| Client::connect(address, "/work")).collect();
        // Far more than fits in the kernel: unread input waits with its sender, in separate
        // threads.
        let payload = vec![b'x'; 20_000];
        let mut writers = Vec::new();
        for (i, client) in clients.iter().enumerate() {
            let (stream, payload) = (client.stream.try_clone().unwrap(), payload.clone());
            writers.push(std::thread::spawn(move || {
                let mut frame = Vec::new();
                for number in 0..500u32 {
                    frame.clear();
                    let text = format!("{i} {number} {}", String::from_utf8_lossy(&payload));
                    let text = text.as_bytes();
                    throng_proto::ws::encode_masked(Opcode::Text, text, [1, 2, 3, 4], &mut frame);
                    (&stream).write_all(&frame).unwrap();
                }
            }));
        }
        gate.await_arrivals(1);
        // One runs, two are in the queue, and each connection has at most one more waiting.
        eventually("connections pause", || {
            figure(address, "queue_depth") > figure(address, "waiting_for_capacity")
                && figure(address, "waiting_for_capacity") >= 2
        });
        assert!(figure(address, "queue_depth") <= 2 + 4);
        // Everyone else is served.
        let mut other = Client::connect(address, "/echo");
        other.send_text("still here?");
        assert_eq!(other.next(), Got::Text("still here?".into()));
        assert!(get(address, "/metrics").contains("\nthrong_worker_running 1\n"));
        gate.open();
        for (i, client) in clients.iter_mut().enumerate() {
            for number in 0..500u32 {
                let text = match client.next() {
                    Got::Text(text) => text,
                    other => panic!("{io:?}: {other:?} for message {number} of {i}"),
                };
                assert!(text.starts_with(&format!("{i} {number} ")), "{io:?} {}", &text[..12]);
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        eventually("all have ended", || figure(address, "jobs") == 2000);
        assert_eq!(figure(address, "refused"), 0);
        stop(running);
    }
}

/// Eight small messages may wait for workers; of large ones only 256 KiB.
#[test]
fn large_messages_wait_with_their_sender() {
    for (io, path) in families().into_iter().flat_map(|io| [(io, "/work"), (io, "/offload")]) {
        let gate = Gate::default();
        let held = gate.clone();
        let offload = Ws::new().on_message(move |ws, (), message| {
            let (held, message) = (held.clone(), OwnedMessage::from(message));
            let bytes = message.as_bytes().len();
            let work = move || {
                held.pass();
                message
            };
            ws.try_offload(bytes, work, |ws, (), message| {
                ws.send(message.as_message());
            })
            .unwrap();
        });
        let app = gated_app(&gate).ws("/offload", offload);
        let server = Server::new(app)
            .workers(workers(1, 100, Overload::Pause))
            .shards(Shards::new().io(io).count(1));
        let (address, running) = start(server);
        let mut client = Client::connect(address, path);
        let stream = client.stream.try_clone().unwrap();
        let text = |number: usize| format!("{number} {}", "x".repeat(300_000));
        let writer = std::thread::spawn(move || {
            let mut frame = Vec::new();
            for number in 0..50 {
                let text = text(number);
                frame.clear();
                let mask = [1, 2, 3, 4];
                throng_proto::ws::encode_masked(Opcode::Text, text.as_bytes(), mask, &mut frame);
                (&stream).write_all(&frame).unwrap();
            }
        });
        gate.await_arrivals(1);
        // Each figure is the request of another connection. In between, this one would also be
        // read.
        for _ in 0..50 {
            assert_eq!(figure(address, "queue_depth"), 0, "{io:?} {path}");
        }
        gate.open();
        for number in 0..50 {
            assert_eq!(client.next(), Got::Text(text(number)), "{io:?}");
        }
        writer.join().unwrap();
        assert_eq!(figure(address, "queue_depth"), 0);
        stop(running);
    }
}

/// Opens a connection and pauses it: its third message waits for room.
fn paused(gate: &Gate, io: IoBackend) -> (Client, SocketAddr, Running) {
    let (address, running) =
        start(gated(gate, workers(1, 1, Overload::Pause)).shards(Shards::new().io(io).count(1)));
    let mut client = Client::connect(address, "/work");
    for number in 0..6 {
        client.send_text(&number.to_string());
    }
    eventually("it pauses", || figure(address, "waiting_for_capacity") == 1);
    (client, address, running)
}

#[test]
fn a_paused_connection_can_be_closed_by_either_side() {
    for io in families() {
        let gate = Gate::default();
        let (mut client, address, running) = paused(&gate, io);
        running.hub().broadcast("before").unwrap();
        assert_eq!(client.next(), Got::Text("before".into()), "what is sent to it still leaves");
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        // Its Close comes after waiting messages, so only its end is noticed.
        drop(client);
        gate.open();
        eventually("it has gone", || running.stats().sessions == 0);
        eventually("its work, too", || figure(address, "queue_depth") == 0);
        stop(running);

        let gate = Gate::default();
        let (mut client, _, running) = paused(&gate, io);
        let plan = DrainPlan::DEFAULT.window(Duration::ZERO);
        running.stopper().shutdown(plan);
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.send(Opcode::Close, &1001u16.to_be_bytes());
        assert_eq!(client.next(), Got::End);
        gate.open();
        let drained = running.wait().unwrap();
        assert_eq!((drained.forced, drained.stuck), (0, vec![]), "{io:?}");
    }
}

#[test]
fn with_overload_close_a_full_queue_is_1013_and_503() {
    let gate = Gate::default();
    let (address, running) = start(gated(&gate, workers(1, 1, Overload::Close)));
    let mut client = Client::connect(address, "/work");
    client.send_text("runs");
    gate.await_arrivals(1);
    client.send_text("waits");
    eventually("the queue is full", || figure(address, "queue_depth") == 1);
    let mut other = Client::connect(address, "/work");
    other.send_text("refused");
    assert_eq!(other.next(), Got::Close(1013, "the server is busy; try again later".into()));
    let mut http = Http::dial(address);
    http.say("GET /http/a HTTP/1.1\r\nHost: x\r\n\r\nGET /stats.json HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, _) = http.hear();
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{head}");
    assert!(http.hear().0.starts_with("HTTP/1.1 200 "), "the connection goes on");
    assert_eq!(figure(address, "refused"), 2);
    gate.open();
    assert_eq!(client.next(), Got::Text("runs".into()));
    assert_eq!(client.next(), Got::Text("waits".into()));
    stop(running);
}

#[test]
fn an_offload_without_room_is_an_error_in_the_callback() {
    let gate = Gate::default();
    let (held, results) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
    let tell = Arc::clone(&results);
    let handler = Ws::new().on_message(move |ws, (), message| {
        let Message::Text(times) = message else { return };
        for _ in 0..times.parse().unwrap() {
            let held = held.clone();
            let outcome = ws.try_offload(
                0,
                move || held.pass(),
                |ws, (), ()| {
                    ws.send("done");
                },
            );
            tell.lock().unwrap().push(outcome.is_ok());
        }
    });
    let settings = workers(1, 1, Overload::Pause);
    let (address, running) = start(Server::new(served::app().ws("/", handler)).workers(settings));
    let mut client = Client::connect(address, "/");
    let mut first = Client::connect(address, "/");
    first.send_text("1");
    gate.await_arrivals(1);
    first.send_text("5");
    eventually("one is in the queue and one beside it", || figure(address, "refused") == 3);
    client.send_text("5");
    eventually("one is beside it", || figure(address, "refused") == 7);
    gate.open();
    assert_eq!(client.next(), Got::Text("done".into()));
    for _ in 0..3 {
        assert_eq!(first.next(), Got::Text("done".into()));
    }
    stop(running);
    let results: Vec<u8> = results.lock().unwrap().iter().map(|ok| u8::from(*ok)).collect();
    // One runs; one is in the queue and one waits; and one of the other's waits.
    assert_eq!(results, [1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn offload_closes_the_session_where_work_is_refused_and_try_offload_does_not() {
    for overload in [Overload::Pause, Overload::Close] {
        let gate = Gate::default();
        let held = gate.clone();
        // More than the total of running, queued and waiting jobs.
        let handler = Ws::new().on_message(move |ws, (), message| {
            let gates = [(); 5].map(|()| held.clone());
            if let Message::Text("offload") = message {
                gates.into_iter().for_each(|held| ws.offload(move || held.pass(), |_, (), ()| ()));
            } else {
                let mut offload =
                    |held: Gate| ws.try_offload(0, move || held.pass(), |_, (), ()| ());
                let refused =
                    gates.into_iter().filter(|held| offload(held.clone()).is_err()).count();
                assert!(refused > 0, "there is no room for all");
                ws.send("open");
            }
        });
        let server = Server::new(served::app().ws("/", handler));
        let (address, running) = start(server.workers(workers(1, 1, overload)));
        let mut client = Client::connect(address, "/");
        client.send_text("try");
        assert_eq!(client.next(), Got::Text("open".into()), "{overload:?}");
        let mut client = Client::connect(address, "/");
        client.send_text("offload");
        let closed = Got::Close(1013, "the server is busy; try again later".into());
        assert_eq!(client.next(), closed, "{overload:?}");
        gate.open();
        stop(running);
    }
}
