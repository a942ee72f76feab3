//! Failures of commands.

use throng_config::ConfigErrors;
use throng_io::may_pass;

/// The failure of a command: its message and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The message.
    pub message: String,
    /// The exit code.
    pub code: u8,
}

impl Failure {
    /// Creates the failure of an invalid flag, setting or file; exit code 2.
    #[must_use]
    pub fn usage(message: impl ToString) -> Self {
        Self { message: message.to_string(), code: 2 }
    }

    /// Creates the failure of a start. Exit code 2 is a mistake, which an operator must fix; exit
    /// code 1 is a failure that may not recur at the next start (`may_pass`), so that a service
    /// manager starts again.
    #[must_use]
    pub fn of_start(message: impl ToString, may_pass: bool) -> Self {
        if may_pass { Self::runtime(message) } else { Self::usage(message) }
    }

    /// Creates a failure while running; exit code 1.
    #[must_use]
    pub fn runtime(message: impl ToString) -> Self {
        Self { message: message.to_string(), code: 1 }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::of_start(errors.with_lines(), errors.may_pass())
    }
}

impl From<throng::Error> for Failure {
    fn from(error: throng::Error) -> Self {
        match error {
            throng::Error::Setting(ref problem) => Self::of_start(problem, problem.may_pass()),
            throng::Error::Bind { ref source, .. } => Self::of_start(&error, may_pass(source)),
            other => Self::runtime(other),
        }
    }
}
