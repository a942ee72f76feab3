//! Repository checks: wording, line widths, citations, names in documents, crates and their
//! dependencies, imports, sleeps in tests, commit subjects.

mod architecture;
mod citations;
mod code;
mod codes;
mod commits;
mod counts;
mod crate_table;
mod example_names;
mod idioms;
mod imports;
mod machine_paths;
mod names;
mod sleeps;
mod surface;
mod walls;
mod width;
mod wording;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::run_quietly;
use crate::outcome::{Stop, Tally};
use crate::site::Site;
use counts::Count;

/// The folders with the workspace's Rust sources.
const WORKSPACE: [&str; 3] = ["crates/", "dev/", "xtask/"];

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

    /// Returns whether the file is in a crate of the workspace.
    fn is_in_workspace(&self) -> bool {
        WORKSPACE.iter().any(|folder| self.is_below(folder))
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
        ("examples name the crate that users have", example_names::problems(&files)),
        ("tests wait for events", sleeps::problems(&files)),
        ("RFC citations are well formed", citations::problems(&files)),
        (
            "no absolute path and no registry host",
            machine_paths::problems(&files, &machine_paths::this_machine(&site.root)),
        ),
        ("docs and texts use standard words", files.iter().flat_map(wording::problems).collect()),
        ("no line of Rust exceeds 100 columns", files.iter().flat_map(width::problems).collect()),
        ("counts that may only fall", counts::problems(&site.root, &counts(&files))),
        ("commit subjects are `area: effect`", commits::problems(&subjects(&site.root)?)),
    ];
    let mut tally = Tally::default();
    for (name, problems) in checks {
        let list = || problems.iter().map(|problem| format!("\n  {problem}")).collect();
        tally.record(name, if problems.is_empty() { Ok(()) } else { Err(list()) });
    }
    Ok(tally)
}

/// Returns all counts.
fn counts(files: &[Source]) -> Vec<Count> {
    let checks = [
        codes::counts,
        imports::counts,
        idioms::counts,
        names::counts,
        surface::counts,
        walls::counts,
        words::counts,
    ];
    checks.iter().flat_map(|check| check(files)).collect()
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
