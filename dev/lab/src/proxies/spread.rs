//! Several rounds as one figure.

use serde::Serialize;

/// The median of some rounds, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// The middle one; the mean of the two in the middle of an even number.
    pub median: f64,
    /// Least.
    pub least: f64,
    /// Greatest.
    pub greatest: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Spread {
    /// `None` of nothing.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (&least, &greatest) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Some(Self { median, least, greatest, rounds: values.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_ends() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        let three = of(&[5.0, 1.0, 2.0]);
        assert_eq!((three.median, three.least, three.greatest, three.rounds), (2.0, 1.0, 5.0, 3));
        assert_eq!(of(&[4.0, 1.0]).median, 2.5);
        assert_eq!(of(&[f64::NAN, 7.0]).rounds, 1);
        assert_eq!(Spread::of([]), None);
    }
}
