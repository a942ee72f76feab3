//! Round robin by share, interleaved smoothly: 5, 1, 1 is A A B A C A A, not A A A A A B C.

use crate::Backend;
use crate::settings::Target;

/// The credit of each backend (nginx's smooth weighted round robin): at each pick every backend
/// gains its share, and the one with the most credit gives back the sum of all gains.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    turns: Vec<Turn>,
    /// The sum of all shares in the list.
    whole: i64,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    key: u64,
    credit: i64,
}

impl RoundRobin {
    /// Adopts the list of the configuration. Backends that were in the last one keep their credit.
    pub(super) fn follow(&mut self, backends: &[Target]) {
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
    }

    /// Returns the backend whose turn it is; of equals the first. `candidates` are of the list last
    /// adopted.
    pub(super) fn pick<'a>(
        &mut self,
        candidates: impl Iterator<Item = (usize, &'a Backend)>,
    ) -> Option<usize> {
        let mut gained = 0;
        let mut ahead: Option<(usize, i64)> = None;
        for (place, backend) in candidates {
            let share = i64::from(backend.share());
            let turn = &mut self.turns[place];
            // While the shares are constant, no credit exceeds this. Credit left over from larger
            // shares would give one backend hundreds of turns in a row.
            turn.credit = turn.credit.clamp(-self.whole, self.whole) + share;
            gained += share;
            if ahead.is_none_or(|(_, most)| turn.credit > most) {
                ahead = Some((place, turn.credit));
            }
        }
        let (place, _) = ahead?;
        self.turns[place].credit -= gained;
        Some(place)
    }
}
