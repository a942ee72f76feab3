//! Text with placeholders for each client's own values, and the tokens that clients use in turn.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use throng_engine::random::{Random, mix};

use crate::error::Error;

/// The names of all places, for errors.
const NAMES: &str = "{client}, {sequence}, {random}, {uuid} and {token}";
/// Limits memory if a file given by mistake does not contain tokens.
const MAX_TOKENS: usize = 10_000_000;

/// Text in which `{client}`, `{sequence}`, `{random}`, `{uuid}` and `{token}` stand for a client's
/// values.
///
/// `{{name}` stands for `{name}` itself; braces around anything except a lower-case word stand for
/// themselves, so that JSON needs no escaping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Placeholder(Placeholder),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    Client,
    Sequence,
    Random,
    Uuid,
    Token,
}

/// The values that a template is filled in with.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// Number of the client, from 0.
    pub client: u64,
    /// Number of its message, request or connection, from 0.
    pub sequence: u64,
    /// Seeds the random values, together with the two numbers: the same three give the same text.
    pub seed: u64,
    /// Where clients take their tokens from.
    pub tokens: &'a Tokens,
}

impl Template {
    /// Parses a text with placeholders.
    ///
    /// # Errors
    /// The error is one line that names the unknown placeholder and the valid ones.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find('{') {
            plain.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(word) = word(&rest[1..]) {
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Placeholder(Placeholder::of(word)?));
                rest = &rest[word.len() + 2..];
            } else {
                let is_escape = rest.starts_with("{{") && word(&rest[2..]).is_some();
                let skipped = if is_escape { 2 } else { 1 };
                plain.push('{');
                rest = &rest[skipped..];
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { parts })
    }

    /// Returns a text without placeholders, in which braces have no meaning.
    #[must_use]
    pub fn literal(text: &str) -> Self {
        Self { parts: vec![Part::Text(text.to_owned())] }
    }

    /// Returns the text, if it has no placeholders.
    #[must_use]
    pub fn constant(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns whether the text needs each client's token.
    #[must_use]
    pub fn needs_token(&self) -> bool {
        self.parts.contains(&Part::Placeholder(Placeholder::Token))
    }

    /// Appends the text with the values of a client.
    pub fn render(&self, values: &Values<'_>, out: &mut String) {
        let seed = mix(values.seed ^ mix(values.client)) ^ mix(!values.sequence);
        let mut random = Random::new(seed);
        for part in &self.parts {
            // Writing to a string cannot fail.
            let _ = match part {
                Part::Text(text) => out.write_str(text),
                Part::Placeholder(Placeholder::Client) => write!(out, "{}", values.client),
                Part::Placeholder(Placeholder::Sequence) => write!(out, "{}", values.sequence),
                Part::Placeholder(Placeholder::Random) => write!(out, "{:016x}", random.bits()),
                Part::Placeholder(Placeholder::Uuid) => {
                    write_uuid(random.bits(), random.bits(), out)
                }
                Part::Placeholder(Placeholder::Token) => {
                    out.write_str(values.tokens.of(values.client))
                }
            };
        }
    }

    /// Returns the text with a client's values. A text without placeholders is not copied.
    #[must_use]
    pub fn rendered(&self, values: &Values<'_>) -> Cow<'_, str> {
        if let Some(text) = self.constant() {
            return text.into();
        }
        let mut out = String::new();
        self.render(values, &mut out);
        out.into()
    }
}

impl Placeholder {
    fn of(word: &str) -> Result<Self, String> {
        Ok(match word {
            "client" => Self::Client,
            "sequence" => Self::Sequence,
            "random" => Self::Random,
            "uuid" => Self::Uuid,
            "token" => Self::Token,
            _ => {
                return Err(format!(
                    "{{{word}}} is not a value of a client: there are {NAMES}; write {{{{{word}}} \
                     for the text itself"
                ));
            }
        })
    }
}

/// Returns the lower-case word before the closing brace, if the text begins with such a word.
fn word(text: &str) -> Option<&str> {
    let (word, _) = text.split_once('}')?;
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    is_word.then_some(word)
}

/// A version 4 UUID (RFC 9562 section 5.4) of these bits.
fn write_uuid(high: u64, low: u64, out: &mut String) -> std::fmt::Result {
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff | 0x4000);
    let (d, e) = (low >> 48 & 0x3fff | 0x8000, low & 0xffff_ffff_ffff);
    write!(out, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
}

/// Tokens or names of users. Client `i` uses number `i` modulo their count. Default: no tokens.
#[derive(Clone, Default)]
pub struct Tokens(Arc<[Box<str>]>);

/// Omits the tokens, which are secrets.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

impl Tokens {
    /// Parses tokens, one per line, and ignores blank lines. `name` is the file's name for errors.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no token, if there are too many, or for the line of a token
    /// that is not valid in a header.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let mut tokens = Vec::new();
        // Removes a byte order mark, which editors add.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (at, line) in text.lines().enumerate() {
            let token = line.trim();
            if token.chars().any(char::is_control) {
                return Err(Error::Usage(format!(
                    "{name}:{}: the token has a control character; write one token a line, as text",
                    at + 1
                )));
            }
            if !token.is_empty() {
                tokens.push(token.into());
            }
        }
        match tokens.len() {
            0 => Err(Error::Usage(format!("{name} has no token; write one a line"))),
            1..=MAX_TOKENS => Ok(Self(tokens.into())),
            count => Err(Error::Usage(format!(
                "{name} has {count} tokens; at most {MAX_TOKENS} are read"
            ))),
        }
    }

    /// Returns a value that is shown instead of the tokens.
    pub(crate) fn hidden() -> Self {
        Self(Arc::new(["{token}".into()]))
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The token of a client; empty if there is none.
    #[must_use]
    pub fn of(&self, client: u64) -> &str {
        match self.0.len() as u64 {
            0 => "",
            count => &self.0[(client % count) as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str, client: u64, sequence: u64) -> String {
        let tokens = Tokens::parse("tokens.txt", "one\n\n two \r\nthree\n").unwrap();
        let values = Values { client, sequence, seed: 7, tokens: &tokens };
        Template::parse(text).unwrap().rendered(&values).into_owned()
    }

    #[test]
    fn places_are_filled_in_and_other_braces_stay() {
        assert_eq!(render("a{client}b{sequence}", 12, 3), "a12b3");
        assert_eq!(
            [0, 1, 2, 3].map(|client| render("{token}", client, 0)),
            ["one", "two", "three", "one"]
        );
        for text in [
            "",
            "plain",
            "{",
            "}{",
            "{}",
            r#"{"a":{"b":[{}]}}"#,
            "{Client}",
            "{a b}",
            "{{}}",
            "ü{1}",
        ] {
            assert_eq!(render(text, 1, 2), text);
            assert_eq!(Template::parse(text).unwrap().constant(), Some(text));
        }
        assert_eq!(render("{{client}, {{name}}", 1, 2), "{client}, {name}}");
        assert_eq!(render(r#"{"id":{client}}"#, 5, 0), r#"{"id":5}"#);
    }

    #[test]
    fn random_values_differ_by_client_and_message_and_can_be_repeated() {
        let first = render("{random}", 1, 1);
        assert_eq!(first.len(), 16);
        assert_eq!(first, render("{random}", 1, 1));
        assert!(first != render("{random}", 1, 2) && first != render("{random}", 2, 1));
        let two = render("{random}{random}", 1, 1);
        assert_ne!(two[..16], two[16..]);
        let uuid = render("{uuid}", 9, 9);
        let dashes: Vec<usize> = uuid.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!((uuid.len(), dashes), (36, vec![8, 13, 18, 23]), "{uuid}");
        assert_eq!(&uuid[14..15], "4");
        assert!("89ab".contains(&uuid[19..20]), "{uuid}");
    }

    #[test]
    fn a_place_that_does_not_exist_is_named_with_those_that_do() {
        let error = Template::parse("x {clinet}").unwrap_err();
        assert!(error.contains("{clinet} is no") && error.contains("{client}, "), "{error}");
        assert!(error.contains("write {{clinet} for"), "{error}");
        assert!(Template::parse("{token}").unwrap().needs_token());
    }

    #[test]
    fn a_file_of_tokens_is_refused_with_its_line() {
        let error = Tokens::parse("t.txt", "a\nb\u{1}c\n").unwrap_err().to_string();
        assert!(error.starts_with("t.txt:2: "), "{error}");
        let error = Tokens::parse("t.txt", " \n\n").unwrap_err().to_string();
        assert!(error.contains("t.txt has no token"), "{error}");
        let tokens = Tokens::parse("t.txt", "\u{feff}secret\n").unwrap();
        assert_eq!((tokens.len(), tokens.of(0)), (1, "secret"));
        assert!(!format!("{tokens:?}").contains("secret"));
    }
}
