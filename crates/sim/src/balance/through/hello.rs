//! ClientHellos: their bytes, and the facts that a backend reads from them.

use crate::rng::Rng;

/// The header of a record.
const HEADER_LEN: usize = 5;
/// The header of a handshake message.
const MESSAGE_HEADER_LEN: usize = 4;

/// A ClientHello that announces more bytes than the balancer accepts.
pub(super) const OVERSIZED: [u8; 12] = [22, 3, 1, 0x40, 0, 1, 1, 0, 1, 3, 3, 0];

/// A ClientHello for TLS 1.3 (RFC 8446 section 4.1.2) whose random bytes begin with `id`, with that
/// server name and so many bytes of padding.
fn message(id: u32, name: Option<&str>, padding: usize) -> Vec<u8> {
    let mut extensions = Vec::new();
    let mut extend = |kind: u16, content: &[u8]| {
        extensions.extend_from_slice(&kind.to_be_bytes());
        extensions.extend_from_slice(&(content.len() as u16).to_be_bytes());
        extensions.extend_from_slice(content);
    };
    if let Some(name) = name {
        let len = name.len() as u16;
        let entry = [&[0][..], &len.to_be_bytes(), name.as_bytes()].concat();
        extend(0, &[&(len + 3).to_be_bytes()[..], &entry].concat());
    }
    // Groups: x25519. Signatures: ECDSA with P-256, and RSA-PSS. Versions: 1.3.
    extend(10, &[0, 2, 0, 0x1d]);
    extend(13, &[0, 4, 4, 3, 8, 4]);
    extend(43, &[2, 3, 4]);
    extend(51, &[&[0, 36, 0, 0x1d, 0, 32][..], &[9; 32]].concat());
    if padding > 0 {
        extend(21, &vec![0; padding]);
    }
    let mut body = vec![3, 3];
    body.extend_from_slice(&id.to_be_bytes());
    body.extend_from_slice(&[7; 28]);
    // No session, TLS_AES_128_GCM_SHA256, no compression.
    body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(&extensions);
    let len = (body.len() as u32).to_be_bytes();
    [&[1][..], &len[1..], &body].concat()
}

/// Returns a ClientHello in records of at most `most` bytes each.
pub(super) fn hello(
    rng: &mut Rng,
    id: u32,
    name: Option<&str>,
    padding: usize,
    most: usize,
) -> Vec<u8> {
    let message = message(id, name, padding);
    let (mut rest, mut records) = (&message[..], Vec::new());
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.len().min(1 + rng.below(most)));
        records.extend_from_slice(&[22, 3, 1]);
        records.extend_from_slice(&(part.len() as u16).to_be_bytes());
        records.extend_from_slice(part);
        rest = behind;
    }
    records
}

/// Returns the number at the beginning of a ClientHello's random bytes, if that part has arrived.
pub(super) fn id_of(mut records: &[u8]) -> Option<u32> {
    let at = MESSAGE_HEADER_LEN + 2;
    let mut message = Vec::new();
    while message.len() < at + 4 {
        let (header, rest) = records.split_first_chunk::<HEADER_LEN>()?;
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let part = &rest[..len.min(rest.len())];
        message.extend_from_slice(part);
        records = &rest[part.len()..];
    }
    message[at..].first_chunk().map(|id| u32::from_be_bytes(*id))
}
