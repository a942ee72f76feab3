//! Origins of values, and mistakes with their place and remedy.

use std::fmt;

use crate::location::Location;

/// The origin of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The table of keys, or the program's code.
    #[default]
    Default,
    /// It is not set, but follows from another setting or a flag.
    Follows(&'static str),
    /// A file.
    File(Location),
    /// A variable of the environment.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl Origin {
    /// Returns the precedence: a value of a higher rank overrides others.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Default | Self::Follows(_) => 0,
            Self::File(_) => 1,
            Self::Environment(_) => 2,
            Self::Flag(_) => 3,
        }
    }

    /// Returns whether a source has set the value.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.rank() > 0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Follows(key) => write!(f, "follows {key}"),
            Self::File(at) => write!(f, "{}:{}", at.file(), at.line()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// A mistake in a configuration. Its text is one line: the place, the key, the value and the
/// remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub(crate) key: String,
    pub(crate) origin: Origin,
    pub(crate) what: String,
    /// The rest of the line after the key may hold a secret.
    pub(crate) is_secret: bool,
    pub(crate) may_pass: bool,
}

impl ConfigError {
    /// Creates the error "`key` is `value`: `remedy`".
    pub(crate) fn new(
        key: &str,
        origin: Origin,
        value: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        let what = format!("{key} is {value}: {remedy}");
        Self { key: key.to_owned(), origin, what, is_secret: false, may_pass: false }
    }

    /// Sets whether another start may succeed without a change of settings, for example because a
    /// file exists at that time. Default: false, the error is a mistake.
    #[must_use]
    pub fn passing_if(self, may_pass: bool) -> Self {
        Self { may_pass, ..self }
    }

    /// Creates an error whose text and line do not show the value.
    pub(crate) fn without_value(key: &str, origin: Origin, what: impl fmt::Display) -> Self {
        let what = what.to_string();
        Self { key: key.to_owned(), origin, what, is_secret: true, may_pass: false }
    }

    /// Creates an error without a key, for example for a file that cannot be read.
    #[must_use]
    pub fn message(text: impl fmt::Display) -> Self {
        let (key, origin) = (String::new(), Origin::Default);
        Self { key, origin, what: text.to_string(), is_secret: false, may_pass: false }
    }

    /// Returns its location; `None` for values that came from no file.
    #[must_use]
    pub fn location(&self) -> Option<&Location> {
        match &self.origin {
            Origin::File(location) => Some(location),
            _ => None,
        }
    }

    /// Returns the origin of the value.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns key, value and remedy, without the place.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the line of the file with a mark below the place, if it came from a file.
    fn excerpt(&self) -> Option<String> {
        let at = self.location()?;
        let (line, column) = (at.line(), at.column());
        let text = at.text().trim_end().replace('\t', " ");
        let (shown, has_place) = match (self.is_secret || hides(&text), text.find('=')) {
            (true, Some(at)) => {
                let shown = format!("{}= ...", &text[..at]);
                let end = shown.chars().count();
                (shown, column <= end)
            }
            (true, None) => return None,
            (false, _) => (text, true),
        };
        let margin = " ".repeat(line.to_string().len());
        // A long line is shown around its place.
        let from = column.saturating_sub(60);
        let shown: String = shown.chars().skip(from).take(100).collect();
        let mark = match has_place {
            true => format!("\n{margin} | {}^", " ".repeat(column.saturating_sub(1 + from))),
            false => String::new(),
        };
        Some(format!("{line} | {shown}{mark}"))
    }
}

/// Returns whether a line seems to hold a secret.
fn hides(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["token", "secret", "password"].iter().any(|word| lower.contains(word))
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File(at) => write!(f, "{}:{}:{}: ", at.file(), at.line(), at.column())?,
            Origin::Environment(name) => write!(f, "environment {name}: ")?,
            Origin::Flag(flag) => write!(f, "{flag}: ")?,
            Origin::Default | Origin::Follows(_) => {}
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for ConfigError {}

/// All mistakes in a configuration, at least one, in the order in which they were found. The text
/// has one line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

/// Maximum mistakes that are shown. Later ones usually follow from these.
const MAX_SHOWN: usize = 20;

impl ConfigErrors {
    /// Returns the errors; `None` if there are none.
    #[must_use]
    pub fn of(mut errors: Vec<ConfigError>) -> Option<Self> {
        // A stable sort keeps mistakes at one place, and mistakes without a place, in their order.
        errors.sort_by_key(|error| (error.origin.rank(), error.location().map(Location::line)));
        (!errors.is_empty()).then_some(Self(errors))
    }

    /// Returns the first mistake.
    #[must_use]
    pub fn first(&self) -> &ConfigError {
        &self.0[0]
    }

    /// Returns all of them.
    #[must_use]
    pub fn all(&self) -> &[ConfigError] {
        &self.0
    }

    /// Returns whether another start may succeed without a change of settings: no error is a
    /// mistake.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.0.iter().all(|error| error.may_pass)
    }

    /// Returns the text with the offending lines of the file.
    #[must_use]
    pub fn with_lines(&self) -> String {
        self.shown(|error| match error.excerpt() {
            Some(excerpt) => {
                format!("{error}\n  {}", excerpt.replace('\n', "\n  "))
            }
            None => error.to_string(),
        })
    }

    fn shown(&self, show: impl Fn(&ConfigError) -> String) -> String {
        let mut lines: Vec<String> = self.0.iter().take(MAX_SHOWN).map(show).collect();
        if self.0.len() > MAX_SHOWN {
            lines.push(format!("and {} more", self.0.len() - MAX_SHOWN));
        }
        lines.join("\n")
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown(ConfigError::to_string))
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}
