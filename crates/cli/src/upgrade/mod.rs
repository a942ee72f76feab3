//! Upgrades: a process replaces itself by a successor, which takes its listening sockets.
//!
//! The sockets are the same ones in both processes, so that no connect is refused, and connections
//! that wait for an accept are not reset. Until the successor accepts, it can fail in any way: the
//! predecessor only goes on. Then the predecessor stops accepting, and drains its connections.
//!
//! ```text
//! predecessor                         successor
//!      <- HELLO    forms that it reads, its build
//!      -> SOCKETS* listening sockets, with their descriptors
//!      -> PLAN     all that was sent
//!      <- READY    has read its configuration, and listens
//!      -> PASSAGE* for each event loop: its free slots, and a link, if connections can move
//!      -> GO                             STOP instead: it ends
//!      <- SERVING  accepts
//!         connections move over the links
//!      -> DONE     has stopped accepting operators, and stops accepting clients
//! ```
//!
//! REFUSE, with the reason, takes the place of any message of the successor.

mod command;
#[cfg(target_os = "linux")]
mod control;
#[cfg(not(target_os = "linux"))]
mod none;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has upgrades"))]
mod parts;
#[cfg(target_os = "linux")]
mod predecessor;
#[cfg(target_os = "linux")]
mod program;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has upgrades"))]
mod report;
#[cfg(target_os = "linux")]
mod successor;

use serde::Deserialize;
use throng::http::Status;
use throng::{Request, Response};

use crate::admin::body::optional_body;
use crate::admin::guard::refuse;

pub(crate) use self::command::{Args, run};
#[cfg(not(target_os = "linux"))]
pub(crate) use self::none::{Predecessor, Upgrades};
#[cfg(feature = "balance")]
pub(crate) use self::parts::Moves;
pub(crate) use self::parts::{Done, Next, Refusal, Source};
#[cfg(target_os = "linux")]
pub(crate) use self::predecessor::Predecessor;
use self::report::UpgradeReport;
#[cfg(feature = "balance")]
pub(crate) use self::report::{Moved, Pause};
#[cfg(target_os = "linux")]
pub(crate) use self::successor::Upgrades;

/// The body of `POST /upgrade`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Options {
    dry_run: bool,
}

/// Answers `POST /upgrade`, which was checked, when the upgrade has succeeded or failed.
pub(crate) fn answer(upgrades: &Upgrades, request: &Request<'_>) -> Response {
    let options = match optional_body::<Options>(request, &serde_json::json!({"dry_run": true})) {
        Ok(options) => options,
        Err(refusal) => return refusal,
    };
    match upgrades.run(options.dry_run) {
        Ok(report) => {
            Response::json(format!("{}\n", serde_json::to_string(&report).unwrap_or_default()))
        }
        Err(Refusal::Busy) => refuse(Status::new(409), "an upgrade is under way"),
        Err(Refusal::Failed(why)) => refuse(Status::new(422), &why),
        Err(Refusal::Ending) => Response::unavailable(1, "shutting down"),
    }
}

/// Answers `GET /upgrade`, which was checked.
pub(crate) fn answer_state(upgrades: &Upgrades) -> Response {
    Response::json(format!("{}\n", serde_json::to_string(&upgrades.state()).unwrap_or_default()))
}
