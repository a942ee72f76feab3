//! Checks that modules of a crate import each other in one direction only, and so do files; and
//! that an import names the module that defines the item.
//!
//! A module here is a folder or a file directly below `src`, with everything in it. A module
//! imports the names after `crate::` in its code, in a `use` declaration or elsewhere. Between
//! files only `use` declarations count; each path is followed to the file that defines the item,
//! and a re-export does not count as an import. The files of a folder are parts of its module: both
//! may name each other. Tests and docs may name anything.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{Use, is_test_file, uses, without_comments, without_tests};
use super::counts::Count;
use super::{Source, is_whole_word};

/// Maximum re-exports between an import and its item.
const REEXPORTS: usize = 8;

/// The modules that each module imports, with a file that does so.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>;

/// Returns a circle of modules for each crate that has one.
pub(super) fn problems(files: &[Source]) -> Vec<String> {
    let all = crates(files.iter());
    all.into_iter().filter_map(|source| Crate::new(source, files).module_circle()).collect()
}

/// Counts the files of each crate that import each other in a circle, and the imports from a
/// crate's root by its own files.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    let all = crates(files.iter().filter(|file| file.is_in_workspace()));
    let crates = all.into_iter().map(|source| Crate::new(source, files));
    crates.flat_map(|krate| [krate.circles(), krate.root_imports()]).collect()
}

/// Returns the folders of sources of all crates.
fn crates<'a>(files: impl Iterator<Item = &'a Source>) -> BTreeSet<&'a str> {
    let rust = files.filter(|file| file.is_rust());
    rust.filter_map(|file| Some(&file.path[..file.path.find("src/")? + "src/".len()])).collect()
}

/// A path of modules, starting at a crate's root.
type Module = Vec<String>;

struct SourceFile<'a> {
    path: &'a str,
    code: String,
    uses: Vec<Use>,
}

impl SourceFile<'_> {
    /// Returns the names after `crate::`.
    fn named(&self) -> impl Iterator<Item = &str> {
        const CRATE: &str = "crate::";
        let starts = self.code.match_indices(CRATE).map(|(at, _)| at);
        let inline = starts.filter(|at| is_whole_word(&self.code, *at, "crate"));
        let inline = inline.map(|at| first_word(&self.code[at + CRATE.len()..]));
        let of_root = self.uses.iter().filter(|found| found.path[0] == "crate");
        inline.chain(of_root.filter_map(|found| found.path.get(1)).map(String::as_str))
    }
}

struct Crate<'a> {
    source: &'a str,
    files: BTreeMap<Module, SourceFile<'a>>,
}

