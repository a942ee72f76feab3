//! The order of arrival of connections that may have to make room.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use throng_io::{ConnId, Instant};

use crate::conn::by_address::AddressKey;

/// Connections in order of arrival. The list may still contain connections that can no longer be
/// evicted.
#[derive(Debug, Default)]
pub struct Arrivals(VecDeque<ConnId>);

impl Arrivals {
    /// Adds a connection that has just come.
    pub fn push(&mut self, id: ConnId) {
        self.0.push_back(id);
    }

    /// Removes and returns the oldest that `may_go`.
    pub fn pop_oldest(&mut self, may_go: impl Fn(ConnId) -> bool) -> Option<ConnId> {
        std::iter::from_fn(|| self.0.pop_front()).find(|&id| may_go(id))
    }

    /// Returns the number of listed connections.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "audits compare the number")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes connections that can no longer be evicted. Called once a second.
    pub fn retain(&mut self, may_go: impl Fn(ConnId) -> bool) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain(|&id| may_go(id));
        self.0.shrink_to(2 * self.0.len());
    }
}

/// Age from which a connection may be ended in favour of another from its address. A handshake over
/// a slow network takes less time. Without a minimum, a stranger that shares the address, perhaps
/// behind the same NAT, could end every handshake with one more connection.
const MIN_AGE: Duration = Duration::from_secs(1);

/// Connections of each address that has a cap, in the order in which they came, and when.
#[derive(Debug, Default)]
pub struct ArrivalsByAddress(HashMap<AddressKey, VecDeque<(ConnId, Instant)>>);

impl ArrivalsByAddress {
    /// Adds a connection that has come now, if its address has a cap.
    pub fn push(&mut self, key: Option<AddressKey>, id: ConnId, now: Instant) {
        if let Some(key) = key {
            self.0.entry(key).or_default().push_back((id, now));
        }
    }

    /// Removes and returns the oldest connection of an address that is at least `MIN_AGE` old and
    /// that `may_go` accepts.
    pub fn pop_oldest(
        &mut self,
        key: Option<AddressKey>,
        now: Instant,
        may_go: impl Fn(ConnId) -> bool,
    ) -> Option<ConnId> {
        let arrivals = self.0.get_mut(&key?)?;
        while let Some(&(id, came)) = arrivals.front() {
            let may_go = may_go(id);
            if may_go && now < came.after(MIN_AGE) {
                return None;
            }
            arrivals.pop_front();
            if may_go {
                return Some(id);
            }
        }
        None
    }

    /// Removes connections that can no longer be evicted. Called once a second.
    pub fn retain(&mut self, may_go: impl Fn(ConnId) -> bool) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain(|_, arrivals| {
            arrivals.retain(|&(id, _)| may_go(id));
            arrivals.shrink_to(2 * arrivals.len());
            !arrivals.is_empty()
        });
        self.0.shrink_to(2 * self.0.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_arrival_of_the_same_address_makes_room() {
        let id = |slot| ConnId::new(0, slot, 0);
        let (one, other) = (AddressKey::new(1), AddressKey::new(2));
        let mut arrivals = ArrivalsByAddress::default();
        let now = Instant(5);
        for (slot, key) in [(0, other), (1, one), (2, None), (3, one), (4, one)] {
            arrivals.push(key, id(slot), now);
        }
        let later = now.after(MIN_AGE);
        let may_go = |id: ConnId| id.slot() != 1;
        assert_eq!(arrivals.pop_oldest(one, later, may_go), Some(id(3)));
        assert_eq!(arrivals.pop_oldest(None, later, may_go), None);
        arrivals.retain(|id| id.slot() == 4);
        assert_eq!(arrivals.0.len(), 1);
        assert_eq!(
            [one, one, other].map(|key| arrivals.pop_oldest(key, later, may_go)),
            [Some(id(4)), None, None]
        );
    }

    #[test]
    fn an_arrival_of_the_same_address_makes_room_from_its_minimum_age_on() {
        let id = |slot| ConnId::new(0, slot, 0);
        let key = AddressKey::new(1);
        let mut arrivals = ArrivalsByAddress::default();
        let second = Duration::from_millis(10);
        let starts = [Instant(7), Instant(7).after(second)];
        (0..).zip(starts).for_each(|(slot, at)| arrivals.push(key, id(slot), at));
        let early = Instant(starts[0].after(MIN_AGE).0 - 1);
        assert_eq!(arrivals.pop_oldest(key, early, |_| true), None);
        assert_eq!(arrivals.pop_oldest(key, starts[0].after(MIN_AGE), |_| true), Some(id(0)));
        assert_eq!(arrivals.pop_oldest(key, starts[0].after(MIN_AGE), |_| true), None);
        assert_eq!(arrivals.pop_oldest(key, starts[1].after(MIN_AGE), |_| true), Some(id(1)));
    }

    #[test]
    fn the_oldest_arrival_that_may_go_makes_room() {
        let id = |slot| ConnId::new(0, slot, 0);
        let mut arrivals = Arrivals::default();
        (0..5).for_each(|slot| arrivals.push(id(slot)));
        let odd = |id: ConnId| id.slot() % 2 == 1;
        assert_eq!(arrivals.pop_oldest(odd), Some(id(1)));
        arrivals.retain(|id| id.slot() < 4);
        assert_eq!(arrivals.0, [id(2), id(3)]);
        assert_eq!((arrivals.pop_oldest(odd), arrivals.pop_oldest(odd)), (Some(id(3)), None));
    }
}
