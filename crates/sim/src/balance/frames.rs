//! Frames and bodies as the balancer's peers make and read them, independent of the balancer's
//! code.

use crate::rng::Rng;

/// A frame with this first byte.
pub(super) fn frame(first: u8, payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let bit = if mask.is_some() { 0x80 } else { 0 };
    out.push(first);
    match payload.len() {
        len @ 0..126 => out.push(bit | len as u8),
        len @ 126..65_536 => {
            out.push(bit | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(bit | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    let key = mask.unwrap_or_default();
    out.extend_from_slice(&key[..if mask.is_some() { 4 } else { 0 }]);
    out.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]));
}

/// A Close frame.
pub(super) fn close(code: u16, reason: &str, mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    let mut out = Vec::new();
    frame(0x88, &payload, mask, &mut out);
    out
}

/// Returns any data frame of a whole or fragmented message, or a ping.
pub(super) fn any(rng: &mut Rng, most: usize, masked: bool) -> Vec<u8> {
    let first = rng.pick(&[0x81, 0x82, 0x82, 0x02, 0x00, 0x80, 0x89]);
    let mut len = match rng.below(6) {
        0 => 0,
        1 => rng.below(10),
        2 => 120 + rng.below(12),
        3 => rng.below(2000),
        4 => rng.below(most),
        _ => rng.below(200),
    };
    len = len.min(if first == 0x89 { 125 } else { most });
    let payload = rng.bytes(len);
    let mask = masked.then(|| (rng.draw() as u32).to_le_bytes());
    let mut out = Vec::new();
    frame(first, &payload, mask, &mut out);
    out
}

/// Reads a stream of frames.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Where the next frame begins in the stream.
    at: usize,
    /// Ends of all frames so far, 0 first.
    pub(super) ends: Vec<usize>,
    /// Where the first Close frame began.
    pub(super) close: Option<usize>,
}

impl Scan {
    /// The next whole frame of the stream `all`: its first byte and its payload.
    pub(super) fn next(&mut self, all: &[u8]) -> Option<(u8, Vec<u8>)> {
        if self.ends.is_empty() {
            self.ends.push(0);
        }
        let bytes = &all[self.at..];
        let (&first, &second) = (bytes.first()?, bytes.get(1)?);
        let (head, len) = match second & 0x7f {
            126 => (4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
            127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize),
            len => (2, usize::from(len)),
        };
        let (key, head) = match second & 0x80 != 0 {
            true => (bytes.get(head..head + 4)?.to_vec(), head + 4),
            false => (vec![0; 4], head),
        };
        let payload = bytes.get(head..head.checked_add(len)?)?;
        let payload = payload.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect();
        if first & 0x0f == 8 {
            self.close.get_or_insert(self.at);
        }
        self.at += head + len;
        self.ends.push(self.at);
        Some((first, payload))
    }

    /// All frames of a stream.
    pub(super) fn of(all: &[u8]) -> Self {
        let mut scan = Self::default();
        while scan.next(all).is_some() {}
        scan
    }
}

/// Returns the byte at `at` of the body that is specific to request `id`.
pub(super) fn pattern(id: u32, at: usize) -> u8 {
    (id as usize * 31 + at * 7 + at / 251) as u8
}

/// Returns the whole body of request `id`.
pub(super) fn body(id: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| pattern(id, at)).collect()
}

/// A body in chunks (RFC 9112 section 7.1).
pub(super) fn chunked(rng: &mut Rng, mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while !body.is_empty() {
        let len = (1 + rng.below(body.len())).max(body.len() / 10);
        out.extend_from_slice(format!("{len:x}\r\n").as_bytes());
        out.extend_from_slice(&body[..len]);
        out.extend_from_slice(b"\r\n");
        body = &body[len..];
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}
