//! Keys of applications that use an API, kept as hashes.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use aws_lc_rs::rand;

/// Maximum keys.
pub const MAX_API_KEYS: usize = 256;

/// Names of applications, and the SHA-256 of the key of each. A fast hash is enough for keys of 128
/// random bits and more; passwords that people choose must not be used.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Vec<(String, [u8; SHA256_OUTPUT_LEN])>);

impl ApiKeys {
    /// Reads lines such as `NAME:HASH`, with the hash in 64 hexadecimal digits. Leaves out empty
    /// lines and lines that begin with `#`.
    ///
    /// # Errors
    /// The line at fault. The text has no part of it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
        for (at, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
            if line.starts_with('#') {
                continue;
            }
            let named = line.split_once(':').and_then(|(name, hash)| Some((name, hex(hash)?)));
            let is_name = |name: &str| {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                (1..=64).contains(&name.len()) && name.chars().all(is_plain)
            };
            match named {
                Some((name, hash)) if is_name(name) => keys.push((name.to_owned(), hash)),
                _ => {
                    return Err(format!(
                        "line {} is not NAME:HASH, with a name of letters, digits, . _ and -, and \
                         64 hexadecimal digits: hash a key with `printf %s KEY | sha256sum`",
                        at + 1
                    ));
                }
            }
        }
        match keys.len() {
            0 => Err("it has no key: write lines such as NAME:HASH".to_owned()),
            1..=MAX_API_KEYS => Ok(Self(keys)),
            more => Err(format!("it has {more} keys, and {MAX_API_KEYS} are the most")),
        }
    }

    /// Creates a key of 128 random bits. Returns it with its line for a file.
    ///
    /// # Errors
    /// The name is not valid, or the system has no random numbers.
    pub fn create(name: &str) -> Result<(String, String), String> {
        let mut bits = [0; 16];
        rand::fill(&mut bits).map_err(|_| "the system has no random numbers".to_owned())?;
        let key = to_hex(&bits);
        let line = format!("{name}:{}", to_hex(digest(&SHA256, key.as_bytes()).as_ref()));
        Self::parse(&line).map_err(|_| {
            "a name has 1 to 64 letters, digits, . _ and -: write another".to_owned()
        })?;
        Ok((key, line))
    }

    /// Returns the name of the application that has `key`. The time that it takes does not depend
    /// on how much of a key is right.
    #[must_use]
    pub fn name_of(&self, key: &[u8]) -> Option<&str> {
        let hash = digest(&SHA256, key);
        let mut found = None;
        for (name, known) in &self.0 {
            if verify_slices_are_equal(known, hash.as_ref()).is_ok() {
                found = Some(name.as_str());
            }
        }
        found
    }
}

/// Hashes are not for logs.
impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hex(text: &str) -> Option<[u8; SHA256_OUTPUT_LEN]> {
    let mut bytes = [0; SHA256_OUTPUT_LEN];
    if text.len() != 2 * bytes.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `a key`.
    const HASH: &str = "3a7fbb2cbe4bd5f1d7cbfcfd2c9c3b1d0bfcf2d3d0c7b6f1a1a2b8d5b7c5d0ff";

    fn hash_of(key: &str) -> String {
        to_hex(digest(&SHA256, key.as_bytes()).as_ref())
    }

    #[test]
    fn a_created_key_has_the_name_of_its_line() {
        let (key, line) = ApiKeys::create("ci-1").unwrap();
        assert_eq!(key.len(), 32);
        assert_eq!(ApiKeys::parse(&line).unwrap().name_of(key.as_bytes()), Some("ci-1"));
        assert_ne!(ApiKeys::create("ci-1").unwrap().0, key);
        for name in ["", "a b", "a:b", "a\nb"] {
            assert!(ApiKeys::create(name).unwrap_err().starts_with("a name has"), "{name:?}");
        }
    }

    #[test]
    fn a_key_is_found_by_its_hash() {
        let text = format!("# keys\nother:{HASH}\n\nshop.1:{}\n", hash_of("a key").to_uppercase());
        let keys = ApiKeys::parse(&text).unwrap();
        assert_eq!(keys.name_of(b"a key"), Some("shop.1"));
        for wrong in [&b""[..], b"a kez", b"a key ", hash_of("a key").as_bytes()] {
            assert_eq!(keys.name_of(wrong), None);
        }
        assert_eq!(format!("{keys:?}"), "[\"other\", \"shop.1\"]");
    }

    #[test]
    fn mistakes_have_their_line() {
        for (text, expected) in [
            ("", "it has no key"),
            ("shop", "line 1 is not NAME:HASH"),
            ("# a\nshop:12", "line 2 is not NAME:HASH"),
            (&format!("a b:{HASH}"), "line 1 is not"),
            (&format!(":{HASH}"), "line 1 is not"),
            (&format!("shop:{}\u{e9}", &HASH[2..]), "line 1 is not"),
        ] {
            let message = ApiKeys::parse(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        let many = format!("a:{HASH}\n").repeat(MAX_API_KEYS + 1);
        assert!(ApiKeys::parse(&many).is_err());
    }
}
