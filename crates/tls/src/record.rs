//! The record layer: headers, and the sealing and opening of records in place (RFC 8446 section 5,
//! RFC 5246 section 6.2.3.3, RFC 5288 section 3, RFC 7905 section 2).

use std::ops::Range;

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use crate::alert::Alert;
use crate::cipher::{Suite, TrafficKeys, Version};

/// Length of a record's header.
pub const HEADER_LEN: usize = 5;
/// Maximum plaintext of one record.
pub const MAX_PLAINTEXT: usize = 1 << 14;
/// Maximum bytes that a record we send is longer than its plaintext, header included.
pub const MAX_OVERHEAD: usize = HEADER_LEN + EXPLICIT_NONCE_LEN + TAG_LEN;

const TAG_LEN: usize = 16;
/// The version in the header of every record.
const VERSION: [u8; 2] = [3, 3];
/// Bytes of the nonce that a record of TLS 1.2 with AES-GCM carries.
const EXPLICIT_NONCE_LEN: usize = 8;

/// The content type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// Obsolete; between handshake messages only.
    ChangeCipherSpec = 20,
    /// An alert.
    Alert = 21,
    /// Handshake messages.
    Handshake = 22,
    /// Data of the application, and the outer type of every protected record of TLS 1.3.
    ApplicationData = 23,
}

impl ContentType {
    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            20 => Self::ChangeCipherSpec,
            21 => Self::Alert,
            22 => Self::Handshake,
            23 => Self::ApplicationData,
            _ => return None,
        })
    }
}

/// The header of a record: its outer type, and the length of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type, which TLS 1.3 hides.
    pub content_type: ContentType,
    /// Bytes of the record after its header.
    pub len: usize,
}

impl Header {
    /// Decodes the header at the start of `bytes`; `None`: it is not complete. The version in it is
    /// ignored, as RFC 8446 section 5.1 requires; with TLS 1.2 the record's tag covers it.
    ///
    /// # Errors
    /// The type is unknown, or the record exceeds the maximum length.
    pub fn decode(bytes: &[u8], version: Version) -> Result<Option<Self>, Alert> {
        let Some(&[content_type, _, _, high, low]) = bytes.first_chunk() else { return Ok(None) };
        let content_type = ContentType::decode(content_type).ok_or(Alert::UNEXPECTED_MESSAGE)?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        let expansion = match version {
            Version::Tls13 => 256,
            Version::Tls12 => 2048,
        };
        if len > MAX_PLAINTEXT + expansion {
            return Err(Alert::RECORD_OVERFLOW);
        }
        Ok(Some(Self { content_type, len }))
    }
}

/// The protection of the records of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    pub(crate) suite: Suite,
    pub(crate) version: Version,
}

impl Protection {
    /// Appends one record to `out` with `pieces` as its plaintext, at most [`MAX_PLAINTEXT`] bytes
    /// in all.
    ///
    /// # Errors
    /// No sequence number is left, or the cipher failed.
    #[inline(always)]
    pub(crate) fn seal(
        self,
        keys: &mut TrafficKeys,
        key: &LessSafeKey,
        content_type: ContentType,
        pieces: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        if keys.is_used_up() {
            return Err(Alert::INTERNAL_ERROR);
        }
        match self.version {
            Version::Tls13 => seal_tls13(keys, key, content_type, pieces, out),
            Version::Tls12 => self.seal_tls12(keys, key, content_type, pieces, out),
        }
    }

    // Out of line, so that TLS 1.2 adds no register pressure to TLS 1.3.
    #[inline(never)]
    fn seal_tls12(
        self,
        keys: &mut TrafficKeys,
        key: &LessSafeKey,
        content_type: ContentType,
        pieces: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), Alert> {
        let (sequence, nonce) = take_nonce(keys);
        let plain_len = len_of(pieces);
        let explicit = if self.has_explicit_nonce() { &nonce[4..] } else { &[] };
        let [major, minor] = VERSION;
        let [high, low] = ((explicit.len() + plain_len + TAG_LEN) as u16).to_be_bytes();
        out.extend_from_slice(&[content_type as u8, major, minor, high, low]);
        out.extend_from_slice(explicit);
        let body = out.len();
        append(pieces, out);
        out.extend_from_slice(&[0; TAG_LEN]);
        let aad = tls12_data(sequence, content_type, VERSION, plain_len);
        let sealed = out.get_mut(body..).ok_or(Alert::INTERNAL_ERROR)?;
        seal_in_place(key, nonce, &aad, sealed)
    }

