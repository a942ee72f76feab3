//! Orders to a shard about tunnels that move to another process, and its reports.

#[cfg(target_os = "linux")]
mod orders;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "tunnels do not move"))]
mod pauses;

use std::collections::BTreeMap;

#[cfg(target_os = "linux")]
pub(crate) use self::orders::{LinkNumber, MoveCommand, PREDECESSOR, Progress};
pub use self::pauses::Pause;
pub(crate) use self::pauses::Pauses;

/// Tunnels that have moved to a successor.
#[derive(Clone, Debug, Default)]
pub struct MovedTunnels {
    /// Their number.
    pub tunnels: u64,
    /// The times for which they rested.
    pub pause: Pause,
    /// The number of clients' connections that have not moved, by the reason.
    pub stays: BTreeMap<Stays, u64>,
}

/// An order about tunnels that move. They do not move on this system.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub enum MoveCommand {}

/// Why a connection of a client stays. It drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stays {
    /// It has not sent a whole request, or is between two.
    Idle,
    /// A request, or a handshake, is under way.
    Request,
    /// It is closed, or has had its last answer.
    Closing,
    /// A tunnel with a side that has ended its stream, or has been sent a Close frame.
    Ending,
    /// A tunnel whose backend takes no clients.
    Backend,
    /// A tunnel that the successor has refused.
    Refused,
    /// A tunnel that did not move in time.
    Late,
}

impl Stays {
    /// Returns the word for the reason in reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Request => "request",
            Self::Closing => "closing",
            Self::Ending => "ending",
            Self::Backend => "backend",
            Self::Refused => "refused",
            Self::Late => "late",
        }
    }
}
