//! The result of a run: the same figures as JSON for programs and as a table for people.
//!
//! Field names of the JSON are stable; units stand at the end of names. An unknown value is `null`,
//! never 0.

#[doc(hidden)]
pub mod csv;
mod deflate;
#[doc(hidden)]
pub mod document;
mod fanout;
mod histogram;
pub mod model;
mod origin;
mod run;
mod script;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

pub use self::deflate::DeflateReport;
pub use self::deflate::{mode_name, percent};
pub use self::fanout::{FanoutReport, Slice};
pub use self::histogram::Histogram;
pub use self::model::Render;
pub use self::origin::{Machine, Origin};
pub use self::run::{
    ConnectionsReport, GeneratorReport, RunReport, SCHEMA, ServerReport, SetupReport,
};
pub use self::script::{ScriptReport, StepReport};
pub use crate::errors::Errors;

use crate::plan::{Content, Mode, Pace, Plan};
use crate::record::{Record, Summary};
use crate::sampler::Memory;
use crate::schedule::RateStage;
use crate::units::{rounded, show_duration};

/// Everything about one run of WebSocket connections. `Display` prints the table.
pub type Report = RunReport<PlanReport, Measured, Errors>;

/// The plan, as far as needed to repeat a run.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// `echo`, `idle`, `connect`, `broadcast`, `fanout` or `script`.
    pub mode: &'static str,
    /// The server and the request target.
    pub url: String,
    /// Connections held, connections made at a time (in an open loop the maximum), or subscribers.
    pub connections: usize,
    /// Payload bytes of a message.
    pub size_bytes: usize,
    /// Text messages instead of binary ones.
    pub text: bool,
    /// `letters`, `json`, `given` or `template`.
    pub payload: &'static str,
    /// Seed of the JSON documents.
    pub seed: Option<u64>,
    /// Offer of permessage-deflate: `off`, `no-context`, or `window:BITS`.
    pub deflate: String,
    /// Messages in progress per connection, in a closed loop.
    pub pipeline: Option<usize>,
    /// Messages a second in an open loop: per connection, or with `fanout` to all channels
    /// together. With `connect` connections a second.
    pub rate_per_s: Option<f64>,
    /// Measured time (echo, connect) or idle time.
    pub duration_s: Option<f64>,
    /// Warm-up time, not counted.
    pub warmup_s: Option<f64>,
    /// Time before the warm-up in which the rate rose from 0.
    pub rate_ramp_s: Option<f64>,
    /// The stages of the rate of an open loop, if it has any; `rate_per_s` is the highest then.
    pub stages: Option<Vec<StageReport>>,
    /// Publishes measured.
    pub publishes: Option<usize>,
    /// Total messages, if the run ends after them.
    pub number: Option<u64>,
    /// Threads of the generator.
    pub threads: usize,
    /// Source addresses.
    pub source_addresses: usize,
    /// Names of the fields added to the upgrade request, without their values.
    pub headers: Option<Vec<String>>,
    /// Offered subprotocols, with their places.
    pub subprotocols: Option<Vec<String>>,
    /// Number of tokens that clients used in turn.
    pub tokens: Option<usize>,
}

impl PlanReport {
    /// The figures of a plan.
    pub fn of(plan: &Plan, source_addresses: usize) -> Self {
        let mut report = Self {
            mode: plan.mode.name(),
            url: plan.common.url(plan.resource()),
            connections: plan.common.connections,
            size_bytes: plan.size,
            text: plan.text || matches!(plan.content, Content::Json { .. }),
            payload: "letters",
            seed: None,
            deflate: mode_name(&plan.deflate),
            pipeline: None,
            rate_per_s: None,
            duration_s: None,
            warmup_s: None,
            rate_ramp_s: ramp_s(plan.common.rate_ramp),
            stages: StageReport::of(&plan.common.stages),
            publishes: None,
            number: plan.common.number,
            threads: plan.common.threads,
            source_addresses,
            headers: header_names(&plan.common.headers),
            subprotocols: Some(plan.subprotocols.clone()).filter(|names| !names.is_empty()),
            tokens: Some(plan.common.tokens.len()).filter(|&count| count > 0),
        };
        match plan.content {
            Content::Letters => {}
            Content::Json { seed } => (report.payload, report.seed) = ("json", Some(seed)),
            Content::Given(_) => report.payload = "given",
            Content::Template(_) => report.payload = "template",
        }
        // The time for a fixed number of messages or connections is not planned.
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
            Mode::Broadcast { publishes, .. } => report.publishes = Some(publishes),
            Mode::Script { .. } => {}
        }
        report
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
    pub(crate) fn of(stages: &[RateStage]) -> Option<Vec<Self>> {
        let one = |stage: &RateStage| Self {
            duration_s: stage.duration.as_secs_f64(),
            rate_per_s: stage.rate_per_s,
        };
        (!stages.is_empty()).then(|| stages.iter().map(one).collect())
    }

    /// Formats the stages as on the command line.
    pub(crate) fn words(stages: &[Self]) -> String {
        let word = |stage: &Self| {
            let duration = show_duration(Duration::from_secs_f64(stage.duration_s));
            format!("{duration}:{}", rounded(stage.rate_per_s))
        };
        stages.iter().map(word).collect::<Vec<_>>().join(", ")
    }
}

pub(crate) fn ramp_s(ramp: Duration) -> Option<f64> {
    (!ramp.is_zero()).then_some(ramp.as_secs_f64())
}

