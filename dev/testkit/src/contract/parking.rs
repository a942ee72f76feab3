//! C14: connections that are parked, and moved to a successor of their driver.

use throng_io::driver::{Closed, Driver};
use throng_io::id::{ConnId, Slots};

use super::ends::use_stale_id;
use super::world::{RecordOf, Seen, World};
use super::{PeerRead, Rig, pattern};

/// Number of turns in which a driver that is not parked would have sent everything.
const TURNS: usize = 30;

/// C14: input received while a connection is parked arrives once, and calls during that time have
/// no effect.
pub fn c14_bytes_that_come_while_parked_arrive_once<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.write_all(&mut peer, b"one");
    world.until("the first bytes", |world| world.received(id) == b"one");
    for round in 0..3 {
        let record = world.park(id);
        assert!(world.rig.driver().take_record(id).is_none(), "a record exists once");
        world.write_all(&mut peer, b"more");
        world.assert_idle();
        use_stale_id(&mut world, id);
        assert_eq!(world.rig.driver().try_send(id, b"nothing"), 0);
        assert!(world.rig.driver().park(id).is_err(), "it is parked");
        world.assert_idle();
        assert_eq!(world.received(id).len(), 3 + 4 * round);
        world.unpark(id, record);
        let len = 3 + 4 * (round + 1);
        world.until("the bytes that waited", |world| world.received(id).len() == len);
        assert!(world.send_bytes(id, b"answer".to_vec()));
        assert_eq!(world.read(&mut peer, 6).0, b"answer");
        world.assert_idle();
    }
    assert_eq!(world.received(id), b"onemoremoremore");
    // Parks and continues the connection without input in between.
    let record = world.park(id);
    world.unpark(id, record);
    world.assert_idle();
    world.close(id);
    world.until_seen(Seen::Closed(id, Closed::Local));
    assert_eq!(world.read(&mut peer, 1), (Vec::new(), PeerRead::Finished));
}

/// C14: connections continue at another driver under their ids.
pub fn c14_a_connection_goes_on_at_the_successor_under_its_id<R: Rig>() {
    let mut world = World::<R>::new();
    let mut pairs: Vec<_> = (0..5).map(|_| world.pair()).collect();
    let ids: Vec<ConnId> = pairs.iter().map(|(id, _)| *id).collect();
    for round in 0..3_usize {
        let text = format!("{round}");
        for (id, peer) in &mut pairs {
            // Half of the bytes arrive before the connection is parked, and may be unread.
            assert!(world.rig.write(peer, text.as_bytes()) > 0);
            let expected = 3 * round + 1;
            if id.slot().is_multiple_of(2) {
                world.until("the bytes", |world| world.received(*id).len() == expected);
            }
        }
        world.move_on(&ids);
        for (_, peer) in &mut pairs {
            assert!(world.rig.write(peer, b"to") > 0);
        }
        for (id, peer) in &mut pairs {
            let id = *id;
            world.until("the bytes that waited", |world| {
                world.received(id).len() == 3 * (round + 1)
            });
            assert!(world.received(id).ends_with(format!("{round}to").as_bytes()));
            assert!(world.send_bytes(id, b"answer".to_vec()));
            assert_eq!(world.read(peer, 6).0, b"answer");
        }
        // For the old driver, the id belongs to a closed connection.
        let mut old = world.old.pop().expect("the one before");
        std::mem::swap(world.rig.driver(), &mut old);
        for id in &ids {
            use_stale_id(&mut world, *id);
            assert!(world.rig.driver().park(*id).is_err());
            assert!(world.rig.driver().descriptor(*id).is_none());
        }
        world.assert_idle();
        *world.rig.driver() = old;
        world.assert_idle();
    }
    for (id, mut peer) in pairs {
        world.close(id);
        world.until_seen(Seen::Closed(id, Closed::Local));
        assert_eq!(world.read(&mut peer, 1), (Vec::new(), PeerRead::Finished));
    }
    let ends = world.seen.iter().filter(|seen| matches!(seen, Seen::Closed(..)));
    assert_eq!(ends.count(), 5, "a move is no end");
}

/// C14: the end of the peer's stream is reported after the bytes before it, at either driver.
pub fn c14_an_end_of_stream_while_parked_is_reported_after<R: Rig>() {
    for moves in [false, true] {
        let mut world = World::<R>::new();
        let (id, mut peer) = world.pair();
        let record = world.park(id);
        world.write_all(&mut peer, b"the last");
        world.rig.finish(&mut peer);
        world.assert_idle();
        go_on(&mut world, id, record, moves);
        world.until_seen(Seen::Finished(id));
        assert_eq!(world.received(id), b"the last");
        assert!(!world.rig.driver().was_truncated(id));
        world.send_bytes(id, b"ours".to_vec());
        assert_eq!(world.read(&mut peer, 4).0, b"ours");
        world.assert_idle();
        world.close(id);
        world.until_seen(Seen::Closed(id, Closed::Local));
    }
}

