//! Order of the jobs of a connection, and the workers that run them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use throng::prelude::*;
use throng::server::Shards;
use throng::workers::Overload;
use throng_proto::ws::Opcode;

use super::{dawdling, families, figure, workers};
use crate::support::served::{self, start, stop};
use crate::support::{Client, Got, eventually};

#[test]
fn answers_keep_the_order_of_their_connection_in_every_family() {
    for io in families() {
        // Some never wait for room, some often do.
        for queue_size in [4096, 3] {
            let settings = workers(3, queue_size, Overload::Pause);
            let server = Server::new(served::app().ws("/", dawdling()))
                .shards(Shards::new().io(io).count(2))
                .workers(settings);
            let (address, running) = start(server);
            std::thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        let mut client = Client::connect(address, "/");
                        let mut writer = Client::connect(address, "/");
                        // Another connection's: many at once, and one by one.
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

/// Jobs of one connection never run in parallel; jobs of different connections do.
#[test]
fn a_connections_jobs_run_one_at_a_time_and_all_workers_at_once() {
    const WORKERS: usize = 5;
    let (barrier, at_once) = (Arc::new(Barrier::new(WORKERS)), Arc::new(AtomicUsize::new(0)));
    let all = Arc::clone(&barrier);
    let handler = Ws::from_request(move |_| Ok(Arc::new(AtomicUsize::new(0)))).on_message_blocking(
        move |replies, mine: &Arc<AtomicUsize>, message| {
            assert_eq!(mine.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            // Opens when all workers have arrived, each with a job of a different connection.
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
        Ws::from_request(|request| Ok(request.param("name").unwrap_or_default().to_owned()))
            .on_message_blocking(move |replies, name: &String, message| {
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

#[test]
fn replies_are_carried_out_in_order() {
    let member = Ws::from_request(|request| Ok(request.query("name").unwrap_or("?").to_owned()))
        .on_message_blocking(|replies, name: &String, message| match message {
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
                replies.close(CloseCode::new(4000), "enough");
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
