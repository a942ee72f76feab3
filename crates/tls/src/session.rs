//! An established session, and the records that it receives.

mod messages;

use std::fmt;
use std::ops::Range;

use aws_lc_rs::aead::NONCE_LEN;
use aws_lc_rs::error::Unspecified;

pub use self::messages::Messages;
use self::messages::{CLIENT_HELLO, HELLO_REQUEST, KEY_UPDATE, NEW_SESSION_TICKET};
use crate::alert::Alert;
use crate::cipher::{ExpandedKey, Suite, TrafficKeys, Version, blocks};
use crate::record::{ContentType, HEADER_LEN, Header, MAX_PLAINTEXT, Protection};

/// Maximum consecutive records without data: empty ones, key updates, ignored alerts. A peer that
/// sends more of them keeps us busy for nothing.
const MAX_IDLE_RECORDS: u8 = 32;

/// Maximum updates of the peer's keys that come before [`RECORDS_PER_UPDATE`] records: each costs
/// two generations of keys. Peers normally update after millions of records.
const MAX_EARLY_UPDATES: u8 = 64;

/// Records with one key that compensate for one early update.
const RECORDS_PER_UPDATE: u64 = 64;

/// Records with one key after which we update it ourselves: half of what AES-GCM allows if all are
/// full.
const UPDATE_AFTER: u64 = 1 << 23;

/// The keys of one direction when a handshake ends.
pub struct Direction<'a> {
    /// The key of the AEAD.
    pub key: &'a [u8],
    /// The IV of the AEAD.
    pub iv: [u8; NONCE_LEN],
    /// The traffic secret from which key and IV were derived. Without it the keys cannot be
    /// updated.
    pub secret: Option<&'a [u8]>,
    /// The number of the next record.
    pub sequence: u64,
}

/// Expanded keys of a session, shared by its records. Empty ones serve any session; the keys of
/// another session are ignored.
#[derive(Default)]
pub struct WarmKeys {
    tx: ExpandedKey,
    rx: ExpandedKey,
}

/// All state of an established session between two events: keys, secrets and sequence numbers of
/// both directions, and a few flags, in at most 200 bytes.
pub struct Session {
    tx: TrafficKeys,
    rx: TrafficKeys,
    suite: Suite,
    flags: u8,
    /// Consecutive records that carried no data.
    idle_records: u8,
    /// Early updates of the peer's keys that were not compensated for.
    early_updates: u8,
}

throng_carry::flags! {
    /// Bits of `Session::flags`.
    mod flag: u8 {
        moved {
            /// The keys can be updated.
            HAS_SECRETS = 1,
            /// We owe the peer an update of our keys (TLS 1.3), or the refusal of a renegotiation
            /// (TLS 1.2).
            OWES_REPLY = 1 << 1,
            /// A renegotiation was requested before.
            HAS_REFUSED = 1 << 2,
            /// We are the client.
            IS_CLIENT = 1 << 3,
            /// The version is TLS 1.2.
            IS_TLS12 = 1 << 4,
        }
        rebuilt {}
        waits {}
    }
}

// The wire form has the numbers of the bits: another number is another form.
throng_carry::carried! {
    Session {
        required { 1 tx, 3 rx, 5 suite, 7 flags, 9 idle_records, 11 early_updates }
        optional { }
        rebuilt { }
        check |session| session.is_sound()
    }
}

/// The outcome of [`Session::open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The place of the data, moved together.
    pub data: Range<usize>,
    /// Bytes of the input that were used; the rest is the start of an incomplete record.
    pub consumed: usize,
    /// Why no further record may be opened, if so.
    pub end: Option<End>,
    /// Whether [`Session::seal_reply`] has something to send.
    pub has_reply: bool,
}

impl Opened {
    /// Returns whether only data came: all `len` bytes of the input were whole records that neither
    /// end it nor require an answer.
    #[inline]
    pub(crate) fn is_data_only(&self, len: usize) -> bool {
        self.consumed == len && self.end.is_none() && !self.has_reply
    }
}

/// The end of a session's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer will send nothing more, as it has announced.
    CloseNotify,
    /// The peer has ended the session with a fatal alert.
    PeerAlert(Alert),
    /// The input does not belong to this session; the caller sends this alert.
    Fatal(Alert),
}

/// The content of one record.
enum Content {
    Data(Range<usize>),
    Idle,
    End(End),
}

