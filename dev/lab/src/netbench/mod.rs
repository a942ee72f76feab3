//! The blank/work benchmark (NetBenchmarks) as a client: its whole matrix on any server command.
//!
//! For each number of connections and each mode the server is started afresh, asked a few requests
//! whose answers are checked in full, put under [`http`](throng_load::http) load with one request
//! at a time on each connection, asked again, and ended with everything it started. A server that
//! fails a case fails that row; the others still run.

mod check;
pub(crate) mod command;
mod document;
mod ordered;
mod plan;
pub(crate) mod process;
mod report;
mod run;
mod server_command;

use std::fmt;

use serde::Serialize;

pub(crate) use plan::{PORT, Plan};
pub(crate) use run::{CaseProgress, run};
pub(crate) use server_command::ServerCommand;

/// Cost of a request at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// No body; the answer is `OK`.
    Blank,
    /// A JSON document; the answer is another that has to be computed from it.
    Work,
}

impl Mode {
    /// The word in reports.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Blank => "blank",
            Self::Work => "work",
        }
    }

    /// The argument with which the suite starts a server: `0` or `1`.
    #[must_use]
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Blank => "0",
            Self::Work => "1",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
