//! Secrets that clients of an API send, such as operators and backends.

use std::fmt;

use subtle::ConstantTimeEq as _;

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
