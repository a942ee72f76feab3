//! The parts of a Rust file that checks read: its code without tests, and the paths that it
//! imports.

/// Returns a file up to its test module, which is always last.
pub(super) fn without_tests(text: &str) -> &str {
    const ATTRIBUTE: &str = "\n#[cfg(test)]\n";
    let begins_module = |at: &usize| {
        let item = text[at + ATTRIBUTE.len()..].lines().next().unwrap_or_default();
        item.contains("mod ") && item.ends_with('{')
    };
    let end = text.match_indices(ATTRIBUTE).map(|(at, _)| at).find(begins_module);
    &text[..end.unwrap_or(text.len())]
}

/// Returns whether a file contains only tests, or parts that tests share.
pub(super) fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
}

/// Returns the code with blanks in place of comments, so that lines keep their numbers.
pub(super) fn without_comments(code: &str) -> String {
    let lines = code.lines().map(|line| {
        let starts = line.match_indices("//").map(|(at, _)| at);
        // The slashes of a URL within a text do not begin a comment.
        let comment = starts.into_iter().find(|at| !line[..*at].ends_with(':'));
        &line[..comment.unwrap_or(line.len())]
    });
    lines.fold(String::with_capacity(code.len()), |text, line| text + line + "\n")
}

/// A path of a `use` declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Use {
    /// The segments. The last one is `*` for all names of a module.
    pub(super) path: Vec<String>,
    /// The imported name in this file.
    pub(super) name: String,
    /// Whether other files can use the imported name from here.
    pub(super) is_public: bool,
    /// From 1.
    pub(super) line: usize,
}

/// Returns the paths of all `use` declarations of code without comments.
pub(super) fn uses(code: &str) -> Vec<Use> {
    let mut uses = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let start = code[..at].rfind('\n').map_or(0, |end| end + 1);
        let before = code[start..at].trim();
        if !(before.is_empty() || before == "pub" || before.starts_with("pub(")) {
            continue;
        }
        let Some(length) = code[at..].find(';') else { continue };
        let tree: String =
            code[at + "use ".len()..at + length].split_whitespace().collect::<Vec<_>>().join(" ");
        let line = code[..at].matches('\n').count() + 1;
        for path in flattened(&tree) {
            let (path, renamed) = match path.split_once(" as ") {
                Some((path, name)) => (path.to_owned(), Some(name.trim().to_owned())),
                None => (path, None),
            };
            let mut path: Vec<String> =
                path.split("::").map(|part| part.trim().to_owned()).collect();
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let name = renamed.unwrap_or_else(|| path.last().cloned().unwrap_or_default());
            uses.push(Use { path, name, is_public: !before.is_empty(), line });
        }
    }
    uses
}

/// Returns the single paths of a tree such as `a::{b, c::{d, e}}`.
fn flattened(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.trim().to_owned()];
    };
    let list = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let items = items(list).into_iter().filter(|item| !item.trim().is_empty());
    items.flat_map(flattened).map(|path| format!("{}{path}", prefix.trim_start())).collect()
}

/// Splits a list at its commas outside braces.
fn items(list: &str) -> Vec<&str> {
    let mut depth = 0;
    list.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0 && c == ','
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(code: &str) -> Vec<String> {
        uses(code).iter().map(|found| found.path.join("::")).collect()
    }

    #[test]
    fn trees_are_flattened() {
        assert_eq!(
            paths("use crate::a::{self, b::{C, D as E},\n    f};\npub(crate) use g::*;\n"),
            ["crate::a", "crate::a::b::C", "crate::a::b::D", "crate::a::f", "g::*"]
        );
        let found = uses("use a::B as C;\npub use d::E;\n");
        assert_eq!((found[0].name.as_str(), found[0].is_public, found[0].line), ("C", false, 1));
        assert_eq!((found[1].name.as_str(), found[1].is_public, found[1].line), ("E", true, 2));
    }

    #[test]
    fn comments_are_blank_and_keep_the_lines() {
        let code = without_comments("// use a::B;\nuse c::D; // D\nlet u = \"ws://x\";\n");
        assert_eq!(code, "\nuse c::D; \nlet u = \"ws://x\";\n");
        assert_eq!(uses(&code)[0].line, 2);
    }
}
