//! Handlers that block their shard: they are counted and named, and no shutdown waits for a handler
//! that does not return.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use throng::prelude::*;
use throng::server::{Drained, Observe, ServerEvent, StuckShard};
use throng_proto::ws::Opcode;
use throng_testkit::hold_up;

use crate::support::served::{self, start, stop};
use crate::support::{Client, Got, eventually};

/// The duration of a slow handler here, and the minimum of a stall: so long that even on a busy
/// machine, only the handlers of the test are stalls.
const SLOW: Duration = Duration::from_millis(1100);
const WARNING: Duration = Duration::from_secs(1);

type Reported = Arc<Mutex<Vec<(String, usize, Duration)>>>;

/// One shard, so that all routes are on it, and the stalls reported.
fn server(app: App) -> (Server, Reported) {
    let reported = Reported::default();
    let heard = Arc::clone(&reported);
    let on_stall = move |event: &ServerEvent<'_>| {
        let ServerEvent::Stalled(stall) = event else { return };
        let stall = (stall.route.to_owned(), stall.shard, stall.length);
        heard.lock().unwrap_or_else(PoisonError::into_inner).push(stall);
    };
    (
        Server::new(app)
            .shards(1)
            .observe(Observe::new().stall_warning(WARNING).on_event(on_stall)),
        reported,
    )
}

/// Returns the routes of the stalls reported, except those caused by the machine itself.
fn routes(reported: &Reported) -> Vec<String> {
    let reported = reported.lock().unwrap();
    reported.iter().map(|stall| stall.0.clone()).filter(|route| route != "(none)").collect()
}

fn sleeps_when_asked() -> Ws {
    Ws::new().on_message(|ws, (), message: Message<'_>| {
        if message == Message::Text("sleep") {
            hold_up(SLOW);
        }
        ws.send(message)
    })
}

fn say(client: &mut Client, text: &str) {
    client.send_text(text);
    assert_eq!(client.next(), Got::Text(text.into()));
}

