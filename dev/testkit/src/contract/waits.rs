//! C6, C7, C8 and C10: when a wait returns, and when a driver stops reading or accepting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use throng_io::driver::{Closed, Driver};
use throng_io::time::Instant;

use super::world::{Seen, World};
use super::{PeerRead, Rig, pattern};

/// C6: there is nothing to do.
pub fn c6_an_idle_wait_lasts_to_its_deadline<R: Rig>() {
    let mut world = World::<R>::new();
    world.assert_idle();
    let (_id, _peer) = world.pair();
    world.assert_idle();
    world.assert_idle();
}

/// C6: deadlines shorter than the clock tick of an operating system's wait.
pub fn c6_short_deadlines_do_not_spin<R: Rig>() {
    let mut world = World::<R>::new();
    let (_id, _peer) = world.pair();
    world.assert_idle();
    let waits = world.waits;
    for _ in 0..50 {
        let deadline = world.now().after(Duration::from_micros(250));
        while world.now() < deadline {
            world.wait(Some(deadline));
            assert_eq!(world.drain(), 0);
        }
    }
    let waits = world.waits - waits;
    assert!(waits <= 100, "{waits} waits for 50 deadlines");
}

/// C6: pending events are reported although the deadline has passed.
pub fn c6_a_past_deadline_polls<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.wait(Some(Instant(0)));
    assert_eq!(world.drain(), 0);
    world.write_all(&mut peer, b"now");
    let end = world.now().after(R::TIMEOUT);
    while world.received(id) != b"now" {
        assert!(world.now() < end, "never reported");
        world.rig.step();
        world.wait(Some(Instant(0)));
        world.drain();
    }
}

/// C6: the end of a stream lasts forever, and is reported once.
pub fn c6_a_finished_connection_does_not_spin<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.rig.finish(&mut peer);
    world.until_seen(Seen::Finished(id));
    world.assert_idle();
    world.rig.driver().finish(id);
    world.assert_idle();
    // Both directions have ended. Pausing makes no difference.
    world.pause(id);
    world.assert_idle();
    world.resume(id);
    world.assert_idle();
    world.close(id);
    world.until_seen(Seen::Closed(id, Closed::Local));
}

/// C6: a peer that does not read causes no wakeups; nor does room for output when there is none.
pub fn c6_a_full_connection_does_not_spin<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let len = world.fill(id).len();
    world.assert_idle();
    world.read(&mut peer, len);
    world.until_seen(Seen::Sent(id, 0));
    world.assert_idle();
}

/// C6: a peer that writes as fast as it is read.
pub fn c6_one_busy_connection_does_not_fill_a_turn<R: Rig>() {
    let mut world = World::<R>::new();
    let (loud, mut loud_peer) = world.pair();
    let (quiet, mut quiet_peer) = world.pair();
    let chunk = pattern(10_000, 1);
    let mut turns = 0;
    let end = world.now().after(R::TIMEOUT);
    while turns < 20 {
        assert!(world.now() < end, "the quiet connection gets no turn");
        world.rig.write(&mut loud_peer, &chunk);
        let before = world.received(quiet).len();
        assert_eq!(world.rig.write(&mut quiet_peer, b"?"), 1);
        while world.received(quiet).len() == before {
            assert!(world.now() < end, "the quiet connection gets no turn");
            world.rig.step();
            let deadline = world.now().after(R::SLICE);
            world.wait(Some(deadline));
            let mut events = 0;
            while let Some(seen) = world.next_event() {
                events += 1;
                assert!(events < 200, "a turn that does not end");
                if matches!(seen, Seen::Received(id, _) if id == loud) {
                    world.rig.write(&mut loud_peer, &chunk);
                }
            }
        }
        turns += 1;
    }
}

