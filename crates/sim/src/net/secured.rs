//! Ends of links secured by rustls: the peers read and write data, and the link carries records.
//!
//! A peer uses such an end like any other, so that every plan can run over TLS. Written bytes wait
//! here for the handshake and for space on the link. Unread data stays on the link, except one
//! record.
//!
//! A driver's end of stream without a close_notify before it is a broken rule: a peer would treat
//! all received data as truncated (RFC 8446 section 6.1). Exceptions:
//!
//! * The handshake is not complete at the driver, which then has no keys.
//! * The driver closed with bytes in flight: it has lost data, and must not confirm that they are
//!   complete. Or the time for its close_notify was over: after half a minute, at the end of a
//!   drain, or because another connection needed its slot.
//! * The socket was dropped between two drivers, for example when a descriptor was missing.
//!
//! For the peer such an end is the same as a reset. After a reset, or an alert of another kind,
//! there is no end of stream to check.

use std::io::{Read, Write};

use rustls::{Connection, Error, HandshakeKind, ProtocolVersion};

use super::{LinkId, Net, Readable, Side};

/// Maximum ciphertext taken from a link at a time. A peer that does not read thus soon stops the
/// driver.
const TAKEN_AT_ONCE: usize = 4096;

/// The first byte of a handshake record. A connection with another first byte begins with a PROXY
/// header.
const HANDSHAKE_RECORD: u8 = 22;

/// Ends our stream after all data has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    None,
    Finish,
    Close,
}

/// One end of a link.
#[derive(Debug)]
pub(super) struct SecuredEnd {
    tls: Connection,
    /// Ciphertext that does not yet fit on the link.
    out: Vec<u8>,
    /// Data that its peer has not read.
    data: Vec<u8>,
    /// Input before the first record.
    preface: Option<Vec<u8>>,
    ending: Ending,
    has_finished: bool,
    /// The other end has ended its stream with a close_notify.
    is_complete: bool,
    /// Whether a record has arrived since the handshake was complete on this side.
    has_heard: bool,
    /// Whether the stream has ended without a close_notify.
    is_cut: bool,
    failure: Option<Error>,
}

impl SecuredEnd {
    fn new(mut tls: Connection) -> Self {
        tls.set_buffer_limit(None);
        Self {
            tls,
            out: Vec::new(),
            data: Vec::new(),
            preface: Some(Vec::new()),
            ending: Ending::None,
            has_finished: false,
            is_complete: false,
            has_heard: false,
            is_cut: false,
            failure: None,
        }
    }

    /// Returns whether it takes input.
    fn is_open(&self) -> bool {
        let is_over = self.is_complete || self.failure.is_some() || self.ending == Ending::Close;
        self.data.is_empty() && !is_over
    }

    /// Returns whether the handshake is known to be complete at the other end. A client that sends
    /// the last message learns this from the next record.
    fn is_established(&self) -> bool {
        let sends_last = match &self.tls {
            Connection::Client(tls) => {
                tls.protocol_version() != Some(ProtocolVersion::TLSv1_2)
                    || tls.handshake_kind() == Some(HandshakeKind::Resumed)
            }
            Connection::Server(_) => false,
        };
        !self.tls.is_handshaking() && (self.has_heard || !sends_last)
    }

    fn receive(&mut self, bytes: Vec<u8>) {
        let bytes = match self.preface.take() {
            None => bytes,
            Some(before) => self.after_preface([before, bytes].concat()),
        };
        let mut bytes = bytes.as_slice();
        self.has_heard |= !self.tls.is_handshaking() && !bytes.is_empty();
        while !bytes.is_empty() && self.failure.is_none() && !self.is_complete {
            let n = self.tls.read_tls(&mut bytes).expect("all data are taken");
            match self.tls.process_new_packets() {
                Ok(state) => self.is_complete = n == 0 || state.peer_has_closed(),
                Err(error) => self.failure = Some(error),
            }
            // The end of the stream is not an error here.
            let _ = self.tls.reader().read_to_end(&mut self.data);
        }
    }

    /// Removes a PROXY header from the beginning, and returns the rest.
    fn after_preface(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        let len = match bytes[0] {
            HANDSHAKE_RECORD => Some(0),
            b'P' => bytes.windows(2).position(|two| two == b"\r\n").map(|at| at + 2),
            _ => {
                bytes.get(14..16).map(|len| 16 + usize::from(u16::from_be_bytes([len[0], len[1]])))
            }
        };
        let Some(len) = len.filter(|len| *len <= bytes.len()) else {
            self.preface = Some(bytes);
            return Vec::new();
        };
        let rest = bytes.split_off(len);
        self.data.extend(bytes);
        if len > 0 && rest.is_empty() {
            self.preface = Some(Vec::new());
        }
        rest
    }

    fn seal(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.out).expect("memory is written");
        }
    }
}

impl Net {
    /// Secures one end of a link. From now on its peer reads and writes data.
    pub fn secure(&mut self, link: LinkId, side: Side, tls: impl Into<Connection>) {
        self.secured.insert((link, side as usize), SecuredEnd::new(tls.into()));
        self.move_end(link, side);
    }

    /// Returns the TLS errors of the secured ends.
    #[must_use]
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Moves the bytes of all secured ends.
    pub(super) fn move_ends(&mut self) {
        if self.secured.is_empty() {
            return;
        }
        let ends: Vec<_> = self.secured.keys().copied().collect();
        for (link, side) in ends {
            self.move_end(link, if side == 0 { Side::Dialer } else { Side::Acceptor });
        }
    }

