//! Patterns of channel names: tokens separated by dots, `*` for any one, `>` for all that follow.

use throng_proto::SettingError;

/// A pattern of channels, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// An empty token, or `>` before the end.
    pub fn new(pattern: &str) -> Result<Self, SettingError> {
        if pattern.split('.').any(str::is_empty) {
            let message = format!("the pattern {pattern:?} has an empty token between its dots");
            return Err(SettingError::new("channel_backpressure", message));
        }
        let mut tokens = pattern.split('.');
        tokens.next_back();
        if tokens.any(|token| token == ">") {
            let message = format!("the pattern {pattern:?} has a > that is not at its end");
            return Err(SettingError::new("channel_backpressure", message));
        }
        Ok(Self(pattern.to_owned()))
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether `name` matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (mut tokens, mut name) = (self.0.split('.'), name.split('.'));
        loop {
            match (tokens.next(), name.next()) {
                (None, None) => return true,
                (Some(">"), Some(_)) => return true,
                (Some("*"), Some(_)) => {}
                (Some(wanted), Some(token)) if wanted == token => {}
                _ => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stars_and_tails() {
        for (pattern, name, matches) in [
            ("news", "news", true),
            ("news", "news.eu", false),
            ("news.*", "news.eu", true),
            ("news.*", "news", false),
            ("news.*", "news.eu.de", false),
            ("news.>", "news.eu.de", true),
            ("news.>", "news.eu", true),
            ("news.>", "news", false),
            ("*.eu", "news.eu", true),
            (">", "anything.at.all", true),
            ("*", "a.b", false),
            ("n*", "news", false),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(name), matches, "{pattern} {name}");
        }
        for malformed in ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b"] {
            assert!(Pattern::new(malformed).is_err(), "{malformed}");
        }
    }
}
