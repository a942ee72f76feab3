//! History of channels: their last publications, with positions at which a member can join again.
//!
//! A publication of a channel with history gets an offset, one more than the offset of the previous
//! publication, and is stored under the lock that orders the channel's publications. A member joins
//! under the same lock, so its part of the history ends where its live publications begin.
//!
//! The store is `store.rs`, one channel of it `ring.rs`. Channels without history do not come here.

mod followed;
mod following;
mod ring;
mod store;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use crate::backpressure::ClassIndex;
#[cfg(doc)]
use crate::backpressure::history::HistoryMode;
use crate::outbox::frame::Frame;

pub use followed::HistoryTail;
pub use store::HistoryCounts;
pub(crate) use store::{Histories, Stripe, try_lock};

/// Bits of the tag that identifies a publication.
const TAG_BITS: u32 = 40;

/// Position in a channel's sequence of publications: behind the publication with this offset.
///
/// As text it is `EPOCH:OFFSET:TAG`, the epoch in 16 hexadecimal digits, the tag in 10. Without a
/// tag it is `EPOCH:OFFSET`, and unproven: no client continues from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Identifies the sequence: offsets of different epochs cannot be compared.
    pub epoch: u64,
    /// Offset of the last publication before this place.
    pub offset: u64,
    /// A 40-bit number that identifies the publication: a broker that has lost the end of a
    /// sequence reuses its offsets for other publications.
    pub tag: Option<u64>,
}

impl Position {
    /// Returns the place in a sequence of this process. This process never loses a publication, so
    /// the tag can be computed from the offset.
    fn own(epoch: u64, offset: u64) -> Self {
        // The finalizer of SplitMix64.
        let mut bits = epoch ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self { epoch, offset, tag: Some(bits >> (u64::BITS - TAG_BITS)) }
    }

    /// Returns this place as a number that grows with each publication of its sequence and proves
    /// the place: for protocols whose clients keep one number and cannot keep a tag.
    ///
    /// It is the offset where this process orders the sequence. Where a broker does, it is the
    /// offset times 65,536, plus 16 bits of the tag: a broker that has lost the end of a sequence
    /// and continued it is not noticed in one of 65,536 cases.
    #[must_use]
    pub fn to_number(self) -> u64 {
        match self.tag {
            Some(tag) if self != Self::own(self.epoch, self.offset) => {
                self.offset << SHORT_BITS | tag & SHORT_MASK
            }
            _ => self.offset,
        }
    }

    /// Returns the place that [`to_number`](Self::to_number) has made a number, in a sequence of a
    /// broker (`is_carried`) or of this process.
    #[must_use]
    pub fn from_number(epoch: u64, number: u64, is_carried: bool) -> Self {
        match is_carried {
            false => Self::own(epoch, number),
            true => {
                let (offset, tag) = (number >> SHORT_BITS, number & SHORT_MASK);
                Self { epoch, offset, tag: Some(SHORT | tag) }
            }
        }
    }

    /// Returns whether the tag that a client gives is the tag of a publication: all of it, or the
    /// bits of a number.
    pub(crate) fn proves(given: Option<u64>, tag: Option<u64>) -> bool {
        match (given, tag) {
            (Some(given), Some(tag)) if given & SHORT != 0 => {
                given & SHORT_MASK == tag & SHORT_MASK
            }
            (given, tag) => given.is_some() && given == tag,
        }
    }

    /// Returns whether a client that gives this position is at `other`.
    pub(crate) fn is_at(self, other: Self) -> bool {
        (self.epoch, self.offset) == (other.epoch, other.offset)
            && (self.tag == other.tag || Self::proves(self.tag, other.tag))
    }
}

/// Bits of the tag in a number.
const SHORT_BITS: u32 = 16;
const SHORT_MASK: u64 = (1 << SHORT_BITS) - 1;

/// Marks a tag that has only the bits of a number. A whole tag is smaller.
const SHORT: u64 = 1 << 63;

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.epoch, self.offset)?;
        self.tag.map_or(Ok(()), |tag| write!(f, ":{tag:010x}"))
    }
}

/// The part of a channel's history that a member gets when it joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// No earlier publications: the member gets publications from now on. In a channel whose
    /// history is a [cache](HistoryMode::Cache), it also gets the newest publication.
    #[default]
    Now,
    /// All publications since a position.
    Position(Position),
    /// This many of the last publications, or all kept ones if there are fewer.
    Last(usize),
}

impl Since {
    /// Returns the position with which the member rejoins.
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

/// Error for a text that is not a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionError;

impl fmt::Display for PositionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a position is EPOCH:OFFSET:TAG: 16 hexadecimal digits, a number and 10 hexadecimal \
             digits",
        )
    }
}

