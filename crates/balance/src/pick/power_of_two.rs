//! Two at random, and the better of them.

use crate::Backend;

use super::rng::Rng;
use super::{Load, compare_load, random};

/// Both by share, the second never the first again. Who was drawn first wins a tie, so ties go by share, too.
pub(super) fn pick<'a, I: Iterator<Item = (usize, &'a Backend)>>(
    rng: &mut Rng,
    candidates: impl Fn() -> I,
) -> Option<usize> {
    let (first, one) = random::pick(rng, candidates())?;
    let others = candidates().filter(|&(place, _)| place != first);
    let Some((second, other)) = random::pick(rng, others) else { return Some(first) };
    let second_is_better = compare_load(Load::of(other), Load::of(one)).is_lt();
    Some(if second_is_better { second } else { first })
}
