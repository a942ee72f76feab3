//! A client of the simulated network: a script of data and times, a reader, and its behaviour.

use std::collections::VecDeque;

use throng_proto::ws::{Opcode, encode_close, encode_header, encode_masked};

use crate::net::{LinkId, Net, Readable, Side};
use crate::plan::Part;
use crate::reader::{Reader, Reply};
use crate::rng::{Rng, message_hash};
use crate::script::{Do, Pace};

/// End of a peer's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The server ended the stream, and so do we.
    Finished,
    /// The connection was reset by the server or the network.
    Reset,
    /// The peer has reset the connection or disappeared.
    Own,
}

/// A client that plays its part of a plan.
#[derive(Debug)]
pub struct Peer {
    /// Its number, which is in its request.
    pub number: u32,
    /// Its connection.
    pub link: LinkId,
    /// The data that the peer has received.
    pub reader: Reader,
    /// Hashes of the messages that the peer has begun to send, in order.
    pub said: Vec<u64>,
    /// The code of the peer's Close, if it closed first.
    pub closed_first_with: Option<u16>,
    /// The times of the peer's writes.
    pub wrote_at: Vec<u64>,
    /// The kind and time of the end.
    pub end: Option<(End, u64)>,
    /// Whether the peer answers pings and Close frames, as RFC 6455 requires.
    pub polite: bool,
    /// When it began.
    pub began: u64,
    script: VecDeque<Do>,
    rng: Rng,
    pace: Pace,
    /// Maximum bytes of a write, and the maximum pause after it in nanoseconds.
    cut: (usize, u64),
    out: Vec<u8>,
    out_at: usize,
    replies: Vec<u8>,
    write_at: u64,
    script_at: u64,
    read_at: u64,
    /// Whether the peer has sent a Close frame, and sends nothing more.
    silent: bool,
    finished: bool,
}

impl Peer {
    /// A peer that plays `part` on `link`.
    #[must_use]
    pub fn new(number: u32, link: LinkId, part: &Part, began: u64, rng: Rng) -> Self {
        Self {
            number,
            link,
            reader: Reader::new(part.key),
            said: Vec::new(),
            closed_first_with: None,
            wrote_at: Vec::new(),
            end: None,
            polite: part.polite,
            began,
            script: part.script.clone().into(),
            rng,
            pace: Pace::Prompt,
            cut: part.cut,
            out: Vec::new(),
            out_at: 0,
            replies: Vec::new(),
            write_at: began,
            script_at: began,
            read_at: began,
            silent: false,
            finished: false,
        }
    }

    /// Returns whether the peer sends nothing more on its own.
    #[must_use]
    pub fn has_said_all(&self) -> bool {
        self.script.is_empty() && self.out_at == self.out.len() && self.replies.is_empty()
    }