impl std::error::Error for PositionError {}

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let (epoch, rest) = text.split_once(':').ok_or(PositionError)?;
        let (offset, tag) = match rest.split_once(':') {
            Some((offset, tag)) => (offset, Some(tag)),
            None => (rest, None),
        };
        let is_number = offset.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number || offset.len() > 1 && offset.starts_with('0') {
            return Err(PositionError);
        }
        Ok(Self {
            epoch: hexadecimal(epoch, 16)?,
            offset: offset.parse().map_err(|_| PositionError)?,
            tag: tag.map(|tag| hexadecimal(tag, TAG_BITS as usize / 4)).transpose()?,
        })
    }
}

/// Reads a number of exactly this many digits, as it is written.
fn hexadecimal(text: &str, digits: usize) -> Result<u64, PositionError> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != digits || !text.bytes().all(is_digit) {
        return Err(PositionError);
    }
    u64::from_str_radix(text, 16).map_err(|_| PositionError)
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

    /// Returns the message with its offset and tag prepended: `OFFSET:TAG PAYLOAD`.
    #[must_use]
    pub fn with_offset(&self) -> Frame {
        let Position { offset, tag, .. } = self.position;
        self.frame.prefixed(&format!("{offset}:{:010x} ", tag.unwrap_or_default()))
    }
}

/// A publication that is being sent to the members of a channel.
///
/// It is created under the lock of the channel's publications, so further forms of the message are
/// made only when the first member needs them.
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

/// Position at which a member joins a channel, with the kept publications that it has missed.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) position: Position,
    pub(crate) recovered: bool,
    missed: Vec<Kept>,
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

/// A message with its offset and its tag.
pub(crate) type Kept = (u64, u64, Frame);

/// Creates publications of messages.
pub(crate) fn numbered(epoch: u64, kept: &[Kept]) -> Vec<Publication> {
    let publication = |(offset, tag, frame): &Kept| {
        Publication::new(Position { epoch, offset: *offset, tag: Some(*tag) }, frame)
    };
    kept.iter().map(publication).collect()
}

/// Outcome of joining a channel with history.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use = "send the missed publications, or report to the client that they are lost"]
pub struct Recovery {
    /// Whether the connection became a member now. If false, it was already a member, or is
    /// closing, and no other field is set.
    pub joined: bool,
    /// Whether the other fields are not known yet, because a broker carries the channel and must be
    /// asked. They arrive as an event; until then the connection gets no publication of the
    /// channel.
    pub pending: bool,
    /// The place from which on the connection gets publications live; `None`: the channel has no
    /// history.
    pub position: Option<Position>,
    /// Whether `missed` has all publications since the given position. False if this is unknown, if
    /// some are no longer kept, or if no position was given, as with [`Since::Last`].
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
    fn a_number_grows_with_the_sequence_and_proves_a_place_in_it() {
        for offset in [0, 1, 2, 70_000] {
            let own = Position::own(7, offset);
            assert_eq!((own.to_number(), Position::from_number(7, offset, false)), (offset, own));
        }
        let carried = Position { epoch: 7, offset: 5, tag: Some(0xab_0001_ffff) };
        let next = Position { offset: 6, tag: Some(0), ..carried };
        assert!(carried.to_number() < next.to_number());
        let back = Position::from_number(7, carried.to_number(), true);
        assert!(back.is_at(carried) && !back.is_at(next));
        let other = Position { tag: Some(0xab_0001_fffe), ..carried };
        assert!(!back.is_at(other) && !other.is_at(carried) && other.is_at(other));
        assert!(!Position::proves(None, None) && !Position::proves(back.tag, None));
        let start = Position { epoch: 7, offset: 0, tag: Some(0) };
        assert!(Position::from_number(7, start.to_number(), true).is_at(start));
    }

    #[test]
    fn a_position_is_read_as_it_is_written_and_nothing_else_is() {
        let unproven = Position { epoch: 0xab, offset: u64::MAX, tag: None };
        let position = Position { tag: Some(0xcd), ..unproven };
        let texts = ["00000000000000ab:18446744073709551615", ":00000000cd"];
        assert_eq!((unproven.to_string(), position.to_string()), (texts[0].into(), texts.concat()));
        for position in [unproven, position, Position::own(7, 0), Position::own(7, 9)] {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
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
            "00000000000000ab:1:",
            "00000000000000ab:1:00000000cd:",
            "00000000000000ab:1:00000000cd0",
            "00000000000000ab:1:+0000000cd",
            "00000000000000ab:1:00000000CD",
            "00000000000000AB:1:00000000cd",
            "00000000000000ab::00000000cd",
            "00000000000000ab:01:00000000cd",
            " 00000000000000ab:1:00000000cd",
            "00000000000000ab:18446744073709551616",
            "00000000000000ag:1",
        ] {
            assert_eq!(wrong.parse::<Position>(), Err(PositionError), "{wrong}");
        }
    }
}
