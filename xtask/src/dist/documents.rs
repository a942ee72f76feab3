//! The documents for users in a release, whose links only lead to each other.

use std::path::Path;

use super::{copy, write};

/// Documents beside those in `docs`.
const BESIDE: [&str; 4] = ["BENCHMARKING.md", "CHANGELOG.md", "README.md", "SECURITY.md"];

/// Copies the documents of a repository into a folder, each to the path that it has there.
pub(super) fn copy_all(root: &Path, to: &Path) -> Result<(), String> {
    let mut paths = files_below(root, "docs")?;
    paths.extend(BESIDE.map(str::to_owned));
    for path in &paths {
        let (from, to) = (root.join(path), to.join(path));
        if !path.ends_with(".md") {
            copy(&from, &to, 0o644)?;
            continue;
        }
        let text = std::fs::read_to_string(&from).map_err(|error| format!("{path}: {error}"))?;
        write(&to, &without_links_elsewhere(&text, path, &paths))?;
    }
    Ok(())
}

/// Returns the paths of all files in a folder, with forward slashes, relative to the root.
pub(super) fn files_below(root: &Path, folder: &str) -> Result<Vec<String>, String> {
    let problem = |error: std::io::Error| format!("{folder}: {error}");
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(root.join(folder)).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        match entry.file_type().map_err(problem)?.is_dir() {
            true => paths.extend(files_below(root, &path)?),
            false => paths.push(path),
        }
    }
    Ok(paths)
}

/// Returns the path, from the root, of a link's target in the document at `path`.
fn target_of(path: &str, link: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the text of the document at `path`. Links to files that are not in `paths` keep only
/// their text.
fn without_links_elsewhere(text: &str, path: &str, paths: &[String]) -> String {
    let is_kept = |target: &str| {
        let file = target_of(path, target.split('#').next().unwrap_or_default());
        target.starts_with('#') || target.contains("://") || paths.contains(&file)
    };
    let (mut out, mut rest) = (String::new(), text);
    while let Some((words, behind)) = rest.split_once("](")
        && let Some((target, after)) = behind.split_once(')')
    {
        match words.rsplit_once('[') {
            Some((before, words)) if !is_kept(target) => out.extend([before, words]),
            _ => out.extend([words, "](", target, ")"]),
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_what_is_not_shipped_become_words() {
        let paths = ["README.md", "docs/a.md", "docs/page.png"].map(str::to_owned);
        let in_docs = |text| without_links_elsewhere(text, "docs/b.md", &paths);
        for kept in [
            "[a](a.md)",
            "see [a](a.md#part), [b](#b)",
            "![p](page.png)",
            "[r](../README.md) [w](https://a.example/b.md)",
            "no link, and an open [bracket](",
        ] {
            assert_eq!(in_docs(kept), kept);
        }
        let source = in_docs("(as [`a.rs`](../src/a.rs) does, [a](a.md))");
        assert_eq!(source, "(as `a.rs` does, [a](a.md))");
        assert_eq!(in_docs("[c](c.md) [d](README.md)"), "c d");
        let readme = |text| without_links_elsewhere(text, "README.md", &paths);
        assert_eq!(readme("[a](docs/a.md), [s](src/s.rs)"), "[a](docs/a.md), s");
        let below = |text| without_links_elsewhere(text, "docs/bench/c.md", &paths);
        assert_eq!(
            below("[a](../a.md), [r](../../README.md)"),
            "[a](../a.md), [r](../../README.md)"
        );
        assert_eq!(below("[a](a.md), [s](../../src/s.rs)"), "a, s");
    }
}
