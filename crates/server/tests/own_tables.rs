//! Shards with their own descriptor tables: the tests of `server.rs` and `admission.rs`, and
//! special cases.
#![cfg(target_os = "linux")]

#[path = "all/admission.rs"]
mod admission;
#[path = "all/server.rs"]
mod server;
mod support;

use std::cell::RefCell;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use support::{Client, Got, dial, eventually};
use throng::prelude::*;
use throng_io::tables::DescriptorTables;
use throng_proto::ws::Opcode;

const SHARDS: usize = 3;

thread_local! {
    /// Descriptors that a handler has opened in the table of its shard.
    static HOARD: RefCell<Vec<File>> = const { RefCell::new(Vec::new()) };
}

/// Echoes; `fill` uses up the descriptors of the session's shard, `free` closes them again.
fn echo_or_fill(ws: &mut Socket<'_>, (): &mut (), message: Message<'_>) {
    HOARD.with_borrow_mut(|hoard| match message {
        Message::Text("fill") => hoard.extend(std::iter::from_fn(|| File::open("/dev/null").ok())),
        Message::Text("free") => hoard.clear(),
        _ => {}
    });
    ws.send(message);
}

fn bind(shards: usize) -> Bound {
    let app = App::new().ws("/echo", Ws::new().on_message(echo_or_fill));
    let server = Server::new(app).shards(shards).descriptor_tables(DescriptorTables::PerShard);
    let bound = server.bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let capacity = bound.capacity();
    assert_eq!(capacity.tables_refused, None);
    assert!(capacity.reason.as_ref().unwrap().contains(&format!("{shards} descriptor tables")));
    bound
}

fn start(shards: usize) -> (SocketAddr, Running) {
    let bound = bind(shards);
    (bound.local_addr(), bound.start().unwrap())
}

/// Connects enough clients that each shard has some.
fn some_on_each(address: SocketAddr, running: &Running) -> Vec<Client> {
    let clients = (0..48).map(|_| Client::connect(address, "/echo")).collect();
    eventually("each shard has a session", || {
        running.shard_stats().iter().all(|stats| stats.connections > 0)
    });
    clients
}

#[test]
fn no_listener_survives_in_any_table() {
    let (address, running) = start(SHARDS);
    let mut clients = some_on_each(address, &running);
    running
        .stopper()
        .shutdown(DrainPlan::default().window(Duration::ZERO).grace(Duration::from_secs(60)));
    // Clients leave until only one shard has not ended: it waits, and no longer listens.
    for client in &mut clients[1..] {
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.send(Opcode::Close, &1001u16.to_be_bytes());
    }
    eventually("no table has a listener", || {
        TcpStream::connect(address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    drop(clients);
    let outcome = running.wait().unwrap();
    assert_eq!(outcome.stuck_shards.len(), 0);
}

#[test]
fn a_wake_up_reaches_every_shard_and_a_drain_closes_everybody() {
    let (address, running) = start(SHARDS);
    let mut clients = some_on_each(address, &running);
    // All shards sleep: a broadcast from this thread must wake each of them.
    let hub = running.hub();
    for round in 0..20 {
        let text = format!("round {round}");
        hub.broadcast(text.as_str()).unwrap();
        for client in &mut clients {
            assert_eq!(client.next(), Got::Text(text.clone()));
        }
    }
    running.stopper().shutdown(DrainPlan::default().window(Duration::ZERO));
    for client in &mut clients {
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.send(Opcode::Close, &1001u16.to_be_bytes());
    }
    assert_eq!(running.wait().unwrap().forced, 0);
}

#[test]
fn a_shard_without_descriptors_stops_its_own_accepting_only() {
    let (address, running) = start(2);
    let mut hoarder = Client::connect(address, "/echo");
    hoarder.send_text("fill");
    assert_eq!(hoarder.next(), Got::Text("fill".into()));
    let mut pending: Vec<TcpStream> = (0..64).map(|_| dial(address)).collect();
    let accepted = || running.shard_stats().iter().map(|stats| stats.accepted).collect::<Vec<_>>();
    // The kernel spreads them over both; one shard accepts all of its own.
    eventually("one shard accepts", || accepted().iter().any(|&count| count > 8));
    let before: u64 = accepted().iter().sum();
    assert!(before < 65, "{:?}", accepted());
    hoarder.send_text("free");
    assert_eq!(hoarder.next(), Got::Text("free".into()));
    eventually("all are accepted", || accepted().iter().sum::<u64>() == 65);
    pending.clear();
    let _ = running.shutdown(DrainPlan::default().window(Duration::ZERO)).wait().unwrap();
}

#[test]
fn descriptors_of_all_tables_are_counted() {
    let (address, running) = start(2);
    let mut hoarder = Client::connect(address, "/echo");
    let limit = throng_io::limits::descriptor_limits().0 as usize;
    hoarder.send_text("fill");
    assert_eq!(hoarder.next(), Got::Text("fill".into()));
    // The full table, plus the descriptors of this test in the process's table.
    assert!(throng_io::limits::descriptors_in_use() > limit);
    hoarder.send_text("free");
    assert_eq!(hoarder.next(), Got::Text("free".into()));
    let _ = running.shutdown(DrainPlan::default().window(Duration::ZERO)).wait().unwrap();
}

#[test]
fn sessions_that_are_placed_by_key_need_one_table() {
    let placed = Ws::from_request(|_| Ok(7u8)).place_by(|room| room);
    let server = Server::new(App::new().ws("/room", placed)).shards(2);
    let server = server.descriptor_tables(DescriptorTables::PerShard);
    let error = server.bind((Ipv4Addr::LOCALHOST, 0)).unwrap_err().to_string();
    assert!(error.contains("/room") && error.contains("keep one table"), "{error}");
}

#[test]
fn a_connection_of_another_table_cannot_be_given_to_a_shard() {
    let (address, running) = start(2);
    let error = running.hub().adopt(dial(address), &[]).unwrap_err();
    assert!(error.to_string().contains("descriptor table of its own"), "{error}");
    running.shutdown(DrainPlan::default().window(Duration::ZERO)).wait().unwrap();
}
