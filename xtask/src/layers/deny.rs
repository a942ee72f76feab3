//! `cargo deny`: only permissive licences, no banned crate or foreign source in the tree. And the
//! library has no runtime unless a feature asks for one.

use std::process::Command;
use std::time::Duration;

use crate::command::{cargo, run_quietly, run_step};
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
        tally.record(check, run_step(&mut deny, LIMIT));
    }
    tally.record("no tokio without its features", check_runtime(site));
    Ok(tally)
}

/// The library's features that depend on tokio. They prove that the check would find tokio.
const WITH_TOKIO: [&str; 3] = ["acme", "redis", "tokio"];

/// The others, all together.
const WITHOUT_TOKIO: &str = "deflate,gzip,signals,files,metrics,client,test,http,serde,tracing,tls";

/// Checks which features of the library bring tokio.
fn check_runtime(site: &Site) -> Result<(), String> {
    if has_tokio(site, WITHOUT_TOKIO)? {
        return Err(format!(
            "the library has tokio with the features {WITHOUT_TOKIO}; see `cargo tree -p throng -e \
             normal -i tokio --features {WITHOUT_TOKIO}`"
        ));
    }
    for feature in WITH_TOKIO {
        if !has_tokio(site, feature)? {
            return Err(format!("the library has no tokio with the feature {feature}"));
        }
    }
    Ok(())
}

/// Returns whether the library depends on tokio with these features.
fn has_tokio(site: &Site, features: &str) -> Result<bool, String> {
    let mut tree = cargo(site);
    tree.args(["tree", "-p", "throng", "--edges", "normal,build", "--prefix", "none"]);
    tree.args(["--features", features]);
    let tree = run_quietly(&mut tree, LIMIT)?;
    if !tree.status.success() {
        return Err(format!(
            "`cargo tree` with the features {features} ended with {}",
            tree.status
        ));
    }
    Ok(tree.stdout.lines().any(|line| line.starts_with("tokio v")))
}
