//! When each key may come again, in memory that never grows.
//!
//! The algorithm is GCRA, the virtual scheduling of
//! [ITU-T I.371](https://www.itu.int/rec/T-REC-I.371): of a key only one time is kept, at which all
//! that it has taken is paid for. A key whose time is past equals a new key, so its entry is
//! free. All shards share a table without a lock.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Entries among which a key has its place. A set fills two cache lines.
const WAYS: usize = 8;

/// Bytes of a set.
const SET: usize = size_of::<Set>();

/// Attempts to find or claim an entry while other shards change the set.
const ATTEMPTS: usize = 16;

/// Microseconds by which the clocks of two shards may differ: each reads its own once a round.
const CLOCKS_DIFFER: u64 = 1_000_000;

/// Bits of [`RateEntry::due`] that repeat bits of the key.
const CHECK: u64 = 0xFFFF;

/// The rate of a limit, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// The time that an event costs.
    pub(super) step: u64,
    /// The time that a key may be ahead: the cost of a burst.
    pub(super) slack: u64,
}

/// The keys that have come lately.
#[derive(Debug)]
pub(super) struct RateTable {
    sets: Box<[Set]>,
    /// Keys that were forgotten before their time, for lack of an entry.
    forgotten: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([RateEntry; WAYS]);

/// A key and its time. Both words have bits of the key: if these differ, another shard is changing
/// the entry.
#[derive(Debug, Default)]
struct RateEntry {
    /// The time at which the key has paid, in microseconds: the upper 48 bits, for eight years.
    due: AtomicU64,
    /// The key; 0 if there is none.
    key: AtomicU64,
}

impl RateTable {
    /// Creates a table of at most `bytes`, and at least of one set.
    pub(super) fn new(bytes: usize) -> Self {
        let sets = (bytes / SET).max(1);
        let sets = (0..sets).map(|_| Set::default()).collect();
        Self { sets, forgotten: AtomicU64::new(0) }
    }

    /// Returns the number of keys that were forgotten before their time.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(SeqCst)
    }

    /// Counts an event of `key`, a keyed hash, at `now` in microseconds.
    ///
    /// # Errors
    /// There are too many: the microseconds until the next one may come.
    pub(super) fn take(&self, key: u64, now: u64, pace: Pace) -> Result<(), u64> {
        let key = key.max(1);
        let set = &self.sets[(key >> 16) as usize % self.sets.len()];
        for _ in 0..ATTEMPTS {
            match set.find(key) {
                Some(entry) => match entry.take(key, now, pace) {
                    Some(outcome) => return outcome,
                    None => continue,
                },
                None => self.claim(set, key, now),
            }
        }
        // Others change the set all the time: one event more does less harm than one less.
        self.forgotten.fetch_add(1, SeqCst);
        Ok(())
    }

    /// Returns at most `most` keys that have not paid at `now`, with the times at which they have.
    pub(super) fn unpaid(&self, now: u64, most: usize) -> Vec<(u64, u64)> {
        let entries = self.sets.iter().flat_map(|set| &set.0);
        let of_one = |entry: &RateEntry| {
            let (key, due) = (entry.key.load(SeqCst), entry.due.load(SeqCst));
            // Another shard may be changing the entry.
            let is_whole = key != 0 && due & CHECK == key & CHECK;
            (is_whole && due >> 16 > now).then_some((key, due >> 16))
        };
        entries.filter_map(of_one).take(most).collect()
    }

    /// Enters a key with its time, which nothing else uses yet.
    pub(super) fn put(&self, key: u64, due: u64) {
        let set = &self.sets[(key >> 16) as usize % self.sets.len()];
        self.claim(set, key, 0);
        if let Some(entry) = set.find(key) {
            entry.due.store(due << 16 | key & CHECK, SeqCst);
        }
    }

