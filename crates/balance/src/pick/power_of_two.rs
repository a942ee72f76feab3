//! One backend in turn and one at random, and the better of them, excluding clearly crowded ones.

use throng_engine::random::Random;

use super::turns::Turns;
use super::{Wanted, Whole, random};
use crate::backend::Backend;

/// The first is the one whose turn it is, the second is drawn by share. The first wins a tie, so
/// under low load everything is by share; two draws would leave a small share without its part,
/// since with one open it loses each comparison. A backend that loses keeps its turn.
///
/// Two alone even out new clients, not existing ones. Of four backends with two new ones, one pair
/// in six is the two old ones, which would get back a sixth of the clients that a rebalance closes.
pub(super) fn pick<'a, I: Iterator<Item = (usize, &'a Backend)>>(
    random: &mut Random,
    turns: &mut Turns,
    wanted: Wanted,
    candidates: impl Fn() -> I,
) -> Option<usize> {
    let whole = Whole::of(wanted, candidates());
    let uncrowded = || candidates().filter(|(_, backend)| !whole.is_crowded(backend));
    let turn = turns.pick(candidates(), |_| 0)?;
    let chosen = better_of_two(random, turn, whole, uncrowded).unwrap_or(turn);
    if chosen != turn {
        turns.pass_on(turn, chosen);
    }
    Some(chosen)
}

fn better_of_two<'a, I: Iterator<Item = (usize, &'a Backend)>>(
    random: &mut Random,
    turn: usize,
    whole: Whole,
    uncrowded: impl Fn() -> I,
) -> Option<usize> {
    // Counts change while they are read: all may seem crowded.
    let (first, one) = match uncrowded().find(|&(place, _)| place == turn) {
        Some(found) => found,
        None => random::pick(random, uncrowded())?,
    };
    let others = uncrowded().filter(|&(place, _)| place != first);
    let Some((second, other)) = random::pick(random, others) else { return Some(first) };
    let second_is_better = whole.short_of_part(other) > whole.short_of_part(one);
    Some(if second_is_better { second } else { first })
}
