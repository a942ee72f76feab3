//! C4, C5 and C9: a connection ends once, for a stated reason, under its own id.

use std::io::ErrorKind;

use throng_io::PeerAddress;
use throng_io::batch::{Batch, Segment};
use throng_io::driver::{Closed, Driver, SendOutcome};
use throng_io::id::ConnId;

use super::world::{Seen, World};
use super::{PeerRead, Rig, pattern};

/// C4: this holds after a close, for any later call or event.
pub fn c4_closed_comes_once_and_last<R: Rig>() {
    let mut world = World::<R>::new();
    for round in 0..4 {
        let (id, mut peer) = world.pair();
        // Input and its end have already arrived, and are no longer reported.
        assert!(world.rig.write(&mut peer, b"too late") > 0);
        world.rig.finish(&mut peer);
        if round % 2 == 0 {
            world.close(id);
            world.abort(id);
        } else {
            world.abort(id);
            world.close(id);
        }
        world.pause(id);
        world.resume(id);
        world.rig.driver().finish(id);
        assert!(world.send_bytes(id, b"too late".to_vec()));
        world.until_seen(Seen::Closed(id, Closed::Local));
        world.close(id);
        world.assert_idle();
        assert_eq!(world.count(Seen::Closed(id, Closed::Local)), 1);
    }
}

/// C4: the peer's reset and our close at the same time are one end.
pub fn c4_a_reset_and_a_close_are_one_end<R: Rig>() {
    let mut world = World::<R>::new();
    for _ in 0..20 {
        let (id, peer) = world.pair();
        let before = world.seen.len();
        world.rig.reset(peer);
        world.close(id);
        world.until("the end", |world| world.seen.len() > before);
        world.turn();
        let ends = world.seen[before..].len();
        assert_eq!(ends, 1, "{:?}", &world.seen[before..]);
    }
}

/// C4: closed before the connect has succeeded or failed.
pub fn c4_a_cancelled_connect_is_closed_once<R: Rig>() {
    let mut world = World::<R>::new();
    let (_remote, address) = world.rig.remote();
    for abort in [false, true] {
        let id = world.connect(address);
        if abort {
            world.abort(id);
        } else {
            world.close(id);
        }
        world.until_seen(Seen::Closed(id, Closed::Local));
        world.assert_idle();
    }
}

/// C5: two connections have input in the same turn. The first event closes the other one, whose
/// slot goes to a third connection that has input as well. The event that was fetched for the
/// second connection must not reach the third.
pub fn c5_an_event_of_a_closed_connection_does_not_reach_its_successor<R: Rig>() {
    let mut world = World::<R>::new();
    for _ in 0..5 {
        let (a, mut peer_a) = world.pair();
        let (b, mut peer_b) = world.pair();
        let address = world.rig.listen();
        world.stashing = true;
        let mut peer_c = world.rig.dial(address).expect("the driver listens");
        world.until("a third", |world| !world.stash.is_empty());
        for (peer, text) in
            [(&mut peer_a, b"from a"), (&mut peer_b, b"from b"), (&mut peer_c, b"from c")]
        {
            assert_eq!(world.rig.write(peer, text), 6);
        }
        world.rig.finish(&mut peer_b);
        let (mut closed, mut c) = (None, None);
        let end = world.now().after(R::TIMEOUT);
        while c.is_none_or(|c| world.received(c).len() < 6) {
            assert!(world.now() < end, "something is missing: {:?}", world.seen);
            world.rig.step();
            let deadline = world.now().after(R::SLICE);
            world.wait(Some(deadline));
            while let Some(seen) = world.next_event() {
                match seen {
                    Seen::Received(id, _) if closed.is_none() => {
                        let other = if id == a { b } else { a };
                        world.close(other);
                        closed = Some(other);
                    }
                    Seen::Closed(id, _) if Some(id) == closed => {
                        let socket = world.stash.pop().expect("stashed above");
                        c = Some(world.adopt(socket));
                    }
                    _ => {}
                }
            }
        }
        world.stashing = false;
        let (c, closed) = (c.expect("adopted"), closed.expect("closed"));
        assert_eq!(world.received(c), b"from c");
        for id in [a, b, c] {
            if id != closed {
                world.close(id);
                world.until_seen(Seen::Closed(id, Closed::Local));
            }
        }
    }
}

