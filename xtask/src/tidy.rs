//! Repository checks: wording, line widths, citations, names in documents, crates and their
//! dependencies, imports, sleeps in tests, commit subjects.

mod architecture;
mod citations;
mod commits;
mod crate_table;
mod imports;
mod machine_paths;
mod sleeps;
mod width;
mod wording;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::run_quietly;
use crate::outcome::{Stop, Tally};
use crate::site::Site;

/// Folders and files whose wording and line widths are not yet converted.
///
/// The list may only shrink: an entry without problems must be removed.
const UNCONVERTED: &[&str] = &["dev/"];

/// A text file that git tracks.
struct Source {
    /// Relative to the root, with forward slashes.
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    fn is_below(&self, prefix: &str) -> bool {
        self.path.starts_with(prefix)
    }
}

/// Runs all checks and prints every problem with its place.
pub(crate) fn run(site: &Site) -> Result<Tally, Stop> {
    let files = tracked_files(&site.root)?;
    let checks = [
        ("ARCHITECTURE.md names only what exists", architecture::problems(&site.root, &files)),
        ("ARCHITECTURE.md lists each crate and its dependencies", crate_table::problems(&files)),
        ("modules import each other in one direction", imports::problems(&files)),
        ("tests wait for events", sleeps::problems(&files)),
        ("RFC citations are well formed", citations::problems(&files)),
        (
            "no absolute path and no registry host",
            machine_paths::problems(&files, &machine_paths::this_machine(&site.root)),
        ),
        ("docs and texts use standard words", converted(&files, UNCONVERTED, wording::problems)),
        ("no line of Rust exceeds 100 columns", converted(&files, UNCONVERTED, width::problems)),
        ("the list of unconverted folders shrinks", clean_entries(&files, UNCONVERTED)),
        ("commit subjects are `area: effect`", commits::problems(&subjects(&site.root)?)),
    ];
    let mut tally = Tally::default();
    for (name, problems) in checks {
        let list = || problems.iter().map(|problem| format!("\n  {problem}")).collect();
        tally.record(name, if problems.is_empty() { Ok(()) } else { Err(list()) });
    }
    Ok(tally)
}

/// Returns the problems of all files that are not below a prefix of `unconverted`.
fn converted(
    files: &[Source],
    unconverted: &[&str],
    problems: impl Fn(&Source) -> Vec<String>,
) -> Vec<String> {
    let is_exempt = |file: &Source| unconverted.iter().any(|prefix| file.is_below(prefix));
    files.iter().filter(|file| !is_exempt(file)).flat_map(problems).collect()
}

/// Returns the entries of `unconverted` that could be removed.
fn clean_entries(files: &[Source], unconverted: &[&str]) -> Vec<String> {
    let has_problem =
        |file: &Source| !wording::problems(file).is_empty() || !width::problems(file).is_empty();
    let is_clean =
        |prefix: &&&str| !files.iter().any(|file| file.is_below(prefix) && has_problem(file));
    let entries = unconverted.iter().filter(is_clean);
    entries.map(|prefix| format!("{prefix} has no problem: remove it from UNCONVERTED")).collect()
}

/// Returns every text file that git tracks. Files that are not UTF-8 are skipped.
fn tracked_files(root: &Path) -> Result<Vec<Source>, Stop> {
    let listed = git(root, &["ls-files", "-z"])?;
    let Some(listed) = listed else {
        return Err(Stop::Failed("git does not list the files: is this a clone?".into()));
    };
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    Ok(paths
        .filter_map(|path| {
            let text = std::fs::read_to_string(root.join(PathBuf::from(path))).ok()?;
            Some(Source { path: path.to_owned(), text })
        })
        .collect())
}

/// Returns hash and subject of the commits to check; none if the history does not reach back, as in
/// a shallow clone.
fn subjects(root: &Path) -> Result<String, Stop> {
    let range = format!("{}..HEAD", commits::SINCE);
    Ok(git(root, &["log", "--no-merges", "--format=%h %s", &range])?.unwrap_or_default())
}

/// Runs git and returns its output; `None` if it failed.
fn git(root: &Path, arguments: &[&str]) -> Result<Option<String>, Stop> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(root);
    let finished = run_quietly(&mut git, Duration::from_secs(30))
        .map_err(|why| Stop::Missing(format!("{why}; install git")))?;
    Ok(finished.status.success().then_some(finished.stdout))
}

/// Returns whether `text` has `word` at `at` with no identifier character on either side.
fn is_whole_word(text: &str, at: usize, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn unconverted_folders_are_exempt() {
        let wide = format!("// {}", "x".repeat(98));
        let files = [source("crates/a/src/lib.rs", &wide), source("crates/b/src/lib.rs", &wide)];
        let problems = converted(&files, &["crates/a/"], width::problems);
        assert_eq!(problems, ["crates/b/src/lib.rs:1: 101 columns"]);
        assert_eq!(converted(&files, &[], width::problems).len(), 2);
    }

    #[test]
    fn an_unconverted_folder_without_problems_must_leave_the_list() {
        let wide = format!("// {}", "x".repeat(98));
        let files = [source("crates/a/src/lib.rs", &wide), source("crates/b/src/lib.rs", "// x")];
        let entries = ["crates/a/", "crates/b/", "crates/gone/"];
        let problems = clean_entries(&files, &entries);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].starts_with("crates/b/") && problems[1].starts_with("crates/gone/"));
    }
}
