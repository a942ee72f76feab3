//! The testsuite: its interpreter, its packages, its specification files.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::certificate::Certificate;
use crate::command::{on_path, run_quietly, run_step};
use crate::outcome::Stop;
use crate::provision::cached_folder;
use crate::site::Site;

/// The groups with permessage-deflate, in parts that take about the same time.
pub(super) const COMPRESSED: [&[&str]; 2] =
    [&["12.1.*", "12.4.*", "13.*"], &["12.2.*", "12.3.*", "12.5.*"]];

/// Three cases of each group with compression: messages of 16 bytes, of 4 KiB, and of 8 KiB in
/// fragments. A group has one kind of text or one set of parameters. These cases have a hundredth
/// of all bytes.
#[rustfmt::skip]
pub(super) const SHORT: &[&str] = &[
    "12.1.1", "12.1.5", "12.1.11", "12.2.1", "12.2.5", "12.2.11", "12.3.1", "12.3.5", "12.3.11",
    "12.4.1", "12.4.5", "12.4.11", "12.5.1", "12.5.5", "12.5.11",
    "13.1.1", "13.1.5", "13.1.11", "13.2.1", "13.2.5", "13.2.11", "13.3.1", "13.3.5", "13.3.11",
    "13.4.1", "13.4.5", "13.4.11", "13.5.1", "13.5.5", "13.5.11", "13.6.1", "13.6.5", "13.6.11",
    "13.7.1", "13.7.5", "13.7.11",
];

/// The groups without compression, which take a tenth of the time.
pub(super) const UNCOMPRESSED: &[&str] =
    &["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*"];

/// An installed testsuite.
pub(super) struct Suite {
    python: PathBuf,
    packages: PathBuf,
    program: PathBuf,
    reports: PathBuf,
}

impl Suite {
    /// Installs the pinned packages into the cache, for CPython 2.7, which Autobahn's testsuite
    /// requires.
    pub(super) fn install(site: &Site) -> Result<Suite, Stop> {
        let home = site.root.join("conformance/autobahn");
        let python = python_2_7()?;
        let requirements = home.join("requirements.txt");
        let recipe = std::fs::read_to_string(&requirements)
            .map_err(|error| format!("{}: {error}", requirements.display()))?;
        let packages = cached_folder(site, "autobahn", &recipe, |folder| {
            println!("installing Autobahn's testsuite (once)");
            // An interpreter without pip can install it from its own library.
            let pip = |arguments: &[&str]| {
                let mut command = Command::new(&python);
                command.args(["-m"]).args(arguments).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
                command
            };
            let mut install =
                pip(&["pip", "install", "--quiet", "--no-compile", "--no-deps", "--target"]);
            install.arg(folder).arg("--requirement").arg(&requirements);
            let limit = Duration::from_secs(600);
            run_step(&mut pip(&["pip", "--version"]), limit)
                .or_else(|_| run_step(&mut pip(&["ensurepip", "--user"]), limit))
                .and_then(|()| run_step(&mut install, limit))
                .map_err(|why| {
                    Stop::Missing(format!("pip could not install Autobahn's testsuite: {why}"))
                })
        })?;
        let reports = site.target.join("autobahn");
        Ok(Suite { python, packages, program: home.join("wstest.py"), reports })
    }

    /// Returns an empty folder for the reports of this role in this part or version of TLS.
    pub(super) fn reports(&self, role: &str, part: impl Display) -> Result<PathBuf, Stop> {
        let folder = self.reports.join(format!("{role}-{part}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }

    /// Returns a `wstest` command in this mode with this specification.
    pub(super) fn command(
        &self,
        mode: &str,
        reports: &Path,
        spec: &Value,
    ) -> Result<Command, Stop> {
        let file = reports.join("spec.json");
        std::fs::write(&file, spec.to_string())
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new(&self.python);
        command.arg(&self.program).arg(&self.packages).arg(mode).arg(&file).current_dir(reports);
        // Packages in the user's own folder must not take precedence.
        command.env("PYTHONNOUSERSITE", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        Ok(command)
    }

    /// Writes the specification of the fuzzing client, which connects to a server's `/echo`.
    pub(super) fn spec_for_server(
        &self,
        reports: &Path,
        cases: &[&str],
        scheme: &str,
        server: SocketAddr,
    ) -> Value {
        let url = format!("{scheme}://{server}/echo");
        let mut spec = common(reports, cases);
        spec["servers"] = json!([{"agent": "throng", "url": url, "options": {"version": 18}}]);
        spec
    }

    /// Writes the specification of the fuzzing server, which listens for a client of this project,
    /// and uses TLS if it has a certificate.
    pub(super) fn spec_for_client(
        &self,
        reports: &Path,
        cases: &[&str],
        listen: SocketAddr,
        certificate: Option<&Certificate>,
    ) -> Value {
        let mut spec = common(reports, cases);
        spec["url"] = json!(format!("ws://{listen}"));
        spec["options"] = json!({"failByDrop": false});
        if let Some(Certificate { chain, key, .. }) = certificate {
            spec["url"] = json!(format!("wss://{listen}"));
            (spec["cert"], spec["key"]) = (json!(chain), json!(key));
        }
        spec
    }
}

fn common(reports: &Path, cases: &[&str]) -> Value {
    json!({"outdir": reports, "cases": cases, "exclude-cases": [], "exclude-agent-cases": {}})
}

/// Returns a loopback address that is currently unused. The fuzzing server needs its port in the
/// specification.
pub(super) fn free_address() -> Result<SocketAddr, String> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| format!("no free loopback port: {error}"))
}

fn python_2_7() -> Result<PathBuf, Stop> {
    let pyenv = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".pyenv")))
        .and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    let installed =
        pyenv.into_iter().flatten().flatten().map(|version| version.path().join("bin/python2.7"));
    // A pyenv shim may be on PATH and fail if no 2.7 is selected, so each candidate is tried.
    on_path("python2.7").into_iter().chain(installed).find(|python| runs(python)).ok_or_else(|| {
        Stop::Missing(
            "Autobahn's testsuite needs CPython 2.7: `pyenv install 2.7.18`, or python2.7 on PATH"
                .into(),
        )
    })
}

fn runs(python: &Path) -> bool {
    run_quietly(Command::new(python).args(["-c", "import zlib, ssl"]), Duration::from_secs(20))
        .is_ok_and(|finished| finished.status.success())
}
