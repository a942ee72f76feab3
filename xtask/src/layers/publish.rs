//! `cargo publish --dry-run`: each crate has what the registry asks for, and packs.

use std::process::Command;
use std::time::Duration;

use crate::command::run_step;
use crate::outcome::{Stop, Tally};
use crate::site::{Site, clean_cargo_environment};

const LIMIT: Duration = Duration::from_secs(300);

/// Packs every crate that is published. Packages are not compiled here: the other layers compile
/// the same files.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let mut publish = Command::new("cargo");
    publish
        .args(["publish", "--workspace", "--dry-run", "--no-verify", "--allow-dirty", "--quiet"])
        .current_dir(&site.root);
    clean_cargo_environment(&mut publish);
    // Cargo says so for each crate, and only when it is not quiet.
    if site.packages.iter().any(|package| package["repository"].is_null()) {
        println!("note: no `repository` in Cargo.toml: enter its address before the first release");
    }
    let mut tally = Tally::default();
    tally.record("publish", run_step(&mut publish, LIMIT));
    Ok(tally)
}
