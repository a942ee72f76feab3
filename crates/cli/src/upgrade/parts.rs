//! The interface between upgrades and the program that serves.

use std::io;
use std::time::Instant;

use throng_config::UpgradeSettings;
use throng_io::handover::Passage;

/// The parts of the running server that upgrades need.
pub(crate) struct Source {
    /// Returns the settings in force.
    pub(crate) settings: Box<dyn Fn() -> UpgradeSettings + Send + Sync>,
    /// Returns the number of open connections.
    pub(crate) connections: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Returns what the successor's program needs besides the sockets, in JSON.
    pub(crate) state: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    /// Moves connections, if the program can.
    pub(crate) moves: Option<Box<dyn Moves>>,
}

/// A program whose connections move to a successor. Its event loops and the successor's are pairs.
pub(crate) trait Moves: Send + Sync {
    /// Returns the number of event loops, if connections can move now.
    fn loops(&self) -> Option<usize>;

    /// Returns the part of each event loop for a successor that has as many.
    fn begin(&self) -> io::Result<Vec<Passage>>;

    /// Moves connections, at most until `until`, and returns how many have moved. After an error,
    /// the successor must be ended.
    fn run(&self, until: Instant, is_alive: &mut dyn FnMut() -> bool) -> Result<u64, String>;

    /// Takes back what a successor, which has ended, has not taken.
    fn abandon(&self);

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
