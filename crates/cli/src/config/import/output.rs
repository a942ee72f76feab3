//! Writes a configuration in TOML.

use std::fmt::Write;

/// A table of a configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    header: &'static str,
    /// Where it is from.
    place: String,
    /// Keys and their values, in TOML, in the order in which they were set first.
    lines: Vec<(String, String)>,
}

impl Table {
    pub(super) fn new(header: &'static str, place: impl Into<String>) -> Self {
        Self { header, place: place.into(), lines: Vec::new() }
    }

    /// Sets a key to a value that is TOML.
    pub(super) fn set(&mut self, key: impl Into<String>, value: impl Into<String>) {
        let (key, value) = (key.into(), value.into());
        match self.lines.iter_mut().find(|(own, _)| *own == key) {
            Some((_, own)) => *own = value,
            None => self.lines.push((key, value)),
        }
    }

    pub(super) fn text(&mut self, key: impl Into<String>, value: &str) {
        self.set(key, quoted(value));
    }

    pub(super) fn list<T: AsRef<str>>(&mut self, key: &str, values: &[T]) {
        let values: Vec<String> = values.iter().map(|value| quoted(value.as_ref())).collect();
        self.set(key, format!("[{}]", values.join(", ")));
    }

    pub(super) fn write(&self, out: &mut String) {
        out.push('\n');
        if !self.place.is_empty() {
            let _ = writeln!(out, "# {}", self.place);
        }
        if !self.header.is_empty() {
            let _ = writeln!(out, "{}", self.header);
        }
        for (key, value) in &self.lines {
            let _ = writeln!(out, "{key} = {value}");
        }
    }
}

/// Returns a text as a string of TOML.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
