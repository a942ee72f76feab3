//! `cargo xtask dist`: the files of a release, from one static binary.
//!
//! Two runs of one commit with one toolchain produce the same bytes: the binary contains no paths,
//! and archives have the commit's time.

mod check;
mod deb;
mod documents;
mod windows;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{on_path, run_step};
use crate::outcome::Stop;
use crate::provision;
use crate::site::{Site, clean_cargo_environment};

/// Time limit of a build with link-time optimisation on two slow cores.
const BUILD: Duration = Duration::from_secs(3600);
/// Time limit of every other step.
const STEP: Duration = Duration::from_secs(300);

const TARGET: &str = "x86_64-unknown-linux-musl";
const PACKAGE: &str = "throng-cli";

/// The version that is built when none is installed.
const CARGO_CYCLONEDX: &str = "0.5.9";

/// Maximum size of the binary in bytes.
const LARGEST_BINARY: u64 = 13_800_000;

/// A release: its commit and its files.
struct Release<'a> {
    site: &'a Site,
    version: String,
    /// The time of the commit, in seconds since 1970.
    time: String,
    /// Abbreviated, with its date, as `throng -V` shows it.
    commit: String,
    /// The folder of the files.
    folder: PathBuf,
    binary: PathBuf,
}

/// Creates all files and checks them. Packs `binary` and the program for Windows instead of new
/// builds, if they are given.
pub(crate) fn run(
    site: &Site,
    binary: Option<PathBuf>,
    windows: Option<PathBuf>,
) -> Result<(), Stop> {
    let git = |arguments: &[&str]| -> Result<String, String> {
        let output = Command::new("git").args(arguments).current_dir(&site.root).output();
        let output = output.map_err(|error| format!("cannot run git: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let package = site.package(PACKAGE).ok_or_else(|| format!("unknown package {PACKAGE}"))?;
    let mut release = Release {
        version: package["version"].as_str().unwrap_or_default().to_owned(),
        time: git(&["log", "-1", "--format=%ct"])?,
        commit: git(&["log", "-1", "--format=%h %cs"])?,
        folder: site.target.join("release-files"),
        binary: site.target.join(TARGET).join("dist/throng"),
        site,
    };
    match binary {
        Some(binary) => release.binary = binary,
        None => release.build()?,
    }
    fresh(&release.folder)?;
    release.strip()?;
    let size = std::fs::metadata(&release.binary).map_err(|error| error.to_string())?.len();
    println!("binary: {size} bytes");
    let tree = release.tree()?;
    let deb = deb::make(&release, &tree)?;
    let alone = format!("throng-{}-{TARGET}", release.version);
    copy(&release.binary, &release.folder.join(alone), 0o755)?;
    release.archive(&tree)?;
    windows::make(&release, &tree, windows)?;
    release.bill_of_materials()?;
    release.checksums()?;
    check::installed(&release, &deb)?;
    println!("the files are in {}", release.folder.display());
    // All files are made first, so that every part of a release is checked.
    match size > LARGEST_BINARY {
        true => Err(Stop::Failed(format!(
            "the binary has {size} bytes, and {LARGEST_BINARY} are the most: make it smaller"
        ))),
        false => Ok(()),
    }
}

impl Release<'_> {
    fn build(&self) -> Result<(), Stop> {
        provision::target(self.site, TARGET)?;
        if on_path("musl-gcc").is_none() {
            provision::program(&["musl-gcc"], &["musl-tools"])?;
        }
        let home = cargo_home();
        let root = self.site.root.display();
        // The C code of aws-lc contains its paths in assertions. No panic unwinds through it.
        let c = format!(
            "-ffile-prefix-map={home}=/cargo -ffile-prefix-map={root}=/throng \
             -fno-asynchronous-unwind-tables"
        );
        // An unpacked relative relocation takes 24 bytes; musl has read the packed form since
        // 1.2.4. The toolchain's linker merges functions with identical code.
        let linker = toolchain_linker()?;
        let rust = format!(
            "--remap-path-prefix={home}=/cargo --remap-path-prefix={root}=/throng \
             -Clink-arg=-Wl,-z,pack-relative-relocs \
             -Clink-arg=-B{linker} -Clink-arg=-fuse-ld=lld -Clink-arg=-Wl,--icf=all"
        );
        let mut cargo = self.cargo_build(TARGET, &self.site.target, &rust);
        cargo
            .env("CFLAGS_x86_64_unknown_linux_musl", c)
            .env("CC_x86_64_unknown_linux_musl", "musl-gcc");
        println!("building for {TARGET}");
        Ok(run_step(&mut cargo, BUILD)?)
    }

    /// Returns the command that builds the program of this commit for a target.
    fn cargo_build(&self, target: &str, folder: &Path, rust: &str) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--locked", "--profile", "dist", "--package", PACKAGE]);
        cargo.args(["--target", target, "--target-dir"]).arg(folder);
        cargo.current_dir(&self.site.root);
        clean_cargo_environment(&mut cargo);
        cargo
            .env("RUSTFLAGS", rust)
            .env("SOURCE_DATE_EPOCH", &self.time)
            .env("SOURCE_COMMIT", &self.commit);
        cargo
    }

    /// Removes the symbols. The linker leaves some of them for this target.
    fn strip(&mut self) -> Result<(), String> {
        let stripped = self.site.target.join("throng-stripped");
        let mut strip = Command::new("strip");
        strip.args(["--strip-all", "-o"]).arg(&stripped).arg(&self.binary);
        run_step(&mut strip, STEP)?;
        self.binary = stripped;
        Ok(())
    }

    /// Creates the tree of files as it is installed, without the files that only Debian needs.
    fn tree(&self) -> Result<PathBuf, Stop> {
        let tree = self.folder.join("tree");
        let root = &self.site.root;
        copy(&self.binary, &tree.join("usr/bin/throng"), 0o755)?;
        for (from, to) in [
            ("packaging/systemd/throng.service", "usr/lib/systemd/system/throng.service"),
            (
                "packaging/systemd/throng-balance.service",
                "usr/lib/systemd/system/throng-balance.service",
            ),
            ("packaging/systemd/throng.socket", "usr/lib/systemd/system/throng.socket"),
            (
                "packaging/systemd/throng-balance.socket",
                "usr/lib/systemd/system/throng-balance.socket",
            ),
            ("packaging/systemd/throng.sysusers", "usr/lib/sysusers.d/throng.conf"),
            ("LICENSE-MIT", "usr/share/doc/throng/LICENSE-MIT"),
            ("LICENSE-APACHE", "usr/share/doc/throng/LICENSE-APACHE"),
        ] {
            copy(&root.join(from), &tree.join(to), 0o644)?;
        }
        documents::copy_all(root, &tree.join("usr/share/doc/throng"))?;
        for (words, to) in [
            (&["completions", "bash"][..], "usr/share/bash-completion/completions/throng"),
            (&["completions", "zsh"], "usr/share/zsh/vendor-completions/_throng"),
            (&["completions", "fish"], "usr/share/fish/vendor_completions.d/throng.fish"),
            (&["dashboard"], "usr/share/doc/throng/grafana.json"),
            (&["alerts"], "usr/share/doc/throng/alerts.yaml"),
        ] {
            write(&tree.join(to), &self.print(&[&["generate"], words].concat())?)?;
        }
        let manual = tree.join("usr/share/man/man1");
        std::fs::create_dir_all(&manual).map_err(|error| error.to_string())?;
        run_step(Command::new(&self.binary).args(["generate", "man"]).arg(&manual), STEP)?;
        run_step(Command::new("gzip").args(["-9", "-n", "-r"]).arg(&manual), STEP)?;
        for (program, to) in
            [("serve", "etc/throng/serve.toml"), ("balance", "etc/throng/balance.toml")]
        {
            // Every setting with its default, as a comment.
            let settings = self.print(&["config", "show", program])?;
            let lines =
                settings.lines().map(|line| format!("# {}\n", line.trim_start_matches("# ")));
            let head = format!("# Settings of `throng {program}`; these are the defaults.\n");
            write(&tree.join(to), &(head + &lines.collect::<String>()))?;
        }
        self.stamp(&tree)?;
        Ok(tree)
    }

    /// Sets the time of every file to the commit's time.
    fn stamp(&self, tree: &Path) -> Result<(), String> {
        let time = format!("@{}", self.time);
        let mut find = Command::new("find");
        find.arg(tree).args(["-exec", "touch", "--no-dereference", "--date", &time, "{}", "+"]);
        run_step(&mut find, STEP)
    }

    /// Returns the output of the binary.
    fn print(&self, words: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.binary).args(words).output();
        let output = output.map_err(|error| format!("cannot run the binary: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("`throng {}` ended with {}", words.join(" "), output.status)),
        }
    }

    fn archive(&self, tree: &Path) -> Result<(), String> {
        let name = format!("throng-{}-{TARGET}.tar.gz", self.version);
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
            .arg(format!("--mtime=@{}", self.time))
            .args(["--use-compress-program", "gzip -9 -n", "--create", "--file"])
            .arg(self.folder.join(name))
            .arg("--directory")
            .arg(tree)
            .arg(".");
        run_step(&mut tar, STEP)
    }

    /// Writes the list of all crates in the binary, as CycloneDX.
    fn bill_of_materials(&self) -> Result<(), Stop> {
        let tool = provision::cargo_tool(self.site, "cargo-cyclonedx", CARGO_CYCLONEDX)?;
        let name = format!("throng-{}.cdx", self.version);
        let manifest = self.site.root.join("crates/cli/Cargo.toml");
        let mut list = Command::new(tool);
        list.args(["cyclonedx", "--format", "json", "--target", TARGET, "--override-filename"]);
        list.arg(&name).arg("--manifest-path").arg(&manifest).current_dir(&self.site.root);
        clean_cargo_environment(&mut list);
        list.env("SOURCE_DATE_EPOCH", &self.time);
        run_step(&mut list, STEP)?;
        // The tool writes a list beside the manifest of each package of the workspace.
        let name = format!("{name}.json");
        for package in &self.site.packages {
            let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
            let made = manifest.with_file_name(&name);
            if package["name"] == PACKAGE {
                // Paths of this machine are in the identifiers of the workspace's own packages.
                let text = std::fs::read_to_string(&made).map_err(|error| error.to_string())?;
                let text = text.replace(&self.site.root.display().to_string(), "/throng");
                write(&self.folder.join(&name), &text)?;
            }
            let _ = std::fs::remove_file(made);
        }
        Ok(())
    }

    fn checksums(&self) -> Result<(), String> {
        let mut names: Vec<String> = std::fs::read_dir(&self.folder)
            .map_err(|error| error.to_string())?
            .filter_map(Result::ok)
            .filter(|entry| entry.path().is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        let sums = Command::new("sha256sum").args(&names).current_dir(&self.folder).output();
        let sums = sums.map_err(|error| format!("cannot run sha256sum: {error}"))?;
        let text = String::from_utf8_lossy(&sums.stdout);
        print!("{text}");
        write(&self.folder.join("SHA256SUMS"), &text)
    }
}

/// Returns the folder of the toolchain's linker, in the form that a C compiler expects.
fn toolchain_linker() -> Result<String, String> {
    let print = |what: &[&str]| {
        let output = Command::new("rustc").args(what).output();
        let output = output.map_err(|error| format!("cannot run rustc: {error}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (root, host) = (print(&["--print", "sysroot"])?, print(&["--print", "host-tuple"])?);
    Ok(format!("{root}/lib/rustlib/{host}/bin/gcc-ld"))
}

/// Returns the folder of the sources of dependencies.
fn cargo_home() -> String {
    std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .unwrap_or_default()
}

/// Empties a folder, creating it if necessary.
fn fresh(folder: &Path) -> Result<(), String> {
    let emptied = match folder.exists() {
        true => std::fs::remove_dir_all(folder),
        false => Ok(()),
    };
    let made = emptied.and_then(|()| std::fs::create_dir_all(folder));
    made.map_err(|error| format!("{}: {error}", folder.display()))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let copied = std::fs::create_dir_all(to.parent().unwrap_or(to))
        .and_then(|()| std::fs::copy(from, to))
        .and_then(|_| std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode)));
    copied.map_err(|error| format!("{}: {error}", from.display()))
}

fn write(to: &Path, text: &str) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let written = std::fs::create_dir_all(to.parent().unwrap_or(to))
        .and_then(|()| std::fs::write(to, text))
        .and_then(|()| std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o644)));
    written.map_err(|error| format!("{}: {error}", to.display()))
}
