//! The repository's folders, and whether this is CI.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The folders that layers read and write.
pub(crate) struct Site {
    /// The root of the repository.
    pub(crate) root: PathBuf,
    /// Cargo's target folder; `CARGO_TARGET_DIR` is honoured.
    pub(crate) target: PathBuf,
    /// Programs and packages that layers fetched. Ignored by git; safe to delete.
    pub(crate) cache: PathBuf,
    /// The workspace's own packages, from `cargo metadata`.
    pub(crate) packages: Vec<Value>,
    /// The address of an external server to test instead of this project's server.
    pub(crate) server: Option<SocketAddr>,
    /// On CI nothing may be skipped.
    pub(crate) ci: bool,
}

impl Site {
    /// Finds the folders by asking cargo.
    pub(crate) fn find(server: Option<SocketAddr>) -> Result<Site, String> {
        // Determined at run time: a target folder shared by several checkouts may hold another
        // one's build.
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("start it as `cargo xtask`")?;
        let root = Path::new(&manifest).parent().ok_or("xtask lies outside of any folder")?;
        let root = root.to_owned();
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(&root);
        clean_cargo_environment(&mut cargo);
        let output = cargo.output().map_err(|error| format!("cannot run cargo: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "cargo metadata failed: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("cargo metadata printed no JSON: {error}"))?;
        let target = metadata["target_directory"].as_str().ok_or("cargo names no target folder")?;
        let ci =
            std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"));
        Ok(Site {
            cache: root.join(".cache"),
            target: PathBuf::from(target),
            packages: metadata["packages"].as_array().cloned().unwrap_or_default(),
            root,
            server,
            ci,
        })
    }

    /// Returns this site with an external server to test.
    pub(crate) fn with_server(&self, address: SocketAddr) -> Site {
        Site {
            root: self.root.clone(),
            target: self.target.clone(),
            cache: self.cache.clone(),
            packages: self.packages.clone(),
            server: Some(address),
            ci: self.ci,
        }
    }

    /// Returns the workspace's package of this name.
    pub(crate) fn package(&self, name: &str) -> Option<&Value> {
        self.packages.iter().find(|package| package["name"] == name)
    }

    /// Returns the names of a package's targets of one kind (`bin`, `example`, `test`).
    pub(crate) fn targets<'a>(package: &'a Value, kind: &str) -> Vec<&'a str> {
        let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        targets
            .iter()
            .filter(|target| {
                target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind))
            })
            .filter_map(|target| target["name"].as_str())
            .collect()
    }
}

/// Removes the variables that `cargo run` set for this process, so that an inner cargo sees the
/// user's environment. Otherwise build scripts that watch those variables run again, and
/// `rustup run nightly` gets the outer toolchain.
pub(crate) fn clean_cargo_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_");
        if ours
            || matches!(
                &*text,
                "CARGO" | "RUSTUP_TOOLCHAIN" | "LD_LIBRARY_PATH" | "RUST_RECURSION_COUNT"
            )
        {
            command.env_remove(&name);
        }
    }
}
