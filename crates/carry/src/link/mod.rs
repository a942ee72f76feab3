//! The link between a shard and the same shard of the successor process: batches of connections,
//! and the rule that each has one owner.
//!
//! * [`Giver`] is the side of the predecessor, [`Taker`] the successor's. Both are pure: they
//!   take messages and facts, and return what their shard must do.
//! * The record of a connection is a value of theirs. The process that receives it from
//!   [`GiverStep::Return`] or [`TakerStep::Continue`] continues the connection.
//!
//! ```text
//! BATCH n    here are parked connections       predecessor to successor
//! TAKEN n    they are entered and silent; these are refused
//! YOURS n    go on: once it has left the queue for the kernel, they are the successor's
//! REVOKE n   forget them                       predecessor to successor, before YOURS
//! REVOKED n  they are forgotten
//! ```

mod giver;
#[cfg(test)]
mod model;
mod taker;

use std::fmt;

pub use self::giver::{Giver, GiverStep, TAKEN_WITHIN};
pub use self::taker::{Taker, TakerStep};
use crate::secret::Secret;
use crate::wire::{CarryError, Content, Encoder, Message};

/// The most records of one batch: each may have two descriptors, and 64 are sent at once.
pub const MAX_RECORDS: usize = 32;

/// A message of a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkMessage {
    /// Parked connections, whose descriptors were sent before.
    Batch {
        /// The number of the batch, from 1.
        number: u64,
        /// The connections.
        records: Vec<LinkRecord>,
    },
    /// The connections of a batch are entered, except some.
    Taken {
        /// The number of the batch.
        number: u64,
        /// The ids of connections that the predecessor keeps.
        refused: Vec<u64>,
    },
    /// The connections that were taken belong to the successor.
    Yours {
        /// The number of the batch.
        number: u64,
    },
    /// The successor must forget the connections.
    Revoke {
        /// The number of the batch.
        number: u64,
    },
    /// The successor has forgotten the connections.
    Revoked {
        /// The number of the batch.
        number: u64,
    },
}

/// The state of one connection, or of two that move together, as bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LinkRecord {
    /// The id of the connection, or of the first of two.
    pub id: u64,
    /// Its state. It may contain keys.
    pub state: Secret,
}

impl fmt::Debug for LinkRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No content: it may be a key.
        f.debug_struct("LinkRecord").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why a message does not fit the state of a link. The other process has a fault, so the link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkFault {
    /// It is not a message that this release reads.
    Malformed(CarryError),
    /// This side does not receive such a message.
    WrongSide,
    /// It names a batch that is not under way.
    WrongBatch(u64),
    /// It names a connection that is not in the batch.
    WrongConnection(u64),
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "a malformed message: {error}"),
            Self::WrongSide => f.write_str("a message of the wrong side"),
            Self::WrongBatch(number) => write!(f, "the batch {number} is not under way"),
            Self::WrongConnection(id) => write!(f, "the connection {id:x} is not in the batch"),
        }
    }
}

impl std::error::Error for LinkFault {}

impl From<CarryError> for LinkFault {
    fn from(error: CarryError) -> Self {
        Self::Malformed(error)
    }
}

/// Tags of messages.
mod tag {
    pub(super) const BATCH: u16 = 1;
    pub(super) const TAKEN: u16 = 2;
    pub(super) const YOURS: u16 = 3;
    pub(super) const REVOKE: u16 = 4;
    pub(super) const REVOKED: u16 = 5;
    /// A record, in the field [`super::field::RECORD`].
    pub(super) const RECORD: u16 = 1;
}

/// Tags of fields.
mod field {
    pub(super) const NUMBER: u16 = 1;
    pub(super) const RECORD: u16 = 3;
    pub(super) const REFUSED: u16 = 3;
    pub(super) const ID: u16 = 1;
    pub(super) const STATE: u16 = 3;
}

impl LinkMessage {
    /// Returns the encoded message.
    #[must_use]
    pub fn encode(&self) -> Secret {
        let numbered = |tag, number: &u64| Encoder::new(tag).number(field::NUMBER, *number);
        match self {
            Self::Batch { number, records } => {
                let begun = numbered(tag::BATCH, number);
                let add = |out: Encoder, record: &LinkRecord| {
                    let LinkRecord { id, state } = record;
                    let record = Encoder::new(tag::RECORD);
                    let record = record.number(field::ID, *id).bytes(field::STATE, state);
                    out.message(field::RECORD, record)
                };
                records.iter().fold(begun, add)
            }
            Self::Taken { number, refused } => {
                let begun = numbered(tag::TAKEN, number);
                refused.iter().fold(begun, |out, id| out.number(field::REFUSED, *id))
            }
            Self::Yours { number } => numbered(tag::YOURS, number),
            Self::Revoke { number } => numbered(tag::REVOKE, number),
            Self::Revoked { number } => numbered(tag::REVOKED, number),
        }
        .finish()
    }

