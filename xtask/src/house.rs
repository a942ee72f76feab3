//! Checks of the house: what the documents say is there, and nothing of one machine is in the
//! files.

mod architecture;
mod citations;
mod strays;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::run_quietly;
use crate::layers::{Stop, Tally};
use crate::site::Site;

/// A file that git tracks, as text.
struct Source {
    /// Relative to the root, with forward slashes.
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Runs all checks and prints every problem with its place.
pub(crate) fn run(site: &Site) -> Result<Tally, Stop> {
    let files = tracked_files(&site.root)?;
    let checks = [
        ("ARCHITECTURE.md names only what exists", architecture::problems(&site.root, &files)),
        ("RFC citations are well formed", citations::problems(&files)),
        (
            "no absolute path and no registry host",
            strays::problems(&files, &strays::this_machine(&site.root)),
        ),
    ];
    let mut tally = Tally::default();
    for (name, problems) in checks {
        if problems.is_empty() {
            println!("ok {name}");
            tally.passed += 1;
        } else {
            println!("FAILED {name}:");
            problems.iter().for_each(|problem| println!("  {problem}"));
            tally.failed += 1;
        }
    }
    Ok(tally)
}

/// Every text file that git tracks. What is not UTF-8 is no text.
fn tracked_files(root: &Path) -> Result<Vec<Source>, Stop> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z"]).current_dir(root);
    let finished = run_quietly(&mut git, Duration::from_secs(30))
        .map_err(|why| Stop::Missing(format!("{why}; install git")))?;
    if !finished.status.success() {
        return Err(Stop::Failed("git does not list the files: is this a clone?".into()));
    }
    let paths = finished.stdout.split('\0').filter(|path| !path.is_empty());
    Ok(paths
        .filter_map(|path| {
            let text = std::fs::read_to_string(root.join(PathBuf::from(path))).ok()?;
            Some(Source { path: path.to_owned(), text })
        })
        .collect())
}

/// Whether `text` has `word` at `at` with nothing of an identifier on either side.
fn is_whole_word(text: &str, at: usize, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part)
}
