//! Processes without predecessors and successors: only Linux passes sockets on to another process.

#[cfg(feature = "tls")]
use throng_carry::Secret;
use throng_io::HeldListeners;

use super::report::{UpgradeReport, UpgradeState};
use super::{Done, Next, Refusal, Source};
use crate::failure::Failure;
use crate::log::{Log, events};

/// The reason that every upgrade fails, with the remedy.
const UNSUPPORTED: &str =
    "only Linux passes sockets on to a new process: stop this process, and start the new one";

/// The process that has started this one as its successor: none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predecessor;

impl Predecessor {
    /// Runs a server with listening sockets of its own.
    pub(crate) fn run<T>(
        serve: impl FnOnce(&Self, HeldListeners) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        serve(&Self, HeldListeners::default())
    }

    pub(crate) fn ready(&self, _loops: Option<usize>) -> Result<Next, Failure> {
        Ok(Next::Serve(Vec::new()))
    }

    pub(crate) fn serving(&self) -> Result<Done, Failure> {
        Ok(Done::default())
    }

    #[cfg(feature = "tls")]
    pub(crate) fn ticket_keys(&self) -> Secret {
        Secret::default()
    }

    #[cfg(feature = "balance")]
    pub(crate) fn state<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        None
    }
}

/// The upgrades of this process, which all fail.
#[derive(Clone)]
pub(crate) struct Upgrades {
    log: Log,
}

impl Upgrades {
    pub(crate) fn new(_held: HeldListeners, log: Log) -> Self {
        Self { log }
    }

    pub(crate) fn serving(&self, _source: Source, _begun_by: Option<UpgradeReport>) {}

    pub(crate) fn state(&self) -> UpgradeState {
        UpgradeState { state: "idle", last: None }
    }

    /// Logs that the upgrade fails.
    pub(crate) fn start(&self) {
        self.log.event(&events::UPGRADE_FAILED, "", [("reason", UNSUPPORTED.into())]);
    }

    /// Logs that the upgrade fails, and returns the reason.
    pub(crate) fn run(&self, _dry_run: bool) -> Result<UpgradeReport, Refusal> {
        self.start();
        Err(Refusal::Failed(UNSUPPORTED.to_owned()))
    }

    pub(crate) fn is_replaced(&self) -> bool {
        false
    }

    #[cfg(feature = "balance")]
    pub(crate) fn is_under_way(&self) -> bool {
        false
    }

    pub(crate) fn left(&self) {}

    /// Returns whether a successor accepts.
    pub(crate) fn end(&self) -> bool {
        false
    }
}
