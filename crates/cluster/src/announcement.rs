//! The format of a join or leave between nodes.
//!
//! ```text
//! version kind change node:16 client:16 info
//! ```
//!
//! Numbers are hexadecimal digits, because scripts of the broker write them; the information is
//! text.

use crate::envelope::Malformed;

/// The version that this release writes, and the kind that distinguishes this format from a
/// publication.
const VERSION: u8 = 1;
const PRESENCE: u8 = 2;

/// A client that joined or left a channel with presence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement<'a> {
    /// Whether it joined.
    pub is_join: bool,
    /// The node that it is connected to.
    pub node: u64,
    /// The connection.
    pub client: u64,
    /// Its information.
    pub info: &'a str,
}

impl<'a> Announcement<'a> {
    /// Reads a join or leave.
    ///
    /// # Errors
    /// The bytes have another format, or a version that this release does not know.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
        let is_join = match head {
            [VERSION, PRESENCE, b'j'] => true,
            [VERSION, PRESENCE, b'l'] => false,
            _ => return Err(Malformed),
        };
        let (node, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let (client, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let info = str::from_utf8(rest).map_err(|_| Malformed)?;
        Ok(Self { is_join, node: number(node)?, client: number(client)?, info })
    }
}

/// Reads 16 hexadecimal digits.
pub(crate) fn number(digits: &[u8; 16]) -> Result<u64, Malformed> {
    let digits = str::from_utf8(digits).map_err(|_| Malformed)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, 16).map_err(|_| Malformed)?;
    is_number.then_some(number).ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    use throng_testkit::Random;

    use super::*;

    #[test]
    fn announcements_of_scripts_are_read_and_anything_else_is_an_error() {
        let bytes = b"\x01\x02l00000000000000ab0000000000400002ann";
        let leave = Announcement { is_join: false, node: 0xab, client: 0x40_0002, info: "ann" };
        assert_eq!(Announcement::decode(bytes), Ok(leave));
        assert!((0..35).all(|end| Announcement::decode(&bytes[..end]).is_err()));
        let mut random = Random::new(5);
        for _ in 0..10_000 {
            let mut bytes = *bytes;
            bytes[random.below(bytes.len())] = random.below(256) as u8;
            let _ = Announcement::decode(&bytes);
        }
        assert!(Announcement::decode(b"\x01\x02j+0000000000000ab0000000000400002").is_err());
        assert!(Announcement::decode(b"\x01\x01j00000000000000ab0000000000400002").is_err());
    }
}
