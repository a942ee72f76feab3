//! The choice of tunnels to close after a scale-out: their clients reconnect, and the pick gives
//! them to backends with too few.

use serde::Serialize;

/// A plan's input for one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Live tunnels.
    pub tunnels: u32,
    /// Its weight in the distribution; 0 is taken as 1.
    pub weight: u32,
    /// Whether it is picked. Tunnels of a backend that is not picked are closed for that reason and
    /// are ignored here.
    pub is_up: bool,
}

/// A plan and its effect. It is for the counts at its creation: they change while it is executed,
/// so make a new plan rather than execute one twice.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RebalancePlan {
    /// Tunnels to close of each backend, in the order of the input.
    pub close: Vec<u32>,
    /// Their sum.
    pub total: u64,
    /// The largest distance of a backend from its part now, as a fraction of that part: 1 for an
    /// empty backend.
    pub spread_before: f64,
    /// The largest distance once all closed tunnels have reconnected to backends with too few.
    pub spread_after: f64,
}

impl RebalancePlan {
    /// Returns the plan that evens out `backends` by weight. It is empty if all are within 10 % of
    /// their part, or within less than a tunnel; otherwise the surplus of each over its part is
    /// closed.
    #[must_use]
    pub fn new(backends: &[Occupancy]) -> Self {
        let even = Even::of(backends);
        let now: Vec<u64> = backends.iter().map(|backend| backend.tunnels.into()).collect();
        let after = if even.is_met(&now) { now.clone() } else { even.parts() };
        // A surplus is at most the number of tunnels, which is 32 bits.
        let surplus = |(now, after): (&u64, &u64)| now.saturating_sub(*after) as u32;
        let close: Vec<u32> = now.iter().zip(&after).map(surplus).collect();
        Self {
            total: close.iter().copied().map(u64::from).sum(),
            close,
            spread_before: even.spread(&now),
            spread_after: even.spread(&after),
        }
    }

    /// Returns how long it takes at `rate` closings a second (0 taken as 1), rounded up to whole
    /// seconds.
    #[must_use]
    pub fn seconds(&self, rate: u32) -> u64 {
        self.total.div_ceil(rate.max(1).into())
    }
}

/// The even distribution of the tunnels of all backends that are up. Its sums of products are
/// exact, in 128 bits.
struct Even<'a> {
    backends: &'a [Occupancy],
    tunnels: u128,
    weights: u128,
}

impl<'a> Even<'a> {
    fn of(backends: &'a [Occupancy]) -> Self {
        let up = || backends.iter().filter(|backend| backend.is_up);
        let tunnels = up().map(|backend| u128::from(backend.tunnels)).sum();
        Self { backends, tunnels, weights: up().map(weight_of).sum() }
    }

    /// Returns a backend's part, times all weights.
    fn scaled_part(&self, backend: &Occupancy) -> u128 {
        self.tunnels * weight_of(backend)
    }

    /// Returns the backends that are up with their count in `counts`.
    fn up<'c>(&'c self, counts: &'c [u64]) -> impl Iterator<Item = (&'c Occupancy, u128)> {
        let pairs = self.backends.iter().zip(counts.iter().copied().map(u128::from));
        pairs.filter(|(backend, _)| backend.is_up)
    }

    /// Returns the distance of `count` from the backend's part, times all weights.
    fn scaled_distance(&self, backend: &Occupancy, count: u128) -> u128 {
        (count * self.weights).abs_diff(self.scaled_part(backend))
    }

    /// Returns whether all are within 10 %. (A backend that is off by more, but by less than a
    /// tunnel, has its part already.)
    fn is_met(&self, counts: &[u64]) -> bool {
        self.up(counts).all(|(backend, count)| {
            self.scaled_distance(backend, count) * 10 <= self.scaled_part(backend)
        })
    }

    fn spread(&self, counts: &[u64]) -> f64 {
        let spread = |(backend, count)| {
            // Without tunnels each backend has its part.
            let part = self.scaled_part(backend).max(1);
            self.scaled_distance(backend, count) as f64 / part as f64
        };
        self.up(counts).map(spread).fold(0.0, f64::max)
    }

    /// Returns the target of each, in whole tunnels that add up to the total. Rounding all of them
    /// up would exceed it: an empty backend beside a hundred with ten or eleven would stay empty.
    /// The tunnels left over by rounding down stay where the surplus is largest anyway, which
    /// closes the fewest.
    fn parts(&self) -> Vec<u64> {
        let floor = |backend: &Occupancy| self.scaled_part(backend) / self.weights;
        let part = |backend: &Occupancy| match backend.is_up {
            true => floor(backend) as u64,
            false => backend.tunnels.into(),
        };
        let mut parts: Vec<u64> = self.backends.iter().map(part).collect();
        let rounded = |place: &usize| {
            let backend = &self.backends[*place];
            backend.is_up && !self.scaled_part(backend).is_multiple_of(self.weights)
        };
        let mut rounded: Vec<usize> = (0..parts.len()).filter(rounded).collect();
        let surplus =
            |place: &usize| i64::from(self.backends[*place].tunnels) - parts[*place] as i64;
        rounded.sort_by_key(|place| std::cmp::Reverse(surplus(place)));
        let given: u128 = self.up(&parts).map(|(_, part)| part).sum();
        let left = (self.tunnels - given) as usize;
        for &place in &rounded[..left] {
            parts[place] += 1;
        }
        parts
    }
}

