//! The explanation of each rule, for the terminal and for `docs/doctor.md`.

use crate::live::{LIVE_RULES, LiveRule};
use crate::rules::{RULES, Rule};

/// Columns of the text.
const WIDTH: usize = 90;

/// Returns the explanation of a rule, in Markdown.
#[must_use]
pub fn explain(rule: &Rule) -> String {
    let start = if rule.at_start { " `serve` and `balance` check it when they start." } else { "" };
    [
        format!("### {}", rule.id),
        wrapped(&format!("{}: {}{start}", capitalized(rule.title), rule.about), ""),
        [
            wrapped(&format!("* Reads: {}.", rule.reads), "  "),
            wrapped(&format!("* Passes: {}.", rule.formula), "  "),
            wrapped(&format!("* Undo: {}", rule.undo), "  "),
            wrapped(&format!("* Source: {}.", rule.source), "  "),
        ]
        .join("\n"),
    ]
    .join("\n\n")
        + "\n"
}

/// Returns the explanation of a rule about a running server, in Markdown.
#[must_use]
pub fn explain_live(rule: &LiveRule) -> String {
    [
        format!("### {}", rule.id),
        wrapped(&format!("{}: {}", capitalized(rule.title), rule.about), ""),
        [
            wrapped(&format!("* Reads: {}.", rule.reads), "  "),
            wrapped(&format!("* Passes: {}.", rule.formula), "  "),
        ]
        .join("\n"),
    ]
    .join("\n\n")
        + "\n"
}

/// Returns the page about `throng doctor`.
#[must_use]
pub fn document() -> String {
    let sections: Vec<String> = RULES.iter().flat_map(|of| *of).map(explain).collect();
    let live: Vec<String> = LIVE_RULES.iter().flat_map(|of| *of).map(explain_live).collect();
    include_str!("doctor.in.md")
        .replace("{{rules}}", sections.join("\n").trim_end())
        .replace("{{live}}", live.join("\n").trim_end())
}

fn capitalized(text: &str) -> String {
    let is_name = text.contains(['.', '_']);
    match text.chars().next() {
        Some(first) if !is_name => {
            format!("{}{}", first.to_ascii_uppercase(), &text[first.len_utf8()..])
        }
        _ => text.to_owned(),
    }
}

/// Breaks a paragraph into lines, which after the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, String::len);
        match lines.last_mut() {
            Some(last) if line + 1 + word.len() <= WIDTH || last.trim().is_empty() => {
                if !last.is_empty() && !last.ends_with(' ') {
                    last.push(' ');
                }
                last.push_str(word);
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.join("\n")
}
