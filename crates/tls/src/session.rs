//! An established session at rest, and the records that reach it.

use std::fmt;
use std::ops::Range;

use aws_lc_rs::aead::NONCE_LEN;
use aws_lc_rs::error::Unspecified;

use crate::alert::Alert;
use crate::cipher::{ExpandedKey, Suite, TrafficKeys, Version, blocks};
use crate::record::{ContentType, HEADER_LEN, Header, MAX_PLAINTEXT, Protection};

/// Maximum records in a row without data: empty ones, key updates, alerts that are ignored. A peer
/// that sends more of them keeps us busy for nothing.
const MAX_IDLE_RECORDS: u8 = 32;

/// Maximum updates of the peer's keys that come earlier than after [`RECORDS_PER_UPDATE`] records:
/// each costs two generations of keys. Peers update after millions of records.
const MAX_EARLY_UPDATES: u8 = 64;

/// Records of one key that make up for an early update.
const RECORDS_PER_UPDATE: u64 = 64;

/// Records of one key after which we update it ourselves: half of what AES-GCM allows if all are
/// full.
const UPDATE_AFTER: u64 = 1 << 23;

/// Maximum bytes of a ticket, and of messages that are kept for it. Common ones have 200 bytes.
const MAX_TICKET: usize = 16 * 1024;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The keys of one direction when a handshake ends.
pub struct Direction<'a> {
    /// The key of the AEAD.
    pub key: &'a [u8],
    /// The IV of the AEAD.
    pub iv: [u8; NONCE_LEN],
    /// The traffic secret that both were derived from. Without it the keys cannot be updated.
    pub secret: Option<&'a [u8]>,
    /// The number of the next record.
    pub sequence: u64,
}

/// Expanded keys of a session, which its records share. Empty ones do for any session; those of one
/// do not harm another.
#[derive(Default)]
pub struct WarmKeys {
    tx: ExpandedKey,
    rx: ExpandedKey,
}

/// Messages that a client gets after its handshake: tickets. Servers have none of them.
#[derive(Debug, Default)]
pub struct Messages {
    /// The start of a message whose rest comes with later records.
    partial: Vec<u8>,
    /// Whole tickets, without their headers, if they are wanted.
    tickets: Vec<Vec<u8>>,
    wants_tickets: bool,
}

impl Messages {
    /// Keeps tickets from now on, until [`Messages::take_tickets`].
    pub fn want_tickets(&mut self, wants: bool) {
        self.wants_tickets = wants;
    }

    /// Returns the tickets that came, which [`Handshake`](crate::handshake::Handshake) can use.
    pub fn take_tickets(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.tickets)
    }

    /// Returns whether no message is incomplete.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Returns the memory of a message that is incomplete.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.partial.capacity()
    }

    /// Takes the content of a record, which has tickets only. One may span records (RFC 8446
    /// section 5.1).
    fn add(&mut self, content: &[u8]) -> Result<Content, Alert> {
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
        Ok(Content::Idle)
    }
}

/// All that an established session needs between two events: keys, secrets and sequence numbers of
/// both directions, and a few flags, in at most 200 bytes.
pub struct Session {
    tx: TrafficKeys,
    rx: TrafficKeys,
    suite: Suite,
    flags: u8,
    /// Records in a row that carried no data.
    idle_records: u8,
    /// Updates of the peer's keys that came early and were not made up for.
    early_updates: u8,
}

/// Bits of `Session::flags`.
mod flag {
    /// The keys can be updated.
    pub(super) const HAS_SECRETS: u8 = 1;
    /// The peer is owed an update of our keys (TLS 1.3), or the refusal of a renegotiation
    /// (TLS 1.2).
    pub(super) const OWES_REPLY: u8 = 1 << 1;
    /// A renegotiation was requested before.
    pub(super) const HAS_REFUSED: u8 = 1 << 2;
    /// We are the client.
    pub(super) const IS_CLIENT: u8 = 1 << 3;
    /// The version is TLS 1.2.
    pub(super) const IS_TLS12: u8 = 1 << 4;
}

