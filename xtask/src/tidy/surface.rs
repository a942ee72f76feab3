//! Counts the names at the root of a library's documentation, and the public items that it hides.

use super::Source;
use super::code::{uses, without_comments, without_tests};
use super::counts::Count;

/// The crates on which programs are built, and their roots.
const LIBRARIES: [(&str, &str); 2] =
    [("throng", "crates/server/src/lib.rs"), ("throng-client", "crates/client/src/lib.rs")];

/// Counts the names at each root, and the hidden names below it.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    let count = |(name, root): (&str, &str)| {
        let folder = root.trim_end_matches("lib.rs");
        let names = files.iter().find(|file| file.path == root).map(|file| names(&file.text));
        let inside = files.iter().filter(|file| file.is_rust() && file.is_below(folder));
        [
            Count::of(format!("names at the root of `{name}`"), names.unwrap_or_default()),
            Count::of(
                format!("hidden public items of `{name}`"),
                inside.flat_map(hidden).collect(),
            ),
        ]
    };
    LIBRARIES.into_iter().flat_map(count).collect()
}

/// Returns the names that the file of a root makes public, except modules.
fn names(root: &str) -> Vec<String> {
    let code = without_comments(without_tests(root));
    let mut names: Vec<String> = code.lines().filter_map(defined).map(str::to_owned).collect();
    // An item of a module within this file is indented, so it is not at the root.
    let at_root =
        |line: usize| code.lines().nth(line - 1).is_some_and(|line| line.starts_with("pub use"));
    let exported = uses(&code).into_iter().filter(|found| at_root(found.line));
    names.extend(exported.map(|found| found.name));
    names.sort();
    names.dedup();
    names
}

fn defined(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type ", "fn ", "const ", "static "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Returns the public items of a file that documentation hides.
fn hidden(file: &Source) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
    let attributes =
        lines.iter().enumerate().filter(|(_, line)| line.starts_with("#[doc(hidden)]"));
    let item = |index: usize| {
        let mut after = lines[index + 1..].iter();
        after.find(|line| !line.starts_with("#[") && !line.starts_with("//"))
    };
    attributes
        .filter(|(index, _)| item(*index).is_some_and(|line| line.starts_with("pub ")))
        .map(|(index, _)| format!("{}:{}", file.path, index + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_the_root_count_once_and_modules_do_not() {
        let root = "pub mod http;\npub use a::{B, c::D as E};\n#[cfg(x)]\n\
                    pub use a::B;\npub struct F;\n\
                    pub mod prelude {\n    pub use a::G;\n}\npub(crate) use a::H;\n";
        assert_eq!(names(root), ["B", "E", "F"]);
    }

    #[test]
    fn hidden_items_count_if_they_are_public() {
        let text =
            "#[doc(hidden)]\n#[cfg(x)]\npub fn a() {}\n#[doc(hidden)]\npub(crate) fn b() {}\n";
        let file = Source { path: "a.rs".into(), text: text.into() };
        assert_eq!(hidden(&file), ["a.rs:1"]);
    }
}
