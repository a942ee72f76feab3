//! Installs the package into a folder, and checks that the command lines of its units start
//! services.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Release, STEP, fresh, write};
use crate::command::{on_path, run_step};
use crate::outcome::Stop;
use crate::server::Server;

/// The exposure that `systemd-analyze security` may find, in tenths.
const EXPOSURE: &str = "20";

/// Installs the package into a folder, and starts the programs of its units.
pub(super) fn installed(release: &Release<'_>, deb: &Path) -> Result<(), Stop> {
    let root = release.folder.join("root");
    fresh(&root)?;
    write(&root.join("var/lib/dpkg/status"), "")?;
    let mut install = Command::new("dpkg");
    install.arg(format!("--root={}", root.display())).args([
        "--force-not-root",
        "--force-script-chrootless",
        "--install",
    ]);
    run_step(install.arg(deb), STEP)?;
    write(&root.join("etc/throng/serve.toml"), "listen = \"127.0.0.1:0\"\n")?;
    let settings = "listen = \"127.0.0.1:0\"\nbackends = [\"127.0.0.1:1\"]\n";
    write(&root.join("etc/throng/balance.toml"), settings)?;
    for unit in ["throng.service", "throng-balance.service"] {
        let path = root.join("usr/lib/systemd/system").join(unit);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{unit}: {error}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart="));
        let line = line.ok_or_else(|| format!("{unit} has no ExecStart="))?;
        let mut words = line.split(' ').map(|word| match word.starts_with('/') {
            true => root.join(&word[1..]),
            false => PathBuf::from(word),
        });
        let program = words.next().unwrap_or_default();
        let words: Vec<PathBuf> = words.collect();
        let mut check = Command::new(&program);
        run_step(check.args(["config", "check"]).args(&words), STEP)?;
        let mut start = Command::new(&program);
        start.args(&words);
        let server = Server::spawn(start, unit)?;
        println!("ok {unit} starts, at {}", server.address);
        server.stop()?;
        if on_path("systemd-analyze").is_some() {
            let mut analyze = Command::new("systemd-analyze");
            analyze.args(["security", "--offline=true", "--threshold", EXPOSURE]).arg(&path);
            run_step(&mut analyze, STEP)?;
            println!("ok {unit} is hardened: systemd-analyze finds an exposure of 2.0 or less");
        } else {
            println!("skipped: systemd-analyze is missing, so {unit} was not analyzed");
        }
    }
    Ok(())
}
