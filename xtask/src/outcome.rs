//! Outcomes of layers of tests.

/// The numbers of passed and failed tests of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
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
