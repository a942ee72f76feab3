//! The counts of subscribers under every interleaving of shards that come to a channel and leave
//! it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p throng-engine --release --test loom_totals`
#![cfg(loom)]

use std::sync::Arc;

use loom::thread;
use throng_engine::Totals;

/// A shard whose only member comes, looks, and goes.
fn come_and_go(totals: &Totals, most: usize) {
    let tally = totals.enter("news");
    tally.add_one();
    let count = totals.count("news");
    assert!((1..=most).contains(&count), "{count} with one of mine");
    tally.subtract(1);
    totals.leave(tally);
}

/// The race: one shard removes the channel that the other is about to take.
#[test]
fn a_channel_that_one_shard_leaves_while_another_comes_counts_both_and_is_forgotten() {
    loom::model(|| {
        let totals = Arc::new(Totals::default());
        let other = Arc::clone(&totals);
        let thread = thread::spawn(move || {
            come_and_go(&other, 2);
            come_and_go(&other, 2);
        });
        come_and_go(&totals, 2);
        thread.join().unwrap();
        assert_eq!((totals.count("news"), totals.channels()), (0, 0));
    });
}

/// A member that stays is always counted, during any steps of the other members.
#[test]
fn a_subscriber_that_stays_is_never_forgotten() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let totals = Arc::new(Totals::default());
        let others: Vec<_> = (0..2)
            .map(|_| {
                let totals = Arc::clone(&totals);
                thread::spawn(move || come_and_go(&totals, 3))
            })
            .collect();
        let tally = totals.enter("news");
        tally.add_one();
        let count = totals.count("news");
        assert!((1..=3).contains(&count), "{count}");
        for other in others {
            other.join().unwrap();
        }
        assert_eq!((totals.count("news"), totals.channels()), (1, 1));
        tally.subtract(1);
        totals.leave(tally);
        assert_eq!(totals.channels(), 0);
    });
}

/// Every publication after a reported subscription reaches it, even if other shards change the
/// channel.
#[test]
fn a_publisher_that_heard_of_a_subscription_posts_to_its_shard() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let totals = Arc::new(Totals::default());
        let notified = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let (its, notifies) = (Arc::clone(&totals), Arc::clone(&notified));
        let subscriber = thread::spawn(move || {
            let exact = its.enter_from("news", Some(1));
            let pattern = its.enter_pattern("*", Some(2));
            // The acknowledgement: a socket would order the two likewise.
            notifies.store(true, loom::sync::atomic::Ordering::Release);
            (exact, pattern)
        });
        let others = Arc::clone(&totals);
        let churning = thread::spawn(move || {
            let tally = others.enter_from("news", Some(3));
            others.leave(tally);
        });
        let mine = totals.enter_from("news", Some(0));
        if notified.load(loom::sync::atomic::Ordering::Acquire) {
            for known in [None, Some(&mine)] {
                let mut homes = totals.homes_of("news", known);
                homes.retain(|home| *home != 3);
                homes.sort_unstable();
                assert_eq!(homes, [0, 1, 2]);
            }
        }
        churning.join().unwrap();
        let (exact, pattern) = subscriber.join().unwrap();
        for tally in [exact, pattern, mine] {
            totals.leave(tally);
        }
        assert_eq!((totals.homes_of("news", None), totals.channels()), (vec![], 0));
    });
}
