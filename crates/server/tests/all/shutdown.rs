//! A drain lets sessions finish their started work.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use throng::prelude::*;
use throng::server::Shards;
use throng_proto::ws::Opcode;

use crate::support::served::{self, start};
use crate::support::{BACKENDS, Client, Got, eventually};

/// A drain that reaches all sessions at once.
const AT_ONCE: DrainPlan = DrainPlan::DEFAULT.window(Duration::ZERO);

/// Answers a message when `gate` lets it; `begun` is sent something when it has begun.
fn gated(begun: Sender<()>, gate: Receiver<()>) -> Ws {
    let (begun, gate) = (Mutex::new(begun), Mutex::new(gate));
    Ws::new()
        .on_shutdown(|ws, ()| {
            ws.send("soon");
        })
        .on_message_blocking(move |replies, (), message| {
            begun.lock().unwrap().send(()).unwrap();
            gate.lock().unwrap().recv().unwrap();
            replies.send(message);
        })
}

#[test]
fn a_message_that_workers_have_begun_is_answered_before_the_close() {
    for io in BACKENDS {
        let ((begun, has_begun), (open, gate)) = (channel(), channel());
        let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
        let app = served::app().ws("/", gated(begun, gate)).ws("/echo", echo);
        let (address, running) = start(Server::new(app).shards(Shards::new().io(io)));
        let mut idle = Client::connect(address, "/echo");
        let mut client = Client::connect(address, "/");
        client.send_text("work");
        has_begun.recv().unwrap();
        running.stopper().shutdown(AT_ONCE);
        let closed = |code: u16| Got::Close(code, "going away".to_owned());
        assert_eq!(idle.next(), closed(1001), "no work keeps it");
        assert_eq!(client.next(), Got::Text("soon".to_owned()), "{io:?}");
        // Dropped: no more work begins.
        client.send_text("more work");
        client.send(Opcode::Ping, b"still there?");
        assert_eq!(client.next(), Got::Pong(b"still there?".to_vec()));
        open.send(()).unwrap();
        assert_eq!(client.next(), Got::Text("work".to_owned()), "{io:?}");
        assert_eq!(client.next(), closed(1001));
        for client in [&mut client, &mut idle] {
            client.send(Opcode::Close, &1001u16.to_be_bytes());
        }
        let drained = running.wait().unwrap();
        assert_eq!((drained.forced, drained.stuck_shards.len()), (0, 0));
        assert!(has_begun.try_recv().is_err(), "no more work has begun");
    }
}

#[test]
fn a_peer_that_closes_while_its_work_is_awaited_is_answered() {
    let ((begun, has_begun), (open, gate)) = (channel(), channel());
    let (address, running) = start(Server::new(served::app().ws("/", gated(begun, gate))));
    let mut client = Client::connect(address, "/");
    client.send_text("work");
    has_begun.recv().unwrap();
    running.stopper().shutdown(AT_ONCE);
    assert_eq!(client.next(), Got::Text("soon".to_owned()));
    client.send(Opcode::Close, &4000u16.to_be_bytes());
    assert_eq!(client.next(), Got::Close(4000, String::new()));
    open.send(()).unwrap();
    assert_eq!(running.wait().unwrap().forced, 0);
}

/// Its client gets a Close frame in time to answer it.
#[test]
fn work_that_does_not_end_is_closed_before_the_deadline() {
    let ((begun, has_begun), (open, gate)) = (channel(), channel());
    let (address, running) = start(Server::new(served::app().ws("/", gated(begun, gate))));
    let mut client = Client::connect(address, "/");
    client.send_text("work");
    has_begun.recv().unwrap();
    running.stopper().shutdown(AT_ONCE.grace(Duration::from_secs(2)));
    assert_eq!(client.next(), Got::Text("soon".to_owned()));
    assert_eq!(client.next(), Got::Close(1001, "going away".to_owned()));
    client.send(Opcode::Close, &1001u16.to_be_bytes());
    drop(open);
    let _ = running.wait().unwrap();
}

#[test]
fn a_handler_can_close_its_session_when_the_server_shuts_down() {
    for io in BACKENDS {
        let closes = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&closes);
        let handler = Ws::new()
            .on_shutdown(|ws, ()| {
                ws.send("moved");
                ws.close(CloseCode::new(4321), "go elsewhere");
            })
            .on_close(move |_, (), close| noted.lock().unwrap().push(close.code.get()));
        let (address, running) =
            start(Server::new(served::app().ws("/", handler)).shards(Shards::new().io(io)));
        let mut client = Client::connect(address, "/");
        let joined = thread::spawn(move || running.shutdown(AT_ONCE).wait().unwrap());
        assert_eq!(client.next(), Got::Text("moved".to_owned()));
        assert_eq!(client.next(), Got::Close(4321, "go elsewhere".to_owned()));
        client.send(Opcode::Close, &4321u16.to_be_bytes());
        assert_eq!(joined.join().unwrap().forced, 0);
        eventually("it was closed once", || closes.lock().unwrap().len() == 1);
    }
}
