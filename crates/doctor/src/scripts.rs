//! Scripts that carry out the remedies, and that undo them. They are texts: running them is left
//! to the operator.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::diagnosis::Diagnosis;
use crate::finding::{Finding, Remedy, Status};

/// Returns a shell script with the remedies of what fails or warns. Kernel settings are set; what
/// belongs into units, pods and files of settings stands in comments.
#[must_use]
pub fn fix_script(diagnosis: &Diagnosis) -> String {
    let mut text = "#!/bin/sh\n# Remedies of `throng doctor`. Run it as root. Settings are lost \
                    at a reboot:\n# write lines that help to a file in /etc/sysctl.d as well.\n\
                    set -eu\n"
        .to_owned();
    for finding in to_fix(diagnosis) {
        let Finding { id, found, wanted, reason, .. } = finding;
        let _ = writeln!(text, "\n# {id}: {found}, want {wanted}: {reason}");
        for remedy in &finding.remedies {
            let _ = match remedy {
                Remedy::Sysctl { key, value, .. } => writeln!(text, "sysctl -w '{key}={value}'"),
                Remedy::SysFile { path, value } => writeln!(text, "echo '{value}' > {path}"),
                other => writeln!(text, "# {}: {}", other.kind(), other.text()),
            };
        }
    }
    text
}

/// Returns a shell script that sets the kernel settings of [`fix_script`] to their values of today.
#[must_use]
pub fn undo_script(diagnosis: &Diagnosis) -> String {
    let mut text = "#!/bin/sh\n# Undoes the kernel settings of the script of `throng doctor \
                    --fix-script`.\n# Run it as root. Lines in units, pods and files of settings \
                    must be taken out\n# by hand.\nset -eu\n\n"
        .to_owned();
    let mut old_values = BTreeMap::new();
    for finding in to_fix(diagnosis) {
        for remedy in &finding.remedies {
            match remedy {
                Remedy::Sysctl { key, old, .. } => {
                    old_values.insert(*key, old);
                }
                Remedy::SysFile { path, .. } => {
                    let _ = writeln!(text, "# {path} had: {}", finding.found);
                }
                _ => {}
            }
        }
    }
    for (key, old) in old_values {
        let _ = writeln!(text, "sysctl -w '{key}={old}'");
    }
    text
}

fn to_fix(diagnosis: &Diagnosis) -> impl Iterator<Item = &Finding> {
    let is_bad = |finding: &&Finding| matches!(finding.status, Status::Fail | Status::Warn);
    diagnosis.findings.iter().filter(is_bad).filter(|finding| !finding.remedies.is_empty())
}
