//! Back-pressure: rules for messages to receivers that read too slowly, by channel and by route.

pub(crate) mod fill;
pub(crate) mod history;
pub(crate) mod pattern;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use throng_proto::{SettingError, UnknownName};

use crate::backpressure::history::{History, HistoryRule, HistoryRules};
use crate::backpressure::pattern::Pattern;
use crate::limits::{Limits, setters};

/// Policy for when the messages that wait for a slow receiver have reached their cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowPolicy {
    /// The receiver is closed with 1008 "slow consumer": for streams in which nothing may be
    /// missing.
    #[default]
    Close,
    /// The new message is dropped: waiting messages are delivered first.
    DropNewest,
    /// The oldest waiting messages of the class are dropped to make room: a receiver that catches
    /// up sees the latest.
    DropOldest,
    /// Only the newest value of each key waits (conflation), in the place of the value it replaces.
    /// [`Frame::keyed`](crate::Frame::keyed) sets the key, within the channel; without one, the
    /// channel is the key. At the cap the oldest value of another key is dropped, so the cap should
    /// hold one message of each key.
    Latest,
}

impl SlowPolicy {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Close, "close"),
        (Self::DropNewest, "drop_newest"),
        (Self::DropOldest, "drop_oldest"),
        (Self::Latest, "latest"),
    ];

    /// Returns the policy's name in settings and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(policy, _)| *policy == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for SlowPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SlowPolicy {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        const NAMES: UnknownName =
            UnknownName::new(&["close", "drop_newest", "drop_oldest", "latest"]);
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(policy, _)| *policy).ok_or(NAMES)
    }
}

/// The rules for one class of messages: the messages of the channels that match a pattern, or of a
/// route.
///
/// They act only while a receiver is slow, that is while the kernel has not taken all that was sent
/// to it before. Control frames (pings, pongs, Close) are always admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Backpressure {
    /// Policy at the cap. Default [`SlowPolicy::Close`].
    pub policy: SlowPolicy,
    /// The cap: bytes of this class that wait for one connection. Default `None`:
    /// [`Limits::max_backlog`](crate::Limits::max_backlog). A message larger than it still waits if
    /// no other of its class does; one of under 64 bytes counts as 64. With [`SlowPolicy::Close`]
    /// all waiting messages that may not be dropped count.
    pub max_backlog: Option<usize>,
    /// Longest time a message may wait (its TTL); an older one is dropped instead of sent. Default
    /// `None`: unlimited. Kept in milliseconds; checked when messages leave or arrive, and once a
    /// second.
    pub max_age: Option<Duration>,
}

impl Backpressure {
    /// Creates rules with this policy, the default cap and no age limit.
    pub fn new(policy: SlowPolicy) -> Self {
        Self { policy, ..Self::default() }
    }
}

setters! { Backpressure:
    policy: SlowPolicy,
    ;
    max_backlog: Option<usize>,
    max_age: Option<Duration>,
}

impl From<SlowPolicy> for Backpressure {
    fn from(policy: SlowPolicy) -> Self {
        Self::new(policy)
    }
}

/// A class of messages, by number; 0 is the default.
pub(crate) type ClassIndex = u16;

/// A class and its rules, resolved.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) name: Arc<str>,
    pub(crate) policy: SlowPolicy,
    /// Whether this class is for channels with a history, which other rules do not replace.
    pub(crate) is_history: bool,
    pub(crate) max_backlog: usize,
    /// Longest wait in milliseconds; 0 = unlimited.
    pub(crate) max_age: u32,
}

impl Class {
    /// Returns whether its messages go to the per-message queue, so that each can still be dropped.
    pub(crate) fn is_per_message(&self) -> bool {
        self.policy != SlowPolicy::Close || self.max_age > 0
    }
}

/// Rules by message: a channel's if its name matches a pattern (the first that does), else the
/// receiver's route's, else the default.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    default: Backpressure,
    channels: Vec<(Pattern, Backpressure)>,
    routes: Vec<(u16, String, Backpressure)>,
    histories: Vec<(Pattern, Option<History>)>,
}