#[test]
fn a_handler_that_sleeps_is_counted_and_named_and_one_that_does_not_is_not() {
    let app = served::app()
        .ws("/quick", sleeps_when_asked())
        .ws("/slow/{name}", sleeps_when_asked())
        .get("/page", |_| hold_up(SLOW))
        .route(
            "/later",
            Route::deferred(Method::Get, |_, responder| {
                hold_up(SLOW);
                responder.send("at last");
            }),
        );
    let (server, reported) = server(app);
    let (address, running) = start(server);
    let (mut quick, mut slow) =
        (Client::connect(address, "/quick"), Client::connect(address, "/slow/x"));
    for _ in 0..5 {
        say(&mut quick, "hello");
    }
    say(&mut slow, "hello");
    say(&mut slow, "sleep");
    served::get(address, "/page");
    assert_eq!(served::get(address, "/later"), "at last");
    // After the turn that sent these answers.
    say(&mut quick, "bye");
    eventually("three stalls", || routes(&reported).len() == 3);
    assert_eq!(routes(&reported), ["/slow/{name}", "/page", "/later"]);
    assert!(reported.lock().unwrap().iter().all(|stall| stall.1 == 0 && stall.2 >= WARNING));
    let metrics = served::get(address, "/metrics");
    for line in [
        "throng_stalls_total{route=\"/slow/{name}\"} 1",
        "throng_stalls_total{route=\"/page\"} 1",
        "throng_stalls_total{route=\"/later\"} 1",
        "throng_stalls_total{route=\"/quick\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    }
    let stats: Value = serde_json::from_str(&served::get(address, "/stats.json")).unwrap();
    let busy = stats["shard_busy_seconds"][0].as_f64().unwrap();
    assert!(busy >= 3.0 * SLOW.as_secs_f64(), "{stats}");
    let longest = &stats["stalls"].as_array().unwrap()[..];
    let longest = longest.iter().find(|stall| stall["route"] == "/page").unwrap();
    assert!(longest["longest_seconds"].as_f64().unwrap() >= SLOW.as_secs_f64(), "{stats}");
    assert!(running.shard_loads()[0].busy >= 3 * SLOW);
    stop(running);
}

#[test]
fn figures_of_a_server_that_has_done_nothing_are_zero_and_not_below() {
    let (address, running) = start(Server::new(served::app()));
    let metrics = served::get(address, "/metrics");
    let negative: Vec<&str> = metrics.lines().filter(|line| line.contains(" -")).collect();
    assert!(metrics.contains("throng_worker_busy_seconds_total 0"), "{metrics}");
    assert!(negative.iter().all(|line| line.starts_with('#')), "{negative:?}");
    let stats: Value = serde_json::from_str(&served::get(address, "/stats.json")).unwrap();
    assert!(!stats.to_string().contains(":-"), "{stats}");
    stop(running);
}

#[test]
fn every_callback_of_a_session_counts() {
    let slow = |path: &'static str| {
        move |when: &'static str| {
            if path == when {
                hold_up(SLOW);
            }
        }
    };
    let handler = |path| {
        let (open, close) = (slow(path), slow(path));
        Ws::from_request(move |_| {
            slow(path)("/upgrade");
            Ok(())
        })
        .on_open(move |_, _| open("/open"))
        .on_message(|ws, _, message| ws.send(message))
        .on_close(move |_, _, _| close("/close"))
    };
    let app = served::app()
        .ws("/upgrade", handler("/upgrade"))
        .ws("/open", handler("/open"))
        .ws("/close", handler("/close"))
        .sse("/events", |_| {
            hold_up(SLOW);
            Ok("news".to_owned())
        });
    let (server, reported) = server(app);
    let (address, running) = start(server);
    for path in ["/upgrade", "/open", "/close"] {
        let mut client = Client::connect(address, path);
        say(&mut client, "hello");
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        assert_eq!(client.next(), Got::Close(1000, String::new()));
    }
    let mut stream = crate::support::events::Events::open(address, "/events");
    assert_eq!(stream.next().as_deref(), Some(":"));
    eventually("four stalls", || routes(&reported).len() == 4);
    assert_eq!(routes(&reported), ["/upgrade", "/open", "/close", "/events"]);
    stop(running);
}

/// While the shard sleeps in one handler, messages for both routes come, so that they are in one
/// turn.
#[test]
fn of_two_routes_in_one_turn_a_careful_shard_names_the_right_one() {
    let app = served::app().ws("/a", sleeps_when_asked()).ws("/b", sleeps_when_asked());
    let (server, reported) = server(app);
    let (address, running) = start(server);
    let (mut a, mut b) = (Client::connect(address, "/a"), Client::connect(address, "/b"));
    say(&mut a, "sleep");
    eventually("a stall", || routes(&reported) == ["/a"]);
    // A separate turn, for whose end all of these wait.
    let mut last = Client::connect(address, "/a");
    last.send_text("sleep");
    for _ in 0..3 {
        a.send_text("hello");
        b.send_text("sleep");
        a.send_text("and");
    }
    assert_eq!(last.next(), Got::Text("sleep".into()));
    for _ in 0..3 {
        assert_eq!(a.next(), Got::Text("hello".into()));
        assert_eq!(b.next(), Got::Text("sleep".into()));
        assert_eq!(a.next(), Got::Text("and".into()));
    }
    say(&mut a, "done");
    // In any order of service, and whether /b's three came as one event or as three.
    let reported = routes(&reported);
    let count = |path: &str| reported.iter().filter(|route| *route == path).count();
    assert_eq!(count("/a"), 2, "{reported:?}");
    assert!((1..=3).contains(&count("/b")), "{reported:?}");
    assert_eq!(reported.len(), count("/a") + count("/b"), "{reported:?}");
    stop(running);
}

