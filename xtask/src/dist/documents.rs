//! Documents of a release: those for users, with links among themselves only.

use std::path::Path;

use super::{copy, write};

/// Documents beside those in `docs`.
const BESIDE: [&str; 4] = ["BENCHMARKING.md", "CHANGELOG.md", "README.md", "SECURITY.md"];

/// Copies the documents of a repository into a folder, each to the path that it has there.
pub(super) fn copy_all(root: &Path, to: &Path) -> Result<(), String> {
    let folder = std::fs::read_dir(root.join("docs"))
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("docs: {error}"))?;
    let in_docs = folder.iter().map(|entry| entry.file_name());
    let mut paths: Vec<String> =
        in_docs.map(|name| format!("docs/{}", name.to_string_lossy())).collect();
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

/// Returns the text of the document at `path`, in which only the words are left of links to files
/// that are not in `paths`.
fn without_links_elsewhere(text: &str, path: &str, paths: &[String]) -> String {
    let is_kept = |target: &str| {
        let file = target.split('#').next().unwrap_or_default();
        let file = match (path.strip_prefix("docs/"), file.strip_prefix("../")) {
            (Some(_), Some(file)) => file.to_owned(),
            (Some(_), None) => format!("docs/{file}"),
            (None, _) => file.to_owned(),
        };
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
    }
}