impl Classes {
    /// Sets the rules for messages that no channel and no route has rules for.
    pub fn set_default(&mut self, rules: Backpressure) {
        self.default = rules;
    }

    /// Adds rules for channels whose names match `pattern`: tokens separated by dots, `*` for any
    /// one token, `>` at the end for any that follow. If several patterns match, the first added
    /// applies.
    ///
    /// # Errors
    /// The pattern is malformed, or an earlier one matches all its channels.
    pub fn add_channels(&mut self, pattern: &str, rules: Backpressure) -> Result<(), SettingError> {
        let earlier = self.channels.iter().map(|(pattern, _)| pattern);
        self.channels.push((Pattern::after(earlier, pattern)?, rules));
        Ok(())
    }

    /// Keeps a history of channels whose names match `pattern`, written as for
    /// [`Classes::add_channels`]. Slow receivers of those channels are closed, even if other rules
    /// match. With `None` those channels have no history, even if a later pattern matches.
    ///
    /// # Errors
    /// The pattern is malformed, or an earlier one matches all its channels.
    pub fn add_history(
        &mut self,
        pattern: &str,
        history: Option<History>,
    ) -> Result<(), SettingError> {
        let earlier = self.histories.iter().map(|(pattern, _)| pattern);
        self.histories.push((Pattern::after(earlier, pattern)?, history));
        Ok(())
    }

    /// Adds rules for receivers of a route, called `name` in metrics.
    pub fn add_route(&mut self, route: u16, name: &str, rules: Backpressure) {
        self.routes.push((route, name.to_owned(), rules));
    }

    /// Returns whether any of these rules drops waiting messages. The fresher the messages must be,
    /// the less data may wait in the kernel, which no rule reaches.
    #[must_use]
    pub fn drop_stale(&self) -> bool {
        let channels = self.channels.iter().map(|(_, rules)| rules);
        let routes = self.routes.iter().map(|(_, _, rules)| rules);
        let is_fresh = |rules: &Backpressure| {
            matches!(rules.policy, SlowPolicy::Latest | SlowPolicy::DropOldest)
                || rules.max_age.is_some()
        };
        std::iter::once(&self.default).chain(channels).chain(routes).any(is_fresh)
    }

    /// Checks these rules.
    ///
    /// # Errors
    /// An age that cannot be kept, or too many classes; names the class.
    pub fn check(&self, limits: &Limits) -> Result<(), SettingError> {
        self.checked(limits).map(drop)
    }

    pub(crate) fn checked(&self, limits: &Limits) -> Result<Rules, SettingError> {
        let mut rules = Rules::default();
        let default = rules.add("default", self.default, limits)?;
        rules.default = default;
        for (pattern, channel) in &self.channels {
            let class = rules.add(pattern.as_str(), *channel, limits)?;
            rules.channels.push((pattern.clone(), class));
        }
        for (route, name, route_rules) in &self.routes {
            let class = rules.add(name, *route_rules, limits)?;
            let at = usize::from(*route);
            if rules.routes.len() <= at {
                rules.routes.resize(at + 1, default);
            }
            rules.routes[at] = class;
        }
        let mut histories = Vec::new();
        for (pattern, history) in &self.histories {
            let rule = match *history {
                Some(history) => {
                    // Recovered publications are sent like the route's own messages.
                    let max_backlog = limits.max_backlog.min(rules.least_cap_of_answers());
                    let max_bytes = history.checked(pattern.as_str(), max_backlog)?;
                    let class = rules.add(pattern.as_str(), SlowPolicy::Close.into(), limits)?;
                    rules.classes[usize::from(class)].is_history = true;
                    Some(HistoryRule { class, history, max_bytes })
                }
                None => None,
            };
            histories.push((pattern.clone(), rule));
        }
        rules.histories = HistoryRules::new(histories);
        Ok(rules)
    }
}

/// [`Classes`], checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    classes: Vec<Class>,
    default: ClassIndex,
    channels: Vec<(Pattern, ClassIndex)>,
    routes: Vec<ClassIndex>,
    histories: HistoryRules,
}