impl<'a> Crate<'a> {
    fn new(source: &'a str, files: &'a [Source]) -> Crate<'a> {
        let inside = files.iter().filter(|file| file.is_rust() && file.is_below(source));
        let production = inside.filter(|file| !is_test_file(&file.path));
        let file = |file: &'a Source| {
            let code = without_comments(without_tests(&file.text));
            let uses = uses(&code);
            (module(&file.path[source.len()..]), SourceFile { path: &file.path, code, uses })
        };
        Crate { source, files: production.map(file).collect() }
    }

    /// Returns the folder of the crate, such as `crates/io`.
    fn folder(&self) -> &str {
        self.source.trim_end_matches("/src/")
    }

    /// Returns modules that form a circle: each imports the next, and the last imports the first.
    fn module_circle(&self) -> Option<String> {
        let modules: BTreeSet<&str> = self.files.keys().filter_map(|path| name(path)).collect();
        let mut imports = Imports::new();
        for (path, file) in &self.files {
            let Some(own) = name(path) else { continue };
            let named = file.named().filter(|name| *name != own);
            for other in named.filter_map(|name| modules.get(name).copied()) {
                imports.entry(own).or_default().entry(other).or_insert(file.path);
            }
        }
        let circle = circle(&imports)?;
        let steps = circle.iter().zip(circle.iter().cycle().skip(1));
        let steps: Vec<String> = steps
            .map(|(from, to)| format!("{from} imports {to} in {}", imports[from][to]))
            .collect();
        Some(format!("{}: {}", self.source, steps.join(", ")))
    }

    /// Counts the files in circles: each has an import that leads back to it.
    fn circles(&self) -> Count {
        let imports: BTreeMap<&Module, BTreeMap<&Module, &str>> =
            self.files.iter().map(|(module, file)| (module, self.imports(module, file))).collect();
        let mut places = Vec::new();
        for (module, file) in &self.files {
            for (imported, name) in &imports[module] {
                if reaches(imported, module, &imports) {
                    places.push((file.path, self.files[*imported].path, *name));
                }
            }
        }
        let places =
            places.into_iter().map(|(from, to, name)| format!("{from} imports {name} from {to}"));
        Count::of(format!("imports in circles of files: {}", self.folder()), places.collect())
    }

    /// Returns the files that a file imports, each with the name of an item.
    fn imports<'r>(
        &'r self,
        module: &'r Module,
        file: &'r SourceFile<'a>,
    ) -> BTreeMap<&'r Module, &'r str> {
        let own =
            file.uses.iter().filter(|found| !found.is_public || is_used(&file.code, &found.name));
        own.filter_map(|found| {
            let target = self.defining(module, &found.path, REEXPORTS)?;
            (!target.starts_with(module) && !module.starts_with(target))
                .then_some((target, found.name.as_str()))
        })
        .collect()
    }

    /// Returns the module that defines the item of a path in `module`; `None` for other crates.
    fn defining(&self, module: &[String], path: &[String], reexports: usize) -> Option<&Module> {
        let first = path.first()?;
        let mut at: Module = module.to_vec();
        let mut rest = path;
        if first == "crate" {
            at.clear();
            rest = &rest[1..];
        } else if first == "self" {
            rest = &rest[1..];
        } else if first != "super" {
            let child: Module = module.iter().chain([first]).cloned().collect();
            self.files.get(&child)?;
        }
        while rest.first().is_some_and(|part| part == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        while let Some(part) = rest.first() {
            let child: Module = at.iter().chain([part]).cloned().collect();
            if !self.files.contains_key(&child) {
                break;
            }
            at = child;
            rest = &rest[1..];
        }
        let (found, file) = self.files.get_key_value(&at)?;
        let Some(item) = rest.first() else { return Some(found) };
        let reexport = file.uses.iter().find(|found| found.is_public && found.name == *item);
        match reexport.filter(|_| reexports > 0) {
            Some(reexport) => {
                let path: Vec<String> = reexport.path.iter().chain(&rest[1..]).cloned().collect();
                self.defining(&at, &path, reexports - 1).or(Some(found))
            }
            None => Some(found),
        }
    }

    /// Counts the imports of an item from the crate's root, which only re-exports the item.
    fn root_imports(&self) -> Count {
        let mut places = Vec::new();
        for file in self.files.iter().filter(|(module, _)| !module.is_empty()).map(|(_, file)| file)
        {
            for found in &file.uses {
                let is_item = |part: &String| part.starts_with(char::is_uppercase);
                if found.path[0] == "crate" && found.path.get(1).is_some_and(is_item) {
                    places.push(format!("{}:{}: {}", file.path, found.line, found.path.join("::")));
                }
            }
        }
        Count::of(format!("imports of items from the root: {}", self.folder()), places)
    }
}

/// Returns the module of a file below `src`.
fn module(path: &str) -> Module {
    let path = path.trim_end_matches(".rs");
    let mut parts: Module = path.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// Returns whether code uses the name of an import outside its declaration.
fn is_used(code: &str, name: &str) -> bool {
    code.match_indices(name).filter(|(at, _)| is_whole_word(code, *at, name)).any(|(at, _)| {
        let start = code[..at].rfind(';').map_or(0, |end| end + 1);
        !code[start..at].contains("use ")
    })
}

/// Returns whether imports lead from one module to another.
fn reaches(
    from: &Module,
    to: &Module,
    imports: &BTreeMap<&Module, BTreeMap<&Module, &str>>,
) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            open.extend(imports[module].keys());
        }
    }
    false
}