fn weight_of(backend: &Occupancy) -> u128 {
    backend.weight.max(1).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn up(tunnels: u32, weight: u32) -> Occupancy {
        Occupancy { tunnels, weight, is_up: true }
    }

    fn down(tunnels: u32) -> Occupancy {
        Occupancy { tunnels, weight: 1, is_up: false }
    }

    #[test]
    fn the_surplus_is_closed_and_nothing_else() {
        let table: &[(&[Occupancy], &[u32])] = &[
            // Two scaled out to four.
            (&[up(2500, 1), up(2500, 1), up(0, 1), up(0, 1)], &[1250, 1250, 0, 0]),
            (&[up(2500, 1), up(2500, 1), up(0, 2)], &[1250, 1250, 0]),
            (&[up(4000, 3), up(0, 1)], &[1000, 0]),
            // Even enough: 10 %, and not a tunnel more.
            (&[up(110, 1), up(90, 1)], &[0, 0]),
            (&[up(111, 1), up(89, 1)], &[11, 0]),
            // No gain: no other backend, none up, no tunnels, not divisible.
            (&[up(5000, 1)], &[0]),
            (&[up(5000, 1), down(0)], &[0, 0]),
            (&[down(10), down(0)], &[0, 0]),
            (&[], &[]),
            (&[up(0, 1), up(0, 1)], &[0, 0]),
            (&[up(1, 1), up(0, 1), up(0, 1)], &[0, 0, 0]),
            (&[up(2, 1), up(0, 1), up(0, 1)], &[1, 0, 0]),
            // Tunnels of a backend that is down are not counted.
            (&[up(100, 1), down(500), up(0, 1)], &[50, 0, 0]),
            // The odd tunnel stays with a backend that has too many: 7 are 3, 2, 2.
            (&[up(0, 1), up(1, 1), up(6, 1)], &[0, 0, 3]),
            (&[up(u32::MAX, 1000), up(0, 1000)], &[u32::MAX / 2, 0]),
        ];
        for (backends, close) in table {
            assert_eq!(&RebalancePlan::new(backends).close, close, "{backends:?}");
        }
    }

    #[test]
    fn an_empty_backend_gets_its_part_even_if_the_others_have_few() {
        let mut backends = vec![up(11, 1); 91];
        backends.extend([up(0, 1); 9]);
        let plan = RebalancePlan::new(&backends);
        // 1001 tunnels: ten each, and one left over.
        assert_eq!(plan.total, 90);
        assert!(plan.spread_before == 1.0 && plan.spread_after < 0.1, "{plan:?}");
    }

    #[test]
    fn a_plan_reports_what_it_will_do() {
        let plan = RebalancePlan::new(&[up(3000, 1), up(2000, 1), up(1000, 1)]);
        assert_eq!((plan.total, plan.spread_before, plan.spread_after), (1000, 0.5, 0.0));
        assert_eq!([300, 1000, 0].map(|rate| plan.seconds(rate)), [4, 1, 1000]);
        let none = RebalancePlan::new(&[up(100, 1), up(101, 1)]);
        assert!(none.spread_before > 0.004 && none.spread_before == none.spread_after);
        assert_eq!(none.seconds(1), 0);
    }

    fn occupancy() -> impl Strategy<Value = Occupancy> {
        let tunnels = prop_oneof![0u32..20, 0u32..5000, any::<u32>()];
        (tunnels, 0u32..20, prop::bool::weighted(0.8))
            .prop_map(|(tunnels, weight, is_up)| Occupancy { tunnels, weight, is_up })
    }

    proptest! {
        #[test]
        fn a_plan_is_safe_and_enough(mut backends in prop::collection::vec(occupancy(), 0..20)) {
            let plan = RebalancePlan::new(&backends);
            prop_assert_eq!(plan.close.len(), backends.len());
            let sum: u64 = plan.close.iter().map(|&close| u64::from(close)).sum();
            prop_assert_eq!(plan.total, sum);
            prop_assert!(plan.spread_after <= plan.spread_before);
            let of_up = |of: fn(&Occupancy) -> u32| {
                let up = backends.iter().filter(|backend| backend.is_up);
                up.map(|backend| f64::from(of(backend))).sum::<f64>()
            };
            let (tunnels, weights) = (of_up(|b| b.tunnels), of_up(|b| b.weight.max(1)));
            let part = |backend: &Occupancy| tunnels * f64::from(backend.weight.max(1)) / weights;
            for (backend, &close) in backends.iter_mut().zip(&plan.close) {
                prop_assert!(close <= backend.tunnels && (close == 0 || backend.is_up));
                backend.tunnels -= close;
                prop_assert!(close == 0 || f64::from(backend.tunnels) > part(backend) - 1.0);
            }
            // All closed tunnels come back, each to the backend furthest below its part.
            for _ in 0..plan.total.min(50_000) {
                let up = backends.iter_mut().filter(|backend| backend.is_up);
                let lowest = up.max_by(|one, other| {
                    let lack = |b: &Occupancy| part(b) - f64::from(b.tunnels);
                    lack(one).total_cmp(&lack(other))
                });
                lowest.unwrap().tunnels += 1;
            }
            if plan.total <= 50_000 {
                let tolerated = if plan.total == 0 { 0.1 } else { 0.0 };
                for backend in backends.iter().filter(|backend| backend.is_up) {
                    let distance = (f64::from(backend.tunnels) - part(backend)).abs();
                    prop_assert!(distance < 1.0 || distance <= part(backend) * (tolerated + 1e-9));
                }
                let again = RebalancePlan::new(&backends);
                prop_assert_eq!(again.total, 0, "{:?}", again);
            }
        }
    }
}
