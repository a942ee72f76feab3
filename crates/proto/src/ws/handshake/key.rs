//! The handshake's key and the proof that a server read it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Appended to the key before it is hashed (RFC 6455 section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The base64 alphabet.
static IS_DIGIT: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
        byte += 1;
    }
    table
};

/// A `Sec-WebSocket-Key`: 16 bytes in base64
/// ([RFC 6455 section 4.1](https://www.rfc-editor.org/rfc/rfc6455#section-4.1), point 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 24]);

impl Key {
    /// Creates a client's key from 16 bytes, which should be random and used once.
    #[must_use]
    pub fn new(nonce: [u8; 16]) -> Self {
        let mut text = [0; 24];
        // 16 bytes are 24 characters of base64.
        let _ = STANDARD.encode_slice(nonce, &mut text);
        Self(text)
    }

    /// Parses a client's key; `None` if it is not the base64 of 16 bytes.
    ///
    /// The four unused bits of the last digit may have any value:
    /// [RFC 6455 section 4.2.1](https://www.rfc-editor.org/rfc/rfc6455#section-4.2.1) requires that
    /// it decodes to 16 bytes, and some clients send any 22 digits.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let key: [u8; 24] = text.try_into().ok()?;
        let (digits, padding) = key.split_at(22);
        let are_digits = digits.iter().fold(true, |all, byte| all & IS_DIGIT[usize::from(*byte)]);
        (are_digits && padding == b"==").then_some(Self(key))
    }

    /// Returns the text of the header.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Base64 is ASCII.
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the `Sec-WebSocket-Accept` for this key, see [`accept_key`].
    #[must_use]
    pub fn accept(&self) -> [u8; 28] {
        accept_key(self.as_str())
    }
}

/// Returns the `Sec-WebSocket-Accept` for a key: base64 of the SHA-1 of the key and a fixed text
/// ([RFC 6455 section 4.2.2](https://www.rfc-editor.org/rfc/rfc6455#section-4.2.2)).
///
/// ```
/// use throng_proto::ws::handshake::accept_key;
/// assert_eq!(&accept_key("dGhlIHNhbXBsZSBub25jZQ=="), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
/// ```
#[must_use]
pub fn accept_key(key: &str) -> [u8; 28] {
    let mut sha1 = sha1_smol::Sha1::new();
    sha1.update(key.as_bytes());
    sha1.update(GUID);
    let mut accept = [0; 28];
    // 20 bytes are 28 characters of base64.
    let _ = STANDARD.encode_slice(sha1.digest().bytes(), &mut accept);
    accept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6455_1_3_accept_of_the_sample_nonce() {
        let key = Key::new(*b"the sample nonce");
        assert_eq!(key.as_str(), "dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(&key.accept(), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(Key::parse(key.as_str().as_bytes()), Some(key));
    }

    #[test]
    fn rfc6455_4_2_1_key_decodes_to_16_bytes() {
        assert!(Key::parse(b"dGhlIHNhbXBsZSBub25jZQ==").is_some());
        assert!(Key::parse(b"////////////////////////").is_none(), "18 bytes");
        assert!(Key::parse(b"dGhlIHNhbXBsZSBub25jZV==").is_some(), "unused bits set");
        for bad in [
            "",
            "dGhlIHNhbXBsZSBub25jZQ",
            "dGhlIHNhbXBsZSBub25jZQ=",
            "dGhlIHNhbXBsZSBub25jZQ===",
            "dGhlIHNhbXBsZSBub25j====",
            "dGhlIHNhbXBsZSBub25j-_==",
            "dGhlIHNhbXBsZSBub25j\r\n==",
            "dGhlIHNhbXBsZSBub25jé==",
        ] {
            assert!(Key::parse(bad.as_bytes()).is_none(), "{bad:?}");
        }
    }
}
