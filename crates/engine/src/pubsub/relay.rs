//! The broker that carries publications between processes, as the engine sees it.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::task;

use throng_io::{ConnId, Waker};

use crate::outbox::about::PresenceChange;
use crate::outbox::frame::Frame;
use crate::pubsub::history::Recovery;

/// Carries the publications of channels to all processes of a cluster, this one included: they come
/// back by [`Remote::publish_followed`](crate::Remote::publish_followed), or, with a history, by
/// [`Remote::deliver_followed`](crate::Remote::deliver_followed).
///
/// Calls come from shards, some under a lock: they must not wait, and must not call back.
pub trait Relay: Any + Debug + Send + Sync {
    /// Returns whether it carries the publications of this channel.
    fn carries(&self, channel: &str) -> bool;

    /// Takes a publication, or returns `None` if it cannot. A `publisher` is a connection: it is
    /// not read while its part of the queue to the broker is [crowded](RelayFill::Crowded), may use
    /// the space reserved for publishers, and is informed if the publication is lost.
    fn publish(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        publisher: Option<ConnId>,
    ) -> Option<(RelayFill, Arc<dyn Carried>)>;

    /// Returns whether the broker for this channel has been connected at any time since the start.
    /// Until then no member is admitted.
    fn was_linked(&self, channel: &str) -> bool;

    /// Registers `waker` to be woken when the queue to this part of the broker is no longer
    /// crowded; returns false if it is not crowded now. The waker replaces an earlier waker of the
    /// same `sender` for this part.
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

/// The outcome of a publication that a broker carries. It is known once the broker has answered or
/// the wait has timed out.
pub trait Carried: Debug + Send + Sync {
    /// Returns the outcome, if it is known.
    fn outcome(&self) -> Option<CarriedOutcome>;

    /// Returns the outcome, if it is known; otherwise calls `waker` when it is.
    fn poll_outcome(&self, waker: &task::Waker) -> Option<CarriedOutcome>;
}

/// Outcome of a publication that a broker carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedOutcome {
    /// The broker has the publication. While the broker is disconnected: the members of this
    /// process got it.
    Taken,
    /// The broker has not accepted the publication: no member gets it.
    Refused,
    /// The broker has not answered: members may or may not get the publication.
    Unknown,
}

/// Fill level of the queue to the broker after it took a publication.
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
