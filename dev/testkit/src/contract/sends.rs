//! C3: one send in flight, and its batch is returned exactly once.

use throng_io::batch::{Batch, Segment};
use throng_io::driver::{Closed, Driver, SendOutcome};
use throng_io::id::ConnId;

use super::world::{Seen, World};
use super::{PeerRead, Rig, pattern};

/// C3: a batch returned as done is empty.
pub fn c3_a_send_that_fits_is_returned_at_once<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    for round in 0..20u8 {
        let mut batch = Batch::default();
        batch.push(Segment::Own(pattern(100, round)));
        if round % 2 == 1 {
            batch.push(Segment::Own(pattern(50, round)));
        }
        let len = batch.len();
        match world.rig.driver().send(id, Box::new(batch)) {
            SendOutcome::Done(batch) => assert!(batch.is_empty()),
            SendOutcome::Pending => panic!("{len} bytes did not fit"),
        }
        assert_eq!(world.read(&mut peer, len).0.len(), len);
    }
    world.assert_idle();
}

/// C3: `Sent` comes once, with an empty batch.
pub fn c3_a_send_that_must_wait_is_returned_once<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    for round in 1..=3 {
        let bytes = world.fill(id);
        world.assert_idle();
        assert!(world.read(&mut peer, bytes.len()).0 == bytes, "the stream differs");
        world.until("the batch", |world| world.count(Seen::Sent(id, 0)) == round);
    }
    world.assert_idle();
}

/// C3: a reader that reads a little at a time.
pub fn c3_a_slow_reader_gets_every_byte<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let mut bytes = world.fill(id);
    let mut read = Vec::new();
    let mut more = true;
    world.until("the slow reader", |world| {
        if more && world.saw(Seen::Sent(id, 0)) {
            more = false;
            let next = pattern(R::CAPACITY / 3, 11);
            bytes.extend_from_slice(&next);
            world.send_bytes(id, next);
        }
        world.rig.read(&mut peer, &mut read);
        read.len() == bytes.len() && !more
    });
    assert!(read == bytes, "the stream differs");
}

fn assert_end_returns_the_batch<R: Rig>(
    world: &mut World<R>,
    id: ConnId,
    why: Closed,
    end: impl FnOnce(&mut World<R>),
) {
    let before = world.seen.len();
    end(world);
    world.until_seen(Seen::Closed(id, why));
    let about: Vec<Seen> = world.seen[before..].to_vec();
    match about[..] {
        [Seen::Sent(sent, left), Seen::Closed(closed, _)] => {
            assert_eq!((sent, closed), (id, id));
            assert!(left > 0, "bytes that did not leave are left in the batch");
        }
        _ => panic!("Sent, then Closed, expected: {about:?}"),
    }
    world.assert_idle();
}

/// C3: our own close.
pub fn c3_close_returns_the_batch_before_closed<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, _peer) = world.pair();
    world.fill(id);
    assert_end_returns_the_batch(&mut world, id, Closed::Local, |world| world.close(id));
}

/// C3: our own reset.
pub fn c3_abort_returns_the_batch_before_closed<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, peer) = world.pair();
    world.fill(id);
    assert_end_returns_the_batch(&mut world, id, Closed::Local, |world| world.abort(id));
    drop(peer);
}

/// C3: the peer's reset.
pub fn c3_reset_returns_the_batch_before_closed<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, peer) = world.pair();
    world.fill(id);
    assert_end_returns_the_batch(&mut world, id, Closed::Reset, |world| world.rig.reset(peer));
}

/// C3, C8: the peer's reset, with unread input before it.
pub fn c3_reset_returns_the_batch_while_paused<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.pause(id);
    world.fill(id);
    world.rig.write(&mut peer, b"unread");
    world.assert_idle();
    assert_end_returns_the_batch(&mut world, id, Closed::Reset, |world| world.rig.reset(peer));
}

/// C3: the number of unsent bytes is known at any time.
pub fn c3_unsent_falls_while_a_slow_reader_reads<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    assert_eq!(world.rig.driver().unsent(id), 0);
    // More than twice what fits: it cannot leave in one send.
    let len = 3 * R::CAPACITY;
    assert!(!world.send_bytes(id, pattern(len, 8)));
    let mut unsent = world.rig.driver().unsent(id);
    assert!(unsent > len - R::CAPACITY && unsent <= len, "{unsent} of {len}");
    let (mut read, mut falls) = (Vec::new(), 0);
    world.until("the slow reader", |world| {
        while world.rig.read(&mut peer, &mut read) == PeerRead::Bytes {}
        let now = world.rig.driver().unsent(id);
        assert!(now <= unsent, "it grew");
        assert!(now + read.len() <= len, "{now} unsent, {} read of {len}", read.len());
        falls += usize::from(now < unsent && now > 0);
        unsent = now;
        world.saw(Seen::Sent(id, 0))
    });
    assert_eq!(world.rig.driver().unsent(id), 0);
    assert!(falls > 0);
}

/// C3: the bytes that left at once and those sent after them are one stream, and nothing is in
/// flight in between.
pub fn c3_try_send_takes_what_fits_and_send_takes_the_rest<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let bytes = pattern(3 * R::CAPACITY, 5);
    let (mut taken, mut tries) = (0, 0);
    while tries < 100 {
        let chunk = (bytes.len() - taken).min(1 + R::CAPACITY / 3);
        let sent = world.rig.driver().try_send(id, &bytes[taken..taken + chunk]);
        assert!(sent <= chunk, "{sent} of {chunk}");
        assert_eq!(world.rig.driver().unsent(id), 0, "something is in flight");
        taken += sent;
        tries += 1;
        if sent < chunk {
            break;
        }
    }
    assert!(taken < bytes.len(), "more bytes were taken than fit");
    world.assert_idle();
    world.send_bytes(id, bytes[taken..].to_vec());
    assert!(world.read(&mut peer, bytes.len()).0 == bytes, "the stream differs");
    world.assert_idle();
}

/// C3, C5: an unknown id takes nothing; a broken connection reports its end.
pub fn c3_try_send_on_a_closed_connection_takes_nothing<R: Rig>() {
    let mut world = World::<R>::new();
    assert_eq!(world.rig.driver().try_send(ConnId::new(0, 9, 9), b"unknown"), 0);
    let (id, peer) = world.pair();
    world.rig.reset(peer);
    world.until_seen(Seen::Closed(id, Closed::Reset));
    assert_eq!(world.rig.driver().try_send(id, b"too late"), 0);
    world.assert_idle();
}

/// C3: a send may be pending before the connection is established.
pub fn c3_a_send_before_connected_leaves_when_it_is<R: Rig>() {
    let mut world = World::<R>::new();
    let (mut remote, address) = world.rig.remote();
    let id = world.connect(address);
    let done = world.send_bytes(id, b"early".to_vec());
    let mut peer = None;
    world.until("a peer", |world| {
        peer = world.rig.accept(&mut remote);
        peer.is_some()
    });
    world.until_seen(Seen::Connected(id));
    let mut peer = peer.expect("just seen");
    assert_eq!(world.read(&mut peer, 5).0, b"early");
    assert!(!done, "it could not leave before there was a connection");
    world.until_seen(Seen::Sent(id, 0));
    let at = |seen| world.seen.iter().position(|it| *it == seen);
    assert!(at(Seen::Connected(id)) < at(Seen::Sent(id, 0)));
}
