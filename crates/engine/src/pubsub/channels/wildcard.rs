//! Patterns of channel names.
//!
//! Names are tokens between dots. In a pattern the token `*` stands for exactly one token and
//! `>`, at the end only, for one or more; as a part of a token (`n*`) they are ordinary characters.
//! A published name is always literal, and so is the name of a subscribed channel: publishing to
//! `news.*` reaches the subscribers of that channel and of the patterns `news.*`, `news.>`, `*.*`
//! or `>`, because `*` is then a token like any other. It does not reach subscribers of `news.eu`.

/// Maximum tokens in a pattern. This bounds the trie nodes of one subscription. A token used
/// nowhere else costs about 110 bytes plus its text, so a pattern costs at most about 2 KB plus
/// twice its name. A name without wildcards may have any number of tokens.
pub const MAX_PATTERN_TOKENS: usize = 16;

pub(super) const ANY: &str = "*";
pub(super) const TAIL: &str = ">";

/// Error of a malformed pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PatternError {
    /// Empty token before, after or between dots, as in `a..b`.
    EmptyToken,
    /// `>` before the end, as in `a.>.b`.
    TailNotLast,
    /// A pattern of more than 16 tokens.
    TooManyTokens,
}

impl std::fmt::Display for PatternError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EmptyToken => {
                f.write_str("a token is empty; put something before, after and between dots")
            }
            Self::TailNotLast => {
                f.write_str("the wildcard > is not at the end; put * in its place")
            }
            Self::TooManyTokens => {
                write!(
                    f,
                    "a pattern has more than {MAX_PATTERN_TOKENS} tokens; end it with > earlier"
                )
            }
        }
    }
}

impl std::error::Error for PatternError {}

/// Returns whether a text can be one token of a channel name: it is not empty and has no dot, no
/// wildcard and no control character. Check a text of a user before you make it part of a name.
///
/// ```
/// # mod throng { pub mod channel { pub use throng_engine::is_channel_token as is_token; } }
/// use throng::channel::is_token;
///
/// assert!(is_token("alice"));
/// for text in ["", "*", "a.b", ">", "a*", "a\n"] {
///     assert!(!is_token(text));
/// }
/// ```
#[must_use]
pub fn is_channel_token(text: &str) -> bool {
    let is_special = |c: char| matches!(c, '.' | '*' | '>') || c.is_control();
    !text.is_empty() && !text.contains(is_special)
}

/// Returns whether a pattern has a wildcard.
///
/// # Errors
/// It is malformed.
pub fn check(name: &str) -> Result<bool, PatternError> {
    let (mut tokens, mut is_pattern, mut ended) = (0, false, false);
    for token in name.split('.') {
        if token.is_empty() {
            return Err(PatternError::EmptyToken);
        }
        if ended {
            return Err(PatternError::TailNotLast);
        }
        ended = token == TAIL;
        is_pattern |= ended || token == ANY;
        tokens += 1;
    }
    if is_pattern && tokens > MAX_PATTERN_TOKENS {
        return Err(PatternError::TooManyTokens);
    }
    Ok(is_pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_patterns_and_what_is_neither() {
        for name in ["a", "a.b", "*a", "a*.b>", "room-1", "**", ">>", &["x"; 40].join(".")] {
            assert_eq!(check(name), Ok(false), "{name}");
        }
        for pattern in ["*", ">", "a.*", "*.a", "a.*.b", "a.>", "*.>", "*.*", &["*"; 16].join(".")]
        {
            assert_eq!(check(pattern), Ok(true), "{pattern}");
        }
        for empty in ["", ".", "a.", ".a", "a..b", "a..>", ".>", ">."] {
            assert_eq!(check(empty), Err(PatternError::EmptyToken), "{empty}");
        }
        for early in [">.a", "a.>.b", ">.>", "a.>.*"] {
            assert_eq!(check(early), Err(PatternError::TailNotLast), "{early}");
        }
        assert_eq!(check(&["*"; 17].join(".")), Err(PatternError::TooManyTokens));
    }
}
