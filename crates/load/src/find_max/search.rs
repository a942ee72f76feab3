//! Chooses the next rate: doubles it until a rate is missed, halves it until a rate is kept, then
//! bisects, and tries the highest kept rate again. Pure.

/// Maximum number of rates to try.
const MAX_STEPS: usize = 40;
/// The lowest rate to try: a server that misses it counts as keeping no rate.
const LEAST: f64 = 0.1;

/// A search for the highest rate that is kept.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// The rates that were kept, in rising order, and the lowest missed rate.
    kept: Vec<f64>,
    missed: Option<f64>,
    /// The rate that was kept twice.
    confirmed: Option<f64>,
    start: f64,
    most: f64,
    precision: f64,
    steps: usize,
}

impl Search {
    /// Creates a search that begins at `start` and never exceeds `most`. It ends when the highest
    /// kept and the lowest missed rate differ by at most the share `precision`, and the kept rate
    /// was kept twice: by luck, a single run may keep a rate that others miss.
    pub(super) fn new(start: f64, most: f64, precision: f64) -> Self {
        let (kept, missed, confirmed) = (Vec::new(), None, None);
        Self { kept, missed, confirmed, start: start.min(most), most, precision, steps: 0 }
    }

    /// The rate to try; `None` when the search is over.
    pub(super) fn next(&self) -> Option<f64> {
        if self.steps >= MAX_STEPS {
            return None;
        }
        let next = match (self.kept(), self.missed) {
            (None, None) => Some(self.start),
            (Some(kept), None) => (kept < self.most).then_some((kept * 2.0).min(self.most)),
            (None, Some(missed)) => (missed > LEAST).then_some((missed / 2.0).max(LEAST)),
            // The geometric mean, because rates are compared by their ratio.
            (Some(kept), Some(missed)) => {
                (missed / kept > 1.0 + self.precision).then_some((kept * missed).sqrt())
            }
        };
        next.or_else(|| self.kept().filter(|kept| self.confirmed != Some(*kept)))
    }

    /// Records the result of a rate.
    pub(super) fn tell(&mut self, rate: f64, is_kept: bool) {
        self.steps += 1;
        match (is_kept, self.kept() == Some(rate)) {
            (true, true) => self.confirmed = Some(rate),
            (true, false) => self.kept.push(rate),
            (false, was_kept) => {
                if was_kept {
                    self.kept.pop();
                }
                self.missed = Some(rate);
            }
        }
    }

    pub(super) fn kept(&self) -> Option<f64> {
        self.kept.last().copied()
    }

    pub(super) fn missed(&self) -> Option<f64> {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(start: f64, limit: f64) -> (Search, usize) {
        let mut search = Search::new(start, 1e6, 0.05);
        while let Some(rate) = search.next() {
            search.tell(rate, rate <= limit);
        }
        let steps = search.steps;
        (search, steps)
    }

    #[test]
    fn the_limit_is_found_from_below_and_from_above() {
        for start in [0.5, 100.0, 7_777.0, 500_000.0] {
            for limit in [3.0, 99.9, 12_345.0] {
                let (search, steps) = search(start, limit);
                let (kept, missed) = (search.kept().unwrap(), search.missed().unwrap());
                assert!(kept <= limit && limit < missed && missed / kept <= 1.05, "{search:?}");
                assert!(steps <= 27, "{steps} steps from {start} to {limit}");
            }
        }
    }

    #[test]
    fn a_rate_that_is_kept_by_luck_is_not_the_highest() {
        let mut search = Search::new(100.0, 1e6, 0.05);
        let mut lucky = Some(1500.0);
        let mut tried = Vec::new();
        while let Some(rate) = search.next() {
            let is_kept =
                rate <= 1000.0 || lucky.take_if(|most| rate > 1000.0 && rate <= *most).is_some();
            search.tell(rate, is_kept);
            tried.push(rate);
        }
        let (kept, missed) = (search.kept().unwrap(), search.missed().unwrap());
        assert!(kept <= 1000.0 && 1000.0 < missed && missed / kept <= 1.05, "{search:?}");
        assert_eq!(tried.last(), Some(&kept), "it is tried once more");
        assert!(tried.len() < MAX_STEPS);
    }

    #[test]
    fn a_server_that_keeps_all_or_none_ends_the_search() {
        let (all, _) = search(1000.0, f64::INFINITY);
        assert_eq!((all.kept(), all.missed()), (Some(1e6), None));
        let (none, _) = search(1000.0, 0.0);
        assert_eq!((none.kept(), none.missed()), (None, Some(LEAST)));
    }
}
