//! History of channels: their last publications, with positions at which a member can join again.
//!
//! A publication of a channel with history gets an offset, one more than that of the one before,
//! and is kept, under the lock that orders the channel's publications. A member joins under the
//! same lock: what it gets from the history ends where what it gets live begins.
//!
//! The store is `store.rs`, one channel of it `ring.rs`. Channels without history do not come here.

mod followed;
mod ring;
mod store;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

#[cfg(doc)]
use crate::HistoryMode;
use crate::backpressure::ClassIndex;
use crate::outbox::frame::Frame;

pub use store::HistoryCounts;
pub(crate) use store::{Histories, Stripe, try_lock};

/// Place in a channel's sequence of publications: behind the one with this offset.
///
/// As text it is `EPOCH:OFFSET`, the epoch in 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Identifies the sequence: another epoch says nothing about this one's offsets.
    pub epoch: u64,
    /// Offset of the last publication before this place.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.epoch, self.offset)
    }
}

/// The part of a channel's history that a member gets when it joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// Nothing: it gets what is published from now on. In a channel whose history is a
    /// [cache](HistoryMode::Cache), the newest publication.
    #[default]
    Now,
    /// All that was published since a position.
    Position(Position),
    /// So many of the last publications, or those that are kept, if they are fewer.
    Last(usize),
}

impl Since {
    /// Returns the position that the member comes back with.
    pub(crate) fn position(self) -> Option<Position> {
        match self {
            Self::Position(position) => Some(position),
            Self::Now | Self::Last(_) => None,
        }
    }
}

impl From<Position> for Since {
    fn from(position: Position) -> Self {
        Self::Position(position)
    }
}

impl From<Option<Position>> for Since {
    fn from(position: Option<Position>) -> Self {
        position.map_or(Self::Now, Self::Position)
    }
}

/// Error of a text that is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionError;

impl fmt::Display for PositionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a position is EPOCH:OFFSET, 16 hexadecimal digits and a number")
    }
}

impl std::error::Error for PositionError {}

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let (epoch, offset) = text.split_once(':').ok_or(PositionError)?;
        let is_number = !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_digit());
        let is_epoch = epoch.len() == 16 && epoch.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_number || !is_epoch {
            return Err(PositionError);
        }
        Ok(Self {
            epoch: u64::from_str_radix(epoch, 16).map_err(|_| PositionError)?,
            offset: offset.parse().map_err(|_| PositionError)?,
        })
    }
}

/// A publication of a channel with history.
///
/// Its frame has the position as the id of the server-sent event.
#[derive(Clone, Debug)]
pub struct Publication {
    position: Position,
    frame: Frame,
}

impl Publication {
    pub(crate) fn new(position: Position, frame: &Frame) -> Self {
        Self { position, frame: frame.numbered(&position.to_string()) }
    }

    /// Returns the place behind this publication.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the message.
    #[must_use]
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Returns the message with its offset in front: `OFFSET PAYLOAD`.
    #[must_use]
    pub fn with_offset(&self) -> Frame {
        self.frame.prefixed(&format!("{} ", self.position.offset))
    }
}

/// A publication on its way to the members of a channel.
///
/// It is created under the lock of the channel's publications, so what members need besides the
/// message is made when the first of them gets it.
#[derive(Debug)]
pub struct Recorded {
    pub(crate) channel: Arc<str>,
    pub(crate) class: ClassIndex,
    pub(crate) frame: Frame,
    position: Position,
    publication: OnceLock<Publication>,
    with_offset: OnceLock<Frame>,
}

impl Recorded {
    fn new(channel: Arc<str>, class: ClassIndex, position: Position, frame: Frame) -> Self {
        let (publication, with_offset) = (OnceLock::new(), OnceLock::new());
        Self { channel, class, frame, position, publication, with_offset }
    }

    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// Returns the message with its position as the id of the event.
    pub(crate) fn event(&self) -> &Frame {
        self.publication().frame()
    }

    /// Returns [`Publication::with_offset`].
    pub(crate) fn with_offset(&self) -> &Frame {
        self.with_offset.get_or_init(|| self.publication().with_offset())
    }

    fn publication(&self) -> &Publication {
        self.publication.get_or_init(|| Publication::new(self.position, &self.frame))
    }
}

/// Place at which a member joins a channel, with what is kept of the publications before it that it
/// has missed.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) position: Position,
    pub(crate) recovered: bool,
    missed: Vec<(u64, Frame)>,
}

impl Joined {
    /// Returns the number of missed publications.
    pub(crate) fn count(&self) -> usize {
        self.missed.len()
    }

    /// Creates the missed publications. To be called without the lock.
    pub(crate) fn missed(&self) -> Vec<Publication> {
        numbered(self.position.epoch, &self.missed)
    }
}

/// Creates publications of messages and their offsets.
pub(crate) fn numbered(epoch: u64, kept: &[(u64, Frame)]) -> Vec<Publication> {
    let publication = |(offset, frame): &(u64, Frame)| {
        Publication::new(Position { epoch, offset: *offset }, frame)
    };
    kept.iter().map(publication).collect()
}

/// Outcome of joining a channel with history.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use = "send the missed publications, or report to the client that they are lost"]
pub struct Recovery {
    /// Whether the connection became a member now. If not, it was one, or is closing, and nothing
    /// else is set.
    pub joined: bool,
    /// Whether the rest is not known yet, because a broker carries the channel and must be asked.
    /// It comes as an event; the connection gets no publication of the channel before.
    pub pending: bool,
    /// The place from which on the connection gets publications live; `None`: the channel has no
    /// history.
    pub position: Option<Position>,
    /// Whether `missed` is all that was published since the position that was asked for. False if
    /// that is not known, or not kept any more, and if no position was given, also with
    /// [`Since::Last`].
    pub recovered: bool,
    /// Publications in between, in order, to be sent with
    /// [`Cx::send_missed`](crate::Cx::send_missed).
    pub missed: Vec<Publication>,
    /// Whether they were left out, because as server-sent events they are too large for the
    /// connection's queue.
    pub too_large: bool,
    /// The rules of the channel's messages.
    pub(crate) class: Option<ClassIndex>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written_and_nothing_else_is() {
        let position = Position { epoch: 0xab, offset: u64::MAX };
        assert_eq!(position.to_string(), "00000000000000ab:18446744073709551615");
        assert_eq!(position.to_string().parse(), Ok(position));
        for wrong in [
            "",
            ":",
            "ab:1",
            "00000000000000ab",
            "00000000000000ab:",
            "00000000000000ab:+1",
            "00000000000000ab:-1",
            "+0000000000000ab:1",
            "00000000000000ab:1:1",
            "00000000000000ab:18446744073709551616",
            "00000000000000ag:1",
        ] {
            assert_eq!(wrong.parse::<Position>(), Err(PositionError), "{wrong}");
        }
    }
}
