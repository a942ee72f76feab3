//! A random backend, by share.

use throng_engine::random::Random;

use crate::backend::Backend;

/// Picks in one pass, without knowing the sum in advance (a reservoir of one): each backend
/// replaces the choice with the probability of its part of the shares seen so far. Summing first
/// would not work, as shares change between the two passes.
pub(super) fn pick<'a>(
    random: &mut Random,
    candidates: impl Iterator<Item = (usize, &'a Backend)>,
) -> Option<(usize, &'a Backend)> {
    let mut seen = 0;
    let mut held = None;
    for candidate in candidates {
        let share = u64::from(candidate.1.share());
        seen += share;
        if random.below(seen) < share {
            held = Some(candidate);
        }
    }
    held
}