/// C6: an engine may wait again before it has taken every event.
pub fn c6_events_left_over_are_not_lost<R: Rig>() {
    let mut world = World::<R>::new();
    let pairs: Vec<_> = (0..20).map(|_| world.pair()).collect();
    let mut ids = Vec::new();
    for (id, mut peer) in pairs {
        world.write_all(&mut peer, b"here");
        world.rig.finish(&mut peer);
        ids.push((id, peer));
    }
    let end = world.now().after(R::TIMEOUT);
    while !ids.iter().all(|(id, _)| world.saw(Seen::Finished(*id))) {
        assert!(world.now() < end, "events were lost");
        world.rig.step();
        let deadline = world.now().after(R::SLICE);
        world.wait(Some(deadline));
        world.next_event();
    }
    assert!(ids.iter().all(|(id, _)| world.received(*id) == b"here"));
    for (id, _) in &ids {
        world.close(*id);
    }
    let end = world.now().after(R::TIMEOUT);
    while !ids.iter().all(|(id, _)| world.saw(Seen::Closed(*id, Closed::Local))) {
        assert!(world.now() < end, "ends were lost");
        let deadline = world.now().after(R::SLICE);
        world.wait(Some(deadline));
        world.next_event();
    }
}

/// C6: one connection has room for output and input at the same time.
pub fn c6_output_and_input_left_over_are_not_lost<R: Rig>() {
    let mut world = World::<R>::new();
    for _ in 0..5 {
        let (id, mut peer) = world.pair();
        world.fill(id);
        let (mut read, mut written) = (Vec::new(), 0);
        let end = world.now().after(R::TIMEOUT);
        while !world.saw(Seen::Sent(id, 0)) || world.received(id).len() < written {
            assert!(world.now() < end, "{} of {written} received", world.received(id).len());
            if !world.saw(Seen::Sent(id, 0)) {
                while world.rig.read(&mut peer, &mut read) == PeerRead::Bytes {}
                written += world.rig.write(&mut peer, b"!");
            }
            world.rig.step();
            let deadline = world.now().after(R::SLICE);
            world.wait(Some(deadline));
            world.next_event();
        }
    }
}

/// C7: no descriptors are left. Skipped by rigs that cannot exhaust them.
pub fn c7_accepting_stops_without_descriptors_and_resumes<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let address = world.rig.listen();
    let before = world.seen.len();
    let _waiting: Vec<_> = (0..5).map(|_| world.rig.dial(address).expect("a backlog")).collect();
    if !world.rig.exhaust_descriptors(true) {
        return;
    }
    world.until_seen(Seen::AcceptStopped);
    world.assert_idle();
    // Existing connections continue.
    world.write_all(&mut peer, b"still here");
    world.until("its input", |world| world.received(id) == b"still here");
    // Still none: reported once more.
    world.rig.driver().resume_accept();
    world.until("the second report", |world| world.count(Seen::AcceptStopped) == 2);
    world.assert_idle();
    world.rig.exhaust_descriptors(false);
    world.assert_idle();
    world.rig.driver().resume_accept();
    world.until("the waiting connections", |world| {
        let adopted = |seen: &&Seen| matches!(seen, Seen::Adopted(_));
        // More, if another program connects to the port by mistake.
        world.seen[before..].iter().filter(adopted).count() >= 5
    });
    assert_eq!(world.count(Seen::AcceptStopped), 2);
    world.assert_idle();
}

/// C8: input that came during the pause is delivered after it, the end of stream last.
pub fn c8_a_paused_connection_loses_nothing<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    let input = pattern(30_000, 6);
    let mut at = 0;
    for round in 0..6 {
        world.pause(id);
        while at < (round + 1) * 5_000 {
            at += world.rig.write(&mut peer, &input[at..(round + 1) * 5_000]);
        }
        world.assert_idle();
        world.resume(id);
        world.until("the input of the pause", |world| world.received(id).len() == at);
        world.assert_idle();
    }
    world.pause(id);
    world.rig.finish(&mut peer);
    world.assert_idle();
    world.resume(id);
    world.until_seen(Seen::Finished(id));
    assert!(world.received(id) == input);
}

/// C8: a pause in an event, with more input pending in the same turn.
pub fn c8_pause_takes_effect_within_the_turn<R: Rig>() {
    let mut world = World::<R>::new();
    let (a, mut peer_a) = world.pair();
    let (b, mut peer_b) = world.pair();
    for _ in 0..10 {
        let (was_a, was_b) = (world.received(a).len(), world.received(b).len());
        world.write_all(&mut peer_a, b"a");
        world.write_all(&mut peer_b, b"b");
        let mut paused = false;
        let end = world.now().after(R::TIMEOUT);
        while !paused {
            assert!(world.now() < end, "no event");
            world.rig.step();
            let deadline = world.now().after(R::SLICE);
            world.wait(Some(deadline));
            // The world asserts that no event comes from a paused connection.
            while let Some(seen) = world.next_event() {
                if let Seen::Received(..) = seen {
                    world.pause(a);
                    world.pause(b);
                    paused = true;
                }
            }
        }
        world.assert_idle();
        world.resume(a);
        world.resume(b);
        world.until("both", |world| {
            world.received(a).len() > was_a && world.received(b).len() > was_b
        });
    }
}

