//! Blocking work on the pool: order, back-pressure, panics, the end, and figures.

mod endings;
mod order;
mod pressure;
mod requests;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::Value;
use throng::Error;
use throng::prelude::*;
use throng::server::IoBackend;
use throng::workers::{Overload, WorkerSettings};
use throng_testkit::hold_up;

use crate::support::served::{self, get, start, stop};
use crate::support::{Client, Got, TIMEOUT, dial, eventually};

/// Every family of servers.
fn families() -> [IoBackend; 3] {
    [IoBackend::Auto, IoBackend::Portable, IoBackend::Threads]
}

fn workers(pool_size: usize, queue_size: usize, overload: Overload) -> WorkerSettings {
    WorkerSettings::default().pool_size(pool_size).queue_size(queue_size).overload(overload)
}

/// Blocks jobs until it is opened.
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

    /// Waits for this many arrivals.
    fn await_arrivals(&self, arrivals: usize) {
        let (state, changed) = &*self.0;
        let guard = state.lock().unwrap();
        let waited = changed.wait_timeout_while(guard, TIMEOUT, |(_, came)| *came < arrivals);
        assert!(!waited.unwrap().1.timed_out(), "{arrivals} never came");
    }
}

fn figure(address: SocketAddr, name: &str) -> u64 {
    let stats: Value = serde_json::from_str(&get(address, "/stats.json")).unwrap();
    stats["workers"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))
}

/// A gate on workers at /work, and an echo at /echo that needs no worker.
fn gated(gate: &Gate, settings: WorkerSettings) -> Server {
    Server::new(gated_app(gate)).workers(settings)
}

fn gated_app(gate: &Gate) -> App {
    let (gate, http) = (gate.clone(), gate.clone());
    let work = Ws::new().on_message_blocking(move |replies, (): &(), message| {
        gate.pass();
        replies.send(message);
    });
    served::app()
        .ws("/work", work)
        .ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message)))
        .route(
            "/http/{name}",
            Route::on(Method::Get, move |request| {
                http.pass();
                request.param("name").unwrap_or_default().to_owned()
            })
            .blocking(),
        )
}

/// Answers each number after a different time.
fn dawdling() -> Ws {
    Ws::new().on_message(|ws, (), message| {
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
        ws.offload(work, |ws, (), number| {
            ws.send(number.to_string());
        });
    })
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
fn figures_are_shown_and_count() {
    let gate = Gate::default();
    let (address, running) = start(gated(&gate, workers(2, 10, Overload::Pause)));
    let mut client = Client::connect(address, "/work");
    client.send_text("a");
    client.send_text("b");
    gate.await_arrivals(1);
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
fn settings_that_cannot_work_are_errors_of_bind() {
    for (settings, part) in [
        (workers(5000, 1, Overload::Pause), "workers.pool_size is 5000"),
        (workers(1, 0, Overload::Pause), "workers.queue_size is 0"),
    ] {
        let error = Server::new(served::app()).workers(settings).bind("127.0.0.1:0").unwrap_err();
        assert!(matches!(&error, Error::Setting(why) if why.to_string().contains(part)), "{error}");
    }
}
