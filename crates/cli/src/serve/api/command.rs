//! Commands that change something.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use throng::channel::{Filter, Receipt};
use throng::prelude::*;

use super::once::Once;
use super::problem::{Problem, parameters};
use crate::serve::site::is_channel_name;

/// Maximum commands of a batch, and channels of a broadcast.
const MOST: usize = 1_000;

/// Time that a cluster has for a publication.
const CLUSTER_TIME: Duration = Duration::from_secs(6);

pub(super) fn check_channel(name: &str) -> Result<(), Problem> {
    match is_channel_name(name) {
        true => Ok(()),
        false => Err(Problem::bad_request("a channel name has 1 to 256 bytes")),
    }
}

/// A publication without its channels.
#[derive(Deserialize)]
struct Content {
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
    #[serde(default)]
    idempotency_key: String,
    /// Not available on this server: an application that relies on it must not believe that it got
    /// it.
    #[serde(default)]
    skip_history: bool,
    #[serde(default)]
    tags: Map<String, Value>,
    #[serde(default)]
    delta: bool,
    #[serde(default)]
    version: u64,
}

impl Content {
    /// Returns the message: JSON as it was sent, or bytes.
    fn frame(&self) -> Result<Frame, Problem> {
        let others = [
            (self.skip_history, "skip_history"),
            (!self.tags.is_empty(), "tags"),
            (self.delta, "delta"),
            (self.version > 0, "version"),
        ];
        if let Some((_, name)) = others.iter().find(|(is_there, _)| *is_there) {
            return Err(Problem::not_available(format!("{name} is not available")));
        }
        match (&self.data, self.b64data.as_deref().filter(|text| !text.is_empty())) {
            (Some(data), None) => Ok(Frame::text(data.get())),
            (None, Some(text)) => {
                let bytes = BASE64_STANDARD.decode(text);
                let bytes = bytes.map_err(|_| Problem::bad_request("b64data is not base64"))?;
                Ok(match String::from_utf8(bytes) {
                    Ok(text) => Frame::text(text),
                    Err(error) => Frame::binary(error.into_bytes()),
                })
            }
            _ => Err(Problem::bad_request("send one of data and b64data")),
        }
    }
}

pub(super) fn publish(hub: &Hub, once: &Once, body: &[u8]) -> Result<Value, Problem> {
    #[derive(Deserialize)]
    struct Publish {
        channel: String,
    }
    let Publish { channel } = parameters(body)?;
    let content: Content = parameters(body)?;
    let frame = content.frame()?;
    publish_to(hub, once, &channel, &frame, &content.idempotency_key)
}

pub(super) fn broadcast(hub: &Hub, once: &Once, body: &[u8]) -> Result<Value, Problem> {
    #[derive(Deserialize)]
    struct Broadcast {
        channels: Vec<String>,
    }
    let Broadcast { channels } = parameters(body)?;
    if channels.is_empty() || channels.len() > MOST {
        return Err(Problem::bad_request(format!("channels are 1 to {MOST}")));
    }
    let content: Content = parameters(body)?;
    let frame = content.frame()?;
    let of_one =
        |channel: &String| match publish_to(hub, once, channel, &frame, &content.idempotency_key) {
            Ok(result) => json!({ "result": result }),
            Err(problem) => json!({ "error": problem }),
        };
    let responses: Vec<Value> = channels.iter().map(of_one).collect();
    Ok(json!({ "responses": responses }))
}

fn publish_to(
    hub: &Hub,
    once: &Once,
    channel: &str,
    frame: &Frame,
    key: &str,
) -> Result<Value, Problem> {
    check_channel(channel)?;
    once.execute(channel, key, || {
        let receipt = hub.publish(channel, frame).map_err(|error| {
            Problem::internal(format!("not every event loop has space for it: {error}"))
        })?;
        result(hub, &receipt)
    })
}

/// Returns where a publication is in the history of its channel, if there is one.
fn result(hub: &Hub, receipt: &Receipt) -> Result<Value, Problem> {
    if let Some(position) = receipt.position() {
        let epoch = format!("{:016x}", position.epoch);
        return Ok(json!({ "offset": position.offset, "epoch": epoch }));
    }
    if is_of_cluster(hub) {
        // Without an answer, it may be published or not.
        let _ = receipt.wait(CLUSTER_TIME);
        if receipt.is_refused() {
            return Err(Problem::internal("the cluster does not take messages now"));
        }
        if receipt.is_unknown() {
            return Err(Problem::internal("the cluster has not said whether it is published"));
        }
    }
    Ok(json!({}))
}

#[cfg(feature = "redis")]
fn is_of_cluster(hub: &Hub) -> bool {
    hub.cluster().is_some()
}

#[cfg(not(feature = "redis"))]
fn is_of_cluster(_: &Hub) -> bool {
    false
}

