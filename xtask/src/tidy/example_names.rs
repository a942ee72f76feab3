//! Checks that examples import re-exported names from the library: its users do not have the crates
//! that define these names.

use std::collections::BTreeSet;

use super::Source;

/// The library's list of re-exports, and the lists of its modules.
const LISTS: [&str; 8] = [
    "crates/server/src/lib.rs",
    "crates/server/src/channel.rs",
    "crates/server/src/http.rs",
    "crates/server/src/metrics.rs",
    "crates/server/src/server.rs",
    "crates/server/src/tls/mod.rs",
    "crates/server/src/workers/mod.rs",
    "crates/server/src/ws/mod.rs",
];

/// Returns every visible line of an example that imports only re-exported names from another crate
/// of this repository.
pub(super) fn problems(files: &[Source]) -> Vec<String> {
    let lists = files.iter().filter(|file| LISTS.contains(&file.path.as_str()));
    let names: BTreeSet<&str> = lists.flat_map(|file| re_exported(&file.text)).collect();
    let of_crates = files
        .iter()
        .filter(|file| file.is_rust() && file.is_below("crates/") && file.path.contains("/src/"));
    of_crates
        .flat_map(|file| {
            foreign_imports(&file.text, &names).into_iter().map(|(line, import)| {
                format!("{}:{line}: `{import}`: write `use throng::...`", file.path)
            })
        })
        .collect()
}

/// Returns the names, in their own crates, of the items re-exported from crates of this repository.
fn re_exported(text: &str) -> Vec<&str> {
    let exports = text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    exports.filter(|export| export.starts_with("throng_")).flat_map(imported).collect()
}

/// Returns the names that a path, or a path with a list in braces, imports.
fn imported(path: &str) -> Vec<&str> {
    let list = path.split_once('{').map_or(path, |(_, list)| list);
    list.trim_end_matches(['}', ' ', '\n', ';'])
        .split(',')
        .map(|entry| entry.split(" as ").next().unwrap_or(entry).trim())
        .map(|entry| entry.rsplit("::").next().unwrap_or(entry))
        .filter(|entry| !entry.is_empty())
        .collect()
}

fn foreign_imports<'t>(text: &'t str, names: &BTreeSet<&str>) -> Vec<(usize, &'t str)> {
    let mut is_example = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let Some(doc) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            is_example = false;
            continue;
        };
        let doc = doc.trim();
        if doc.starts_with("```") {
            is_example = !is_example;
        } else if is_example
            && let Some(path) = doc.strip_prefix("use throng_")
            && imported(path).iter().all(|name| names.contains(name))
        {
            found.push((index + 1, doc));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_users_find_in_the_library_are_imported_from_there() {
        let list = "pub use throng_http::{\n    Response, Status,\n};\npub use own::Other;\n\
                    pub use throng_proto::deflate::{Mode as DeflateMode, Settings as Deflate};\n\
                    pub use throng_http::openmetrics;\n";
        let names: BTreeSet<&str> = re_exported(list).into_iter().collect();
        assert_eq!(names, ["Mode", "Response", "Settings", "Status", "openmetrics"].into());
        let example = "/// ```\n/// use throng_http::{Response, Status};\n/// ```\n\
                       /// use throng_http::Status;\nfn a() {}\n/// ```\n\
                       /// # use throng_http as throng;\n/// use throng_http::{Router, Status};\n\
                       /// use throng_proto::deflate::Mode;\n/// ```\n";
        let found = foreign_imports(example, &names);
        let expected =
            [(2, "use throng_http::{Response, Status};"), (9, "use throng_proto::deflate::Mode;")];
        assert_eq!(found, expected);
    }
}
