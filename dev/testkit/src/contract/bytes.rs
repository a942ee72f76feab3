//! C1, C2 and C11: bytes arrive whole, in order, once, and from the right memory.

use std::sync::Arc;

use throng_io::batch::{Batch, Segment};
use throng_io::driver::Driver;
use throng_io::id::ConnId;

use super::world::{Seen, World};
use super::{Rig, pattern};

/// Replies to each receive with the lent memory itself, while no send is in flight.
fn turn_echoing<R: Rig>(world: &mut World<R>, id: ConnId) {
    world.rig.step();
    let deadline = world.now().after(R::SLICE);
    world.wait(Some(deadline));
    while let Some(seen) = world.next_event() {
        match seen {
            Seen::Received(from, len) if from == id => {
                let mut batch = Batch::default();
                batch.push(Segment::Lent(0..len));
                if !world.send(id, batch) {
                    world.pause(id);
                }
            }
            Seen::Sent(from, left) if from == id => {
                assert_eq!(left, 0);
                world.resume(id);
            }
            _ => {}
        }
    }
}

/// C1: an echo out of lent memory.
pub fn c1_lent_bytes_are_sent_in_place<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    for round in 0..50u8 {
        let message = pattern(1 + usize::from(round) * 40, round);
        assert_eq!(world.rig.write(&mut peer, &message), message.len());
        let mut answer = Vec::new();
        let end = world.now().after(R::TIMEOUT);
        while answer.len() < message.len() {
            assert!(world.now() < end, "no answer");
            turn_echoing(&mut world, id);
            world.rig.read(&mut peer, &mut answer);
        }
        assert_eq!(answer, message);
    }
}

/// C1: a lent segment that does not fit is copied, and later receives do not change the copy.
pub fn c1_lent_bytes_are_copied_when_the_send_must_wait<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let (input, mut written, mut answer) = (pattern(2 * R::CAPACITY, 3), 0, Vec::new());
    // The peer writes first, and reads only when nothing else makes progress, so that some of the
    // driver's sends must wait, with buffers of any size.
    let end = world.now().after(R::TIMEOUT);
    let mut pending = false;
    while answer.len() < input.len() {
        assert!(world.now() < end, "{} of {} came back", answer.len(), input.len());
        let n = world.rig.write(&mut peer, &input[written..]);
        written += n;
        let seen = world.seen.len();
        turn_echoing(&mut world, id);
        if n == 0 && world.seen.len() == seen {
            pending |= world.rig.driver().unsent(id) > 0;
            world.rig.read(&mut peer, &mut answer);
        }
    }
    assert!(pending, "the test is about sends that wait");
    assert!(answer == input, "the echo differs");
}

/// C1: ranges of the lent slice, in any order, among owned and shared segments.
pub fn c1_parts_of_lent_bytes_are_sent_between_others<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    assert_eq!(world.rig.write(&mut peer, b"0123456789"), 10);
    let end = world.now().after(R::TIMEOUT);
    let mut sent = false;
    while !sent {
        assert!(world.now() < end, "no event");
        world.rig.step();
        let deadline = world.now().after(R::SLICE);
        world.wait(Some(deadline));
        while let Some(seen) = world.next_event() {
            if let Seen::Received(_, 10) = seen {
                let mut batch = Batch::default();
                batch.push(Segment::Lent(7..9));
                batch.push(Segment::Own(b"<own>".to_vec()));
                batch.push(Segment::Lent(0..3));
                batch.push(Segment::Shared(Arc::from(&b"<shared>"[..])));
                world.send(id, batch);
                sent = true;
            }
        }
    }
    assert_eq!(world.read(&mut peer, 18).0, b"78<own>012<shared>");
}

