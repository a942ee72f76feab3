//! Runs sslyze against this server with TLS: versions, ciphers, curves, the certificate, known
//! attacks.

use std::process::Command;
use std::time::Duration;

use crate::certificate::Certificate;
use crate::command::run_shown;
use crate::outcome::{Stop, Tally};
use crate::provision::python_environment;
use crate::server::Server;
use crate::site::Site;

/// Time limit of a scan, which takes two seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Scans a server with default settings, which must comply with Mozilla's intermediate
/// configuration.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let requirements = site.root.join("conformance/sslyze/requirements.txt");
    let python = python_environment(site, "sslyze", &requirements)?;
    let certificate = Certificate::make(site)?;
    let flags = certificate.flags();
    let server = Server::start(site, &flags.each_ref().map(String::as_str))?;
    let mut scan = Command::new(python);
    scan.args(["-m", "sslyze", "--mozilla_config=intermediate", "--certinfo_ca_file"]);
    scan.arg(&certificate.authority).arg(server.address.to_string());
    let finished = run_shown(&mut scan, LIMIT)?;
    server.stop()?;
    // If no server was scanned, the exit code proves nothing.
    let is_compliant = finished.status.success() && finished.stdout.contains("OK - Compliant.");
    let mut tally = Tally::default();
    let why = || format!("ended with {}; its findings are above", finished.status);
    tally.record("Mozilla's intermediate", if is_compliant { Ok(()) } else { Err(why()) });
    Ok(tally)
}
