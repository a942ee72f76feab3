//! `cargo xtask check`: the checks before a commit, which take two minutes after a recent build.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::command::{cargo, run_quietly, run_shown};
use crate::outcome::Stop;
use crate::site::Site;
use crate::tidy;

/// The features of lints and documents: everything that users can enable.
const FEATURES: &str = "throng/gzip,throng/http,throng/serde,throng/settings,throng/test,\
                        throng/tokio,throng/tls,throng/tower,throng/tracing";
/// Time limit of a step from a clean checkout on two slow cores.
const LIMIT: Duration = Duration::from_secs(1800);

/// Checks format, wording and lints of the workspace, and runs the unit tests of the packages that
/// differ from the last commit, or of `packages`.
///
/// # Errors
/// The first failed step.
pub(crate) fn run(site: &Site, packages: &[String]) -> Result<(), Stop> {
    let start = Instant::now();
    let changed = if packages.is_empty() {
        changed_packages(site)?
    } else {
        packages.iter().cloned().collect()
    };
    step(cargo(site).args(["fmt", "--all", "--", "--check"]))?;
    let failures = tidy::run(site)?.failures;
    if !failures.is_empty() {
        return Err(Stop::Failed(format!("tidy: {} problems", failures.len())));
    }
    let lint = ["clippy", "--workspace", "--all-targets", "--features", FEATURES];
    step(cargo(site).args(lint).args(["--", "-D", "warnings"]))?;
    if !changed.is_empty() {
        let mut test = cargo(site);
        test.args(["test", "--bins"]);
        // Cargo refuses the flag if no package has a library.
        if changed.iter().any(|name| has_library(site, name)) {
            test.arg("--lib");
        }
        for package in &changed {
            test.args(["--package", package]);
        }
        step(&mut test)?;
    }
    println!("\nchecked in {} s; `cargo xtask test` runs everything", start.elapsed().as_secs());
    Ok(())
}

fn step(command: &mut Command) -> Result<(), Stop> {
    let status = run_shown(command, LIMIT)?.status;
    if status.success() { Ok(()) } else { Err(Stop::Failed(format!("ended with {status}"))) }
}

/// Returns the workspace's packages with a file that is new or differs from the last commit.
fn changed_packages(site: &Site) -> Result<BTreeSet<String>, Stop> {
    let mut git = Command::new("git");
    git.current_dir(&site.root).args(["status", "--porcelain", "--untracked-files=all"]);
    let status = run_quietly(&mut git, Duration::from_secs(60))?;
    let files = status.stdout.lines().filter_map(|line| line.get(3..)).flat_map(paths);
    Ok(files.filter_map(|file| package_of(site, file)).collect())
}

fn has_library(site: &Site, package: &str) -> bool {
    site.package(package).is_some_and(|it| !Site::targets(it, "lib").is_empty())
}

/// Returns the paths of an entry of `git status`, which has two paths for a rename.
fn paths(entry: &str) -> impl Iterator<Item = &str> {
    entry.split(" -> ").map(|path| path.trim_matches('"'))
}

/// Returns the package whose folder contains this file.
fn package_of(site: &Site, file: &str) -> Option<String> {
    let file = site.root.join(file);
    let owner = site.packages.iter().find(|package| {
        let manifest = package["manifest_path"].as_str().map(std::path::Path::new);
        manifest.and_then(|it| it.parent()).is_some_and(|folder| file.starts_with(folder))
    })?;
    Some(owner["name"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_file_counts_for_both_places() {
        let found: Vec<_> = paths("\"crates/a b.rs\" -> crates/c.rs").collect();
        assert_eq!(found, ["crates/a b.rs", "crates/c.rs"]);
    }

    #[test]
    fn a_file_belongs_to_the_package_of_its_folder() {
        let site = Site::find(None).unwrap();
        let owner = |file| package_of(&site, file);
        assert_eq!(owner("crates/server/src/lib.rs").as_deref(), Some("throng"));
        assert_eq!(owner("README.md"), None);
    }

    #[test]
    fn ci_lints_with_the_same_features() {
        let root = Site::find(None).unwrap().root;
        let ci = std::fs::read_to_string(root.join(".ci/run")).unwrap();
        assert!(ci.contains(FEATURES), "enter the features of .ci/run in check.rs");
    }
}
