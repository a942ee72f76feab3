//! External programs that layers need: found, or installed by package name through the ordinary
//! client.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{cargo, on_path, run_quietly, run_step};
use crate::outcome::Stop;
use crate::site::{Site, clean_cargo_environment};

/// Time limit of a download.
const DOWNLOAD: Duration = Duration::from_secs(600);

/// Finds one of `programs` on PATH, or installs Debian's `packages` if this process may.
///
/// # Errors
/// [`Stop::Missing`] with the command that would install it.
pub(crate) fn program(programs: &[&str], packages: &[&str]) -> Result<PathBuf, Stop> {
    let found = || programs.iter().find_map(|program| on_path(program));
    if let Some(path) = found() {
        return Ok(path);
    }
    debian(packages).map_err(|why| {
        Stop::Missing(format!("{} is not installed: {why}", programs.join(" or ")))
    })?;
    found().ok_or_else(|| {
        Stop::Failed(format!(
            "apt-get installed {}, but there is no {}",
            packages.join(" "),
            programs[0]
        ))
    })
}

/// Installs Debian packages if this process may, and otherwise returns the command as an error.
pub(crate) fn debian(packages: &[&str]) -> Result<(), String> {
    let command = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if on_path("apt-get").is_none() {
        return Err(format!("install what Debian calls {}", packages.join(" ")));
    }
    if !is_root() {
        return Err(format!("run `sudo {command}`"));
    }
    println!("installing {}", packages.join(" "));
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "-y", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive");
        run_step(&mut apt, DOWNLOAD)
    };
    // The package lists of a fresh machine are empty or old; refreshing them first costs seconds on
    // every other machine.
    install()
        .or_else(|_| {
            run_step(Command::new("apt-get").arg("update"), DOWNLOAD).and_then(|()| install())
        })
        .map_err(|why| format!("`{command}` failed: {why}"))
}

/// Finds `program` on PATH, or unpacks it from a Debian package into the cache: installed, the
/// package would start a service.
///
/// # Errors
/// [`Stop::Missing`] with the package that has it.
pub(crate) fn unpacked(site: &Site, program: &str, package: &str) -> Result<PathBuf, Stop> {
    if let Some(path) = on_path(program) {
        return Ok(path);
    }
    let missing =
        |why: String| Stop::Missing(format!("{program} of Debian's package {package}: {why}"));
    let folder = cached_folder(site, package, package, |folder| {
        println!("downloading {package} (once)");
        let download = || {
            let mut apt = Command::new("apt-get");
            run_step(apt.args(["download", package]).current_dir(folder), DOWNLOAD)
        };
        download()
            .or_else(|_| {
                run_step(Command::new("apt-get").arg("update"), DOWNLOAD).and_then(|()| download())
            })
            .map_err(missing)?;
        let entries = std::fs::read_dir(folder).map_err(|error| missing(error.to_string()))?;
        let archive = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or_else(|| missing("apt-get downloaded no archive".to_owned()))?;
        let mut unpack = Command::new("dpkg-deb");
        run_step(unpack.arg("--extract").arg(&archive).arg(folder), DOWNLOAD).map_err(missing)
    })?;
    let path = folder.join("usr/bin").join(program);
    match path.is_file() {
        true => Ok(path),
        false => Err(Stop::Failed(format!("there is no {}", path.display()))),
    }
}

/// Returns a cache folder that `fill` has filled from exactly this `recipe` (for example a
/// requirements file). It is reused while the recipe is unchanged, and recreated when it changes or
/// when the last attempt did not finish.
pub(crate) fn cached_folder(
    site: &Site,
    name: &str,
    recipe: &str,
    fill: impl FnOnce(&Path) -> Result<(), Stop>,
) -> Result<PathBuf, Stop> {
    let folder = site.cache.join(name);
    let stamp = folder.join(".filled-from");
    if std::fs::read_to_string(&stamp).is_ok_and(|filled_from| filled_from == recipe) {
        return Ok(folder);
    }
    let problem = |error: std::io::Error| Stop::Failed(format!("{}: {error}", folder.display()));
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(problem)?;
    }
    std::fs::create_dir_all(&folder).map_err(problem)?;
    fill(&folder)?;
    std::fs::write(&stamp, recipe).map_err(problem)?;
    Ok(folder)
}

/// Returns a cargo subcommand: the installed one, or one of this version built into the cache.
///
/// # Errors
/// [`Stop::Missing`] when the registry cannot be reached.
pub(crate) fn cargo_tool(site: &Site, name: &str, version: &str) -> Result<PathBuf, Stop> {
    if let Some(path) = on_path(name) {
        return Ok(path);
    }
    let root = cached_folder(site, name, version, |root| {
        println!("building {name} {version} (once)");
        let mut install = cargo(site);
        // Unoptimised: 45 seconds instead of two minutes for cargo-deny, and it runs for one
        // second.
        install
            .args([
                "install",
                "--quiet",
                "--locked",
                "--debug",
                "--version",
                version,
                name,
                "--root",
            ])
            .arg(root);
        // Its objects would otherwise stay in the target folder of the project.
        install.env("CARGO_TARGET_DIR", root.join("build"));
        run_step(&mut install, DOWNLOAD).map_err(|why| {
            Stop::Missing(format!("no {name}: `cargo install {name} --locked` failed: {why}"))
        })?;
        let _ = std::fs::remove_dir_all(root.join("build"));
        Ok(())
    })?;
    Ok(root.join("bin").join(name))
}

