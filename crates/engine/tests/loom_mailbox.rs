//! The mailbox under every interleaving of its threads, as far as loom can tell them apart.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p throng-engine --release --test loom_mailbox`
#![cfg(loom)]

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;
use throng_engine::mailbox::{Fill, Inbox, mailbox, mailbox_with_mark};
use throng_io::Wake;

/// A driver's wait: sleeps until it was woken, now or before. A wake-up that is lost is a deadlock,
/// which loom reports.
struct Sleeper {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Sleeper {
    fn new() -> Arc<Self> {
        Arc::new(Self { woken: Mutex::new(false), changed: Condvar::new() })
    }

    fn wait(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

impl Wake for Sleeper {
    fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// A shard that does nothing but wait and take its commands, until it has `count` commands.
fn collect(sleeper: &Sleeper, commands: &mut Inbox<(u8, u8)>, count: usize) -> Vec<(u8, u8)> {
    let mut got = Vec::new();
    while got.len() < count {
        sleeper.wait();
        got.extend(commands.drain());
    }
    got
}

#[test]
fn a_command_is_never_left_behind_a_sleeping_shard() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let (sender, mut commands) = mailbox(8, sleeper.clone());
        let senders: Vec<_> = (0..2)
            .map(|name| {
                let sender = sender.clone();
                thread::spawn(move || sender.send((name, 0)).unwrap())
            })
            .collect();
        let mut got = collect(&sleeper, &mut commands, 2);
        for sender in senders {
            sender.join().unwrap();
        }
        got.sort_unstable();
        assert_eq!(got, [(0, 0), (1, 0)]);
        assert_eq!(commands.drain().count(), 0);
    });
}

/// Three threads and three commands are too many for every interleaving: those with at most two
/// forced switches.
#[test]
fn commands_of_one_sender_arrive_in_order_and_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let sleeper = Sleeper::new();
        let (sender, mut commands) = mailbox(8, sleeper.clone());
        let other = sender.clone();
        let first = thread::spawn(move || {
            for number in 0..2 {
                sender.send((0, number)).unwrap();
            }
        });
        let second = thread::spawn(move || other.send((1, 0)).unwrap());
        let got = collect(&sleeper, &mut commands, 3);
        first.join().unwrap();
        second.join().unwrap();
        let of_first: Vec<_> = got.iter().filter(|command| command.0 == 0).collect();
        assert_eq!(of_first, [&(0, 0), &(0, 1)]);
        assert_eq!(commands.drain().count(), 0);
    });
}

#[test]
fn a_full_mailbox_gives_the_command_back_and_loses_none() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let (sender, mut commands) = mailbox(1, sleeper.clone());
        let thread = thread::spawn(move || {
            let mut accepted = Vec::new();
            for number in 0..3 {
                match sender.send((0, number)) {
                    Ok(()) => accepted.push((0, number)),
                    Err(command) => assert_eq!(command, (0, number)),
                }
            }
            accepted
        });
        // The first is always accepted, so there is something to wake up for.
        let mut got = collect(&sleeper, &mut commands, 1);
        let accepted = thread.join().unwrap();
        let rest: Vec<_> = commands.drain().collect();
        assert!(got.len() <= 2 && rest.len() <= 1, "more than fits at a time");
        got.extend(rest);
        assert_eq!(got, accepted);
    });
}

/// A turn looks at its command whether or not it was woken for it.
#[test]
fn looking_without_being_woken_takes_whole_commands_only() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let (sender, mut commands) = mailbox(8, sleeper.clone());
        let thread = thread::spawn(move || {
            sender.send((0, 0)).unwrap();
            sender.send((0, 1)).unwrap();
        });
        let mut got: Vec<_> = commands.drain().collect();
        got.extend(commands.drain());
        while got.len() < 2 {
            sleeper.wait();
            got.extend(commands.drain());
        }
        thread.join().unwrap();
        assert_eq!(got, [(0, 0), (0, 1)]);
    });
}

/// A shard that ended: senders neither wait for it nor leave anything behind, whenever it went.
#[test]
fn commands_to_an_owner_that_is_gone_are_dropped_and_never_refused_again() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let (sender, mut commands) = mailbox(1, sleeper.clone());
        let tracked = Arc::new(());
        let command = Arc::clone(&tracked);
        let thread = thread::spawn(move || {
            let mut command = command;
            // What a drain does: again until there is room.
            for _ in 0..2 {
                while let Err(back) = sender.send(Arc::clone(&command)) {
                    command = back;
                    thread::yield_now();
                }
            }
            sender
        });
        drop(commands.drain());
        drop(commands);
        let sender = thread.join().unwrap();
        assert_eq!(sender.send(Arc::clone(&tracked)), Ok(()));
        assert_eq!(Arc::strong_count(&tracked), 1, "a command was kept");
    });
}

/// A sender that finds the queue crowded waits until it has space, during any steps of the owner.
/// If the owner ends instead, the sender is also woken. A lost wake-up is a deadlock, which loom
/// reports.
#[test]
fn a_sender_that_waits_for_room_is_woken_when_the_commands_are_taken_or_their_owner_is_gone() {
    for owner_ends in [false, true] {
        loom::model(move || {
            let (owner, held) = (Sleeper::new(), Sleeper::new());
            let (sender, mut commands) = mailbox_with_mark(8, 0, owner.clone());
            let sleeper = Arc::clone(&held);
            let thread = thread::spawn(move || {
                let waker: throng_io::Waker = sleeper.clone();
                for number in 0..2 {
                    let fill = sender.send_within((0, number), 0, 1).unwrap();
                    assert!(owner_ends || fill == Fill::Crowded);
                    while sender.await_capacity(0, &waker) {
                        sleeper.wait();
                    }
                }
            });
            if owner_ends {
                owner.wait();
                drop(commands);
            } else {
                let got = collect(&owner, &mut commands, 2);
                assert_eq!(got, [(0, 0), (0, 1)]);
            }
            thread.join().unwrap();
        });
    }
}

/// Two shards publish to each other and both wait for space: each takes its commands even while it
/// waits, so both continue.
#[test]
fn shards_that_wait_for_room_with_each_other_both_go_on() {
    /// A shard's turns: takes its commands, and sends the next message if the last has found room.
    fn shard(
        sleeper: &Arc<Sleeper>,
        mut commands: Inbox<(u8, u8)>,
        peer: &throng_engine::mailbox::Mailbox<(u8, u8)>,
    ) {
        let waker: throng_io::Waker = sleeper.clone();
        let (mut sent, mut got, mut is_held) = (0, 0, false);
        while sent < 2 || got < 2 {
            got += commands.drain().count();
            is_held = is_held && peer.await_capacity(0, &waker);
            if !is_held && sent < 2 {
                let fill = peer.send_within((0, sent), 0, 1).unwrap();
                sent += 1;
                is_held = fill == Fill::Crowded;
                // More to do in the next turn.
                if !is_held || !peer.await_capacity(0, &waker) {
                    is_held = false;
                    continue;
                }
            }
            if sent < 2 || got < 2 {
                sleeper.wait();
            }
        }
    }
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (one, two) = (Sleeper::new(), Sleeper::new());
        let (to_one, commands_of_one) = mailbox_with_mark(8, 0, one.clone());
        let (to_two, commands_of_two) = mailbox_with_mark(8, 0, two.clone());
        let thread = thread::spawn(move || shard(&two, commands_of_two, &to_one));
        shard(&one, commands_of_one, &to_two);
        thread.join().unwrap();
    });
}
