//! The settings of upgrades, shared by `serve` and `balance`.

use std::time::Duration;

use crate::draft::Draft;
use crate::key::{Key, Kind};

/// A process that needs longer to start does not start at all.
const LONGEST_START: Duration = Duration::from_secs(3600);

/// The keys of upgrades.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    Key::new("upgrade.window", Kind::DURATION, "30s",
        "after an upgrade, the old process closes its connections over this time, and resets those \
         that are left after as long again"),
    Key::new("upgrade.start", Kind::duration(Duration::from_secs(1), LONGEST_START), "30s",
        "time that the new process has to start in an upgrade; then the old one goes on alone"),
];

/// The settings of upgrades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpgradeSettings {
    /// The time over which the old process closes its connections.
    pub window: Duration,
    /// The time that the new process has to start.
    pub start: Duration,
}

impl UpgradeSettings {
    /// Reads the keys of this module.
    #[must_use]
    pub fn from_draft(draft: &Draft) -> Self {
        Self { window: draft.get("upgrade.window"), start: draft.get("upgrade.start") }
    }
}