    /// Returns whether it has ended its side of the stream.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.finished
    }

    /// Returns whether the peer waits only for the clock.
    #[must_use]
    pub fn has_plans(&self) -> bool {
        self.may_go_on()
    }

    /// Returns whether the peer neither reads nor sends anything on its own.
    #[must_use]
    pub fn is_unresponsive(&self) -> bool {
        self.script.is_empty() && self.pace == Pace::Never
    }

    /// Returns when the peer acts next, if nothing arrives before.
    pub fn due(&self, net: &mut Net) -> Option<u64> {
        if self.end.is_some() {
            return None;
        }
        let now = net.now();
        let mut due: Option<u64> = None;
        let mut note = |at: u64| due = Some(due.map_or(at, |known| known.min(at)));
        match net.readable(self.link, Side::Dialer) {
            Readable::Reset => note(now),
            Readable::Nothing => {}
            Readable::Bytes(_) | Readable::Finished if self.pace == Pace::Never => {}
            Readable::Bytes(_) | Readable::Finished => note(self.read_at),
        }
        if let Some(at) = net.next_change(self.link, Side::Dialer) {
            note(at);
        }
        if self.out_at < self.out.len() {
            if net.space(self.link, Side::Dialer) > 0 {
                note(self.write_at);
            }
        } else if !self.replies.is_empty() {
            note(self.write_at);
        } else if self.may_go_on() {
            note(self.write_at.max(self.script_at));
        }
        due
    }

    fn may_go_on(&self) -> bool {
        match self.script.front() {
            None => false,
            Some(Do::UntilOpen) => self.reader.is_open(),
            Some(Do::UntilReceived(n)) => self.reader.received.len() >= *n,
            Some(Do::UntilAnswered(n)) => self.reader.answered >= *n,
            Some(_) => true,
        }
    }

    /// Does what is due.
    pub fn run(&mut self, net: &mut Net) {
        if self.end.is_none() {
            self.read(net);
        }
        if self.end.is_none() {
            self.write(net);
        }
    }

    fn read(&mut self, net: &mut Net) {
        let now = net.now();
        match net.readable(self.link, Side::Dialer) {
            Readable::Reset => {
                net.say(|| format!("peer {} learns of a reset", self.number));
                self.end = Some((End::Reset, now));
                net.close(self.link, Side::Dialer);
            }
            Readable::Nothing => {}
            _ if now < self.read_at || self.pace == Pace::Never => {}
            Readable::Bytes(_) => {
                let (max, rest) = match self.pace {
                    Pace::Slow(max, rest) => (max, rest),
                    _ => (usize::MAX, 0),
                };
                self.read_at = now + rest;
                let mut bytes = Vec::new();
                net.read(self.link, Side::Dialer, max, &mut bytes);
                let replies = self.reader.take(bytes, now);
                if self.polite {
                    self.reply(replies);
                }
            }
            Readable::Finished => {
                net.say(|| format!("peer {} comes to the end of the stream", self.number));
                self.end = Some((End::Finished, now));
                net.close(self.link, Side::Dialer);
            }
        }
    }

    fn reply(&mut self, replies: Vec<Reply>) {
        for reply in replies {
            if self.silent || self.finished {
                return;
            }
            let key = self.key();
            match reply {
                Reply::Pong(payload) => {
                    encode_masked(Opcode::Pong, &payload, key, &mut self.replies);
                }
                Reply::Close(code) => {
                    encode_close(code, "", Some(key), &mut self.replies);
                    self.silent = true;
                    self.script.clear();
                }
            }
        }
    }

    fn write(&mut self, net: &mut Net) {
        if net.now() < self.write_at {
            return;
        }
        if self.out_at == self.out.len() {
            self.out_at = 0;
            self.out = std::mem::take(&mut self.replies);
            if self.out.is_empty() && self.may_go_on() && net.now() >= self.script_at {
                self.next_line(net);
            }
        }
        if self.out_at < self.out.len() && self.end.is_none() {
            let most = if self.cut.0 == 0 { usize::MAX } else { 1 + self.rng.below(self.cut.0) };
            let left = self.out.len() - self.out_at;
            let n = left.min(most).min(net.space(self.link, Side::Dialer));
            net.write(self.link, Side::Dialer, &self.out[self.out_at..self.out_at + n]);
            self.out_at += n;
            if n > 0 && self.wrote_at.last() != Some(&net.now()) {
                self.wrote_at.push(net.now());
            }
            if n < left {
                self.write_at = net.now() + self.rng.between(0, self.cut.1);
            }
        }
    }

    fn next_line(&mut self, net: &mut Net) {
        let Some(line) = self.script.pop_front() else { return };
        net.say(|| format!("peer {}: {}", self.number, line.name()));
        let key = self.key();
        match line {
            Do::Write(bytes) => self.out = bytes,
            Do::Message { text, payload, fragments, pinging } => {
                self.said.push(message_hash(text, &payload));
                self.out = self.message(text, &payload, fragments, pinging);
            }
            Do::Ping(payload) => encode_masked(Opcode::Ping, &payload, key, &mut self.out),
            Do::Pause(nanos) => self.script_at = net.now() + nanos,
            Do::UntilOpen | Do::UntilReceived(_) | Do::UntilAnswered(_) => {}
            Do::Read(pace) => {
                self.pace = pace;
                self.read_at = net.now();
            }
            Do::Close(code) => {
                self.closed_first_with = Some(code);
                encode_close(code, "", Some(key), &mut self.out);
                self.silent = true;
            }
            Do::Finish => {
                self.finished = true;
                net.finish(self.link, Side::Dialer);
            }
            Do::Reset => {
                self.end = Some((End::Own, net.now()));
                net.reset(self.link, Side::Dialer);
            }
            Do::Vanish => self.end = Some((End::Own, net.now())),
        }
    }

    fn key(&mut self) -> [u8; 4] {
        (self.rng.draw() as u32).to_le_bytes()
    }

    fn message(&mut self, text: bool, payload: &[u8], fragments: usize, pinging: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let first = if text { Opcode::Text } else { Opcode::Binary };
        let mut at = 0;
        for index in 0..fragments {
            let last = index + 1 == fragments;
            let end =
                if last { payload.len() } else { at + self.rng.below(payload.len() - at + 1) };
            let opcode = if index == 0 { first } else { Opcode::Continuation };
            let key = self.key();
            let piece = &payload[at..end];
            out.extend_from_slice(&encode_header(opcode, last, piece.len() as u64, Some(key)));
            out.extend(piece.iter().enumerate().map(|(i, byte)| byte ^ key[i & 3]));
            if pinging && !last {
                let key = self.key();
                encode_masked(Opcode::Ping, b"between", key, &mut out);
            }
            at = end;
        }
        out
    }
}
