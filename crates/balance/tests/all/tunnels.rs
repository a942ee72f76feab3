//! Tunnels: bytes arrive in both directions, complete and in order; tunnels end in every way;
//! nothing is held afterwards.

use std::net::Shutdown;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use throng_balance::{CloseOrder, Closing, Settings, State};

use crate::support::{Balancer, Scripted, accepted, upgrade};

fn settings() -> Settings {
    Settings::default()
}

#[test]
fn frames_pass_both_ways_and_every_count_returns() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    let mut client = balancer.connect();
    client.send(&upgrade("/chat?room=1"));
    let mut server = backend.accept();
    let head = server.head();
    assert!(head.starts_with("GET /chat?room=1 HTTP/1.1\r\nHost: example.com\r\n"), "{head}");
    assert!(head.contains("X-Forwarded-For: 127.0.0.1\r\n"), "{head}");
    assert_eq!(balancer.backends[0].handshakes(), 1);
    server.send(&accepted());
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    client.send_text("to the backend");
    assert_eq!(server.text(), "to the backend");
    server.send_text_unmasked("to the client");
    assert_eq!(client.text(), "to the client");
    assert_eq!((balancer.backends[0].tunnels(), balancer.backends[0].handshakes()), (1, 0));
    client.send_close(1000);
    let (opcode, _) = server.frame();
    assert_eq!(opcode, 8);
    let mut close = Vec::new();
    throng_proto::ws::encode_close(1000, "", None, &mut close);
    server.send(&close);
    drop(server);
    assert_eq!(client.close_code(), 1000);
    assert!(client.is_at_end());
    drop(client);
    balancer.assert_nothing_is_held();
    assert_eq!(balancer.backends[0].totals().lost.load(Relaxed), 0);
}

#[test]
fn bytes_with_the_101_and_before_it_are_not_lost() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    let mut client = balancer.connect();
    client.send(&upgrade("/"));
    client.send_text("early");
    let mut server = backend.accept();
    server.head();
    let mut answer = accepted();
    throng_proto::ws::encode(throng_proto::ws::Opcode::Text, b"at once", &mut answer);
    server.send(&answer);
    assert_eq!(server.text(), "early");
    client.head();
    assert_eq!(client.text(), "at once");
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    std::thread::scope(|scope| {
        let server = scope.spawn(|| backend.open());
        let mut client = balancer.open();
        let mut server = server.join().unwrap();
        client.send_text("last message");
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(server.text(), "last message");
        assert!(server.is_at_end());
        server.send_text_unmasked("answer");
        assert_eq!(client.text(), "answer");
        drop(server);
        assert!(client.is_at_end());
    });
    balancer.assert_nothing_is_held();
}

#[test]
fn a_backend_that_ends_without_a_close_leaves_its_client_a_close_frame() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    std::thread::scope(|scope| {
        let server = scope.spawn(|| backend.open());
        let mut client = balancer.open();
        let mut server = server.join().unwrap();
        server.send_text_unmasked("last");
        drop(server);
        assert_eq!(client.text(), "last");
        assert_eq!(client.close_code(), 1012);
        client.send_close(1012);
        assert!(client.is_at_end());
    });
    balancer.assert_nothing_is_held();
    assert_eq!(balancer.backends[0].totals().lost.load(Relaxed), 1);
}

/// A Close frame cannot be sent in the middle of another frame, so the client's connection is
/// reset.
#[test]
fn a_backend_that_goes_in_the_middle_of_a_frame_cuts_its_client() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    std::thread::scope(|scope| {
        let server = scope.spawn(|| backend.open());
        let mut client = balancer.open();
        let mut server = server.join().unwrap();
        server.send(&[0x81, 10, b'h', b'a']);
        drop(server);
        assert_eq!(client.exactly(4), [0x81, 10, b'h', b'a']);
        assert!(client.is_at_end());
    });
    balancer.assert_nothing_is_held();
}

#[test]
fn draining_puts_a_close_frame_behind_a_whole_frame_and_forwards_later_messages() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    std::thread::scope(|scope| {
        let server = scope.spawn(|| backend.open());
        let mut client = balancer.open();
        let mut server = server.join().unwrap();
        // Half a frame: the close must wait for the rest.
        server.send(&[0x81, 4, b'h', b'a']);
        assert_eq!(client.exactly(2), [0x81, 4]);
        let witness = scope.spawn(|| backend.open());
        let (mut closed, heard) = (balancer.open(), witness.join().unwrap());
        balancer.backends[0].set_state(State::Draining);
        // Both at once: when the other client has been closed, the close job includes this client
        // as well.
        let deadline = Some(Duration::ZERO);
        let closing =
            Closing { code: 1012, rate: 1000, order: CloseOrder::Shuffled, deadline, later: true };
        balancer.shards.close_tunnels(&balancer.backends[0], &closing, None);
        assert_eq!(closed.close_code(), 1012);
        drop((closed, heard));
        // The rest of the frame, and a frame that comes too late.
        server.send(&[b'l', b'f', 0x81, 1, b'x']);
        assert_eq!(client.exactly(4), b"half");
        assert_eq!(client.close_code(), 1012);
        client.send_text("sent before the close");
        client.send_close(1012);
        assert_eq!(server.text(), "sent before the close");
        assert_eq!(server.frame().0, 8);
        assert!(client.is_at_end());
        assert!(server.is_at_end());
    });
    balancer.assert_nothing_is_held();
    assert_eq!(balancer.backends[0].totals().closed.load(Relaxed), 2);
}

#[test]
fn a_client_that_vanishes_ends_its_backends_side() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    std::thread::scope(|scope| {
        let server = scope.spawn(|| backend.open());
        let client = balancer.open();
        let mut server = server.join().unwrap();
        socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        assert!(server.is_at_end());
    });
    balancer.assert_nothing_is_held();
}

#[test]
fn a_client_that_vanishes_in_its_handshake_leaves_nothing() {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    let mut client = balancer.connect();
    client.send(&upgrade("/"));
    let mut server = backend.accept();
    server.head();
    drop(client);
    assert!(server.is_at_end());
    balancer.assert_nothing_is_held();
}
