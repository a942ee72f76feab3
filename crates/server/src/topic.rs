//! Streams of server-sent events: the channels and patterns that they subscribe to, and how they
//! begin.

use std::time::Duration;

use throng_engine::Frame;

/// A channel, or a pattern of channels, that a stream of server-sent events has; see
/// [`App::sse`](crate::App::sse).
///
/// A text becomes the channel of exactly that name.
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
/// Of a channel with history
/// ([`Channels::history`](crate::channel::Channels::history)) each event has its position as its
/// id, and a client that comes back with that of the last (`Last-Event-ID`, or the parameter
/// `last_event_id` of the query) gets what it missed, or an event called `lost` and what is
/// published from then on.
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
}

impl EventStream {
    /// Creates a stream of what is published to a channel or pattern.
    pub fn new(topic: impl Into<Topic>) -> Self {
        Self { topic: topic.into(), retry: None, first: Vec::new(), info: String::new(), last: 0 }
    }

    /// Sets the time after which a browser that lost its connection comes back. Without it, the
    /// browser decides: about three seconds.
    pub fn retry(mut self, after: Duration) -> Self {
        self.retry = Some(after);
        self
    }

    /// Begins the stream of a client that has seen nothing yet with so many of the last
    /// publications of a channel with history, or those that are kept, if they are fewer. Default:
    /// none.
    pub fn last(mut self, most: usize) -> Self {
        self.last = most;
        self
    }

    /// Sets what is known of the client where the channel has presence; see
    /// [`Socket::subscribe_as`](crate::Socket::subscribe_as).
    pub fn info(mut self, info: impl Into<String>) -> Self {
        self.info = info.into();
        self
    }

    /// Sends these messages before what is published: a snapshot, or what the client has missed.
    /// Messages that are published between the making of a snapshot and the beginning of the
    /// stream are in neither: give messages ids by which clients notice, or publish the next
    /// snapshot soon.
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
