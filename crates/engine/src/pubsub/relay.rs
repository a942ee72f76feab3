//! The broker that carries publications between processes, as the engine sees it.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::task;

use throng_io::{ConnId, Waker};

use crate::outbox::frame::Frame;
use crate::pubsub::history::Recovery;
use crate::pubsub::presence::PresenceChange;

/// Carries the publications of channels to all processes of a cluster, this one included: they come
/// back by [`Remote::publish_followed`](crate::Remote::publish_followed), or, with a history, by
/// [`Remote::deliver_followed`](crate::Remote::deliver_followed).
///
/// Calls come from shards, some under a lock: they must not wait, and must not call back.
pub trait Relay: Any + Debug + Send + Sync {
    /// Returns whether it carries the publications of this channel.
    fn carries(&self, channel: &str) -> bool;

    /// Takes a publication; `None`: it cannot. A `publisher` is a connection that is not read while
    /// its part of the queue to the broker is [crowded](RelayFill::Crowded), may use the room that
    /// is reserved for publishers, and learns if the publication is lost.
    fn publish(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        publisher: Option<ConnId>,
    ) -> Option<(RelayFill, Arc<dyn Carried>)>;

    /// Returns whether the broker has been there for this channel since the start. Until then no
    /// member is admitted.
    fn was_linked(&self, channel: &str) -> bool;

    /// Registers `waker` to be woken when the queue to this part of the broker is no longer
    /// crowded; returns false if it is not crowded now. It replaces the waker that the same
    /// `sender` registered for the part before.
    fn await_capacity(&self, part: u16, sender: usize, waker: &Waker) -> bool;

    /// Records that a channel has its first member in this process.
    fn enter(&self, channel: &Arc<str>);

    /// Records that a channel has lost its last member in this process.
    fn leave(&self, channel: &Arc<str>);

    /// Records that members wait for the channel's position:
    /// [`Remote::admit_to_followed`](crate::Remote::admit_to_followed) must follow.
    fn ask(&self, channel: &Arc<str>, question: Question);

    /// Takes the join or leave of a client in a channel with presence that it carries. With
    /// `announces` it comes back to members of all processes, by
    /// [`Remote::announce_followed`](crate::Remote::announce_followed).
    fn present(&self, presence: CarriedPresence<'_>);
}

/// The outcome of a publication that a broker carries: known once the broker has answered, or has
/// not answered for too long.
pub trait Carried: Debug + Send + Sync {
    /// Returns the outcome, if it is known.
    fn outcome(&self) -> Option<CarriedOutcome>;

    /// Returns the outcome, if it is known; otherwise calls `waker` when it is.
    fn poll_outcome(&self, waker: &task::Waker) -> Option<CarriedOutcome>;
}

/// Outcome of a publication that a broker carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedOutcome {
    /// The broker has it, or, while that is away, the members of this process got it.
    Taken,
    /// The broker has not taken it: no member gets it.
    Refused,
    /// The broker has not answered: members may get it.
    Unknown,
}

/// Fill of the queue to the broker after a publication was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayFill {
    /// There is room for many more.
    Available,
    /// The queue to the part of the broker that has the channel is crowded: see
    /// [`Relay::await_capacity`].
    Crowded(u16),
}

/// A client that joined or left a channel with presence that a broker carries.
#[derive(Clone, Copy, Debug)]
pub struct CarriedPresence<'a> {
    /// Whether it came or went.
    pub change: PresenceChange,
    /// The channel.
    pub channel: &'a str,
    /// The connection.
    pub client: ConnId,
    /// The information that it was given when it joined.
    pub info: &'a str,
    /// Whether members get joins and leaves.
    pub announces: bool,
}

/// Question to a broker, before a member can join a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Publications since this process has heard of the channel.
    New,
    /// All publications that the broker keeps:
    /// [`Remote::refill_followed`](crate::Remote::refill_followed) must follow.
    All,
}

/// Event of a connection whose [`Recovery`] was pending.
#[derive(Debug)]
pub struct Joined {
    /// The channel.
    pub channel: Arc<str>,
    /// Whether the client had a position.
    pub is_return: bool,
    /// The outcome.
    pub recovery: Recovery,
}
