//! Values as they were written, before their types are known.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, Origin};
use crate::location::{Document, Location};

/// A value as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) origin: Origin,
    pub(crate) written: Written,
    pub(crate) node: RawNode,
}

/// The text of a value for messages.
#[derive(Clone, Debug)]
pub(crate) enum Written {
    Text(String),
    /// As in a file.
    At(Location),
}

/// On one line and not too long.
impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::At(location) => f.write_str(&location.written()),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum RawNode {
    /// A text, or any other scalar as text.
    Scalar(String),
    /// `true` or `false` without quotes.
    Switch(String),
    List(Vec<Raw>),
    Table(Vec<Pair>),
}

/// A key of a table and its value.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) value: Raw,
}

impl Raw {
    /// Creates a value from text that did not come from a file.
    pub(crate) fn text(text: &str, origin: Origin) -> Self {
        let written = Written::Text(format!("{text:?}"));
        Self { origin, written, node: RawNode::Scalar(text.to_owned()) }
    }
}

/// Parses a TOML document. The errors are all mistakes in its syntax.
pub(crate) fn parse(name: &str, text: &str) -> Result<Vec<Pair>, Vec<ConfigError>> {
    let document = Document::new(name, text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(pairs(&document, table.get_ref()));
    }
    let error = |error: &toml::de::Error| {
        let origin = Origin::File(Location::new(&document, error.span().unwrap_or_default()));
        let message = error.message().replace('\n', "; ");
        let what = format!("not valid TOML: {message}; a value with letters is in quotes");
        ConfigError { key: String::new(), origin, what, is_secret: false, may_pass: false }
    };
    Err(errors.iter().map(error).collect())
}

/// Sets the origin of all `pairs`.
pub(crate) fn set_origin(pairs: &mut [Pair], origin: &Origin) {
    for pair in pairs {
        pair.origin = origin.clone();
        set_value_origin(&mut pair.value, origin);
    }
}

fn set_value_origin(value: &mut Raw, origin: &Origin) {
    value.origin = origin.clone();
    match &mut value.node {
        RawNode::Scalar(_) | RawNode::Switch(_) => {}
        RawNode::List(items) => items.iter_mut().for_each(|item| set_value_origin(item, origin)),
        RawNode::Table(pairs) => set_origin(pairs, origin),
    }
}

fn pairs(document: &Arc<Document>, table: &DeTable<'_>) -> Vec<Pair> {
    let pair = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
        let at = Location::new(document, key.span());
        let mut pair = Pair {
            name: key.get_ref().to_string(),
            origin: Origin::File(at.clone()),
            value: self::value(document, value),
        };
        // For an array of tables, use the first header.
        if let RawNode::List(items) = &pair.value.node
            && !document.text()[value.span()].starts_with('[')
        {
            pair.value.origin =
                items.first().map_or_else(|| pair.origin.clone(), |item| item.origin.clone());
        }
        (at.start(), pair)
    };
    let mut pairs: Vec<_> = table.iter().map(pair).collect();
    pairs.sort_by_key(|(start, _)| *start);
    pairs.into_iter().map(|(_, pair)| pair).collect()
}

fn value(document: &Arc<Document>, value: &Spanned<DeValue<'_>>) -> Raw {
    let node = match value.get_ref() {
        DeValue::Array(items) => {
            RawNode::List(items.iter().map(|item| self::value(document, item)).collect())
        }
        DeValue::Table(table) => RawNode::Table(pairs(document, table)),
        DeValue::Boolean(value) => RawNode::Switch(value.to_string()),
        scalar => RawNode::Scalar(plain(scalar)),
    };
    let at = Location::new(document, value.span());
    Raw { origin: Origin::File(at.clone()), written: Written::At(at), node }
}

fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        // `as_str` has no 0x, 0o or 0b in front.
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| number.to_string(), |number| number.to_string()),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Datetime(value) => value.to_string(),
        DeValue::Boolean(_) | DeValue::Array(_) | DeValue::Table(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> Raw {
        parse("t.toml", text).unwrap().remove(0).value
    }

    #[test]
    fn integers_of_any_radix_are_read_as_numbers() {
        for (text, number) in [
            ("0x10", "16"),
            ("0o7_7", "63"),
            ("0b11", "3"),
            ("1_000", "1000"),
            ("+5", "5"),
            ("-5", "-5"),
            ("0xFFFF_FFFF_FFFF_FFFF", "18446744073709551615"),
        ] {
            let value = first(&format!("shards = {text}"));
            assert!(matches!(value.node, RawNode::Scalar(text) if text == number), "{text}");
        }
    }

    #[test]
    fn each_value_has_its_place() {
        let place = |raw: &Raw| match &raw.origin {
            Origin::File(at) => (at.line(), at.column(), at.text().to_owned()),
            other => panic!("{other:?}"),
        };
        let list = first("# \u{e4}\na = [1,\n \"b\"]\n");
        assert_eq!(place(&list), (2, 5, "a = [1,".to_owned()));
        let RawNode::List(items) = &list.node else { panic!("{list:?}") };
        assert_eq!(place(&items[1]), (3, 2, " \"b\"]".to_owned()));
        assert_eq!(list.written.to_string(), "[1, \"b\"]");
        assert_eq!(place(&first("\n[[x]]\na = 1\n[[x]]\n")).0, 2);
    }

    #[test]
    fn all_mistakes_in_the_syntax_are_found() {
        let errors = parse("t.toml", "a = 1MiB\nb = 2\nc = \n").unwrap_err();
        let lines: Vec<_> = errors.iter().map(|error| error.location().unwrap().line()).collect();
        assert!(lines.contains(&1) && lines.contains(&3), "{errors:?}");
    }
}
