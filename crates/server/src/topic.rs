//! Channels and patterns that a stream of events subscribes to.

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
