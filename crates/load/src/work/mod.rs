//! One file for each mode: the work of its connections.

mod broadcast;
mod chat;
mod closed;
mod connect;
mod fanout;
mod idle;
mod open;
mod open_connect;
mod script;

pub(crate) use broadcast::{Broadcast, BroadcastOutcome, Publication};
pub(crate) use chat::{Chat, ChatCounters};
pub(crate) use closed::{ClosedEcho, ClosedOutcome};
pub(crate) use connect::{Connect, ConnectOutcome};
pub(crate) use fanout::{ChannelLayout, Fanout, FanoutOutcome, FanoutTally, split as split_stamp};
pub(crate) use idle::{Closes, Idle};
pub(crate) use open::{OpenEcho, OpenOutcome};
pub(crate) use open_connect::{OpenConnect, OpenConnectOutcome};
pub(crate) use script::{ScriptOutcome, ScriptWork};
