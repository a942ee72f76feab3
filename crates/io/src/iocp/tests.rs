//! Tests of the memory that the kernel writes to.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::IocpSocket;
use super::connection::Connection;
use super::listener::ACCEPTS;
use super::operation::LIVE;
use crate::driver::{Driver, Event, SendOutcome};
use crate::{Batch, ConnId, Iocp, ListenOptions, Options, Segment, listen};

struct Server {
    driver: Iocp,
    address: SocketAddr,
    open: Vec<ConnId>,
    received: usize,
    finished: usize,
    closed: usize,
}

impl Server {
    fn new() -> Self {
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let (listener, address) = listen(any, ListenOptions::default()).unwrap();
        let mut driver = Iocp::new(Options::default()).unwrap();
        driver.add_listener(listener).unwrap();
        Self { driver, address, open: Vec::new(), received: 0, finished: 0, closed: 0 }
    }

    /// Runs turns until the condition holds.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end = self.driver.now().after(Duration::from_secs(60));
        while !holds(self) {
            assert!(self.driver.now() < end, "{what}");
            let deadline = self.driver.now().after(Duration::from_millis(5));
            self.driver.wait(Some(deadline)).unwrap();
            self.turn();
        }
    }

    /// Echoes what is received.
    fn turn(&mut self) {
        while let Some(event) = self.driver.next_event() {
            match event {
                Event::Incoming(socket, ..) => {
                    let id = self.driver.adopt(socket).unwrap();
                    self.open.push(id);
                }
                Event::Received(id, bytes) => {
                    self.received += bytes.len();
                    let mut batch = Box::new(Batch::default());
                    batch.push(Segment::Own(bytes.to_vec()));
                    assert!(matches!(self.driver.send(id, batch), SendOutcome::Done(_)));
                }
                Event::Finished(_) => self.finished += 1,
                Event::Closed(..) => self.closed += 1,
                _ => {}
            }
        }
    }

    fn dial(&mut self, count: usize) -> Vec<TcpStream> {
        let open = self.open.len();
        let address = self.address;
        let peers = (0..count).map(|_| TcpStream::connect(address).unwrap()).collect();
        self.until("accepted", |server| server.open.len() == open + count);
        peers
    }
}

#[test]
fn memory_is_free_after_the_packet_of_its_operation() {
    let before = LIVE.get();
    let mut server = Server::new();
    assert_eq!(LIVE.get() - before, ACCEPTS);
    for round in 1..=3 {
        let mut peers = server.dial(100);
        for peer in &mut peers {
            peer.write_all(b"hello").unwrap();
        }
        server.until("all input", |server| server.received == 500 * round);
        for peer in &mut peers {
            let mut echo = [0; 5];
            peer.read_exact(&mut echo).unwrap();
            assert_eq!(&echo, b"hello");
        }
        assert_eq!(LIVE.get() - before, ACCEPTS + 100, "a connection has one operation");
        for id in std::mem::take(&mut server.open) {
            server.driver.close(id);
        }
        server.until("all ends", |server| server.closed == 100 * round);
        // A list that is looked through once a second refers to some.
        server.until("all memory", |_| LIVE.get() - before == ACCEPTS);
    }
    server.driver.stop_listening();
    server.until("the accepts", |_| LIVE.get() == before);
}

/// A thread for each connection drops its driver as soon as the connection has ended.
#[test]
fn a_dropped_driver_has_freed_the_memory_of_closed_connections() {
    let before = LIVE.get();
    for round in 1..=20 {
        let mut server = Server::new();
        let peers = server.dial(1);
        server.driver.close(server.open[0]);
        server.until("the end", |server| server.closed == 1);
        drop((server, peers));
        assert!(LIVE.get() <= before + round * ACCEPTS, "the accepts are left at most");
    }
}

#[test]
fn connections_that_wait_for_the_engine_go_with_their_listener() {
    let before = LIVE.get();
    let mut server = Server::new();
    let address = server.address;
    let mut peers: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
    server.driver.stop_listening();
    server.until("the accepts", |_| LIVE.get() == before);
    assert!(server.open.is_empty());
    for peer in &mut peers {
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(!matches!(peer.read(&mut [0]), Ok(1..)), "its connection has ended");
    }
    assert!(TcpStream::connect(address).is_err());
}

/// C13 between two shards: the socket stays with the port of the first.
#[test]
fn a_connection_goes_on_at_another_shard_though_the_first_has_gone() {
    const LARGE: usize = 8 << 20;
    let before = LIVE.get();
    let mut first = Server::new();
    let mut second = Server::new();
    let mut peer = first.dial(1).remove(0);
    peer.write_all(b"one").unwrap();
    first.until("the first input", |server| server.received == 3);
    peer.write_all(b"two").unwrap();
    let socket = first.driver.release(first.open.remove(0)).unwrap();
    let id = second.driver.adopt(socket).unwrap();
    second.until("input from before and after", |server| server.received == 3);
    drop(first);
    peer.write_all(b"three").unwrap();
    second.until("later input", |server| server.received == 8);
    let mut echoes = [0; 11];
    peer.read_exact(&mut echoes).unwrap();
    assert_eq!(&echoes, b"onetwothree");
    // More than the system takes, so it reports space.
    let mut batch = Box::new(Batch::default());
    batch.push(Segment::Own(vec![7; LARGE]));
    assert!(matches!(second.driver.send(id, batch), SendOutcome::Pending));
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; LARGE];
        peer.read_exact(&mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 7));
        peer
    });
    second.until("all output", |server| server.driver.unsent(id) == 0);
    drop(reader.join().unwrap());
    second.until("the end of the stream", |server| server.finished == 1);
    second.driver.close(id);
    second.driver.stop_listening();
    second.until("its end", |server| server.closed == 1);
    // The first had no turn after its accepts were cancelled.
    second.until("all memory", |_| LIVE.get() <= before + ACCEPTS);
}

#[test]
fn the_end_of_a_stream_that_is_not_read_can_be_asked_for() {
    let mut server = Server::new();
    let peer = server.dial(1).remove(0);
    let id = server.open[0];
    server.driver.pause(id);
    server.until("a turn", |server| !server.driver.has_peer_finished(id));
    peer.shutdown(Shutdown::Write).unwrap();
    server.until("the end", |server| server.driver.has_peer_finished(id));
    assert_eq!(server.finished, 0, "it is paused");
    server.driver.resume(id);
    server.until("the event", |server| server.finished == 1);
}

#[test]
fn an_idle_connection_takes_no_more_memory_than_is_documented() {
    assert_eq!(size_of::<Connection>(), 48);
    assert_eq!(size_of::<Option<IocpSocket>>(), 8);
    const COUNT: usize = 500;
    let mut server = Server::new();
    server.open.reserve(2 * COUNT);
    // The tables have memory for many connections.
    let first = server.dial(COUNT);
    let mut peers = Vec::new();
    let counted = allocation_counter::measure(|| peers = server.dial(COUNT));
    let each = counted.bytes_current as usize / COUNT - size_of::<TcpStream>();
    assert!((48..=50).contains(&each), "{each} bytes beside its entry of the table");
    drop((first, peers));
}
