//! The flags of `throng serve` that are settings, and what follows from them.

use throng_config::{Draft, Sources, Table};

use super::{Settings, TABLE};
use crate::failure::Failure;
use crate::flags::{HasTable, TableFlags};
use crate::terminal;

/// The flags that are settings; shared by `serve` and `config show`.
pub type SettingFlags = TableFlags<Settings>;

impl HasTable for Settings {
    fn table() -> &'static Table {
        &TABLE
    }
}

impl SettingFlags {
    /// Reads all sources. `defaults` override the defaults of the table, because of `reason`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn draft(
        &self,
        reason: &'static str,
        defaults: &[(&str, &str)],
    ) -> Result<Draft, Failure> {
        Ok(completed(self.sources()?, reason, defaults))
    }

    /// Does the same while the server runs, when the file may be incomplete.
    ///
    /// # Errors
    /// The file cannot be read, or looks incomplete.
    pub(super) fn draft_in_use(
        &self,
        reason: &'static str,
        defaults: &[(&str, &str)],
    ) -> Result<Draft, Failure> {
        Ok(completed(self.sources_in_use()?, reason, defaults))
    }

    /// Returns the checked settings, and prints warnings. `defaults` override the defaults of the
    /// table, because of `reason`.
    ///
    /// # Errors
    /// All mistakes, with their place and remedy.
    pub fn settings(
        &self,
        reason: &'static str,
        defaults: &[(&str, &str)],
    ) -> Result<Settings, Failure> {
        let draft = self.draft(reason, defaults)?;
        let settings = Settings::from_draft(draft)?;
        settings.warnings.iter().for_each(terminal::error_line);
        Ok(settings)
    }
}

fn completed(mut sources: Sources, reason: &'static str, defaults: &[(&str, &str)]) -> Draft {
    for (key, text) in defaults {
        sources.default_to(key, text, reason);
    }
    // A message may come in a single frame.
    sources.raise("max_frame_size", "max_message_size");
    sources.finish()
}
