//! Rules of history: which channels have one, and how much of it is kept.

use std::sync::Arc;
use std::time::Duration;

use throng_proto::SettingError;

use crate::backpressure::ClassIndex;
use crate::backpressure::pattern::Pattern;
use crate::limits::setters;

/// Part of a channel's history that a client that comes back gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryMode {
    /// All that it missed, or the explicit answer that this is not possible.
    #[default]
    Stream,
    /// Keeps only the newest publication, for channels where each message replaces the earlier
    /// ones. A returning client gets it unless it already has it.
    Cache,
}

/// Amount of history that is kept of each channel that matches a pattern, and the part of it that a
/// returning client gets.
///
/// A member of such a channel that reads too slowly is closed with 1008, even if other rules match:
/// it comes back, and gets the messages that it missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct History {
    /// Publications kept.
    pub count: usize,
    /// Age up to which they are kept.
    pub age: Duration,
    /// Bytes kept of one channel. Each publication and each channel counts about 250 bytes more
    /// than its messages. Default `None`: half of
    /// [`Limits::max_backlog`](crate::Limits::max_backlog), which is also the maximum, so that
    /// recovered publications fit into a connection's queue.
    pub max_bytes: Option<usize>,
    /// Part of it that a client that comes back gets. Default [`HistoryMode::Stream`].
    pub mode: HistoryMode,
}

impl History {
    /// Creates a rule that keeps `count` publications for `age`.
    pub const fn new(count: usize, age: Duration) -> Self {
        Self { count, age, max_bytes: None, mode: HistoryMode::Stream }
    }

    /// Returns the bytes kept of a channel.
    ///
    /// # Errors
    /// A number is 0 or too large; names the setting.
    pub(crate) fn checked(&self, name: &str, max_backlog: usize) -> Result<usize, SettingError> {
        let wrong = |problem: String| {
            SettingError::new("history", format!("history of {name:?} {problem}"))
        };
        let most = max_backlog / 2;
        let bytes = self.max_bytes.unwrap_or(most);
        if self.count == 0 {
            return Err(wrong("keeps 0 publications; give at least 1, or leave it out".to_owned()));
        }
        if self.age.is_zero() || self.age > MAX_AGE {
            return Err(wrong(format!("has an age of {:?}; give 1ns to 7 days", self.age)));
        }
        if bytes == 0 || bytes > most {
            let problem = format!(
                "has max_bytes of {bytes}; give 1 to {most}, half of max_backlog, so that what is \
                 recovered fits into a connection's queue"
            );
            return Err(wrong(problem));
        }
        Ok(bytes)
    }
}

setters! { History:
    mode: HistoryMode,
    ;
    max_bytes: Option<usize>,
}

const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A rule, checked.
#[derive(Clone, Debug)]
pub(crate) struct HistoryRule {
    /// The class of the channels' publications, which closes slow receivers.
    pub(crate) class: ClassIndex,
    pub(crate) history: History,
    pub(crate) max_bytes: usize,
}

/// The rules of a server; the first whose pattern matches applies.
#[derive(Clone, Debug, Default)]
pub(crate) struct HistoryRules {
    /// Numbers of rules; none for channels without a history.
    patterns: Arc<[(Pattern, Option<u16>)]>,
    rules: Arc<[HistoryRule]>,
}

impl HistoryRules {
    pub(crate) fn new(all: Vec<(Pattern, Option<HistoryRule>)>) -> Self {
        let mut rules = Vec::new();
        let mut patterns = Vec::new();
        for (pattern, rule) in all {
            let number = rule.is_some().then_some(rules.len() as u16);
            rules.extend(rule);
            patterns.push((pattern, number));
        }
        Self { patterns: patterns.into(), rules: rules.into() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the number of the rule for a channel.
    pub(crate) fn of(&self, channel: &str) -> Option<u16> {
        self.patterns.iter().find(|(pattern, _)| pattern.matches(channel))?.1
    }

    /// Returns the rules as text, in their order: servers that share channels have equal texts.
    pub(crate) fn words(&self) -> Vec<String> {
        let words = |(pattern, number): (&Pattern, &Option<u16>)| match number {
            None => format!("{} history=none", pattern.as_str()),
            Some(number) => {
                let HistoryRule { history: History { count, age, mode, .. }, max_bytes, .. } =
                    self.rule(*number);
                let mode = match mode {
                    HistoryMode::Stream => "",
                    HistoryMode::Cache => " recovery=cache",
                };
                format!("{} history={count}/{age:?} max_bytes={max_bytes}{mode}", pattern.as_str())
            }
        };
        Pattern::effective(&self.patterns, Option::is_none).map(words).collect()
    }

    /// Returns the class of some channel with a history, if there is any.
    pub(crate) fn first_class(&self) -> Option<ClassIndex> {
        self.rules.first().map(|rule| rule.class)
    }

    /// Returns the maximum bytes that a channel keeps.
    pub(crate) fn most_bytes(&self) -> usize {
        self.rules.iter().map(|rule| rule.max_bytes).max().unwrap_or(0)
    }

    pub(crate) fn rule(&self, number: u16) -> &HistoryRule {
        &self.rules[usize::from(number)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_pattern_rules_also_when_it_says_that_there_is_no_history() {
        let history = History::new(1, Duration::from_secs(1));
        let rule = |class| Some(HistoryRule { class, history, max_bytes: 1 });
        let pattern = |pattern| Pattern::new(pattern).unwrap();
        let rules = HistoryRules::new(vec![
            (pattern("chat.a"), None),
            (pattern("chat.*"), rule(4)),
            (pattern("chat.b"), rule(5)),
            (pattern(">"), rule(6)),
        ]);
        let class = |channel| rules.of(channel).map(|number| rules.rule(number).class);
        assert_eq!(["chat.a", "chat.b", "x"].map(class), [None, Some(4), Some(6)]);
        assert!(HistoryRules::new(vec![(pattern("a"), None)]).is_empty());
    }
}
