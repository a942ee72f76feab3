//! The life of a server: stopped, dropped, detached, drained without blocking.

mod support;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use support::served::start;
use support::{Client, Got};
use throng::IoBackend;
use throng::prelude::*;

const BACKENDS: [IoBackend; 3] = [IoBackend::Auto, IoBackend::Portable, IoBackend::Threads];

fn echo() -> App {
    App::new().ws("/", Ws::new().on_message(|ws, message| ws.send(message)))
}

fn assert_ended(address: SocketAddr, client: &mut Client) {
    // The Close frame may be lost in the reset.
    while client.next() != Got::End {}
    drop(TcpListener::bind(address).expect("the port is free"));
}

#[test]
fn a_server_that_is_stopped_or_dropped_ends_at_once_and_frees_its_port() {
    for io in BACKENDS {
        for is_dropped in [true, false] {
            let (address, running) = start(Server::new(echo()).io(io));
            let mut client = Client::connect(address, "/");
            match is_dropped {
                true => drop(running),
                false => drop(running.stop().unwrap()),
            }
            assert_ended(address, &mut client);
        }
    }
}

#[test]
fn a_server_that_is_dropped_by_a_panic_ends() {
    let (address, running) = start(Server::new(echo()));
    let mut client = Client::connect(address, "/");
    let test = thread::spawn(move || {
        let _running = running;
        panic!("as the test wants it");
    });
    assert!(test.join().is_err());
    assert_ended(address, &mut client);
}

#[test]
fn a_server_that_is_detached_runs_on() {
    let (address, running) = start(Server::new(echo()));
    running.detach();
    let mut client = Client::connect(address, "/");
    client.send_text("still there?");
    assert_eq!(client.next(), Got::Text("still there?".to_owned()));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_drain_can_be_awaited() {
    let (address, running) = start(Server::new(echo()));
    let client = support::polite(address, "/");
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let plan = DrainPlan::DEFAULT.window(std::time::Duration::ZERO);
    let mut draining = std::pin::pin!(running.drain_async(plan));
    let drained = loop {
        match draining.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(drained) => break drained.unwrap(),
            Poll::Pending => thread::park(),
        }
    };
    assert_eq!(drained.forced, 0);
    client.join().unwrap();
}
