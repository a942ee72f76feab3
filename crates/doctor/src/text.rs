//! The report of a diagnosis, as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::diagnosis::{Diagnosis, Wall};
use crate::finding::{Finding, Remedy, Status};
use crate::numbers::{count, plural};

/// Number of limits that the report names after the first.
const FURTHER: usize = 4;

/// Reasons of skipped rules that it names.
const REASONS: usize = 3;

/// Columns of the report's first two cells.
const TITLE: usize = 15;
const FOUND: usize = 32;

/// The longest line.
const WIDTH: usize = 100;

/// Returns the report. `all` also lists the rules that pass or were skipped.
#[must_use]
pub fn report(diagnosis: &Diagnosis, all: bool) -> String {
    let mut text = answer(diagnosis);
    text.push('\n');
    if list(&diagnosis.findings, all, &mut text) {
        text += "  Why: --explain ID.  Scripts: --fix-script, --undo-script FILE";
    }
    text.push('\n');
    text
}

/// Returns the report of the rules about a running server. `all` also lists the rules that pass or
/// were skipped.
#[must_use]
pub fn live_report(findings: &[Finding], all: bool) -> String {
    let mut text = String::new();
    if list(findings, all, &mut text) {
        text += "  Why: --explain ID";
    }
    text.push('\n');
    text
}

/// Adds the findings and their numbers. Returns whether something fails or warns.
fn list(all_findings: &[Finding], all: bool, text: &mut String) -> bool {
    let shown = |finding: &&Finding| all || finding.status <= Status::Info;
    let mut findings: Vec<&Finding> = all_findings.iter().filter(shown).collect();
    // In the order of the rules within a state.
    findings.sort_by_key(|finding| finding.status);
    for finding in findings {
        add(finding, text);
    }
    let count = |status| all_findings.iter().filter(|it| it.status == status).count();
    let (failed, warned) = (count(Status::Fail), count(Status::Warn));
    if !all {
        let passed = count(Status::Pass);
        let _ = writeln!(text, "PASS  {:<TITLE$} --all shows them", plural(passed as u64, "check"));
        let skipped = plural(count(Status::Skip) as u64, "check");
        let _ = writeln!(text, "SKIP  {skipped:<TITLE$} {}", skips(all_findings));
    }
    text.push('\n');
    let _ = write!(text, "{failed} failed, {}.", plural(warned as u64, "warning"));
    failed + warned > 0
}

/// Returns the first lines: the number of connections, and the limits.
fn answer(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    let Some(first) = diagnosis.walls.first() else {
        return "No limit on connections is known on this machine.\n".to_owned();
    };
    let program = diagnosis.question.role.word();
    let most = count(first.connections);
    let enough = match diagnosis.question.connections {
        Some(wanted) if wanted <= first.connections => {
            format!(", enough for {}", count(wanted))
        }
        Some(wanted) => format!(", too few for {}", count(wanted)),
        None => String::new(),
    };
    let _ = writeln!(
        text,
        "`throng {program}` holds {most} connections on this machine{enough}. First limit: {}.",
        first.title
    );
    let further = |wall: &Wall| format!("{} ({})", count(wall.connections), wall.title);
    let after: Vec<String> = diagnosis.walls[1..].iter().take(FURTHER).map(further).collect();
    if !after.is_empty() {
        let _ = writeln!(text, "After that: {}.", after.join(" -> "));
    }
    if !diagnosis.note.is_empty() {
        let _ = writeln!(text, "{}", diagnosis.note);
    }
    text
}

/// Adds a finding and its remedies.
fn add(finding: &Finding, text: &mut String) {
    let Finding { id, found, wanted, reason, .. } = finding;
    let numbers = match (found.is_empty(), wanted.is_empty()) {
        (true, _) => String::new(),
        (_, true) => found.clone(),
        (false, false) if finding.status == Status::Pass => found.clone(),
        (false, false) => format!("{found}, want {wanted}"),
    };
    let word = finding.status.word().to_uppercase();
    let line = format!("{word}  {id:<TITLE$} {numbers:<FOUND$}");
    let line = match line.len() + 1 + reason.len() > WIDTH {
        true => format!("{}\n      {reason}", line.trim_end()),
        false => format!("{line} {reason}"),
    };
    let _ = writeln!(text, "{}", line.trim_end());
    let mut joined = String::new();
    for remedy in &finding.remedies {
        let text_of = match remedy {
            Remedy::Sysctl { .. } | Remedy::SysFile { .. } => remedy.text(),
            _ => format!("{}: {}", remedy.kind(), remedy.text()),
        };
        if !joined.is_empty() && joined.len() + text_of.len() + 8 > WIDTH {
            let _ = writeln!(text, "      {joined}");
            joined.clear();
        }
        joined += if joined.is_empty() { "" } else { "  " };
        joined += &text_of;
    }
    if !joined.is_empty() {
        let _ = writeln!(text, "      {joined}");
    }
}

/// Returns the first reasons of skipped rules.
fn skips(findings: &[Finding]) -> String {
    let skipped = findings.iter().filter(|finding| finding.status == Status::Skip);
    let mut reasons: Vec<&str> = skipped.map(|finding| finding.reason.as_str()).collect();
    reasons.dedup();
    let more = if reasons.len() > REASONS { ", ..." } else { "" };
    reasons.truncate(REASONS);
    format!("{}{more}", reasons.join(", "))
}

/// Returns the diagnosis as JSON.
#[must_use]
pub fn json(diagnosis: &Diagnosis) -> Value {
    let wall =
        |wall: &Wall| json!({"id": wall.id, "title": wall.title, "connections": wall.connections});
    json!({
        "role": diagnosis.question.role.word(),
        "wanted": diagnosis.question.connections,
        "connections": diagnosis.connections(),
        "limits": diagnosis.walls.iter().map(wall).collect::<Vec<Value>>(),
        "note": diagnosis.note,
        "findings": diagnosis.findings.iter().map(Finding::json).collect::<Vec<Value>>(),
    })
}

/// Returns the findings of a running server as JSON, with the seconds between the readings.
#[must_use]
pub fn live_json(findings: &[Finding], seconds: f64) -> Value {
    json!({
        "seconds": seconds,
        "findings": findings.iter().map(Finding::json).collect::<Vec<Value>>(),
    })
}

impl Finding {
    /// Returns the finding as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let remedy = |remedy: &Remedy| json!({"kind": remedy.kind(), "text": remedy.text()});
        json!({
            "id": self.id,
            "title": self.title,
            "status": self.status.word(),
            "found": self.found,
            "wanted": self.wanted,
            "reason": self.reason,
            "connections": self.wall,
            "formula": self.formula,
            "remedies": self.remedies.iter().map(remedy).collect::<Vec<Value>>(),
            "source": self.source,
        })
    }

    /// Returns the finding as a line for a log: its id, the numbers, the reason and the remedies.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { id, found, wanted, reason, .. } = self;
        let remedies: Vec<String> = self.remedies.iter().map(Remedy::text).collect();
        let remedy = match remedies.is_empty() {
            true => String::new(),
            false => format!("; {}", remedies.join(", or ")),
        };
        format!("{id}: {found}, want {wanted}: {reason}{remedy}")
    }
}
