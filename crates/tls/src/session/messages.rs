//! Handshake messages that come after the handshake.

use crate::alert::Alert;

/// Maximum bytes of a ticket, and of kept messages for it. Typical tickets have 200 bytes.
const MAX_TICKET: usize = 16 * 1024;

pub(super) const HELLO_REQUEST: u8 = 0;
pub(super) const CLIENT_HELLO: u8 = 1;
pub(super) const NEW_SESSION_TICKET: u8 = 4;
pub(super) const KEY_UPDATE: u8 = 24;

/// Messages after a handshake that may span records (RFC 8446 section 5.1): tickets, which only
/// clients get, and updates of keys.
#[derive(Debug, Default)]
pub struct Messages {
    /// The start of a message that later records continue.
    partial: Vec<u8>,
    /// Whole tickets, without their headers, if they are wanted.
    tickets: Vec<Vec<u8>>,
    wants_tickets: bool,
}

throng_carry::carried! {
    Messages {
        required { 1 partial }
        optional { }
        // A connection that wants tickets waits until it has them.
        rebuilt { tickets = Vec::new(), wants_tickets = false }
        check |it| it.partial.len() <= 2 * MAX_TICKET
    }
}

impl Messages {
    /// Keeps tickets from now on, until [`Messages::take_tickets`].
    pub fn want_tickets(&mut self, wants: bool) {
        self.wants_tickets = wants;
    }

    /// Returns the received tickets, which [`Handshake`](crate::handshake::Handshake) can use.
    pub fn take_tickets(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.tickets)
    }

    /// Returns whether there is no incomplete message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Returns the memory of an incomplete message.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.partial.capacity()
    }

    /// Returns the type of the message that continues or begins with `content`.
    pub(super) fn kind(&self, content: &[u8]) -> Option<u8> {
        self.partial.first().or(content.first()).copied()
    }

    /// Takes the content of a record with an update of the peer's keys, which may span records (RFC
    /// 8446 section 5.1). Once it is complete, returns whether it requests an update of our keys.
    pub(super) fn add_update(&mut self, content: &[u8]) -> Result<Option<u8>, Alert> {
        let mut all = std::mem::take(&mut self.partial);
        let whole = match all.is_empty() {
            true => content,
            false => {
                all.extend_from_slice(content);
                &all
            }
        };
        match *whole {
            [KEY_UPDATE, 0, 0, 1, requested] => Ok(Some(requested)),
            // A change of keys ends its record, so nothing may follow.
            [KEY_UPDATE, 0, 0, 1, _, ..] => Err(Alert::UNEXPECTED_MESSAGE),
            [KEY_UPDATE] | [KEY_UPDATE, 0] | [KEY_UPDATE, 0, 0] | [KEY_UPDATE, 0, 0, 1] => {
                self.partial = whole.to_vec();
                Ok(None)
            }
            [KEY_UPDATE, ..] => Err(Alert::DECODE_ERROR),
            _ => Err(Alert::UNEXPECTED_MESSAGE),
        }
    }

    /// Takes the content of a record that has only tickets. A ticket may span records (RFC 8446
    /// section 5.1).
    pub(super) fn add_tickets(&mut self, content: &[u8]) -> Result<(), Alert> {
        let mut all = std::mem::take(&mut self.partial);
        let mut rest = match all.is_empty() {
            true => content,
            false => {
                all.extend_from_slice(content);
                &all
            }
        };
        while let Some(kind) = rest.first() {
            if *kind != NEW_SESSION_TICKET {
                return Err(Alert::UNEXPECTED_MESSAGE);
            }
            let Some((&[_, high, middle, low], after)) = rest.split_first_chunk() else { break };
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            if len > MAX_TICKET {
                return Err(Alert::DECODE_ERROR);
            }
            let Some((ticket, after)) = after.split_at_checked(len) else { break };
            if self.wants_tickets {
                self.tickets.push(ticket.to_vec());
            }
            rest = after;
        }
        self.partial = rest.to_vec();
        Ok(())
    }
}
