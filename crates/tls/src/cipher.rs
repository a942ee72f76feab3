//! Cipher suites: the AEAD and the hash of each, and the traffic keys of one direction.

use std::fmt;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce,
    UnboundKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use throng_carry::{Carried, CarryError, Content, Encoder};
use zeroize::{Zeroize, Zeroizing};

/// The protocol version of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// RFC 5246, with AEAD suites only.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// The AEAD of a session, with the hash that TLS 1.3 pairs with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// AES-128-GCM with SHA-256.
    Aes128Gcm,
    /// AES-256-GCM with SHA-384.
    Aes256Gcm,
    /// ChaCha20-Poly1305 with SHA-256.
    ChaCha20Poly1305,
}

impl Suite {
    /// Length of the key in bytes.
    #[must_use]
    pub fn key_len(self) -> usize {
        self.aead().key_len()
    }

    /// Length of a traffic secret in bytes: the length of the hash.
    #[must_use]
    pub fn secret_len(self) -> usize {
        KeyType::len(&self.hkdf())
    }

    fn aead(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => HKDF_SHA256,
            Self::Aes256Gcm => HKDF_SHA384,
        }
    }

    /// Maximum blocks of 16 bytes, counted whole, that one key protects. For AES-GCM the limit
    /// keeps an attacker's advantage below 2^-57: RFC 8446 section 5.5 allows 2^24.5 full records.
    /// The limit of ChaCha20-Poly1305 cannot be reached.
    #[must_use]
    pub fn max_blocks(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 34,
            Self::ChaCha20Poly1305 => u64::MAX,
        }
    }
}

/// Maximum length of a secret: the length of SHA-384.
pub(crate) const MAX_SECRET: usize = 48;
const MAX_KEY: usize = 32;

/// Returns the cipher blocks of a record of `len` bytes: its content, one block that masks the tag,
/// and one for the inner type.
pub(crate) fn blocks(len: usize) -> u64 {
    (len / 16) as u64 + 3
}

/// Maximum records of one key: its sequence number has 48 bits, enough for nine years at a million
/// records a second.
const MAX_RECORDS: u64 = (1 << 48) - 1;

/// The traffic keys of one direction, and the number of its next record.
///
/// Neither `Clone` nor `Copy`, so that no sequence number exists twice; wiped when dropped. The
/// type has only byte fields, so that a session with two directions fits in 200 bytes.
pub(crate) struct TrafficKeys {
    /// For keys without a secret, the number of blocks that they have protected.
    secret: [u8; MAX_SECRET],
    key: [u8; MAX_KEY],
    iv: [u8; NONCE_LEN],
    /// Big-endian.
    sequence: [u8; SEQUENCE_LEN],
}

const SEQUENCE_LEN: usize = 6;

throng_carry::carried! {
    TrafficKeys {
        required { 1 secret, 3 key, 5 iv, 7 sequence }
        optional { }
        rebuilt { }
    }
}

impl Carried for Suite {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        // The codes of TLS 1.3 (RFC 8446 appendix B.4).
        let code: u16 = match self {
            Self::Aes128Gcm => 0x1301,
            Self::Aes256Gcm => 0x1302,
            Self::ChaCha20Poly1305 => 0x1303,
        };
        code.put(tag, out)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        match u16::take(content)? {
            0x1301 => Ok(Self::Aes128Gcm),
            0x1302 => Ok(Self::Aes256Gcm),
            0x1303 => Ok(Self::ChaCha20Poly1305),
            _ => Err(CarryError::Malformed),
        }
    }
}

/// Returns a sequence number of a record as its bytes in [`TrafficKeys`].
fn sequence(number: u64) -> [u8; SEQUENCE_LEN] {
    let [_, _, bytes @ ..] = number.to_be_bytes();
    bytes
}

impl TrafficKeys {
    /// Creates the keys of a direction whose next record has the number `sequence`. Without a
    /// secret they cannot be updated.
    pub(crate) fn new(
        suite: Suite,
        key: &[u8],
        iv: &[u8; NONCE_LEN],
        secret: Option<&[u8]>,
        sequence: u64,
    ) -> Self {
        let mut keys = Self::zero();
        keys.key[..suite.key_len()].copy_from_slice(key);
        keys.iv = *iv;
        keys.sequence = self::sequence(sequence);
        if let Some(secret) = secret {
            keys.secret[..suite.secret_len()].copy_from_slice(secret);
        }
        keys
    }

    /// Derives the keys from a traffic secret (RFC 8446 section 7.3).
    pub(crate) fn from_secret(suite: Suite, secret: &[u8]) -> Result<Self, Unspecified> {
        let prk = Prk::new_less_safe(suite.hkdf(), secret);
        let mut keys = Self::zero();
        keys.secret[..secret.len()].copy_from_slice(secret);
        expand_label(&prk, b"key", &mut keys.key[..suite.key_len()])?;
        expand_label(&prk, b"iv", &mut keys.iv)?;
        Ok(keys)
    }

