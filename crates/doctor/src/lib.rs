//! The number of connections that a machine holds, the limit that stops more of them, and the next
//! limits.
//!
//! * Duty: read the machine's limits as [`Facts`], judge them by [`rules`], and show the result.
//!   Nothing on the machine is changed.
//! * Not its duty: the settings of programs (`throng-config`), reports to people (`throng-cli`).
//! * Depends on: `throng-io`, for the sums that the programs make when they start.
//! * Start reading at: [`diagnose`], then [`rules`].
//!
//! [`diagnose_live`] judges a running server by its statistics.
//!
//! Rules are pure functions of facts and a question, so a recorded tree of files is test data.
//!
//! ```
//! use throng_doctor::{Facts, Question, Role, diagnose};
//!
//! let facts = Facts { nofile_hard: Some(20_000), ..Facts::default() };
//! let diagnosis = diagnose(&facts, &Question::new(Role::Serve));
//! assert!(diagnosis.connections().is_some_and(|most| most > 19_000 && most < 20_000));
//! ```
#![forbid(unsafe_code)]

mod diagnosis;
mod document;
pub mod facts;
mod finding;
mod live;
mod numbers;
mod question;
pub mod rules;
mod scripts;
mod text;

pub use diagnosis::{Diagnosis, Wall, at_start, diagnose};
pub use document::{document, explain, explain_live};
pub use facts::{Counters, Facts, ReadOptions};
pub use finding::{Finding, Remedy, Status};
pub use live::{LIVE_RULES, LiveRule, diagnose_live, find_live};
pub use numbers::count;
pub use question::{Io, Question, Role, Settings};
pub use scripts::{fix_script, undo_script};
pub use text::{json, live_json, live_report, report};
