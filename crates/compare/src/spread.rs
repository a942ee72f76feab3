//! The middle of a few repetitions, and how far they lie apart. Pure.

use serde::Serialize;

/// Median, quartiles and extremes of some values, in their unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Values.
    pub count: usize,
    /// Smallest.
    pub min: f64,
    /// A quarter were at most this.
    pub q1: f64,
    /// Half were at most this.
    pub median: f64,
    /// Three quarters were at most this.
    pub q3: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of `values`, in any order; `None` without any. Between two values it
    /// interpolates, as spreadsheets do.
    #[must_use]
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Self { count: sorted.len(), min, q1: at(0.25), median: at(0.5), q3: at(0.75), max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0, 100.0]).unwrap();
        assert_eq!(
            (spread.min, spread.q1, spread.median, spread.q3, spread.max),
            (1.0, 2.0, 3.0, 4.0, 100.0)
        );
        assert_eq!(Spread::of([1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of([7.0]).unwrap().q3, 7.0);
    }

    #[test]
    fn nothing_has_no_middle() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
    }
}
