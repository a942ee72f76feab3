//! The result of a run: the same figures as JSON for programs, and as a table for readers.
//!
//! Field names of the JSON are stable; units stand at the end of names. An unknown value is `null`,
//! never 0.

#[doc(hidden)]
pub mod csv;
mod deflate;
pub(crate) mod document;
pub(crate) mod figures;
mod histogram;
pub mod model;
pub(crate) mod origin;
mod results;
mod run;

use std::time::Duration;

use serde::Serialize;
use throng_proto::url;

pub use self::deflate::DeflateReport;
pub use self::deflate::{mode_name, percent};
pub(crate) use self::figures::RunSums;
pub use self::histogram::Histogram;
pub use self::model::Render;
pub use self::origin::{Machine, Origin};
pub(crate) use self::results::IdleSums;
pub use self::results::{
    BroadcastReport, ClosesReport, ConnectReport, EchoReport, FanoutReport, IdleReport,
    OpenLoopReport, ScriptReport, Slice, StepReport,
};
pub use self::run::{
    ConnectionsReport, GeneratorReport, LoadReport, SCHEMA, ServerReport, SetupReport,
};
pub use crate::errors::Errors;

use crate::common::Common;
use crate::plan::{Content, Mode, ModeName, Pace, Plan};
use crate::schedule::RateStage;
use crate::units::{rounded, show_duration};

/// The plan, as far as it is needed to repeat a run.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// The mode of the measurement.
    pub mode: ModeName,
    /// The server and the request target.
    pub url: String,
    /// The number of open connections, of connections or requests in progress (in an open loop the
    /// maximum), or of subscribers.
    pub connections: usize,
    /// The messages or requests.
    #[serde(flatten)]
    pub protocol: ProtocolReport,
    /// Messages in progress per connection in a closed loop, or the maximum requests in progress.
    pub pipeline: Option<usize>,
    /// Messages per second in an open loop: per connection, or with `fanout` to all channels
    /// together. With `connect`, connections per second in total; with `http`, requests per second
    /// in total.
    pub rate_per_s: Option<f64>,
    /// Measured time or idle time; `null` with a number of messages or requests.
    pub duration_s: Option<f64>,
    /// Warm-up time, not counted.
    pub warmup_s: Option<f64>,
    /// Time before the warm-up during which the rate rose from 0.
    pub rate_ramp_s: Option<f64>,
    /// The stages of the rate of an open loop, if it has any; `rate_per_s` is the highest then.
    pub stages: Option<Vec<StageReport>>,
    /// Total messages, requests or connections, if the run ends after this number.
    pub number: Option<u64>,
    /// Threads of the generator.
    pub threads: usize,
    /// Source addresses.
    pub source_addresses: usize,
    /// Names of the fields added to each request, without values.
    pub headers: Option<Vec<String>>,
    /// Number of tokens that clients used in turn.
    pub tokens: Option<usize>,
}

/// The part of a plan that depends on the protocol.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum ProtocolReport {
    /// WebSocket messages.
    Messages(MessagePlanReport),
    /// HTTP requests.
    Requests(RequestPlanReport),
}

/// The messages of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct MessagePlanReport {
    /// Payload bytes of a message.
    pub size_bytes: usize,
    /// Whether messages are text instead of binary.
    pub text: bool,
    /// `letters`, `json`, `given` or `template`.
    pub payload: &'static str,
    /// Seed of the JSON documents.
    pub seed: Option<u64>,
    /// The offer of permessage-deflate: `off`, `no-context`, or `window:BITS`.
    pub deflate: String,
    /// Publishes measured.
    pub publishes: Option<usize>,
    /// Offered subprotocols, with their placeholders.
    pub subprotocols: Option<Vec<String>>,
}

/// The requests of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct RequestPlanReport {
    /// Request method.
    pub method: String,
    /// Bytes of a request on the wire, head and body; of the first request if they differ.
    pub request_bytes: usize,
    /// Bytes of the body.
    pub body_bytes: usize,
    /// Whether the body is sent in chunks.
    pub chunked: bool,
    /// Whether a connection carries many requests.
    pub keep_alive: bool,
    /// Statuses that count as success.
    pub expect_status: String,
    /// Maximum wait for an answer.
    pub timeout_s: f64,
}

