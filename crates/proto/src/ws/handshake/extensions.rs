//! The grammar of `Sec-WebSocket-Extensions`,
//! [RFC 6455 section 9.1](https://www.rfc-editor.org/rfc/rfc6455#section-9.1).

use super::is_token;

/// An element of a list of extensions, in the order of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// The name of an extension, which starts it.
    Extension(&'a str),
    /// Name and value of a parameter of the last extension.
    Parameter(&'a str, Option<Value<'a>>),
}

/// The value of a parameter, possibly quoted. Its unquoted form must be a token, so the only escape
/// to remove is a backslash before a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value<'a> {
    /// Without the quotes, with the backslashes.
    text: &'a str,
}

impl<'a> Value<'a> {
    /// Returns the unescaped bytes.
    pub(crate) fn bytes(self) -> impl Iterator<Item = u8> + 'a {
        self.text.bytes().filter(|byte| *byte != b'\\')
    }
}

/// The header is not a valid list of extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Passes every element of one field's value to `visit`, from left to right.
///
/// Empty elements of the list are skipped (RFC 9110 section 5.6.1); empty parameters are not
/// allowed.
pub(crate) fn parse<'a>(value: &'a str, mut visit: impl FnMut(Part<'a>)) -> Result<(), Malformed> {
    let mut rest = Scanner { rest: value };
    loop {
        while rest.skip(',') {}
        if rest.is_at_end() {
            return Ok(());
        }
        visit(Part::Extension(rest.token()?));
        while rest.skip(';') {
            let name = rest.token()?;
            let value = if rest.skip('=') { Some(rest.value()?) } else { None };
            visit(Part::Parameter(name, value));
        }
        if !rest.is_at_end() && !rest.skip(',') {
            return Err(Malformed);
        }
    }
}

struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.rest.is_empty()
    }

    /// Takes `wanted` and the white space before it, if it comes next.
    fn skip(&mut self, wanted: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn token(&mut self) -> Result<&'a str, Malformed> {
        self.skip_space();
        let end = self.rest.find([' ', '\t', ',', ';', '=', '"']).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        if is_token(token) { Ok(token) } else { Err(Malformed) }
    }

    fn value(&mut self) -> Result<Value<'a>, Malformed> {
        if !self.skip('"') {
            return self.token().map(|text| Value { text });
        }
        let end = self.rest.find('"').ok_or(Malformed)?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        // A quoted value must be a token once unquoted, so no escape can stand for `"` or `\`, and
        // a character after a backslash stands for itself.
        let mut characters = text.split('\\');
        let first = characters.next().unwrap_or_default();
        let is_good = |part: &str| part.is_empty() || is_token(part);
        if text.is_empty() || !is_good(first) || !characters.all(is_token) {
            return Err(Malformed);
        }
        Ok(Value { text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats the list as `name;parameter=value`, one extension per line.
    fn read(value: &str) -> Result<String, Malformed> {
        let mut seen = String::new();
        parse(value, |part| match part {
            Part::Extension(name) => {
                if !seen.is_empty() {
                    seen.push('\n');
                }
                seen.push_str(name);
            }
            Part::Parameter(name, None) => seen.extend([";", name]),
            Part::Parameter(name, Some(value)) => {
                seen.extend([";", name, "="]);
                seen.extend(value.bytes().map(char::from));
            }
        })?;
        Ok(seen)
    }

    #[test]
    fn rfc6455_9_1_lists_of_extensions() {
        for (text, meaning) in [
            ("", ""),
            (" , ,\t", ""),
            ("foo", "foo"),
            ("foo,bar", "foo\nbar"),
            (" foo ;\tx ; y = 10,bar; z", "foo;x;y=10\nbar;z"),
            ("foo; x=\"10\"", "foo;x=10"),
            (r#"foo; x="1\0"; y=a"#, "foo;x=10;y=a"),
            ("foo;x=\"a\" , , bar", "foo;x=a\nbar"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(meaning), "{text:?}");
        }
    }

    #[test]
    fn rfc6455_9_1_invalid_lists_of_extensions() {
        for text in [
            ";",
            "=",
            "foo;",
            "foo;;x",
            "foo;=1",
            "foo;x=",
            "foo;x=,bar",
            "foo bar",
            "foo;x y",
            "foo;x=1 2",
            "foo=1",
            "\"foo\"",
            "foo;\"x\"",
            "foo;x=\"",
            "foo;x=\"\"",
            "foo;x=\"1 0\"",
            "foo;x=\"1,0\"",
            "foo;x=\"a\"b",
            r#"foo;x="1\""#,
            r#"foo;x="1\\0""#,
            "fo\0o",
            "föö",
            "foo;x=\"ä\"",
            "foo; x=\"1\\\"; y",
        ] {
            assert_eq!(read(text), Err(Malformed), "{text:?}");
        }
    }
}
