//! The number of clients of all shards, in total and by address.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use throng_engine::{AddressCounts, AddressKey};

use super::hellos::RecentHellos;
use crate::access::EndReason;
use crate::shard::records::EighthTick;

/// Client connections of all shards: the kernel does not distribute them evenly, so a limit for
/// each shard would refuse clients below the total.
#[derive(Debug, Default)]
pub struct Admission {
    all: AtomicUsize,
    /// Counts by IPv4 address or IPv6 /64 network, if they are counted. Used once per connection.
    by_address: AddressCounts,
    /// The connections that were passed through last.
    hellos: RecentHellos,
}

/// The reason why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Full {
    /// The limit of all clients.
    All,
    /// The limit of clients of its address.
    Address,
    /// The limit of clients of its listener, at which no other client makes room.
    Listener,
}

impl Full {
    /// Returns why a client ends whose place another one needs.
    pub(in crate::shard) fn end_reason(self) -> EndReason {
        match self {
            Self::All | Self::Listener => EndReason::Place,
            Self::Address => EndReason::PlaceOfAddress,
        }
    }
}

impl Admission {
    /// Counts one more client, unless there are `most`, or `most_of_address` from `address`, which
    /// is counted only if that is given.
    pub(super) fn enter(
        &self,
        most: usize,
        address: IpAddr,
        most_of_address: Option<usize>,
    ) -> Result<Option<AddressKey>, Full> {
        let room = |now: usize| (now < most).then_some(now + 1);
        self.all.fetch_update(Relaxed, Relaxed, room).map_err(|_| Full::All)?;
        let Some(most_of_address) = most_of_address else { return Ok(None) };
        self.enter_address(address, most_of_address).inspect_err(|_| {
            self.all.fetch_sub(1, Relaxed);
        })
    }

    /// Counts a client for its address as well, unless there are `most`.
    pub(super) fn enter_address(
        &self,
        address: IpAddr,
        most: usize,
    ) -> Result<Option<AddressKey>, Full> {
        let key = self.by_address.key(address);
        match self.by_address.enter(key, most) {
            true => Ok(key),
            false => Err(Full::Address),
        }
    }

    /// Counts a client that comes from the predecessor, which has admitted it: no limit applies.
    pub(super) fn adopt(&self, key: Option<AddressKey>) {
        self.all.fetch_add(1, Relaxed);
        let _ = self.by_address.enter(key, usize::MAX);
    }

    /// Returns the key under which clients of an address are counted.
    pub(super) fn key(&self, address: IpAddr) -> Option<AddressKey> {
        self.by_address.key(address)
    }

    /// Uncounts a client with the key that [`enter`](Self::enter) returned.
    pub(super) fn leave(&self, key: Option<AddressKey>) {
        self.all.fetch_sub(1, Relaxed);
        self.by_address.leave(key);
    }

    /// Counts a connection to be passed through, by the random bytes of its ClientHello. Returns
    /// false if it comes in a circle.
    pub(super) fn may_pass(&self, random: &[u8; 32], now: EighthTick) -> bool {
        self.hellos.enter(random, now)
    }

    /// Returns the number of counted addresses.
    pub(super) fn addresses(&self) -> usize {
        self.by_address.len()
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
        // A /64 network belongs to one customer, who has 2^64 addresses in it.
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
        // The number of clients that are not counted by address is unlimited.
        for _ in 0..2 {
            let _ = admission.enter(9, ip("2001:db8::4"), None).unwrap();
        }
        assert_eq!(admission.addresses(), 2);
    }
}
