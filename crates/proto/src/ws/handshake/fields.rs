//! Header fields: lookup, list splitting, and protection from injection.

use std::{error, fmt};

use crate::http1::{Request, Response};

/// A collection of header fields, as the handshake reads it.
pub trait Headers {
    /// Returns the values of every field called `name` (case-insensitively), in order, without
    /// surrounding white space.
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str>;

    /// Calls `visit` for every field, in order: its name as sent, and its value without surrounding
    /// white space.
    fn for_each<'a>(&'a self, visit: impl FnMut(&'a [u8], &'a [u8]));
}

impl Headers for Request<'_> {
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines().all(name)
    }

    fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a [u8], &'a [u8])) {
        self.lines().fields().for_each(|(name, value)| visit(name, value));
    }
}

impl Headers for Response<'_> {
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines().all(name)
    }

    fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a [u8], &'a [u8])) {
        self.lines().fields().for_each(|(name, value)| visit(name, value));
    }
}

/// A list of names and values, as clients and tests use.
impl<N: AsRef<str>, V: AsRef<str>> Headers for [(N, V)] {
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.iter()
            .filter(move |(field, _)| field.as_ref().eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_ref())
    }

    fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a [u8], &'a [u8])) {
        for (name, value) in self {
            visit(name.as_ref().as_bytes(), value.as_ref().as_bytes());
        }
    }
}

/// A field that must occur exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Once<'a> {
    Missing,
    Value(&'a [u8]),
    Repeated,
}

impl<'a> Once<'a> {
    pub(super) fn note(&mut self, value: &'a [u8]) {
        *self = match self {
            Self::Missing => Self::Value(value),
            Self::Value(_) | Self::Repeated => Self::Repeated,
        };
    }

    pub(super) fn value(self) -> Option<&'a [u8]> {
        match self {
            Self::Value(value) => Some(value),
            Self::Missing | Self::Repeated => None,
        }
    }
}

/// Compares a field's name case-insensitively, trying the most common spelling first.
#[inline]
pub(super) fn is_named(name: &[u8], usual: &str) -> bool {
    name == usual.as_bytes() || name.eq_ignore_ascii_case(usual.as_bytes())
}

/// Returns whether a comma-separated list contains `wanted`, case-insensitively.
pub(super) fn lists(value: &[u8], wanted: &str) -> bool {
    is_named(value, wanted)
        || value.split(|byte| *byte == b',').any(|element| is_named(element.trim_ascii(), wanted))
}

/// Returns the elements of a comma-separated list that may be spread over several fields
/// ([RFC 9110 section 5.6.1](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.1)), without
/// surrounding white space and without empty ones.
pub fn list<'a>(values: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    values
        .flat_map(|value| value.split(','))
        .map(|element| element.trim_matches([' ', '\t']))
        .filter(|element| !element.is_empty())
}

/// Returns whether `text` is a token: a valid name of a field or a subprotocol
/// ([RFC 9110 section 5.6.2](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2)).
#[must_use]
pub fn is_token(text: &str) -> bool {
    let is_tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_tchar)
}

/// An argument that is not valid in a handshake: the caller's mistake, found before it becomes an
/// injected header (response splitting). Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsendable {
    /// A subprotocol that is not a token.
    Subprotocol,
    /// A subprotocol offered twice
    /// ([RFC 6455 section 4.1](https://www.rfc-editor.org/rfc/rfc6455#section-4.1), point 10).
    RepeatedSubprotocol,
    /// An empty host, or one with an invalid character.
    Host,
    /// A target that does not start with `/`, or contains a fragment, a space or a control
    /// character.
    Target,
    /// A field name that is not a token, or that the handshake itself writes.
    FieldName,
    /// A field value with a control character.
    FieldValue,
}

impl fmt::Display for Unsendable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Subprotocol => "subprotocol is not a token",
            Self::RepeatedSubprotocol => "subprotocol offered twice",
            Self::Host => "host is empty or has a character that no host has",
            Self::Target => "target must begin with / and have no space, control character or #",
            Self::FieldName => "field name is not a token, or belongs to the handshake",
            Self::FieldValue => "field value has a control character",
        })
    }
}

impl error::Error for Unsendable {}

/// Returns whether a field, case-insensitively, has the element `wanted` in its list.
pub(super) fn has_element(headers: &(impl Headers + ?Sized), name: &str, wanted: &str) -> bool {
    list(headers.values(name)).any(|element| element.eq_ignore_ascii_case(wanted))
}

/// Returns the value of a field that must occur exactly once.
pub(super) fn only_value<'a>(headers: &'a (impl Headers + ?Sized), name: &str) -> Option<&'a str> {
    let mut values = headers.values(name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_5_6_1_lists_may_have_empty_elements_and_several_fields() {
        let fields = ["a, b ,\tc", ",, d", ""];
        assert_eq!(list(fields.into_iter()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn rfc9110_5_6_2_token() {
        assert!(is_token("chat.v1+json!#$%&'*-^_`|~"));
        for not in ["", "a b", "a,b", "a\r\nb", "a;b", "\"a\"", "a/b", "ä", "a\0"] {
            assert!(!is_token(not), "{not:?}");
        }
    }

    #[test]
    fn a_field_must_occur_exactly_once() {
        let mut once = Once::Missing;
        assert_eq!(once.value(), None);
        once.note(b"a");
        assert_eq!(once.value(), Some(&b"a"[..]));
        once.note(b"a");
        assert_eq!(once.value(), None);
    }

    #[test]
    fn only_value_refuses_none_and_two() {
        let two = [("Key", "a"), ("kEY", "b")];
        assert_eq!(only_value(&two[..], "key"), None);
        assert_eq!(only_value(&two[..1], "key"), Some("a"));
        assert_eq!(only_value(&two[..0], "key"), None);
    }
}
