//! Passes the commit of the build to the program, for `throng -V`.

use std::path::Path;
use std::process::Command;

fn main() {
    // Builds outside of a clone, such as a package or a reproducible build, can set it.
    println!("cargo:rerun-if-env-changed=SOURCE_COMMIT");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let named = std::env::var("SOURCE_COMMIT").ok();
    let found = || git(&["log", "-1", "--format=%h %cs"]);
    let commit = named.or_else(found).unwrap_or_else(|| "unknown commit".to_owned());
    println!("cargo:rustc-env=BUILD_COMMIT={commit}");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo:rustc-env=BUILD_TARGET={target}");
    println!("cargo:rustc-env=BUILD_PROFILE={}", profile());
    let mut features: Vec<_> = std::env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_ascii_lowercase()))
        .filter(|name| name != "default")
        .collect();
    features.sort_unstable();
    println!("cargo:rustc-env=BUILD_FEATURES={}", features.join(" "));
}

/// Returns the name of the profile. `PROFILE` contains only the inherited profile, `release` or
/// `debug`, so the name comes from the output folder `target/NAME/build/...`.
fn profile() -> String {
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let folders: Vec<_> = Path::new(&out).iter().filter_map(|part| part.to_str()).collect();
    let build = folders.iter().rposition(|folder| *folder == "build");
    match build.and_then(|at| at.checked_sub(1)).map(|at| folders[at]) {
        Some("debug") => "dev".to_owned(),
        Some(name) => name.to_owned(),
        None => std::env::var("PROFILE").unwrap_or_default(),
    }
}

/// Returns the output of git, if it is installed and this is a clone.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
