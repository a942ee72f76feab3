//! The other end of a connection with permessage-deflate, written from the RFCs without this
//! project's crates: a plain streaming compressor and decompressor for the whole connection, and a
//! strict reader.
//!
//! The simulator's tests also include this file.
#![allow(dead_code, reason = "each test file uses a part")]

#[path = "plain_inflate.rs"]
mod plain_inflate;

use std::fmt;

use plain_inflate::PlainInflate;
use zlib_rs::{Deflate, DeflateFlush, Status};

/// The answer to `Sec-WebSocket-Extensions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) server_bits: u8,
    pub(crate) client_bits: u8,
    pub(crate) server_context: bool,
    pub(crate) client_context: bool,
}

impl Terms {
    /// Reads the head of a response; `None`: no compression.
    pub(crate) fn of_head(head: &str) -> Option<Self> {
        let value =
            head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Extensions: "))?;
        let mut parts = value.split(';').map(str::trim);
        assert_eq!(parts.next(), Some("permessage-deflate"), "{value}");
        let mut terms =
            Self { server_bits: 15, client_bits: 15, server_context: true, client_context: true };
        for part in parts {
            let bits = |bits: &str| bits.parse().unwrap();
            match part.split_once('=') {
                None if part == "server_no_context_takeover" => terms.server_context = false,
                None if part == "client_no_context_takeover" => terms.client_context = false,
                Some(("server_max_window_bits", value)) => terms.server_bits = bits(value),
                Some(("client_max_window_bits", value)) => terms.client_bits = bits(value),
                _ => panic!("{part:?} in {value:?}"),
            }
        }
        Some(terms)
    }
}

/// A frame or the end, as read.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Received {
    Message {
        text: bool,
        payload: Vec<u8>,
        deflated: bool,
        /// Sizes of the frames.
        frames: Vec<usize>,
    },
    Ping(Vec<u8>),
    /// `inside`: between the fragments of a message, after this many bytes of it.
    Pong {
        payload: Vec<u8>,
        inside: Option<usize>,
    },
    /// 1005 without a code.
    Close {
        code: u16,
        reason: String,
        inside: Option<usize>,
    },
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { text, payload, deflated, frames } => {
                let kind = if *text { "text" } else { "binary" };
                let start = String::from_utf8_lossy(&payload[..payload.len().min(40)]);
                let (len, count) = (payload.len(), frames.len());
                write!(f, "{kind} of {len} in {count} frames (deflated: {deflated}) {start:?}")
            }
            Self::Ping(payload) => write!(f, "Ping({})", payload.len()),
            Self::Pong { payload, inside } => {
                write!(f, "Pong({:?}, {inside:?})", String::from_utf8_lossy(payload))
            }
            Self::Close { code, reason, inside } => {
                write!(f, "Close({code} {reason:?} {inside:?})")
            }
        }
    }
}

impl Received {
    pub(crate) fn payload(&self) -> &[u8] {
        match self {
            Self::Message { payload, .. } => payload,
            other => panic!("not a message: {other:?}"),
        }
    }
}

/// Reads the output of one side.
pub(crate) struct Reader {
    bytes: Vec<u8>,
    at: usize,
    masked: bool,
    inflating: Option<Inflating>,
    partial: Option<Partial>,
    closed: bool,
}

struct Partial {
    text: bool,
    deflated: bool,
    payload: Vec<u8>,
    frames: Vec<usize>,
}

struct Inflating {
    bits: u8,
    context: bool,
    stream: PlainInflate,
}

impl Reader {
    /// Creates a reader of a server's bytes.
    pub(crate) fn of_server(terms: Option<Terms>) -> Self {
        Self::new(false, terms.map(|terms| (terms.server_bits, terms.server_context)))
    }

    /// Creates a reader of a client's bytes.
    pub(crate) fn of_client(terms: Option<Terms>) -> Self {
        Self::new(true, terms.map(|terms| (terms.client_bits, terms.client_context)))
    }

