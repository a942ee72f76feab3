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

    /// Creates a pattern whose rule follows the rules of `earlier` patterns. The first pattern that
    /// matches a channel applies.
    ///
    /// # Errors
    /// The pattern is malformed, or an earlier pattern matches all its channels, so that its rule
    /// would never apply.
    pub fn after<'p>(
        earlier: impl IntoIterator<Item = &'p Self>,
        pattern: &str,
    ) -> Result<Self, SettingError> {
        let pattern = Self::new(pattern)?;
        let Some(first) = earlier.into_iter().find(|earlier| earlier.covers(&pattern)) else {
            return Ok(pattern);
        };
        let (first, pattern) = (first.as_str(), pattern.as_str());
        let message = match first == pattern {
            true => format!(
                "the pattern {pattern:?} is there twice, and only its first rule would apply: take \
                 one out"
            ),
            false => format!(
                "the pattern {pattern:?} comes after {first:?}, which matches all its channels, so \
                 that its rule would never apply: put it before {first:?}, or take it out"
            ),
        };
        Err(SettingError::new("channel_backpressure", message))
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether every name that matches `other` also matches this pattern.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let (mut tokens, mut others) = (self.0.split('.'), other.0.split('.'));
        loop {
            match (tokens.next(), others.next()) {
                (None, None) => return true,
                (Some(">"), Some(_)) => return true,
                // `>` stands for several tokens.
                (_, Some(">")) => return false,
                (Some("*"), Some(_)) => {}
                (Some(wanted), Some(token)) if wanted == token => {}
                _ => return false,
            }
        }
    }

    /// Returns whether a name can match both patterns.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let (mut tokens, mut others) = (self.0.split('.'), other.0.split('.'));
        loop {
            match (tokens.next(), others.next()) {
                (None, None) => return true,
                (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
                (Some("*"), Some(_)) | (Some(_), Some("*")) => {}
                (Some(one), Some(other)) if one == other => {}
                _ => return false,
            }
        }
    }

    /// Returns the rules that have an effect: rules that are not `usual`, and usual rules that keep
    /// later rules from a channel.
    pub fn effective<'r, T>(
        rules: &'r [(Self, T)],
        is_usual: impl Fn(&T) -> bool + 'r,
    ) -> impl Iterator<Item = (&'r Self, &'r T)> {
        let has_effect = move |at: usize, (pattern, rule): &(Self, T)| {
            let mut later = rules[at + 1..].iter().filter(|(_, rule)| !is_usual(rule));
            !is_usual(rule) || later.any(|(later, _)| later.meets(pattern))
        };
        let effective = rules.iter().enumerate().filter(move |(at, rule)| has_effect(*at, rule));
        effective.map(|(_, (pattern, rule))| (pattern, rule))
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
        for (wide, narrow, covers) in [
            (">", "news.>", true),
            (">", "*", true),
            ("news.>", "news.*.eu", true),
            ("news.>", "news", false),
            ("news.*", "news.*", true),
            ("news.*", "news.eu", true),
            ("news.*", "news.>", false),
            ("*.*", "*.>", false),
            ("*.>", "news.eu", true),
            ("*.>", "news", false),
            ("news.eu", "news.*", false),
            ("news", "news", true),
        ] {
            let [wide, narrow] = [wide, narrow].map(|text| Pattern::new(text).unwrap());
            assert_eq!(wide.covers(&narrow), covers, "{wide:?} {narrow:?}");
        }
        for (one, other, meets) in [
            ("news.*", "*.eu", true),
            ("news.>", "*.*.de", true),
            (">", "a", true),
            ("news.>", "news", false),
            ("news.*", "news.eu.de", false),
            ("news.*", "chat.>", false),
        ] {
            let [one, other] = [one, other].map(|text| Pattern::new(text).unwrap());
            assert_eq!((one.meets(&other), other.meets(&one)), (meets, meets), "{one:?} {other:?}");
        }
        let rules = [("a.b", 0), ("c", 0), ("a.>", 1), ("b", 2), (">", 0)];
        let rules = rules.map(|(pattern, rule)| (Pattern::new(pattern).unwrap(), rule));
        let effective = Pattern::effective(&rules, |rule| *rule == 0);
        let effective: Vec<_> = effective.map(|(pattern, _)| pattern.as_str()).collect();
        assert_eq!(effective, ["a.b", "a.>", "b"]);
        for malformed in ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b"] {
            assert!(Pattern::new(malformed).is_err(), "{malformed}");
        }
    }
}
