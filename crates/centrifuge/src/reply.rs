//! Replies, as clients get them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codes::ErrorCode;
use crate::data;

/// The answer to a command: its number, and one of the results or an error. An empty one is a ping.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct Reply {
    /// The number of the command; 0: a push.
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub id: u32,
    /// Why the command failed.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub error: Option<ErrorResult>,
    /// Something that no command asked for.
    #[prost(message, optional, boxed, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub push: Option<Box<Push>>,
    /// The session has begun.
    #[prost(message, optional, boxed, tag = "5")]
    #[serde(skip_serializing_if = "is_default")]
    pub connect: Option<Box<ConnectResult>>,
    /// The client is subscribed.
    #[prost(message, optional, boxed, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub subscribe: Option<Box<SubscribeResult>>,
    /// The client is no longer subscribed.
    #[prost(message, optional, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub unsubscribe: Option<Empty>,
    /// The publication is accepted.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub publish: Option<Empty>,
    /// The clients in a channel.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub presence: Option<PresenceResult>,
    /// The number of clients in a channel.
    #[prost(message, optional, tag = "10")]
    #[serde(skip_serializing_if = "is_default")]
    pub presence_stats: Option<PresenceStatsResult>,
    /// Publications of a channel.
    #[prost(message, optional, tag = "11")]
    #[serde(skip_serializing_if = "is_default")]
    pub history: Option<HistoryResult>,
    /// The answer of the application.
    #[prost(message, optional, tag = "13")]
    #[serde(skip_serializing_if = "is_default")]
    pub rpc: Option<DataResult>,
    /// The token of the connection is accepted.
    #[prost(message, optional, tag = "14")]
    #[serde(skip_serializing_if = "is_default")]
    pub refresh: Option<RefreshResult>,
    /// The token of a subscription is accepted.
    #[prost(message, optional, tag = "15")]
    #[serde(skip_serializing_if = "is_default")]
    pub sub_refresh: Option<Expiry>,
}

impl Reply {
    /// Returns the answer to a command that failed.
    #[must_use]
    pub fn failed(id: u32, error: ErrorCode) -> Self {
        Self { id, error: Some(error.into()), ..Self::default() }
    }

    /// Returns a push.
    #[must_use]
    pub fn pushed(push: Push) -> Self {
        Self { push: Some(Box::new(push)), ..Self::default() }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An error of a command.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct ErrorResult {
    /// The code.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// The text.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Whether the client may repeat the command.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub temporary: bool,
}

impl From<ErrorCode> for ErrorResult {
    fn from(error: ErrorCode) -> Self {
        Self {
            code: error.code(),
            message: error.text().to_owned(),
            temporary: error.is_temporary(),
        }
    }
}

/// A result without content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct Empty {}

/// The result of a connect.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct ConnectResult {
    /// The client's identifier.
    #[prost(string, tag = "1")]
    pub client: String,
    /// The server's version.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub version: String,
    /// Whether the connection expires.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// Seconds until then.
    #[prost(uint32, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
    /// Data of the application.
    #[prost(bytes = "vec", tag = "5")]
    #[serde(skip_serializing_if = "is_default", serialize_with = "data::serialize")]
    pub data: Vec<u8>,
    /// Server-side subscriptions.
    #[prost(btree_map = "string, message", tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub subs: BTreeMap<String, SubscribeResult>,
    /// Seconds between pings; 0: none come.
    #[prost(uint32, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub ping: u32,
    /// Whether the client must answer pings.
    #[prost(bool, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub pong: bool,
}

/// The result of a subscription.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct SubscribeResult {
    /// Whether the subscription expires.
    #[prost(bool, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// Seconds until then.
    #[prost(uint32, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
    /// Whether the client can recover later.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub recoverable: bool,
    /// The epoch of the channel's sequence.
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: String,
    /// The publications that the client has missed.
    #[prost(message, repeated, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub publications: Vec<Publication>,
    /// Whether that is all it has missed.
    #[prost(bool, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub recovered: bool,
    /// The offset behind which the publications begin.
    #[prost(uint64, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
    /// Whether the channel has positions.
    #[prost(bool, tag = "10")]
    #[serde(skip_serializing_if = "is_default")]
    pub positioned: bool,
    /// Data of the application.
    #[prost(bytes = "vec", tag = "11")]
    #[serde(skip_serializing_if = "is_default", serialize_with = "data::serialize")]
    pub data: Vec<u8>,
    /// Whether the client gave a position.
    #[prost(bool, tag = "12")]
    #[serde(skip_serializing_if = "is_default")]
    pub was_recovering: bool,
    /// Whether differences may come.
    #[prost(bool, tag = "13")]
    #[serde(skip_serializing_if = "is_default")]
    pub delta: bool,
    /// The number that pushes have in place of the channel's name; 0: they have the name.
    #[prost(int64, tag = "14")]
    #[serde(skip_serializing_if = "is_default")]
    pub id: i64,
}