#[test]
fn zero_warns_of_nothing() {
    let (server, reported) = server(served::app().ws("/", sleeps_when_asked()));
    let (address, running) = start(server.observe(Observe::new().stall_warning(None)));
    let mut client = Client::connect(address, "/");
    say(&mut client, "sleep");
    say(&mut client, "bye");
    assert!(served::get(address, "/metrics").contains("throng_stalls_total{route=\"/\"} 0"));
    assert_eq!(reported.lock().unwrap().len(), 0);
    assert!(running.shard_loads()[0].busy >= SLOW, "measured all the same");
    stop(running);
}

/// Closed until the test opens it: stands for a handler that does not return.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar, AtomicBool)>);

impl Gate {
    fn pass(&self) {
        let (open, opened, entered) = &*self.0;
        entered.store(true, Ordering::SeqCst);
        let mut open = open.lock().unwrap();
        while !*open {
            open = opened.wait(open).unwrap();
        }
    }

    fn was_entered(&self) -> bool {
        self.0.2.load(Ordering::SeqCst)
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

#[test]
fn a_drain_ends_though_a_handler_does_not_return_and_names_its_route() {
    let gate = Gate::default();
    let its = gate.clone();
    let server = Server::new(
        served::app()
            .ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message)))
            .ws("/stuck/{name}", Ws::new().on_message(move |_, (), _| its.pass())),
    )
    .shards(2);
    let (address, running) = start(server);
    let mut stuck = Client::connect(address, "/stuck/x");
    stuck.send_text("wait");
    eventually("its handler waits", || gate.was_entered());
    let grace = Duration::from_millis(200);
    let plan = DrainPlan::DEFAULT.window(Duration::ZERO).grace(grace);
    let Drained { stuck_shards, .. } = running.shutdown(plan).wait().unwrap();
    let [StuckShard { shard, route, connections, .. }] = &stuck_shards[..] else {
        panic!("one is stuck: {stuck_shards:?}")
    };
    assert!(*shard < 2);
    assert_eq!((route.as_str(), *connections), ("/stuck/{name}", 1));
    gate.open();
}

#[test]
fn a_full_mailbox_of_a_stuck_shard_holds_up_no_drain_either() {
    let gate = Gate::default();
    let its = gate.clone();
    let server = Server::new(served::app().get("/stuck", move |_| its.pass())).shards(2);
    let (address, running) = start(server);
    let mut socket = crate::support::dial(address);
    std::io::Write::write_all(&mut socket, b"GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    eventually("its handler waits", || gate.was_entered());
    let hub = running.hub();
    while hub.broadcast("to no one").is_ok() {}
    let plan = DrainPlan::DEFAULT.window(Duration::ZERO).grace(Duration::from_millis(200));
    running.stopper().shutdown(plan);
    let drained = running.wait().unwrap();
    assert_eq!(drained.stuck_shards.len(), 1);
    assert_eq!(drained.stuck_shards[0].route, "/stuck");
    gate.open();
}

#[test]
fn a_handler_that_returns_late_but_before_the_deadline_is_waited_for() {
    let entered = Arc::new(AtomicBool::new(false));
    let began = Arc::clone(&entered);
    let handler = Ws::new().on_message(move |ws, (), message: Message<'_>| {
        began.store(true, Ordering::SeqCst);
        hold_up(SLOW);
        ws.send(message)
    });
    let (address, running) = start(
        Server::new(served::app().ws("/", handler))
            .shards(1)
            .observe(Observe::new().stall_warning(None)),
    );
    let mut client = Client::connect(address, "/");
    client.send_text("sleep");
    eventually("its handler sleeps", || entered.load(Ordering::SeqCst));
    let end = std::thread::spawn(move || {
        assert_eq!(client.next(), Got::Text("sleep".into()));
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.send(Opcode::Close, &1001u16.to_be_bytes());
    });
    let drained = running.shutdown(DrainPlan::DEFAULT.window(Duration::ZERO)).wait().unwrap();
    assert_eq!((drained.forced, drained.stuck_shards.len(), drained.stuck.len()), (0, 0, 0));
    end.join().unwrap();
}
