//! Adds up the measurements of a run's threads field by field.

use std::collections::BTreeMap;

use throng_io::Instant;

use crate::record::Record;

/// Measurements that threads make separately and that are then added up.
pub(crate) trait Merge {
    /// Adds the measurements of another thread.
    fn merge(&mut self, other: Self);
}

impl Merge for u64 {
    fn merge(&mut self, other: Self) {
        *self += other;
    }
}

impl Merge for Record {
    fn merge(&mut self, other: Self) {
        Self::merge(self, &other);
    }
}

/// Keeps the later of the two times.
impl Merge for Option<Instant> {
    fn merge(&mut self, other: Self) {
        *self = (*self).max(other);
    }
}

/// Adds up counts by index.
impl Merge for Vec<u64> {
    fn merge(&mut self, other: Self) {
        self.resize(self.len().max(other.len()), 0);
        self.iter_mut().zip(other).for_each(|(sum, more)| *sum += more);
    }
}

impl<K: Ord> Merge for BTreeMap<K, u64> {
    fn merge(&mut self, other: Self) {
        other.into_iter().for_each(|(key, count)| *self.entry(key).or_default() += count);
    }
}

impl<A: Merge, B: Merge> Merge for (A, B) {
    fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
        self.1.merge(other.1);
    }
}

/// The highest of the threads' values, instead of their sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Highest(pub(crate) u64);

impl Merge for Highest {
    fn merge(&mut self, other: Self) {
        self.0 = self.0.max(other.0);
    }
}

/// The first and the last time of a series, if it has any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span(Option<(Instant, Instant)>);

impl Span {
    pub(crate) fn extend(&mut self, from: Instant, to: Instant) {
        let (first, last) = self.0.unwrap_or((from, to));
        self.0 = Some((first.min(from), last.max(to)));
    }

    /// Returns the seconds from the first time to the last; 0 for an empty series.
    pub(crate) fn seconds(self) -> f64 {
        self.0.map_or(0.0, |(first, last)| last.since(first).as_secs_f64())
    }
}

impl Merge for Span {
    fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|(from, to)| self.extend(from, to));
    }
}

/// Declares the measurements of one thread, whose fields are added up one by one.
macro_rules! tally {
    (
        $(#[$attr:meta])*
        $vis:vis struct $Tally:ident {
            $($(#[$doc:meta])* $field_vis:vis $field:ident: $Type:ty,)*
        }
    ) => {
        $(#[$attr])*
        #[derive(Debug, Default)]
        $vis struct $Tally {
            $($(#[$doc])* $field_vis $field: $Type,)*
        }

        impl $crate::merge::Merge for $Tally {
            fn merge(&mut self, other: Self) {
                $($crate::merge::Merge::merge(&mut self.$field, other.$field);)*
            }
        }
    };
}
pub(crate) use tally;