    /// Returns whether an end has anything to do, which is rare.
    fn may_move(&mut self, link: LinkId, side: Side) -> bool {
        if self.secured.is_empty() {
            return false;
        }
        let readable = self.raw_readable(link, side);
        let Some(end) = self.secured.get(&(link, side as usize)) else { return false };
        let has_input = end.is_open() && matches!(readable, Readable::Bytes(_));
        let is_ending = match end.ending {
            Ending::None => false,
            Ending::Finish => !end.has_finished,
            Ending::Close => true,
        };
        has_input || is_ending || end.tls.wants_write() || !end.out.is_empty()
    }

    /// Receives what the peer can take, sends as much as fits, and ends the stream if this is due.
    fn move_end(&mut self, link: LinkId, side: Side) {
        if !self.may_move(link, side) {
            return;
        }
        let Some(mut end) = self.secured.remove(&(link, side as usize)) else { return };
        let had_failed = end.failure.is_some();
        while end.is_open()
            && let Readable::Bytes(_) = self.raw_readable(link, side)
        {
            let mut bytes = Vec::new();
            self.raw_read(link, side, TAKEN_AT_ONCE, &mut bytes);
            end.receive(bytes);
            end.seal();
        }
        if let (false, Some(failure)) = (had_failed, &end.failure) {
            self.failures.push(format!("link {link}, {side:?}: {failure}"));
        }
        end.seal();
        if self.knows_reset(link, side) {
            end.out.clear();
        }
        let n = end.out.len().min(self.raw_space(link, side));
        if n > 0 && !end.has_finished {
            let bytes: Vec<u8> = end.out.drain(..n).collect();
            self.raw_write(link, side, &bytes);
        }
        if end.out.is_empty() {
            match end.ending {
                Ending::None => {}
                Ending::Finish if end.has_finished => {}
                Ending::Finish => {
                    end.has_finished = true;
                    self.raw_finish(link, side);
                }
                Ending::Close => return self.raw_close(link, side),
            }
        }
        self.secured.insert((link, side as usize), end);
    }

    /// Returns the number of bytes that `side` can write now.
    #[must_use]
    pub fn space(&self, link: LinkId, side: Side) -> usize {
        let raw = self.raw_space(link, side);
        match self.secured.get(&(link, side as usize)) {
            None => raw,
            Some(end) if end.tls.is_handshaking() || !end.out.is_empty() => 0,
            Some(_) => raw,
        }
    }

    /// `side` writes; all of `bytes`, which must fit.
    ///
    /// # Panics
    /// If there is no space: a bug of the simulator.
    pub fn write(&mut self, link: LinkId, side: Side, bytes: &[u8]) {
        match self.secured.get_mut(&(link, side as usize)) {
            None => self.raw_write(link, side, bytes),
            Some(end) => {
                end.tls.writer().write_all(bytes).expect("there is no limit");
                self.move_end(link, side);
            }
        }
        // Takes data that arrives together in one step: space that becomes free later would go
        // unnoticed.
        self.move_end(link, side.other());
    }

    /// Returns the state of the link for `side`.
    pub fn readable(&mut self, link: LinkId, side: Side) -> Readable {
        self.move_end(link, side);
        let raw = self.raw_readable(link, side);
        match self.secured.get(&(link, side as usize)) {
            None => raw,
            Some(_) if raw == Readable::Reset => raw,
            Some(end) if !end.data.is_empty() => Readable::Bytes(end.data.len()),
            Some(end) if end.failure.is_some() => Readable::Reset,
            Some(end) if end.is_complete => Readable::Finished,
            Some(end) if raw == Readable::Finished && end.is_established() => {
                self.cut(link, side);
                Readable::Reset
            }
            Some(_) if raw == Readable::Finished => raw,
            Some(_) => Readable::Nothing,
        }
    }

    /// Handles an end of stream without a close_notify.
    fn cut(&mut self, link: LinkId, side: Side) {
        let is_excused = self.links[link].cut_short[side.other() as usize];
        let Some(end) = self.secured.get_mut(&(link, side as usize)) else { return };
        if std::mem::replace(&mut end.is_cut, true) {
            return;
        }
        self.say(|| format!("link {link} ends for the {side:?} without a close_notify"));
        if !is_excused {
            let what = "the stream ended without a close_notify";
            self.failures.push(format!("link {link}, {side:?}: {what}"));
        }
    }

    /// `side` reads up to `max` bytes to the end of `into`.
    pub fn read(&mut self, link: LinkId, side: Side, max: usize, into: &mut Vec<u8>) {
        match self.secured.get_mut(&(link, side as usize)) {
            None => self.raw_read(link, side, max, into),
            Some(end) => {
                let n = end.data.len().min(max);
                self.trace.mix_bytes(&end.data[..n]);
                into.extend(end.data.drain(..n));
            }
        }
    }

    /// `side` ends its stream and keeps reading.
    pub fn finish(&mut self, link: LinkId, side: Side) {
        self.end(link, side, Ending::Finish);
    }

    /// Closes the socket of `side`. Its written data still arrives, unless input was left unread.
    pub fn close(&mut self, link: LinkId, side: Side) {
        self.end(link, side, Ending::Close);
    }

    fn end(&mut self, link: LinkId, side: Side, ending: Ending) {
        let Some(end) = self.secured.get_mut(&(link, side as usize)) else {
            match ending {
                Ending::None => {}
                Ending::Finish => self.raw_finish(link, side),
                Ending::Close => self.raw_close(link, side),
            }
            return;
        };
        if end.ending == Ending::None {
            end.tls.send_close_notify();
        }
        end.ending = ending;
        self.move_end(link, side);
    }

    /// `side` resets the link.
    pub fn reset(&mut self, link: LinkId, side: Side) {
        self.secured.remove(&(link, side as usize));
        self.raw_reset(link, side);
    }
}
