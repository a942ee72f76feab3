//! Runs many seeds, including those given in the environment.
//!
//! `THRONG_SIM_SEED=7` runs only that seed, `THRONG_SIM_SEEDS=100000` that many, from
//! `THRONG_SIM_FROM` on.

/// A simulation to run with seeds.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The package of the test, for the line that repeats a seed.
    pub package: &'static str,
    /// Its test file.
    pub test: &'static str,
    /// Runs one seed. The error names the broken rules.
    pub run: fn(u64) -> Result<(), String>,
}

impl Seeds {
    /// Runs the seeds given in the environment, otherwise a thousand seeds.
    ///
    /// # Panics
    /// If a seed breaks a rule. The message names the first such seeds.
    pub fn check_many(self) {
        self.check_up_to(1000);
    }

    /// Runs the seeds given in the environment, otherwise `count` seeds.
    ///
    /// # Panics
    /// If a seed breaks a rule. The message names the first such seeds.
    pub fn check_up_to(self, count: u64) {
        self.check(match number("THRONG_SIM_SEED") {
            Some(seed) => vec![seed],
            None => {
                let from = number("THRONG_SIM_FROM").unwrap_or(0);
                (from..from + number("THRONG_SIM_SEEDS").unwrap_or(count)).collect()
            }
        });
    }

    /// Runs these seeds, on two threads.
    ///
    /// # Panics
    /// If a seed breaks a rule. The message names the first such seeds.
    pub fn check(self, seeds: Vec<u64>) {
        let (one, two) = seeds.split_at(seeds.len() / 2);
        let faults = std::thread::scope(|scope| {
            let other = scope.spawn(|| self.faults(two));
            let mut faults = self.faults(one);
            faults.extend(other.join().expect("panics are caught inside"));
            faults
        });
        let count = faults.len();
        assert!(faults.is_empty(), "{count} seeds failed:\n{}", faults[..count.min(8)].join("\n"));
    }

    fn faults(self, seeds: &[u64]) -> Vec<String> {
        let fault = |&seed: &u64| match std::panic::catch_unwind(|| (self.run)(seed)) {
            Ok(outcome) => outcome.err(),
            // Either the driver's contract or the simulator was at fault; the assertion shows
            // which.
            Err(_) => Some(format!(
                "seed {seed}: panicked, see above\n\
                 repeat: THRONG_SIM_SEED={seed} cargo test -p {} --test all {}::",
                self.package, self.test
            )),
        };
        seeds.iter().filter_map(fault).collect()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
