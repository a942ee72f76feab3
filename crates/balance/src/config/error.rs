//! Mistakes in a configuration: their location, and a remedy.

use std::fmt;

/// A mistake in a configuration. Its text is one line: `file:line:column`, the key, the value and
/// the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub(super) location: Option<Location>,
    pub(super) what: String,
}

/// A location in a file; lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file's name as it was given to the parser.
    pub file: String,
    /// Its line.
    pub line: usize,
    /// Its column.
    pub column: usize,
}

impl ConfigError {
    /// Returns its location; `None` for values that came from no file.
    #[must_use]
    pub fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }

    /// Returns key, value and remedy, without the location.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Location { file, line, column }) = &self.location {
            write!(f, "{file}:{line}:{column}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for ConfigError {}