/// Returns the names of fields, for a report: values may be secrets.
pub(crate) fn header_names(headers: &[(String, String)]) -> Option<Vec<String>> {
    let names = headers.iter().map(|(name, _)| name.clone());
    Some(names.collect()).filter(|names: &Vec<String>| !names.is_empty())
}

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

/// Messages that came back.
#[derive(Clone, Debug, Serialize)]
pub struct EchoReport {
    /// Measured time.
    pub measured_s: f64,
    /// Answers within it.
    pub messages: u64,
    /// Answered messages a second.
    pub messages_per_s: f64,
    /// Received payload bytes a second.
    pub payload_bytes_per_s: f64,
    /// Answers a second of server CPU time (all threads): the figure least affected by other load
    /// on the machine.
    pub messages_per_server_cpu_s: Option<f64>,
    /// Server CPU time (all threads) for each answer.
    pub server_cpu_us_per_message: Option<f64>,
    /// Effect of compression, if it was offered.
    pub deflate: Option<DeflateReport>,
    /// From sending to the answer; in an open loop, from the planned time.
    pub latency: Option<Summary>,
    /// The open loop's own figures.
    pub open_loop: Option<OpenLoopReport>,
}

/// Adherence of an open loop to its schedule.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OpenLoopReport {
    /// Messages planned within the measured time. None was skipped.
    pub planned: u64,
    /// Planned messages a second. If this exceeds `messages_per_s` of the answers, the server or
    /// the generator fell behind. `null` if no time was measured.
    pub planned_per_s: Option<f64>,
    /// Planned messages without an answer at the end. Their age counts as their latency, as a lower
    /// bound.
    pub unanswered: u64,
    /// Lateness of sent messages, for any reason.
    pub lateness: Option<Summary>,
}

impl OpenLoopReport {
    pub(crate) fn of(planned: u64, unanswered: u64, lateness: &Record, measured_s: f64) -> Self {
        Self {
            planned,
            // The measured time of a fixed number of messages ends with the last answer.
            planned_per_s: (measured_s > 1e-6).then(|| planned as f64 / measured_s),
            unanswered,
            lateness: lateness.summary(),
        }
    }
}

/// Idle connections.
#[derive(Clone, Debug, Serialize)]
pub struct IdleReport {
    /// Connections held.
    pub connections: u64,
    /// Connections that answered an echo afterwards, if it was requested: all of them.
    pub answered: Option<u64>,
    /// Idle time.
    pub held_s: f64,
    /// The server's memory before the first connection.
    pub memory_before: Option<Memory>,
    /// The server's memory with all of them.
    pub memory_after: Option<Memory>,
    /// Growth of the resident set for each connection.
    pub rss_bytes_per_connection: Option<f64>,
    /// Growth of private memory for each connection.
    pub private_bytes_per_connection: Option<f64>,
    /// Growth of anonymous memory (heap and stacks) for each connection.
    pub anonymous_bytes_per_connection: Option<f64>,
    /// Server CPU during the idle time; 1 is one core kept busy.
    pub server_cores_while_idle: Option<f64>,
    /// Server CPU of an echo afterwards, if it was requested.
    pub server_cpu_us_per_echo: Option<f64>,
    /// Closes by the server after the run, if they were awaited.
    pub closes: Option<ClosesReport>,
}

/// Closes of a run's connections by the server.
#[derive(Clone, Debug, Serialize)]
pub struct ClosesReport {
    /// From the first to the last.
    pub span_s: f64,
    /// Connections that were closed with a Close frame, by its code; 1005: it had none.
    pub by_code: BTreeMap<u16, u64>,
    /// Connections that ended without a Close frame.
    pub without_frame: u64,
    /// Connections that were still open at the end of the wait.
    pub left_open: u64,
}

/// Connections made one after the other, or by a schedule.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ConnectReport {
    /// Measured time.
    pub measured_s: f64,
    /// Connect, upgrade, one echo, reset: number completed within it.
    pub connections: u64,
    /// Completed connections a second.
    pub connections_per_s: f64,
    /// Completed connections a second of server CPU time.
    pub connections_per_server_cpu_s: Option<f64>,
    /// From the connect call to the established TCP connection.
    pub tcp: Option<Summary>,
    /// From there to the end of the TLS handshake; `null` without TLS.
    pub tls: Option<Summary>,
    /// From there to the accepted upgrade.
    pub upgrade: Option<Summary>,
    /// From there to the answer to one message.
    pub echo: Option<Summary>,
    /// All steps together; in an open loop from the planned time on, including the age of
    /// unanswered connections.
    pub total: Option<Summary>,
    /// Adherence to the schedule; `null` in a closed loop. Its messages are connections.
    pub open_loop: Option<OpenLoopReport>,
    /// Planned connections of an open loop that found all places taken. Their time ran while they
    /// waited.
    pub waited_for_place: Option<u64>,
}

/// One publishes, all others receive.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BroadcastReport {
    /// Publishes that reached every subscriber.
    pub publishes: u64,
    /// Subscribers.
    pub subscribers: u64,
    /// From the publish to the first subscriber, one time per publish.
    pub first: Option<Summary>,
    /// From the publish to the last subscriber, one time per publish.
    pub last: Option<Summary>,
    /// From the publish to each subscriber.
    pub delivery: Option<Summary>,
    /// Server CPU time (all threads) for each publish.
    pub server_cpu_us_per_publish: Option<f64>,
    /// Server CPU time for each delivered message.
    pub server_cpu_us_per_delivery: Option<f64>,
}
