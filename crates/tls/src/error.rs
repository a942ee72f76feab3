//! The error of a configuration.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The reason why a configuration cannot be used. Its text names the file and the remedy.
#[derive(Debug)]
pub struct ConfigError {
    /// The file at fault, if there is one.
    pub file: Option<PathBuf>,
    pub(crate) what: String,
    /// The time from which the same files may be valid.
    pub(crate) until: Option<SystemTime>,
    /// Whether another attempt may succeed without a change of settings, for example because a file
    /// appears.
    pub may_pass: bool,
}

impl ConfigError {
    /// Creates an error of this file.
    #[must_use]
    pub fn new(file: &Path, what: impl Into<String>) -> Self {
        Self { file: Some(file.to_owned()), what: what.into(), until: None, may_pass: false }
    }

    /// Creates an error that is not about one file.
    #[must_use]
    pub fn without_file(what: impl Into<String>) -> Self {
        Self { file: None, what: what.into(), until: None, may_pass: false }
    }

    /// Sets whether another attempt may work: [`ConfigError::may_pass`].
    #[must_use]
    pub fn passing_if(self, may_pass: bool) -> Self {
        Self { may_pass, ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}: {}", file.display(), self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for ConfigError {}

pub(crate) fn without_file(error: rustls::Error) -> ConfigError {
    ConfigError::without_file(error.to_string())
}
