//! The order of arrival of connections that may have to make room.

use std::collections::VecDeque;

use throng_io::ConnId;

/// Connections in the order in which they came: those that may have to make room, and some that no
/// longer have to.
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

    /// Returns the number of those listed.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "audits compare the number")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes those that no longer have to make room. Called once a second.
    pub fn retain(&mut self, may_go: impl Fn(ConnId) -> bool) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain(|&id| may_go(id));
        self.0.shrink_to(2 * self.0.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