    /// Gives the entry whose time is the earliest to a key that has none.
    fn claim(&self, set: &Set, key: u64, now: u64) {
        let ages = set.0.iter().map(|entry| entry.due.load(SeqCst)).enumerate();
        let Some((at, old)) = ages.min_by_key(|(_, due)| due >> 16) else { return };
        let (entry, new) = (&set.0[at], now << 16 | key & CHECK);
        if entry.due.compare_exchange(old, new, SeqCst, SeqCst).is_err() {
            return;
        }
        if old >> 16 > now {
            self.forgotten.fetch_add(1, SeqCst);
        }
        entry.key.store(key, SeqCst);
        // Another shard may also have claimed an entry for the key. Of two shards that do so at
        // once, at least one sees the entry of the other.
        let is_twice = (0..WAYS).any(|other| other != at && set.0[other].is_of(key));
        if is_twice && entry.due.compare_exchange(new, 0, SeqCst, SeqCst).is_ok() {
            let _ = entry.key.compare_exchange(key, 0, SeqCst, SeqCst);
        }
    }
}

impl Set {
    fn find(&self, key: u64) -> Option<&RateEntry> {
        self.0.iter().find(|entry| entry.is_of(key))
    }
}

impl RateEntry {
    fn is_of(&self, key: u64) -> bool {
        self.key.load(SeqCst) == key && self.due.load(SeqCst) & CHECK == key & CHECK
    }

