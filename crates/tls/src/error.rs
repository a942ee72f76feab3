//! The error of a configuration.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The reason why a configuration cannot be used. Its text names the file and the remedy.
#[derive(Debug)]
pub struct ConfigError {
    /// The file at fault, if one is.
    pub file: Option<PathBuf>,
    pub(crate) what: String,
    /// The time from which on the same files may do.
    pub(crate) until: Option<SystemTime>,
    /// Whether another attempt may work although no setting is changed, for example because a file
    /// is there by then.
    pub may_pass: bool,
}

impl ConfigError {
    pub(crate) fn new(file: &Path, what: impl Into<String>) -> Self {
        Self { file: Some(file.to_owned()), what: what.into(), until: None, may_pass: false }
    }

    pub(crate) fn without_file(what: impl Into<String>) -> Self {
        Self { file: None, what: what.into(), until: None, may_pass: false }
    }

    pub(crate) fn passing_if(self, may_pass: bool) -> Self {
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