pub(super) fn use_stale_id<R: Rig>(world: &mut World<R>, id: ConnId) {
    let driver = world.rig.driver();
    let mut batch = Batch::default();
    batch.push(Segment::Own(b"stale!".to_vec()));
    match driver.send(id, Box::new(batch)) {
        SendOutcome::Done(batch) => assert_eq!(batch.len(), 6, "bytes were sent"),
        SendOutcome::Pending => panic!("C5: a send on an unknown id is pending"),
    }
    assert_eq!(driver.unsent(id), 0);
    driver.pause(id);
    driver.resume(id);
    driver.pause(id);
    driver.finish(id);
    driver.close(id);
    driver.abort(id);
}

/// C5: a reused slot is a different connection.
pub fn c5_stale_ids_do_nothing<R: Rig>() {
    let mut world = World::<R>::new();
    let mut past = Vec::new();
    for _ in 0..4 {
        let (id, mut peer) = world.pair();
        for old in &past {
            use_stale_id(&mut world, *old);
        }
        assert!(world.rig.write(&mut peer, b"well?") > 0);
        world.until("the question", |world| world.received(id) == b"well?");
        assert!(world.send_bytes(id, b"well!".to_vec()));
        assert_eq!(world.read(&mut peer, 5).0, b"well!");
        world.assert_idle();
        world.close(id);
        world.until_seen(Seen::Closed(id, Closed::Local));
        past.push(id);
    }
}

/// C5: invalid ids, and ids of another shard.
pub fn c5_unknown_ids_do_nothing<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let (shard, slot, generation) = (id.shard() as u16, id.slot() as u32, id.generation());
    for unknown in [
        ConnId::new(shard + 1, slot, generation),
        ConnId::new(shard, slot + 1, generation),
        ConnId::new(shard, slot + 1_000_000, generation),
        ConnId::new(shard, slot, generation + 1),
        ConnId::new(shard, slot, generation.wrapping_sub(1)),
        ConnId::from_bits(u64::MAX),
    ] {
        use_stale_id(&mut world, unknown);
    }
    assert!(world.rig.write(&mut peer, b"well?") > 0);
    world.until("the question", |world| world.received(id) == b"well?");
    world.assert_idle();
}

/// C9: a peer that has ended its stream still receives.
pub fn c9_end_of_stream_leaves_the_other_direction_open<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.rig.finish(&mut peer);
    world.until_seen(Seen::Finished(id));
    for _ in 0..5 {
        assert!(world.send_bytes(id, b"still here".to_vec()));
        assert_eq!(world.read(&mut peer, 10).0, b"still here");
    }
    let bytes = world.fill(id);
    assert!(world.read(&mut peer, bytes.len()).0 == bytes);
    world.until_seen(Seen::Sent(id, 0));
    world.assert_idle();
    world.close(id);
    assert_eq!(world.read(&mut peer, 1).1, PeerRead::Finished);
    world.until_seen(Seen::Closed(id, Closed::Local));
}

/// C9: after our end of stream, input still arrives.
pub fn c9_our_end_of_stream_leaves_the_other_direction_open<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    assert!(world.send_bytes(id, b"last bytes".to_vec()));
    world.rig.driver().finish(id);
    assert_eq!(world.read(&mut peer, 11), (b"last bytes".to_vec(), PeerRead::Finished));
    world.write_all(&mut peer, b"I know");
    world.until("the answer", |world| world.received(id) == b"I know");
    world.assert_idle();
    world.rig.finish(&mut peer);
    world.until_seen(Seen::Finished(id));
    world.assert_idle();
    world.close(id);
    world.until_seen(Seen::Closed(id, Closed::Local));
}

/// C9: a reset is not reported as an end of stream.
pub fn c9_reset_is_distinguished_from_end_of_stream<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, peer) = world.pair();
    world.rig.reset(peer);
    world.until_seen(Seen::Closed(id, Closed::Reset));
    assert!(!world.saw(Seen::Finished(id)));
    // Repeats the test after an end of stream.
    let (id, mut peer) = world.pair();
    world.rig.finish(&mut peer);
    world.until_seen(Seen::Finished(id));
    world.assert_idle();
    world.rig.reset(peer);
    world.until_seen(Seen::Closed(id, Closed::Reset));
    world.assert_idle();
}

/// C9: the end of the stream and a later reset have both arrived before the driver first reads.
pub fn c9_a_reset_that_comes_with_the_end_of_stream_is_reported<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.rig.finish(&mut peer);
    world.rig.reset(peer);
    // No turn in between. A driver may see the end of the stream first, or only the reset.
    world.until_seen(Seen::Closed(id, Closed::Reset));
    world.assert_idle();
    // With input before them.
    let (id, mut peer) = world.pair();
    world.write_all(&mut peer, b"last bytes");
    world.rig.finish(&mut peer);
    world.rig.reset(peer);
    world.until_seen(Seen::Closed(id, Closed::Reset));
    world.assert_idle();
}

