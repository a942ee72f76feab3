//! The interface between upgrades and the program that serves.

use std::io;
use std::time::Instant;

use throng_carry::Secret;
use throng_config::UpgradeSettings;
use throng_io::handover::Passage;

use super::report::{Moved, UpgradeReport};

/// The parts of the running server that upgrades need.
pub(crate) struct Source {
    /// Returns the settings in force.
    pub(crate) settings: Box<dyn Fn() -> UpgradeSettings + Send + Sync>,
    /// Returns the number of open connections.
    pub(crate) connections: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Returns what the successor's program needs besides the sockets, in JSON.
    pub(crate) state: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    /// Returns the keys of session tickets.
    pub(crate) ticket_keys: Box<dyn Fn() -> Secret + Send + Sync>,
    /// Moves connections, if the program can.
    pub(crate) moves: Option<Box<dyn Moves>>,
    /// Lets operators connect to the successor only. From here on, this process's figures are not
    /// read.
    pub(crate) leave_operators: Box<dyn Fn() + Send + Sync>,
    /// Returns the program's counters, in JSON, for its successor to count on.
    pub(crate) counts: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
}

/// A program whose connections move to a successor. Its event loops and the successor's are pairs.
pub(crate) trait Moves: Send + Sync {
    /// Returns the number of event loops, if connections can move now.
    fn loops(&self) -> Option<usize>;

    /// Returns the part of each event loop for a successor that has as many.
    fn begin(&self) -> io::Result<Vec<Passage>>;

    /// Moves connections, at most until `until`. After an error, the successor must be ended.
    fn run(&self, until: Instant, is_alive: &mut dyn FnMut() -> bool) -> Result<Moved, String>;

    /// Takes back what a successor, which has ended, has not taken. Returns how many connections
    /// were the successor's.
    fn abandon(&self) -> u64;

    /// Ends the move to a successor that has everything.
    fn end(&self);
}

/// The order of the predecessor to a successor that is ready.
#[derive(Debug)]
pub(crate) enum Next {
    /// Serve. Connections move from the predecessor's event loops, if it has parts of any.
    Serve(
        #[cfg_attr(not(feature = "balance"), allow(dead_code, reason = "its tunnels"))]
        Vec<Passage>,
    ),
    /// End: it was only a trial.
    Leave,
}

/// The last message of the predecessor.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// The counters of its program, in JSON.
    pub(super) counts: Vec<u8>,
    /// The report of the upgrade.
    pub(crate) report: Option<UpgradeReport>,
}

impl Done {
    /// Returns the counters of the predecessor's program; `None` if they are of another form.
    pub(crate) fn counts<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.counts).ok()
    }
}

/// Why there was no upgrade.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Another one is under way.
    Busy,
    /// The successor failed, for this reason.
    Failed(String),
    /// The process ends.
    Ending,
}