impl Rules {
    pub(crate) fn names(&self) -> impl Iterator<Item = (&Arc<str>, SlowPolicy)> {
        self.classes.iter().map(|class| (&class.name, class.policy))
    }

    pub(crate) fn histories(&self) -> &HistoryRules {
        &self.histories
    }

    pub(crate) fn class(&self, index: ClassIndex) -> &Class {
        &self.classes[usize::from(index)]
    }

    /// Returns the smallest backlog at which a connection can be closed for the answers to its own
    /// messages. Half of it is the mark from which its messages wait, so that a client that sends
    /// more than it reads is slowed down instead.
    pub(crate) fn least_cap_of_answers(&self) -> usize {
        let classes = self.routes.iter().chain([&self.default]).map(|&index| self.class(index));
        let closing = classes.filter(|class| class.policy == SlowPolicy::Close);
        closing.map(|class| class.max_backlog).min().unwrap_or(usize::MAX)
    }

    /// Returns the class of a channel, if a pattern matches its name.
    pub(crate) fn of_channel(&self, name: &str) -> Option<ClassIndex> {
        self.channels.iter().find(|(pattern, _)| pattern.matches(name)).map(|(_, class)| *class)
    }

    pub(crate) fn of_route(&self, route: u16) -> ClassIndex {
        self.routes.get(usize::from(route)).copied().unwrap_or(self.default)
    }

    /// Numbers the classes so that they can replace the classes of `before` while messages wait: a
    /// class with the same name and policy keeps its number, since waiting messages and counters
    /// refer to it. Other classes get new numbers, and the classes they replace stay for waiting
    /// messages.
    ///
    /// # Errors
    /// Too many classes, including the classes of earlier rules.
    pub(crate) fn replacing(&self, before: &Self) -> Result<Self, SettingError> {
        let mut classes = before.classes.clone();
        let mut numbers = Vec::with_capacity(self.classes.len());
        for class in &self.classes {
            let is_same = |known: &Class| {
                known.name == class.name
                    && known.policy == class.policy
                    && known.is_history == class.is_history
            };
            let known = classes.iter().position(is_same).filter(|number| !numbers.contains(number));
            let number = known.unwrap_or(classes.len());
            numbers.push(number);
            match classes.get_mut(number) {
                Some(place) => place.clone_from(class),
                None => classes.push(class.clone()),
            }
        }
        ClassIndex::try_from(classes.len()).map_err(|_| too_many_classes())?;
        let number = |old: &ClassIndex| numbers[usize::from(*old)] as ClassIndex;
        let channels = self.channels.iter().map(|(pattern, old)| (pattern.clone(), number(old)));
        Ok(Self {
            classes,
            default: number(&self.default),
            channels: channels.collect(),
            routes: self.routes.iter().map(number).collect(),
            // Which channels have a history is known when the server is built.
            histories: before.histories.clone(),
        })
    }

    fn add(
        &mut self,
        name: &str,
        rules: Backpressure,
        limits: &Limits,
    ) -> Result<ClassIndex, SettingError> {
        let wrong = |setting, problem: String| {
            SettingError::new(setting, format!("{setting} of {name:?} is {problem}"))
        };
        let milliseconds = |age: Duration| {
            let in_range = |age: &u32| (1..=MAX_AGE_MS).contains(age);
            let age_ms = u32::try_from(age.as_nanos().div_ceil(1_000_000)).ok().filter(in_range);
            let problem = || format!("{age:?}; give 1ms to 24h, or leave it out for no limit");
            age_ms.ok_or_else(|| wrong("max_age", problem()))
        };
        let max_age = rules.max_age.map_or(Ok(0), milliseconds)?;
        if rules.max_backlog == Some(0) {
            let problem = "0, which would let nothing wait; give at least 1, or leave it out for \
                           that of all connections";
            return Err(wrong("max_backlog", problem.to_owned()));
        }
        let index = ClassIndex::try_from(self.classes.len()).map_err(|_| too_many_classes())?;
        self.classes.push(Class {
            name: name.into(),
            policy: rules.policy,
            is_history: false,
            max_backlog: rules.max_backlog.unwrap_or(limits.max_backlog),
            max_age,
        });
        Ok(index)
    }
}

