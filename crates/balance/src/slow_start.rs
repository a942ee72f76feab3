//! Slow start: a backend that came up gets a growing share of clients, so that its caches are warm
//! before it gets its full share.

use std::time::Duration;

use crate::backend::{MAX_WEIGHT, SHARES_PER_WEIGHT};

/// Returns the share of a backend of `weight` that has been up for `up_for`, in the unit of
/// [`Backend::share`](crate::Backend::share). The share begins at a tenth of the weight and grows
/// evenly to all of it after `slow_start`. With a `slow_start` of 0 it is all of it at once.
///
/// The share begins at a tenth rather than 0, since a backend without clients warms no caches.
#[must_use]
pub fn share_at(weight: u32, up_for: Duration, slow_start: Duration) -> u32 {
    let whole = weight.clamp(1, MAX_WEIGHT) * SHARES_PER_WEIGHT;
    if up_for >= slow_start {
        return whole;
    }
    let first = whole / 10;
    let more = u128::from(whole - first) * up_for.as_nanos() / slow_start.as_nanos();
    first + more as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_grows_evenly_from_a_tenth() {
        let seconds = Duration::from_secs;
        let table = [
            (1, 0, 10, 10),
            (1, 1, 10, 19),
            (1, 5, 10, 55),
            (1, 9, 10, 91),
            (1, 10, 10, 100),
            (1, 11, 10, 100),
            (3, 5, 10, 165),
            (1, 0, 0, 100),
            (0, 0, 0, 100),
            (MAX_WEIGHT + 1, 0, 60, 10_000),
            (MAX_WEIGHT, u64::MAX - 1, u64::MAX, 99_999),
        ];
        for (weight, up_for, slow_start, share) in table {
            assert_eq!(
                share_at(weight, seconds(up_for), seconds(slow_start)),
                share,
                "{weight} {up_for}"
            );
        }
    }

    proptest! {
        #[test]
        fn it_never_shrinks(weight in 1..=MAX_WEIGHT, up_for: u32, more: u32, slow_start: u32) {
            let nanos = |nanos: u64| Duration::from_nanos(nanos);
            let share = |up_for| share_at(weight, nanos(up_for), nanos(slow_start.into()));
            let (early, late) = (share(up_for.into()), share(u64::from(up_for) + u64::from(more)));
            prop_assert!(weight * SHARES_PER_WEIGHT / 10 <= early && early <= late);
            prop_assert!(late <= weight * SHARES_PER_WEIGHT);
        }
    }
}
