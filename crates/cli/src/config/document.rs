//! `docs/configuration.md`: the text of `configuration.in.md` and a table of each program's keys.

use std::fmt::Write;

use throng_config::{Kind, Table, units};

/// Returns the keys of a program as a table in Markdown.
pub(super) fn table(of: &Table, has_reload: bool) -> String {
    let mut text = String::from("| setting | type | default | meaning |\n|---|---|---|---|\n");
    for key in of.keys {
        let default = match key.default {
            "" => "not set".to_owned(),
            default => format!("`{}`", default.replace(',', ", ")),
        };
        let restart = if has_reload && key.at_start { "; needs a restart" } else { "" };
        let help = key.help.replace('|', "\\|");
        let _ = writeln!(
            text,
            "| `{}` | {} | {default} | {help}{restart} |",
            key.name,
            kind(&key.kind)
        );
    }
    text
}

fn kind(of: &Kind) -> String {
    let words = |words: &[&str]| format!("`{}`", words.join("`, `"));
    match of {
        Kind::Switch => "`true`, `false`".to_owned(),
        Kind::Count { min: 0, .. } => "count".to_owned(),
        Kind::Count { min, max } if *max <= i32::MAX as u64 => format!("count, {min} to {max}"),
        Kind::Count { min, .. } => format!("count, at least {min}"),
        Kind::Size { min: 0 | 1, .. } => "size".to_owned(),
        Kind::Size { min, max } => {
            format!("size, {} to {}", units::show_size(*min), units::show_size(*max))
        }
        Kind::Duration { .. } => "duration".to_owned(),
        Kind::Word(known) => words(known),
        Kind::Tagged { words: known, tags } => {
            format!("{}, `{}:NAME`", words(known), tags.join(":NAME`, `"))
        }
        Kind::Text(_) => "text".to_owned(),
        Kind::Secret => "secret".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::IpAddress => "IP address".to_owned(),
        Kind::Address => "IP:PORT".to_owned(),
        Kind::Host => "HOST:PORT".to_owned(),
        Kind::List(item) => format!("list of {}", kind(item)),
        Kind::Or(word, inner) => format!("`{word}`, {}", kind(inner)),
        Kind::Records(_) => "list of tables or texts".to_owned(),
    }
}
