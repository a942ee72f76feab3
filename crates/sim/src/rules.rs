//! The rules of a plan for slow receivers, and the checkers' own implementation of rule matching.
//!
//! Written independently of the engine: if both agree on a class or a pattern, two separate
//! programs agree.

use throng_engine::{Backpressure, Classes};

/// Rules by channel and by route, in the order in which the engine numbers their classes.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The rules for messages whose channel and route have no rules.
    pub default: Backpressure,
    /// Rules by pattern; the first match applies.
    pub channels: Vec<(String, Backpressure)>,
    /// By route.
    pub routes: Vec<(u16, Backpressure)>,
}

impl Rules {
    /// Returns rules that are the same for all messages.
    #[must_use]
    pub fn all(default: impl Into<Backpressure>) -> Self {
        Self { default: default.into(), ..Self::default() }
    }

    /// Adds rules for the channels that match a pattern.
    #[must_use]
    pub fn channel(mut self, pattern: &str, rules: impl Into<Backpressure>) -> Self {
        self.channels.push((pattern.to_owned(), rules.into()));
        self
    }

    /// Adds rules for a route.
    #[must_use]
    pub fn route(mut self, route: u16, rules: impl Into<Backpressure>) -> Self {
        self.routes.push((route, rules.into()));
        self
    }

    /// Returns the rules in the engine's form.
    ///
    /// # Panics
    /// If a pattern is malformed.
    #[must_use]
    pub fn classes(&self) -> Classes {
        let mut classes = Classes::default();
        classes.set_default(self.default);
        for (pattern, rules) in &self.channels {
            classes.add_channels(pattern, *rules).expect("the plan's patterns are well formed");
        }
        for (route, rules) in &self.routes {
            classes.add_route(*route, &format!("route {route}"), *rules);
        }
        classes
    }

    /// Returns the number of classes.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.channels.len() + self.routes.len()
    }

    /// Returns the class of a message to `channel`, or to one receiver if there is none, for a
    /// receiver of `route`.
    #[must_use]
    pub fn class_of(&self, channel: Option<&str>, route: u16) -> usize {
        let of_channel = channel.and_then(|name| {
            self.channels.iter().position(|(pattern, _)| matches(pattern, name)).map(|at| 1 + at)
        });
        let of_route = || {
            let at = self.routes.iter().rposition(|(known, _)| *known == route);
            at.map(|at| 1 + self.channels.len() + at)
        };
        of_channel.or_else(of_route).unwrap_or(0)
    }

    /// The rules of a class.
    pub fn of(&self, class: usize) -> Backpressure {
        let channels = self.channels.iter().map(|(_, rules)| *rules);
        let routes = self.routes.iter().map(|(_, rules)| *rules);
        let mut all = std::iter::once(self.default).chain(channels).chain(routes);
        all.nth(class).expect("a class of these rules")
    }
}

/// Returns whether `pattern` matches `name`: `*` matches any one token, `>` matches one or more
/// tokens at the end.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('.').collect();
    let name: Vec<&str> = name.split('.').collect();
    fits(&pattern, &name)
}

fn fits(pattern: &[&str], name: &[&str]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([">"], [_, ..]) => true,
        ([first, pattern @ ..], [token, name @ ..]) => {
            (*first == "*" || first == token) && fits(pattern, name)
        }
        _ => false,
    }
}