    /// Opens one record in place: `record` is the whole record, header included. Returns its type
    /// and the place of its plaintext.
    ///
    /// # Errors
    /// The alert for a record that does not belong to this session.
    #[inline(always)]
    pub(crate) fn open(
        self,
        keys: &mut TrafficKeys,
        key: &LessSafeKey,
        header: Header,
        record: &mut [u8],
    ) -> Result<(ContentType, Range<usize>), Alert> {
        if keys.is_used_up() {
            return Err(Alert::INTERNAL_ERROR);
        }
        let (content_type, place) = match self.version {
            Version::Tls13 => open_tls13(keys, key, header, record)?,
            Version::Tls12 => self.open_tls12(keys, key, header, record)?,
        };
        if place.len() > MAX_PLAINTEXT {
            return Err(Alert::RECORD_OVERFLOW);
        }
        Ok((content_type, place))
    }

    #[inline(never)]
    fn open_tls12(
        self,
        keys: &mut TrafficKeys,
        key: &LessSafeKey,
        header: Header,
        record: &mut [u8],
    ) -> Result<(ContentType, Range<usize>), Alert> {
        if header.content_type == ContentType::ChangeCipherSpec {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        let explicit = if self.has_explicit_nonce() { EXPLICIT_NONCE_LEN } else { 0 };
        let body = HEADER_LEN + explicit;
        let Some((head, sealed)) = record.split_at_mut_checked(body) else {
            return Err(Alert::BAD_RECORD_MAC);
        };
        let (plain, tag) = sealed.split_last_chunk_mut().ok_or(Alert::BAD_RECORD_MAC)?;
        let explicit = head[HEADER_LEN..].first_chunk().copied();
        let (sequence, nonce) = keys.open_nonce(explicit);
        let aad = tls12_data(sequence, header.content_type, [head[1], head[2]], plain.len());
        open_in_place(key, nonce, &aad, plain, tag)?;
        Ok((header.content_type, body..body + plain.len()))
    }

    fn has_explicit_nonce(self) -> bool {
        self.version == Version::Tls12 && self.suite != Suite::ChaCha20Poly1305
    }
}

#[cfg(test)]
thread_local! {
    /// The key and the nonce of each sealed record.
    pub(crate) static SEALED: std::cell::RefCell<Vec<(Vec<u8>, [u8; 12])>> = const {
        std::cell::RefCell::new(Vec::new())
    };
}

#[inline(always)]
fn seal_tls13(
    keys: &mut TrafficKeys,
    key: &LessSafeKey,
    content_type: ContentType,
    pieces: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<(), Alert> {
    let (_, nonce) = take_nonce(keys);
    let header = tls13_data(len_of(pieces) + 1 + TAG_LEN);
    out.extend_from_slice(&header);
    let body = out.len();
    append(pieces, out);
    // The type, and the place of the tag.
    let mut end = [0; 1 + TAG_LEN];
    end[0] = content_type as u8;
    out.extend_from_slice(&end);
    let sealed = out.get_mut(body..).ok_or(Alert::INTERNAL_ERROR)?;
    seal_in_place(key, nonce, &header, sealed)
}

#[inline(always)]
fn open_tls13(
    keys: &mut TrafficKeys,
    key: &LessSafeKey,
    header: Header,
    record: &mut [u8],
) -> Result<(ContentType, Range<usize>), Alert> {
    if header.content_type != ContentType::ApplicationData {
        return Err(Alert::UNEXPECTED_MESSAGE);
    }
    let sealed = record.get_mut(HEADER_LEN..).ok_or(Alert::BAD_RECORD_MAC)?;
    let (plain, tag) = sealed.split_last_chunk_mut().ok_or(Alert::BAD_RECORD_MAC)?;
    let (_, nonce) = keys.open_nonce(None);
    open_in_place(key, nonce, &tls13_data(header.len), plain, tag)?;
    let (content_type, len) = inner_type(plain)?;
    Ok((content_type, HEADER_LEN..HEADER_LEN + len))
}

/// Uses up the next sequence number of keys that seal records.
#[inline(always)]
fn take_nonce(keys: &mut TrafficKeys) -> ([u8; 8], [u8; NONCE_LEN]) {
    let taken = keys.take_nonce();
    #[cfg(test)]
    SEALED.with_borrow_mut(|sealed| sealed.push((keys.key(), taken.1)));
    taken
}

/// Returns the length of the plaintext of one record.
#[inline(always)]
fn len_of(pieces: &[&[u8]]) -> usize {
    let len = pieces.iter().map(|piece| piece.len()).sum();
    debug_assert!(len <= MAX_PLAINTEXT, "a record of {len} bytes");
    len
}

#[inline(always)]
fn append(pieces: &[&[u8]], out: &mut Vec<u8>) {
    for piece in pieces {
        out.extend_from_slice(piece);
    }
}

/// Finds the type after the plaintext of TLS 1.3: the last byte that is not padding. Returns it,
/// and the length of the content (RFC 8446 section 5.4).
fn inner_type(plain: &[u8]) -> Result<(ContentType, usize), Alert> {
    if plain.len() > MAX_PLAINTEXT + 1 {
        return Err(Alert::RECORD_OVERFLOW);
    }
    let end = plain.iter().rposition(|byte| *byte != 0).ok_or(Alert::UNEXPECTED_MESSAGE)?;
    match ContentType::decode(plain[end]) {
        Some(ContentType::ChangeCipherSpec) | None => Err(Alert::UNEXPECTED_MESSAGE),
        // Only application data may be empty.
        Some(ContentType::Alert | ContentType::Handshake) if end == 0 => {
            Err(Alert::UNEXPECTED_MESSAGE)
        }
        Some(content_type) => Ok((content_type, end)),
    }
}

/// Seals the content at the start of `sealed`; the last [`TAG_LEN`] bytes are the place of the tag.
#[inline(always)]
fn seal_in_place(
    key: &LessSafeKey,
    nonce: [u8; NONCE_LEN],
    associated_data: &[u8],
    sealed: &mut [u8],
) -> Result<(), Alert> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    let aad = Aad::from(associated_data);
    let (content, tag) = sealed.split_last_chunk_mut::<TAG_LEN>().ok_or(Alert::INTERNAL_ERROR)?;
    key.seal_in_place_scatter(nonce, aad, content, &[], tag).map_err(|_| Alert::INTERNAL_ERROR)
}

#[inline(always)]
fn open_in_place(
    key: &LessSafeKey,
    nonce: Nonce,
    associated_data: &[u8],
    content: &mut [u8],
    tag: &[u8; TAG_LEN],
) -> Result<(), Alert> {
    let aad = Aad::from(associated_data);
    let opened = key.open_in_place_separate_tag(nonce, aad, tag, content);
    opened.map(|_| ()).map_err(|_| Alert::BAD_RECORD_MAC)
}

/// Returns the data that the tag of a record of TLS 1.3 covers besides its content: the header (RFC
/// 8446 section 5.2). `len` includes the tag.
fn tls13_data(len: usize) -> [u8; HEADER_LEN] {
    let [major, minor] = VERSION;
    let [high, low] = (len as u16).to_be_bytes();
    [ContentType::ApplicationData as u8, major, minor, high, low]
}

/// Returns the data that the tag of a record of TLS 1.2 covers besides its content: sequence
/// number, type and version of the header, and length of the plaintext (RFC 5246 section 6.2.3.3).
fn tls12_data(
    sequence: [u8; 8],
    content_type: ContentType,
    [major, minor]: [u8; 2],
    plain_len: usize,
) -> [u8; 13] {
    let mut bytes = [0; 13];
    bytes[..8].copy_from_slice(&sequence);
    bytes[8..11].copy_from_slice(&[content_type as u8, major, minor]);
    bytes[11..].copy_from_slice(&(plain_len as u16).to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 16] = [
        0x17, 0x42, 0x2d, 0xda, 0x59, 0x6e, 0xd5, 0xd9, 0xac, 0xd8, 0x90, 0xe3, 0xc6, 0x3f, 0x50,
        0x51,
    ];
    const IV: [u8; 12] = [0x5b, 0x78, 0x92, 0x3d, 0xee, 0x08, 0x57, 0x90, 0x33, 0xe5, 0x23, 0xd9];
    const TLS13: Protection = Protection { suite: Suite::Aes128Gcm, version: Version::Tls13 };
    const ALL: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

    fn keys(suite: Suite, sequence: u64) -> TrafficKeys {
        TrafficKeys::new(suite, &[3; 32][..suite.key_len()], &IV, None, sequence)
    }

    fn each() -> impl Iterator<Item = Protection> {
        ALL.into_iter().flat_map(|suite| {
            [Version::Tls12, Version::Tls13].map(|version| Protection { suite, version })
        })
    }

    fn sealed(how: Protection, sequence: u64, kind: ContentType, plain: &[u8]) -> Vec<u8> {
        let mut keys = keys(how.suite, sequence);
        let key = keys.expand(how.suite).unwrap();
        let mut out = Vec::new();
        how.seal(&mut keys, &key, kind, &[plain], &mut out).unwrap();
        out
    }

    fn opened(how: Protection, sequence: u64, mut record: Vec<u8>) -> Result<Opened, Alert> {
        let mut keys = keys(how.suite, sequence);
        let key = keys.expand(how.suite).unwrap();
        let header = Header::decode(&record, how.version)?.expect("a whole header");
        let (kind, place) = how.open(&mut keys, &key, header, &mut record)?;
        assert_eq!(keys.records(), sequence + 1);
        Ok((kind, record[place].to_vec()))
    }

    type Opened = (ContentType, Vec<u8>);

    /// Seals an inner plaintext that `Protection::seal` would not make.
    fn sealed_inner(inner: &[u8]) -> Vec<u8> {
        let mut keys = keys(Suite::Aes128Gcm, 0);
        let key = keys.expand(Suite::Aes128Gcm).unwrap();
        let (_, nonce) = keys.take_nonce();
        let len = inner.len() + TAG_LEN;
        let mut out = tls13_data(len).to_vec();
        let mut body = inner.to_vec();
        let aad = Aad::from(out.clone());
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body).unwrap();
        out.extend_from_slice(&body);
        out
    }

