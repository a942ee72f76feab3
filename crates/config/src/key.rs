//! Keys: name, type, default and meaning of each setting of a program.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use crate::entry::ValueEntry;
use crate::units::{LARGEST, LONGEST, show_duration, show_size};

/// All settings of a program, in the order in which they are shown.
#[derive(Debug)]
pub struct Table {
    /// The program's name in messages: `serve` or `balance`.
    pub program: &'static str,
    /// The keys.
    pub keys: &'static [Key],
}

/// A setting. This one row defines its variable, its flag and its description.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The name in files and after `--set`; dots separate tables, as in `timeouts.connect`.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The default as text; empty if it is not set by default.
    pub default: &'static str,
    /// The meaning: a phrase that begins with a small letter.
    pub help: &'static str,
    /// More about the values, for the long help and for documents; may be empty.
    pub details: &'static str,
    /// The flag, if it has one besides `--set`.
    pub flag: Option<Flag>,
    /// Whether a change takes effect only at the next start. This only matters for programs that
    /// reload their file while they run.
    pub at_start: bool,
}

/// The flag of a setting. The flag of a list may be repeated.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The name with its dashes, such as `--max-connections`.
    pub name: &'static str,
    /// The placeholder of the value, such as `N`.
    pub value: &'static str,
    /// Whether the short help omits the flag.
    pub is_advanced: bool,
    /// Converts the value to values of several keys, if the flag sets several keys. The error is
    /// the remedy.
    pub expand: Option<ToFields>,
}

