//! The flags of a program that are settings, made of its table of keys, and the sources that they
//! are read with.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use throng_config::{
    ConfigError, ConfigErrors, Flag, Key, Kind, Sources, Table, read_file, read_file_in_use,
    read_tuned_file,
};

/// The settings of a program that has a table of keys.
pub trait HasTable {
    /// The table.
    fn table() -> &'static Table;
}

/// The flags of the settings `S`: the flags of its table, `--config` and `--set`.
#[derive(Debug)]
pub struct TableFlags<S> {
    /// The texts of each flag that is given.
    given: Vec<(&'static Key, Vec<String>)>,
    config: Option<PathBuf>,
    set: Vec<String>,
    settings: PhantomData<S>,
}

impl<S: HasTable> TableFlags<S> {
    /// Returns whether there is any flag.
    pub(crate) fn is_given(&self) -> bool {
        !self.given.is_empty() || self.config.is_some() || !self.set.is_empty()
    }

    /// Returns whether there is a flag of the setting `key`.
    #[cfg(feature = "balance")]
    pub(crate) fn has(&self, key: &str) -> bool {
        self.given.iter().any(|(given, _)| given.name == key)
    }

    /// Returns the path of the configuration file.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        Sources::path(self.config.as_deref())
    }

    /// Reads all sources in their order: the file, the file of tuned settings, the environment, the
    /// flags, and then `--set`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn sources(&self) -> Result<Sources, ConfigErrors> {
        self.sources_by(read_file)
    }

    /// Does the same while the program runs, when the file may be being written.
    ///
    /// # Errors
    /// The file cannot be read, or looks incomplete.
    pub(crate) fn sources_in_use(&self) -> Result<Sources, ConfigErrors> {
        self.sources_by(read_file_in_use)
    }

    fn sources_by(
        &self,
        read: fn(&Path) -> Result<String, ConfigError>,
    ) -> Result<Sources, ConfigErrors> {
        let mut sources = Sources::new(S::table());
        if let Some(path) = self.file() {
            sources.file(&path.display().to_string(), &read(&path)?);
        }
        // Also when it is read again: it is written once, before the program starts.
        if let Some(path) = Sources::tuned_path() {
            sources.file(&path.display().to_string(), &read_tuned_file(&path)?);
        }
        sources.environment(std::env::vars_os());
        self.given.iter().for_each(|(key, texts)| sources.given(key, texts));
        self.set.iter().for_each(|pair| sources.set(pair));
        Ok(sources)
    }
}

impl<S: HasTable> TableFlags<S> {
    /// Creates the flags `--config` and `--set`.
    pub(crate) fn of_file(config: Option<PathBuf>, set: Vec<String>) -> Self {
        Self { given: Vec::new(), config, set, settings: PhantomData }
    }
}

/// Returns the keys that have a flag.
fn flagged(table: &'static Table) -> impl Iterator<Item = (&'static Key, Flag)> {
    table.keys.iter().filter_map(|key| Some((key, key.flag?)))
}

/// Values are texts, so that all mistakes have one form.
fn arg(key: &'static Key, flag: Flag) -> Arg {
    let (is_list, more) = match key.kind {
        Kind::List(_) => (true, "; may be repeated, or several with commas"),
        Kind::Records(_) => (true, "; may be repeated"),
        _ => (false, ""),
    };
    let default = match key.default {
        default if default.is_empty() || flag.expand.is_some() => String::new(),
        default => format!(" [default: {default}]"),
    };
    let help = format!("{}{more}{default}", capitalized(key.help));
    let details = match (key.details, key.kind) {
        ("", Kind::Word(words)) if words.iter().any(|word| !key.help.contains(word)) => {
            format!("\n\nOne of {}.", words.join(", "))
        }
        ("", _) => String::new(),
        (details, _) => format!("\n\n{}.", capitalized(details)),
    };
    let is_switch = matches!(key.kind, Kind::Switch | Kind::Or(_, Kind::Switch));
    let is_switch = is_switch && flag.expand.is_none();
    let heading = key.name.starts_with("log.").then_some("Log");
    let arg = Arg::new(flag.name);
    // `--flag` alone is true.
    let arg = match is_switch {
        true => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        false => arg,
    };
    arg.long(flag.name.trim_start_matches('-'))
        .value_name(flag.value)
        .action(if is_list { ArgAction::Append } else { ArgAction::Set })
        .help(help.clone())
        .long_help(format!("{help}{details}"))
        .help_heading(heading)
        .hide_short_help(flag.is_advanced)
}

/// Returns the text with a capital, unless it begins with the form of a value such as `http://`.
fn capitalized(text: &str) -> String {
    let is_word = text.split(' ').next().is_some_and(|word| !word.contains([':', '/']));
    match text.chars().next().filter(|_| is_word) {
        Some(first) => format!("{}{}", first.to_ascii_uppercase(), &text[first.len_utf8()..]),
        None => text.to_owned(),
    }
}

impl<S: HasTable> clap::Args for TableFlags<S> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Read settings from a TOML file; read again on SIGHUP");
        let set = Arg::new("set")
            .long("set")
            .value_name("KEY=VALUE")
            .action(ArgAction::Append)
            .help("Set any setting, for example --set shards=2; may be repeated");
        let flags = flagged(S::table()).map(|(key, flag)| arg(key, flag));
        command.args(flags).args([config, set])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: HasTable> clap::FromArgMatches for TableFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let texts = |name| matches.get_many::<String>(name).into_iter().flatten().cloned();
        let given = flagged(S::table()).map(|(key, flag)| (key, texts(flag.name).collect()));
        Ok(Self {
            given: given.filter(|(_, texts): &(_, Vec<_>)| !texts.is_empty()).collect(),
            config: matches.get_one("config").cloned(),
            set: texts("set").collect(),
            settings: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