    fn new(masked: bool, deflate: Option<(u8, bool)>) -> Self {
        let inflating = deflate.map(|(bits, context)| Inflating {
            bits,
            context,
            stream: PlainInflate::new(bits),
        });
        Self { bytes: Vec::new(), at: 0, masked, inflating, partial: None, closed: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns whether nothing is incomplete.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.at == self.bytes.len() && self.partial.is_none()
    }

    /// Returns the bytes of an incomplete message.
    pub(crate) fn inside(&self) -> Option<usize> {
        self.partial.as_ref().map(|partial| partial.payload.len())
    }

    /// Returns the next complete item.
    pub(crate) fn next(&mut self) -> Result<Option<Received>, String> {
        while let Some((first, payload)) = self.frame()? {
            if std::mem::replace(&mut self.closed, first & 0xf == 8) {
                return Err("a frame after the Close frame".to_owned());
            }
            if let Some(heard) = self.take_frame(first, payload)? {
                return Ok(Some(heard));
            }
        }
        Ok(None)
    }

    fn frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, String> {
        let rest = &self.bytes[self.at..];
        let &[first, second, ..] = rest else { return Ok(None) };
        if (second & 0x80 != 0) != self.masked {
            return Err("masked by whom must not, or not by whom must".to_owned());
        }
        let (len, head) = match second & 0x7f {
            126 if rest.len() < 4 => return Ok(None),
            127 if rest.len() < 10 => return Ok(None),
            126 => (u64::from(u16::from_be_bytes([rest[2], rest[3]])), 4),
            127 => (u64::from_be_bytes(rest[2..10].try_into().unwrap()), 10),
            len => (u64::from(len), 2),
        };
        if (head == 4 && len < 126) || (head == 10 && len < 65_536) {
            return Err(format!("a length of {len} in {head} bytes"));
        }
        let start = head + if self.masked { 4 } else { 0 };
        let end = start + len as usize;
        if rest.len() < end {
            return Ok(None);
        }
        let mut payload = rest[start..end].to_vec();
        if self.masked {
            let key: [u8; 4] = rest[head..start].try_into().unwrap();
            payload.iter_mut().enumerate().for_each(|(at, byte)| *byte ^= key[at & 3]);
        }
        self.at += end;
        Ok(Some((first, payload)))
    }

    fn take_frame(&mut self, first: u8, payload: Vec<u8>) -> Result<Option<Received>, String> {
        let (fin, rsv1, opcode) = (first & 0x80 != 0, first & 0x40 != 0, first & 0xf);
        let inside = self.inside();
        let error = |what: &str| Err(format!("{what}: {first:08b} with {} bytes", payload.len()));
        if first & 0x30 != 0 {
            return error("a reserved bit");
        }
        if rsv1 && (opcode == 0 || opcode > 2 || self.inflating.is_none()) {
            return error("RSV1 where it has no meaning");
        }
        match (opcode, &mut self.partial) {
            (8..=10, _) if !fin || payload.len() > 125 => return error("a bad control frame"),
            (8, _) if payload.len() == 1 => return error("half a close code"),
            (8, _) => {
                let code = payload.get(..2).map_or(1005, |b| u16::from_be_bytes([b[0], b[1]]));
                let reason = String::from_utf8(payload.get(2..).unwrap_or_default().to_vec());
                let reason = reason.map_err(|_| "a reason that is no text")?;
                return Ok(Some(Received::Close { code, reason, inside }));
            }
            (9, _) => return Ok(Some(Received::Ping(payload))),
            (10, _) => return Ok(Some(Received::Pong { payload, inside })),
            (1 | 2, None) => {
                let frames = vec![payload.len()];
                let text = opcode == 1;
                self.partial = Some(Partial { text, deflated: rsv1, payload, frames });
            }
            (0, Some(partial)) => {
                partial.frames.push(payload.len());
                partial.payload.extend(payload);
            }
            _ => return error("out of place"),
        }
        if !fin {
            return Ok(None);
        }
        let Some(Partial { text, deflated, mut payload, frames }) = self.partial.take() else {
            return Ok(None);
        };
        if deflated && let Some(inflating) = &mut self.inflating {
            payload = inflating.inflate(payload)?;
        }
        if text && std::str::from_utf8(&payload).is_err() {
            return Err("text that is none".to_owned());
        }
        Ok(Some(Received::Message { text, payload, deflated, frames }))
    }
}

impl Inflating {
    fn inflate(&mut self, mut deflated: Vec<u8>) -> Result<Vec<u8>, String> {
        if !self.context {
            self.stream = PlainInflate::new(self.bits);
        }
        // RFC 7692 section 7.2.2.
        deflated.extend_from_slice(&[0, 0, 0xff, 0xff]);
        self.stream.inflate(&deflated)
    }
}

/// Writes frames.
pub(crate) struct Writer {
    mask: Option<u32>,
    deflating: Option<Deflating>,
}

struct Deflating {
    bits: u8,
    context: bool,
    stream: Deflate,
}

impl Writer {
    /// Creates the writer of a client.
    pub(crate) fn of_client(terms: Option<Terms>) -> Self {
        let deflating = terms.map(|terms| Deflating {
            bits: terms.client_bits,
            context: terms.client_context,
            stream: Deflate::new(6, false, terms.client_bits),
        });
        Self { mask: Some(0x9e37_79b9), deflating }
    }

