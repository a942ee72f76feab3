//! The backend with the lowest load for its share.

use super::turns::Turns;
use super::{Wanted, Whole};
use crate::backend::Backend;

/// Picks the backend that is furthest below its part of the load, in whole units; of equals the one
/// whose turn it is.
pub(super) fn pick<'a, I: Iterator<Item = (usize, &'a Backend)>>(
    turns: &mut Turns,
    wanted: Wanted,
    candidates: impl Fn() -> I,
) -> Option<usize> {
    let whole = Whole::of(wanted, candidates());
    turns.pick(candidates(), |backend| whole.short_of_part(backend))
}