/// The type of a setting's value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Switch,
    /// A whole number in these bounds, such as `1000` or `"10k"`.
    Count {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A number of bytes in these bounds, such as `"16KiB"`.
    Size {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A duration in these bounds, such as `"5s"`.
    Duration {
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// One of these words.
    Word(&'static [&'static str]),
    /// One of these words, or a value with one of these tags: `"cookie:NAME"`, or in a file
    /// `{ cookie = "NAME" }`.
    Tagged {
        /// The words.
        words: &'static [&'static str],
        /// The tags.
        tags: &'static [&'static str],
    },
    /// Text, described by an example with its article: `an origin such as "https://example.com"`.
    Text(&'static str),
    /// Text that is never shown.
    Secret,
    /// The path of a file or folder. In a file, it is relative to the file's folder.
    Path,
    /// An IP address and a port; `:80` is port 80 of all IPv4 addresses.
    Address,
    /// A host's name or IP address, and a port; `:80` is port 80 of all IPv4 addresses.
    Host,
    /// Where to connect: a [`Kind::Host`], or `unix:` and the path of a socket.
    Peer,
    /// Where to listen: a [`Kind::Host`], or `systemd` for sockets that the service manager opened.
    Listener,
    /// A list: an array in files, and text with commas.
    List(&'static Self),
    /// This word, or a value of another type.
    Or(&'static str, &'static Self),
    /// A list of tables.
    Records(&'static Records),
    /// A table of names that a file chooses, with values of this type.
    Map(&'static Self),
    /// A number of events in a time, such as `"5/s"`.
    Rate,
}

/// The names and texts of fields.
pub type Fields = Vec<(&'static str, String)>;

/// Converts a text to values of several keys. The error is the remedy.
pub type ToFields = fn(&str) -> Result<Fields, String>;

/// The tables of a [`Kind::Records`].
#[derive(Debug)]
pub struct Records {
    /// The name of one table in files, if it is not the key's: `[[channel]]` for `channels`.
    pub alias: Option<&'static str>,
    /// The keys of one table. Dots separate tables in it, as in `health.check.path`.
    pub fields: &'static [Key],
    /// Whether the first field is required.
    pub is_first_required: bool,
    /// Converts an item written as text to fields, if items may be texts. The error is the remedy.
    pub parse: Option<ToFields>,
    /// An item with its article, for messages.
    pub example: &'static str,
    /// The values of fields that are not written.
    pub defaults: Defaults,
}

/// The values of the fields that the tables of a [`Records`] omit, made once.
#[derive(Default)]
pub struct Defaults(pub(crate) OnceLock<Box<[(&'static str, ValueEntry)]>>);

impl Defaults {
    /// Creates values that are made when the first table is read.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }
}

/// Its text does not have the values.
impl fmt::Debug for Defaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Defaults").finish_non_exhaustive()
    }
}

impl Records {
    /// Returns the index of the field that has the name, or the alias of its tables.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let is_alias = |key: &Key| matches!(key.kind, Kind::Records(of) if of.alias == Some(name));
        let at = self.fields.iter().position(|key| key.name == name);
        at.or_else(|| self.fields.iter().position(is_alias))
    }
}

impl Key {
    /// Creates a key.
    #[must_use]
    pub const fn new(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self { name, kind, default, help, details: "", flag: None, at_start: false }
    }

    /// Returns the key with more text about its values.
    #[must_use]
    pub const fn details(self, details: &'static str) -> Self {
        Self { details, ..self }
    }

    /// Returns the key with a flag, such as `--max-connections N`.
    #[must_use]
    pub const fn flag(self, name: &'static str, value: &'static str) -> Self {
        Self { flag: Some(Flag { name, value, is_advanced: false, expand: None }), ..self }
    }

    /// Returns the key with a [flag](Key::flag) that only the long help shows.
    #[must_use]
    pub const fn advanced_flag(self, name: &'static str, value: &'static str) -> Self {
        Self { flag: Some(Flag { name, value, is_advanced: true, expand: None }), ..self }
    }

    /// Returns the key with a flag that `expand` converts to the values of several keys.
    #[must_use]
    pub const fn expanded_flag(
        self,
        name: &'static str,
        value: &'static str,
        expand: ToFields,
    ) -> Self {
        Self { flag: Some(Flag { name, value, is_advanced: true, expand: Some(expand) }), ..self }
    }

    /// Returns the meaning and the details as one text.
    #[must_use]
    pub fn meaning(&self) -> String {
        match self.details {
            "" => self.help.to_owned(),
            details => format!("{}; {details}", self.help),
        }
    }

    /// Returns the key, marked so that changes take effect only at the next start.
    #[must_use]
    pub const fn at_start(self) -> Self {
        Self { at_start: true, ..self }
    }

    /// Returns the name of its variable in the environment: `THRONG_TIMEOUTS_CONNECT`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("THRONG_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    /// Returns a line of a file that sets the key.
    pub(crate) fn example(&self) -> String {
        let name = self.name.rsplit('.').next().unwrap_or(self.name);
        let value = match (self.default, &self.kind) {
            ("", kind) => kind.example(),
            (default, Kind::Switch | Kind::Count { .. }) => default.to_owned(),
            (default, _) => format!("{default:?}"),
        };
        format!("{name} = {value}")
    }
}

impl Kind {
    /// Any duration, including 0.
    pub const DURATION: Self = Self::Duration { min: Duration::ZERO, max: LONGEST };
    /// Any duration except 0.
    pub const POSITIVE_DURATION: Self =
        Self::Duration { min: Duration::from_nanos(1), max: LONGEST };
    /// Any size.
    pub const SIZE: Self = Self::Size { min: 0, max: LARGEST };
    /// Any count.
    pub const COUNT: Self = Self::Count { min: 0, max: u32::MAX as u64 };

    /// Returns a count of `min` to `max`.
    #[must_use]
    pub const fn count(min: u64, max: u64) -> Self {
        Self::Count { min, max }
    }

    /// Returns a size of `min` to `max` bytes.
    #[must_use]
    pub const fn size(min: u64, max: u64) -> Self {
        Self::Size { min, max }
    }

    /// Returns a duration of `min` to `max`.
    #[must_use]
    pub const fn duration(min: Duration, max: Duration) -> Self {
        Self::Duration { min, max }
    }

    /// Checks a number against the bounds.
    ///
    /// # Errors
    /// The remedy.
    pub fn check_number(&self, number: u64) -> Result<(), String> {
        match *self {
            Self::Or(_, kind) => kind.check_number(number),
            Self::Count { min, max } if min > 0 && max <= i32::MAX as u64 => {
                match (min..=max).contains(&number) {
                    true => Ok(()),
                    false => Err(format!("write {min} to {max}")),
                }
            }
            Self::Count { min, .. } if number < min => Err(format!("write at least {min}")),
            Self::Count { max, .. } if number > max => Err(format!("write at most {max}")),
            Self::Size { min, max: LARGEST } if number < min => {
                Err(format!("write at least \"{}\"", show_size(min)))
            }
            Self::Size { min, max } if !(min..=max).contains(&number) => {
                Err(format!("write \"{}\" to \"{}\"", show_size(min), show_size(max)))
            }
            _ => Ok(()),
        }
    }

    /// Checks a duration against the bounds.
    ///
    /// # Errors
    /// The remedy.
    pub fn check_duration(&self, duration: Duration) -> Result<(), String> {
        match *self {
            Self::Duration { min, .. } if duration < min && min.as_millis() == 0 => {
                Err("write more than nothing, for example \"5s\"".to_owned())
            }
            Self::Duration { min, .. } if duration < min => {
                Err(format!("write at least \"{}\"", show_duration(min)))
            }
            Self::Duration { max, .. } if duration > max => {
                Err(format!("write at most \"{}\"", show_duration(max)))
            }
            _ => Ok(()),
        }
    }

    /// Returns an example as it is written in a file.
    pub(crate) fn example(&self) -> String {
        match self {
            Self::Switch => "true".to_owned(),
            Self::Count { .. } => "1000".to_owned(),
            Self::Size { .. } => "\"16KiB\"".to_owned(),
            Self::Duration { .. } => "\"5s\"".to_owned(),
            Self::Word(words) | Self::Tagged { words, .. } => {
                format!("{:?}", words.first().unwrap_or(&""))
            }
            Self::Text(example) => quoted_part(example).to_owned(),
            Self::Secret => "\"...\"".to_owned(),
            Self::Path => "\"file\"".to_owned(),
            Self::Address => "\"127.0.0.1:8080\"".to_owned(),
            Self::Host | Self::Listener | Self::Peer => "\"127.0.0.1:9001\"".to_owned(),
            Self::List(item) => format!("[{}]", item.example()),
            Self::Or(_, kind) => kind.example(),
            Self::Records(records) => format!("[{}]", quoted_part(records.example)),
            Self::Map(item) => format!("{{ NAME = {} }}", item.example()),
            Self::Rate => "\"5/s\"".to_owned(),
        }
    }

    /// Returns the expected form, as a phrase that follows "write".
    pub(crate) fn wanted(&self) -> String {
        match self {
            Self::Switch => "true or false".to_owned(),
            Self::Count { min, max } => format!("a whole number from {min} to {max}"),
            Self::Size { .. } => "a size such as \"16KiB\" or \"1MB\"".to_owned(),
            Self::Duration { .. } => "a duration such as \"5s\"".to_owned(),
            Self::Word(words) => listed(words),
            Self::Tagged { words, tags } => {
                let words = words.iter().map(|word| format!("\"{word}\""));
                let tags = tags.iter().map(|tag| format!("{{ {tag} = \"NAME\" }}"));
                joined(&words.chain(tags).collect::<Vec<_>>(), "or")
            }
            Self::Text(example) => (*example).to_owned(),
            Self::Secret => "it in quotes".to_owned(),
            Self::Path => "the path of a file or folder".to_owned(),
            Self::Address | Self::Host | Self::Listener | Self::Peer => {
                format!("an address such as {}", self.example())
            }
            Self::List(item) => format!("{}, or a list of them", item.wanted()),
            Self::Or(word, kind) => format!("{}, or \"{word}\"", kind.wanted()),
            Self::Records(records) => records.example.to_owned(),
            Self::Map(_) => format!("a table such as {}", self.example()),
            Self::Rate => "a rate such as \"5/s\"".to_owned(),
        }
    }
}

/// Returns the first text in quotes of `example`, with its quotes.
fn quoted_part(example: &str) -> &str {
    let Some(start) = example.find('"') else { return "\"\"" };
    let rest = &example[start + 1..];
    rest.find('"').map_or("\"\"", |end| &example[start..start + end + 2])
}

/// Returns the words, quoted if they are few.
fn listed(words: &[&str]) -> String {
    match words.len() {
        0..=3 => joined(&words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>(), "or"),
        _ => format!("one of {}", words.join(", ")),
    }
}

/// Returns the words as a list that ends with `last` and a word.
pub(crate) fn joined(words: &[impl AsRef<str>], last: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., end] => format!("{} {last} {end}", most.join(", ")),
    }
}

/// Returns the number of keys in these lists, for [`joined_keys`].
#[must_use]
pub const fn number_of_keys(lists: &[&[Key]]) -> usize {
    let (mut number, mut list) = (0, 0);
    while list < lists.len() {
        number += lists[list].len();
        list += 1;
    }
    number
}

/// Joins lists of keys, `N` keys in total, into the list of a table. Keys that several programs
/// share have their own lists.
#[must_use]
pub const fn joined_keys<const N: usize>(lists: &[&[Key]]) -> [Key; N] {
    let mut keys = [Key::new("", Kind::Switch, "", ""); N];
    let (mut at, mut list) = (0, 0);
    while list < lists.len() {
        let mut of_list = 0;
        while of_list < lists[list].len() {
            keys[at] = lists[list][of_list];
            (at, of_list) = (at + 1, of_list + 1);
        }
        list += 1;
    }
    keys
}

/// Returns the keys, marked so that changes take effect only at the next start.
#[must_use]
pub const fn all_at_start<const N: usize>(mut keys: [Key; N]) -> [Key; N] {
    let mut at = 0;
    while at < N {
        keys[at].at_start = true;
        at += 1;
    }
    keys
}

impl Table {
    /// Returns the key of that name.
    #[must_use]
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.position(name).map(|at| &self.keys[at])
    }

    /// Returns the index of the key of that name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.keys.iter().position(|key| key.name == name)
    }

    /// Returns whether keys begin with `name` and a dot.
    pub(crate) fn is_section(&self, name: &str) -> bool {
        self.in_section(name).next().is_some()
    }

    /// Returns all keys that begin with `name` and a dot.
    pub(crate) fn in_section<'n>(&self, name: &'n str) -> impl Iterator<Item = &'static Key> + 'n {
        self.keys.iter().filter(move |key| {
            key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// Returns the hint for a name that other servers use for a setting; `None` if it is not such a
    /// name. Case and the signs between words do not matter.
    #[must_use]
    pub fn foreign_hint(&self, name: &str) -> Option<String> {
        let has = |name: &str| self.key(name).is_some();
        crate::foreign::hint(self.program, name, has, |name| self.is_section(name))
    }

    /// Returns the remedy for a key that is not in the table.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let sections = self.keys.iter().filter_map(|key| Some(key.name.rsplit_once('.')?.0));
        let names = self.keys.iter().map(|key| key.name).chain(sections);
        if let Some(hint) =
            self.foreign_hint(name).or_else(|| crate::units::did_you_mean(name, names))
        {
            return hint;
        }
        if let Some((section, _)) = name.rsplit_once('.')
            && self.is_section(section)
        {
            let from = section.len() + 1;
            let names: Vec<_> = self.in_section(section).map(|key| &key.name[from..]).collect();
            return format!("the keys here are {}", names.join(", "));
        }
        format!("`throng config show {}` lists all keys", self.program)
    }
}
