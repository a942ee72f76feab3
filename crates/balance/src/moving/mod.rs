//! Orders to a shard about tunnels that move to another process, and its reports.

#[cfg(target_os = "linux")]
mod orders;

#[cfg(target_os = "linux")]
pub(crate) use self::orders::{LinkNumber, MoveCommand, PREDECESSOR, Progress};

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
    /// A tunnel that ends, whose backend takes no clients, or that the successor has refused.
    Tunnel,
}
