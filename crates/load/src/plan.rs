//! Plan of a run. [`Plan::check`], in `check.rs`, refuses invalid settings before any socket is
//! opened.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use throng_proto::ws::deflate::{Policy, Settings as Deflate};

use crate::common::Common;
use crate::error::Error;
use crate::script::Script;
use crate::template::{Template, Values};

/// A whole run: the server, the connections, the messages.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Settings that the plans of all protocols share.
    pub common: Common,
    /// Mode of the measurement.
    pub mode: Mode,
    /// Payload bytes of each message; with a template, of the first message. Default 100.
    pub size: usize,
    /// Send text messages instead of binary ones. Default false.
    pub text: bool,
    /// Content of the payload. With [`Mode::Fanout`] letters, or a given text in which `{stamp}`
    /// stands for the [`FANOUT_STAMP`] bytes that identify a message. Default [`Content::Letters`].
    pub content: Content,
    /// Offer of permessage-deflate, which a server may decline. Default: off.
    pub deflate: Deflate,
    /// Whether [`Mode::Idle`] ends with one message on each connection, which the server must echo.
    /// Default: false.
    pub echo_after_idle: bool,
    /// Maximum wait afterwards for the server to close every connection; `None`: no wait.
    pub await_close: Option<Duration>,
    /// Subprotocols to offer, as [templates](crate::Template), in order of preference. Default
    /// none.
    pub subprotocols: Vec<String>,
    /// The steps of [`Mode::Script`]. Default none.
    pub script: Option<Arc<Script>>,
}

/// The content of a payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Random letters, the same in every message except for a stamp.
    #[default]
    Letters,
    /// JSON text as applications send it: quotes and chat lines, in a different document for every
    /// message.
    Json {
        /// Seed of the documents: equal seeds make equal documents. Default: 1.
        seed: u64,
    },
    /// The given bytes in every message. They must be UTF-8 if [`Plan::text`] is set.
    Given(Arc<[u8]>),
    /// A text with values of each client and message.
    Template(Template),
}

impl Content {
    /// Returns the content for a template. Without placeholders it is fixed content.
    #[must_use]
    pub fn of_template(template: Template) -> Self {
        match template.constant() {
            Some(text) => Self::Given(text.as_bytes().into()),
            None => Self::Template(template),
        }
    }
}

/// Mode of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Each message is echoed: measures rate and latency.
    Echo {
        /// Closed or open loop.
        pace: Pace,
        /// Measured time. Default 10 s.
        duration: Duration,
        /// Warm-up time, not counted. Default 1 s.
        warmup: Duration,
    },
    /// Connections without traffic: measures their cost for the server.
    Idle {
        /// Idle time. Default 5 s.
        hold: Duration,
    },
    /// Connect, upgrade, one echo, reset: measures rate and latency.
    Connect {
        /// Connections per second in total that begin by a schedule (open loop). Latency counts
        /// from the planned time, including the wait while [`Common::connections`] connections are
        /// open. `None`, the default: a closed loop, in which the end of each connection begins the
        /// next.
        rate_per_s: Option<f64>,
        /// Measured time. Default 10 s.
        duration: Duration,
        /// Warm-up time, not counted. Default 1 s.
        warmup: Duration,
    },
    /// Messages to many channels at a fixed rate: measures the latency to each subscriber, and
    /// losses.
    Fanout {
        /// Channels; each has one publisher. The URL names them by `{channel}`. Default 1,000.
        channels: usize,
        /// Subscribers of each channel. Default 15.
        subscribers: usize,
        /// Messages a second to all channels together, which take turns. Default 1,000.
        rate_per_s: f64,
        /// Measured time. Default 10 s.
        duration: Duration,
        /// Warm-up time, not counted. Default 2 s.
        warmup: Duration,
    },
    /// Each client sends and expects the messages of [`Plan::script`].
    Script {
        /// Maximum measured time. Default 10 s.
        duration: Duration,
        /// Warm-up time, not counted. Default: no warm-up.
        warmup: Duration,
        /// Maximum wait for an expected message. Default 10 s.
        timeout: Duration,
    },
    /// One connection publishes, all others receive: measures the time until the last subscriber
    /// has the message.
    Broadcast {
        /// Measured publishes, one after the other. Default 10.
        publishes: usize,
        /// Maximum wait for one publish to reach all subscribers. Default 30 s.
        timeout: Duration,
    },
}

/// When the next message is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: each connection has a fixed number of messages in progress, and each answer
    /// triggers the next message.
    Closed {
        /// Messages in progress per connection. Default 1.
        pipeline: usize,
    },
    /// Open loop: a fixed rate, whether or not answers come; latency counts from the planned time.
    Open {
        /// Messages a second per connection.
        rate_per_s: f64,
    },
}

/// Maximum messages in progress per connection.
pub const MAX_PIPELINE: usize = 65_536;
/// Maximum connections per second of one run.
pub(crate) const MAX_CONNECTS_PER_S: f64 = 1e6;
/// Maximum length of a message: 1 GiB.
pub const MAX_SIZE: usize = 1 << 30;
/// Bytes that identify a message of [`Mode::Fanout`]: channel, number and planned time in
/// hexadecimal.
pub const FANOUT_STAMP: usize = 8 + 16 + 16;
/// Maximum event loops of a server that a benchmark starts.
pub const MAX_SHARDS: usize = 256;