    /// Counts an event; `None` if the entry has another key by now.
    fn take(&self, key: u64, now: u64, pace: Pace) -> Option<Result<(), u64>> {
        let mut due = self.due.load(SeqCst);
        loop {
            if due & CHECK != key & CHECK {
                return None;
            }
            let paid = (due >> 16).max(now);
            // More than a key can owe: a reload has made the limit faster. What remains of the
            // slower one must not refuse the key for hours.
            let most = now + pace.slack + pace.step;
            let (paid, outcome) = if paid > most + CLOCKS_DIFFER {
                (most, Err(pace.step))
            } else if paid - now > pace.slack {
                return Some(Err(paid - now - pace.slack));
            } else {
                (paid + pace.step, Ok(()))
            };
            match self.due.compare_exchange(due, paid << 16 | key & CHECK, SeqCst, SeqCst) {
                Ok(_) => return Some(outcome),
                Err(other) => due = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Barrier};

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Five a second, and three more at once.
    const PACE: Pace = Pace { step: SECOND / 5, slack: 3 * SECOND / 5 };

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let table = RateTable::new(1 << 10);
        let outcomes: Vec<_> = (0..6).map(|_| table.take(7, SECOND, PACE)).collect();
        assert_eq!(outcomes[..4], [Ok(()); 4]);
        assert_eq!(outcomes[4..], [Err(SECOND / 5); 2]);
        assert_eq!(table.take(7, SECOND + SECOND / 5 - 1, PACE), Err(1));
        assert_eq!(table.take(7, SECOND + SECOND / 5, PACE), Ok(()));
        assert_eq!(table.take(8, SECOND, PACE), Ok(()), "another key");
        let later: Vec<_> = (0..5).map(|_| table.take(7, 9 * SECOND, PACE)).collect();
        assert_eq!(later[..4], [Ok(()); 4], "the burst is there again");
        assert!(later[4].is_err());
    }

    #[test]
    fn a_key_pays_a_debt_of_a_slower_pace_at_the_new_one() {
        let table = RateTable::new(1 << 10);
        let slow = Pace { step: 3600 * SECOND, slack: 3600 * SECOND };
        while table.take(7, SECOND, slow).is_ok() {}
        assert_eq!(table.take(7, SECOND, PACE), Err(PACE.step));
        assert_eq!(table.take(7, SECOND + PACE.step, PACE), Ok(()), "not after two hours");
        assert!(table.take(7, SECOND + PACE.step, PACE).is_err(), "the burst was used");
        // Another shard's clock may be a little behind.
        let ahead = 5 * SECOND;
        while table.take(8, ahead, PACE).is_ok() {}
        assert!(table.take(8, ahead - SECOND / 2, PACE).is_err());
        assert_eq!(table.take(8, ahead, PACE), Err(PACE.step), "its debt is the same");
    }

    #[test]
    fn keys_that_have_not_paid_go_on_in_another_table() {
        let (before, after) = (RateTable::new(1 << 10), RateTable::new(1 << 12));
        for key in [7 << 20, 8 << 20, 9 << 20] {
            assert_eq!(before.take(key, SECOND, PACE), Ok(()));
        }
        while before.take(8 << 20, SECOND, PACE).is_ok() {}
        let mut unpaid = before.unpaid(SECOND, 10);
        assert_eq!((unpaid.len(), before.unpaid(SECOND, 2).len()), (3, 2));
        assert_eq!(before.unpaid(9 * SECOND, 10), []);
        unpaid.sort_unstable();
        unpaid.iter().for_each(|(key, due)| after.put(*key, *due));
        assert_eq!(after.take(8 << 20, SECOND, PACE), Err(SECOND / 5), "it has used its burst");
        let others: Vec<_> = (0..4).map(|_| after.take(7 << 20, SECOND, PACE).is_ok()).collect();
        assert_eq!(others, [true, true, true, false]);
        assert_eq!(after.forgotten(), 0);
    }

    #[test]
    fn more_keys_than_entries_let_more_through_and_refuse_no_other_key() {
        let table = RateTable::new(SET);
        let strict = Pace { step: SECOND, slack: 0 };
        for key in 1..=WAYS as u64 {
            assert_eq!(table.take(key, 5, strict), Ok(()));
            assert_eq!(table.take(key, 6, strict), Err(SECOND - 1));
        }
        assert_eq!(table.forgotten(), 0);
        for key in 100..1100 {
            assert_eq!(table.take(key, 7, strict), Ok(()), "a new key is never refused");
        }
        assert_eq!(table.forgotten(), 1000);
        let used: u64 = (1..=3 * WAYS as u64).map(|key| key << 20).sum();
        assert!(used > 0 && table.sets.len() == 1, "the table does not grow");
    }

    #[test]
    fn shards_that_count_a_new_key_at_once_share_its_limit() {
        let strict = Pace { step: 3600 * SECOND, slack: 0 };
        let table = Arc::new(RateTable::new(1 << 20));
        let (threads, keys) = (2, 20_000);
        let passed: Arc<Vec<AtomicUsize>> =
            Arc::new((0..keys).map(|_| AtomicUsize::new(0)).collect());
        let together = Arc::new(Barrier::new(threads));
        let work = |_| {
            let (table, passed) = (Arc::clone(&table), Arc::clone(&passed));
            let together = Arc::clone(&together);
            std::thread::spawn(move || {
                together.wait();
                for (at, passed) in passed.iter().enumerate() {
                    let key = (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    if table.take(key, 1, strict).is_ok() {
                        passed.fetch_add(1, SeqCst);
                    }
                }
            })
        };
        let workers: Vec<_> = (0..threads).map(work).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let wrong = passed.iter().filter(|passed| passed.load(SeqCst) != 1).count();
        assert!(wrong as u64 <= table.forgotten(), "{wrong}, {} forgotten", table.forgotten());
    }

    proptest! {
        /// Over any span of time, whichever shards count.
        #[test]
        fn no_window_has_more_than_a_burst_and_the_rate(
            events in prop::collection::vec((0usize..4, 0u64..300_000), 1..200),
            step in 1u64..200_000,
            burst in 0u64..6,
        ) {
            let (table, pace) = (RateTable::new(SET), Pace { step, slack: burst * step });
            let (mut admitted, mut now) = (Vec::new(), 1);
            for (shard, pause) in events {
                now += pause;
                // Another shard's clock is behind by less than a round.
                let clock = now - (shard as u64 * 100).min(now - 1);
                if table.take(7, clock, pace).is_ok() {
                    admitted.push(now);
                }
                for first in 0..admitted.len() {
                    let span = now - admitted[first] + 300;
                    let count = (admitted.len() - first) as u64;
                    prop_assert!(count <= burst + 1 + span.div_ceil(step), "{count} in {span}");
                }
            }
        }

        /// A map that never forgets is the oracle.
        #[test]
        fn a_table_with_space_counts_as_a_map_does(
            events in prop::collection::vec((1u64..6, 0u64..400_000), 0..300),
            step in 1u64..500_000,
            burst in 0u64..5,
        ) {
            let (table, pace) = (RateTable::new(1 << 10), Pace { step, slack: burst * step });
            let (mut oracle, mut now) = (HashMap::<u64, u64>::new(), 10);
            for (key, pause) in events {
                now += pause;
                let due = oracle.entry(key).or_default();
                let paid = (*due).max(now);
                let expected = match paid - now > pace.slack {
                    true => Err(paid - now - pace.slack),
                    false => {
                        *due = paid + step;
                        Ok(())
                    }
                };
                prop_assert_eq!(table.take(key, now, pace), expected);
            }
        }
    }
}