/// A publication of a channel.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct Publication {
    /// The payload.
    #[prost(bytes = "vec", tag = "4")]
    #[serde(serialize_with = "data::serialize")]
    pub data: Vec<u8>,
    /// Its publisher, if that is a client.
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "is_default")]
    pub info: Option<ClientInfo>,
    /// The offset, in channels with history.
    #[prost(uint64, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
    /// Whether the payload is a difference to the publication before.
    #[prost(bool, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub delta: bool,
}

/// A client, as others see it.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientInfo {
    /// The user; empty without one.
    #[prost(string, tag = "1")]
    pub user: String,
    /// The client's identifier.
    #[prost(string, tag = "2")]
    pub client: String,
    /// Information from the token of its connection.
    #[prost(bytes = "vec", tag = "3")]
    #[serde(skip_serializing_if = "is_default", with = "data")]
    pub conn_info: Vec<u8>,
    /// Information from the token of its subscription.
    #[prost(bytes = "vec", tag = "4")]
    #[serde(skip_serializing_if = "is_default", with = "data")]
    pub chan_info: Vec<u8>,
}

/// The clients in a channel.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct PresenceResult {
    /// By their identifiers.
    #[prost(btree_map = "string, message", tag = "1")]
    pub presence: BTreeMap<String, ClientInfo>,
}

/// The number of clients in a channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct PresenceStatsResult {
    /// Clients.
    #[prost(uint32, tag = "1")]
    pub num_clients: u32,
    /// Different users.
    #[prost(uint32, tag = "2")]
    pub num_users: u32,
}

/// Publications of a channel.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct HistoryResult {
    /// The publications.
    #[prost(message, repeated, tag = "1")]
    pub publications: Vec<Publication>,
    /// The epoch of the channel's sequence.
    #[prost(string, tag = "2")]
    pub epoch: String,
    /// The offset of the newest publication.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
}

/// A result of the application.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct DataResult {
    /// The payload.
    #[prost(bytes = "vec", tag = "1")]
    #[serde(serialize_with = "data::serialize")]
    pub data: Vec<u8>,
}

/// The result of a new token of the connection.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct RefreshResult {
    /// The client's identifier.
    #[prost(string, tag = "1")]
    pub client: String,
    /// The server's version.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub version: String,
    /// Whether the connection expires.
    #[prost(bool, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// Seconds until then.
    #[prost(uint32, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
}

/// When something expires.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct Expiry {
    /// Whether it expires.
    #[prost(bool, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub expires: bool,
    /// Seconds until then.
    #[prost(uint32, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
}

/// Something that no command asked for.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct Push {
    /// The number of the channel, in place of its name.
    #[prost(int64, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub id: i64,
    /// The channel.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub channel: String,
    /// A publication.
    #[prost(message, optional, tag = "4")]
    #[serde(rename = "pub", skip_serializing_if = "is_default")]
    pub publication: Option<Publication>,
    /// A client has joined the channel.
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "is_default")]
    pub join: Option<Presence>,
    /// A client has left the channel.
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub leave: Option<Presence>,
    /// The server has ended the subscription.
    #[prost(message, optional, tag = "7")]
    #[serde(skip_serializing_if = "is_default")]
    pub unsubscribe: Option<Unsubscribe>,
    /// A message to this client alone.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "is_default")]
    pub message: Option<DataResult>,
    /// The server has subscribed the client.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "is_default")]
    pub subscribe: Option<Subscribe>,
}

/// A client that has come or gone.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct Presence {
    /// The client.
    #[prost(message, required, tag = "1")]
    pub info: ClientInfo,
}

/// Why a subscription has ended.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct Unsubscribe {
    /// The code.
    #[prost(uint32, tag = "2")]
    pub code: u32,
    /// The text.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub reason: String,
}

/// A subscription that the server has begun.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize)]
pub struct Subscribe {
    /// Whether the client can recover later.
    #[prost(bool, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub recoverable: bool,
    /// The epoch of the channel's sequence.
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: String,
    /// The offset of the newest publication.
    #[prost(uint64, tag = "5")]
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
    /// Whether the channel has positions.
    #[prost(bool, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub positioned: bool,
    /// Data of the application.
    #[prost(bytes = "vec", tag = "7")]
    #[serde(skip_serializing_if = "is_default", serialize_with = "data::serialize")]
    pub data: Vec<u8>,
}
