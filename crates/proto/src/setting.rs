//! Errors of settings.

use std::borrow::Cow;
use std::{error, fmt};

/// Error of a setting that cannot work, contradicts another, or cannot be kept on this system.
///
/// Its text names the setting, the value and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    setting: Cow<'static, str>,
    message: String,
    may_pass: bool,
}

impl SettingError {
    /// Creates an error of the setting of this name.
    #[must_use]
    pub fn new(setting: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { setting: setting.into(), message: message.into(), may_pass: false }
    }

    /// Sets whether [`SettingError::may_pass`].
    #[must_use]
    pub fn passing_if(self, may_pass: bool) -> Self {
        Self { may_pass, ..self }
    }

    /// Returns whether another attempt may work without a change of the setting, for example
    /// because a file exists at that time. Default: false.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.may_pass
    }

    /// Returns the name of the setting, such as `max_backlog`; `route` for a route, and `address`
    /// for an address to listen on.
    #[must_use]
    pub fn setting(&self) -> &str {
        &self.setting
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl error::Error for SettingError {}

/// The error of an unexpected name in the text of a setting.
///
/// Its text lists the accepted names. The caller knows the setting and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownName {
    expected: &'static [&'static str],
}

impl UnknownName {
    /// Creates an error; `expected` has at least one name.
    #[must_use]
    pub const fn new(expected: &'static [&'static str]) -> Self {
        Self { expected }
    }

    /// Returns the names that are accepted.
    #[must_use]
    pub const fn expected(&self) -> &'static [&'static str] {
        self.expected
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (last, others) = self.expected.split_last().unwrap_or((&"", &[]));
        match others {
            [] => write!(f, "expected {last}"),
            _ => write!(f, "expected {} or {last}", others.join(", ")),
        }
    }
}

impl error::Error for UnknownName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_setting_and_what_is_expected() {
        let error = SettingError::new("max_backlog", "max_backlog is 0; give at least 1");
        assert_eq!(error.setting(), "max_backlog");
        assert_eq!(error.to_string(), "max_backlog is 0; give at least 1");
        assert_eq!(UnknownName::new(&["a", "b", "c"]).to_string(), "expected a, b or c");
        assert_eq!(UnknownName::new(&["a"]).to_string(), "expected a");
    }
}
