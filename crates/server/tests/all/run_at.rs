//! Functions on the event loop of a key, and their jobs on the pool of workers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use throng::prelude::*;
use throng::server::{IoBackend, Observe, ServerEvent, Shard, Shards};
use throng::workers::WorkerSettings;

use crate::support::served::{start, stop};
use crate::support::{Client, Got, TIMEOUT, eventually};

/// Texts by room.
#[derive(Default)]
struct Rooms(HashMap<String, String>);

/// A session that answers with the text of its room.
fn asking() -> App {
    let room = Ws::from_request(|request| Ok(request.param("room").unwrap_or("").to_owned()))
        .place_by(|room| room)
        .on_message(|ws, room, _| {
            let text = ws.shard_state::<Rooms>().0.get(room).cloned().unwrap_or_default();
            ws.send(text)
        });
    App::new().ws("/{room}", room)
}

fn ask(client: &mut Client) -> String {
    client.send_text("?");
    match client.next() {
        Got::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_leads_to_the_state_of_its_sessions_in_the_order_of_the_calls() {
    for io in [IoBackend::Auto, IoBackend::Portable] {
        let server = Server::new(asking()).shards(Shards::new().io(io).count(3));
        let (address, running) = start(server);
        let hub = running.hub();
        let (done, all) = mpsc::channel();
        for room in (0..20).map(|n| n.to_string()) {
            for part in ["a", "b", "c"] {
                let (name, done) = (room.clone(), done.clone());
                let call = move |rooms: &mut Rooms, shard: &mut Shard<'_>| {
                    rooms.0.entry(name).or_default().push_str(part);
                    done.send(shard.number()).unwrap();
                };
                // The sessions' key is a `String`, which hashes as its text.
                hub.run_at(room.as_str(), call).unwrap();
            }
        }
        let mut shards: Vec<usize> = (0..60).map(|_| all.recv_timeout(TIMEOUT).unwrap()).collect();
        shards.sort_unstable();
        shards.dedup();
        assert!(shards.len() > 1, "{io:?}: twenty keys on one of three loops");
        for room in 0..20 {
            let mut client = Client::connect(address, &format!("/{room}"));
            assert_eq!(ask(&mut client), "abc", "{io:?}, room {room}");
        }
        stop(running);
    }
}

#[test]
fn a_job_of_a_shard_returns_to_its_state_though_the_first_session_has_left() {
    let (address, running) = start(Server::new(asking()).shards(2));
    let hub = running.hub();
    // Both jobs must run at once to end.
    let both = Arc::new(Barrier::new(2));
    for part in ["x", "y"] {
        let (both, (done, result)) = (Arc::clone(&both), mpsc::channel());
        let call = move |_: &mut Rooms, shard: &mut Shard<'_>| {
            let here = shard.number();
            let work = move || {
                both.wait();
                part
            };
            let then = move |rooms: &mut Rooms, shard: &mut Shard<'_>, part| {
                assert_eq!(shard.number(), here);
                rooms.0.entry("room".into()).or_default().push_str(part);
            };
            done.send(shard.offload(work, then)).unwrap();
        };
        hub.run_at("room", call).unwrap();
        assert_eq!(result.recv_timeout(TIMEOUT).unwrap(), Ok(()));
    }
    let mut client = Client::connect(address, "/room");
    eventually("both results are there", || ["xy", "yx"].contains(&&*ask(&mut client)));
    stop(running);
}

#[test]
fn panics_are_counted_and_a_full_pool_refuses() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let observe = Observe::new().on_event(move |event| {
        if let ServerEvent::CallbackPanicked { callback, .. } = event {
            heard.lock().unwrap().push((*callback).to_owned());
        }
    });
    let workers = WorkerSettings::default().pool_size(1).queue_size(1);
    let server = Server::new(asking()).shards(1).workers(workers).observe(observe);
    let (address, running) = start(server);
    let hub = running.hub();
    let panics = |_: &mut Rooms, _: &mut Shard<'_>| panic!("as the test wants");
    hub.run_at("room", panics).unwrap();
    let offloads = |_: &mut Rooms, shard: &mut Shard<'_>| {
        let _ = shard.offload(|| panic!("as the test wants"), |_: &mut Rooms, _, ()| {});
    };
    hub.run_at("room", offloads).unwrap();
    let counts = || events.lock().unwrap().clone();
    eventually("each is reported", || counts() == ["run_at", "shard_offload"]);

    // One job runs, one waits, and the third is refused.
    let (held, ends) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let (began, begun) = mpsc::channel();
    let (submitted, outcomes) = mpsc::channel();
    for n in 0..3 {
        let (held, ends, began) = (Arc::clone(&held), Arc::clone(&ends), began.clone());
        let submitted = submitted.clone();
        let call = move |_: &mut Rooms, shard: &mut Shard<'_>| {
            let work = move || {
                if n == 0 {
                    began.send(()).unwrap();
                    held.wait();
                }
            };
            let then = move |_: &mut Rooms, _: &mut Shard<'_>, ()| {
                ends.fetch_add(1, Ordering::SeqCst);
            };
            submitted.send(shard.offload(work, then).is_ok()).unwrap();
        };
        hub.run_at("room", call).unwrap();
        assert_eq!(outcomes.recv_timeout(TIMEOUT).unwrap(), n < 2);
        if n == 0 {
            begun.recv_timeout(TIMEOUT).unwrap();
        }
    }
    held.wait();
    eventually("the two that were taken end", || ends.load(Ordering::SeqCst) == 2);
    assert_eq!(ask(&mut Client::connect(address, "/room")), "", "the server goes on");
    stop(running);
}

#[test]
fn without_an_event_loop_the_caller_learns_that_nothing_runs() {
    let call = |_: &mut Rooms, _: &mut Shard<'_>| unreachable!();
    assert!(Hub::new().run_at("room", call).is_err(), "no server");
    let echo = App::new().ws("/", Ws::new().on_message(|ws, (), message| ws.send(message)));
    let threads = Shards::new().io(IoBackend::Threads);
    let (_, running) = start(Server::new(echo).shards(threads));
    assert!(running.hub().run_at("room", call).is_err(), "a thread for each connection");
    stop(running);
}