/// C9: a reply to a request that is still being sent, followed by the reset that the rest of the
/// request causes.
pub fn c9_input_before_a_reset_is_delivered_though_sends_fail<R: Rig>() {
    let mut world = World::<R>::new();
    for (finishes, tries) in [(false, false), (true, false), (false, true), (true, true)] {
        let (id, mut peer) = world.pair();
        assert_eq!(world.rig.write(&mut peer, b"too large"), 9);
        if finishes {
            world.rig.finish(&mut peer);
        }
        skip_events(&mut world);
        world.rig.reset(peer);
        skip_events(&mut world);
        for _ in 0..3 {
            let left = match tries {
                true => world.rig.driver().try_send(id, b"more") > 0,
                false => world.send_bytes(id, b"more".to_vec()),
            };
            if !left && !tries {
                break;
            }
        }
        world.until_seen(Seen::Closed(id, Closed::Reset));
        assert_eq!(world.received(id), b"too large", "{finishes} {tries}");
        assert_eq!(world.saw(Seen::Finished(id)), finishes);
        world.assert_idle();
    }
}

/// C9: a reply and a reset arrive while a send is in flight.
pub fn c9_input_before_a_reset_is_delivered_during_a_send<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.fill(id);
    assert_eq!(world.rig.write(&mut peer, b"too large"), 9);
    skip_events(&mut world);
    world.rig.reset(peer);
    skip_events(&mut world);
    world.until_seen(Seen::Closed(id, Closed::Reset));
    assert_eq!(world.received(id), b"too large");
    world.assert_idle();
}

/// C8: a pause after a send that failed; no event would report the reset again.
pub fn c8_a_reset_found_by_a_send_is_reported_while_paused<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    assert_eq!(world.rig.write(&mut peer, b"too large"), 9);
    skip_events(&mut world);
    world.rig.reset(peer);
    skip_events(&mut world);
    world.send_bytes(id, b"more".to_vec());
    world.pause(id);
    world.until_seen(Seen::Closed(id, Closed::Reset));
    assert_eq!(world.received(id), b"");
    world.assert_idle();
}

/// Runs turns without taking events.
fn skip_events<R: Rig>(world: &mut World<R>) {
    for _ in 0..50 {
        world.rig.step();
        let now = world.now();
        world.wait(Some(now));
    }
}

/// C9: how the peer sees the driver's two ends of a connection.
pub fn c9_the_peer_sees_close_as_an_end_and_abort_as_a_reset<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.close(id);
    assert_eq!(world.read(&mut peer, 1).1, PeerRead::Finished);
    let (id, mut peer) = world.pair();
    world.abort(id);
    assert_eq!(world.read(&mut peer, 1).1, PeerRead::Reset);
}

/// C9: close is not abort: bytes that the kernel has accepted still arrive.
pub fn c9_a_closed_connection_still_sends_accepted_bytes<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let bytes = pattern(5_000, 4);
    assert!(world.send_bytes(id, bytes.clone()));
    world.close(id);
    world.until_seen(Seen::Closed(id, Closed::Local));
    assert_eq!(world.read(&mut peer, bytes.len() + 1), (bytes, PeerRead::Finished));
}

/// C9: both outcomes of a connect.
pub fn c9_connected_or_refused<R: Rig>() {
    let mut world = World::<R>::new();
    let (mut remote, address) = world.rig.remote();
    let refusing = world.rig.refusing_address();
    for _ in 0..3 {
        let refused = world.try_connect(refusing);
        let id = world.connect(address);
        world.until_seen(Seen::Connected(id));
        match refused {
            Ok(refused) => {
                world.until_seen(Seen::Closed(refused, Closed::Refused));
                assert!(!world.saw(Seen::Connected(refused)));
            }
            // The system knows at once whether something listens on a Unix socket.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                assert!(matches!(refusing, PeerAddress::Unix(_)));
            }
        }
        let mut peer = None;
        world.until("a peer", |world| {
            peer = world.rig.accept(&mut remote);
            peer.is_some()
        });
        let mut peer = peer.expect("just seen");
        world.assert_idle();
        assert!(world.send_bytes(id, b"hello".to_vec()));
        assert_eq!(world.read(&mut peer, 5).0, b"hello");
        world.write_all(&mut peer, b"hi");
        world.until("the answer", |world| world.received(id) == b"hi");
        world.assert_idle();
    }
}

