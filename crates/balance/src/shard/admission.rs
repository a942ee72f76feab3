//! The number of clients of all shards, in total and by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::client_key;

/// Client connections of all shards: the kernel does not distribute them evenly, so a limit for
/// each shard would refuse clients below the total.
#[derive(Debug, Default)]
pub struct Admission {
    all: AtomicUsize,
    /// Counts by IPv4 address or IPv6 /64 network, where they are counted. Used once a connection.
    by_address: Mutex<HashMap<u64, usize>>,
}

/// The reason why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The limit of all clients.
    All,
    /// The limit of clients of its address.
    Address,
}

impl Admission {
    /// Counts one more client, unless there are `most`, or `most_of_address` from `address`, which
    /// is counted only where that is given.
    pub(super) fn enter(
        &self,
        most: usize,
        address: IpAddr,
        most_of_address: Option<usize>,
    ) -> Result<Counted, Full> {
        let room = |now: usize| (now < most).then_some(now + 1);
        self.all.fetch_update(Relaxed, Relaxed, room).map_err(|_| Full::All)?;
        let Some(most) = most_of_address else { return Ok(Counted(None)) };
        let key = client_key(address);
        let mut by_address = self.lock();
        let now = by_address.entry(key).or_default();
        if *now >= most {
            drop(by_address);
            self.all.fetch_sub(1, Relaxed);
            return Err(Full::Address);
        }
        *now += 1;
        Ok(Counted(Some(key)))
    }

    /// Uncounts a client.
    pub(super) fn leave(&self, Counted(key): Counted) {
        self.all.fetch_sub(1, Relaxed);
        let Some(key) = key else { return };
        let mut by_address = self.lock();
        if let Some(now) = by_address.get_mut(&key) {
            *now -= 1;
            if *now == 0 {
                by_address.remove(&key);
            }
        }
    }

    /// Returns the number of counted addresses.
    pub(super) fn addresses(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key under which a client was counted, to uncount it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(super) struct Counted(Option<u64>);

/// The keys of all clients, by the driver's slot. Empty where no address is counted.
#[derive(Debug, Default)]
pub(super) struct CountedBySlot(Vec<Counted>);

impl CountedBySlot {
    pub(super) fn insert(&mut self, slot: usize, counted: Counted) {
        if counted.0.is_none() && self.0.len() <= slot {
            return;
        }
        if self.0.len() <= slot {
            self.0.resize(slot + 1, Counted(None));
        }
        self.0[slot] = counted;
    }

    pub(super) fn take(&mut self, slot: usize) -> Counted {
        self.0.get_mut(slot).map_or(Counted(None), std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_its_part_and_gives_it_back() {
        let admission = Admission::default();
        let enter = |text: &str| admission.enter(5, ip(text), Some(2));
        let first = enter("192.0.2.1").unwrap();
        let second = enter("::ffff:192.0.2.1").unwrap();
        assert_eq!(enter("192.0.2.1"), Err(Full::Address));
        let _third = enter("192.0.2.2").unwrap();
        // A /64 network is one customer's, who has 2^64 addresses in it.
        let _one = enter("2001:db8::1").unwrap();
        let _other = enter("2001:db8::ffff:2").unwrap();
        assert_eq!(enter("2001:db8:0:1::1"), Err(Full::All));
        admission.leave(first);
        assert_eq!(enter("2001:db8::3"), Err(Full::Address), "and counts in neither");
        let again = enter("192.0.2.1").unwrap();
        assert_eq!(admission.addresses(), 3);
        for counted in [second, again] {
            admission.leave(counted);
        }
        assert_eq!(admission.addresses(), 2);
        // Clients that are not counted by address may be any number.
        for _ in 0..2 {
            let _ = admission.enter(9, ip("2001:db8::4"), None).unwrap();
        }
        assert_eq!(admission.addresses(), 2);
    }

    #[test]
    fn keys_are_kept_by_slot_only_where_there_are_any() {
        let mut counted = CountedBySlot::default();
        counted.insert(1000, Counted(None));
        assert!(counted.0.is_empty());
        counted.insert(2, Counted(Some(7)));
        assert_eq!((counted.take(2), counted.take(2)), (Counted(Some(7)), Counted(None)));
        assert_eq!(counted.take(5), Counted(None));
    }
}
