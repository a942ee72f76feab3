//! Streams of server-sent events: their channels and patterns, and how they begin.

use std::time::Duration;

use throng_engine::Frame;

/// The channel, or the pattern of channels, of a stream of server-sent events; see
/// [`App::sse`](crate::App::sse).
///
/// Text converts into the channel of exactly that name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// The channel of exactly this name.
    Channel(String),
    /// All channels that match this pattern, as for
    /// [`Socket::subscribe_pattern`](crate::Socket::subscribe_pattern). A malformed one is answered
    /// with 400.
    Pattern(String),
}

impl From<String> for Topic {
    fn from(channel: String) -> Self {
        Self::Channel(channel)
    }
}

impl From<&str> for Topic {
    fn from(channel: &str) -> Self {
        Self::Channel(channel.to_owned())
    }
}

/// A stream of server-sent events that begins; see [`App::sse`](crate::App::sse).
///
/// In a channel with history ([`Channels::history`](crate::channel::Channels::history)) the id of
/// each event is its position. A client that comes back with the id of its last event
/// (`Last-Event-ID`, or the parameter `last_event_id` of the query) gets the events that it missed,
/// or an event called `lost` and all later publications.
///
/// ```
/// use std::time::Duration;
/// use throng::http::EventStream;
/// use throng::prelude::*;
///
/// App::new().sse("/prices", |request| {
///     let seen = request.last_event_id().and_then(|id| id.parse().ok()).unwrap_or(0);
///     let missed = (seen + 1..=3).map(|n| Frame::text("1.17").event_id(n.to_string()));
///     Ok(EventStream::new("prices").retry(Duration::from_secs(2)).first(missed))
/// });
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct EventStream {
    pub(crate) topic: Topic,
    pub(crate) retry: Option<Duration>,
    pub(crate) first: Vec<Frame>,
    pub(crate) info: String,
    pub(crate) last: usize,
    pub(crate) recovers: bool,
    pub(crate) lifetime: Option<Duration>,
}

impl EventStream {
    /// Creates a stream of the publications to a channel or pattern.
    pub fn new(topic: impl Into<Topic>) -> Self {
        Self {
            topic: topic.into(),
            retry: None,
            first: Vec::new(),
            info: String::new(),
            last: 0,
            recovers: true,
            lifetime: None,
        }
    }

    /// Sets the time after which a browser that lost its connection comes back. Without it, the
    /// browser decides: about three seconds.
    pub fn retry(mut self, after: Duration) -> Self {
        self.retry = Some(after);
        self
    }

    /// Begins the stream of a new client with up to `most` of the last publications of a channel
    /// with history. Default: none.
    pub fn last(mut self, most: usize) -> Self {
        self.last = most;
        self
    }

    /// Whether a client that comes back gets the messages in between, in a channel with history.
    /// Default: true. Without it, such a client gets the event `lost`, as where the history does
    /// not reach back far enough, and [`last`](Self::last) has no effect.
    pub fn recovers(mut self, recovers: bool) -> Self {
        self.recovers = recovers;
        self
    }

    /// Ends the stream after this time, counted as [`EndReason::Token`](crate::server::EndReason):
    /// for clients whose token expires. A browser comes back, and is asked for a new one. Takes
    /// about 150 bytes until then. Default: no end.
    pub fn token_expires_in(mut self, lifetime: impl Into<Option<Duration>>) -> Self {
        self.lifetime = lifetime.into();
        self
    }

    /// Sets the client's information in a channel with presence; see
    /// [`Socket::subscribe_as`](crate::Socket::subscribe_as).
    pub fn info(mut self, info: impl Into<String>) -> Self {
        self.info = info.into();
        self
    }

    /// Sends these messages before the publications: a snapshot, or messages that the client has
    /// missed. Messages published between the snapshot and the beginning of the stream are in
    /// neither: give messages ids by which clients notice, or publish the next snapshot soon.
    pub fn first<M: Into<Frame>>(mut self, messages: impl IntoIterator<Item = M>) -> Self {
        self.first.extend(messages.into_iter().map(Into::into));
        self
    }
}

impl From<Topic> for EventStream {
    fn from(topic: Topic) -> Self {
        Self::new(topic)
    }
}

impl From<String> for EventStream {
    fn from(channel: String) -> Self {
        Self::new(channel)
    }
}

impl From<&str> for EventStream {
    fn from(channel: &str) -> Self {
        Self::new(channel)
    }
}