/// The outcome of [`Session::open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The place of the data, moved together.
    pub data: Range<usize>,
    /// Bytes of the input that were used; what follows is the start of an incomplete record.
    pub consumed: usize,
    /// Why no further record is to be opened, if that is so.
    pub end: Option<End>,
    /// Whether [`Session::seal_reply`] has something to say.
    pub has_reply: bool,
}

/// The end of a session's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer has said that it will send no more.
    CloseNotify,
    /// The peer has ended the session with a fatal alert.
    PeerAlert(Alert),
    /// The input is not that of this session: this alert is to be sent.
    Fatal(Alert),
}

/// The content of one record.
enum Content {
    Data(Range<usize>),
    Idle,
    End(End),
}

impl Session {
    /// Takes over the keys of a handshake. If both directions have a secret, it is checked that the
    /// keys are those derived from it; if they are not, the session does without updates.
    ///
    /// # Errors
    /// The cipher library refused, which it never does for keys of the right length.
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

    /// Makes the session a client's, which gets tickets.
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
    /// The header is not one of this session.
    pub fn record_len(&self, input: &[u8]) -> Result<Option<usize>, Alert> {
        let header = Header::decode(input, self.version())?;
        Ok(header.map(|header| HEADER_LEN + header.len))
    }

    /// Opens all whole records in `input`, in place, and moves their data together. Messages are
    /// kept in `messages`, which is the same for all records of the session.
    pub fn open(
        &mut self,
        input: &mut [u8],
        warm: &mut WarmKeys,
        messages: &mut Messages,
    ) -> Opened {
        let mut opened = Opened { data: 0..0, consumed: 0, end: None, has_reply: false };
        while opened.end.is_none() {
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
        self.idle_records += 1;
        if self.idle_records > MAX_IDLE_RECORDS {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        match content_type {
            ContentType::ApplicationData => Ok(Content::Idle),
            ContentType::Alert => self.handle_alert(&record[place]),
            ContentType::Handshake => self.handle_handshake(&record[place], messages),
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
            if self.has(flag::HAS_REFUSED) {
                return Err(Alert::UNEXPECTED_MESSAGE);
            }
            self.flags |= flag::HAS_REFUSED | flag::OWES_REPLY;
            return Ok(Content::Idle);
        }
        let is_ticket = message.first() == Some(&NEW_SESSION_TICKET);
        if self.has(flag::IS_CLIENT) && !message.is_empty() && (is_ticket || !messages.is_empty()) {
            return messages.add(message);
        }
        // A change of keys ends its record, so nothing may follow (RFC 8446 section 5.1).
        let requested = match message {
            &[KEY_UPDATE, 0, 0, 1, requested] => requested,
            [KEY_UPDATE, 0, 0, 1] | [] => return Err(Alert::DECODE_ERROR),
            _ => return Err(Alert::UNEXPECTED_MESSAGE),
        };
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
        // At most one is owed, however often it was asked for (RFC 8446 section 4.6.3).
        if requested == 1 {
            self.flags |= flag::OWES_REPLY;
        }
        Ok(Content::Idle)
    }

    /// Appends the answer to what was opened, if one is due: an update of our keys, or the refusal
    /// of a renegotiation. To be sent before any data that is sealed later.
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

    /// Appends an update of our keys, and uses the new ones from here on. `request`: the peer is to
    /// do so as well. Only if [`Session::can_update`].
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
    /// The keys have protected as much as they may, and cannot be updated: the session is at its
    /// end.
    pub fn seal<'a>(
        &mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        warm: &mut WarmKeys,
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        if self.tx.records() >= UPDATE_AFTER && self.can_update() {
            self.update(false, out)?;
        }
        let key = &mut warm.tx;
        let mut record: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
        let (mut filled, mut len) = (0, 0);
        for mut piece in pieces {
            while !piece.is_empty() {
                let (now, later) = piece.split_at(piece.len().min(MAX_PLAINTEXT - len));
                (record[filled], piece) = (now, later);
                (filled, len) = (filled + 1, len + now.len());
                if len == MAX_PLAINTEXT || filled == MAX_PIECES {
                    self.seal_data(key, &record[..filled], out)?;
                    (filled, len) = (0, 0);
                }
            }
        }
        if filled > 0 {
            self.seal_data(key, &record[..filled], out)?;
        }
        Ok(())
    }

    fn seal_data(
        &mut self,
        key: &mut ExpandedKey,
        pieces: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        self.seal_record(key, ContentType::ApplicationData, pieces, out)
    }

    fn seal_record(
        &mut self,
        key: &mut ExpandedKey,
        content_type: ContentType,
        pieces: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        let suite = self.suite;
        if !self.can_update() {
            let more = blocks(pieces.iter().map(|piece| piece.len()).sum());
            if self.tx.count_blocks(more) > suite.max_blocks() {
                return Err(Alert::INTERNAL_ERROR);
            }
        }
        let key = key.of(&self.tx, suite).map_err(|_| Alert::INTERNAL_ERROR)?;
        self.protection().seal(&mut self.tx, key, content_type, pieces.iter().copied(), out)
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
        self.seal_record(&mut ExpandedKey::default(), content_type, &[content], out)
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
mod tests {
    use super::*;

    const SUITE: Suite = Suite::Aes128Gcm;

    /// Two sessions, each the other's peer.
    fn pair() -> (Session, Session) {
        let session = |send: u8, receive: u8| {
            Session::from_secrets(SUITE, &[send; 32], &[receive; 32]).unwrap()
        };
        (session(1, 2), session(2, 1))
    }

    fn tls12_pair() -> (Session, Session) {
        let session = |send: u8, receive: u8| {
            let [key, other] = [send, receive].map(|byte| [byte; 16]);
            let direction = |key| Direction { key, iv: [7; 12], secret: None, sequence: 1 };
            Session::new(Version::Tls12, SUITE, &direction(&key), &direction(&other)).unwrap()
        };
        (session(1, 2), session(2, 1))
    }

    /// Opens records of the given types and contents.
    fn opened(
        (mut peer, mut session): (Session, Session),
        records: &[(ContentType, &[u8])],
    ) -> (Opened, Vec<u8>, Session) {
        let mut input = Vec::new();
        for (kind, content) in records {
            peer.seal_one(*kind, content, &mut input).unwrap();
        }
        let opened = session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default());
        let data = input[opened.data.clone()].to_vec();
        (opened, data, session)
    }

    const DATA: (ContentType, &[u8]) = (ContentType::ApplicationData, b"data");
    const NOTHING: (ContentType, &[u8]) = (ContentType::ApplicationData, b"");

    #[test]
    fn data_of_several_records_is_moved_together() {
        let (opened, data, _) = opened(pair(), &[NOTHING, DATA, NOTHING, DATA, DATA]);
        assert_eq!((opened.end, data.as_slice()), (None, &b"datadatadata"[..]));
    }

    #[test]
    fn data_before_the_end_is_kept_and_data_after_it_is_not_opened() {
        let close = (ContentType::Alert, &[1, 0][..]);
        let (opened, data, _) = opened(pair(), &[DATA, close, DATA]);
        assert_eq!((opened.end, data.as_slice()), (Some(End::CloseNotify), &b"data"[..]));
    }

    #[test]
    fn rfc8446_6_alerts_end_the_session_or_are_ignored() {
        let peer_alert = |description| Some(End::PeerAlert(Alert(description)));
        let fatal = |alert| Some(End::Fatal(alert));
        let both = [pair as fn() -> _, tls12_pair];
        for (alert, tls13, tls12) in [
            (&[1, 0][..], Some(End::CloseNotify), Some(End::CloseNotify)),
            (&[2, 0], Some(End::CloseNotify), Some(End::CloseNotify)),
            (&[2, 40], peer_alert(40), peer_alert(40)),
            (&[1, 40], peer_alert(40), None),
            (&[1, 90], None, None),
            (&[2, 90], None, peer_alert(90)),
            (&[3, 40], peer_alert(40), fatal(Alert::ILLEGAL_PARAMETER)),
            (&[1], fatal(Alert::DECODE_ERROR), fatal(Alert::DECODE_ERROR)),
            (&[1, 0, 0], fatal(Alert::DECODE_ERROR), fatal(Alert::DECODE_ERROR)),
        ] {
            for (pair, expected) in both.into_iter().zip([tls13, tls12]) {
                let (opened, ..) = opened(pair(), &[(ContentType::Alert, alert)]);
                assert_eq!(opened.end, expected, "{alert:?}");
            }
        }
    }

    #[test]
    fn rfc8446_4_6_3_a_key_update_is_alone_whole_and_known() {
        let fatal = |alert| Some(End::Fatal(alert));
        for (message, expected) in [
            (&[24, 0, 0, 1, 0][..], None),
            (&[24, 0, 0, 1, 1], None),
            (&[24, 0, 0, 1, 2], fatal(Alert::ILLEGAL_PARAMETER)),
            (&[24, 0, 0, 1], fatal(Alert::DECODE_ERROR)),
            (&[24, 0, 0, 0], fatal(Alert::UNEXPECTED_MESSAGE)),
            (&[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], fatal(Alert::UNEXPECTED_MESSAGE)),
            (&[4, 0, 0, 0], fatal(Alert::UNEXPECTED_MESSAGE)),
            (&[1, 0, 0, 0], fatal(Alert::UNEXPECTED_MESSAGE)),
        ] {
            let (opened, ..) = opened(pair(), &[(ContentType::Handshake, message)]);
            assert_eq!(opened.end, expected, "{message:?}");
            assert_eq!(opened.has_reply, message == [24, 0, 0, 1, 1]);
        }
    }

    #[test]
    fn rfc8446_4_6_1_a_client_takes_whole_tickets_and_a_server_none() {
        let ticket = &[4, 0, 0, 2, b'x', b'y'][..];
        let fatal = |alert| Some(End::Fatal(alert));
        for (message, expected) in [
            (ticket.to_vec(), None),
            ([ticket, ticket].concat(), None),
            // The rest does not follow.
            (ticket[..5].to_vec(), fatal(Alert::UNEXPECTED_MESSAGE)),
            ([ticket, &[4, 0]].concat(), fatal(Alert::UNEXPECTED_MESSAGE)),
            (vec![4, 0, 0x40, 1], fatal(Alert::DECODE_ERROR)),
            ([ticket, &[24, 0, 0, 1, 0]].concat(), fatal(Alert::UNEXPECTED_MESSAGE)),
        ] {
            let records = [(ContentType::Handshake, &message[..]), DATA];
            let (peer, session) = pair();
            let (at_client, data, _) = opened((peer, session.of_client()), &records);
            assert_eq!(at_client.end, expected, "{message:?}");
            assert_eq!(data.is_empty(), expected.is_some());
            let (at_server, ..) = opened(pair(), &records);
            assert_eq!(at_server.end, fatal(Alert::UNEXPECTED_MESSAGE));
        }
    }

    #[test]
    fn rfc8446_5_1_a_ticket_may_span_records() {
        let tickets = [&[4, 0, 0, 5][..], b"first", &[4, 0, 0, 6], b"second"].concat();
        for size in 1..tickets.len() {
            let (mut peer, session) = pair();
            let (mut session, mut messages) = (session.of_client(), Messages::default());
            messages.want_tickets(true);
            for (at, piece) in tickets.chunks(size).enumerate() {
                let mut input = Vec::new();
                peer.seal_one(ContentType::Handshake, piece, &mut input).unwrap();
                let opened = session.open(&mut input, &mut WarmKeys::default(), &mut messages);
                assert_eq!(opened.end, None, "{size}, {at}");
            }
            assert_eq!(messages.take_tickets(), [&b"first"[..], b"second"]);
            let mut input = Vec::new();
            peer.seal([&b"data"[..]], &mut WarmKeys::default(), &mut input).unwrap();
            let opened = session.open(&mut input, &mut WarmKeys::default(), &mut messages);
            assert_eq!((opened.end, &input[opened.data]), (None, &b"data"[..]));
        }
    }

    #[test]
    fn rfc8446_4_6_3_one_update_answers_many_requests_and_comes_before_data() {
        let (mut peer, mut session) = pair();
        let mut input = Vec::new();
        for _ in 0..5 {
            peer.update(true, &mut input).unwrap();
        }
        assert!(
            session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default()).has_reply
        );
        let mut out = Vec::new();
        session.seal_reply(&mut out).unwrap();
        let one = out.len();
        session.seal_reply(&mut out).unwrap();
        assert_eq!(out.len(), one, "one update only");
        session.seal([&b"data"[..]], &mut WarmKeys::default(), &mut out).unwrap();
        let opened = peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default());
        assert_eq!((opened.end, opened.has_reply), (None, false));
        assert_eq!(&out[opened.data], b"data");
    }

