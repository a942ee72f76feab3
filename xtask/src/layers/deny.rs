//! `cargo deny`: only permissive licences, no banned crate or foreign source in the tree.

use std::process::Command;
use std::time::Duration;

use crate::command::run_step;
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::site::{Site, clean_cargo_environment};

/// The version that is built when none is installed.
const CARGO_DENY: &str = "0.20.2";
const LIMIT: Duration = Duration::from_secs(300);

/// Installs the tool.
pub(super) fn prepare(site: &Site) -> Result<(), Stop> {
    provision::cargo_tool(site, "cargo-deny", CARGO_DENY).map(drop)
}

/// Checks the workspace. Advisories are left to `cargo deny check advisories`: their database is a
/// git repository on the Internet, and a test that fails on the day of a publication elsewhere does
/// not test this change.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let tool = provision::cargo_tool(site, "cargo-deny", CARGO_DENY)?;
    let mut tally = Tally::default();
    for check in ["licenses", "bans", "sources"] {
        let mut deny = Command::new(&tool);
        deny.args(["--all-features", "--log-level", "error", "check", check])
            .current_dir(&site.root);
        clean_cargo_environment(&mut deny);
        match run_step(&mut deny, LIMIT) {
            Ok(()) => {
                println!("ok {check}");
                tally.passed += 1;
            }
            Err(why) => {
                println!("FAILED {check}: {why}");
                tally.failed += 1;
            }
        }
    }
    Ok(tally)
}