/// C1: lent bytes can be read and sent after other calls, and a send includes changes to them.
pub fn c1_lent_bytes_survive_every_call_but_the_next_event<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let (other, mut other_peer) = world.pair();
    assert_eq!(world.rig.write(&mut peer, b"0123456789"), 10);
    let end = world.now().after(R::TIMEOUT);
    let mut done = false;
    while !done {
        assert!(world.now() < end, "no event");
        world.rig.step();
        let deadline = world.now().after(R::SLICE);
        world.wait(Some(deadline));
        while let Some(seen) = world.next_event() {
            let Seen::Received(from, 10) = seen else { continue };
            assert_eq!(from, id);
            assert!(world.send_bytes(other, b"<own>".to_vec()));
            let tried = world.rig.driver().try_send(other, b"<tried>");
            assert!(tried == 7 || world.send_bytes(other, b"<tried>"[tried..].to_vec()));
            world.pause(id);
            world.resume(id);
            let _ = world.rig.driver().unsent(id);
            let lent = world.rig.driver().lent();
            assert_eq!(lent, b"0123456789");
            lent[4] = b'!';
            for range in [2..6, 0..1, 3..10] {
                let mut batch = Batch::default();
                batch.push(Segment::Lent(range));
                assert!(world.send(id, batch));
            }
            done = true;
        }
    }
    assert_eq!(world.read(&mut peer, 12).0, b"23!503!56789");
    assert_eq!(world.read(&mut other_peer, 12).0, b"<own><tried>");
}

/// C1: no bytes are lent before the first receive, after another event, and after a wait.
pub fn c1_nothing_is_lent_without_a_receive<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    assert!(world.rig.driver().lent().is_empty());
    assert_eq!(world.rig.write(&mut peer, b"bytes"), 5);
    world.rig.finish(&mut peer);
    let end = world.now().after(R::TIMEOUT);
    while !world.saw(Seen::Finished(id)) {
        assert!(world.now() < end, "no end of stream");
        world.rig.step();
        let deadline = world.now().after(R::SLICE);
        world.wait(Some(deadline));
        assert!(world.rig.driver().lent().is_empty(), "lent after a wait");
        while let Some(seen) = world.next_event() {
            let lent = world.rig.driver().lent().len();
            assert_eq!(lent, if let Seen::Received(_, len) = seen { len } else { 0 });
        }
        assert!(world.rig.driver().lent().is_empty(), "lent after the last event");
    }
}

/// C2: a long stream in chunks of many sizes.
pub fn c2_bytes_arrive_in_order_and_once<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let input = pattern(R::CAPACITY, 1);
    let (mut at, mut chunk) = (0, 1);
    while at < input.len() {
        let end = (at + chunk).min(input.len());
        world.write_all(&mut peer, &input[at..end]);
        (at, chunk) = (end, chunk * 3 % 50_000 + 1);
    }
    world.until("all bytes", |world| world.received(id).len() >= input.len());
    assert!(world.received(id) == input, "the stream differs");
    world.assert_idle();
}

/// C2: input that is followed at once by the end of the stream.
pub fn c2_bytes_before_the_end_of_stream_come_before_it<R: Rig>() {
    let mut world = World::<R>::new();
    for len in [1, 1000, 60_000] {
        let (id, mut peer) = world.pair();
        let input = pattern(len, 9);
        let mut written = 0;
        while written < len {
            let n = world.rig.write(&mut peer, &input[written..]);
            written += n;
            if n == 0 {
                world.turn();
            }
        }
        world.rig.finish(&mut peer);
        world.until_seen(Seen::Finished(id));
        assert!(world.received(id) == input, "bytes before the end were lost");
    }
}

/// C2: a large stream in each direction at the same time.
pub fn c2_both_directions_at_once<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let output = world.fill(id);
    let input = pattern(R::CAPACITY, 2);
    let (mut written, mut read) = (0, Vec::new());
    world.until("both streams", |world| {
        written += world.rig.write(&mut peer, &input[written..]);
        world.rig.read(&mut peer, &mut read);
        world.received(id).len() == input.len() && read.len() == output.len()
    });
    assert!(world.received(id) == input && read == output);
    world.until_seen(Seen::Sent(id, 0));
}