fn too_many_classes() -> SettingError {
    let message = "more than 65,535 classes of back-pressure, with those of rules that were \
                   replaced while the server runs; use fewer, or restart it";
    SettingError::new("backpressure", message)
}

/// Ages are compared modulo 2^32 milliseconds, so none may come near half of that.
const MAX_AGE_MS: u32 = 24 * 60 * 60 * 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_rules_of_the_same_pattern_do_not_reach_a_history() {
        let history = History::new(10, Duration::from_secs(1));
        let mut before = Classes::default();
        before.add_history("chat.>", Some(history)).unwrap();
        let before = before.checked(&Limits::default()).unwrap();
        let kept = before.histories().rule(0).class;
        let mut after = Classes::default();
        let stale = Backpressure::new(SlowPolicy::Close).max_age(Duration::from_secs(1));
        after.add_channels("chat.>", stale).unwrap();
        let after = after.checked(&Limits::default()).unwrap().replacing(&before).unwrap();
        assert_eq!(after.class(kept).max_age, 0, "its messages do not expire");
        let other = after.of_channel("chat.a").unwrap();
        assert_eq!((other == kept, after.class(other).max_age), (false, 1000));
        assert_eq!(after.histories().rule(0).class, kept);
    }

    #[test]
    fn the_first_matching_pattern_rules_and_caps_default_to_the_connections() {
        let mut classes = Classes::default();
        let oldest = Backpressure::new(SlowPolicy::DropOldest).max_backlog(1000);
        classes.add_channels("prices.eur", SlowPolicy::Latest.into()).unwrap();
        classes.add_channels("prices.*", oldest).unwrap();
        classes.add_route(2, "/feed", SlowPolicy::DropNewest.into());
        let rules = classes.checked(&Limits::default()).unwrap();
        let named = |name: &str| rules.of_channel(name).map(|class| rules.class(class));
        assert_eq!(named("prices.eur").unwrap().policy, SlowPolicy::Latest);
        assert_eq!(named("prices.eur").unwrap().max_backlog, Limits::default().max_backlog);
        assert_eq!(named("prices.usd").unwrap().max_backlog, 1000);
        assert!(named("news").is_none());
        assert_eq!(rules.class(rules.of_route(2)).policy, SlowPolicy::DropNewest);
        assert_eq!(rules.of_route(1), 0);
        assert_eq!(rules.of_route(9), 0);
        assert!(!rules.class(0).is_per_message());
        assert_eq!(rules.least_cap_of_answers(), Limits::default().max_backlog);
        classes.add_route(3, "/narrow", Backpressure::default().max_backlog(5000));
        assert_eq!(classes.checked(&Limits::default()).unwrap().least_cap_of_answers(), 5000);
    }

    #[test]
    fn nonsense_is_named() {
        let mut classes = Classes::default();
        assert!(classes.add_channels("a..b", Backpressure::default()).is_err());
        let old = Backpressure::default().max_age(Duration::from_secs(100_000));
        classes.add_channels("clock", old).unwrap();
        let error = classes.checked(&Limits::default()).unwrap_err().to_string();
        assert!(error.contains("\"clock\"") && error.contains("24h"), "{error}");
        let mut none = Classes::default();
        none.set_default(Backpressure::default().max_backlog(0));
        let error = none.checked(&Limits::default()).unwrap_err().to_string();
        assert!(error.contains("max_backlog of \"default\" is 0"), "{error}");
        let error = "newest".parse::<SlowPolicy>().unwrap_err().to_string();
        assert!(error.contains("drop_newest"), "{error}");
        for (policy, name) in SlowPolicy::ALL {
            assert_eq!((policy.to_string().as_str(), name.parse()), (name, Ok(policy)));
        }
    }
}
