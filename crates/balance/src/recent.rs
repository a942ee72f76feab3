//! Durations of the last minute.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Half of the remembered time.
const HALF: Duration = Duration::from_secs(30);

/// Durations of the last 30 to 60 seconds. Two histograms take turns: one records for half a
/// minute, the other has the half minute before that. Neither recording nor a turn allocates.
#[derive(Debug)]
pub(crate) struct Recent {
    current: Histogram<u32>,
    before: Histogram<u32>,
    /// The number of the half minute of `current`.
    number: u64,
}

impl Recent {
    /// Creates an empty record. It takes 20 KiB: 1 us to 1 minute in two digits, twice.
    pub(crate) fn new() -> Self {
        let empty = Histogram::new_with_bounds(1, 60_000_000, 2).expect("the bounds are in order");
        Self { current: empty.clone(), before: empty, number: 0 }
    }

    /// Records a duration of `micros`. `at`: the time since any origin that is common to all calls;
    /// a time that another thread read a little earlier does no harm.
    pub(crate) fn note(&mut self, at: Duration, micros: u64) {
        self.advance(at);
        self.current.saturating_record(micros.max(1));
    }

    /// Returns the 99th percentile, in microseconds; 0 if there was none.
    pub(crate) fn p99_micros(&mut self, at: Duration) -> u64 {
        self.advance(at);
        let mut both = self.current.clone();
        both.add(&self.before).map_or(0, |()| both.value_at_quantile(0.99))
    }

    fn advance(&mut self, at: Duration) {
        let number = at.as_secs() / HALF.as_secs();
        if number <= self.number {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.before);
        self.current.reset();
        if number > self.number + 1 {
            self.before.reset();
        }
        self.number = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_older_than_a_minute_are_forgotten() {
        let at = Duration::from_secs;
        let mut recent = Recent::new();
        assert_eq!(recent.p99_micros(at(1)), 0);
        for _ in 0..1000 {
            recent.note(at(1), 50_000);
        }
        let is_near = |value: u64, to: u64| value.abs_diff(to) <= to / 50;
        assert!(is_near(recent.p99_micros(at(1)), 50_000));
        // It counts for at least half a minute, together with later ones.
        recent.note(at(31), 1000);
        assert!(is_near(recent.p99_micros(at(59)), 50_000));
        // A minute later it does not, and later ones do.
        assert!(is_near(recent.p99_micros(at(61)), 1000));
        recent.note(at(60), 3000);
        assert!(is_near(recent.p99_micros(at(61)), 3000));
        // After a silence there is no value.
        assert_eq!(recent.p99_micros(at(1000)), 0);
    }
}
