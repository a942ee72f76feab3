//! The outcome of a rule.

/// The state of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// The wanted number of connections is not possible, or clients will be lost.
    Fail,
    /// Works, and will be slow or fragile.
    Warn,
    /// To be known; no harm is expected.
    Info,
    /// As wanted.
    Pass,
    /// Does not apply here, or the machine does not have the facts.
    Skip,
}

impl Status {
    /// Returns its word in reports and in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Pass => "pass",
            Self::Skip => "skip",
        }
    }
}

/// A change that lifts a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A kernel setting.
    Sysctl {
        /// Its name with dots.
        key: &'static str,
        /// The value to set.
        value: String,
        /// The value of today, for undoing it.
        old: String,
    },
    /// A file below /sys.
    SysFile {
        /// Its path.
        path: &'static str,
        /// The text to write.
        value: String,
    },
    /// A setting of the program, as `key=value`.
    Setting(String),
    /// A line of a systemd unit.
    Systemd(String),
    /// A command of the shell that starts the program.
    Shell(String),
    /// A flag of Docker or Podman, or a field of a pod.
    Container(String),
    /// A change in the program or in how it is run, in words.
    Code(String),
}

impl Remedy {
    /// Returns the kind: `sysctl`, `file`, `setting`, `systemd`, `shell` or `container`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sysctl { .. } => "sysctl",
            Self::SysFile { .. } => "file",
            Self::Setting(_) => "setting",
            Self::Systemd(_) => "systemd",
            Self::Shell(_) => "shell",
            Self::Container(_) => "container",
            Self::Code(_) => "code",
        }
    }

    /// Returns the command or the line.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Sysctl { key, value, .. } if value.contains(char::is_whitespace) => {
                format!("sysctl -w {key}='{value}'")
            }
            Self::Sysctl { key, value, .. } => format!("sysctl -w {key}={value}"),
            Self::SysFile { path, value } => format!("echo {value} > {path}"),
            Self::Setting(text)
            | Self::Systemd(text)
            | Self::Shell(text)
            | Self::Container(text)
            | Self::Code(text) => text.clone(),
        }
    }
}

/// The outcome of a rule, before it is joined with the rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) status: Status,
    pub(crate) found: String,
    pub(crate) wanted: String,
    pub(crate) reason: String,
    pub(crate) wall: Option<u64>,
    pub(crate) remedies: Vec<Remedy>,
    /// A condition was met: why it matters need not be said.
    is_met: bool,
}

impl Verdict {
    fn new(status: Status, found: impl Into<String>) -> Self {
        Self {
            status,
            found: found.into(),
            wanted: String::new(),
            reason: String::new(),
            wall: None,
            remedies: Vec::new(),
            is_met: false,
        }
    }

    pub(crate) fn pass(found: impl Into<String>) -> Self {
        Self::new(Status::Pass, found)
    }

    /// Creates a verdict of `status`, or a pass if `is_fine`.
    pub(crate) fn unless(is_fine: bool, status: Status, found: impl Into<String>) -> Self {
        let status = if is_fine { Status::Pass } else { status };
        Self { is_met: is_fine, ..Self::new(status, found) }
    }

    pub(crate) fn skip(reason: impl Into<String>) -> Self {
        Self::new(Status::Skip, "").because(reason)
    }

    pub(crate) fn wanted(mut self, wanted: impl Into<String>) -> Self {
        self.wanted = wanted.into();
        self
    }

    pub(crate) fn because(mut self, reason: impl Into<String>) -> Self {
        if !self.is_met {
            self.reason = reason.into();
        }
        self
    }

    /// Sets the number of connections that the limit stops.
    pub(crate) fn wall(mut self, connections: u64) -> Self {
        self.wall = Some(connections);
        self
    }

    /// Adds a remedy, unless the rule passes.
    pub(crate) fn remedy(mut self, remedy: Remedy) -> Self {
        if self.status != Status::Pass {
            self.remedies.push(remedy);
        }
        self
    }
}

/// The outcome of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The rule's id, which stays from release to release.
    pub id: &'static str,
    /// The name of the limit.
    pub title: &'static str,
    /// The state.
    pub status: Status,
    /// The state of the machine; empty if it is not known.
    pub found: String,
    /// The state that is wanted; empty if there is no number for it.
    pub wanted: String,
    /// Why it matters here, or why the rule was skipped.
    pub reason: String,
    /// The number of connections at which this limit stops more of them, if it does.
    pub wall: Option<u64>,
    /// Changes that lift the limit.
    pub remedies: Vec<Remedy>,
    /// The formula.
    pub formula: &'static str,
    /// The source of the formula.
    pub source: &'static str,
}

impl Finding {
    /// Returns the outcome of the rule with this id, title, formula and source.
    pub(crate) fn of([id, title, formula, source]: [&'static str; 4], verdict: Verdict) -> Self {
        let Verdict { status, found, wanted, reason, wall, remedies, is_met: _ } = verdict;
        Self { id, title, status, found, wanted, reason, wall, remedies, formula, source }
    }
}