/// C14: a reset is reported after the connection continues.
pub fn c14_a_reset_while_parked_is_reported_after<R: Rig>() {
    for (moves, pauses) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::<R>::new();
        let (id, peer) = world.pair();
        if pauses {
            world.pause(id);
        }
        let record = world.park(id);
        world.rig.reset(peer);
        world.assert_idle();
        go_on(&mut world, id, record, moves);
        world.until_seen(Seen::Closed(id, Closed::Reset));
        world.assert_idle();
    }
}

/// C14: bytes that a slow reader has not received stay queued, and leave after parking.
pub fn c14_nothing_leaves_while_parked<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let bytes = world.fill(id);
    let record = world.park(id);
    assert_eq!(world.rig.driver().unsent(id), 0, "the record has it");
    let mut got = read_for_some_turns(&mut world, &mut peer);
    assert!(got.len() < bytes.len(), "{} bytes left", got.len());
    assert!(!world.saw(Seen::Sent(id, 0)));
    world.unpark(id, record);
    got.extend(world.read(&mut peer, bytes.len() - got.len()).0);
    assert!(got == bytes, "other bytes, or another order");
    world.until_seen(Seen::Sent(id, 0));
    assert!(world.send_bytes(id, b"next".to_vec()));
    assert_eq!(world.read(&mut peer, 4).0, b"next");
    world.assert_idle();
}

/// C14: the unsent rest of a batch moves with its connection, and leaves first.
pub fn c14_the_rest_of_a_batch_leaves_at_the_successor<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let bytes = world.fill(id);
    let mut got = Vec::new();
    for _ in 0..3 {
        got.extend(world.read(&mut peer, R::CAPACITY / 16).0);
        assert!(!world.saw(Seen::Sent(id, 0)), "CAPACITY bytes fitted");
        world.move_on(&[id]);
        assert!(world.rig.driver().unsent(id) > 0);
    }
    world.write_all(&mut peer, b"and input");
    got.extend(world.read(&mut peer, bytes.len() - got.len()).0);
    assert!(got == bytes, "other bytes, or another order");
    world.until_seen(Seen::Sent(id, 0));
    world.until("the input", |world| world.received(id) == b"and input");
    assert_eq!(world.count(Seen::Sent(id, 0)), 1);
    assert!(world.send_bytes(id, b"next".to_vec()));
    assert_eq!(world.read(&mut peer, 4).0, b"next");
    world.assert_idle();
    // As always, a close after the move returns the batch before it reports the end.
    world.fill(id);
    world.move_on(&[id]);
    world.abort(id);
    world.until_seen(Seen::Closed(id, Closed::Local));
    assert!(world.seen.iter().any(|seen| matches!(seen, Seen::Sent(_, left) if *left > 0)));
}

/// C14: a paused connection stays paused.
pub fn c14_a_paused_connection_stays_paused<R: Rig>() {
    for moves in [false, true] {
        let mut world = World::<R>::new();
        let (id, mut peer) = world.pair();
        world.pause(id);
        world.write_all(&mut peer, b"before ");
        world.assert_idle();
        let record = world.park(id);
        world.write_all(&mut peer, b"and after");
        go_on(&mut world, id, record, moves);
        world.assert_idle();
        world.resume(id);
        world.until("all input", |world| world.received(id) == b"before and after");
        world.assert_idle();
    }
}

/// C14: a connection that waits for its next share of a turn may be parked and continued within
/// that turn.
pub fn c14_input_that_waits_its_turn_is_not_lost<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let (other, mut far) = world.pair();
    let bytes = pattern(R::CAPACITY, 9);
    let mut written = 0;
    world.until("all input, though parked in every turn", |world| {
        written += world.rig.write(&mut peer, &bytes[written..]);
        world.rig.write(&mut far, b"x");
        let before = world.received(id).len();
        while world.received(id).len() == before && world.next_event().is_some() {}
        park_and_go_on_at_once(world, id);
        world.received(id).len() == bytes.len()
    });
    assert!(world.received(id) == bytes, "other bytes, or another order");
    assert!(!world.received(other).is_empty());
    if R::SECURES {
        return;
    }
    // Parks a connection as soon as it is adopted.
    world.stashing = true;
    let address = world.rig.listen();
    let mut peer = world.rig.dial(address).expect("the driver listens");
    world.until("a connection", |world| !world.stash.is_empty());
    for _ in 0..2 {
        let socket = world.stash.pop().expect("just stashed");
        let id = world.adopt(socket);
        park_and_go_on_at_once(&mut world, id);
        world.rig.write(&mut peer, b"hello");
        world.until("the first bytes", |world| world.received(id) == b"hello");
        world.assert_idle();
        let socket = world.release(id);
        world.stash.push(socket);
    }
}

