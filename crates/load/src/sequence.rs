//! Numbers that should arrive once, in order and without gaps: finds lost, duplicate and late
//! numbers. Pure.

use std::ops::Range;

/// Classification of a received number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A number higher than all earlier ones. Skipped numbers count as lost until they arrive.
    Fresh,
    /// A number that was skipped before, so it is out of order.
    Late,
    /// A number that had already arrived.
    Duplicate,
}

/// One receiver's view of one sender's numbers, from 0. Allocates only while numbers are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// All lower numbers have arrived or are in `missing`.
    next: u64,
    /// Ranges that were skipped and have not arrived since, in ascending order and disjoint.
    missing: Vec<Range<u64>>,
}

impl Sequence {
    /// Takes the next number that came.
    pub fn take(&mut self, number: u64) -> Arrival {
        if number >= self.next {
            if number > self.next {
                self.missing.push(self.next..number);
            }
            self.next = number + 1;
            return Arrival::Fresh;
        }
        let at = self.missing.partition_point(|gap| gap.end <= number);
        let Some(gap) = self.missing.get(at).filter(|gap| gap.contains(&number)).cloned() else {
            return Arrival::Duplicate;
        };
        let rest = [gap.start..number, number + 1..gap.end];
        self.missing.splice(at..=at, rest.into_iter().filter(|part| !part.is_empty()));
        Arrival::Late
    }

    /// Returns how many of the numbers in `expected` have not come.
    #[must_use]
    pub fn lost(&self, expected: Range<u64>) -> u64 {
        let overlap = |gap: &Range<u64>| {
            gap.end.min(expected.end).saturating_sub(gap.start.max(expected.start))
        };
        let never_reached = self.next..u64::MAX;
        self.missing.iter().map(overlap).sum::<u64>() + overlap(&never_reached)
    }
}

#[cfg(test)]
mod tests {
    use super::Arrival::{Duplicate, Fresh, Late};
    use super::*;

    fn after(numbers: &[u64]) -> (Sequence, Vec<Arrival>) {
        let mut sequence = Sequence::default();
        let arrivals = numbers.iter().map(|&number| sequence.take(number)).collect();
        (sequence, arrivals)
    }

    #[test]
    fn in_order_nothing_is_missing() {
        let (sequence, arrivals) = after(&[0, 1, 2, 3]);
        assert_eq!(arrivals, [Fresh; 4]);
        assert_eq!((sequence.lost(0..4), sequence.lost(0..6), sequence.lost(2..5)), (0, 2, 1));
        assert!(sequence.missing.is_empty() && sequence.missing.capacity() == 0);
    }

    #[test]
    fn loss_is_counted_within_what_was_expected() {
        let (sequence, _) = after(&[2, 3, 7]);
        assert_eq!(sequence.lost(0..8), 5, "0, 1, 4, 5, 6");
        assert_eq!(sequence.lost(1..5), 2, "1, 4");
        assert_eq!(sequence.lost(7..10), 2, "8, 9");
        assert_eq!(sequence.lost(3..3), 0);
    }

    #[test]
    fn a_late_number_is_reordered_and_no_longer_lost() {
        let (sequence, arrivals) = after(&[0, 5, 3, 1, 4, 2]);
        assert_eq!(arrivals, [Fresh, Fresh, Late, Late, Late, Late]);
        assert_eq!((sequence.lost(0..6), sequence.missing.len()), (0, 0));
    }

    #[test]
    fn a_number_that_came_before_is_a_duplicate_wherever_it_lies() {
        let (sequence, arrivals) = after(&[0, 0, 4, 4, 2, 2, 0]);
        assert_eq!(arrivals, [Fresh, Duplicate, Fresh, Duplicate, Late, Duplicate, Duplicate]);
        assert_eq!(sequence.lost(0..5), 2, "1 and 3");
    }

    /// Compares all orders, with loss and repetition, with a set.
    #[test]
    fn agrees_with_a_set_of_numbers() {
        let mut random = throng_engine::random::Random::new(1);
        for _ in 0..500 {
            let (mut sequence, mut seen) = (Sequence::default(), std::collections::BTreeSet::new());
            for _ in 0..40 {
                let number = random.below(32);
                let highest = seen.last().copied();
                let expected =
                    match (seen.contains(&number), highest.is_none_or(|high| number > high)) {
                        (true, _) => Duplicate,
                        (false, true) => Fresh,
                        (false, false) => Late,
                    };
                assert_eq!(sequence.take(number), expected);
                seen.insert(number);
            }
            for window in [0..32, 5..20, 30..40] {
                let lost = window.clone().filter(|number| !seen.contains(number)).count();
                assert_eq!(sequence.lost(window), lost as u64);
            }
        }
    }
}
