//! Channels: publications and their receivers, slow receivers, history and presence.
//!
//! A session joins a channel by [`Socket::subscribe`](crate::Socket::subscribe), and a
//! [`Hub`](crate::Hub) or a [`Socket`](crate::Socket) publishes to it. The rules of channels are
//! set by pattern.

pub use throng_engine::{
    Backpressure, ChannelPattern as Pattern, Delivery, History, HistoryCounts, HistoryMode,
    PatternError, Position, PositionError, Presence, PresenceChange, PresenceCounts, PresenceEvent,
    PresenceSwitch, Publication, QueueFull, Receipt, Recovery, Since, SlowPolicy, UntilDelivered,
    is_channel_token as is_token,
};

pub use crate::builder::Channels;
pub use crate::filter::Filter;
pub use crate::hub::{ChannelSize, HistoryPage, Present, RefreshError};
