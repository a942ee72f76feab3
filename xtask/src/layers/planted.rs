//! Planted faults: the tests of throng-tls must detect each of them.
//!
//! The record layer is the only part of TLS that does not come from rustls. Passing tests prove
//! little unless they fail for possible faults there. So this layer writes each fault of [`faults`]
//! into a copy of the sources, which must still compile, and whose tests must fail.

mod faults;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use self::faults::{FAULTS, Fault, Program};
use super::cargo_test;
use crate::command::{Ended, cargo, run_step, run_until};
use crate::outcome::{Stop, Tally};
use crate::site::Site;

/// Time limit of a build. The first build waits until the layer `cargo` has compiled.
const BUILD: Duration = Duration::from_secs(1200);
/// Time limit of a test run, which takes half a minute in parallel with others. A hang counts as
/// detected.
const RUN: Duration = Duration::from_secs(180);
const PACKAGE: &str = "throng-tls";
/// The folder of its sources.
const SOURCES: &str = "crates/tls/src";
/// Files and folders that make up the copy.
const COPIED: [&str; 5] = ["Cargo.toml", "Cargo.lock", "crates", "dev", "xtask"];

/// Builds the tests without a fault.
pub(super) fn prepare(site: &Site) -> Result<(), Stop> {
    let copy = Copy::make(site)?;
    Program::EACH.into_iter().try_for_each(|program| copy.build(program)).map_err(Stop::Failed)
}

/// Runs the tests without a fault, then with each.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let copy = Copy::make(site)?;
    for program in Program::EACH {
        copy.build(program)?;
        if let Some(noticed) = copy.noticed_by(program)? {
            return Err(Stop::Failed(format!("without a fault: {noticed}")));
        }
    }
    let mut tally = Tally::default();
    for fault in FAULTS {
        let start = Instant::now();
        let found = copy.plant(fault).and_then(|()| copy.find(fault.program));
        copy.restore(fault)?;
        let found = found.map(|noticed| {
            println!("{noticed}, after {:.1} s", start.elapsed().as_secs_f64());
        });
        tally.record(fault.name, found);
    }
    Ok(tally)
}

/// A copy of the workspace that gets the faults. Its crates have another path, so cargo compiles
/// them separately; they share the workspace's compiled dependencies.
struct Copy<'a> {
    site: &'a Site,
    root: PathBuf,
}

impl<'a> Copy<'a> {
    /// Creates the copy, or updates an earlier one.
    fn make(site: &'a Site) -> Result<Self, Stop> {
        let root = site.target.join("planted/source");
        fs::create_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        for name in COPIED {
            let (from, to) = (site.root.join(name), root.join(name));
            mirror(&from, &to).map_err(|error| format!("{}: {error}", from.display()))?;
        }
        Ok(Self { site, root })
    }

    /// Writes a fault into the sources.
    fn plant(&self, fault: &Fault) -> Result<(), String> {
        for (file, text, replacement) in fault.changes {
            let path = self.root.join(SOURCES).join(file);
            let source = fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
            let source = replace_once(&source, text, replacement)
                .map_err(|problem| format!("{file}: {problem}"))?;
            fs::write(&path, source).map_err(|error| format!("{file}: {error}"))?;
        }
        Ok(())
    }

    /// Restores the sources that a fault was written into.
    fn restore(&self, fault: &Fault) -> Result<(), String> {
        for (file, ..) in fault.changes {
            let file = Path::new(SOURCES).join(file);
            mirror(&self.site.root.join(&file), &self.root.join(&file))
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(())
    }

    /// Runs a program, and returns the test that detected the fault.
    fn find(&self, program: Program) -> Result<String, String> {
        self.build(program)?;
        self.noticed_by(program)?.ok_or_else(|| "no test fails".into())
    }

    /// Builds a program with tests.
    fn build(&self, program: Program) -> Result<(), String> {
        run_step(self.test(program).arg("--no-run"), BUILD)
    }

    /// Runs a program until a test fails. Returns which one, if one does.
    fn noticed_by(&self, program: Program) -> Result<Option<String>, String> {
        let start = Instant::now();
        let is_failure = |line: &str| failed_test(line).is_some();
        let finished = match run_until(&mut self.test(program), RUN, is_failure) {
            Err(_) if start.elapsed() >= RUN => return Ok(Some("the tests hang".into())),
            Err(problem) => return Err(problem),
            Ok(Ended::Line(line)) => {
                return Ok(failed_test(&line).map(|name| format!("noticed by {name}")));
            }
            Ok(Ended::Finished(finished)) => finished,
        };
        match cargo_test::tally(finished) {
            Ok(tally) => {
                Ok(tally.failures.first().and_then(|why| Some(why.lines().next()?.to_owned())))
            }
            Err(Stop::Failed(why) | Stop::Missing(why)) => Err(why),
        }
    }

    /// Returns the command that tests with a program.
    fn test(&self, program: Program) -> Command {
        let mut test = cargo(self.site);
        test.current_dir(&self.root).args(["test", "--locked", "--package", PACKAGE]);
        test.args(program.arguments());
        test.env("CARGO_TARGET_DIR", &self.site.target);
        // A few lines of one crate change from build to build.
        test.env("CARGO_INCREMENTAL", "1").env("CARGO_PROFILE_DEV_DEBUG", "0");
        test
    }
}

/// Returns the name of the failed test, if a line of a test run contains one.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Makes the file or folder `to` equal to `from`. An unchanged file keeps its time, so that it is
/// not compiled again.
fn mirror(from: &Path, to: &Path) -> std::io::Result<()> {
    if from.is_file() {
        let content = fs::read(from)?;
        return match fs::read(to) {
            Ok(copied) if copied == content => Ok(()),
            _ => fs::write(to, content),
        };
    }
    fs::create_dir_all(to)?;
    for copied in fs::read_dir(to)? {
        let copied = copied?;
        if !from.join(copied.file_name()).exists() {
            match copied.file_type()?.is_dir() {
                true => fs::remove_dir_all(copied.path())?,
                false => fs::remove_file(copied.path())?,
            }
        }
    }
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        mirror(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

/// Replaces a text that must be there exactly once.
fn replace_once(source: &str, text: &str, replacement: &str) -> Result<String, String> {
    match source.matches(text).count() {
        1 => Ok(source.replacen(text, replacement, 1)),
        count => Err(format!("found {count} times instead of once: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_replaced_only_if_it_is_there_once() {
        assert_eq!(replace_once("a b c", "b", "x").unwrap(), "a x c");
        for source in ["a c", "b b"] {
            assert!(replace_once(source, "b", "x").is_err(), "{source}");
        }
    }

    #[test]
    fn a_mirrored_folder_has_what_the_original_has_and_no_more() {
        let root = throng_testkit::TempFolder::new("mirror");
        let (from, to) = (root.join("from"), root.join("to"));
        fs::create_dir_all(from.join("folder")).unwrap();
        fs::create_dir_all(to.join("old/folder")).unwrap();
        for (file, content) in [("folder/new", "1"), ("same", "2"), ("changed", "3")] {
            fs::write(from.join(file), content).unwrap();
        }
        for (file, content) in [("old/folder/file", "0"), ("gone", "0"), ("changed", "0")] {
            fs::write(to.join(file), content).unwrap();
        }
        mirror(&from, &to).unwrap();
        for (file, content) in [("folder/new", "1"), ("same", "2"), ("changed", "3")] {
            assert_eq!(fs::read_to_string(to.join(file)).unwrap(), content);
        }
        assert!(!to.join("old").exists() && !to.join("gone").exists());
    }
}