    pub(crate) fn zero() -> Self {
        Self {
            secret: [0; MAX_SECRET],
            key: [0; MAX_KEY],
            iv: [0; NONCE_LEN],
            sequence: [0; SEQUENCE_LEN],
        }
    }

    /// Replaces the keys by the next generation (RFC 8446 section 7.2).
    pub(crate) fn update(&mut self, suite: Suite) -> Result<(), Unspecified> {
        let prk = Prk::new_less_safe(suite.hkdf(), &self.secret[..suite.secret_len()]);
        let mut next = Zeroizing::new([0; MAX_SECRET]);
        let next = &mut next[..suite.secret_len()];
        expand_label(&prk, b"traffic upd", next)?;
        *self = Self::from_secret(suite, next)?;
        Ok(())
    }

    /// Returns whether key and IV are derived from the secret, as they are after each update.
    pub(crate) fn are_derived(&self, suite: Suite) -> bool {
        let derived = Self::from_secret(suite, &self.secret[..suite.secret_len()]);
        derived.is_ok_and(|derived| derived.has_keys_of(self))
    }

    /// Returns whether `other` has the same key and IV.
    pub(crate) fn has_keys_of(&self, other: &Self) -> bool {
        self.key == other.key && self.iv == other.iv
    }

    /// Expands the key: computes the key schedule of the cipher.
    pub(crate) fn expand(&self, suite: Suite) -> Result<LessSafeKey, Unspecified> {
        UnboundKey::new(suite.aead(), &self.key[..suite.key_len()]).map(LessSafeKey::new)
    }

    /// Counts the blocks of keys that have no secret and so cannot be updated; returns the total.
    pub(crate) fn count_blocks(&mut self, more: u64) -> u64 {
        let Some(count) = self.secret.first_chunk_mut::<8>() else { return u64::MAX };
        let blocks = u64::from_be_bytes(*count).saturating_add(more);
        *count = blocks.to_be_bytes();
        blocks
    }

    /// Returns the number of records that these keys have protected.
    pub(crate) fn records(&self) -> u64 {
        let mut number = [0; 8];
        number[8 - SEQUENCE_LEN..].copy_from_slice(&self.sequence);
        u64::from_be_bytes(number)
    }

    /// Returns whether no sequence number is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.records() >= MAX_RECORDS
    }

    /// Uses up the next sequence number: returns it with the nonce made from it (RFC 8446 section
    /// 5.3). No other function does either.
    pub(crate) fn take_nonce(&mut self) -> ([u8; 8], [u8; NONCE_LEN]) {
        let number = self.records();
        let mut nonce = self.iv;
        if let Some(numbered) = nonce.last_chunk_mut::<8>() {
            *numbered = (u64::from_be_bytes(*numbered) ^ number).to_be_bytes();
        }
        // The number does not wrap: keys without a sequence number left seal and open no record.
        self.sequence = sequence(number + 1);
        (number.to_be_bytes(), nonce)
    }

    /// Returns the next sequence number and nonce for a record that was received. `explicit` is
    /// the part of the nonce that a record of TLS 1.2 with AES-GCM carries (RFC 5288 section 3).
    pub(crate) fn open_nonce(&mut self, explicit: Option<[u8; 8]>) -> ([u8; 8], Nonce) {
        let (sequence, mut nonce) = self.take_nonce();
        if let Some(explicit) = explicit {
            nonce[..4].copy_from_slice(&self.iv[..4]);
            nonce[4..].copy_from_slice(&explicit);
        }
        (sequence, Nonce::assume_unique_for_key(nonce))
    }
}

impl Drop for TrafficKeys {
    fn drop(&mut self) {
        self.secret.zeroize();
        self.key.zeroize();
        self.iv.zeroize();
        self.sequence.zeroize();
        #[cfg(test)]
        WIPED.with_borrow_mut(|wiped| wiped.push(std::ptr::from_ref(self).addr()));
    }
}

#[cfg(test)]
thread_local! {
    /// The addresses of the wiped keys.
    pub(crate) static WIPED: std::cell::RefCell<Vec<usize>> = const {
        std::cell::RefCell::new(Vec::new())
    };
}

impl fmt::Debug for TrafficKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrafficKeys")
    }
}

/// The expanded key of one direction, shared by later records.
///
/// It carries the IV that was derived with its key: after an update of the keys, or for another
/// session, the key is expanded again.
#[derive(Default)]
pub(crate) struct ExpandedKey(Option<([u8; NONCE_LEN], LessSafeKey)>);

impl ExpandedKey {
    /// Returns the expanded key of `keys`.
    #[inline]
    pub(crate) fn of(
        &mut self,
        keys: &TrafficKeys,
        suite: Suite,
    ) -> Result<&LessSafeKey, Unspecified> {
        if !matches!(&self.0, Some((iv, _)) if *iv == keys.iv) {
            self.renew(keys, suite)?;
        }
        self.0.as_ref().map(|(_, key)| key).ok_or(Unspecified)
    }

