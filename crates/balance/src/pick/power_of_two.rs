//! Two backends at random, and the better of them, without those that are clearly crowded.

use throng_engine::random::Random;

use super::{Load, compare_load, random};
use crate::Backend;

/// Draws both by share, the second different from the first. The first wins a tie, so ties go by
/// share, too.
///
/// Two draws alone even out new clients, not existing ones: of four backends of which two are new,
/// one draw in six has the two old ones, which would get back a sixth of the clients that a
/// rebalance sends away.
pub(super) fn pick<'a, I: Iterator<Item = (usize, &'a Backend)>>(
    random: &mut Random,
    candidates: impl Fn() -> I,
) -> Option<usize> {
    let average = Average::of(candidates());
    let uncrowded = || candidates().filter(|(_, backend)| !average.is_crowded(backend));
    // Counts change while they are read: all may seem crowded.
    of_two(random, uncrowded).or_else(|| of_two(random, candidates))
}

fn of_two<'a, I: Iterator<Item = (usize, &'a Backend)>>(
    random: &mut Random,
    candidates: impl Fn() -> I,
) -> Option<usize> {
    let (first, one) = random::pick(random, candidates())?;
    let others = candidates().filter(|&(place, _)| place != first);
    let Some((second, other)) = random::pick(random, others) else { return Some(first) };
    let second_is_better = compare_load(Load::of(other), Load::of(one)).is_lt();
    Some(if second_is_better { second } else { first })
}

/// The load and the shares of all backends.
struct Average {
    load: u128,
    share: u128,
}

impl Average {
    fn of<'a>(candidates: impl Iterator<Item = (usize, &'a Backend)>) -> Self {
        candidates.fold(Self { load: 0, share: 0 }, |sum, (_, backend)| Self {
            load: sum.load + u128::from(backend.load()),
            share: sum.share + u128::from(backend.share()),
        })
    }

    /// Returns whether a backend is more than a sixteenth, and more than one, above its part.
    fn is_crowded(&self, backend: &Backend) -> bool {
        let (load, share) = (u128::from(backend.load()), u128::from(backend.share()));
        16 * load * self.share > 17 * self.load * share + 16 * self.share
    }
}
