//! Turns by share, interleaved smoothly: 5, 1, 1 is A A B A C A A, not A A A A A B C.

use throng_engine::random::Random;

use crate::backend::Backend;
use crate::settings::Target;

/// Maximum steps that find the beginning in a cycle.
const FIRST_LOOKS: u64 = 1 << 16;

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// The credit of each backend (nginx's smooth weighted round robin): at each pick every backend
/// gains its share, and the one with the most credit pays the sum of all gains.
#[derive(Debug, Default)]
pub(super) struct Turns {
    turns: Vec<Turn>,
    /// The sum of all shares in the list.
    whole: i64,
    /// The cost of the last turn.
    paid: i64,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    key: u64,
    credit: i64,
}

impl Turns {
    /// Adopts the list of the configuration. Backends that were in the last one keep their credit.
    /// The first list begins anywhere in its cycle: if all shards and balancers began with the
    /// largest share, the smallest would get less than its part of few clients.
    pub(super) fn follow(&mut self, backends: &[Target], random: &mut Random) {
        self.whole = backends.iter().map(|target| i64::from(target.backend.share())).sum();
        let keys = || backends.iter().map(|target| target.backend.key());
        if keys().eq(self.turns.iter().map(|turn| turn.key)) {
            return;
        }
        let mut old = std::mem::take(&mut self.turns);
        old.sort_unstable_by_key(|turn| turn.key);
        old.dedup_by_key(|turn| turn.key);
        let credit = |key| {
            let at = old.binary_search_by_key(&key, |turn| turn.key).ok()?;
            Some(old[at].credit)
        };
        let turn = |key| Turn { key, credit: credit(key).unwrap_or(0) };
        self.turns = keys().map(turn).collect();
        if old.is_empty() && self.whole > 0 {
            let shares = || backends.iter().map(|target| u64::from(target.backend.share()));
            let cycle = self.whole as u64 / shares().fold(0, greatest_common_divisor);
            let all = || backends.iter().map(|target| &*target.backend).enumerate();
            for _ in 0..random.below(cycle.min(FIRST_LOOKS / backends.len() as u64).max(1)) {
                self.pick(all(), |_| 0);
            }
        }
    }

    /// Returns the backend whose turn it is among the backends that `rank` highest; of equals the
    /// first. `candidates` come from the list last adopted. Backends of a lower rank also gain
    /// credit, and have their turn later.
    pub(super) fn pick<'a>(
        &mut self,
        candidates: impl Iterator<Item = (usize, &'a Backend)>,
        rank: impl Fn(&Backend) -> i64,
    ) -> Option<usize> {
        let mut gained = 0;
        let mut ahead: Option<(usize, (i64, i64))> = None;
        for (place, backend) in candidates {
            let share = i64::from(backend.share());
            let turn = &mut self.turns[place];
            // While the shares are constant, no credit exceeds this. Credit left over from larger
            // shares would give one backend hundreds of turns in a row.
            turn.credit = turn.credit.clamp(-self.whole, self.whole) + share;
            gained += share;
            let merit = (rank(backend), turn.credit);
            if ahead.is_none_or(|(_, most)| merit > most) {
                ahead = Some((place, merit));
            }
        }
        let (place, _) = ahead?;
        self.turns[place].credit -= gained;
        self.paid = gained;
        Some(place)
    }

    /// Charges the last turn to another backend: the one whose turn it was has it later.
    pub(super) fn pass_on(&mut self, from: usize, to: usize) {
        self.turns[from].credit += self.paid;
        self.turns[to].credit -= self.paid;
    }
}
