//! The work of the connections in each mode.

mod broadcast;
mod chat;
mod connect;
mod echo;
mod fanout;
mod idle;
mod script;

pub(crate) use broadcast::{Broadcast, BroadcastOutcome, Publication};
pub(crate) use chat::{Chat, ChatCounters};
pub(crate) use connect::{Connect, ConnectOutcome};
pub(crate) use echo::{Echo, EchoOutcome};
pub(crate) use fanout::{ChannelLayout, Fanout, FanoutOutcome, FanoutTally, split as split_stamp};
pub(crate) use idle::{Closes, Idle};
pub(crate) use script::{ScriptOutcome, ScriptWork};
