//! Work that blocks, on the pool: order, back-pressure, panics, the end, and what is shown of it.

mod support;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::served::{self, get, start, stop};
use support::{Client, Got, TIMEOUT, dial, eventually};
use throng::Error;
use throng::IoBackend;
use throng::prelude::*;
use throng::workers::{Overload, WorkerSettings};
use throng_proto::ws::Opcode;
use throng_testkit::{hold_up, settled};

/// Every family of servers this system has.
fn families() -> Vec<IoBackend> {
    let mut families = vec![IoBackend::Auto, IoBackend::Portable];
    if cfg!(unix) {
        families.push(IoBackend::Threads);
    }
    families
}

fn workers(pool_size: usize, queue_size: usize, overload: Overload) -> WorkerSettings {
    WorkerSettings::default().pool_size(pool_size).queue_size(queue_size).overload(overload)
}

/// Holds jobs up until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut guard = state.lock().unwrap();
        guard.1 += 1;
        changed.notify_all();
        drop(changed.wait_while(guard, |(open, _)| !*open).unwrap());
    }

    fn open(&self) {
        self.0.0.lock().unwrap().0 = true;
        self.0.1.notify_all();
    }

    /// Until so many have come to it.
    fn await_guests(&self, guests: usize) {
        let (state, changed) = &*self.0;
        let guard = state.lock().unwrap();
        let waited = changed.wait_timeout_while(guard, TIMEOUT, |(_, came)| *came < guests);
        assert!(!waited.unwrap().1.timed_out(), "{guests} guests never came");
    }
}

fn figure(address: SocketAddr, name: &str) -> u64 {
    let stats: Value = serde_json::from_str(&get(address, "/stats.json")).unwrap();
    stats["workers"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))
}

/// Answers each number after a time of its own.
fn dawdling() -> Ws {
    Ws::new().on_message(|ws, message| {
        let Message::Text(text) = message else { return };
        let number: u64 = text.parse().unwrap();
        let work = move || {
            match number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 {
                0 => hold_up(Duration::from_micros(500)),
                1..8 => std::thread::yield_now(),
                _ => {}
            }
            number
        };
        ws.offload(work, |ws, number| {
            let _ = ws.send(number.to_string());
        })
        .unwrap();
    })
}

#[test]
fn answers_keep_the_order_of_their_connection_in_every_family() {
    for io in families() {
        // Some never wait for room, some often do.
        for queue_size in [4096, 3] {
            let settings = workers(3, queue_size, Overload::Pause);
            let server =
                Server::new(served::app().ws("/", dawdling())).io(io).shards(2).workers(settings);
            let (address, running) = start(server);
            std::thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        let mut client = Client::connect(address, "/");
                        let mut writer = Client::connect(address, "/");
                        // Another one's many at once, and one by one.
                        for number in 0..300u64 {
                            writer.send_text(&number.to_string());
                            if number % 10 == 0 {
                                client.send_text(&number.to_string());
                                assert_eq!(client.next(), Got::Text(number.to_string()));
                            }
                        }
                        for number in 0..300u64 {
                            assert_eq!(writer.next(), Got::Text(number.to_string()), "{io:?}");
                        }
                    });
                }
            });
            eventually("all have ended", || figure(address, "jobs") == 6 * 330);
            assert_eq!((figure(address, "queue_depth"), figure(address, "refused")), (0, 0));
            stop(running);
        }
    }
}

