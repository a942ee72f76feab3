//! `throng` linked for systems that nothing here can run, by zig's compiler and linker, which bring
//! their headers and libraries.
//!
//! Apple's frameworks are not among them. Lists of the names that the program uses take their
//! place, so that a name outside of the lists fails the link.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::run_step;
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::{Site, clean_cargo_environment};

/// Time limit of a build from nothing on two slow cores, beside other builds.
const LIMIT: Duration = Duration::from_secs(3600);

/// The targets whose programs are linked.
const LINKED: &[&str] = &["aarch64-apple-darwin", "x86_64-apple-darwin", "x86_64-unknown-freebsd"];

/// Frameworks of macOS with the names that crates use of them: of the system's certificates.
const FRAMEWORKS: [(&str, &[&str]); 2] = [
    (
        "CoreFoundation",
        &[
            "_CFArrayCreate",
            "_CFArrayGetCount",
            "_CFArrayGetValueAtIndex",
            "_CFDataGetBytePtr",
            "_CFDataGetLength",
            "_CFDictionaryGetValueIfPresent",
            "_CFEqual",
            "_CFNumberGetValue",
            "_CFRelease",
            "_CFRetain",
            "_CFStringCreateWithBytesNoCopy",
            "_CFStringGetBytes",
            "_CFStringGetCStringPtr",
            "_CFStringGetLength",
            "_kCFAllocatorDefault",
            "_kCFAllocatorNull",
            "_kCFTypeArrayCallBacks",
        ],
    ),
    (
        "Security",
        &[
            "_SecCertificateCopyData",
            "_SecCopyErrorMessageString",
            "_SecTrustSettingsCopyCertificates",
            "_SecTrustSettingsCopyTrustSettings",
        ],
    ),
];

/// Links the program for each target. Without zig it prints the reason, and links nothing.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let mut tally = Tally::default();
    let requirements = site.root.join("conformance/zig/requirements.txt");
    let python = match provision::python_environment(site, "zig", &requirements) {
        Ok(python) => python,
        Err(Stop::Missing(why)) => {
            println!("nothing is linked: {why}");
            return Ok(tally);
        }
        Err(stop) => return Err(stop),
    };
    let frameworks = frameworks(site)?;
    for target in LINKED {
        provision::target(site, target)?;
        let linked = link(site, target, &python, &frameworks);
        tally.record(&format!("{target}: throng is linked"), linked);
    }
    Ok(tally)
}

fn link(site: &Site, target: &str, python: &Path, frameworks: &Path) -> Result<(), String> {
    let tools = python.parent().unwrap_or(python);
    // Apart from the checks, whose objects of C code are empty.
    let folder = site.target.join("linked");
    let mut build = Command::new(tools.join("cargo-zigbuild"));
    clean_cargo_environment(build.current_dir(&site.root));
    build.args(["rustc", "--package", "throng-cli", "--bin", "throng"]);
    build.args(["--target", target]).env("CARGO_TARGET_DIR", &folder);
    if target.contains("apple") {
        build.args(["--", "-C"]).arg(format!("link-arg=-F{}", frameworks.display()));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    build.env("PATH", format!("{}:{path}", tools.display()));
    run_step(&mut build, LIMIT)?;
    let program = folder.join(target).join("debug/throng");
    match std::fs::metadata(&program) {
        Ok(file) if file.len() > 0 => Ok(()),
        _ => Err(format!("there is no {}", program.display())),
    }
}

/// Returns a folder with a stub of each framework, in the form of Apple's linker.
fn frameworks(site: &Site) -> Result<PathBuf, Stop> {
    let stub = |(name, symbols): (&str, &[&str])| {
        let symbols = symbols.join(", ");
        format!(
            "--- !tapi-tbd\n\
             tbd-version: 4\n\
             targets: [ x86_64-macos, arm64-macos ]\n\
             install-name: '/System/Library/Frameworks/{name}.framework/Versions/A/{name}'\n\
             exports:\n  \
             - targets: [ x86_64-macos, arm64-macos ]\n    \
             symbols: [ {symbols} ]\n\
             ...\n"
        )
    };
    let stubs = FRAMEWORKS.map(stub);
    provision::cached_folder(site, "frameworks", &stubs.concat(), |folder| {
        for ((name, _), stub) in FRAMEWORKS.iter().zip(&stubs) {
            let of_one = folder.join(format!("{name}.framework"));
            let file = of_one.join(format!("{name}.tbd"));
            std::fs::create_dir_all(&of_one)
                .and_then(|()| std::fs::write(&file, stub))
                .map_err(|error| Stop::Failed(format!("{}: {error}", file.display())))?;
        }
        Ok(())
    })
}