pub(super) fn unsubscribe(hub: &Hub, body: &[u8]) -> Result<Value, Problem> {
    #[derive(Deserialize)]
    struct Unsubscribe {
        channel: String,
    }
    let Unsubscribe { channel } = parameters(body)?;
    check_channel(&channel)?;
    match Client::of(body)? {
        Client::Here(handle) => {
            let filter = Filter::new().include([handle]);
            let done = hub.unsubscribe(&filter, &channel);
            done.map_err(|error| Problem::internal(error.to_string()))?;
        }
        #[cfg(feature = "redis")]
        Client::Anywhere(handle) => {
            let done = cluster(hub)?.unsubscribe(handle, &channel).wait();
            done.map_err(|error| Problem::internal(error.to_string()))?;
        }
    }
    Ok(json!({}))
}

pub(super) fn disconnect(hub: &Hub, body: &[u8]) -> Result<Value, Problem> {
    #[derive(Deserialize)]
    struct Why {
        code: u16,
        #[serde(default)]
        reason: String,
    }
    #[derive(Deserialize)]
    struct Disconnect {
        disconnect: Option<Why>,
    }
    let Disconnect { disconnect } = parameters(body)?;
    // As the protocol's "force disconnect": it does not come back.
    let why = disconnect.unwrap_or(Why { code: 1008, reason: "disconnected".to_owned() });
    if !throng_proto::ws::is_sendable_close_code(why.code) || why.reason.len() > 123 {
        return Err(Problem::bad_request(
            "a code is one that a Close frame may have, and a reason has at most 123 bytes",
        ));
    }
    match Client::of(body)? {
        Client::Here(handle) => {
            let done = hub.close(handle, CloseCode::new(why.code), &why.reason);
            done.map_err(|error| Problem::internal(error.to_string()))?;
        }
        #[cfg(feature = "redis")]
        Client::Anywhere(handle) => {
            let done = cluster(hub)?.close(handle, CloseCode::new(why.code), &why.reason).wait();
            done.map_err(|error| Problem::internal(error.to_string()))?;
        }
    }
    Ok(json!({}))
}

/// A client, as presence names it.
enum Client {
    /// On this server.
    Here(Handle),
    #[cfg(feature = "redis")]
    Anywhere(throng::cluster::ClusterHandle),
}

impl Client {
    /// Reads which client a command is for.
    fn of(body: &[u8]) -> Result<Self, Problem> {
        #[derive(Deserialize)]
        struct Whom {
            #[serde(default)]
            client: String,
            #[serde(default)]
            user: String,
        }
        let Whom { client, user } = parameters(body)?;
        match (client.as_str(), user.as_str()) {
            ("", "") => Err(Problem::bad_request("client is missing")),
            ("", _) => Err(Problem::not_available("name the client: users are not looked up")),
            (client, _) => Self::parse(client),
        }
    }

    fn parse(text: &str) -> Result<Self, Problem> {
        let is_hex = text.bytes().all(|digit| digit.is_ascii_hexdigit());
        if let (true, 16, Ok(bits)) = (is_hex, text.len(), u64::from_str_radix(text, 16)) {
            return Ok(Self::Here(Handle::from_bits(bits)));
        }
        #[cfg(feature = "redis")]
        if let Ok(handle) = text.parse() {
            return Ok(Self::Anywhere(handle));
        }
        Err(Problem::bad_request("client is not the identifier of a client, as in presence"))
    }
}

#[cfg(feature = "redis")]
fn cluster(hub: &Hub) -> Result<throng::cluster::ClusterHub, Problem> {
    hub.cluster().ok_or_else(|| Problem::not_available("this server has no cluster"))
}

/// Executes the commands of a batch, one after another.
pub(super) fn batch(
    body: &[u8],
    execute: impl Fn(&str, &[u8]) -> Result<Value, Problem>,
) -> Result<Value, Problem> {
    #[derive(Deserialize)]
    struct Batch {
        commands: Vec<BTreeMap<String, Box<RawValue>>>,
    }
    let Batch { commands } = parameters(body)?;
    if commands.len() > MOST {
        return Err(Problem::bad_request(format!("a batch has at most {MOST} commands")));
    }
    let of_one = |command: &BTreeMap<String, Box<RawValue>>| {
        let mut parts = command.iter();
        let (Some((name, body)), None) = (parts.next(), parts.next()) else {
            return json!({ "error": Problem::bad_request("a command of a batch has one name") });
        };
        match execute(name, body.get().as_bytes()) {
            Ok(result) => json!({ name: result }),
            Err(problem) => json!({ "error": problem }),
        }
    };
    let replies: Vec<Value> = commands.iter().map(of_one).collect();
    Ok(json!({ "replies": replies }))
}
