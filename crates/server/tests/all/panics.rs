//! Panics of the program's functions: each is an event and a count, even if there is no connection
//! left to close.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng::asynchronous::AsyncOptions;
use throng::prelude::*;
use throng::server::{AccessEntry, AccessLog, Observe, ServerEvent, Shard};
use throng_proto::ws::Opcode;

use crate::support::served::{self, get, start, stop};
use crate::support::{Client, Got, eventually, exchange};

/// Panics. For a future whose output is `()`.
#[cfg(feature = "tokio")]
fn burst() {
    panic!("as the test wants");
}

/// The texts of events so far.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn listen(&self, server: Server) -> Server {
        server.observe(self.observe())
    }

    fn observe(&self) -> Observe {
        let heard = Arc::clone(&self.0);
        Observe::new().on_event(move |event| {
            let panicked = matches!(
                event,
                ServerEvent::Panicked { .. }
                    | ServerEvent::TickPanicked { .. }
                    | ServerEvent::CallbackPanicked { .. }
            );
            if panicked {
                heard.lock().unwrap().push(event.to_string());
            }
        })
    }

    fn count(&self, part: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|text| text.contains(part)).count()
    }
}

/// The panics of a kind of function, in the metrics.
fn counted(address: SocketAddr, callback: &str) -> usize {
    let metrics = get(address, "/metrics");
    let name = format!("throng_callback_panics_total{{callback=\"{callback}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

#[test]
fn a_tick_that_panics_is_reported_each_time_and_goes_on() {
    let (fails, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let call = |fails: &Arc<AtomicBool>, calls: &Arc<AtomicUsize>| {
        let (fails, calls) = (Arc::clone(fails), Arc::clone(calls));
        move || {
            calls.fetch_add(1, Ordering::SeqCst);
            assert!(!fails.load(Ordering::SeqCst), "as the test wants");
        }
    };
    let (of_server, of_shards) = (call(&fails, &calls), call(&fails, &calls));
    let heard = Heard::default();
    let server = Server::new(served::app().health())
        .shards(2)
        .every(Duration::from_millis(2), move |_| of_server())
        .every_on_shard(Duration::from_millis(3), move |_: &mut (), _: &mut Shard<'_>| of_shards());
    let (address, running) = start(heard.listen(server));
    eventually("each is called again and again", || {
        heard.count("every 2ms panicked; it goes on") > 2
            && (0..2).all(|n| heard.count(&format!("every 3ms on shard {n} panicked")) > 2)
    });
    assert!(counted(address, "tick") > 8);
    assert!(get(address, "/metrics").contains("\nthrong_ticks_failing 3\n"));
    assert!(get(address, "/stats.json").contains("\"ticks_failing\":3"));
    let ready = exchange(address, b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(ready.starts_with("HTTP/1.1 200 ") && ready.contains("\r\n\r\ndegraded: "), "{ready}");
    fails.store(false, Ordering::SeqCst);
    eventually("no call fails", || get(address, "/readyz") == "ready\n");
    assert!(get(address, "/metrics").contains("\nthrong_ticks_failing 0\n"));
    let before = calls.load(Ordering::SeqCst);
    eventually("they are called", || calls.load(Ordering::SeqCst) > before + 6);
    stop(running);
}

/// Ends the sessions of clients, and waits until each has panicked late, once.
fn end_and_count(
    (address, running): (SocketAddr, Running),
    (path, last): (&str, &str),
    heard: &Heard,
) {
    const SESSIONS: usize = 5;
    for _ in 0..SESSIONS {
        let mut client = Client::connect(address, path);
        client.send_text(last);
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        while !matches!(client.next(), Got::Close(..) | Got::End) {}
    }
    let part = format!("a handler of {path} panicked");
    eventually("each panic is reported", || heard.count(&part) == SESSIONS);
    eventually("each panic is counted", || counted(address, "late") == SESSIONS);
    assert_eq!(running.stats().handler_panics, 0, "no session was closed for one");
    stop(running);
    assert_eq!(heard.count(""), SESSIONS);
}

#[cfg(feature = "tokio")]
#[test]
fn a_future_that_panics_when_its_session_has_ended_is_reported() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let cleanup = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
        while socket.next().await.is_some() {}
        assert!(socket.close_reason().is_none(), "as the test wants");
    });
    let dropped = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
        let _ = socket.next().await;
        drop(socket);
        burst();
    });
    let accepted = Ws::new()
        .on_message_async(runtime.handle().clone(), |session, _| async move {
            session.closed().await;
            burst();
        })
        .async_options(AsyncOptions::new().credits(8).finish_after_close());
    for (path, app) in [
        ("/cleanup", served::app().ws("/cleanup", cleanup)),
        ("/dropped", served::app().ws("/dropped", dropped)),
        ("/accepted", served::app().ws("/accepted", accepted)),
    ] {
        let heard = Heard::default();
        let server = start(heard.listen(Server::new(app)));
        end_and_count(server, (path, "last"), &heard);
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_future_that_panics_is_reported_with_its_route() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let each = Ws::new()
        .on_message_async(runtime.handle().clone(), |_, _| async {
            burst();
        })
        .async_options(AsyncOptions::new().credits(8));
    let whole = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
        let _ = socket.next().await;
        burst();
    });
    let heard = Heard::default();
    let server = Server::new(served::app().ws("/each", each).ws("/whole", whole));
    let (address, running) = start(heard.listen(server));
    for path in ["/each", "/whole"] {
        let mut client = Client::connect(address, path);
        client.send_text("go");
        assert!(matches!(client.next(), Got::Close(1011, _)), "{path}");
        let part = format!("a handler of {path} panicked");
        eventually("it is reported with its route", || heard.count(&part) == 1);
    }
    stop(running);
    assert_eq!(heard.count(""), 2, "once each");
}

