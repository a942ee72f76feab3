//! The orders, and the reports.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use throng_carry::link::LinkMessage;
use throng_io::Slots;

use super::{Pauses, Stays};

/// The number of a link in this process: what a thread that reads an earlier link still posts does
/// not concern the next one.
pub(crate) type LinkNumber = u64;

/// The number of the link to the predecessor.
pub(crate) const PREDECESSOR: LinkNumber = 0;

/// The state of a shard's move, which its thread publishes.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Tunnels that the successor has.
    pub(crate) moved: u64,
    /// The connections of clients that have not moved, once it is over.
    pub(crate) stays: BTreeMap<Stays, u64>,
    /// The time for which each tunnel that moved has rested, once it is over.
    pub(crate) pauses: Pauses,
    /// No more tunnels move, and none is in flight.
    pub(crate) is_over: bool,
    /// The successor does not answer, or breaks the rules, with tunnels in flight.
    pub(crate) is_stalled: bool,
    /// All tunnels are back after the end of the successor.
    pub(crate) is_closed: bool,
}

/// An order, or news, about tunnels that move to or from another process.
#[derive(Debug)]
pub enum MoveCommand {
    /// Give the free slots to the successor, to which this link leads.
    Give {
        /// The link.
        link: UnixStream,
        /// Its number.
        number: LinkNumber,
        /// The slots are sent here.
        slots: Sender<io::Result<Slots>>,
        /// The state of the move.
        progress: Arc<Mutex<Progress>>,
    },
    /// The successor accepts: move tunnels.
    Begin,
    /// Look at the time, and go on.
    Look,
    /// Move no more tunnels.
    Stop,
    /// A message came over the link with this number, and these descriptors with it.
    Message(LinkNumber, LinkMessage, Vec<OwnedFd>),
    /// The link with this number has ended.
    LinkEnded(LinkNumber),
    /// The process at the other end of the link with this number has ended.
    Died(LinkNumber),
    /// The successor has all: end the link.
    End,
}
