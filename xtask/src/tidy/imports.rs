//! Checks that modules of a crate import each other in one direction only.
//!
//! A module here is a folder or a file directly below `src`, with all that is in it. Imports count
//! where code names `crate::module` or `crate::{module, ...}`; tests and docs may name anything.

use std::collections::{BTreeMap, BTreeSet};

use super::code::without_tests;
use super::{Source, is_whole_word};

/// The modules that each module imports, with a file that does so.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>;

/// Returns a circle of modules for each crate that has one.
pub(super) fn problems(files: &[Source]) -> Vec<String> {
    crates(files).into_iter().filter_map(|source| problem(source, files)).collect()
}

/// Returns the folders of sources of all crates.
fn crates(files: &[Source]) -> BTreeSet<&str> {
    let rust = files.iter().filter(|file| file.is_rust());
    rust.filter_map(|file| Some(&file.path[..file.path.find("src/")? + "src/".len()])).collect()
}

fn problem(source: &str, files: &[Source]) -> Option<String> {
    let imports = imports(source, files);
    let circle = circle(&imports)?;
    let steps = circle.iter().zip(circle.iter().cycle().skip(1));
    let steps: Vec<String> =
        steps.map(|(from, to)| format!("{from} imports {to} in {}", imports[from][to])).collect();
    Some(format!("{source}: {}", steps.join(", ")))
}

/// Returns what each module of the crate at `source` imports.
fn imports<'a>(source: &str, files: &'a [Source]) -> Imports<'a> {
    let inside = || files.iter().filter(|file| file.is_rust() && file.is_below(source));
    let module = |file: &'a Source| file.path[source.len()..].split(['/', '.']).next();
    let modules: BTreeSet<&str> = inside().filter_map(module).collect();
    let mut imports = Imports::new();
    for file in inside() {
        let Some(own) = module(file).filter(|module| *module != "lib") else { continue };
        let named =
            named(&file.text).into_iter().filter(|name| *name != own && modules.contains(name));
        for name in named {
            imports.entry(own).or_default().entry(name).or_insert(&file.path);
        }
    }
    imports
}

/// Returns the names after `crate::` in code: one, or those of a list in braces.
fn named(text: &str) -> Vec<&str> {
    let production = without_tests(text);
    let mut names = Vec::new();
    for (at, start) in production.match_indices("crate::") {
        let line = production[..at].rfind('\n').map_or(0, |end| end + 1);
        let is_code = !production[line..at].contains("//");
        if is_code && is_whole_word(production, at, "crate") {
            let rest = &production[at + start.len()..];
            match rest.strip_prefix('{') {
                Some(list) => names.extend(listed(list)),
                None => names.push(first_word(rest)),
            }
        }
    }
    names
}

/// Returns the first word of each item of a list in braces, whose opening brace was taken off.
fn listed(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let end = list.find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth < 0
    });
    let mut depth = 0;
    let items = list[..end.unwrap_or(0)].split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0 && c == ','
    });
    items.map(|item| first_word(item.trim_start()))
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Returns modules of which each imports the next, and the last the first.
fn circle<'a>(imports: &Imports<'a>) -> Option<Vec<&'a str>> {
    let mut free = BTreeSet::new();
    imports.keys().find_map(|module| {
        let mut path = Vec::new();
        visit(module, imports, &mut path, &mut free).then_some(path)
    })
}

/// Follows the imports of a module. Returns true with the circle in `path` if there is one; modules
/// that lead to none are added to `free`.
fn visit<'a>(
    module: &'a str,
    imports: &Imports<'a>,
    path: &mut Vec<&'a str>,
    free: &mut BTreeSet<&'a str>,
) -> bool {
    if free.contains(module) {
        return false;
    }
    if let Some(start) = path.iter().position(|step| *step == module) {
        path.drain(..start);
        return true;
    }
    path.push(module);
    let mut next = imports.get(module).into_iter().flat_map(BTreeMap::keys);
    if next.any(|next| visit(next, imports, path, free)) {
        return true;
    }
    path.pop();
    free.insert(module);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: &str = "crates/engine/src/";

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("{ENGINE}{path}"),
            text: (*text).into(),
        };
        problems(&files.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_is_named_with_a_file_for_each_step() {
        let files = [
            ("lib.rs", "pub use crate::a::A;"),
            ("a.rs", "use crate::b::{B, C};"),
            ("b/mod.rs", "fn f() -> crate::c::C {}"),
            ("b/d.rs", "use crate::b::B;"),
            ("c/e.rs", "use crate::a::A;"),
        ];
        assert_eq!(
            of(&files),
            [format!(
                "{ENGINE}: a imports b in {ENGINE}a.rs, b imports c in {ENGINE}b/mod.rs, \
                 c imports a in {ENGINE}c/e.rs"
            )]
        );
        assert!(of(&files[..4]).is_empty(), "no module imports a any more");
    }

    #[test]
    fn names_in_a_list_count() {
        let files = [
            ("a.rs", "use crate::{Error,\n    b::{B, c}, d};"),
            ("b.rs", "use crate::d::D;"),
            ("c.rs", "use crate::a::A;"),
            ("d.rs", "use crate::{e, a::A};"),
        ];
        let found = of(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("d imports a"), "{found:?}");
        assert!(of(&files[..3]).is_empty(), "c is imported by none: it is an item of b");
    }

    #[test]
    fn docs_and_tests_may_name_anything() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            (
                "b.rs",
                "/// See [`A`](crate::a::A).\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
            ),
        ];
        assert!(of(&files).is_empty());
    }

    #[test]
    fn an_item_of_tests_hides_nothing_behind_it() {
        let files = [
            ("a.rs", "mod c;\n#[cfg(test)]\nmod tests;\nuse crate::b::B;"),
            ("b.rs", "use crate::a::A;\n#[cfg(test)]\nmod tests {}"),
        ];
        assert_eq!(of(&files).len(), 1);
    }
}
