//! The archive for Windows: the program with its documents.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{BUILD, Release, STEP, cargo_home, documents, fresh, write};
use crate::command::run_step;
use crate::layers::wine::Wine;
use crate::outcome::Stop;
use crate::provision;

const TARGET: &str = "x86_64-pc-windows-gnu";

/// The answer of `throng config check`.
const VALID: &str = "the configuration is valid";

/// Packs a program, or a new build, with the documents and settings of `tree`, and starts it under
/// Wine.
pub(super) fn make(
    release: &Release<'_>,
    tree: &Path,
    program: Option<PathBuf>,
) -> Result<(), Stop> {
    let wine = Wine::find(release.site)?;
    let program = match program {
        Some(program) => program,
        None => build(release)?,
    };
    let zip = provision::program(&["zip"], &["zip"])?;
    let name = format!("throng-{}-{TARGET}", release.version);
    let folder = release.folder.join("windows");
    let files = folder.join(&name);
    fresh(&files)?;
    let mut strip = Command::new("x86_64-w64-mingw32-strip");
    strip.args(["--strip-all", "-o"]).arg(files.join("throng.exe")).arg(&program);
    run_step(&mut strip, STEP)?;
    for from in ["usr/share/doc/throng", "etc/throng"] {
        let from = format!("{}/.", tree.join(from).display());
        run_step(Command::new("cp").args(["--archive", &from]).arg(&files), STEP)?;
    }
    for settings in ["serve.toml", "balance.toml"] {
        let path = files.join(settings);
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        write(&path, &text.replace('\n', "\r\n"))?;
    }
    for (words, expected) in [
        (&["--version"][..], &*release.version),
        (&["config", "check", "serve", "--config", "serve.toml"], VALID),
        (&["config", "check", "balance", "--set", "backends=127.0.0.1:1"], VALID),
    ] {
        let answer = wine.output(&files.join("throng.exe"), words, &files)?;
        if !answer.contains(expected) {
            let words = words.join(" ");
            return Err(Stop::Failed(format!("throng.exe {words} prints under Wine: {answer}")));
        }
        println!("ok throng.exe {} under Wine", words.join(" "));
    }
    release.stamp(&folder)?;
    let mut names = documents::files_below(&folder, &name)?;
    names.sort();
    let mut pack = Command::new(zip);
    // Without what depends on this machine: users, and the order in its folders.
    pack.args(["-X", "-9", "-q"]).arg(release.folder.join(format!("{name}.zip"))).args(names);
    Ok(run_step(pack.current_dir(&folder).env("TZ", "UTC"), STEP)?)
}

fn build(release: &Release<'_>) -> Result<PathBuf, Stop> {
    let site = release.site;
    let (home, root) = (cargo_home(), site.root.display());
    let rust = format!(
        "--remap-path-prefix={home}=/cargo --remap-path-prefix={root}=/throng \
         -Clink-arg=-Wl,--no-insert-timestamp"
    );
    let c = format!("-ffile-prefix-map={home}=/cargo -ffile-prefix-map={root}=/throng");
    // Apart from checks for this target, which compile no C code.
    let folder = site.target.join("windows");
    let mut cargo = release.cargo_build(TARGET, &folder, &rust);
    cargo.env("CFLAGS_x86_64_pc_windows_gnu", c);
    // Else aws-lc needs an assembler for Windows.
    cargo.env("AWS_LC_SYS_PREBUILT_NASM", "1");
    println!("building for {TARGET}");
    run_step(&mut cargo, BUILD)?;
    Ok(folder.join(TARGET).join("dist/throng.exe"))
}