    #[test]
    fn records_without_data_are_not_endless() {
        for (idle, is_fatal) in [(32, false), (33, true)] {
            let mut records = vec![DATA];
            records.extend(vec![NOTHING; idle]);
            records.push(DATA);
            let (opened, ..) = opened(pair(), &records);
            assert_eq!(opened.end == Some(End::Fatal(Alert::UNEXPECTED_MESSAGE)), is_fatal);
        }
    }

    /// Sends `rounds` updates, each behind `records` records of data; returns those that are taken.
    fn updates_taken(rounds: usize, records: usize) -> usize {
        let (mut peer, mut session) = pair();
        let (mut peer_warm, mut warm) = (WarmKeys::default(), WarmKeys::default());
        for round in 0..rounds {
            let mut input = Vec::new();
            for _ in 0..records {
                peer.seal([&b"data"[..]], &mut peer_warm, &mut input).unwrap();
            }
            peer.update(false, &mut input).unwrap();
            if let Some(end) = session.open(&mut input, &mut warm, &mut Messages::default()).end {
                assert_eq!(end, End::Fatal(Alert::UNEXPECTED_MESSAGE));
                return round;
            }
        }
        rounds
    }

    #[test]
    fn updates_with_little_data_between_them_are_not_endless() {
        assert_eq!(updates_taken(1000, 1), usize::from(MAX_EARLY_UPDATES));
        assert_eq!(updates_taken(1000, RECORDS_PER_UPDATE as usize - 1), 1000);
    }

