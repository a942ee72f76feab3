//! Checks that files of a crate import each other in one direction only, and that an import names
//! the module that defines the item.
//!
//! An import is a path of a `use` declaration outside tests, followed to the file that defines the
//! item. A re-export is not an import. The files of a folder are parts of its module, which may
//! name each of them and be named by them.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{Use, is_test_file, uses, without_comments, without_tests};
use super::counts::Count;
use super::{Source, is_whole_word};

/// The most re-exports that lead from an import to its item.
const REEXPORTS: usize = 8;

/// Counts the files of each crate that import each other in a circle, and the imports of a crate's
/// root by its own files.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    let crates = crates(files).into_iter().map(|source| Crate::new(source, files));
    crates.flat_map(|krate| [krate.circles(), krate.root_imports()]).collect()
}

/// Returns the folders of sources of all crates.
fn crates(files: &[Source]) -> BTreeSet<&str> {
    let rust = files.iter().filter(|file| file.is_rust() && file.is_in_workspace());
    rust.filter_map(|file| Some(&file.path[..file.path.find("src/")? + "src/".len()])).collect()
}

/// A path of modules from a crate's root on.
type Module = Vec<String>;

struct SourceFile<'a> {
    path: &'a str,
    code: String,
    uses: Vec<Use>,
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

    /// Counts the files in circles: each with an import that leads back to it.
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

    /// Returns the module that defines what a path in `module` names; `None` for other crates.
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

    /// Counts the imports of an item from the crate's root, which only hands it on.
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

/// Returns whether code names an import outside its declaration.
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

#[cfg(test)]
mod tests {
    use super::*;

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
