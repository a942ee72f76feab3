//! Timers of sessions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use throng::prelude::*;
use throng::server::{IoBackend, Shards};
use throng::ws::Timer;
use throng_proto::ws::Opcode;

use crate::support::served::{self, start, stop};
use crate::support::{Alive, BACKENDS, Client, Got, eventually};

const SOON: Duration = Duration::from_millis(20);

fn text(text: &str) -> Got {
    Got::Text(text.to_owned())
}

#[test]
fn timers_are_called_in_order_not_too_early_and_again_if_set_again() {
    for io in BACKENDS {
        let handler = Ws::from_request(|_| Ok(Instant::now())).on_open(|ws, _| {
            for (times, name) in [(3, "third"), (1, "first"), (2, "second")] {
                ws.after(SOON * times, move |ws, begun| {
                    let is_due = begun.elapsed() >= SOON * times;
                    ws.send(format!("{name} {is_due}"));
                    if name == "third" {
                        ws.after(Duration::ZERO, |ws, _| {
                            ws.send("again");
                        });
                    }
                });
            }
            ws.send("open");
        });
        let (address, running) =
            start(Server::new(served::app().ws("/", handler)).shards(Shards::new().io(io)));
        let mut client = Client::connect(address, "/");
        for expected in ["open", "first true", "second true", "third true", "again"] {
            assert_eq!(client.next(), text(expected), "{io:?}");
        }
        drop(client);
        stop(running);
    }
}

#[test]
fn a_timer_that_is_cancelled_is_not_called() {
    for io in BACKENDS {
        let handler = Ws::from_request(|_| Ok(None::<Timer>))
            .on_open(|ws, pending| {
                let timer = ws.after(SOON, |ws, _| {
                    ws.send("cancelled");
                });
                *pending = Some(timer);
            })
            .on_message(|ws, pending, _| {
                if let Some(timer) = pending.take() {
                    ws.cancel_timer(timer);
                    ws.after(SOON * 2, |ws, _| {
                        ws.send("later");
                    });
                }
            });
        let (address, running) =
            start(Server::new(served::app().ws("/", handler)).shards(Shards::new().io(io)));
        let mut client = Client::connect(address, "/");
        client.send_text("cancel");
        // On a slow machine it may be called before the message comes.
        let mut got = client.next();
        if got == text("cancelled") {
            got = client.next();
        }
        assert_eq!(got, text("later"), "{io:?}");
        drop(client);
        stop(running);
    }
}

#[test]
fn timers_end_with_their_session_and_a_panic_in_one_ends_that_alone() {
    for io in BACKENDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&alive);
        let called = Arc::new(Mutex::new(0));
        let calls = Arc::clone(&called);
        let handler = Ws::new().on_message(move |ws, (), message| {
            let (alive, calls) = (Alive::new(&counted), Arc::clone(&calls));
            match message {
                Message::Text("panic") => {
                    ws.after(Duration::ZERO, |_, ()| panic!("as the test wants it"));
                }
                _ => {
                    ws.after(Duration::from_secs(3600), move |_, ()| {
                        let _alive = alive;
                        *calls.lock().unwrap() += 1;
                    });
                }
            }
            ws.send("set");
        });
        let (address, running) =
            start(Server::new(served::app().ws("/", handler)).shards(Shards::new().io(io)));
        let mut clients = [(); 3].map(|()| Client::connect(address, "/"));
        for client in &mut clients {
            client.send_text("an hour");
            assert_eq!(client.next(), text("set"));
        }
        assert_eq!(alive.load(Ordering::SeqCst), 3);
        let [first, second, third] = &mut clients;
        first.send_text("panic");
        assert_eq!(first.next(), text("set"));
        assert_eq!(first.next(), Got::Close(1011, "internal error".to_owned()), "{io:?}");
        first.try_send(Opcode::Close, &1011u16.to_be_bytes());
        second.send(Opcode::Close, &1000u16.to_be_bytes());
        eventually("their timers are gone", || alive.load(Ordering::SeqCst) == 1);
        third.send_text("still there");
        assert_eq!(third.next(), text("set"));
        drop(clients);
        eventually("all timers are gone", || alive.load(Ordering::SeqCst) == 0);
        assert_eq!(*called.lock().unwrap(), 0);
        stop(running);
    }
}

#[test]
fn timers_of_a_server_go_on_until_it_has_ended() {
    for io in BACKENDS {
        let ticks = Arc::new(AtomicUsize::new(0));
        let its = Arc::clone(&ticks);
        let listener = Ws::new().on_open(|ws, ()| {
            ws.subscribe("clock");
        });
        let server = Server::new(served::app().ws("/", listener))
            .shards(Shards::new().io(io).count(if io == IoBackend::Threads { 1 } else { 2 }))
            .every(SOON, move |hub| {
                let tick = its.fetch_add(1, Ordering::SeqCst);
                let _ = hub.publish("clock", tick.to_string());
            })
            .every(Duration::from_millis(1), |_| panic!("as the test wants"));
        let (address, running) = start(server);
        let mut client = Client::connect(address, "/");
        let Got::Text(first) = client.next() else { panic!("no tick") };
        let first: usize = first.parse().unwrap();
        // One after the other, although other timers panic.
        for tick in first + 1..first + 5 {
            assert_eq!(client.next(), text(&tick.to_string()), "{io:?}");
        }
        running.stopper().shutdown(DrainPlan::default().window(Duration::ZERO));
        while client.next().close_code().is_none() {}
        client.send(Opcode::Close, &1001u16.to_be_bytes());
        running.wait().unwrap();
        assert_eq!(Arc::strong_count(&ticks), 1, "{io:?}: it is dropped with the server");
    }
}

#[test]
fn a_period_of_nothing_is_refused() {
    let error = Server::new(App::new()).every(Duration::ZERO, |_| {}).check().unwrap_err();
    assert!(error.to_string().contains("a period of every is 0"), "{error}");
}

#[cfg(feature = "test")]
#[test]
fn periods_that_could_not_be_kept_are_left_out() {
    let ticks = Arc::new(AtomicUsize::new(0));
    let its = Arc::clone(&ticks);
    let count = move |_: &Hub| {
        its.fetch_add(1, Ordering::SeqCst);
    };
    let server = Server::new(App::new()).every(Duration::from_secs(10), count);
    let server = throng::test::LocalServer::start(server);
    server.advance(Duration::ZERO);
    for (advance, expected) in [(9, 0), (1, 1), (9, 1), (1, 2), (30, 5)] {
        server.advance(Duration::from_secs(advance));
        assert_eq!(ticks.load(Ordering::SeqCst), expected, "after {advance} s more");
    }
}
