//! The subject of a message, for sessions that get it in a dialect.

/// The subject of a message, for sessions that get it in a [`Dialect`](crate::Dialect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum About {
    /// A client has published it, which this text describes.
    Publisher(Box<str>),
    /// A client has joined or left the channel.
    Presence(Box<PresenceNote>),
    /// Joins and leaves are announced no longer, or again.
    Switch,
}

/// A client that has joined or left a channel: a [`PresenceEvent`](crate::PresenceEvent) that a
/// message keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceNote {
    /// Whether it came or went.
    pub change: PresenceChange,
    /// The server that it is connected to, in a channel of a cluster.
    pub node: Option<u64>,
    /// The connection there.
    pub client: u64,
    /// The information that it was given when it joined.
    pub info: Box<str>,
}

/// Whether a client came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PresenceChange {
    /// It joined the channel.
    Join,
    /// It left the channel, or its connection ended.
    Leave,
}

impl PresenceChange {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Leave => "leave",
        }
    }
}

impl About {
    /// Returns its memory.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Publisher(text) => text.len(),
            Self::Presence(note) => size_of::<PresenceNote>() + note.info.len(),
            Self::Switch => 0,
        }
    }
}