/// C8: only reading is paused.
pub fn c8_a_paused_connection_still_sends<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.pause(id);
    world.write_all(&mut peer, b"later");
    let bytes = world.fill(id);
    world.assert_idle();
    assert!(world.read(&mut peer, bytes.len()).0 == bytes);
    world.until_seen(Seen::Sent(id, 0));
    world.assert_idle();
    world.resume(id);
    world.until("the input of the pause", |world| world.received(id) == b"later");
}

/// C8: a reset is reported at once, with and without unread input.
pub fn c8_a_paused_connection_reports_a_reset<R: Rig>() {
    let mut world = World::<R>::new();
    for unread in [false, true] {
        let (id, mut peer) = world.pair();
        world.pause(id);
        if unread {
            world.write_all(&mut peer, b"unread");
        }
        world.assert_idle();
        world.rig.reset(peer);
        world.until_seen(Seen::Closed(id, Closed::Reset));
    }
}

/// C8, C6: the kernel's hang-up cannot be masked, and it lasts.
pub fn c8_a_paused_connection_that_ended_does_not_spin<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    world.pause(id);
    world.write_all(&mut peer, b"unread");
    world.rig.finish(&mut peer);
    world.rig.driver().finish(id);
    world.assert_idle();
    world.assert_idle();
    world.resume(id);
    world.until_seen(Seen::Finished(id));
    assert_eq!(world.received(id), b"unread");
    world.assert_idle();
}

/// C8: repeated pauses and resumes with no input in between.
pub fn c8_resume_without_input<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    for round in 1..=10 {
        for _ in 0..round {
            world.pause(id);
            world.resume(id);
            world.resume(id);
        }
        world.write_all(&mut peer, b"x");
        world.until("a byte", |world| world.received(id).len() == round);
    }
    world.assert_idle();
}

/// C10: a wake outside a wait ends the next one.
pub fn c10_a_wake_before_the_wait_ends_it<R: Rig>() {
    let mut world = World::<R>::new();
    let waker = world.rig.driver().waker();
    for _ in 0..10 {
        waker.wake();
        let deadline = world.now().after(R::TIMEOUT);
        world.wait(Some(deadline));
        assert!(world.now() < deadline, "the wait reached its deadline");
        assert_eq!(world.drain(), 0, "a wake is not an event");
    }
    // Nothing is left over, except possibly the last signal.
    world.assert_idle();
}

/// C10: many wakes end one wait.
pub fn c10_many_wakes_end_one_wait<R: Rig>() {
    let mut world = World::<R>::new();
    let (id, mut peer) = world.pair();
    for _ in 0..1000 {
        world.rig.driver().waker().wake();
    }
    world.write_all(&mut peer, b"both");
    world.until("the input", |world| world.received(id) == b"both");
    world.assert_idle();
}

/// C10: handing over commands. After a wait the shard sees everything that a thread stored before
/// its wake.
pub fn c10_wakes_from_other_threads_end_waits<R: Rig>() {
    if !R::THREADS {
        return;
    }
    const THREADS: usize = 4;
    const COMMANDS: usize = 2_000;
    let commands = Arc::new(AtomicUsize::new(0));
    let mut world = World::<R>::new();
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (waker, commands) = (world.rig.driver().waker(), Arc::clone(&commands));
            std::thread::spawn(move || {
                for command in 0..COMMANDS {
                    commands.fetch_add(1, Ordering::Relaxed);
                    waker.wake();
                    if command % 16 == 0 {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut got = 0;
    while got < THREADS * COMMANDS {
        // Without a wake the wait would last until its deadline.
        let deadline = world.now().after(R::TIMEOUT);
        world.wait(Some(deadline));
        assert!(
            world.now() < deadline,
            "a wake was lost: {got} commands of {}",
            THREADS * COMMANDS
        );
        world.drain();
        got += commands.swap(0, Ordering::Relaxed);
    }
    for thread in threads {
        thread.join().expect("it does not panic");
    }
    world.assert_idle();
}
