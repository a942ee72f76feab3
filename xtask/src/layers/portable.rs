//! The workspace type-checks for other systems.
//!
//! Nothing is linked, so no C code has to be compiled: a stand-in for the compiler makes empty
//! objects.

use std::path::Path;
use std::time::Duration;

use crate::command::{EVERYTHING, cargo, run_step};
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::Site;

/// Time limit of a check, which waits for the build of another layer.
const LIMIT: Duration = Duration::from_secs(1800);

/// A target of the compiler.
struct Target {
    name: &'static str,
    /// The reason why nothing runs.
    about: &'static str,
}

const WINDOWS: &[Target] =
    &[Target { name: "x86_64-pc-windows-gnu", about: "neither linked nor run: no Windows here" }];

const UNIX: &[Target] = &[
    Target { name: "aarch64-apple-darwin", about: "neither linked nor run: no macOS here" },
    Target { name: "x86_64-apple-darwin", about: "neither linked nor run: no macOS here" },
    Target { name: "x86_64-unknown-freebsd", about: "neither linked nor run: no FreeBSD here" },
];

/// The package that is left out: it starts Linux's programs and packs for Linux.
const LEFT_OUT: &str = "xtask";

/// Takes the place of a C compiler: makes the output, empty.
const COMPILER: &str = "#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in -o) : > \"$2\"; shift ;; esac
  shift
done
";

/// Takes the place of `ar`, whose second word is the archive.
const ARCHIVER: &str = "#!/bin/sh\n: > \"$2\"\n";

/// Checks for Windows.
pub(super) fn run_windows(site: &Site) -> Result<Tally, Stop> {
    check_all(site, WINDOWS)
}

/// Checks for macOS and FreeBSD.
pub(super) fn run_unix(site: &Site) -> Result<Tally, Stop> {
    check_all(site, UNIX)
}

fn check_all(site: &Site, targets: &[Target]) -> Result<Tally, Stop> {
    let tools = provision::cached_folder(site, "stand-in", COMPILER, |folder| {
        for (name, text) in [("cc", COMPILER), ("ar", ARCHIVER)] {
            provision::write_script(&folder.join(name), text)?;
        }
        Ok(())
    })?;
    let mut tally = Tally::default();
    for target in targets {
        provision::target(site, target.name)?;
        println!(
            "{}: {}; without {LEFT_OUT}, which runs on Linux alone",
            target.name, target.about
        );
        tally.record(target.name, check(site, target.name, &tools));
    }
    Ok(tally)
}

/// Type-checks libraries, programs, tests and examples for a target.
fn check(site: &Site, target: &str, tools: &Path) -> Result<(), String> {
    let mut check = cargo(site);
    check.arg("check").args(EVERYTHING).args(["--all-targets", "--exclude", LEFT_OUT]);
    check.args(["--target", target]);
    let name = target.replace('-', "_");
    for (variable, tool) in [("CC", "cc"), ("CXX", "cc"), ("AR", "ar")] {
        check.env(format!("{variable}_{name}"), tools.join(tool));
    }
    // Else aws-lc needs an assembler for Windows.
    check.env("AWS_LC_SYS_PREBUILT_NASM", "1");
    run_step(&mut check, LIMIT)
}