/// Returns the folder with these Go programs of a module, which are built into the cache.
///
/// # Errors
/// [`Stop::Missing`] if Go is not installed, or the module cannot be downloaded.
pub(crate) fn go_programs(
    site: &Site,
    module: &str,
    version: &str,
    programs: &[&str],
) -> Result<PathBuf, Stop> {
    let go = program(&["go"], &["golang-go"])?;
    let name = programs.first().copied().unwrap_or_default();
    cached_folder(site, name, &format!("{module}@{version} {programs:?}"), |folder| {
        println!("building {name} {version} (once)");
        let mut install = Command::new(&go);
        install.arg("install").env("GOBIN", folder);
        install.args(programs.iter().map(|it| format!("{module}/cmd/{it}@{version}")));
        run_step(&mut install, DOWNLOAD)
            .map_err(|why| Stop::Missing(format!("no {name}: `go install` failed: {why}")))
    })
}

/// Returns the folder of a Python virtual environment with these requirements, and its interpreter.
pub(crate) fn python_environment(
    site: &Site,
    name: &str,
    requirements: &Path,
) -> Result<PathBuf, Stop> {
    let recipe = read(requirements)?;
    let folder = cached_folder(site, name, &recipe, |folder| {
        let python = program(&["python3"], &["python3", "python3-venv"])?;
        let make = |python: &Path| {
            run_step(Command::new(python).args(["-m", "venv", "--clear"]).arg(folder), DOWNLOAD)
        };
        // Debian has a separate package for venv, which supports only Debian's interpreter.
        make(&python)
            .or_else(|_| {
                debian(&["python3-venv"]).and_then(|()| make(Path::new("/usr/bin/python3")))
            })
            .map_err(|why| Stop::Missing(format!("no Python virtual environment: {why}")))?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .arg(requirements);
        run_step(&mut pip, DOWNLOAD)
            .map_err(|why| Stop::Missing(format!("pip could not install: {why}")))
    })?;
    Ok(folder.join("bin/python"))
}

/// Returns a copy of a Node package in the cache, with its dependencies installed exactly as
/// locked.
pub(crate) fn node_package(site: &Site, name: &str, package: &Path) -> Result<PathBuf, Stop> {
    let recipe = read(&package.join("package.json"))? + &read(&package.join("package-lock.json"))?;
    let folder = cached_folder(site, name, &recipe, |folder| {
        let npm = program(&["npm"], &["nodejs", "npm"])?;
        for file in ["package.json", "package-lock.json"] {
            std::fs::copy(package.join(file), folder.join(file))
                .map_err(|error| Stop::Failed(format!("{file}: {error}")))?;
        }
        let mut install = Command::new(npm);
        install.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(folder);
        run_step(&mut install, DOWNLOAD)
            .map_err(|why| Stop::Missing(format!("npm could not install: {why}")))
    })?;
    // The programs are copied on every run: they change more often than their dependencies, and
    // Node looks for packages beside the program.
    for entry in std::fs::read_dir(package)
        .map_err(|error| format!("{}: {error}", package.display()))?
        .flatten()
    {
        if entry.path().extension().is_some_and(|extension| extension == "mjs") {
            std::fs::copy(entry.path(), folder.join(entry.file_name()))
                .map_err(|error| format!("{}: {error}", entry.path().display()))?;
        }
    }
    Ok(folder)
}

/// Checks that rustup has a nightly toolchain, installing one if possible.
pub(crate) fn nightly() -> Result<(), Stop> {
    let missing = |why: String| Stop::Missing(format!("no nightly Rust for cargo-fuzz: {why}"));
    let Some(rustup) = on_path("rustup") else {
        return Err(missing("install rustup, then `rustup toolchain install nightly`".into()));
    };
    let works = || {
        run_quietly(Command::new(&rustup).args(["run", "nightly", "rustc", "--version"]), DOWNLOAD)
            .is_ok_and(|finished| finished.status.success())
    };
    if works() {
        return Ok(());
    }
    println!("installing the nightly toolchain");
    let mut install = Command::new(&rustup);
    install.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
    run_step(&mut install, DOWNLOAD).map_err(missing)
}

/// Checks that the workspace's toolchain has the standard library of a target, installing it if
/// possible.
///
/// # Errors
/// [`Stop::Missing`] with the command that installs it.
pub(crate) fn target(site: &Site, name: &str) -> Result<(), Stop> {
    let Some(rustup) = on_path("rustup") else {
        return Err(Stop::Missing(format!("install rustup, then `rustup target add {name}`")));
    };
    let command = |words: &[&str]| {
        let mut rustup = Command::new(&rustup);
        rustup.arg("target").args(words).current_dir(&site.root);
        clean_cargo_environment(&mut rustup);
        rustup
    };
    let installed = run_quietly(&mut command(&["list", "--installed"]), DOWNLOAD)?;
    if installed.stdout.lines().any(|line| line == name) {
        return Ok(());
    }
    println!("installing the target {name}");
    run_step(&mut command(&["add", name]), DOWNLOAD).map_err(|why| {
        Stop::Missing(format!("no Rust for {name}: `rustup target add {name}` failed: {why}"))
    })
}

/// Writes a program that a shell runs.
pub(crate) fn write_script(file: &Path, text: &str) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(file, text)
        .and_then(|()| std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn read(file: &Path) -> Result<String, Stop> {
    std::fs::read_to_string(file)
        .map_err(|error| Stop::Failed(format!("{}: {error}", file.display())))
}

fn is_root() -> bool {
    run_quietly(Command::new("id").arg("-u"), Duration::from_secs(10))
        .is_ok_and(|finished| finished.stdout.trim() == "0")
}