/// The mode of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeName {
    /// [`Mode::Echo`].
    Echo,
    /// [`Mode::Idle`].
    Idle,
    /// [`Mode::Connect`].
    Connect,
    /// [`Mode::Broadcast`].
    Broadcast,
    /// [`Mode::Fanout`].
    Fanout,
    /// [`Mode::Script`].
    Script,
    /// HTTP requests.
    Http,
}

impl ModeName {
    /// The name in reports and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Idle => "idle",
            Self::Connect => "connect",
            Self::Broadcast => "broadcast",
            Self::Fanout => "fanout",
            Self::Script => "script",
            Self::Http => "http",
        }
    }
}

impl Mode {
    /// The mode's name in reports and on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Returns the mode without its settings.
    #[must_use]
    pub fn kind(&self) -> ModeName {
        match self {
            Self::Echo { .. } => ModeName::Echo,
            Self::Idle { .. } => ModeName::Idle,
            Self::Connect { .. } => ModeName::Connect,
            Self::Broadcast { .. } => ModeName::Broadcast,
            Self::Fanout { .. } => ModeName::Fanout,
            Self::Script { .. } => ModeName::Script,
        }
    }

    /// Returns whether the mode has an optional rate that is set for its messages or connections.
    pub(crate) fn is_open(&self) -> bool {
        matches!(
            self,
            Self::Echo { pace: Pace::Open { .. }, .. } | Self::Connect { rate_per_s: Some(_), .. }
        )
    }

    /// Returns the measured time and the warm-up time, if the mode has both.
    pub(crate) fn times(&self) -> Option<(Duration, Duration)> {
        match *self {
            Self::Echo { duration, warmup, .. }
            | Self::Connect { duration, warmup, .. }
            | Self::Fanout { duration, warmup, .. }
            | Self::Script { duration, warmup, .. } => Some((duration, warmup)),
            Self::Idle { .. } | Self::Broadcast { .. } => None,
        }
    }

    /// Returns the path at which our own server serves the mode, for a URL without a path.
    #[must_use]
    pub fn default_resource(&self) -> &'static str {
        match self {
            Self::Broadcast { .. } => "/ws/bench",
            Self::Fanout { .. } => "/ws/{channel}",
            _ => "/echo",
        }
    }
}

impl Plan {
    /// Returns a plan with all defaults, from a [`Target`](crate::Target) or a [`Common`].
    #[must_use]
    pub fn new(common: impl Into<Common>, mode: Mode) -> Self {
        Self {
            common: common.into(),
            mode,
            size: 100,
            text: false,
            content: Content::default(),
            deflate: Deflate::default(),
            echo_after_idle: false,
            await_close: None,
            subprotocols: Vec::new(),
            script: None,
        }
    }

    /// Connections that [`Mode::Fanout`] needs: each channel's publisher and its subscribers.
    #[must_use]
    pub fn fanout_connections(channels: usize, subscribers: usize) -> usize {
        channels.saturating_mul(subscribers.saturating_add(1))
    }

    /// Sockets that the plan keeps open at a time.
    #[must_use]
    pub fn sockets(&self) -> usize {
        match self.mode {
            Mode::Broadcast { .. } => self.common.connections + 1,
            _ => self.common.connections,
        }
    }

    /// Returns the length of a given payload; for a template, of its first message. `None` if
    /// [`Plan::size`] decides.
    #[must_use]
    pub fn given_size(&self) -> Option<usize> {
        let values = Values { client: 0, sequence: 0, seed: 0, tokens: &self.common.tokens };
        match &self.content {
            Content::Letters | Content::Json { .. } => None,
            Content::Given(bytes) => Some(bytes.len()),
            Content::Template(template) => Some(template.rendered(&values).len()),
        }
    }

    /// Returns the number of messages of a thread, if their total number is fixed.
    #[must_use]
    pub fn number_of(&self, thread: usize) -> Option<u64> {
        let (number, threads) = (self.common.number?, self.common.threads as u64);
        Some(number / threads + u64::from((thread as u64) < number % threads))
    }

    /// Returns the checked offer; `None` if nothing is offered.
    ///
    /// # Errors
    /// A setting is invalid.
    pub fn policy(&self) -> Result<Option<Policy>, Error> {
        self.deflate.check().map_err(|error| Error::Usage(error.to_string()))
    }

    /// Returns the request target of all connections.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.common.target.resource(self.mode.default_resource())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::target::Target;

    pub(crate) const SECOND: Duration = Duration::from_secs(1);

    pub(crate) fn plan(pace: Pace) -> Plan {
        let target = Target::parse("ws://127.0.0.1:9001").unwrap();
        Plan::new(target, Mode::Echo { pace, duration: SECOND, warmup: SECOND })
    }

    #[test]
    fn each_mode_knows_where_our_server_does_it() {
        let mut plan = plan(Pace::Closed { pipeline: 1 });
        assert_eq!(plan.resource(), "/echo");
        plan.mode = Mode::Broadcast { publishes: 1, timeout: SECOND };
        assert_eq!((plan.resource(), plan.sockets()), ("/ws/bench", 101));
        plan.common.target = Target::parse("ws://127.0.0.1:9001/").unwrap();
        assert_eq!(plan.resource(), "/");
    }
}
