//! The published packages: each has the metadata that the registry requires, can be packed, and
//! compiles from its package's contents.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::command::{cargo, run_step};
use crate::outcome::{Stop, Tally};
use crate::site::{Site, clean_cargo_environment};

const LIMIT: Duration = Duration::from_secs(300);
const CHECK: Duration = Duration::from_secs(900);

/// The features of the lints in `.ci/run`, which share compiled dependencies.
const FEATURES: &str = "throng/gzip,throng/http,throng/serde,throng/settings,throng/test,\
                        throng/tokio,throng/tls,throng/tower,throng/tracing";

/// Packs every published crate, and compiles the packages.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let mut publish = Command::new("cargo");
    // Cargo's own verification builds the dependencies again for each package.
    publish
        .args(["publish", "--workspace", "--dry-run", "--no-verify", "--allow-dirty", "--quiet"])
        .current_dir(&site.root);
    clean_cargo_environment(&mut publish);
    // Cargo prints this warning for each crate, unless it is quiet.
    if site.packages.iter().any(|package| package["repository"].is_null()) {
        println!("note: no `repository` in Cargo.toml: enter its address before the first release");
    }
    let mut tally = Tally::default();
    let packed =
        remove_folder(&site.target.join("package")).and_then(|()| run_step(&mut publish, LIMIT));
    let is_packed = packed.is_ok();
    tally.record("pack", packed);
    if is_packed {
        tally.record("compile", compile(site));
    }
    Ok(tally)
}

/// Compiles the packages as a separate workspace, in which each package replaces the published
/// crate of its name.
fn compile(site: &Site) -> Result<(), String> {
    let folder = site.target.join("tmp/packages");
    let shown = |error: std::io::Error| format!("{}: {error}", folder.display());
    remove_folder(&folder)?;
    fs::create_dir_all(&folder).map_err(shown)?;
    let root = fs::read_to_string(site.root.join("Cargo.toml")).map_err(shown)?;
    let mut manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"throng*\"]\n{}[patch.crates-io]\n",
        profiles(&root)
    );
    for package in site.packages.iter().filter(|package| is_published(package)) {
        let [name, version] = ["name", "version"].map(|key| package[key].as_str());
        let (Some(name), Some(version)) = (name, version) else {
            return Err("cargo metadata has a package without a name or a version".to_owned());
        };
        let unpacked = format!("{name}-{version}");
        let archive = site.target.join(format!("package/tmp-crate/{unpacked}.crate"));
        if !archive.is_file() {
            return Err(format!("cargo has not packed {name}: there is no {}", archive.display()));
        }
        let mut tar = Command::new("tar");
        // With `m`, files get the current time: identical dates in all packages would hide a
        // change.
        tar.arg("-xzmf").arg(archive).arg("-C").arg(&folder);
        run_step(&mut tar, LIMIT)?;
        manifest += &format!("{name} = {{ path = \"{unpacked}\" }}\n");
    }
    fs::write(folder.join("Cargo.toml"), manifest).map_err(shown)?;
    fs::copy(site.root.join("Cargo.lock"), folder.join("Cargo.lock")).map_err(shown)?;
    let mut check = cargo(site);
    check
        .args(["check", "--workspace", "--quiet", "--features", FEATURES])
        .env("CARGO_TARGET_DIR", &site.target)
        .current_dir(&folder);
    run_step(&mut check, CHECK)
}

/// Removes a folder of an earlier run, whose files could hide that a package lacks a file.
fn remove_folder(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("{}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn is_published(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

/// Returns the tables of profiles in a manifest: with others the dependencies would be compiled
/// again.
fn profiles(manifest: &str) -> String {
    let mut is_profile = false;
    let mut found = String::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_profile = line.starts_with("[profile.");
        }
        if is_profile {
            found += line;
            found.push('\n');
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn profiles_are_the_only_tables_that_are_taken() {
        let manifest = "[workspace]\nmembers = []\n[profile.dev]\nlto = \"off\"\n\
                        [profile.dev.package]\na.opt-level = 3\n[workspace.lints]\nb = \"c\"\n";
        assert_eq!(
            profiles(manifest),
            "[profile.dev]\nlto = \"off\"\n[profile.dev.package]\na.opt-level = 3\n"
        );
    }

    #[test]
    fn a_package_for_no_registry_is_not_published() {
        assert!(is_published(&json!({ "publish": null })));
        assert!(is_published(&json!({ "publish": ["internal"] })));
        assert!(!is_published(&json!({ "publish": [] })));
    }
}
