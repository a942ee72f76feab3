//! Panics, and the last work of sessions and servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use throng::prelude::*;
use throng::server::Shards;
use throng::workers::Overload;
use throng_proto::ws::Opcode;

use super::{Gate, Http, families, figure, gated, workers};
use crate::support::served::{self, start, stop};
use crate::support::{Client, Got, TIMEOUT, eventually};

#[test]
fn a_panic_closes_its_connection_with_1011_and_is_counted() {
    let handler = Ws::new().on_message(|ws, (), message| {
        let (Message::Text("work") | Message::Text("then") | Message::Text("fine")) = message
        else {
            return;
        };
        let which = String::from_utf8_lossy(message.as_bytes()).into_owned();
        let fails = which == "work";
        let work = move || assert!(!fails, "as the test wants it");
        let then = move |ws: &mut Socket<'_>, (): &mut (), ()| {
            assert!(which != "then", "as the test wants it");
            ws.send("fine");
        };
        ws.offload(work, then);
    });
    let blocking = Ws::new().on_message_blocking(|_, (): &(), _| panic!("as the test wants it"));
    let (address, running) =
        start(Server::new(served::app().ws("/", handler).ws("/blocking", blocking)));
    let mut witness = Client::connect(address, "/");
    for (path, text) in [("/", "work"), ("/", "then"), ("/blocking", "any")] {
        let mut client = Client::connect(address, path);
        client.send_text(text);
        assert_eq!(client.next(), Got::Close(1011, "internal error".into()), "{path} {text}");
        witness.send_text("fine");
        assert_eq!(witness.next(), Got::Text("fine".into()));
    }
    eventually("all have ended", || figure(address, "jobs") == 6);
    assert_eq!(figure(address, "panics"), 2);
    eventually("that of the continuation is the shard's", || running.stats().handler_panics == 1);
    stop(running);
}

/// A user's value whose drop panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("as the test wants it");
    }
}

/// Other threads drop the remains of an ended session: a late result, and work that is no longer
/// needed. No connection ends because of it, and the session's own `close` is still called.
#[test]
fn a_panic_in_a_drop_ends_no_other_connection() {
    for io in families() {
        let (gate, closed) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
        let (its, count) = (gate.clone(), Arc::clone(&closed));
        let handler = Ws::new()
            .on_message(move |ws, (), _| {
                let (gate, held) = (its.clone(), Bomb);
                let work = move || {
                    gate.pass();
                    std::mem::forget(held);
                    Bomb
                };
                ws.offload(work, |_, (), result| std::mem::forget(result));
            })
            .on_close(move |_, (), _| {
                count.fetch_add(1, Ordering::SeqCst);
            });
        let settings = workers(1, 100, Overload::Pause);
        let (address, running) = start(
            Server::new(served::app().ws("/", handler))
                .shards(Shards::new().io(io).count(1))
                .workers(settings),
        );
        let mut client = Client::connect(address, "/");
        (0..4).for_each(|_| client.send_text("x"));
        gate.await_arrivals(1);
        eventually("three wait", || figure(address, "queue_depth") == 3);
        drop(client);
        eventually("its end is reported", || closed.load(Ordering::SeqCst) == 1);
        // After that its work is withdrawn.
        eventually("three are dropped, and panic", || {
            (figure(address, "cancelled"), figure(address, "panics")) == (3, 3)
        });
        gate.open();
        eventually("the result has come, too late", || figure(address, "jobs") == 1);
        assert_eq!(figure(address, "queue_depth"), 0);
        assert!(!running.has_ended(), "{io:?}");
        stop(running);
    }
}

#[test]
fn queued_jobs_of_a_closed_connection_are_dropped() {
    let gate = Gate::default();
    let (address, running) = start(gated(&gate, workers(1, 100, Overload::Pause)));
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(address, "/work")).collect();
    for client in &mut clients {
        (0..5).for_each(|_| client.send_text("x"));
    }
    let mut http = Http::dial(address);
    http.say("GET /http/a HTTP/1.1\r\nHost: x\r\n\r\n");
    gate.await_arrivals(1);
    eventually("all are in the queue", || figure(address, "queue_depth") == 20);
    // A client that only ends its side would still be answered.
    socket2::SockRef::from(http.0.get_ref()).set_linger(Some(Duration::ZERO)).unwrap();
    drop((clients, http));
    eventually("all are dropped", || figure(address, "queue_depth") == 0);
    assert_eq!(figure(address, "cancelled"), 20);
    gate.open();
    eventually("one has run", || figure(address, "jobs") == 1);
    stop(running);
}