/// C2: many segments, small and large.
pub fn c2_more_segments_than_one_vectored_send_takes<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    for segments in [64, 65, 200, 2000] {
        let (mut batch, mut expected) = (Batch::default(), Vec::new());
        let shared: Arc<[u8]> = pattern(97, 5).into();
        for chunk in 0..segments {
            if chunk % 3 == 0 {
                expected.extend_from_slice(&shared);
                batch.push(Segment::Shared(Arc::clone(&shared)));
            } else {
                let own = pattern(1 + chunk % 500, chunk as u8);
                expected.extend_from_slice(&own);
                batch.push(Segment::Own(own));
            }
        }
        let sent = world.count(Seen::Sent(id, 0));
        let done = world.send(id, batch);
        assert!(world.read(&mut peer, expected.len()).0 == expected, "{segments} segments");
        if !done {
            world.until("the batch", |world| world.count(Seen::Sent(id, 0)) > sent);
        }
    }
}

/// C2: more than the 1,024 descriptors of select(2) and the 1,024 events of one wait.
pub fn c2_more_than_a_thousand_connections<R: Rig>() {
    let mut world = World::<R>::new();
    let address = world.rig.listen();
    let mut peers = Vec::new();
    for _ in 0..1100 {
        peers.push(world.rig.dial(address).expect("the driver listens"));
        if peers.len() % 100 == 0 {
            world.until("all connections", |world| world.seen.len() == peers.len());
        }
    }
    let ids: Vec<ConnId> = world
        .seen
        .iter()
        .map(|seen| match seen {
            Seen::Adopted(id) => *id,
            other => panic!("unexpected: {other:?}"),
        })
        .collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        assert_eq!(world.rig.write(peer, &(number as u32).to_le_bytes()), 4);
    }
    world.until("a number from each", |world| ids.iter().all(|id| world.received(*id).len() == 4));
    // The order of acceptance does not matter: each number comes once, and its reply goes to the
    // connection that sent it.
    for id in ids {
        let number = world.received(id).to_vec();
        assert!(world.send_bytes(id, number));
    }
    for (number, peer) in peers.iter_mut().enumerate() {
        assert_eq!(world.read(peer, 4).0, (number as u32).to_le_bytes());
    }
}

/// C11: pending output is not in memory that the next receive overwrites.
pub fn c11_bytes_in_flight_are_not_overwritten<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let (other, mut other_peer) = world.pair();
    assert_eq!(world.rig.write(&mut peer, &[b'a'; 1000]), 1000);
    let end = world.now().after(R::TIMEOUT);
    let mut pending = false;
    while !pending {
        assert!(world.now() < end, "no event");
        world.rig.step();
        let deadline = world.now().after(R::SLICE);
        world.wait(Some(deadline));
        while let Some(seen) = world.next_event() {
            if let Seen::Received(from, len) = seen
                && from == id
            {
                let mut batch = Batch::default();
                batch.push(Segment::Own(vec![b'.'; R::CAPACITY]));
                batch.push(Segment::Lent(0..len));
                assert!(!world.send(id, batch), "CAPACITY bytes fitted");
                pending = true;
            }
        }
    }
    let first = world.received(id).len();
    for _ in 0..10 {
        world.write_all(&mut peer, &[b'b'; 1000]);
        world.write_all(&mut other_peer, &[b'c'; 1000]);
    }
    world.until("more input", |world| world.received(other).len() == 10_000);
    let (read, _) = world.read(&mut peer, R::CAPACITY + first);
    assert!(read[..R::CAPACITY].iter().all(|byte| *byte == b'.'));
    assert!(read[R::CAPACITY..].iter().all(|byte| *byte == b'a'), "overwritten in flight");
    world.until_seen(Seen::Sent(id, 0));
}
