//! The claims of a token.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The claims of a valid token about its client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims {
    /// The user (`sub`).
    pub user: Option<String>,
    /// When the token expires (`exp`).
    pub expires: Option<SystemTime>,
    /// Information about the client for others (`info`), as JSON.
    pub info: Option<serde_json::Value>,
    /// Names of channels that the client may join (`channels`, `channel`, and the keys of `subs`).
    pub channels: Vec<String>,
    /// The channel of a token for one subscription (`channel`), which is also in `channels`.
    pub channel: Option<String>,
    /// Patterns of channels that it may join (`join`).
    pub join: Vec<String>,
    /// Patterns of channels that it may publish to (`publish`).
    pub publish: Vec<String>,
    /// Patterns of channels whose history it may read (`history`).
    pub history: Vec<String>,
    /// Patterns of channels whose presence it may see (`presence`).
    pub presence: Vec<String>,
}

/// The claims as a token has them. Others are left to others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wire {
    sub: Option<String>,
    /// Seconds, perhaps with a fraction (RFC 7519 section 2).
    exp: Option<f64>,
    info: Option<serde_json::Value>,
    channel: Option<String>,
    channels: Names,
    /// Channels, with options that other servers have.
    subs: BTreeMap<String, IgnoredAny>,
    join: Names,
    publish: Names,
    history: Names,
    presence: Names,
}

/// One name, or a list of names.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

impl Default for Names {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl From<Names> for Vec<String> {
    fn from(names: Names) -> Self {
        match names {
            Names::One(name) => vec![name],
            Names::Several(names) => names,
        }
    }
}

impl From<Wire> for Claims {
    fn from(wire: Wire) -> Self {
        let mut channels: Vec<String> = wire.channels.into();
        channels.extend(wire.channel.clone());
        channels.extend(wire.subs.into_keys());
        Self {
            user: wire.sub,
            expires: wire.exp.and_then(time),
            info: wire.info,
            channels,
            channel: wire.channel,
            join: wire.join.into(),
            publish: wire.publish.into(),
            history: wire.history.into(),
            presence: wire.presence.into(),
        }
    }
}

/// Returns the time `seconds` after 1970; `None` if it is too far away to be a time.
fn time(seconds: f64) -> Option<SystemTime> {
    let after = Duration::try_from_secs_f64(seconds).ok()?;
    UNIX_EPOCH.checked_add(after)
}
