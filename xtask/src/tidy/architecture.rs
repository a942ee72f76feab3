//! Checks that ARCHITECTURE.md names only files and items that exist.

use std::path::Path;

use super::{Source, is_whole_word};

const DOCUMENT: &str = "ARCHITECTURE.md";

/// First segments of names that belong to other crates.
const FOREIGN: [&str; 9] =
    ["std", "core", "alloc", "rustix", "mio", "socket2", "libc", "httparse", "simdutf8"];

/// Endings that make a name in backticks a file name.
const FILE_ENDINGS: [&str; 9] =
    [".rs", ".md", ".toml", ".mjs", ".py", ".html", ".js", ".txt", ".sh"];

/// Returns every name in the document that does not exist.
pub(super) fn problems(root: &Path, files: &[Source]) -> Vec<String> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else {
        return vec![format!("{DOCUMENT} is not there")];
    };
    missing(&document.text, &|path| root.join(path).exists(), files)
}

fn missing(document: &str, exists: &dyn Fn(&str) -> bool, files: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for (line, text) in prose(document) {
        for span in backticked(text).chain(link_targets(text)) {
            let complaint = match Name::of(span) {
                Name::File(path) => {
                    (!file_is_there(path, exists, files)).then(|| format!("no file {path}"))
                }
                Name::Item(item) => {
                    (!item_is_there(item, files)).then(|| format!("nothing defines {item}"))
                }
                Name::Other => None,
            };
            problems.extend(complaint.map(|complaint| format!("{DOCUMENT}:{line}: {complaint}")));
        }
    }
    problems
}

/// The kind of name in a code span or a link.
enum Name<'a> {
    File(&'a str),
    Item(&'a str),
    Other,
}

impl<'a> Name<'a> {
    fn of(span: &'a str) -> Name<'a> {
        let plain = span.split('#').next().unwrap_or_default();
        let is_path_like = !plain.is_empty()
            && !plain.starts_with(['/', '-', '~', '<'])
            && !plain.contains("://")
            && plain.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
        let is_file = FILE_ENDINGS.iter().any(|ending| plain.ends_with(ending));
        let is_folder = plain.ends_with('/');
        if is_path_like && (is_file || is_folder) {
            return Name::File(plain);
        }
        let item = span.split(['(', '<', '{']).next().unwrap_or_default().trim_end_matches('!');
        let named = span.contains("::") || span.ends_with("()");
        let is_item = named && item.split("::").all(is_identifier);
        let foreign = FOREIGN.iter().any(|first| item.split("::").next() == Some(first));
        if is_item && !foreign { Name::Item(item) } else { Name::Other }
    }
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns whether a file exists. A path is relative to the root or to `crates/`, or is an
/// unambiguous suffix (`shard.rs`, `ws/decode.rs`).
fn file_is_there(path: &str, exists: &dyn Fn(&str) -> bool, files: &[Source]) -> bool {
    let ending = format!("/{path}");
    let inner = format!("/{}/", path.trim_end_matches('/'));
    exists(path)
        || exists(&format!("crates/{path}"))
        || files.iter().any(|file| file.path.ends_with(&ending) || file.path.contains(&inner))
}

/// Returns whether an item exists. `Shard::flush` exists if one file defines `flush` and mentions
/// `Shard`; modules and crates may also be parts of paths (`engine::shard`).
fn item_is_there(item: &str, files: &[Source]) -> bool {
    let mut segments: Vec<&str> = item.split("::").collect();
    segments.retain(|segment| !matches!(*segment, "crate" | "self" | "super"));
    let Some(last) = segments.pop() else { return true };
    let mut rust = files.iter().filter(|file| file.is_rust());
    rust.any(|file| {
        (defines(&file.text, last) || is_in_path(file, last))
            && segments.iter().all(|segment| mentions(file, segment))
    })
}

fn is_in_path(file: &Source, name: &str) -> bool {
    let name = name.trim_start_matches("throng_");
    file.path.split(['/', '.']).any(|part| part == name)
}

fn mentions(file: &Source, name: &str) -> bool {
    // The library's crate is `throng`, and lies in crates/server.
    name == "throng" || is_in_path(file, name) || occurrences(&file.text, name).next().is_some()
}

/// Returns whether this source defines something of this name: an item, a method, a field or a
/// variant.
fn defines(text: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules!"];
    occurrences(text, name).any(|at| {
        let before = text[..at].trim_end();
        let after = &text[at + name.len()..];
        let after_keyword = KEYWORDS.iter().any(|keyword| before.ends_with(keyword));
        let starts_its_line =
            text[..at].rsplit('\n').next().is_some_and(|start| start.trim().is_empty());
        let as_variant = starts_its_line
            && after.starts_with([',', '(', ' ', '\n'])
            && name.starts_with(char::is_uppercase);
        let as_field = after.starts_with(": ") && !before.ends_with("let");
        after_keyword || as_variant || as_field
    })
}

fn occurrences<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(name).map(|(at, _)| at).filter(move |&at| is_whole_word(text, at, name))
}

/// Returns the lines outside fenced code, with their numbers.
fn prose(document: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    document.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((index + 1, line))
    })
}

fn backticked(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(document: &str) -> Vec<String> {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let files = [
            source(
                "crates/engine/src/shard.rs",
                "pub struct Shard;\nimpl Shard {\n    fn flush(&mut self) {}\n}\n",
            ),
            source(
                "crates/io/src/driver.rs",
                "pub enum Event<'m> {\n    Received(ConnId, &'m mut [u8]),\n}\n",
            ),
        ];
        let exists = |path: &str| files.iter().any(|file| file.path == path) || path == "crates/io";
        missing(document, &exists, &files)
    }

    #[test]
    fn existing_names_are_accepted() {
        let document = "`crates/engine/src/shard.rs`, `engine/src/shard.rs`, `shard.rs`\n\
            [io](crates/io/src/driver.rs#L1), [rfc](https://example.org/a.md)\n\
            `Shard::flush`, `engine::shard`, `Shard::flush()`, `flush()`\n\
            `Event::Received(conn, &mut [u8])`, `SO_REUSEPORT`, `/echo`, `std::io::Error`\n\
            ```\n`not::checked()`\n```\n";
        assert_eq!(complaints(document), Vec::<String>::new());
    }

    #[test]
    fn missing_names_are_reported_with_their_line() {
        let document = "`crates/engine/src/gone.rs`\n\n\
            `Shard::gone` and `gone()`, `Event::Gone`, `Other::flush`\n[x](gone.md)\n";
        assert_eq!(
            complaints(document),
            [
                "ARCHITECTURE.md:1: no file crates/engine/src/gone.rs",
                "ARCHITECTURE.md:3: nothing defines Shard::gone",
                "ARCHITECTURE.md:3: nothing defines gone",
                "ARCHITECTURE.md:3: nothing defines Event::Gone",
                "ARCHITECTURE.md:3: nothing defines Other::flush",
                "ARCHITECTURE.md:4: no file gone.md",
            ]
        );
    }
}