    #[cold]
    #[inline(never)]
    fn renew(&mut self, keys: &TrafficKeys, suite: Suite) -> Result<(), Unspecified> {
        self.0 = Some((keys.iv, keys.expand(suite)?));
        Ok(())
    }
}

/// The length of the derived value.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
fn expand_label(prk: &Prk, label: &[u8], out: &mut [u8]) -> Result<(), Unspecified> {
    let length = (out.len() as u16).to_be_bytes();
    let label_len = [(b"tls13 ".len() + label.len()) as u8];
    let info: [&[u8]; 5] = [&length, &label_len, b"tls13 ", label, &[0]];
    prk.expand(&info, Length(out.len()))?.fill(out)
}

#[cfg(test)]
impl TrafficKeys {
    pub(crate) fn key(&self) -> Vec<u8> {
        self.key.to_vec()
    }

    /// Advances the keys to a record's number.
    pub(crate) fn at(mut self, sequence: u64) -> Self {
        self.sequence = self::sequence(sequence);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_number_advances_with_every_nonce() {
        let iv = [7; NONCE_LEN];
        let mut keys = TrafficKeys::new(Suite::Aes128Gcm, &[1; 16], &iv, None, 255);
        for number in 255u64..600 {
            let (sequence, nonce) = keys.take_nonce();
            assert_eq!(sequence, number.to_be_bytes());
            let mut expected = iv;
            for (byte, part) in expected[4..].iter_mut().zip(number.to_be_bytes()) {
                *byte ^= part;
            }
            assert_eq!(nonce, expected);
            assert_eq!(keys.records(), number + 1);
        }
    }

    #[test]
    fn an_update_restarts_the_sequence_and_changes_every_part() {
        for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
            let secret = vec![9; suite.secret_len()];
            let mut keys = TrafficKeys::from_secret(suite, &secret).unwrap();
            let before = (keys.key, keys.iv, keys.secret);
            keys.take_nonce();
            keys.update(suite).unwrap();
            assert_eq!(keys.records(), 0);
            assert_ne!(keys.key, before.0);
            assert_ne!(keys.iv, before.1);
            assert_ne!(keys.secret, before.2);
        }
    }

    #[test]
    fn an_expanded_key_follows_an_update_of_its_keys() {
        let (suite, mut expanded) = (Suite::Aes256Gcm, ExpandedKey::default());
        let mut keys = TrafficKeys::from_secret(suite, &[9; 48]).unwrap();
        let mut sealed = |keys: &TrafficKeys| {
            let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
            let key = expanded.of(keys, suite).unwrap();
            let aad = aws_lc_rs::aead::Aad::empty();
            key.seal_in_place_separate_tag(nonce, aad, &mut []).unwrap().as_ref().to_vec()
        };
        let before = sealed(&keys);
        assert_eq!(sealed(&keys), before);
        keys.update(suite).unwrap();
        assert_ne!(sealed(&keys), before);
    }

    #[test]
    fn the_last_sequence_number_is_known() {
        let keys = TrafficKeys::new(Suite::Aes128Gcm, &[1; 16], &[7; NONCE_LEN], None, 0);
        let mut keys = keys.at(MAX_RECORDS - 1);
        assert!(!keys.is_used_up());
        keys.take_nonce();
        assert!(keys.is_used_up());
    }

    #[test]
    fn debug_shows_no_secret() {
        let keys = TrafficKeys::from_secret(Suite::Aes128Gcm, &[0xab; 32]).unwrap();
        assert_eq!(format!("{keys:?}"), "TrafficKeys");
    }

    /// RFC 8448 section 3: the client's application traffic keys.
    #[test]
    fn rfc8448_3_traffic_keys_are_derived_from_their_secret() {
        let secret = [
            0x9e, 0x40, 0x64, 0x6c, 0xe7, 0x9a, 0x7f, 0x9d, 0xc0, 0x5a, 0xf8, 0x88, 0x9b, 0xce,
            0x65, 0x52, 0x87, 0x5a, 0xfa, 0x0b, 0x06, 0xdf, 0x00, 0x87, 0xf7, 0x92, 0xeb, 0xb7,
            0xc1, 0x75, 0x04, 0xa5,
        ];
        let keys = TrafficKeys::from_secret(Suite::Aes128Gcm, &secret).unwrap();
        let key = [
            0x17, 0x42, 0x2d, 0xda, 0x59, 0x6e, 0xd5, 0xd9, 0xac, 0xd8, 0x90, 0xe3, 0xc6, 0x3f,
            0x50, 0x51,
        ];
        let iv = [0x5b, 0x78, 0x92, 0x3d, 0xee, 0x08, 0x57, 0x90, 0x33, 0xe5, 0x23, 0xd9];
        assert_eq!((&keys.key[..16], keys.iv), (&key[..], iv));
    }
}
