//! Clients that wait for a place at a backend: the cost of a turn does not depend on their number.
//! Runs the production shard over real sockets, turned by hand.

use std::io::Write;
use std::net::TcpStream;

use throng_balance::{Pick, Settings, State, Sticky};

use crate::support::{ByHand, Peer, Scripted, accepted, unused_address, upgrade};

const CLIENTS: usize = 300;
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn come(balancer: &ByHand, path: &str) -> TcpStream {
    let mut client = TcpStream::connect(balancer.address).unwrap();
    client.write_all(&upgrade(path)).unwrap();
    client
}

/// Runs `count` turns; returns how many waiting clients they looked at.
fn busy_turns(balancer: &mut ByHand, count: usize) -> u64 {
    let before = balancer.shard.audit().looked_at;
    for _ in 0..count {
        balancer.shard.turn().unwrap();
    }
    balancer.shard.audit().looked_at - before
}

/// One backend is full and the other is down, so no client can get a place.
#[test]
fn a_turn_looks_at_no_client_while_all_that_are_up_are_full() {
    let backend = Scripted::bind();
    let settings = Settings { max_handshakes: 1, ..Settings::default() };
    let mut balancer = ByHand::new(&[backend.address, unused_address()], settings);
    balancer.backends[1].set_state(State::Down);
    let clients: Vec<_> = (0..CLIENTS).map(|_| come(&balancer, "/")).collect();
    balancer.turn_until("they wait", |it| it.shard.audit().waiting == CLIENTS - 1);
    assert_eq!(busy_turns(&mut balancer, 20), 0);
    // Each free place goes to one client.
    let mut server = backend.accept();
    server.head();
    let before = balancer.shard.audit().looked_at;
    server.send(&accepted());
    balancer.turn_until("one gets the place", |it| it.shard.audit().waiting == CLIENTS - 2);
    assert_eq!(balancer.shard.audit().looked_at - before, 1);
    drop(clients);
}

/// The other backend has places, but serves only connections that are passed through.
#[test]
fn a_turn_looks_at_no_client_while_all_that_serve_its_kind_are_full() {
    let (backend, other) = (Scripted::bind(), Scripted::bind());
    let settings = Settings { max_handshakes: 1, ..Settings::default() };
    let all = [(backend.address, None), (other.address, Some("db.example.com"))];
    let mut balancer = ByHand::with(&all, settings);
    let clients: Vec<_> = (0..CLIENTS).map(|_| come(&balancer, "/")).collect();
    balancer.turn_until("they wait", |it| it.shard.audit().waiting == CLIENTS - 1);
    assert_eq!(busy_turns(&mut balancer, 20), 0);
    let mut server = backend.accept();
    server.head();
    server.send(&accepted());
    balancer.turn_until("one gets the place", |it| it.shard.audit().waiting == CLIENTS - 2);
    drop(clients);
}

/// Clients bound to a full backend while another has places: a turn does not look at them, and they
/// delay no other client.
#[test]
fn a_turn_looks_at_no_client_that_belongs_to_a_full_backend() {
    let backends = [Scripted::bind(), Scripted::bind()];
    let settings = Settings {
        max_handshakes: 1,
        pick: Pick::RoundRobin,
        sticky: Sticky::Query("to".into()),
        ..Settings::default()
    };
    let mut balancer = ByHand::new(&backends.each_ref().map(|it| it.address), settings);
    let clients: Vec<_> = (0..CLIENTS).map(|_| come(&balancer, "/?to=one")).collect();
    balancer.turn_until("they wait", |it| it.shard.audit().waiting == CLIENTS - 1);
    assert_eq!(busy_turns(&mut balancer, 20), 0);
    let full = balancer.backends.iter().position(|backend| backend.handshakes() == 1).unwrap();
    // A client that is not bound goes where there is room.
    let mut other = Peer::new(TcpStream::connect(balancer.address).unwrap());
    other.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    balancer.turn_until("it is connected", |it| it.backends[1 - full].requests() == 1);
    let mut server = backends[1 - full].try_accept().unwrap();
    balancer.turn_until("it is asked", |it| it.backends[1 - full].handshakes() == 0);
    server.head();
    server.send(OK);
    balancer.turn_until("it is answered", |it| it.backends[1 - full].requests() == 0);
    assert_eq!(other.answer().1, "ok");
    assert_eq!(balancer.shard.audit().looked_at, 0);
    // Once the backend is down, all clients move to the other one, some in each turn.
    balancer.backends[full].set_state(State::Down);
    let before = balancer.shard.audit().looked_at;
    balancer.shard.turn().unwrap();
    let looked_at = balancer.shard.audit().looked_at - before;
    assert!((1..=64).contains(&looked_at), "{looked_at}");
    balancer.turn_until("they wait for the other", |it| {
        it.backends[1 - full].handshakes() == 1 && it.shard.audit().waiting == CLIENTS - 2
    });
    drop(clients);
}
