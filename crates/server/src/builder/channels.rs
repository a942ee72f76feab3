//! Rules of channels, by pattern.

use throng_engine::{Backpressure, Classes, History, Presence, PresenceRules, SettingError};

/// Rules of channels: for [`Server::channels`](crate::Server::channels).
///
/// A pattern is tokens separated by dots: `*` for any one token, `>` at the end for all that
/// follow. If several patterns match a channel, the first one added applies, separately for each
/// kind of rule; a pattern that follows a pattern with all its channels is a mistake. Mistakes are
/// reported by [`Server::bind`](crate::Server::bind).
///
/// ```
/// # use throng::prelude::*;
/// # use std::time::Duration;
/// // A slow client gets the newest price of each symbol, and none older than five seconds.
/// let newest = Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5));
/// let five_minutes = Duration::from_secs(300);
/// let rules = Channels::new()
///     .backpressure("prices.*", newest)
///     .history("chat.*", History::new(100, five_minutes))
///     .presence("chat.*", Presence::new().join_leave(true));
/// # Server::new(App::new()).channels(rules).check().unwrap();
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Channels {
    pub(super) classes: Classes,
    pub(super) presences: PresenceRules,
    pub(super) mistake: Option<SettingError>,
}

impl Channels {
    /// No rules: the server's back-pressure applies to all channels, and none has a history or
    /// presence.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rules for slow receivers of the channels that match `pattern`. A channel's rules
    /// take precedence over the rules of its receivers' routes.
    pub fn backpressure(mut self, pattern: &str, rules: impl Into<Backpressure>) -> Self {
        let added = self.classes.add_channels(pattern, rules.into());
        self.note(added)
    }

    /// Keeps a history of the channels that match `pattern`: a client that reconnects gets the
    /// publications that it missed, or an indication that this is not possible. See
    /// [`Socket::subscribe_since`](crate::Socket::subscribe_since); streams of server-sent events
    /// do this by themselves. With `None` the channels have no history, even if a later pattern
    /// matches. Default: no history.
    pub fn history(mut self, pattern: &str, history: impl Into<Option<History>>) -> Self {
        let added = self.classes.add_history(pattern, history.into());
        self.note(added)
    }

    /// Keeps presence of the channels that match `pattern`: [`Hub::presence`](crate::Hub::presence)
    /// lists their members, and these may get each other's joins and leaves. With `None` the
    /// channels have no presence, even if a later pattern matches. Default: no presence.
    pub fn presence(mut self, pattern: &str, presence: impl Into<Option<Presence>>) -> Self {
        let added = self.presences.add(pattern, presence.into());
        self.note(added)
    }

    /// Keeps the first mistake for `bind`.
    fn note(mut self, added: Result<(), SettingError>) -> Self {
        self.mistake = self.mistake.or(added.err());
        self
    }
}
