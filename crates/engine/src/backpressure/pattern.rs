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
    /// The pattern is malformed, or earlier patterns match all its channels, so that its rule would
    /// never apply.
    pub fn after<'p>(
        earlier: impl IntoIterator<Item = &'p Self>,
        pattern: &str,
    ) -> Result<Self, SettingError> {
        let pattern = Self::new(pattern)?;
        let earlier: Vec<_> = earlier.into_iter().collect();
        let Some(first) = earlier.iter().find(|earlier| earlier.covers(&pattern)) else {
            return match pattern.hidden_by(&earlier) {
                None => Ok(pattern),
                Some(hiding) => Err(hidden(&hiding, &pattern)),
            };
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

    /// Returns the patterns of `earlier` that together match every name that matches this pattern,
    /// if they do; none of them covers it alone.
    ///
    /// A token of a name has too many values to be listed by patterns: names with a certain number
    /// of tokens are matched by one pattern, or not all of them are. So only the different lengths
    /// that `>` stands for may need different patterns. From one token more than the longest
    /// pattern has, the length makes no difference.
    fn hidden_by<'p>(&self, earlier: &[&'p Self]) -> Option<Vec<&'p Self>> {
        let stem = self.0.strip_suffix('>')?;
        let tokens = |pattern: &Self| pattern.0.split('.').count();
        let longest = earlier.iter().map(|it| tokens(it)).max()?;
        let mut hiding = Vec::new();
        for stars in 1..=longest.saturating_sub(tokens(self)) + 2 {
            let names = Self(format!("{stem}*{}", ".*".repeat(stars - 1)));
            let found = earlier.iter().find(|it| it.covers(&names))?;
            if !hiding.contains(found) {
                hiding.push(*found);
            }
        }
        Some(hiding)
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

/// The error of a pattern whose names earlier patterns match together.
fn hidden(hiding: &[&Pattern], pattern: &Pattern) -> SettingError {
    let pattern = pattern.as_str();
    let hiding: Vec<_> = hiding.iter().map(|it| format!("{:?}", it.as_str())).collect();
    let hiding = hiding.join(" and ");
    let message = format!(
        "the pattern {pattern:?} comes after {hiding}, which together match all its channels, so \
         that its rule would never apply: put it before them, or take it out"
    );
    SettingError::new("channel_backpressure", message)
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

    #[test]
    fn a_pattern_that_several_earlier_ones_hide_together_is_refused() {
        for (earlier, pattern, hiding) in [
            (&["a.*", "a.*.>"][..], "a.>", Some("\"a.*\" and \"a.*.>\"")),
            (&["*.>", "x", "*"], ">", Some("\"*\" and \"*.>\"")),
            (&["*.*.>", "x", "*"], ">", None),
            (&["*", "*.*", "*.*.*.>"], ">", None),
            (&["a.*", "*.*.*", "*.*.*.>"], "a.>", Some("\"a.*\" and \"*.*.*\" and \"*.*.*.>\"")),
            (&["a.*", "a.*.*"], "a.>", None),
            (&["a.*", "b.*.>"], "a.>", None),
            (&["a.b", "a.*.>"], "a.>", None),
            (&["a.b", "a.c"], "a.*", None),
            (&[], ">", None),
            // The longest is shorter than the pattern.
            (&["*", "b"], "a.b.c.>", None),
        ] {
            let earlier: Vec<_> = earlier.iter().map(|it| Pattern::new(it).unwrap()).collect();
            let result = Pattern::after(&earlier, pattern);
            let Some(hiding) = hiding else {
                assert!(result.is_ok(), "{pattern}: {result:?}");
                continue;
            };
            let error = result.unwrap_err().to_string();
            let expected = format!("comes after {hiding}, which together match all its channels");
            assert!(error.contains(&expected), "{error}");
        }
    }

    /// Compares with names of a few tokens; no pattern has the token `new`.
    #[test]
    fn rules_are_refused_exactly_if_no_channel_is_left_for_them() {
        const TOKENS: [&str; 3] = ["a", "b", "new"];
        let mut names: Vec<String> = TOKENS.map(str::to_owned).to_vec();
        let mut last = names.clone();
        for _ in 1..5 {
            last = last.iter().flat_map(|name| TOKENS.map(|it| format!("{name}.{it}"))).collect();
            names.extend_from_slice(&last);
        }
        let tokens = ["a", "b", "*"];
        let mut patterns: Vec<String> = [">", "a", "b", "*"].map(str::to_owned).to_vec();
        for first in tokens {
            patterns.extend(["a", "b", "*", ">"].map(|it| format!("{first}.{it}")));
            patterns.extend(["*", ">"].map(|it| format!("{first}.*.{it}")));
        }
        let patterns: Vec<_> = patterns.iter().map(|it| Pattern::new(it).unwrap()).collect();
        for (at, one) in patterns.iter().enumerate() {
            for two in &patterns[..at] {
                for three in &patterns {
                    let earlier = [one, two];
                    let is_left = |name: &String| {
                        three.matches(name) && !earlier.iter().any(|it| it.matches(name))
                    };
                    let accepted = Pattern::after(earlier, three.as_str()).is_ok();
                    let is_left = names.iter().any(is_left);
                    assert_eq!(accepted, is_left, "{earlier:?} {three:?}");
                }
            }
        }
    }
}