    #[test]
    fn rfc5746_a_renegotiation_is_refused_once_and_then_ends_the_session() {
        let hello = (ContentType::Handshake, &[1, 0, 0, 0][..]);
        let (first, _, mut session) = opened(tls12_pair(), &[hello, DATA]);
        assert_eq!((first.end, first.has_reply), (None, true));
        let mut out = Vec::new();
        session.seal_reply(&mut out).unwrap();
        let (mut peer, _) = tls12_pair();
        assert_eq!(
            peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default()).end,
            None,
            "a warning"
        );
        let (second, ..) = opened(tls12_pair(), &[hello, hello]);
        assert_eq!(second.end, Some(End::Fatal(Alert::UNEXPECTED_MESSAGE)));
    }

    #[test]
    fn rfc8446_5_5_our_keys_are_updated_before_their_limit() {
        let (mut peer, mut session) = pair();
        let keys = TrafficKeys::from_secret(SUITE, &[2; 32]).unwrap();
        session.tx = keys.at(UPDATE_AFTER);
        peer.rx = TrafficKeys::from_secret(SUITE, &[2; 32]).unwrap().at(UPDATE_AFTER);
        let mut out = Vec::new();
        session.seal([&b"data"[..]], &mut WarmKeys::default(), &mut out).unwrap();
        assert_eq!(session.tx.records(), 1);
        let opened = peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default());
        assert_eq!(&out[opened.data], b"data");
    }

    #[test]
    fn keys_without_updates_end_by_the_blocks_that_they_protect_not_by_the_records() {
        let (mut peer, mut session) = tls12_pair();
        let direction = Direction { key: &[1; 16], iv: [7; 12], secret: None, sequence: 1 << 30 };
        session.tx = TrafficKeys::new(SUITE, direction.key, &direction.iv, None, 1 << 30);
        peer.rx = TrafficKeys::new(SUITE, direction.key, &direction.iv, None, 1 << 30);
        let (mut warm, mut out) = (WarmKeys::default(), Vec::new());
        session.seal([&b"data"[..]], &mut warm, &mut out).unwrap();
        let opened = peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default());
        assert_eq!(&out[opened.data], b"data");

        let left = SUITE.max_blocks() - session.tx.count_blocks(0);
        session.tx.count_blocks(left - blocks(100));
        out.clear();
        session.seal([&[0; 100][..]], &mut warm, &mut out).unwrap();
        let outcome = session.seal([&b"one more"[..]], &mut warm, &mut out);
        assert_eq!(outcome, Err(Alert::INTERNAL_ERROR));
    }

    #[test]
    fn warm_keys_of_another_session_do_not_harm() {
        let mut warm = WarmKeys::default();
        for _ in 0..3 {
            for number in 0..4u8 {
                let secrets = [[number; 32], [number + 100; 32]];
                let session =
                    |a: usize| Session::from_secrets(SUITE, &secrets[a], &secrets[1 - a]).unwrap();
                let (mut ours, mut peer) = (session(0), session(1));
                let mut out = Vec::new();
                ours.seal([&b"data"[..]], &mut warm, &mut out).unwrap();
                ours.update(false, &mut out).unwrap();
                ours.seal([&b"more"[..]], &mut warm, &mut out).unwrap();
                let opened = peer.open(&mut out, &mut warm, &mut Messages::default());
                assert_eq!((opened.end, &out[opened.data]), (None, &b"datamore"[..]));
            }
        }
    }

    #[test]
    fn keys_that_do_not_come_from_their_secret_cannot_be_updated() {
        let foreign = Direction { key: &[1; 16], iv: [7; 12], secret: Some(&[9; 32]), sequence: 0 };
        let without = Direction { secret: None, ..foreign };
        let session = |send, receive| Session::new(Version::Tls13, SUITE, send, receive).unwrap();
        for (send, receive) in [(&foreign, &foreign), (&foreign, &without), (&without, &foreign)] {
            assert!(!session(send, receive).can_update());
        }
        let (peer, session) = (session(&foreign, &foreign), session(&foreign, &foreign));
        let update = (ContentType::Handshake, &[24, 0, 0, 1, 0][..]);
        let (refused, data, _) = opened((peer, session), &[DATA, update]);
        assert_eq!(refused.end, Some(End::Fatal(Alert::INTERNAL_ERROR)));
        assert_eq!(data, b"data");
    }

    #[test]
    fn more_pieces_than_fit_in_one_list_are_sealed_in_order() {
        let (mut peer, mut session) = pair();
        let pieces: Vec<Vec<u8>> = (0..500u16).map(|at| at.to_be_bytes().to_vec()).collect();
        let mut out = Vec::new();
        session.seal(pieces.iter().map(Vec::as_slice), &mut WarmKeys::default(), &mut out).unwrap();
        let opened = peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default());
        assert_eq!(out[opened.data], pieces.concat());
    }
}