/// Returns the module directly below `src` that contains a path.
fn name(path: &[String]) -> Option<&str> {
    path.first().map(String::as_str)
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Returns modules that form a circle: each imports the next, and the last imports the first.
fn circle<'a>(imports: &Imports<'a>) -> Option<Vec<&'a str>> {
    let mut free = BTreeSet::new();
    imports.keys().find_map(|module| {
        let mut path = Vec::new();
        visit(module, imports, &mut path, &mut free).then_some(path)
    })
}

/// Follows the imports of a module. Returns true, with the circle in `path`, if they form a circle.
/// Adds modules without a circle to `free`.
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

    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
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
            circles_of(&files),
            [format!(
                "{ENGINE}: a imports b in {ENGINE}a.rs, b imports c in {ENGINE}b/mod.rs, \
                 c imports a in {ENGINE}c/e.rs"
            )]
        );
        assert!(circles_of(&files[..4]).is_empty(), "no module imports a");
    }

    #[test]
    fn names_in_a_list_count() {
        let files = [
            ("a.rs", "use crate::{Error,\n    b::{B, c}, d};"),
            ("b.rs", "use crate::d::D;"),
            ("c.rs", "use crate::a::A;"),
            ("d.rs", "use crate::{e, a::A};"),
        ];
        let found = circles_of(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("d imports a"), "{found:?}");
        assert!(circles_of(&files[..3]).is_empty(), "c is imported by none: it is an item of b");
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
        assert!(circles_of(&files).is_empty());
    }

    #[test]
    fn an_item_of_tests_hides_nothing_behind_it() {
        let files = [
            ("a.rs", "mod c;\n#[cfg(test)]\nmod tests;\nuse crate::b::B;"),
            ("b.rs", "use crate::a::A;\n#[cfg(test)]\nmod tests {}"),
        ];
        assert_eq!(circles_of(&files).len(), 1);
    }

    fn of(files: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("crates/a/src/{path}"),
            text: (*text).into(),
        };
        let files: Vec<_> = files.iter().map(source).collect();
        let counts = counts(&files).into_iter().filter(|count| count.number > 0);
        counts.map(|count| (count.name, count.places)).collect()
    }

    #[test]
    fn files_that_import_each_other_count_each_way() {
        let ring = [
            ("b/mod.rs", "mod c;\nmod d;\npub use c::C;\n"),
            ("b/c.rs", "use super::d::D;\n"),
            ("b/d.rs", "use crate::e::E;\n"),
            ("e.rs", "use crate::b::{C, F};\n"),
        ];
        let found = of(&ring);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, "imports in circles of files: crates/a");
        assert_eq!(
            found[0].1,
            [
                "crates/a/src/b/c.rs imports D from crates/a/src/b/d.rs",
                "crates/a/src/b/d.rs imports E from crates/a/src/e.rs",
                "crates/a/src/e.rs imports C from crates/a/src/b/c.rs",
            ]
        );
        assert!(of(&ring[..3]).is_empty(), "the ring is open");
    }

    #[test]
    fn a_module_and_its_files_may_name_each_other() {
        let parts = [
            ("b/mod.rs", "mod c;\nuse c::C;\nstruct B(C);\n"),
            ("b/c.rs", "use super::B;\n#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}\n"),
            ("d.rs", "use crate::b::B;\n"),
        ];
        assert!(of(&parts).is_empty());
    }

    #[test]
    fn items_come_from_the_module_that_defines_them() {
        let files = [
            ("lib.rs", "pub mod b;\nmod c;\npub use b::B;\nuse crate::B as D;\n"),
            ("b.rs", "pub struct B;\n"),
            (
                "c.rs",
                "// use crate::B;\nuse crate::{\n    B, b};\n#[cfg(test)]\nmod tests {\n    \
                 use crate::B;\n}\n",
            ),
        ];
        let name = "imports of items from the root: crates/a".to_owned();
        assert_eq!(of(&files), [(name, vec!["crates/a/src/c.rs:2: crate::B".to_owned()])]);
    }
}