impl Session {
    /// Takes over the keys of a handshake. If both directions have a secret, it checks that the
    /// keys are derived from it; if not, the session has no updates.
    ///
    /// # Errors
    /// The cipher library refused the keys, which cannot happen for keys of the right length.
    pub fn new(
        version: Version,
        suite: Suite,
        send: &Direction<'_>,
        receive: &Direction<'_>,
    ) -> Result<Self, Unspecified> {
        let is_derived = |direction: &Direction<'_>| -> Result<bool, Unspecified> {
            let Some(secret) = direction.secret else { return Ok(false) };
            if secret.len() != suite.secret_len() {
                return Ok(false);
            }
            let given = TrafficKeys::new(suite, direction.key, &direction.iv, None, 0);
            Ok(TrafficKeys::from_secret(suite, secret)?.has_keys_of(&given))
        };
        let has_secrets = version == Version::Tls13 && is_derived(send)? && is_derived(receive)?;
        let keys = |direction: &Direction<'_>| {
            let secret = direction.secret.filter(|_| has_secrets);
            TrafficKeys::new(suite, direction.key, &direction.iv, secret, direction.sequence)
        };
        Ok(Self {
            tx: keys(send),
            rx: keys(receive),
            suite,
            flags: match (version, has_secrets) {
                (Version::Tls12, _) => flag::IS_TLS12,
                (Version::Tls13, true) => flag::HAS_SECRETS,
                (Version::Tls13, false) => 0,
            },
            idle_records: 0,
            early_updates: 0,
        })
    }

    /// Returns whether the session sends with the keys of this secret.
    #[cfg(test)]
    pub(crate) fn sends_with_keys_of(&self, suite: Suite, secret: &[u8]) -> bool {
        let keys = TrafficKeys::from_secret(suite, secret);
        keys.is_ok_and(|keys| self.tx.has_keys_of(&keys))
    }

    /// Returns whether it can be a session that was moved: its flags agree with each other, and its
    /// keys with their secrets.
    fn is_sound(&self) -> bool {
        let has_secrets = self.has(flag::HAS_SECRETS);
        let is_known = self.flags & !flag::MOVED == 0 && !(has_secrets && self.has(flag::IS_TLS12));
        is_known
            && (!has_secrets || self.tx.are_derived(self.suite) && self.rx.are_derived(self.suite))
    }

    /// A session without keys, a placeholder for a session that is moved.
    pub(crate) fn blank() -> Self {
        Self {
            tx: TrafficKeys::zero(),
            rx: TrafficKeys::zero(),
            suite: Suite::Aes128Gcm,
            flags: 0,
            idle_records: 0,
            early_updates: 0,
        }
    }

    /// Begins a session of TLS 1.3 from its traffic secrets.
    ///
    /// # Errors
    /// A secret does not have the length of the suite's hash.
    pub fn from_secrets(suite: Suite, send: &[u8], receive: &[u8]) -> Result<Self, Unspecified> {
        if send.len() != suite.secret_len() || receive.len() != suite.secret_len() {
            return Err(Unspecified);
        }
        Ok(Self {
            tx: TrafficKeys::from_secret(suite, send)?,
            rx: TrafficKeys::from_secret(suite, receive)?,
            suite,
            flags: flag::HAS_SECRETS,
            idle_records: 0,
            early_updates: 0,
        })
    }

    /// Makes the session a client's, which receives tickets.
    #[must_use]
    pub fn of_client(mut self) -> Self {
        self.flags |= flag::IS_CLIENT;
        self
    }

    /// Returns whether the keys can be updated: in TLS 1.3, if their secrets are known.
    #[must_use]
    pub fn can_update(&self) -> bool {
        self.has(flag::HAS_SECRETS)
    }

    /// Returns whether we are the client.
    pub(crate) fn is_client(&self) -> bool {
        self.has(flag::IS_CLIENT)
    }

    fn version(&self) -> Version {
        if self.has(flag::IS_TLS12) { Version::Tls12 } else { Version::Tls13 }
    }

    fn protection(&self) -> Protection {
        Protection { suite: self.suite, version: self.version() }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Clears a flag; returns whether it was set.
    fn take(&mut self, flag: u8) -> bool {
        let was_set = self.has(flag);
        self.flags &= !flag;
        was_set
    }

    /// Returns the length of the record at the start of `input`, header included, if the header is
    /// complete.
    ///
    /// # Errors
    /// The header does not belong to this session.
    pub fn record_len(&self, input: &[u8]) -> Result<Option<usize>, Alert> {
        let header = Header::decode(input, self.version())?;
        Ok(header.map(|header| HEADER_LEN + header.len))
    }

    /// Opens all whole records in `input`, in place, and moves their data together. Messages are
    /// kept in `messages`, which must be the same for all records of the session.
    pub fn open(
        &mut self,
        input: &mut [u8],
        warm: &mut WarmKeys,
        messages: &mut Messages,
    ) -> Opened {
        let mut opened = Opened { data: 0..0, consumed: 0, end: None, has_reply: false };
        while opened.end.is_none() && opened.consumed < input.len() {
            let rest = &mut input[opened.consumed..];
            let header = match Header::decode(rest, self.version()) {
                Ok(Some(header)) if rest.len() >= HEADER_LEN + header.len => header,
                Ok(_) => break,
                Err(alert) => {
                    opened.end = Some(End::Fatal(alert));
                    break;
                }
            };
            let record = &mut rest[..HEADER_LEN + header.len];
            match self.open_one(&mut warm.rx, header, record, messages) {
                Ok(Content::Data(place)) => {
                    let (start, len) = (opened.consumed + place.start, place.len());
                    if opened.data.is_empty() {
                        opened.data = start..start + len;
                    } else {
                        input.copy_within(start..start + len, opened.data.end);
                        opened.data.end += len;
                    }
                }
                Ok(Content::Idle) => {}
                Ok(Content::End(end)) => opened.end = Some(end),
                Err(alert) => opened.end = Some(End::Fatal(alert)),
            }
            opened.consumed += HEADER_LEN + header.len;
        }
        opened.has_reply = self.has(flag::OWES_REPLY);
        opened
    }

    #[inline(always)]
    fn open_one(
        &mut self,
        key: &mut ExpandedKey,
        header: Header,
        record: &mut [u8],
        messages: &mut Messages,
    ) -> Result<Content, Alert> {
        let key = key.of(&self.rx, self.suite).map_err(|_| Alert::INTERNAL_ERROR)?;
        let (content_type, place) = self.protection().open(&mut self.rx, key, header, record)?;
        if content_type != ContentType::Handshake && !messages.is_empty() {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        if content_type == ContentType::ApplicationData && !place.is_empty() {
            self.idle_records = 0;
            return Ok(Content::Data(place));
        }
        self.handle_other(content_type, &record[place], messages)
    }

    /// Handles a record that carries no data.
    #[cold]
    #[inline(never)]
    fn handle_other(
        &mut self,
        content_type: ContentType,
        content: &[u8],
        messages: &mut Messages,
    ) -> Result<Content, Alert> {
        self.idle_records += 1;
        if self.idle_records > MAX_IDLE_RECORDS {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        match content_type {
            ContentType::ApplicationData => Ok(Content::Idle),
            ContentType::Alert => self.handle_alert(content),
            ContentType::Handshake => self.handle_handshake(content, messages),
            ContentType::ChangeCipherSpec => Err(Alert::UNEXPECTED_MESSAGE),
        }
    }

    /// Handles an alert (RFC 8446 section 6, RFC 5246 section 7.2).
    fn handle_alert(&self, alert: &[u8]) -> Result<Content, Alert> {
        let &[level, description] = alert else { return Err(Alert::DECODE_ERROR) };
        let alert = Alert(description);
        Ok(match (self.version(), level, alert) {
            (_, _, Alert::CLOSE_NOTIFY) => Content::End(End::CloseNotify),
            (Version::Tls13, _, Alert::USER_CANCELED) | (Version::Tls12, 1, _) => Content::Idle,
            (Version::Tls13, ..) | (Version::Tls12, 2, _) => Content::End(End::PeerAlert(alert)),
            _ => return Err(Alert::ILLEGAL_PARAMETER),
        })
    }

    /// Handles a message of the handshake protocol: an update of the peer's keys, or in TLS 1.2 a
    /// renegotiation, which is refused once.
    fn handle_handshake(
        &mut self,
        message: &[u8],
        messages: &mut Messages,
    ) -> Result<Content, Alert> {
        if self.version() == Version::Tls12 {
            let renegotiates = if self.has(flag::IS_CLIENT) { HELLO_REQUEST } else { CLIENT_HELLO };
            if self.has(flag::HAS_REFUSED) || message.first() != Some(&renegotiates) {
                return Err(Alert::UNEXPECTED_MESSAGE);
            }
            self.flags |= flag::HAS_REFUSED | flag::OWES_REPLY;
            return Ok(Content::Idle);
        }
        let is_ticket = messages.kind(message) == Some(NEW_SESSION_TICKET);
        if self.has(flag::IS_CLIENT) && !message.is_empty() && is_ticket {
            return messages.add_tickets(message).map(|()| Content::Idle);
        }
        let Some(requested) = messages.add_update(message)? else { return Ok(Content::Idle) };
        if requested > 1 {
            return Err(Alert::ILLEGAL_PARAMETER);
        }
        if !self.can_update() {
            return Err(Alert::INTERNAL_ERROR);
        }
        let made_up = u8::try_from(self.rx.records() / RECORDS_PER_UPDATE).unwrap_or(u8::MAX);
        self.early_updates = (self.early_updates + 1).saturating_sub(made_up);
        if self.early_updates > MAX_EARLY_UPDATES {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        self.rx.update(self.suite).map_err(|_| Alert::INTERNAL_ERROR)?;
        // At most one answer is owed, even for several requests (RFC 8446 section 4.6.3).
        if requested == 1 {
            self.flags |= flag::OWES_REPLY;
        }
        Ok(Content::Idle)
    }

    /// Appends the answer to opened records, if one is due: an update of our keys, or the refusal
    /// of a renegotiation. Send it before any data that is sealed later.
    ///
    /// # Errors
    /// As for [`Session::seal`].
    pub fn seal_reply(&mut self, out: &mut Vec<u8>) -> Result<(), Alert> {
        if !self.take(flag::OWES_REPLY) {
            return Ok(());
        }
        match self.version() {
            Version::Tls12 => self.seal_alert(Alert::NO_RENEGOTIATION, out),
            Version::Tls13 => self.update(false, out),
        }
    }

    /// Appends an update of our keys, and uses the new ones from here on. `request`: the peer must
    /// update its keys also. Only if [`Session::can_update`].
    ///
    /// # Errors
    /// As for [`Session::seal`].
    pub fn update(&mut self, request: bool, out: &mut Vec<u8>) -> Result<(), Alert> {
        let message = [KEY_UPDATE, 0, 0, 1, u8::from(request)];
        self.seal_one(ContentType::Handshake, &message, out)?;
        self.tx.update(self.suite).map_err(|_| Alert::INTERNAL_ERROR)
    }

    /// Appends `pieces` of data, in order, as records of at most 2^14 bytes. Updates the keys in
    /// time.
    ///
    /// # Errors
    /// The keys have reached their limit and cannot be updated: the session must end.
    pub fn seal<'a>(
        &mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        warm: &mut WarmKeys,
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        self.update_in_time(out)?;
        let key = &mut warm.tx;
        let mut record: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
        let (mut filled, mut len) = (0, 0);
        for mut piece in pieces {
            while !piece.is_empty() {
                let (now, later) = piece.split_at(piece.len().min(MAX_PLAINTEXT - len));
                (record[filled], piece) = (now, later);
                (filled, len) = (filled + 1, len + now.len());
                if len == MAX_PLAINTEXT || filled == MAX_PIECES {
                    self.seal_pieces(key, ContentType::ApplicationData, &record[..filled], out)?;
                    (filled, len) = (0, 0);
                }
            }
        }
        if filled > 0 {
            self.seal_pieces(key, ContentType::ApplicationData, &record[..filled], out)?;
        }
        Ok(())
    }

    /// Appends contiguous data as [`Session::seal`] does, but without the list of pieces, whose
    /// initialisation costs some 380 instructions.
    ///
    /// # Errors
    /// As for [`Session::seal`].
    pub fn seal_contiguous(
        &mut self,
        data: &[u8],
        warm: &mut WarmKeys,
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        self.update_in_time(out)?;
        for record in data.chunks(MAX_PLAINTEXT) {
            self.seal_record(&mut warm.tx, ContentType::ApplicationData, &[record], out)?;
        }
        Ok(())
    }

    /// Updates our keys before they reach their limit.
    #[inline(always)]
    fn update_in_time(&mut self, out: &mut Vec<u8>) -> Result<(), Alert> {
        if self.tx.records() >= UPDATE_AFTER && self.can_update() {
            self.update(false, out)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn seal_pieces(
        &mut self,
        key: &mut ExpandedKey,
        content_type: ContentType,
        pieces: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        self.seal_record(key, content_type, pieces, out)
    }

    #[inline(always)]
    fn seal_record(
        &mut self,
        key: &mut ExpandedKey,
        content_type: ContentType,
        pieces: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        if !self.can_update() {
            self.count_blocks(pieces)?;
        }
        let key = key.of(&self.tx, self.suite).map_err(|_| Alert::INTERNAL_ERROR)?;
        self.protection().seal(&mut self.tx, key, content_type, pieces, out)
    }

    /// Counts blocks sealed with keys that cannot be updated.
    fn count_blocks(&mut self, pieces: &[&[u8]]) -> Result<(), Alert> {
        let more = blocks(pieces.iter().map(|piece| piece.len()).sum());
        match self.tx.count_blocks(more) > self.suite.max_blocks() {
            true => Err(Alert::INTERNAL_ERROR),
            false => Ok(()),
        }
    }

    /// Appends an alert.
    ///
    /// # Errors
    /// As for [`Session::seal`].
    pub fn seal_alert(&mut self, alert: Alert, out: &mut Vec<u8>) -> Result<(), Alert> {
        self.seal_one(ContentType::Alert, &alert.encode(), out)
    }

    fn seal_one(
        &mut self,
        content_type: ContentType,
        content: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        self.seal_pieces(&mut ExpandedKey::default(), content_type, &[content], out)
    }
}

/// Pieces of one record.
const MAX_PIECES: usize = 64;

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("protection", &self.protection()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
