//! Memory of an idle connection: all that the process allocates for it. In a separate file, because
//! it counts every byte of the process's heap.

mod support;

use std::net::TcpStream;

use support::served::{start, stop, total};
use support::{Client, Got, eventually};
use throng::prelude::*;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const FEW: usize = 1024;
const MANY: usize = 2048;

/// The most that documents promise. Windows keeps an operation of each connection in flight.
const BUDGET: usize = if cfg!(windows) { 160 } else { 128 };

/// Returns the bytes on the heap with a server for at most so many `clients`, which are idle after
/// an echo.
fn heap(clients: usize) -> usize {
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let limits = Limits::default().max_connections(clients).heartbeat_interval(None);
    let server = Server::new(App::new().ws("/", echo)).limits(limits).shards(1);
    let (address, running) = start(server);
    let mut streams: Vec<TcpStream> = Vec::with_capacity(clients);
    for _ in 0..clients {
        let mut client = Client::connect(address, "/");
        client.send_text("here");
        assert_eq!(client.next(), Got::Text("here".into()));
        streams.push(client.stream);
    }
    eventually("all are counted", || running.stats().sessions == clients as u64);
    // The turn after this one has ended the last echo's.
    let none = Filter::new().subprotocol("of none");
    total(&running.hub().broadcast_to(&none, "x").unwrap());
    let ours = streams.capacity() * size_of::<TcpStream>();
    let bytes = dhat::HeapStats::get().curr_bytes - ours;
    drop(streams);
    stop(running);
    bytes
}

#[test]
fn an_idle_connection_takes_no_more_memory_than_the_budget() {
    let _profiler = dhat::Profiler::builder().testing().build();
    // Tables have space for a few in any case.
    let few = heap(FEW);
    let each = (heap(MANY) - few) / (MANY - FEW);
    println!("{each} bytes of heap for each idle connection");
    assert!(each <= BUDGET, "{each} bytes");
}
