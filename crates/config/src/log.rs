//! The settings of the log, shared by `serve` and `balance`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::draft::Draft;
use crate::key::{Key, Kind, Table};
use crate::sources::Sources;

/// Returns the keys of the log, with this default for `log.access`.
#[rustfmt::skip]
#[must_use]
pub const fn keys(access: &'static str) -> [Key; 6] {
    [
    Key::new("log.level", Kind::Word(&["error", "warn", "info", "debug"]), "info",
        "least level of the events that are logged: error, warn, info or debug")
        .advanced_flag("--log-level", "LEVEL"),
    Key::new("log.format", Kind::Word(&["auto", "text", "json", "journald"]), "auto",
        "form of a line; auto = text on a terminal, journald if systemd reads it, else json")
        .advanced_flag("--log-format", "FORMAT").at_start(),
    Key::new("log.file", Kind::Path, "",
        "file that the log is appended to, opened again on SIGUSR1; if not set, standard error")
        .advanced_flag("--log-file", "FILE").at_start(),
    Key::new("log.access", Kind::Word(&["off", "errors", "all"]), access,
        "requests and sessions that are logged: off = none, errors = those that failed, or all")
        .flag("--log-access", "WHICH"),
    Key::new("log.sample", Kind::count(1, u32::MAX as u64), "1",
        "with log.access = all, one of this many that did not fail is logged"),
    Key::new("log.max_rate", Kind::count(0, u32::MAX as u64), "1000",
        "lines per second of each kind of event that clients cause; more are dropped and counted; \
         0 = no limit"),
    ]
}

/// The settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The least severe level that is logged.
    pub level: LogLevel,
    /// The form of a line.
    pub format: LogFormat,
    /// The file; `None`: standard error.
    pub file: Option<PathBuf>,
    /// The requests and sessions that are logged.
    pub access: AccessDetail,
    /// One of this many requests and sessions that succeeded is logged.
    pub sample: u32,
    /// Lines per second that clients can cause of each kind of event; 0: no limit.
    pub max_rate: u32,
}

/// The defaults of the keys.
impl Default for LogSettings {
    fn default() -> Self {
        static TABLE: Table = Table { program: "log", keys: &keys("errors") };
        Self::from_draft(&Sources::new(&TABLE).finish())
    }
}

impl LogSettings {
    /// Reads the keys of this module.
    #[must_use]
    pub fn from_draft(draft: &Draft) -> Self {
        Self {
            level: draft.parse("log.level").unwrap_or_default(),
            format: draft.parse("log.format").unwrap_or_default(),
            file: draft.path("log.file"),
            access: draft.parse("log.access").unwrap_or_default(),
            sample: draft.get("log.sample"),
            max_rate: draft.get("log.max_rate"),
        }
    }
}

/// The level of an event, from the most to the least important.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// The process cannot perform its task.
    Error,
    /// An operator should look at it.
    Warn,
    /// Part of normal operation.
    #[default]
    Info,
    /// Events of interest to developers only.
    Debug,
}

impl LogLevel {
    /// All levels, the most important first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];

    /// Returns the word of the setting.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// The form of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Another format, which depends on the reader of the log.
    #[default]
    Auto,
    /// For people.
    Text,
    /// One JSON object on a line.
    Json,
    /// Text with the priority in front, for the journal of systemd.
    Journald,
}

/// The requests and sessions that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessDetail {
    /// None.
    Off,
    /// Requests and sessions that failed.
    #[default]
    Errors,
    /// All, or a sample.
    All,
}

/// Parses the words of a setting. The table has already refused other words.
macro_rules! words {
    ($type:ty: $($word:literal => $value:expr),+) => {
        impl FromStr for $type {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok($value),)+
                    _ => Err(format!("write one of {}", [$($word),+].join(", "))),
                }
            }
        }
    };
}

words!(LogLevel: "error" => Self::Error, "warn" => Self::Warn, "info" => Self::Info,
    "debug" => Self::Debug);
words!(LogFormat: "auto" => Self::Auto, "text" => Self::Text, "json" => Self::Json,
    "journald" => Self::Journald);
words!(AccessDetail: "off" => Self::Off, "errors" => Self::Errors, "all" => Self::All);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_read_and_their_words_are_all_known() {
        static TABLE: Table = Table { program: "serve", keys: &keys("errors") };
        let read = |pairs: &[&str]| {
            let mut sources = Sources::new(&TABLE);
            pairs.iter().for_each(|pair| sources.set(pair));
            LogSettings::from_draft(&sources.finish())
        };
        let defaults = LogSettings::default();
        assert_eq!(read(&[]), defaults);
        let all = read(&["log.access=all", "log.sample=10", "log.file=/x", "log.format=json"]);
        let file = Some(PathBuf::from("/x"));
        let (access, format, sample) = (AccessDetail::All, LogFormat::Json, 10);
        assert_eq!(all, LogSettings { access, format, sample, file, ..defaults });
        for level in LogLevel::ALL {
            assert_eq!(level.word().parse(), Ok(level));
        }
        for key in TABLE.keys {
            let Kind::Word(words) = key.kind else { continue };
            for word in words {
                let known = match key.name {
                    "log.level" => word.parse::<LogLevel>().is_ok(),
                    "log.format" => word.parse::<LogFormat>().is_ok(),
                    _ => word.parse::<AccessDetail>().is_ok(),
                };
                assert!(known, "{} = {word}", key.name);
            }
        }
    }
}
