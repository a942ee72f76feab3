//! Outcomes of layers of tests.

/// The results of a layer's tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    /// A text for each failed test: its name and the reason.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Counts a test and prints its result.
    pub(crate) fn record(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => {
                println!("ok {name}");
                self.passed += 1;
            }
            Err(why) => {
                println!("FAILED {name}: {why}");
                self.failures.push(format!("{name}: {why}"));
            }
        }
    }

    /// Adds the results of other tests.
    pub(crate) fn add(&mut self, more: Tally) {
        self.passed += more.passed;
        self.failures.extend(more.failures);
    }
}

/// The reason why a layer ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A failure.
    Failed(String),
    /// A program is missing and could not be installed: one line that names it and how to install
    /// it. Skipped on a developer's machine, a failure on CI.
    Missing(String),
}

impl From<String> for Stop {
    fn from(problem: String) -> Self {
        Stop::Failed(problem)
    }
}