    /// Decodes a message; `None` if this release does not know its tag.
    ///
    /// # Errors
    /// It is malformed, or has more than [`MAX_RECORDS`] records.
    pub fn decode(message: &Message) -> Result<Option<Self>, CarryError> {
        let decoded = match message.tag() {
            tag::BATCH => {
                let mut records = Vec::new();
                let number = numbered(message, |tag, content| {
                    if tag != field::RECORD {
                        return Ok(false);
                    }
                    if records.len() == MAX_RECORDS {
                        return Err(CarryError::TooLong);
                    }
                    records.push(LinkRecord::decode(content)?);
                    Ok(true)
                })?;
                Self::Batch { number, records }
            }
            tag::TAKEN => {
                let mut refused = Vec::new();
                let number = numbered(message, |tag, content| {
                    if tag != field::REFUSED {
                        return Ok(false);
                    }
                    if refused.len() == MAX_RECORDS {
                        return Err(CarryError::TooLong);
                    }
                    refused.push(content.number()?);
                    Ok(true)
                })?;
                Self::Taken { number, refused }
            }
            tag::YOURS => Self::Yours { number: numbered(message, no_other)? },
            tag::REVOKE => Self::Revoke { number: numbered(message, no_other)? },
            tag::REVOKED => Self::Revoked { number: numbered(message, no_other)? },
            _ => return Ok(None),
        };
        Ok(Some(decoded))
    }
}

/// Knows no field.
fn no_other(_: u16, _: Content<'_>) -> Result<bool, CarryError> {
    Ok(false)
}

/// Reads the number of a message, and passes its other fields to `take`.
fn numbered(
    message: &Message,
    mut take: impl FnMut(u16, Content<'_>) -> Result<bool, CarryError>,
) -> Result<u64, CarryError> {
    let mut number = None;
    message.read(|tag, content| {
        if tag != field::NUMBER {
            return take(tag, content);
        }
        number = Some(content.number()?);
        Ok(true)
    })?;
    number.ok_or(CarryError::Missing(field::NUMBER))
}

impl LinkRecord {
    fn decode(content: Content<'_>) -> Result<Self, CarryError> {
        let (mut id, mut state) = (None, None);
        content.message()?.read(|tag, content| {
            match tag {
                field::ID => id = Some(content.number()?),
                field::STATE => state = Some(Secret::from(content.0)),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self {
            id: id.ok_or(CarryError::Missing(field::ID))?,
            state: state.ok_or(CarryError::Missing(field::STATE))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Inbox;

    fn decode(bytes: &[u8]) -> Result<Option<LinkMessage>, CarryError> {
        let mut inbox = Inbox::new(1 << 16);
        inbox.push(bytes);
        LinkMessage::decode(&inbox.next_message()?.ok_or(CarryError::Cut)?)
    }

    fn messages() -> impl Strategy<Value = LinkMessage> {
        let record = (any::<u64>(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(id, state)| LinkRecord { id, state: Secret::from(&*state) });
        let records = prop::collection::vec(record, 0..MAX_RECORDS);
        let ids = prop::collection::vec(any::<u64>(), 0..MAX_RECORDS);
        let number = any::<u64>;
        prop_oneof![
            (number(), records)
                .prop_map(|(number, records)| LinkMessage::Batch { number, records }),
            (number(), ids).prop_map(|(number, refused)| LinkMessage::Taken { number, refused }),
            number().prop_map(|number| LinkMessage::Yours { number }),
            number().prop_map(|number| LinkMessage::Revoke { number }),
            number().prop_map(|number| LinkMessage::Revoked { number }),
        ]
    }

    #[test]
    fn a_message_of_a_later_release_is_skipped_and_one_without_its_number_is_refused() {
        assert_eq!(decode(&Encoder::new(900).number(1, 1).finish()), Ok(None));
        let yours = Encoder::new(tag::YOURS).finish();
        assert_eq!(decode(&yours), Err(CarryError::Missing(field::NUMBER)));
    }

    #[test]
    fn a_batch_with_too_many_records_is_refused() {
        let record = || LinkRecord { id: 1, state: Secret::default() };
        let records = (0..=MAX_RECORDS).map(|_| record()).collect();
        let bytes = LinkMessage::Batch { number: 1, records }.encode();
        assert_eq!(decode(&bytes), Err(CarryError::TooLong));
    }

    #[test]
    fn the_content_of_a_record_is_not_printed() {
        let record = LinkRecord { id: 7, state: Secret::from(&b"secret"[..]) };
        assert_eq!(format!("{record:?}"), "LinkRecord { id: 7, .. }");
    }

    proptest! {
        #[test]
        fn a_message_is_decoded_as_it_was_encoded(message in messages()) {
            prop_assert_eq!(decode(&message.encode()), Ok(Some(message)));
        }

        #[test]
        fn no_bytes_make_it_panic(
            tag in 0u16..10,
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut message = tag.to_le_bytes().to_vec();
            message.extend_from_slice(&bytes);
            let message = Message::decode(Secret::from(&*message)).unwrap();
            let _ = LinkMessage::decode(&message);
        }
    }
}
