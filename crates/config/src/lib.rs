//! Settings of Throng's programs: a table of keys, and values from a file, the environment and
//! flags, each with its origin.
//!
//! * Duty: read and check values with their origins, and report all errors at once, each with
//!   place, key, value and remedy.
//! * Not its duty: the keys and their meaning, which are in the crates that read them.
//! * Depends on: `throng-io` to read files, toml, and strsim for hints.
//! * Start reading at: [`Key`], then [`Sources`] and [`Draft`].
//!
//! To add a setting, add a row to its program's table, and read it with [`Draft::get`] or
//! [`Draft::parse`] where the program converts its settings.
//!
//! ```
//! use throng_config::{Draft, Key, Kind, Sources, Table};
//!
//! static KEYS: &[Key] = &[
//!     Key::new("shards", Kind::count(0, 1024), "0", "event loops; 0: one per CPU").at_start(),
//!     Key::new("timeouts.connect", Kind::POSITIVE_DURATION, "5s", "until a connection is made"),
//! ];
//! static TABLE: Table = Table { program: "serve", keys: KEYS };
//!
//! let mut sources = Sources::new(&TABLE);
//! sources.file("t.toml", "[timeouts]\nconnect = \"2 days\"\n");
//! sources.set("shards=2");
//! let draft: Draft = sources.finish();
//! let shards: usize = draft.get("shards");
//! assert_eq!(shards, 2);
//! let errors = draft.finish().unwrap_err();
//! assert_eq!(
//!     errors.to_string(),
//!     "t.toml:2:11: timeouts.connect is \"2 days\": write a duration such as \"5s\", \"250ms\", \
//!      \"2m\" or \"1h\""
//! );
//! ```
#![forbid(unsafe_code)]

pub mod acme;
mod address;
mod draft;
mod entry;
mod environment;
mod error;
mod file;
pub mod foreign;
mod key;
pub mod listen;
mod location;
pub mod log;
mod raw;
mod read;
pub mod server_keys;
mod sources;
pub mod tls;
mod token;
pub mod units;
pub mod upgrade;
mod values;

pub use acme::AcmeValues;
pub use draft::{Draft, Record};
pub use entry::{RecordValue, Value, ValueEntry};
pub use environment::TUNED;
pub use error::{ConfigError, ConfigErrors, Origin};
pub use file::{read_file, read_file_in_use, read_tuned_file};
pub use key::{
    Defaults, Fields, Flag, Key, Kind, Records, Table, ToFields, all_at_start, joined_keys,
    number_of_keys,
};
pub use listen::Listen;
pub use location::Location;
pub use log::{AccessDetail, LogFormat, LogLevel, LogSettings};
pub use sources::Sources;
pub use tls::TlsValues;
pub use token::{Token, TokenFileError};
pub use units::Rate;
pub use upgrade::UpgradeSettings;
pub use values::{FromValue, Values};

/// Returns the default time between the end of readiness and the first close of a shutdown.
/// Kubernetes takes some seconds to notify its proxies that a pod is ending.
#[must_use]
pub fn drain_delay() -> std::time::Duration {
    let is_orchestrated = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    std::time::Duration::from_secs(if is_orchestrated { 5 } else { 0 })
}
