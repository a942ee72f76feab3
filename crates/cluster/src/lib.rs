//! Channels that span processes: a broker carries publications between the nodes of a cluster.
//!
//! * Duty: the wire format of publications, the order of a channel's publications on a node, the
//!   channels that a node is subscribed to, and publications that wait for the broker.
//! * Not its duty: members, histories and sockets of clients, which belong to the engine.
//! * Depends on: nothing; with the feature `redis` on redis and tokio.
//! * Start reading at: [`Sequencer`], which gives the members of a channel an unbroken sequence,
//!   then [`Interest`], [`PublishQueue`] and [`Envelope`].
//!
//! All of these are pure state machines, without a socket, a thread or a clock: times are numbers
//! of milliseconds that the caller passes. The module `redis` (of the feature) has sockets, threads
//! and clocks.
#![forbid(unsafe_code)]

mod announcement;
mod control;
mod envelope;
mod held;
mod interest;
mod outbox;
mod outcome;
#[cfg(feature = "redis")]
mod partition;
#[cfg(feature = "redis")]
pub mod redis;
mod roster;
mod sequencer;
mod survey;
mod view;

pub use announcement::Announcement;
pub use control::{Control, MAX_FIELD, MAX_REASON, NodeCommand, Target};
pub use envelope::{
    Envelope, MAX_NAME, Malformed, Place, Placed, TAG_BITS, decode, encode, split_place,
};
pub use held::Budget;
pub use interest::{BATCH, Batch, Interest, Verb};
pub use outbox::{Pending, PublishQueue, WhileDown};
pub use outcome::{Await, Losses, PublishOutcome, Ticket, Unpublished};
pub use roster::{Change, Roster, Update};
pub use sequencer::{SequenceAction, SequenceAnswer, Sequencer, Tail};
pub use survey::{Content, Survey};
pub use view::{Missed, View};