    pub(crate) fn can_deflate(&self) -> bool {
        self.deflating.is_some()
    }

    /// Compresses a message in the context of the connection.
    pub(crate) fn deflate(&mut self, payload: &[u8]) -> Vec<u8> {
        let deflating = self.deflating.as_mut().expect("agreed on");
        if !deflating.context {
            deflating.stream = Deflate::new(6, false, deflating.bits);
        }
        if payload.is_empty() {
            // RFC 7692 section 7.2.3.6: a second flush at the same place would produce nothing.
            return vec![0];
        }
        let mut out = vec![0; payload.len() + payload.len() / 8 + 100];
        let before = (deflating.stream.total_in(), deflating.stream.total_out());
        let status = deflating.stream.compress(payload, &mut out, DeflateFlush::SyncFlush);
        assert_eq!(status, Ok(Status::Ok));
        assert_eq!(deflating.stream.total_in() - before.0, payload.len() as u64);
        out.truncate((deflating.stream.total_out() - before.1) as usize);
        assert!(out.ends_with(&[0, 0, 0xff, 0xff]));
        out.truncate(out.len() - 4);
        out
    }

    /// A whole message in one frame.
    pub(crate) fn message(&mut self, text: bool, payload: &[u8], compress: bool) -> Vec<u8> {
        self.message_cut(text, payload, compress, 1)
    }

    /// Splits a message into `fragments`.
    pub(crate) fn message_cut(
        &mut self,
        text: bool,
        payload: &[u8],
        compress: bool,
        fragments: usize,
    ) -> Vec<u8> {
        let opcode = if text { 1 } else { 2 };
        let deflated = compress.then(|| self.deflate(payload));
        let bytes = deflated.as_deref().unwrap_or(payload);
        let mut out = Vec::new();
        let size = bytes.len().div_ceil(fragments).max(1);
        let mut pieces: Vec<&[u8]> = bytes.chunks(size).collect();
        pieces.resize(pieces.len().max(1), &[]);
        for (at, piece) in pieces.iter().enumerate() {
            let fin = if at + 1 == pieces.len() { 0x80 } else { 0 };
            let rsv1 = if at == 0 && compress { 0x40 } else { 0 };
            let opcode = if at == 0 { opcode } else { 0 };
            self.frame(fin | rsv1 | opcode, piece, &mut out);
        }
        out
    }

    /// One frame with this first byte.
    pub(crate) fn frame(&mut self, first: u8, payload: &[u8], out: &mut Vec<u8>) {
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        out.push(first);
        match payload.len() {
            len @ 0..126 => out.push(masked | len as u8),
            len @ 126..65_536 => {
                out.push(masked | 126);
                out.extend_from_slice(&(len as u16).to_be_bytes());
            }
            len => {
                out.push(masked | 127);
                out.extend_from_slice(&(len as u64).to_be_bytes());
            }
        }
        let start = out.len() + if self.mask.is_some() { 4 } else { 0 };
        if let Some(mask) = &mut self.mask {
            *mask = mask.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            out.extend_from_slice(&mask.to_be_bytes());
        }
        out.extend_from_slice(payload);
        if let Some(mask) = self.mask {
            let key = mask.to_be_bytes();
            out[start..].iter_mut().enumerate().for_each(|(at, byte)| *byte ^= key[at & 3]);
        }
    }
}