impl PlanReport {
    /// Returns the report of a plan of messages.
    pub fn of(plan: &Plan, source_addresses: usize) -> Self {
        let (payload, seed) = match plan.content {
            Content::Letters => ("letters", None),
            Content::Json { seed } => ("json", Some(seed)),
            Content::Given(_) => ("given", None),
            Content::Template(_) => ("template", None),
        };
        let publishes = match plan.mode {
            Mode::Broadcast { publishes, .. } => Some(publishes),
            _ => None,
        };
        let protocol = ProtocolReport::Messages(MessagePlanReport {
            size_bytes: plan.size,
            text: plan.text || matches!(plan.content, Content::Json { .. }),
            payload,
            seed,
            deflate: mode_name(&plan.deflate),
            publishes,
            subprotocols: Some(plan.subprotocols.clone()).filter(|names| !names.is_empty()),
        });
        let url = url::masked(&plan.common.url(plan.resource()));
        let mut report =
            Self::common(&plan.common, plan.mode.kind(), url, source_addresses, protocol);
        // A fixed number of messages or connections has no planned time.
        if let Some((duration, warmup)) = plan.mode.times()
            && plan.common.number.is_none()
        {
            report.duration_s = Some(duration.as_secs_f64());
            report.warmup_s = Some(warmup.as_secs_f64());
        }
        match plan.mode {
            Mode::Echo { pace: Pace::Closed { pipeline }, .. } => report.pipeline = Some(pipeline),
            Mode::Echo { pace: Pace::Open { rate_per_s }, .. }
            | Mode::Fanout { rate_per_s, .. } => report.rate_per_s = Some(rate_per_s),
            Mode::Connect { rate_per_s, .. } => report.rate_per_s = rate_per_s,
            Mode::Idle { hold } => report.duration_s = Some(hold.as_secs_f64()),
            Mode::Broadcast { .. } | Mode::Script { .. } => {}
        }
        report
    }

    /// Returns the part that all protocols share.
    pub(crate) fn common(
        common: &Common,
        mode: ModeName,
        url: String,
        source_addresses: usize,
        protocol: ProtocolReport,
    ) -> Self {
        let ramp = common.rate_ramp;
        // Omits the values, which may be secrets.
        let headers: Vec<String> = common.headers.iter().map(|(name, _)| name.clone()).collect();
        Self {
            mode,
            url,
            connections: common.connections,
            protocol,
            pipeline: None,
            rate_per_s: None,
            duration_s: None,
            warmup_s: None,
            rate_ramp_s: (!ramp.is_zero()).then_some(ramp.as_secs_f64()),
            stages: StageReport::of(&common.stages),
            number: common.number,
            threads: common.threads,
            source_addresses,
            headers: Some(headers).filter(|names| !names.is_empty()),
            tokens: Some(common.tokens.len()).filter(|&count| count > 0),
        }
    }

    /// Returns the requests of an HTTP plan.
    #[must_use]
    pub fn request(&self) -> Option<&RequestPlanReport> {
        match &self.protocol {
            ProtocolReport::Messages(_) => None,
            ProtocolReport::Requests(request) => Some(request),
        }
    }
}

/// A stage of an open loop's rate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StageReport {
    /// Its length.
    pub duration_s: f64,
    /// Messages or requests a second at its end, of all connections together.
    pub rate_per_s: f64,
}

impl StageReport {
    fn of(stages: &[RateStage]) -> Option<Vec<Self>> {
        let one = |stage: &RateStage| Self {
            duration_s: stage.duration.as_secs_f64(),
            rate_per_s: stage.rate_per_s,
        };
        (!stages.is_empty()).then(|| stages.iter().map(one).collect())
    }

    /// Formats the stages as on the command line.
    fn words(stages: &[Self]) -> String {
        let word =
            |stage: &Self| format!("{}:{}", seconds(stage.duration_s), rounded(stage.rate_per_s));
        stages.iter().map(word).collect::<Vec<_>>().join(", ")
    }
}

/// Formats a time of a report.
fn seconds(s: f64) -> String {
    show_duration(Duration::from_secs_f64(s))
}

/// The report of a run of WebSocket connections.
pub type Report = LoadReport;

/// Measurements of a mode.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Measured {
    /// An echo.
    Echo(EchoReport),
    /// Idle connections.
    Idle(IdleReport),
    /// Connections made one after the other, or by a schedule.
    Connect(Box<ConnectReport>),
    /// One message to many.
    Broadcast(BroadcastReport),
    /// Many channels at a fixed rate.
    Fanout(FanoutReport),
    /// Clients that followed a script.
    Script(ScriptReport),
}