/// C12: connections to several listeners, in another order than the listeners.
pub fn c12_an_accepted_socket_carries_its_listener<R: Rig>() {
    let mut world = World::<R>::new();
    let listeners: Vec<_> = (0..3).map(|_| world.rig.listen_also()).collect();
    let mut peers = Vec::new();
    for (round, number) in [2, 0, 1, 1, 2, 0].into_iter().enumerate() {
        let (id, address) = listeners[number];
        peers.push(world.rig.dial(address).expect("the driver listens"));
        world.until("a connection", |world| world.from.len() > round);
        assert_eq!(world.from[round], id);
    }
}

/// C12: without TLS, an end of stream counts as complete.
pub fn c12_a_stream_that_its_peer_ended_was_not_truncated<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.write_all(&mut peer, b"all of it");
    world.rig.finish(&mut peer);
    world.until_seen(Seen::Finished(id));
    assert_eq!(world.received(id), b"all of it");
    assert!(!world.rig.driver().was_truncated(id));
}

/// C13: the driver that adopts the socket receives the input not yet read; here it is the same
/// driver.
pub fn c13_a_released_connection_goes_on_under_another_id<R: Rig>() {
    let mut world = World::<R>::new();
    let (first, mut peer) = world.pair();
    world.write_all(&mut peer, b"one");
    world.until("the first bytes", |world| world.received(first) == b"one");
    world.pause(first);
    world.write_all(&mut peer, b"two");
    world.assert_idle();
    let socket = world.release(first);
    let second = world.adopt(socket);
    world.until("the bytes that waited", |world| world.received(second) == b"two");
    use_stale_id(&mut world, first);
    assert!(world.rig.driver().release(first).is_err(), "its id is that of a closed connection");
    assert!(world.send_bytes(second, b"three".to_vec()));
    assert_eq!(world.read(&mut peer, 5).0, b"three");
    world.assert_idle();
    // Releases the connection again, before the new driver has read any data.
    world.write_all(&mut peer, b"four");
    let socket = world.release(second);
    // Input that arrives while no driver has the socket is not reported, and ends no wait.
    world.write_all(&mut peer, b" and five");
    world.assert_idle();
    let third = world.adopt(socket);
    world.until("the bytes in between", |world| world.received(third) == b"four and five");
    use_stale_id(&mut world, second);
    world.assert_idle();
    world.close(third);
    world.until_seen(Seen::Closed(third, Closed::Local));
    // Stale ids have sent nothing, and ended nothing earlier.
    assert_eq!(world.read(&mut peer, 1), (Vec::new(), PeerRead::Finished));
    let ends = world.seen.iter().filter(|seen| matches!(seen, Seen::Closed(..)));
    assert_eq!(ends.count(), 1, "releases are no ends: {:?}", world.seen);
    // Dropping a released socket closes it.
    let (id, mut peer) = world.pair();
    drop(world.release(id));
    assert_eq!(world.read(&mut peer, 1), (Vec::new(), PeerRead::Finished));
    world.assert_idle();
    assert!(!world.seen.iter().any(|seen| matches!(seen, Seen::Closed(it, _) if *it == id)));
}

/// C13: a connection with a send in flight, or whose stream has ended, is not released.
pub fn c13_a_connection_that_is_not_at_rest_stays<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    assert!(!world.send_bytes(id, pattern(R::CAPACITY, 3)), "more than fits");
    assert!(world.rig.driver().release(id).is_err());
    assert_eq!(world.read(&mut peer, R::CAPACITY).0, pattern(R::CAPACITY, 3));
    world.until_seen(Seen::Sent(id, 0));
    world.rig.finish(&mut peer);
    world.until_seen(Seen::Finished(id));
    assert!(world.rig.driver().release(id).is_err());
    world.close(id);
    world.until_seen(Seen::Closed(id, Closed::Local));
}

/// Not numbered: [`Driver::stop_listening`].
pub fn listening_ends_and_connections_stay<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let address = world.rig.listen();
    world.rig.driver().stop_listening();
    assert!(world.rig.dial(address).is_none(), "refused");
    world.assert_idle();
    world.rig.driver().resume_accept();
    world.rig.driver().stop_listening();
    world.write_all(&mut peer, b"still here");
    world.until("its input", |world| world.received(id) == b"still here");
    world.assert_idle();
}
