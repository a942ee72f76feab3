//! Commands, as clients send them.

use std::collections::HashMap;

use serde::Deserialize;

use crate::data;

/// A command: its number, and one of the requests. An empty one answers a ping.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub struct ClientCommand {
    /// The number that the reply repeats; 0: no reply is expected.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Begins the session.
    #[prost(message, optional, boxed, tag = "4")]
    pub connect: Option<Box<ConnectRequest>>,
    /// Subscribes to a channel.
    #[prost(message, optional, boxed, tag = "5")]
    pub subscribe: Option<Box<SubscribeRequest>>,
    /// Leaves a channel.
    #[prost(message, optional, tag = "6")]
    pub unsubscribe: Option<ChannelRequest>,
    /// Publishes to a channel.
    #[prost(message, optional, tag = "7")]
    pub publish: Option<PublishRequest>,
    /// Lists the clients in a channel.
    #[prost(message, optional, tag = "8")]
    pub presence: Option<ChannelRequest>,
    /// Counts the clients in a channel.
    #[prost(message, optional, tag = "9")]
    pub presence_stats: Option<ChannelRequest>,
    /// Reads the last publications of a channel.
    #[prost(message, optional, tag = "10")]
    pub history: Option<HistoryRequest>,
    /// A ping of the client's; clients of this version send none.
    #[prost(message, optional, tag = "11")]
    pub ping: Option<PingRequest>,
    /// A message to the application, without a reply.
    #[prost(message, optional, tag = "12")]
    pub send: Option<SendRequest>,
    /// A call of the application.
    #[prost(message, optional, tag = "13")]
    pub rpc: Option<RpcRequest>,
    /// A new token of the connection.
    #[prost(message, optional, tag = "14")]
    pub refresh: Option<RefreshRequest>,
    /// A new token of a subscription.
    #[prost(message, optional, tag = "15")]
    pub sub_refresh: Option<SubRefreshRequest>,
}

/// The request of the first command.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub struct ConnectRequest {
    /// The token; empty without one.
    #[prost(string, tag = "1")]
    pub token: String,
    /// Data for the application.
    #[prost(bytes = "vec", tag = "2")]
    #[serde(deserialize_with = "data::deserialize")]
    pub data: Vec<u8>,
    /// Server-side subscriptions that the client had before.
    #[prost(map = "string, message", tag = "3")]
    pub subs: HashMap<String, SubscribeRequest>,
    /// The name of the client's program.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The version of the client's program.
    #[prost(string, tag = "5")]
    pub version: String,
}

/// The request of a subscription.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub struct SubscribeRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The token of the subscription; empty without one.
    #[prost(string, tag = "2")]
    pub token: String,
    /// Whether the client continues from a position.
    #[prost(bool, tag = "3")]
    pub recover: bool,
    /// The epoch of that position.
    #[prost(string, tag = "6")]
    pub epoch: String,
    /// The offset of that position.
    #[prost(uint64, tag = "7")]
    pub offset: u64,
    /// Data for the application.
    #[prost(bytes = "vec", tag = "8")]
    #[serde(deserialize_with = "data::deserialize")]
    pub data: Vec<u8>,
    /// Whether the client wants its position checked.
    #[prost(bool, tag = "9")]
    pub positioned: bool,
    /// Whether the client wants to recover later.
    #[prost(bool, tag = "10")]
    pub recoverable: bool,
    /// Whether the client wants joins and leaves.
    #[prost(bool, tag = "11")]
    pub join_leave: bool,
    /// The kind of differences that the client accepts in place of whole publications.
    #[prost(string, tag = "12")]
    pub delta: String,
    /// A filter by tags, which this server does not have.
    #[prost(message, optional, tag = "13")]
    pub tf: Option<Anything>,
    /// Bit 0: short numbers in place of the channel's name; bit 1: an error if the client cannot
    /// continue from its position.
    #[prost(int64, tag = "14")]
    pub flag: i64,
    /// The kind of the subscription; 0: a stream of publications.
    #[prost(int32, tag = "15")]
    pub r#type: i32,
}

/// A message whose content does not matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Anything {}

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(from).map(|_| Self {})
    }
}

/// A request that has only a channel.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct ChannelRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    pub channel: String,
}

/// The request of a publication.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct PublishRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The payload.
    #[prost(bytes = "vec", tag = "2")]
    #[serde(deserialize_with = "data::deserialize")]
    pub data: Vec<u8>,
    /// The kind of the publication; 0: to a stream.
    #[prost(int32, tag = "3")]
    pub r#type: i32,
}

/// The request of a channel's history.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct HistoryRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The most publications; 0: only the position; below 0: as many as the server gives.
    #[prost(int32, tag = "7")]
    pub limit: i32,
    /// The position after which they begin, or before which they end.
    #[prost(message, optional, tag = "8")]
    pub since: Option<StreamPosition>,
    /// Whether the newest comes first.
    #[prost(bool, tag = "9")]
    pub reverse: bool,
}

/// A place in a channel's sequence of publications.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct StreamPosition {
    /// The offset of the last publication before it.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// The epoch of the sequence.
    #[prost(string, tag = "2")]
    pub epoch: String,
}

/// A ping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct PingRequest {}

/// A message to the application.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct SendRequest {
    /// The payload.
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "data::deserialize")]
    pub data: Vec<u8>,
}

/// A call of the application.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct RpcRequest {
    /// The payload.
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "data::deserialize")]
    pub data: Vec<u8>,
    /// The name of the function.
    #[prost(string, tag = "2")]
    pub method: String,
}

/// A new token of the connection.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct RefreshRequest {
    /// The token.
    #[prost(string, tag = "1")]
    pub token: String,
}

/// A new token of a subscription.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct SubRefreshRequest {
    /// The channel.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The token.
    #[prost(string, tag = "2")]
    pub token: String,
    /// The kind of the request; 0: a new token.
    #[prost(int32, tag = "3")]
    pub r#type: i32,
}