/// Never two jobs of one connection at once; those of others are.
#[test]
fn a_connections_jobs_run_one_at_a_time_and_all_workers_at_once() {
    const WORKERS: usize = 5;
    let (barrier, at_once) = (Arc::new(Barrier::new(WORKERS)), Arc::new(AtomicUsize::new(0)));
    let all = Arc::clone(&barrier);
    let handler = Ws::on_upgrade(move |_| Ok(Arc::new(AtomicUsize::new(0)))).on_message_blocking(
        move |mine: &Arc<AtomicUsize>, message, replies| {
            assert_eq!(mine.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            // Opens when all workers are here, each with a connection of its own.
            all.wait();
            mine.fetch_sub(1, Ordering::SeqCst);
            at_once.fetch_add(1, Ordering::SeqCst);
            replies.send(message);
        },
    );
    let app = served::app().ws("/", handler).get("/hello", |_| "hello");
    let server = Server::new(app).workers(workers(WORKERS, 100, Overload::Pause));
    let (address, running) = start(server);
    let mut clients: Vec<_> = (0..WORKERS).map(|_| Client::connect(address, "/")).collect();
    for round in 0..20 {
        for client in &mut clients {
            client.send_text(&round.to_string());
        }
    }
    for round in 0..20 {
        for client in &mut clients {
            assert_eq!(client.next(), Got::Text(round.to_string()));
        }
    }
    assert_eq!(figure(address, "panics"), 0);
    stop(running);
}

#[test]
fn with_affinity_a_connection_stays_with_its_worker() {
    let seen: Arc<Mutex<HashMap<String, HashSet<String>>>> = Arc::default();
    let names = Arc::clone(&seen);
    let handler =
        Ws::on_upgrade(|request| Ok(request.param("name").unwrap_or_default().to_owned()))
            .on_message_blocking(move |name: &String, message, replies| {
                let worker = std::thread::current().name().unwrap().to_owned();
                names.lock().unwrap().entry(name.clone()).or_default().insert(worker);
                replies.send(message);
            });
    let settings = workers(4, 100, Overload::Pause).affinity(true);
    let (address, running) =
        start(Server::new(served::app().ws("/{name}", handler)).shards(1).workers(settings));
    let mut clients: Vec<_> = (0..8).map(|i| Client::connect(address, &format!("/{i}"))).collect();
    for _ in 0..30 {
        clients.iter_mut().for_each(|client| client.send_text("x"));
        clients.iter_mut().for_each(|client| assert_eq!(client.next(), Got::Text("x".into())));
    }
    stop(running);
    let seen = seen.lock().unwrap();
    assert!(seen.len() == 8 && seen.values().all(|workers| workers.len() == 1), "{seen:?}");
    let all: HashSet<_> = seen.values().flatten().collect();
    assert_eq!(all.len(), 4, "all workers have some: {seen:?}");
    assert!(all.iter().all(|name| name.starts_with("throng-worker-")), "{all:?}");
}

/// A gate on workers at /work, an echo at /echo that needs none.
fn gated(gate: &Gate, settings: WorkerSettings) -> Server {
    Server::new(gated_app(gate)).workers(settings)
}

fn gated_app(gate: &Gate) -> App {
    let (gate, http) = (gate.clone(), gate.clone());
    let work = Ws::on_upgrade(|_| Ok(())).on_message_blocking(move |(): &(), message, replies| {
        gate.pass();
        replies.send(message);
    });
    served::app()
        .ws("/work", work)
        .ws("/echo", Ws::new().on_message(|ws, message| ws.send(message)))
        .blocking(Method::Get, "/http/{name}", move |request| {
            http.pass();
            request.param("name").unwrap_or_default().to_owned()
        })
}

#[test]
fn while_the_queue_is_full_connections_pause_and_nothing_is_lost() {
    for io in families() {
        let gate = Gate::default();
        let server = gated(&gate, workers(1, 2, Overload::Pause)).io(io).shards(1);
        let (address, running) = start(server);
        let mut clients: Vec<_> = (0..4).map(|_| Client::connect(address, "/work")).collect();
        // Far more than the kernel holds: what is not read waits with its sender, in threads of
        // their own.
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
        gate.await_guests(1);
        // One runs, two are in the queue, and of each connection at most one waits beside it.
        eventually("connections pause", || {
            figure(address, "queue_depth") > figure(address, "waiting_for_room")
                && figure(address, "waiting_for_room") >= 2
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

/// Eight small messages may wait for workers, of large ones only as many as are 256 KiB.
#[test]
fn large_messages_wait_with_their_sender() {
    for (io, path) in families().into_iter().flat_map(|io| [(io, "/work"), (io, "/offload")]) {
        let gate = Gate::default();
        let held = gate.clone();
        let offload = Ws::new().on_message(move |ws, message| {
            let (held, message) = (held.clone(), OwnedMessage::from(message));
            let bytes = message.as_bytes().len();
            let work = move || {
                held.pass();
                message
            };
            ws.offload_holding(bytes, work, |ws, message| {
                let _ = ws.send(message.as_message());
            })
            .unwrap();
        });
        let app = gated_app(&gate).ws("/offload", offload);
        let server = Server::new(app).workers(workers(1, 100, Overload::Pause)).io(io).shards(1);
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
        gate.await_guests(1);
        let depth = settled("the queue rests", || figure(address, "queue_depth"));
        assert_eq!(depth, 0, "{io:?} {path}");
        gate.open();
        for number in 0..50 {
            assert_eq!(client.next(), Got::Text(text(number)), "{io:?}");
        }
        writer.join().unwrap();
        assert_eq!(figure(address, "queue_depth"), 0);
        stop(running);
    }
}

/// Brings a connection to where it is not read: its third message waits for room.
fn paused(gate: &Gate, io: IoBackend) -> (Client, SocketAddr, throng::Running) {
    let (address, running) = start(gated(gate, workers(1, 1, Overload::Pause)).io(io).shards(1));
    let mut client = Client::connect(address, "/work");
    for number in 0..6 {
        client.send_text(&number.to_string());
    }
    eventually("it pauses", || figure(address, "waiting_for_room") == 1);
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
        // Its Close lies behind messages that wait, so only its end is seen.
        drop(client);
        gate.open();
        eventually("it has gone", || running.stats().sessions == 0);
        eventually("its work, too", || figure(address, "queue_depth") == 0);
        stop(running);

        let gate = Gate::default();
        let (mut client, _, running) = paused(&gate, io);
        let plan = DrainPlan::DEFAULT.window(Duration::ZERO);
        running.begin_drain(plan);
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.send(Opcode::Close, &1001u16.to_be_bytes());
        assert_eq!(client.next(), Got::End);
        gate.open();
        let drained = running.join().unwrap();
        assert_eq!((drained.forced, drained.stuck), (0, vec![]), "{io:?}");
    }
}

#[test]
fn with_overload_close_a_full_queue_is_1013_and_503() {
    let gate = Gate::default();
    let (address, running) = start(gated(&gate, workers(1, 1, Overload::Close)));
    let mut client = Client::connect(address, "/work");
    client.send_text("runs");
    gate.await_guests(1);
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
fn an_offload_without_room_is_told_in_the_callback() {
    let gate = Gate::default();
    let (held, results) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
    let tell = Arc::clone(&results);
    let handler = Ws::new().on_message(move |ws, message| {
        let Message::Text(times) = message else { return };
        for _ in 0..times.parse().unwrap() {
            let held = held.clone();
            let outcome = ws.offload(
                move || held.pass(),
                |ws, ()| {
                    let _ = ws.send("done");
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
    gate.await_guests(1);
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
fn a_panic_closes_its_connection_with_1011_and_is_counted() {
    let handler = Ws::new().on_message(|ws, message| {
        let (Message::Text("work") | Message::Text("then") | Message::Text("fine")) = message
        else {
            return;
        };
        let which = String::from_utf8_lossy(message.as_bytes()).into_owned();
        let fails = which == "work";
        let work = move || assert!(!fails, "as the test wants it");
        let then = move |ws: &mut Socket<'_, ()>, ()| {
            assert!(which != "then", "as the test wants it");
            let _ = ws.send("fine");
        };
        ws.offload(work, then).unwrap();
    });
    let blocking = Ws::on_upgrade(|_| Ok(()))
        .on_message_blocking(|(): &(), _, _| panic!("as the test wants it"));
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

/// Something of a user's that cannot be dropped in peace.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("as the test wants it");
    }
}

/// The remains of an ended session are dropped by other threads: a result that came too late, and
/// work that is not wanted any more. No connection ends by it, and the session's own `close` is
/// called all the same.
#[test]
fn a_panic_in_a_drop_ends_no_other_connection() {
    for io in families() {
        let (gate, closed) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
        let (its, count) = (gate.clone(), Arc::clone(&closed));
        let handler = Ws::on_upgrade(|_| Ok(()))
            .on_message(move |ws, _| {
                let (gate, held) = (its.clone(), Bomb);
                let work = move || {
                    gate.pass();
                    std::mem::forget(held);
                    Bomb
                };
                ws.offload(work, |_, result| std::mem::forget(result)).unwrap();
            })
            .on_close(move |_, _| {
                count.fetch_add(1, Ordering::SeqCst);
            });
        let settings = workers(1, 100, Overload::Pause);
        let (address, running) =
            start(Server::new(served::app().ws("/", handler)).io(io).shards(1).workers(settings));
        let mut client = Client::connect(address, "/");
        (0..4).for_each(|_| client.send_text("x"));
        gate.await_guests(1);
        eventually("three wait", || figure(address, "queue_depth") == 3);
        drop(client);
        eventually("its end is reported", || closed.load(Ordering::SeqCst) == 1);
        // Its work is taken back after that.
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
    gate.await_guests(1);
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
    let handler = Ws::on_upgrade(|_| Ok(())).on_close(move |ws, _| {
        let save = save.clone();
        ws.offload(move || save.pass(), |_, ()| panic!("the session has ended")).unwrap();
    });
    let (address, running) = start(Server::new(served::app().ws("/", handler)));
    let mut client = Client::connect(address, "/");
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    assert_eq!(client.next(), Got::Close(1000, String::new()));
    saved.await_guests(1);
    let drained = running.drain(DrainPlan::DEFAULT.window(Duration::ZERO)).unwrap();
    assert_eq!((drained.forced, drained.stuck), (0, vec![]));
}

/// A session that has ended cannot be paused: of a storm of them, what finds no room would be held
/// without a bound.
#[test]
fn the_last_work_of_sessions_is_refused_where_there_is_no_room() {
    for io in families() {
        let gate = Gate::default();
        let (held, results) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
        let tell = Arc::clone(&results);
        let handler = Ws::on_upgrade(|_| Ok(())).on_close(move |ws, _| {
            let held = held.clone();
            let outcome = ws.offload(move || held.pass(), |_, ()| ());
            tell.lock().unwrap().push(outcome.is_ok());
        });
        let settings = workers(1, 1, Overload::Pause);
        let server = Server::new(served::app().ws("/", handler)).io(io).shards(1).workers(settings);
        let (address, running) = start(server);
        for number in 0..6 {
            let mut client = Client::connect(address, "/");
            client.send(Opcode::Close, &1000u16.to_be_bytes());
            assert_eq!(client.next(), Got::Close(1000, String::new()), "{io:?}");
            // One runs, and is no longer in the queue, before the next comes.
            gate.await_guests(1);
            eventually("the result was recorded", || results.lock().unwrap().len() == number + 1);
        }
        assert_eq!(*results.lock().unwrap(), [true, true, false, false, false, false], "{io:?}");
        let figures = ["queue_depth", "waiting_for_room", "refused"];
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
    gate.await_guests(2);
    let (began, grace) = (Instant::now(), Duration::from_millis(300));
    let plan = DrainPlan::DEFAULT.window(Duration::ZERO).grace(grace);
    let drained = running.drain(plan).unwrap();
    assert!(began.elapsed() >= grace, "it was not waited for");
    let mut routes: Vec<&str> = drained.stuck.iter().map(|job| &*job.route).collect();
    routes.sort_unstable();
    assert_eq!(routes, ["/http/{name}", "/work"]);
    // The request that was never answered, and the session whose peer did not close.
    assert_eq!(drained.forced, 2);
    gate.open();
}

/// Two connections take no window to close; workers are not waited for longer than their shards.
#[test]
fn workers_have_the_time_that_shards_have_to_drain() {
    for io in families() {
        let gate = Gate::default();
        let (address, running) = start(gated(&gate, workers(1, 100, Overload::Pause)).io(io));
        let mut client = Client::connect(address, "/work");
        client.send_text("never returns");
        gate.await_guests(1);
        let grace = Duration::from_millis(300);
        let plan = DrainPlan::DEFAULT.window(100 * TIMEOUT).grace(grace);
        let (say, hear) = mpsc::channel();
        std::thread::spawn(move || say.send(running.drain(plan).unwrap()));
        let drained =
            hear.recv_timeout(TIMEOUT).expect("it waits for a window that no connection needs");
        assert_eq!(drained.stuck.len(), 1, "{io:?}");
        gate.open();
    }
}

/// A client of HTTP whose answers are read one by one.
struct Http(BufReader<TcpStream>);

impl Http {
    fn dial(address: SocketAddr) -> Self {
        Self(BufReader::new(dial(address)))
    }

    fn say(&mut self, bytes: &str) {
        self.0.get_mut().write_all(bytes.as_bytes()).unwrap();
    }

    /// Head and body of the next answer, by its length.
    fn hear(&mut self) -> (String, String) {
        let head = self.hear_head();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let mut body = vec![0; length.unwrap().parse().unwrap()];
        self.0.read_exact(&mut body).unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    fn hear_head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "the end after {head:?}");
        }
        head
    }
}

#[test]
fn requests_are_answered_on_workers_as_they_would_be_on_the_shard() {
    for io in families() {
        let server = Server::new(
            served::app()
                .blocking(Method::Post, "/sum/{name}/{*rest}", |request| {
                    let on = std::thread::current().name().unwrap().to_owned();
                    let (name, rest) = (request.param("name"), request.param("rest"));
                    let query = request.query("q").unwrap_or("none").to_owned();
                    let agent = request.header("user-agent").unwrap_or("none").to_owned();
                    let length = request.body().len();
                    format!("{name:?} {rest:?} {query} {agent} {length} {}", &on[..14])
                })
                .blocking(Method::Get, "/wait/{ms}", |request| {
                    let ms = request
                        .param("ms")
                        .and_then(|ms| ms.parse().ok())
                        .ok_or_else(|| Reject::bad_request("a number of milliseconds"))?;
                    hold_up(Duration::from_millis(ms));
                    Ok::<_, Reject>(format!("{ms}"))
                })
                .blocking(Method::Get, "/panic", |_| -> &'static str {
                    panic!("as the test wants it")
                })
                .get("/inline", |_| "inline"),
        )
        .io(io);
        let (address, running) = start(server);
        let mut http = Http::dial(address);
        let body = "x".repeat(100_000);
        http.say(&format!(
            "POST /sum/a%20b/c/d?q=%C3%A9 HTTP/1.1\r\nHost: x\r\nUser-Agent: me\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let expected = "Some(\"a b\") Some(\"c/d\") é me 100000 throng-worker-";
        assert_eq!(http.hear().1, expected, "{io:?}");
        // Pipelined: the first is the slowest, and still the first to be answered.
        http.say("GET /wait/30 HTTP/1.1\r\nHost: x\r\n\r\nGET /wait/1 HTTP/1.1\r\nHost: x\r\n\r\n");
        http.say("GET /inline HTTP/1.1\r\nHost: x\r\n\r\nGET /wait/no HTTP/1.1\r\nHost: x\r\n\r\n");
        http.say("POST /sum/z/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        assert_eq!(http.hear().1, "30");
        assert_eq!(http.hear().1, "1");
        assert_eq!(http.hear().1, "inline");
        assert!(http.hear().0.starts_with("HTTP/1.1 400 "));
        assert_eq!(http.hear().1, "Some(\"z\") Some(\"\") none none 3 throng-worker-");
        // The head of what GET would answer, and no body before the next answer.
        http.say(
            "HEAD /wait/12 HTTP/1.1\r\nHost: x\r\n\r\nGET /wait/2 HTTP/1.1\r\nHost: x\r\n\r\n",
        );
        let head = http.hear_head();
        assert!(
            head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Length: 2\r\n"),
            "{head}"
        );
        assert_eq!(http.hear().1, "2");
        http.say(
            "DELETE /wait/2 HTTP/1.1\r\nHost: x\r\n\r\nGET /panic HTTP/1.1\r\nHost: x\r\n\r\n",
        );
        assert!(http.hear().0.starts_with("HTTP/1.1 405 "));
        assert!(http.hear().0.starts_with("HTTP/1.1 500 "));
        http.say("GET /wait/3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let (head, body) = http.hear();
        assert!(head.contains("Connection: close") && body == "3", "{head}");
        eventually("all have ended", || figure(address, "jobs") == 9);
        assert_eq!(figure(address, "panics"), 1);
        stop(running);
    }
}

#[test]
fn requests_wait_for_room_and_each_is_answered() {
    let gate = Gate::default();
    let (address, running) = start(gated(&gate, workers(1, 1, Overload::Pause)));
    let mut clients: Vec<_> = (0..10).map(|_| Http::dial(address)).collect();
    for (i, http) in clients.iter_mut().enumerate() {
        http.say(&format!("GET /http/{i} HTTP/1.1\r\nHost: x\r\n\r\n"));
    }
    eventually("eight wait for room", || figure(address, "waiting_for_room") == 8);
    gate.open();
    for (i, http) in clients.iter_mut().enumerate() {
        assert_eq!(http.hear().1, i.to_string());
    }
    stop(running);
}

#[test]
fn replies_are_carried_out_in_order() {
    let member = Ws::on_upgrade(|request| Ok(request.query("name").unwrap_or("?").to_owned()))
        .on_message_blocking(|name: &String, message, replies| match message {
            Message::Text("join") => {
                replies.subscribe("room");
                replies.publish_to_others("room", format!("{name} is here"));
                replies.send("joined");
            }
            Message::Text("leave") => {
                replies.publish_to_others("room", format!("{name} leaves"));
                replies.unsubscribe("room");
                replies.send("left");
            }
            other => {
                replies.send(other);
                replies.close(4000, "enough");
                replies.send("too late");
            }
        });
    let (address, running) = start(Server::new(served::app().ws("/", member)).shards(1));
    let mut a = Client::connect(address, "/?name=a");
    let mut b = Client::connect(address, "/?name=b");
    let expect = |client: &mut Client, text: &str| {
        assert_eq!(client.next(), Got::Text(text.to_owned()));
    };
    a.send_text("join");
    expect(&mut a, "joined");
    b.send_text("join");
    expect(&mut b, "joined");
    expect(&mut a, "b is here");
    a.send_text("leave");
    expect(&mut a, "left");
    expect(&mut b, "a leaves");
    b.send_text("leave");
    expect(&mut b, "left");
    a.send(Opcode::Binary, &[1, 2, 3]);
    assert_eq!(a.next(), Got::Binary(vec![1, 2, 3]));
    assert_eq!(a.next(), Got::Close(4000, "enough".into()));
    stop(running);
}

#[test]
fn figures_are_shown_and_count() {
    let gate = Gate::default();
    let (address, running) = start(gated(&gate, workers(2, 10, Overload::Pause)));
    let mut client = Client::connect(address, "/work");
    client.send_text("a");
    client.send_text("b");
    gate.await_guests(1);
    eventually("the second waits", || figure(address, "queue_depth") == 1);
    let text = get(address, "/metrics");
    for line in [
        "# TYPE throng_worker_queue_depth gauge",
        "throng_worker_queue_depth 1",
        "throng_worker_threads 2",
        "throng_worker_running 1",
        "# TYPE throng_worker_jobs_total counter",
        "throng_worker_jobs_total 0",
        "throng_worker_refused_total 0",
        "throng_worker_cancelled_total 0",
        "throng_worker_panics_total 0",
        "# TYPE throng_worker_wait_seconds_total counter",
        "# TYPE throng_worker_busy_seconds_total counter",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in {text}");
    }
    gate.open();
    assert_eq!(client.next(), Got::Text("a".into()));
    assert_eq!(client.next(), Got::Text("b".into()));
    eventually("both have ended", || figure(address, "jobs") == 2);
    let text = get(address, "/metrics");
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert!(value("throng_worker_busy_seconds_total") > 0.0);
    assert!(value("throng_worker_wait_seconds_total") > 0.0);
    assert_eq!(value("throng_worker_jobs_total"), 2.0);
    stop(running);
}

#[test]
fn without_work_there_are_no_workers_and_the_first_work_starts_them() {
    let (address, running) = start(Server::new(served::app().ws("/", dawdling())));
    assert_eq!(figure(address, "threads"), 0);
    let mut client = Client::connect(address, "/");
    client.send_text("1");
    assert_eq!(client.next(), Got::Text("1".into()));
    assert_eq!(figure(address, "threads") as usize, throng::workers::usable_cpus());
    stop(running);
}

#[test]
fn settings_that_cannot_work_are_told_by_bind() {
    for (settings, part) in [
        (workers(5000, 1, Overload::Pause), "workers.pool_size is 5000"),
        (workers(1, 0, Overload::Pause), "workers.queue_size is 0"),
    ] {
        let error = Server::new(served::app()).workers(settings).bind("127.0.0.1:0").unwrap_err();
        assert!(matches!(&error, Error::Setting(why) if why.to_string().contains(part)), "{error}");
    }
}
