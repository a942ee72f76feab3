//! The package for Debian and its relatives.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Release, STEP, copy, fresh, write};
use crate::command::run_step;

/// Creates a package of the files in `tree`, and returns its path.
pub(super) fn make(release: &Release<'_>, tree: &Path) -> Result<PathBuf, String> {
    let folder = release.folder.join("deb");
    fresh(&folder)?;
    let all = format!("{}/.", tree.display());
    run_step(Command::new("cp").args(["--archive", &all]).arg(&folder), STEP)?;
    let documents = folder.join("usr/share/doc/throng");
    let read = |name: &str| {
        let path = documents.join(name);
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    write(&documents.join("copyright"), &copyright(&read("LICENSE-MIT")?))?;
    write(&folder.join("DEBIAN/control"), &control(&release.version, size(&folder)))?;
    write(&folder.join("DEBIAN/conffiles"), "/etc/throng/serve.toml\n/etc/throng/balance.toml\n")?;
    for script in ["postinst", "prerm"] {
        let from = release.site.root.join("packaging/debian").join(script);
        copy(&from, &folder.join("DEBIAN").join(script), 0o755)?;
    }
    release.stamp(&folder)?;
    let deb = release.folder.join(format!("throng_{}_amd64.deb", release.version));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(&folder).arg(&deb);
    run_step(build.env("SOURCE_DATE_EPOCH", &release.time), STEP)?;
    Ok(deb)
}

fn control(version: &str, kibibytes: u64) -> String {
    format!(
        "Package: throng\nVersion: {version}\nArchitecture: amd64\nSection: net\n\
         Priority: optional\nInstalled-Size: {kibibytes}\n\
         Maintainer: The Throng developers\n\
         Description: WebSocket and HTTP server, load balancer and load generator\n \
         `throng serve` has channels, server-sent events and files, `throng balance` stands in\n \
         front of several servers, and `throng bench` measures any of them.\n"
    )
}

fn copyright(mit: &str) -> String {
    let lines = mit.lines().map(|line| match line.is_empty() {
        true => " .\n".to_owned(),
        false => format!(" {line}\n"),
    });
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: throng\n\nFiles: *\nCopyright: the Throng developers\n\
         License: MIT or Apache-2.0\n\nLicense: MIT\n{}\nLicense: Apache-2.0\n \
         See /usr/share/common-licenses/Apache-2.0.\n",
        lines.collect::<String>()
    )
}

/// Returns the size of a folder's files in KiB.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let of = |entry: std::fs::DirEntry| match entry.path() {
        path if path.is_dir() => size(&path),
        path => std::fs::metadata(path).map_or(0, |it| it.len().div_ceil(1024)),
    };
    entries.map(of).sum()
}
