//! The command line of `cargo xtask`.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::layers::{LAYERS, Layer};

/// The text of `cargo xtask --help`.
pub(crate) const HELP: &str = "\
cargo xtask check [PACKAGE...]

What to run before a commit: format, wording, lints, and the unit tests of the packages that differ
from the last commit, or of those named. Two minutes where the last build is warm.

cargo xtask test [--only NAME,...] [--skip NAME,...] [--night] [--server HOST:PORT] [--list]

Runs every layer of tests in order and ends with a table and `N passed, N failed`.
  --only NAME,...     run these layers only; `client` stands for every `client-...`
  --skip NAME,...     leave these out
  --night             run the slow layers, too, which `--list` marks
  --server HOST:PORT  test this running server instead of building and starting ours
  --list              print the layers and stop
A layer installs or builds what it needs, or says in one line what is missing. With CI=true in the
environment a missing program is a failure.

cargo xtask dist [--binary FILE] [--windows FILE]

Makes the files of a release in target/release-files: a static binary in an archive and a Debian
package, a program for Windows in an archive, a list of crates, and checksums; then installs the
package into a folder and starts what its units start. The program for Windows runs under Wine.
  --binary FILE       pack this binary instead of building one
  --windows FILE      pack this program for Windows instead of building one
";

/// The requested task.
#[derive(Debug)]
pub(crate) enum Action {
    Help,
    List,
    Check {
        /// The packages whose unit tests run; without them, the changed packages.
        packages: Vec<String>,
    },
    Test(Selection),
    Dist {
        /// A binary that is packed instead of a new build.
        binary: Option<PathBuf>,
        /// A program for Windows that is packed instead of a new build.
        windows: Option<PathBuf>,
    },
}

/// The layers to run, and the server to test.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    only: Vec<String>,
    skip: Vec<String>,
    night: bool,
    pub(crate) server: Option<SocketAddr>,
}

impl Selection {
    /// Returns whether the layer runs. A slow layer needs `--night`, or its own name in `--only`.
    pub(crate) fn includes(&self, layer: &Layer) -> bool {
        let named = |list: &[String]| list.iter().any(|wanted| matches(wanted, layer.name));
        let is_due = self.night || !layer.night || self.only.iter().any(|it| it == layer.name);
        is_due && (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }
}

/// Parses the arguments after the program's name.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Action, String> {
    let mut arguments = arguments.peekable();
    match arguments.next().as_deref() {
        Some("test") => {}
        Some("check") => return check(arguments),
        Some("dist") => return dist(arguments),
        Some("--help" | "-h" | "help") | None => return Ok(Action::Help),
        Some(other) => {
            return Err(format!("unknown task `{other}`; expected `check`, `test` or `dist`"));
        }
    }
    let mut selection = Selection::default();
    while let Some(argument) = arguments.next() {
        let (flag, mut value) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value_of = |what: &str| {
            value
                .take()
                .or_else(|| arguments.next())
                .ok_or_else(|| format!("{flag} needs {what}, as in {flag} {}", example(&flag)))
        };
        match flag.as_str() {
            "--list" => return Ok(Action::List),
            "--night" => selection.night = true,
            "--help" | "-h" => return Ok(Action::Help),
            "--only" => selection.only.extend(layer_names(&value_of("layer names")?)?),
            "--skip" => selection.skip.extend(layer_names(&value_of("layer names")?)?),
            "--server" => {
                let text = value_of("an address")?;
                let address = text.parse().map_err(|_| {
                    format!(
                        "invalid address `{text}` for --server; expected one such as 127.0.0.1:9001"
                    )
                })?;
                selection.server = Some(address);
            }
            other => {
                return Err(format!(
                    "unknown flag `{other}`; expected --only, --skip, --night, --server or --list"
                ));
            }
        }
    }
    Ok(Action::Test(selection))
}

fn check(arguments: impl Iterator<Item = String>) -> Result<Action, String> {
    let packages: Vec<String> = arguments.collect();
    match packages.iter().find(|name| name.starts_with('-')) {
        Some(flag) => Err(format!("unknown flag `{flag}`; expected names of packages")),
        None => Ok(Action::Check { packages }),
    }
}

fn dist(mut arguments: impl Iterator<Item = String>) -> Result<Action, String> {
    let (mut binary, mut windows) = (None, None);
    while let Some(flag) = arguments.next() {
        let file = match &*flag {
            "--binary" => &mut binary,
            "--windows" => &mut windows,
            other => {
                return Err(format!("unknown flag `{other}`; expected --binary or --windows"));
            }
        };
        *file = Some(arguments.next().ok_or(format!("{flag} needs a file"))?.into());
    }
    Ok(Action::Dist { binary, windows })
}

fn example(flag: &str) -> &'static str {
    if flag == "--server" { "127.0.0.1:9001" } else { "autobahn-server,tidy" }
}

fn layer_names(list: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> =
        list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    match names.iter().find(|name| !LAYERS.iter().any(|layer| matches(name, layer.name))) {
        Some(unknown) => {
            let all: Vec<_> = LAYERS.iter().map(|layer| layer.name).collect();
            Err(format!("unknown layer `{unknown}`; expected one of: {}", all.join(", ")))
        }
        None => Ok(names),
    }
}

/// Returns whether `wanted` selects `layer`: `client` selects every `client-...`, `cargo` only
/// itself.
fn matches(wanted: &str, layer: &str) -> bool {
    layer == wanted || layer.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(arguments: &[&str]) -> Result<Selection, String> {
        match parse(arguments.iter().map(|argument| (*argument).to_owned()))? {
            Action::Test(selection) => Ok(selection),
            other => Err(format!("{other:?}")),
        }
    }

    fn names(selection: &Selection) -> Vec<&'static str> {
        LAYERS.iter().filter(|layer| selection.includes(layer)).map(|layer| layer.name).collect()
    }

    #[test]
    fn a_prefix_stands_for_its_group() {
        let chosen = selection(&["test", "--only", "client,tidy", "--skip=client-node"]).unwrap();
        let others = ["python", "tungstenite", "go", "centrifuge", "chromium"];
        let others = others.map(|name| format!("client-{name}"));
        assert_eq!(names(&chosen), [&["tidy".to_owned()][..], &others].concat());
    }

    #[test]
    fn slow_layers_run_at_night_or_by_name() {
        let slow: Vec<_> = LAYERS.iter().filter(|it| it.night).map(|it| it.name).collect();
        let has_slow = |arguments: &[&str]| {
            let names = names(&selection(arguments).unwrap());
            slow.iter().all(|name| names.contains(name))
        };
        assert!(!has_slow(&["test"]) && !has_slow(&["test", "--only", "autobahn"]));
        assert!(has_slow(&["test", "--night"]));
        assert!(has_slow(&["test", "--only", &slow.join(",")]));
    }

    #[test]
    fn unknown_names_are_refused_with_the_expected_ones() {
        assert!(selection(&["test", "--only", "autobann"]).unwrap_err().contains("`autobann`"));
        assert!(selection(&["test", "--fast"]).unwrap_err().contains("`--fast`"));
        assert!(selection(&["test", "--only"]).unwrap_err().contains("needs layer names"));
        assert!(selection(&["test", "--server", "here"]).unwrap_err().contains("`here`"));
    }
}
