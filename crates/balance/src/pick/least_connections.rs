//! The backend with the least open per share.

use std::cmp::Ordering;

use throng_engine::random::Random;

use super::{Load, compare_load};
use crate::Backend;

/// Ties are broken at random: otherwise all shards would choose the first of the list.
pub(super) fn pick<'a>(
    random: &mut Random,
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
        // The n-th of the tied ones replaces the choice with probability 1/n: in the end each is
        // equally likely.
        if random.below(tied) == 0 {
            least = Some((place, load));
        }
    }
    least.map(|(place, _)| place)
}
