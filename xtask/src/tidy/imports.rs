//! Checks that modules of a crate import each other in one direction only.
//!
//! A module here is a folder or a file directly below `src`, with all that is in it. Imports count
//! where code names `crate::module`; tests and docs may name anything.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, is_whole_word};

/// Crates whose modules have layers.
const CRATES: [&str; 4] =
    ["crates/config/src/", "crates/engine/src/", "crates/http/src/", "crates/proto/src/"];

/// The modules that each module imports, with a file that does so.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>;

/// Returns a circle of modules for each crate that has one.
pub(super) fn problems(files: &[Source]) -> Vec<String> {
    CRATES.iter().filter_map(|source| problem(source, files)).collect()
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
        let named = named(&file.text).filter(|name| *name != own && modules.contains(name));
        for name in named {
            imports.entry(own).or_default().entry(name).or_insert(&file.path);
        }
    }
    imports
}

/// Returns the modules that code names as `crate::module`.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let production = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code = production.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(|line| {
        let starts = line.match_indices("crate::");
        let starts = starts.filter(|(at, _)| is_whole_word(line, *at, "crate"));
        starts.filter_map(|(at, start)| {
            let rest = &line[at + start.len()..];
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
        })
    })
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
    fn docs_and_tests_may_name_anything() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "/// See [`A`](crate::a::A).\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
        ];
        assert!(of(&files).is_empty());
    }
}
