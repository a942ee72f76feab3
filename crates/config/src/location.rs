//! Places in files.

use std::fmt;
use std::sync::Arc;

/// A place in a file, and what is written there; lines and columns count from 1, columns in
/// characters.
#[derive(Clone)]
pub struct Location {
    document: Arc<Document>,
    start: u32,
    end: u32,
}

/// The text of a file. All places in it share it.
pub(crate) struct Document {
    name: String,
    text: String,
    /// The offset of the start of each line.
    lines: Vec<u32>,
}

impl Document {
    pub(crate) fn new(name: &str, text: &str) -> Arc<Self> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        let lines = starts.map(offset).collect();
        Arc::new(Self { name: name.to_owned(), text: text.to_owned(), lines })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl Location {
    /// Creates the place of these bytes of the file.
    pub(crate) fn new(document: &Arc<Document>, bytes: std::ops::Range<usize>) -> Self {
        let (start, end) = (offset(bytes.start), offset(bytes.end));
        Self { document: Arc::clone(document), start, end }
    }

    /// Returns the file's name as it was given to the parser.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.document.name
    }

    /// Returns its line.
    #[must_use]
    pub fn line(&self) -> usize {
        self.document.lines.partition_point(|start| *start <= self.start).max(1)
    }

    /// Returns its column.
    #[must_use]
    pub fn column(&self) -> usize {
        let start = self.document.lines[self.line() - 1] as usize;
        let before = self.document.text.get(start..self.start as usize).unwrap_or_default();
        before.chars().count() + 1
    }

    /// Returns the text of its line.
    #[must_use]
    pub fn text(&self) -> &str {
        let start = self.document.lines[self.line() - 1] as usize;
        self.document.text[start..].lines().next().unwrap_or_default()
    }

    /// Returns the offset of its first byte.
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    /// Returns what is written there, on one line and not too long.
    pub(crate) fn written(&self) -> String {
        let text = self.document.text.get(self.start as usize..self.end as usize);
        let mut line = String::new();
        for word in text.unwrap_or_default().split_whitespace() {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
            if let Some((at, _)) = line.char_indices().nth(60) {
                line.truncate(at);
                line.push_str("...");
                break;
            }
        }
        line
    }
}

impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        (self.file(), self.line(), self.column()) == (other.file(), other.line(), other.column())
    }
}

impl Eq for Location {}

/// Its text does not have the line, which may have a secret.
impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file(), self.line(), self.column())
    }
}
