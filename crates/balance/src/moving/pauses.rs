//! The times for which tunnels rested while they moved.

use std::time::Duration;

/// Pauses of tunnels: from the last byte that was read here until the successor has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses(Vec<u32>);

/// The distribution of pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl Pauses {
    /// Adds a pause.
    pub(crate) fn note(&mut self, pause: Duration) {
        self.0.push(u32::try_from(pause.as_micros()).unwrap_or(u32::MAX));
    }

    /// Adds the pauses of another shard.
    pub(crate) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    /// Returns their distribution: zeros without a pause.
    #[must_use]
    pub(crate) fn distribution(mut self) -> Pause {
        self.0.sort_unstable();
        let at = |hundredths: usize| {
            let rank = (self.0.len() * hundredths).div_ceil(100).saturating_sub(1);
            let micros = self.0.get(rank).copied().unwrap_or_default();
            Duration::from_micros(micros.into())
        };
        Pause { p50: at(50), p99: at(99), max: at(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_pause_that_so_many_do_not_exceed() {
        let micros = Duration::from_micros;
        let mut pauses = Pauses::default();
        assert_eq!(pauses.clone().distribution(), Pause::default());
        (1..=100).rev().for_each(|it| pauses.note(micros(it)));
        let mut others = Pauses::default();
        (101..=200).for_each(|it| others.note(micros(it)));
        pauses.append(others);
        let expected = Pause { p50: micros(100), p99: micros(198), max: micros(200) };
        assert_eq!(pauses.distribution(), expected);
    }
}