    /// RFC 8448 section 3: the client's record of 50 bytes of data.
    #[test]
    fn rfc8448_3_application_data_is_sealed_byte_for_byte() {
        let mut keys = TrafficKeys::new(Suite::Aes128Gcm, &KEY, &IV, None, 0);
        let key = keys.expand(Suite::Aes128Gcm).unwrap();
        let plain: Vec<u8> = (0..50).collect();
        let mut out = Vec::new();
        let pieces = [&plain[..1], &plain[1..1], &plain[1..33], &plain[33..]];
        TLS13.seal(&mut keys, &key, ContentType::ApplicationData, &pieces, &mut out).unwrap();
        let expected = [
            0x17, 0x03, 0x03, 0x00, 0x43, 0xa2, 0x3f, 0x70, 0x54, 0xb6, 0x2c, 0x94, 0xd0, 0xaf,
            0xfa, 0xfe, 0x82, 0x28, 0xba, 0x55, 0xcb, 0xef, 0xac, 0xea, 0x42, 0xf9, 0x14, 0xaa,
            0x66, 0xbc, 0xab, 0x3f, 0x2b, 0x98, 0x19, 0xa8, 0xa5, 0xb4, 0x6b, 0x39, 0x5b, 0xd5,
            0x4a, 0x9a, 0x20, 0x44, 0x1e, 0x2b, 0x62, 0x97, 0x4e, 0x1f, 0x5a, 0x62, 0x92, 0xa2,
            0x97, 0x70, 0x14, 0xbd, 0x1e, 0x3d, 0xea, 0xe6, 0x3a, 0xee, 0xbb, 0x21, 0x69, 0x49,
            0x15, 0xe4,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn rfc5246_6_2_3_3_the_tag_covers_number_type_version_and_length_of_the_plaintext() {
        let how = Protection { suite: Suite::Aes128Gcm, version: Version::Tls12 };
        let mut record = sealed(how, 7, ContentType::ApplicationData, b"data");
        let (head, body) = record.split_at_mut(HEADER_LEN + EXPLICIT_NONCE_LEN);
        let nonce = [&IV[..4], &head[HEADER_LEN..]].concat().try_into().unwrap();
        let aad = [&7u64.to_be_bytes()[..], &[23, 3, 3, 0, 4]].concat();
        let key = keys(how.suite, 0).expand(how.suite).unwrap();
        let nonce = Nonce::assume_unique_for_key(nonce);
        assert_eq!(key.open_in_place(nonce, Aad::from(aad), body).unwrap(), b"data");
    }

    #[test]
    fn a_sealed_record_opens_under_the_same_number_only() {
        for how in each() {
            for len in [0, 1, 15, 16, 17, 1000, MAX_PLAINTEXT] {
                let plain: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let record = sealed(how, 77, ContentType::ApplicationData, &plain);
                assert!(record.len() <= len + MAX_OVERHEAD);
                let expected = Ok((ContentType::ApplicationData, plain));
                assert_eq!(opened(how, 77, record.clone()), expected, "{how:?}");
                for other in [0, 76, 78] {
                    let outcome = opened(how, other, record.clone());
                    assert_eq!(outcome, Err(Alert::BAD_RECORD_MAC), "{how:?} as {other}");
                }
            }
        }
    }

    #[test]
    fn a_bit_flipped_anywhere_is_noticed() {
        for how in each() {
            let record = sealed(how, 0, ContentType::ApplicationData, b"a short text");
            for at in HEADER_LEN..record.len() {
                for bit in 0..8 {
                    let mut record = record.clone();
                    record[at] ^= 1 << bit;
                    assert_eq!(opened(how, 0, record), Err(Alert::BAD_RECORD_MAC), "{at}.{bit}");
                }
            }
        }
    }

    #[test]
    fn a_shortened_tag_is_no_tag() {
        for how in each() {
            let mut record = sealed(how, 0, ContentType::ApplicationData, b"a short text");
            record.pop();
            let len = (record.len() - HEADER_LEN) as u16;
            record[3..5].copy_from_slice(&len.to_be_bytes());
            assert_eq!(opened(how, 0, record), Err(Alert::BAD_RECORD_MAC));
        }
    }

    #[test]
    fn rfc8446_5_2_a_record_without_room_for_a_tag_fails_as_a_wrong_one() {
        for how in each() {
            for len in 0..16u8 {
                let mut record = vec![23, 3, 3, 0, len];
                record.resize(HEADER_LEN + usize::from(len), 0);
                assert_eq!(opened(how, 0, record), Err(Alert::BAD_RECORD_MAC));
            }
        }
    }

    #[test]
    fn rfc8446_5_2_a_record_longer_than_allowed_is_an_overflow() {
        let header = |len: u16| [&[23, 3, 3][..], &len.to_be_bytes()].concat();
        let decode = |len, version| Header::decode(&header(len), version);
        assert!(decode((1 << 14) + 256, Version::Tls13).is_ok());
        assert_eq!(decode((1 << 14) + 257, Version::Tls13), Err(Alert::RECORD_OVERFLOW));
        assert!(decode((1 << 14) + 2048, Version::Tls12).is_ok());
        assert_eq!(decode((1 << 14) + 2049, Version::Tls12), Err(Alert::RECORD_OVERFLOW));
        assert_eq!(decode(u16::MAX, Version::Tls12), Err(Alert::RECORD_OVERFLOW));
    }

    #[test]
    fn rfc8446_5_4_a_plaintext_longer_than_allowed_is_an_overflow() {
        let mut inner = vec![b'x'; MAX_PLAINTEXT + 1];
        *inner.last_mut().unwrap() = 23;
        let outcome = opened(TLS13, 0, sealed_inner(&inner));
        assert_eq!(outcome.map(|(_, plain)| plain.len()), Ok(MAX_PLAINTEXT));
        inner.push(0);
        assert_eq!(opened(TLS13, 0, sealed_inner(&inner)), Err(Alert::RECORD_OVERFLOW));
    }

    #[test]
    fn rfc8446_5_4_padding_is_removed() {
        for padding in [0, 1, 2, 255, 16_000] {
            let inner = [b"data\0with\0zeros\0".as_slice(), &[23], &vec![0; padding]].concat();
            let expected = (ContentType::ApplicationData, b"data\0with\0zeros\0".to_vec());
            assert_eq!(opened(TLS13, 0, sealed_inner(&inner)), Ok(expected));
        }
    }

    #[test]
    fn rfc8446_5_4_a_record_of_padding_only_is_refused() {
        for len in [0, 1, 100] {
            let outcome = opened(TLS13, 0, sealed_inner(&vec![0; len]));
            assert_eq!(outcome, Err(Alert::UNEXPECTED_MESSAGE));
        }
    }

    #[test]
    fn rfc8446_5_4_empty_alerts_and_handshake_messages_are_refused() {
        for kind in [21, 22] {
            for padding in [0, 3] {
                let inner = [&[kind][..], &vec![0; padding]].concat();
                let outcome = opened(TLS13, 0, sealed_inner(&inner));
                assert_eq!(outcome, Err(Alert::UNEXPECTED_MESSAGE));
            }
        }
        let expected = Ok((ContentType::ApplicationData, Vec::new()));
        assert_eq!(opened(TLS13, 0, sealed_inner(&[23, 0, 0])), expected);
    }

    #[test]
    fn rfc8446_5_unknown_and_hidden_types_are_refused() {
        for kind in [1, 19, 20, 24, 255] {
            let outcome = opened(TLS13, 0, sealed_inner(&[b'x', kind]));
            assert_eq!(outcome, Err(Alert::UNEXPECTED_MESSAGE), "inside: {kind}");
        }
        for kind in [0, 19, 24, 255] {
            let outcome = Header::decode(&[kind, 3, 3, 0, 20], Version::Tls13);
            assert_eq!(outcome, Err(Alert::UNEXPECTED_MESSAGE), "outside: {kind}");
        }
    }

    #[test]
    fn rfc8446_5_records_that_are_not_protected_are_refused() {
        for kind in [20, 21, 22] {
            let record = [&[kind, 3, 3, 0, 20][..], &[0; 20]].concat();
            assert_eq!(opened(TLS13, 0, record), Err(Alert::UNEXPECTED_MESSAGE));
        }
        let tls12 = Protection { version: Version::Tls12, ..TLS13 };
        let record = [&[20, 3, 3, 0, 1][..], &[1; 1]].concat();
        assert_eq!(opened(tls12, 0, record), Err(Alert::UNEXPECTED_MESSAGE));
    }

    #[test]
    fn rfc5246_6_2_3_3_the_type_is_authenticated() {
        for suite in ALL {
            let how = Protection { suite, version: Version::Tls12 };
            let mut record = sealed(how, 5, ContentType::ApplicationData, b"data");
            record[0] = ContentType::Alert as u8;
            assert_eq!(opened(how, 5, record), Err(Alert::BAD_RECORD_MAC));
        }
    }

    #[test]
    fn rfc5246_6_2_3_3_the_version_is_authenticated() {
        for suite in ALL {
            let how = Protection { suite, version: Version::Tls12 };
            for (at, bit) in [(1, 1), (1, 4), (2, 1), (2, 2)] {
                let mut record = sealed(how, 5, ContentType::ApplicationData, b"data");
                record[at] ^= bit;
                assert_eq!(opened(how, 5, record), Err(Alert::BAD_RECORD_MAC));
            }
        }
    }

    #[test]
    fn rfc8446_5_1_the_version_is_ignored() {
        let mut record = sealed(TLS13, 5, ContentType::ApplicationData, b"data");
        record[2] = 1;
        assert_eq!(opened(TLS13, 5, record).map(|(_, plain)| plain), Ok(b"data".to_vec()));
    }

    #[test]
    fn a_key_protects_no_more_records_than_there_are_sequence_numbers() {
        for how in each() {
            let mut keys = keys(how.suite, (1 << 48) - 2);
            let key = keys.expand(how.suite).unwrap();
            let mut out = Vec::new();
            let kind = ContentType::ApplicationData;
            how.seal(&mut keys, &key, kind, &[&b"last"[..]], &mut out).unwrap();
            let before = out.len();
            let outcome = how.seal(&mut keys, &key, kind, &[&b"one more"[..]], &mut out);
            assert_eq!((outcome, out.len()), (Err(Alert::INTERNAL_ERROR), before));
        }
    }
}
