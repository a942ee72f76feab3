//! The workspace type-checks for other systems, and the program links for some of them.
//!
//! A check links nothing, so no C code has to be compiled: a stand-in for the compiler makes empty
//! objects.

mod links;

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

const WINDOWS: Target =
    Target { name: "x86_64-pc-windows-gnu", about: "the layer wine runs tests under Wine" };

const TARGETS: &[Target] = &[
    WINDOWS,
    Target { name: "aarch64-apple-darwin", about: "never run: no macOS here" },
    Target { name: "x86_64-apple-darwin", about: "never run: no macOS here" },
    Target { name: "x86_64-unknown-freebsd", about: "never run: no FreeBSD here" },
    Target { name: "x86_64-unknown-netbsd", about: "neither linked nor run: no NetBSD here" },
    Target { name: "x86_64-pc-windows-msvc", about: "neither linked nor run: no linker here" },
];

/// The parts of packages that are checked.
#[derive(Clone, Copy)]
enum Parts {
    /// Libraries and programs, in half of the time.
    Shipped,
    /// Also tests and examples.
    All,
}

/// The package that is left out: it starts Linux's programs and packs for Linux.
const LEFT_OUT: &str = "xtask";

/// Takes the place of a C compiler: makes the output, empty. Its options are gcc's, or the ones of
/// Microsoft's compiler.
const COMPILER: &str = "#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    -o) : > \"$2\"; shift ;;
    -Fo*) : > \"${1#-Fo}\" ;;
  esac
  shift
done
";

/// Takes the place of `ar`, whose second word is the archive, and of Microsoft's `lib`.
const ARCHIVER: &str = "#!/bin/sh
for word; do
  case $word in
    -out:*) : > \"${word#-out:}\"; exit ;;
  esac
done
: > \"$2\"
";

/// Checks libraries and programs for Windows, while the layer `cargo` waits.
pub(super) fn prepare_windows(site: &Site) -> Result<(), Stop> {
    run_windows(site).map(drop)
}

/// Checks libraries and programs for Windows.
pub(super) fn run_windows(site: &Site) -> Result<Tally, Stop> {
    check_all(site, &[WINDOWS], Parts::Shipped)
}

/// Checks everything for all of them, and links the program where zig can.
pub(super) fn run_all(site: &Site) -> Result<Tally, Stop> {
    let mut tally = check_all(site, TARGETS, Parts::All)?;
    tally.add(links::run(site)?);
    Ok(tally)
}

fn check_all(site: &Site, targets: &[Target], parts: Parts) -> Result<Tally, Stop> {
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
        tally.record(target.name, check(site, target.name, parts, &tools));
    }
    Ok(tally)
}

/// Type-checks the workspace for a target.
fn check(site: &Site, target: &str, parts: Parts, tools: &Path) -> Result<(), String> {
    let mut check = cargo(site);
    check.arg("check").args(EVERYTHING).args(["--exclude", LEFT_OUT]);
    check.args(match parts {
        Parts::Shipped => &["--lib", "--bins"][..],
        Parts::All => &["--all-targets"],
    });
    check.args(["--target", target]);
    let name = target.replace('-', "_");
    for (variable, tool) in [("CC", "cc"), ("CXX", "cc"), ("AR", "ar")] {
        check.env(format!("{variable}_{name}"), tools.join(tool));
    }
    // Else aws-lc needs an assembler for Windows.
    check.env("AWS_LC_SYS_PREBUILT_NASM", "1");
    run_step(&mut check, LIMIT)
}