#[test]
fn a_job_that_panics_when_its_session_has_ended_is_reported() {
    let saves = Ws::new().on_close(|ws, (), _| {
        ws.offload(|| -> () { panic!("as the test wants") }, |_, (), ()| ());
    });
    let heard = Heard::default();
    let server = start(heard.listen(Server::new(served::app().ws("/saves", saves))));
    end_and_count(server, ("/saves", "last"), &heard);
}

#[test]
fn a_request_that_panics_when_its_client_has_left_is_reported() {
    let app = served::app().route(
        "/later",
        Route::deferred(Method::Get, |_, responder| {
            std::thread::spawn(move || {
                eventually("the client has left", || responder.is_closed());
                panic!("as the test wants");
            });
        }),
    );
    let heard = Heard::default();
    let (address, running) = start(heard.listen(Server::new(app)));
    let mut client = crate::support::dial(address);
    std::io::Write::write_all(&mut client, b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    drop(client);
    eventually("it is reported", || heard.count("a handler of /later panicked") == 1);
    // Its shard may not know yet that the client has left.
    eventually("it is counted", || {
        counted(address, "late") as u64 + running.stats().handler_panics == 1
    });
    stop(running);
}

#[test]
fn a_panic_of_the_access_log_or_of_the_event_callback_ends_nothing() {
    struct Broken;
    impl AccessLog for Broken {
        fn record(&self, access: &AccessEntry<'_>) {
            assert!(access.path != "/x", "as the test wants");
        }
    }
    let heard = Heard::default();
    let server = Server::new(served::app().get("/x", |_| "answered"));
    let (address, running) = start(server.observe(heard.observe().access_log(Broken)));
    let answer = exchange(address, b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("answered"), "{answer}");
    assert_eq!(heard.count("the function that was given to access_log panicked"), 1);
    assert_eq!(counted(address, "access_log"), 1);
    stop(running);
    let server = Server::new(served::app().get("/x", |_| -> &str { panic!("as the test wants") }))
        .observe(Observe::new().on_event(|_| panic!("as the test wants")));
    let (address, running) = start(server);
    let answer = exchange(address, b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    // The panic of the handler, and the refusal; there may also be a stall.
    assert!(counted(address, "event") >= 2);
    stop(running);
}
