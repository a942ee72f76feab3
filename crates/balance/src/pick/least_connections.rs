//! The one with the least open per share.

use std::cmp::Ordering;

use crate::Backend;

use super::rng::Rng;
use super::{Load, compare_load};

/// Ties are broken at random: else all shards would run to the first of the list.
pub(super) fn pick<'a>(
    rng: &mut Rng,
    candidates: impl Iterator<Item = (usize, &'a Backend)>,
) -> Option<usize> {
    let mut least: Option<(usize, Load)> = None;
    let mut tied = 1;
    for (place, backend) in candidates {
        let load = Load::of(backend);
        let order = least.map_or(Ordering::Less, |(_, least)| compare_load(load, least));
        tied = match order {
            Ordering::Less => 1,
            Ordering::Equal => tied + 1,
            Ordering::Greater => continue,
        };
        // The n-th of those that tie takes the place with probability 1/n: each is as likely in the end.
        if rng.below(tied) == 0 {
            least = Some((place, load));
        }
    }
    least.map(|(place, _)| place)
}
