//! Means, and the confidence interval of their difference by Welch's t-test, which does not assume
//! equal variances.

/// A side's mean and its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    /// Mean of the runs.
    pub(super) mean: f64,
    /// Half of the mean's 95 % confidence interval; unknown for a single run.
    pub(super) half_width: Option<f64>,
    /// Variance of the mean.
    variance: f64,
    runs: usize,
}

/// The difference between two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    /// The difference as a share of the first side; unknown if that side is 0.
    pub(super) share: Option<f64>,
    /// Its 95 % confidence interval.
    pub(super) interval: Option<(f64, f64)>,
}

impl Estimate {
    /// Returns the estimate from the values of at least one run.
    pub(super) fn of(values: &[f64]) -> Self {
        let runs = values.len();
        let mean = values.iter().sum::<f64>() / runs as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let degrees = runs.saturating_sub(1);
        let variance = squares / degrees.max(1) as f64 / runs as f64;
        let half_width = (runs > 1).then(|| t_quantile(degrees as f64) * variance.sqrt());
        Self { mean, half_width, variance, runs }
    }
}

/// Returns the difference of `new` from `base`.
pub(super) fn change(base: Estimate, new: Estimate) -> Change {
    let known = (base.mean != 0.0).then_some(base.mean.abs());
    let difference = new.mean - base.mean;
    let interval = known.filter(|_| base.runs > 1 && new.runs > 1).map(|scale| {
        let half = t_quantile(degrees(base, new)) * (base.variance + new.variance).sqrt();
        ((difference - half) / scale, (difference + half) / scale)
    });
    Change { share: known.map(|scale| difference / scale), interval }
}

/// Welch and Satterthwaite's degrees of freedom.
fn degrees(a: Estimate, b: Estimate) -> f64 {
    let part = |side: Estimate| side.variance.powi(2) / (side.runs - 1) as f64;
    let (sum, parts) = (a.variance + b.variance, part(a) + part(b));
    if parts > 0.0 { sum.powi(2) / parts } else { (a.runs + b.runs - 2) as f64 }
}

/// The 97.5th percentile of Student's t, for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Returns the quantile for `degrees` of freedom, rounded down, which gives the wider interval.
fn t_quantile(degrees: f64) -> f64 {
    match degrees.floor() as usize {
        0 => T[0],
        whole @ 1..=30 => T[whole - 1],
        whole => 1.96 + 2.4 / whole as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3
    }

    /// Student's t has these quantiles in every table.
    #[test]
    fn quantiles_fall_towards_that_of_the_normal_distribution() {
        assert!(near(t_quantile(1.0), 12.706) && near(t_quantile(4.9), 2.776));
        assert!(near(t_quantile(60.0), 2.0) && (t_quantile(1e9) - 1.96).abs() < 1e-6);
        assert!((1..200).all(|n| t_quantile(f64::from(n) + 1.0) <= t_quantile(f64::from(n))));
    }

    /// Computed by hand: variances of the means 1/3 and 4/3, so 2.94 degrees of freedom.
    #[test]
    fn an_interval_is_welchs() {
        let (base, new) = (Estimate::of(&[9.0, 10.0, 11.0]), Estimate::of(&[10.0, 12.0, 14.0]));
        assert!(near(degrees(base, new), 2.941), "{}", degrees(base, new));
        let Change { share, interval: Some((low, high)) } = change(base, new) else { panic!() };
        let half = 4.303 * (5.0_f64 / 3.0).sqrt() / 10.0;
        assert!(near(share.unwrap(), 0.2) && near(low, 0.2 - half) && near(high, 0.2 + half));
    }

    #[test]
    fn one_run_has_no_interval_and_growth_from_nothing_no_share() {
        let (one, two) = (Estimate::of(&[5.0]), Estimate::of(&[5.0, 6.0]));
        assert_eq!((one.half_width, change(one, two).interval), (None, None));
        assert_eq!(change(Estimate::of(&[0.0]), one), Change { share: None, interval: None });
        let flat = Estimate::of(&[3.0, 3.0]);
        assert_eq!(change(flat, flat).interval, Some((0.0, 0.0)));
    }
}
