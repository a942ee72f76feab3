//! Checks that the table of crates in ARCHITECTURE.md agrees with the manifests.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

const DOCUMENT: &str = "ARCHITECTURE.md";

/// The heading of the table.
const HEADING: &str = "| crate | duty |";

/// The folders of crates.
const FOLDERS: [&str; 2] = ["crates/", "dev/"];

/// Crates and the names of their dependencies.
type Crates = BTreeMap<String, BTreeSet<String>>;

/// Returns each difference between the table and the manifests.
pub(super) fn problems(files: &[Source]) -> Vec<String> {
    let document = files.iter().find(|file| file.path == DOCUMENT);
    let listed = document.map(|document| listed(&document.text)).unwrap_or_default();
    let declared: Crates = files.iter().filter_map(declared).collect();
    let names: BTreeSet<&String> = listed.keys().chain(declared.keys()).collect();
    let problem = |name: &String| match (listed.get(name), declared.get(name)) {
        (Some(listed), Some(declared)) if listed == declared => None,
        (Some(_), Some(declared)) => {
            Some(format!("{DOCUMENT}: {name} depends on {}", shown(declared)))
        }
        (Some(_), None) => Some(format!("{DOCUMENT}: no crate {name}")),
        (None, _) => Some(format!("{DOCUMENT}: the table of crates has no {name}")),
    };
    names.into_iter().filter_map(problem).collect()
}

fn shown(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Returns the rows of the table: the names in the first and in the last cell.
fn listed(document: &str) -> Crates {
    let rows = document.lines().skip_while(|line| !line.starts_with(HEADING)).skip(2);
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|');
        let name = backticked(cells.next()?).next()?;
        Some((name, backticked(cells.next_back()?).collect()))
    };
    rows.take_while(|line| line.starts_with('|')).filter_map(row).collect()
}

fn backticked(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// Returns a crate's folder, and the folders of its dependencies, without those for tests.
fn declared(file: &Source) -> Option<(String, BTreeSet<String>)> {
    let inside = FOLDERS.iter().find_map(|folder| file.path.strip_prefix(folder))?;
    let name = inside.strip_suffix("/Cargo.toml")?;
    let mut depends = false;
    let mut dependencies = BTreeSet::new();
    for line in file.text.lines() {
        if let Some(section) = line.strip_prefix('[') {
            depends = section.ends_with("dependencies]") && !section.contains("dev-");
        } else if depends {
            let key = line.split(['.', ' ', '=']).next().unwrap_or_default();
            // The library's crate is `throng`, and lies in crates/server.
            let folder = if key == "throng" { Some("server") } else { key.strip_prefix("throng-") };
            dependencies.extend(folder.map(str::to_owned));
        }
    }
    Some((name.to_owned(), dependencies))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# x\n\n| crate | duty | its crates |\n|---|---|---|\n\
        | `io` | `sockets` | |\n| `engine` | shards | `io`, `server` |\n\n| `no` | row | |\n";

    fn of(document: &str, manifests: &[(&str, &str)]) -> Vec<String> {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let manifests = manifests.iter().map(|(path, text)| source(path, text));
        let files: Vec<_> = manifests.chain([source(DOCUMENT, document)]).collect();
        problems(&files)
    }

    const ENGINE: &str = "[package]\nname = \"throng-engine\"\n[dependencies]\n\
        throng-io.workspace = true\nmio = \"1\"\n[target.'cfg(unix)'.dependencies]\n\
        throng = { path = \"x\" }\n[dev-dependencies]\nthrong-sim.workspace = true\n";
    const IO: (&str, &str) = ("crates/io/Cargo.toml", "[dependencies]\nmio = \"1\"\n");

    #[test]
    fn a_table_that_agrees_is_accepted() {
        let none = of(TABLE, &[("dev/engine/Cargo.toml", ENGINE), IO]);
        assert_eq!(none, Vec::<String>::new());
    }

    #[test]
    fn each_difference_is_reported() {
        let engine = "[dependencies]\nthrong-io.workspace = true\n";
        let files = [("crates/engine/Cargo.toml", engine), ("dev/lab/Cargo.toml", "")];
        assert_eq!(
            of(TABLE, &files),
            [
                "ARCHITECTURE.md: engine depends on io",
                "ARCHITECTURE.md: no crate io",
                "ARCHITECTURE.md: the table of crates has no lab",
            ]
        );
    }
}
