//! The ratio of two sides of paired runs, with its confidence interval.

use serde::Serialize;

/// A ratio of candidate and incumbent: above 1 the candidate is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The geometric mean of the ratios of all pairs.
    pub mean: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// Pairs of runs.
    pub pairs: usize,
}

impl Ratio {
    /// Returns the ratio of pairs of figures (candidate, incumbent), with the interval of Student's
    /// t for the logarithms of their ratios. The interval misses the true ratio with the
    /// probability `error`, half of it on either side. `None` for fewer than two pairs.
    ///
    /// A few pairs may agree by chance: their standard deviation counts as at least `floor`, which
    /// [`noise`] measured.
    pub(super) fn of(pairs: &[(f64, f64)], floor: f64, error: f64) -> Option<Self> {
        let logs: Vec<f64> = pairs.iter().map(|(new, old)| (new / old).ln()).collect();
        let count = logs.len();
        if count < 2 {
            return None;
        }
        let mean = logs.iter().sum::<f64>() / count as f64;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let deviation = (squares / (count - 1) as f64).sqrt().max(floor);
        let half = t_quantile(error, count as u32 - 1) * deviation / (count as f64).sqrt();
        let (low, high) = ((mean - half).exp(), (mean + half).exp());
        Some(Self { mean: mean.exp(), low, high, pairs: count })
    }

    /// Formats the ratio as `1.42x (1.38-1.46)`.
    #[must_use]
    pub fn words(&self) -> String {
        let high = if self.high < 1000.0 { format!("{:.2}", self.high) } else { "...".to_owned() };
        format!("{:.2}x ({:.2}-{high})", self.mean, self.low)
    }
}

/// Returns the standard deviation of the logarithm of the ratio of two runs with equal settings,
/// from runs one after the other. Neighbours are compared, so that a slow drift does not count.
pub(super) fn noise(figures: &[f64]) -> f64 {
    let squares: Vec<f64> =
        figures.windows(2).map(|pair| (pair[1] / pair[0]).ln().powi(2)).collect();
    (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt()
}

/// Returns the `t` that Student's t with so many degrees of freedom exceeds, on either side, with
/// the probability `error`.
pub(super) fn t_quantile(error: f64, degrees: u32) -> f64 {
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..120 {
        let middle = (low + high) / 2.0;
        if within(middle, degrees) < 1.0 - error { low = middle } else { high = middle }
    }
    high
}

/// Returns the probability that Student's t lies between -t and t (Abramowitz and Stegun, 26.7.3
/// and 26.7.4).
fn within(t: f64, degrees: u32) -> f64 {
    let angle = (t / f64::from(degrees).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let is_odd = degrees % 2 == 1;
    let mut term = if is_odd { cos } else { 1.0 };
    let (mut sum, mut power) = (term, if is_odd { 3 } else { 2 });
    while power + 2 <= degrees {
        term *= f64::from(power - 1) / f64::from(power) * cos * cos;
        sum += term;
        power += 2;
    }
    match (is_odd, degrees) {
        (true, 1) => angle / std::f64::consts::FRAC_PI_2,
        (true, _) => (angle + sin * sum) / std::f64::consts::FRAC_PI_2,
        (false, _) => sin * sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Student's t has these quantiles in every table.
    #[test]
    fn quantiles_are_the_ones_of_the_tables() {
        for (error, degrees, t) in [
            (0.05, 1, 12.706),
            (0.05, 2, 4.303),
            (0.05, 3, 3.182),
            (0.05, 7, 2.365),
            (0.05, 30, 2.042),
            (0.01, 4, 4.604),
            (0.01, 9, 3.250),
            (0.001, 5, 6.869),
        ] {
            let found = t_quantile(error, degrees);
            assert!((found - t).abs() < 1e-3, "{error} {degrees}: {found} for {t}");
        }
    }

    /// By hand: logarithms with mean 0.1 and standard deviation 0.02, so half of the interval is
    /// 4.303 * 0.02 / sqrt(3).
    #[test]
    fn an_interval_is_students() {
        let pairs = [0.08_f64, 0.10, 0.12].map(|log| (log.exp() * 7.0, 7.0));
        let ratio = Ratio::of(&pairs, 0.0, 0.05).unwrap();
        let half = 4.303 * 0.02 / 3.0_f64.sqrt();
        assert!((ratio.mean.ln() - 0.1).abs() < 1e-9);
        assert!((ratio.low.ln() - (0.1 - half)).abs() < 1e-4, "{ratio:?}");
        assert!((ratio.high.ln() - (0.1 + half)).abs() < 1e-4, "{ratio:?}");
    }

    #[test]
    fn pairs_that_agree_by_chance_have_the_noise_of_the_machine() {
        let equal = [(1.1, 1.0), (1.1, 1.0), (1.1, 1.0)];
        let without = Ratio::of(&equal, 0.0, 0.05).unwrap();
        let with = Ratio::of(&equal, 0.1, 0.05).unwrap();
        assert!(without.low > 1.09 && with.low < 1.0, "{without:?} {with:?}");
        assert_eq!(Ratio::of(&equal[..1], 0.1, 0.05), None);
    }

    #[test]
    fn a_drift_is_not_noise() {
        let drift: Vec<f64> = (0..10).map(|at| 100.0 * 1.01_f64.powi(at)).collect();
        assert!((noise(&drift) - 1.01_f64.ln()).abs() < 1e-9);
        assert_eq!(noise(&[5.0]), 0.0);
    }
}
