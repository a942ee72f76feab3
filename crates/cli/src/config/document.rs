//! `docs/configuration.md` and `docs/operations.md`: their texts, with tables of keys and events.

use std::fmt::Write;

use throng_config::{Kind, Table, units};

use crate::log;

/// Returns the keys of a program as a table in Markdown.
pub(super) fn table(of: &Table) -> String {
    let mut text = String::from("| setting | type | default | meaning |\n|---|---|---|---|\n");
    for key in of.keys {
        let default = match key.default {
            "" => "not set".to_owned(),
            default => format!("`{}`", default.replace(',', ", ")),
        };
        let restart = if key.at_start { "; needs a restart" } else { "" };
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

/// Returns the events as a table in Markdown.
pub(super) fn events() -> String {
    let mut text = String::from("| event | level | fields | meaning |\n|---|---|---|---|\n");
    for event in log::events::ALL {
        let fields: Vec<String> = event.fields.iter().map(|field| format!("`{field}`")).collect();
        let (name, level, help) = (event.name, event.level.word(), event.help);
        let _ = writeln!(text, "| `{name}` | {level} | {} | {help} |", fields.join(", "));
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
        Kind::Listener => "HOST:PORT, `fd:N`, `systemd`".to_owned(),
        Kind::List(item) => format!("list of {}", kind(item)),
        Kind::Or(word, inner) => format!("`{word}`, {}", kind(inner)),
        Kind::Records(_) => "list of tables or texts".to_owned(),
    }
}