/// C14: a connection that is not established, or has begun to end, is not parked and continues.
pub fn c14_a_connection_that_must_wait_is_not_parked<R: Rig>() {
    let mut world = World::<R>::new();
    let (mut remote, address) = world.rig.remote();
    let connecting = world.connect(address);
    assert!(world.rig.driver().park(connecting).is_err(), "not connected yet");
    world.until_seen(Seen::Connected(connecting));
    let mut accepted = None;
    world.until("the remote's end", |world| {
        accepted = accepted.take().or_else(|| world.rig.accept(&mut remote));
        accepted.is_some()
    });
    let record = world.park(connecting);
    world.unpark(connecting, record);
    world.assert_idle();
    let (id, mut peer) = world.pair();
    world.rig.finish(&mut peer);
    world.until_seen(Seen::Finished(id));
    assert!(world.rig.driver().park(id).is_err(), "its peer has finished");
    world.send_bytes(id, b"still here".to_vec());
    assert_eq!(world.read(&mut peer, 10).0, b"still here");
    world.close(id);
    assert!(world.rig.driver().park(id).is_err(), "it is closed, and its end not reported");
    world.until_seen(Seen::Closed(id, Closed::Local));
    assert!(world.rig.driver().park(id).is_err(), "its end was reported");
    assert!(world.rig.driver().take_record(id).is_none());
    assert!(world.rig.driver().descriptor(id).is_none());
    world.assert_idle();
}

/// C14: surrendering a parked connection causes no event, and its peer sees no end until the last
/// descriptor is closed.
pub fn c14_a_surrendered_connection_is_open_as_long_as_a_duplicate_is<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let record = world.park(id);
    let duplicate = world.duplicate(id);
    world.rig.driver().surrender(id);
    drop(record);
    world.write_all(&mut peer, b"any answer?");
    world.assert_idle();
    assert_eq!(world.rig.read(&mut peer, &mut Vec::new()), PeerRead::Nothing);
    world.rig.driver().surrender(id);
    use_stale_id(&mut world, id);
    let (second, mut far) = world.pair();
    assert!(second != id, "the slot is free, and has a new generation");
    world.write_all(&mut far, b"me");
    world.until("its input", |world| world.received(second) == b"me");
    assert_eq!(world.rig.read(&mut peer, &mut Vec::new()), PeerRead::Nothing);
    drop(duplicate);
    let end = world.read(&mut peer, 1).1;
    // Unread input makes this a reset, on transports that have resets.
    assert!(matches!(end, PeerRead::Finished | PeerRead::Reset), "{end:?}");
    // If the successor drops its duplicate, the owner keeps the connection.
    let record = world.park(second);
    world.succeed();
    let mut old = world.old.pop().expect("just replaced");
    world.write_all(&mut far, b"while two have it");
    for _ in 0..2 {
        let duplicate = R::duplicate(old.descriptor(second).expect("it is parked"));
        world.rig.driver().adopt_at(second, duplicate).expect("a slot that is reserved again");
        world.assert_idle();
        world.rig.driver().surrender(second);
        world.assert_idle();
    }
    std::mem::swap(world.rig.driver(), &mut old);
    world.rig.driver().take_slots_back();
    world.unpark(second, record);
    world.until("input of the owner", |world| world.received(second) == b"mewhile two have it");
    assert!(world.send_bytes(second, b"mine".to_vec()));
    assert_eq!(world.read(&mut far, 4).0, b"mine");
    world.assert_idle();
}

/// C14: ids of new connections at the successor differ from ids of connections that have not yet
/// moved, and from earlier ids.
pub fn c14_no_id_names_two_connections<R: Rig>() {
    let mut world = World::<R>::new();
    let (moves, mut peer) = world.pair();
    let (stays, _far) = world.pair();
    for _ in 0..3 {
        let (id, _) = world.pair();
        world.close(id);
        world.until_seen(Seen::Closed(id, Closed::Local));
    }
    let record = world.park(moves);
    world.succeed();
    // A `World` refuses an id that it already knows.
    let (new, _near) = world.pair();
    assert!(new.slot() != moves.slot() && new.slot() != stays.slot());
    let mut old = world.old.pop().expect("just replaced");
    let duplicate = R::duplicate(old.descriptor(moves).expect("it is parked"));
    world.rig.driver().adopt_at(moves, duplicate).expect("a reserved slot");
    world.unpark(moves, record);
    old.surrender(moves);
    world.write_all(&mut peer, b"moved");
    world.until("its input", |world| world.received(moves) == b"moved");
    // The old driver has no free slots: its successor has them.
    std::mem::swap(world.rig.driver(), &mut old);
    world.close(stays);
    world.until_seen(Seen::Closed(stays, Closed::Local));
    let Err(_) = world.rig.driver().give_slots(0) else { panic!("they were given before") };
    std::mem::swap(world.rig.driver(), &mut old);
    world.rig.driver().vacate(stays);
    world.rig.driver().vacate(moves);
    for _ in 0..3 {
        let (id, _) = world.pair();
        world.close(id);
        world.until_seen(Seen::Closed(id, Closed::Local));
    }
    world.assert_idle();
}

