//! Header fields: how they are looked up, split and kept free of injection.

use std::{error, fmt};

/// Where the handshake finds header fields.
pub trait Headers {
    /// The values of every field called `name` (any case), in order, without white space around them.
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str>;

    /// Shows every field, in order: its name as sent, and its value without white space around it.
    fn each<'a>(&'a self, see: impl FnMut(&'a [u8], &'a [u8]));
}

/// A list of names and values, as clients and tests have it.
impl<N: AsRef<str>, V: AsRef<str>> Headers for [(N, V)] {
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.iter()
            .filter(move |(field, _)| field.as_ref().eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_ref())
    }

    fn each<'a>(&'a self, mut see: impl FnMut(&'a [u8], &'a [u8])) {
        for (name, value) in self {
            see(name.as_ref().as_bytes(), value.as_ref().as_bytes());
        }
    }
}

/// A field that must be there exactly once.
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

/// Whether a field's name is this, in any case; first as most clients write it.
#[inline]
pub(super) fn is_named(name: &[u8], usual: &str) -> bool {
    name == usual.as_bytes() || name.eq_ignore_ascii_case(usual.as_bytes())
}

/// Whether a comma-separated list has the element `wanted`, in any case.
pub(super) fn lists(value: &[u8], wanted: &str) -> bool {
    is_named(value, wanted)
        || value.split(|byte| *byte == b',').any(|element| is_named(element.trim_ascii(), wanted))
}

/// The elements of a comma-separated list that may be spread over several fields (RFC 9110 section
/// 5.6.1), without white space around them, empty ones left out.
pub fn list<'a>(values: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    values
        .flat_map(|value| value.split(','))
        .map(|element| element.trim_matches([' ', '\t']))
        .filter(|element| !element.is_empty())
}

/// Whether `text` is a token: what may name a field or a subprotocol (RFC 9110 section 5.6.2).
#[must_use]
pub fn is_token(text: &str) -> bool {
    let is_tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_tchar)
}

/// Something of ours that cannot be put into a handshake: the caller's mistake, caught before it
/// becomes a header that somebody else wrote (response splitting). Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsendable {
    /// A subprotocol that is not a token.
    Subprotocol,
    /// A subprotocol offered twice (section 4.1, point 10).
    RepeatedSubprotocol,
    /// An empty host, or one with a character that no host has.
    Host,
    /// A target that does not begin with `/`, or has a fragment, a space or a control character.
    Target,
    /// A field name that is not a token, or names a field the handshake itself writes.
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

/// One field, whatever its case, has the element `wanted` in its list.
pub(super) fn has_element(headers: &(impl Headers + ?Sized), name: &str, wanted: &str) -> bool {
    list(headers.values(name)).any(|element| element.eq_ignore_ascii_case(wanted))
}

/// The value of a field that must be there exactly once.
pub(super) fn only_value<'a>(headers: &'a (impl Headers + ?Sized), name: &str) -> Option<&'a str> {
    let mut values = headers.values(name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_5_6_1_lists_may_have_holes_and_several_fields() {
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
    fn a_field_is_there_once_or_it_does_not_count() {
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
