//! Secrets that clients of an API send, such as operators and backends.

use std::fmt;
use std::fs::Metadata;
use std::path::Path;

use subtle::ConstantTimeEq as _;
use throng_io::file::{self, FileError};

/// The minimum length of a token. A shorter token is too easy to guess.
const SHORTEST_TOKEN: usize = 16;

/// A secret. `Debug` does not show it, and the time of a comparison does not reveal how much of a
/// guess was right.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Creates a token from `text` without the white space around it. The error is the remedy: a
    /// token has at least 16 visible ASCII characters.
    ///
    /// # Errors
    /// The text is too short, or has a character that does not fit in a header field.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() < SHORTEST_TOKEN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "a token has at least {SHORTEST_TOKEN} visible ASCII characters: make one with \
                 `head -c 24 /dev/urandom | base64`"
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// Reads the token in the first line of a file, with a warning if all users of the machine can
    /// read the file.
    ///
    /// # Errors
    /// The file cannot be read, or its first line is not a token.
    pub fn read(path: &Path) -> Result<(Self, Option<String>), TokenFileError> {
        let shown = path.display();
        let (line, warning) = read_first_line(path).map_err(|error| TokenFileError {
            what: format!("{shown} {error}"),
            may_pass: error.may_pass(),
        })?;
        let token = Self::new(&line).map_err(|remedy| TokenFileError {
            what: format!("the first line of {shown} is not a token: {remedy}"),
            may_pass: false,
        })?;
        Ok((token, warning))
    }

    /// Returns the secret.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the secret.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns whether `given` is this token. The time that it takes depends on lengths
    /// alone.
    #[must_use]
    pub fn matches(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// The reason why a file has no token, with the remedy.
#[derive(Debug)]
pub struct TokenFileError {
    what: String,
    may_pass: bool,
}

impl TokenFileError {
    /// Returns whether another attempt with the same path may succeed.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.may_pass
    }
}

impl fmt::Display for TokenFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for TokenFileError {}

/// Reads the first line of a file of a secret, without a byte-order mark, with a warning if all
/// users of the machine can read the file.
pub(crate) fn read_first_line(path: &Path) -> Result<(String, Option<String>), FileError> {
    let (bytes, metadata) = file::read_with_metadata(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.trim_start_matches('\u{feff}').lines().next().unwrap_or_default();
    let path = path.display();
    let warning = is_public(&metadata)
        .then(|| format!("{path} can be read by every user of this machine: chmod o-r {path}"));
    Ok((line.to_owned(), warning))
}

/// Returns whether all users of the machine may read the file.
#[cfg(unix)]
fn is_public(file: &Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.permissions().mode() & 0o004 != 0
}

#[cfg(not(unix))]
fn is_public(_: &Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_matches() {
        let token = Token::new(" 0123456789abcdef\n").unwrap();
        assert!(token.matches(b"0123456789abcdef"));
        for wrong in
            [&b""[..], b"0123456789abcde", b"0123456789abcdeF", b"0123456789abcdef0123456789abcdef"]
        {
            assert!(!token.matches(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{token:?}"), "Token(secret)");
    }

    #[test]
    fn short_and_unsendable_tokens_are_refused_with_a_way_to_make_one() {
        for text in ["", "short", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(Token::new(text).unwrap_err().contains("/dev/urandom"), "{text}");
        }
    }
}