/// C14: a descriptor is accepted only under an id of the predecessor.
pub fn c14_a_slot_that_is_not_reserved_is_refused<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let (second, _other) = world.pair();
    let record = world.park(id);
    let duplicates: Vec<_> = (0..7).map(|_| world.duplicate(id)).collect();
    assert!(world.rig.driver().begin_with(&Slots::default()).is_err(), "it has connections");
    world.succeed();
    let (new, _far) = world.pair();
    let (shard, slot, generation) = (id.shard() as u16, id.slot() as u32, id.generation());
    let wrong = [
        ConnId::new(shard + 1, slot, generation),
        ConnId::new(shard, slot, generation.wrapping_sub(1)),
        ConnId::new(shard, slot + 1_000, generation),
        new,
        ConnId::from_bits(u64::MAX),
    ];
    let mut duplicates = duplicates.into_iter();
    for (wrong, duplicate) in wrong.into_iter().zip(&mut duplicates) {
        assert!(world.rig.driver().adopt_at(wrong, duplicate).is_err(), "{wrong:?}");
    }
    let mut enter = |world: &mut World<R>, id| {
        world.rig.driver().adopt_at(id, duplicates.next().expect("enough of them"))
    };
    enter(&mut world, id).expect("a reserved slot");
    assert!(enter(&mut world, id).is_err(), "there is one already");
    world.assert_idle();
    world.old.last_mut().expect("just replaced").surrender(id);
    world.unpark(id, record);
    world.write_all(&mut peer, b"refusals are no ends");
    world.until("its input", |world| world.received(id) == b"refusals are no ends");
    assert!(id != second);
    world.assert_idle();
}

/// C14: a driver whose successor has ended gets back all slots, and keeps its connections.
pub fn c14_a_driver_goes_on_when_its_successor_is_gone<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let (second, mut far) = world.pair();
    let record = world.park(id);
    world.succeed();
    let (lost, _near) = world.pair();
    let old = world.old.pop().expect("just replaced");
    // The old driver continues its connection.
    *world.rig.driver() = old;
    world.rig.driver().take_slots_back();
    world.unpark(id, record);
    for (id, peer) in [(id, &mut peer), (second, &mut far)] {
        world.write_all(peer, b"here");
        world.until("its input", |world| world.received(id) == b"here");
    }
    assert!(world.rig.driver().give_slots(3).is_ok(), "and it may have another successor");
    use_stale_id(&mut world, lost);
    world.assert_idle();
}

/// Continues a parked connection at this driver or, with `moves`, at a successor.
fn go_on<R: Rig>(world: &mut World<R>, id: ConnId, record: RecordOf<R>, moves: bool) {
    if moves {
        world.succeed();
        let mut old = world.old.pop().expect("just replaced");
        let duplicate = R::duplicate(old.descriptor(id).expect("it is parked"));
        world.rig.driver().adopt_at(id, duplicate).expect("a reserved slot");
        world.assert_idle();
        old.surrender(id);
        world.old.push(old);
    }
    world.unpark(id, record);
}

/// Parks a connection and continues it in one turn, if it can be parked now.
fn park_and_go_on_at_once<R: Rig>(world: &mut World<R>, id: ConnId) {
    if !world.try_park(id) {
        return;
    }
    let parked = world.count(Seen::Parked(id));
    while world.count(Seen::Parked(id)) == parked && world.next_event().is_some() {}
    assert!(world.count(Seen::Parked(id)) > parked, "a driver that need not wait does not");
    let record = world.rig.driver().take_record(id).expect("the record of a parked connection");
    world.unpark(id, record);
}

fn read_for_some_turns<R: Rig>(world: &mut World<R>, peer: &mut R::Peer) -> Vec<u8> {
    let mut got = Vec::new();
    for _ in 0..TURNS {
        while world.rig.read(peer, &mut got) == PeerRead::Bytes {}
        world.turn();
    }
    got
}
