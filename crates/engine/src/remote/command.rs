//! Commands to a shard.

use std::sync::Arc;

use throng_io::ConnId;

use crate::configuration::Configuration;
use crate::drain::DrainPlan;
use crate::message::{Notice, UserEvent};
use crate::outbox::frame::Frame;
use crate::pubsub::delivery::{AckSlot, Delivery};
use crate::pubsub::filter::Filter;
use crate::pubsub::history::Recorded;
use crate::remote::adoption::Adoption;

/// A request from one thread to the shard of another.
#[derive(Debug)]
pub enum Command {
    /// Send to every member of a channel except one: one command per shard and publication, for any
    /// number of members.
    Publish {
        /// The channel's name.
        channel: Arc<str>,
        /// The message, encoded once.
        frame: Frame,
        /// The member that does not get it, usually the publisher.
        except: Option<ConnId>,
        /// Slot for the shard's counts.
        ack: AckSlot,
    },
    /// Send several messages to every member of a channel.
    PublishAll {
        /// The channel's name.
        channel: Arc<str>,
        /// The messages, encoded once.
        frames: Arc<[Frame]>,
        /// Number of the message that is next.
        next: usize,
        /// The counts of the earlier messages.
        so_far: Delivery,
        /// Slot for the shard's counts.
        ack: AckSlot,
    },
    /// Send a publication of a channel with history to every member but one.
    Recorded {
        /// The publication, and its channel.
        recorded: Arc<Recorded>,
        /// The member that does not get it, usually the publisher.
        except: Option<ConnId>,
        /// Slot for the shard's counts.
        ack: AckSlot,
    },
    /// Send to every connection that a filter selects.
    Broadcast {
        /// Selects the receivers.
        filter: Arc<Filter>,
        /// The message, encoded once.
        frame: Frame,
        /// Slot for the shard's counts.
        ack: AckSlot,
    },
    /// Send to one connection, if it is still there.
    Send {
        /// The connection.
        to: ConnId,
        /// The message.
        frame: Frame,
        /// Gets the count.
        ack: AckSlot,
    },
    /// Begin the closing handshake with one connection, if it is still there.
    Close {
        /// The connection.
        to: ConnId,
        /// The close code (RFC 6455 section 7.4).
        code: u16,
        /// The reason, at most 123 bytes; more are cut off.
        reason: Box<str>,
    },
    /// Begin the closing handshake with every connection that a filter selects.
    CloseAll {
        /// Selects the connections.
        filter: Arc<Filter>,
        /// The close code (RFC 6455 section 7.4).
        code: u16,
        /// The reason, at most 123 bytes; more are cut off.
        reason: Arc<str>,
        /// Slot for the shard's counts.
        ack: AckSlot,
    },
    /// Pass a value to the service of every session and event stream that a filter selects.
    Notify {
        /// Selects the connections.
        filter: Arc<Filter>,
        /// The value.
        notice: Notice,
        /// Slot for the shard's counts.
        ack: AckSlot,
    },
    /// Send the output of a session that waits behind the session's own publication, which is the
    /// previous command.
    Behind {
        /// The session.
        of: ConnId,
    },
    /// Begin a membership: the connection gets publications from here on.
    Joined {
        /// The connection.
        id: ConnId,
        /// The channel or pattern.
        name: Arc<str>,
        /// Whether it is a pattern.
        is_pattern: bool,
    },
    /// Let members of a channel join that wait for its position.
    Admit {
        /// The channel's name.
        channel: Arc<str>,
        /// Members that are left; `None`: all.
        members: Option<Vec<ConnId>>,
    },
    /// Pass a value to the service of one connection, if that is still there.
    Post {
        /// The connection.
        to: ConnId,
        /// The value.
        event: UserEvent,
    },
    /// Pass a value to the service of the shard.
    Call(UserEvent),
    /// Apply other limits and rules from now on.
    Configure {
        /// All of them.
        configuration: Arc<Configuration>,
        /// Counted when they are applied.
        ack: AckSlot,
    },
    /// Serve a connection that was accepted elsewhere.
    Adopt(Box<Adoption>),
    /// Stop accepting, close everything within the plan's window, then stop.
    Drain(DrainPlan),
}

impl Command {
    /// Returns the memory that this command keeps alive.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Publish { frame, .. }
            | Self::Broadcast { frame, .. }
            | Self::Send { frame, .. } => frame.as_bytes().len(),
            Self::PublishAll { frames, .. } => {
                frames.iter().map(|frame| frame.as_bytes().len()).sum()
            }
            Self::Recorded { recorded, .. } => recorded.frame.as_bytes().len(),
            Self::Close { reason, .. } => reason.len(),
            Self::CloseAll { reason, .. } => reason.len(),
            Self::Notify { notice, .. } => notice.bytes,
            Self::Adopt(adoption) => adoption.received.len(),
            Self::Drain(_)
            | Self::Configure { .. }
            | Self::Post { .. }
            | Self::Call(_)
            | Self::Admit { .. }
            | Self::Behind { .. }
            | Self::Joined { .. } => 0,
        }
    }
}
