//! Counts the words of the documents that everyone reads.

use super::Source;
use super::counts::Count;

/// The folder of documents with one page each.
const PAGES: &str = "docs/design/";

/// Counts the words of README, ARCHITECTURE and the longest page of `docs/design`.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    let named = |name: &str| {
        let file = files.iter().find(|file| file.path == name);
        let number = file.map_or(0, |file| words(&file.text));
        Count { name: format!("words of {name}"), number, places: Vec::new() }
    };
    let pages = files.iter().filter(|file| file.is_below(PAGES) && file.is_markdown());
    let longest = pages.map(|file| words(&file.text)).max().unwrap_or(0);
    let pages = format!("words of the longest page in {PAGES}");
    let pages = Count { name: pages, number: longest, places: Vec::new() };
    vec![named("README.md"), named("ARCHITECTURE.md"), pages]
}

/// Returns the number of words outside code fences.
fn words(text: &str) -> usize {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    let words = prose.flat_map(str::split_whitespace);
    words.filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_outside_code() {
        assert_eq!(words("# One two\n| three | - |\n```rust\nfour();\n```\nfive, six.\n"), 5);
    }
}