/// A job offloaded after the session has ended runs, and no continuation runs.
#[test]
fn the_last_work_of_a_session_is_done() {
    let saved = Gate::default();
    let save = saved.clone();
    saved.open();
    let handler = Ws::new().on_close(move |ws, (), _| {
        let save = save.clone();
        ws.offload(move || save.pass(), |_, (), ()| panic!("the session has ended"));
    });
    let (address, running) = start(Server::new(served::app().ws("/", handler)));
    let mut client = Client::connect(address, "/");
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    assert_eq!(client.next(), Got::Close(1000, String::new()));
    saved.await_arrivals(1);
    let drained = running.shutdown(DrainPlan::DEFAULT.window(Duration::ZERO)).wait().unwrap();
    assert_eq!((drained.forced, drained.stuck), (0, vec![]));
}

/// A session that has ended cannot be paused: work of many such sessions would take unbounded
/// memory.
#[test]
fn the_last_work_of_sessions_is_refused_where_there_is_no_room() {
    for io in families() {
        let gate = Gate::default();
        let (held, results) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
        let tell = Arc::clone(&results);
        let handler = Ws::new().on_close(move |ws, (), _| {
            let held = held.clone();
            let outcome = ws.try_offload(0, move || held.pass(), |_, (), ()| ());
            tell.lock().unwrap().push(outcome.is_ok());
        });
        let settings = workers(1, 1, Overload::Pause);
        let server = Server::new(served::app().ws("/", handler))
            .shards(Shards::new().io(io).count(1))
            .workers(settings);
        let (address, running) = start(server);
        for number in 0..6 {
            let mut client = Client::connect(address, "/");
            client.send(Opcode::Close, &1000u16.to_be_bytes());
            assert_eq!(client.next(), Got::Close(1000, String::new()), "{io:?}");
            // The first job runs, and has left the queue, before the next comes.
            gate.await_arrivals(1);
            eventually("the result was recorded", || results.lock().unwrap().len() == number + 1);
        }
        assert_eq!(*results.lock().unwrap(), [true, true, false, false, false, false], "{io:?}");
        let figures = ["queue_depth", "waiting_for_capacity", "refused"];
        assert_eq!(figures.map(|name| figure(address, name)), [1, 0, 4], "{io:?}");
        gate.open();
        eventually("the others are done", || figure(address, "jobs") == 2);
        stop(running);
    }
}

#[test]
fn a_drain_ends_at_its_deadline_and_names_the_route_that_never_returns() {
    let gate = Gate::default();
    let (address, running) = start(gated(&gate, workers(2, 100, Overload::Pause)));
    let mut client = Client::connect(address, "/work");
    client.send_text("never returns");
    let mut http = Http::dial(address);
    http.say("GET /http/a HTTP/1.1\r\nHost: x\r\n\r\n");
    gate.await_arrivals(2);
    let (began, grace) = (Instant::now(), Duration::from_millis(300));
    let plan = DrainPlan::DEFAULT.window(Duration::ZERO).grace(grace);
    let drained = running.shutdown(plan).wait().unwrap();
    assert!(began.elapsed() >= grace, "it was not waited for");
    let mut routes: Vec<&str> = drained.stuck.iter().map(|job| &*job.route).collect();
    routes.sort_unstable();
    assert_eq!(routes, ["/http/{name}", "/work"]);
    // The request that was never answered, and the session whose peer did not close.
    assert_eq!(drained.forced, 2);
    gate.open();
}

/// Two connections need no window to close; workers get as much time as their shards.
#[test]
fn workers_have_the_time_that_shards_have_to_drain() {
    for io in families() {
        let gate = Gate::default();
        let (address, running) =
            start(gated(&gate, workers(1, 100, Overload::Pause)).shards(Shards::new().io(io)));
        let mut client = Client::connect(address, "/work");
        client.send_text("never returns");
        gate.await_arrivals(1);
        let grace = Duration::from_millis(300);
        let plan = DrainPlan::DEFAULT.window(100 * TIMEOUT).grace(grace);
        let (say, hear) = mpsc::channel();
        std::thread::spawn(move || say.send(running.shutdown(plan).wait().unwrap()));
        let drained =
            hear.recv_timeout(TIMEOUT).expect("it waits for a window that no connection needs");
        assert_eq!(drained.stuck.len(), 1, "{io:?}");
        gate.open();
    }
}
