//! The result of a run, as JSON for programs; its other forms are in `document.rs`.
//!
//! Field names of the JSON are stable; units stand at the end of names. An unknown value is `null`,
//! never 0.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::request::Wire;
use super::steered::{Server, Steered};
use super::tally::Tally;
use super::{Errors, Pace, Plan};
use crate::record::{Record, Summary};
use crate::report::{
    ConnectionsReport, OpenLoopReport, RunReport, SetupReport, StageReport, header_names, ramp_s,
};
use crate::run::{ProtocolParts, RunOutcome, Times};
use crate::sources::Sources;
use crate::verdict::{Facts, Pacing};

/// Everything about one run of HTTP requests. `Display` prints the table.
pub type Report = RunReport<PlanReport, RequestsReport, Errors>;

/// The plan, as far as needed to repeat a run.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// `http`.
    pub mode: &'static str,
    /// The server and the request target.
    pub url: String,
    /// Request method.
    pub method: String,
    /// Bytes of a request on the wire, head and body; of the first request, if they differ.
    pub request_bytes: usize,
    /// Bytes of its body.
    pub body_bytes: usize,
    /// The body is sent in chunks.
    pub chunked: bool,
    /// Connections held, or requests in progress at a time.
    pub connections: usize,
    /// Maximum requests in progress on a connection.
    pub pipeline: usize,
    /// A connection carries many requests.
    pub keep_alive: bool,
    /// Requests a second of an open loop, of all connections together.
    pub rate_per_s: Option<f64>,
    /// Statuses that count as success.
    pub expect_status: String,
    /// Total requests, if the run ends after them.
    pub number: Option<u64>,
    /// Measured time; `null` with a number of requests.
    pub duration_s: Option<f64>,
    /// Warm-up time, not counted.
    pub warmup_s: f64,
    /// Time before the warm-up in which the rate rose from 0.
    pub rate_ramp_s: Option<f64>,
    /// The stages of the rate, if it has any; `rate_per_s` is the highest then.
    pub stages: Option<Vec<StageReport>>,
    /// Maximum wait for an answer.
    pub timeout_s: f64,
    /// Threads of the generator.
    pub threads: usize,
    /// Source addresses.
    pub source_addresses: usize,
    /// Names of the added header lines, without their values.
    pub headers: Option<Vec<String>>,
    /// Number of tokens that clients used in turn.
    pub tokens: Option<usize>,
}

/// Requests and their answers.
#[derive(Clone, Debug, Serialize)]
pub struct RequestsReport {
    /// Measured time.
    pub measured_s: f64,
    /// Complete answers with an expected status within it.
    pub requests: u64,
    /// Expected answers a second.
    pub requests_per_s: f64,
    /// Expected answers a second of server CPU time (all threads): the figure least affected by
    /// other load on the machine.
    pub requests_per_server_cpu_s: Option<f64>,
    /// Server CPU time (all threads) by request.
    pub server_cpu_us_per_request: Option<f64>,
    /// Bytes received within the measured time, heads included.
    pub received_bytes: u64,
    /// Received bytes a second.
    pub received_bytes_per_s: Option<f64>,
    /// Bytes of the sent requests a second.
    pub sent_bytes_per_s: Option<f64>,
    /// Answers within the measured time by status, expected or not.
    pub statuses: BTreeMap<u16, u64>,
    /// From sending to the complete answer; in an open loop from the planned time.
    pub latency: Option<Summary>,
    /// From the connect call to the established TCP connection.
    pub connect: Option<Summary>,
    /// From there to the end of the TLS handshake; `null` without TLS.
    pub tls: Option<Summary>,
    /// From the connect call to the complete answer; one request a connection only.
    pub connect_and_answer: Option<Summary>,
    /// The distribution of the latencies.
    pub quantiles: Vec<Quantile>,
    /// The open loop's own figures.
    pub open_loop: Option<OpenLoopReport>,
}

/// One point of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantile {
    /// Share (0 to 1) of the answers.
    pub share: f64,
    /// Maximum time of these answers.
    pub us: f64,
}

impl Report {
    /// Returns the report of a run.
    pub(super) fn of(
        plan: &Plan,
        sources: &Sources,
        wire: &Wire,
        server: Server<'_>,
        steered: &Steered,
        tally: Tally,
    ) -> Self {
        let rate_per_s = tally.requests as f64 / steered.seconds(plan, &tally);
        let result = RequestsReport::of(plan, steered, &tally);
        let outcome = RunOutcome {
            common: &plan.common,
            server,
            measured: &steered.measured,
            facts: facts(plan, &tally),
            times: Times { of: "latency", record: &tally.latency, rate_per_s },
        };
        outcome.report(ProtocolParts {
            plan: PlanReport::of(plan, sources, wire),
            setup: setup(plan, steered.took, &tally),
            result,
            connections: Some(ConnectionsReport {
                opened: tally.opened,
                ended_by_server: tally.ended_by_server,
                requests_resent: tally.resent,
            }),
            tls: tally.negotiated.into_report(),
            errors: tally.errors,
        })
    }
}

/// Returns the facts of the requests for the verdict.
fn facts(plan: &Plan, tally: &Tally) -> Facts {
    let is_open = matches!(plan.pace, Pace::Open { .. });
    let pacing =
        is_open.then(|| Pacing::of("requests", &tally.lateness, tally.planned, tally.requests));
    Facts {
        completed: match is_open {
            false => tally.requests,
            true => tally.planned - tally.unanswered.min(tally.planned),
        },
        failures: tally.errors.total(),
        pacing,
        ..Facts::default()
    }
}

/// Returns the set-up of the connections, if they were set up before the measurement.
fn setup(plan: &Plan, took: Option<Duration>, tally: &Tally) -> SetupReport {
    took.map_or_else(SetupReport::default, |took| SetupReport {
        connections: plan.common.connections as u64,
        took_s: took.as_secs_f64(),
        tcp: tally.connect.summary(),
        tls: tally.tls.summary(),
        upgrade: None,
        subprotocol_agreed: None,
    })
}

impl RequestsReport {
    fn of(plan: &Plan, steered: &Steered, tally: &Tally) -> Self {
        let (measured, measured_s) = (&steered.measured, steered.seconds(plan, tally));
        let per_s = |count: u64| count as f64 / measured_s;
        // With a number of requests, the measured time ends with the last answer: without an answer
        // there is no such time.
        let bytes_per_s = |bytes| (tally.requests > 0).then(|| per_s(bytes));
        let is_open = matches!(plan.pace, Pace::Open { .. });
        let statuses = tally.statuses.iter().enumerate().filter(|&(_, &count)| count > 0);
        Self {
            measured_s,
            requests: tally.requests,
            requests_per_s: per_s(tally.requests),
            requests_per_server_cpu_s: measured.per_server_cpu_s(),
            server_cpu_us_per_request: measured.server_cpu_us_each(),
            received_bytes: tally.bytes_in,
            received_bytes_per_s: bytes_per_s(tally.bytes_in),
            sent_bytes_per_s: bytes_per_s(tally.bytes_out),
            statuses: statuses.map(|(status, &count)| (status as u16, count)).collect(),
            latency: tally.latency.summary(),
            connect: tally.connect.summary(),
            tls: tally.tls.summary(),
            connect_and_answer: tally.whole.summary(),
            quantiles: quantiles(&tally.latency),
            open_loop: is_open.then(|| {
                OpenLoopReport::of(tally.planned, tally.unanswered, &tally.lateness, measured_s)
            }),
        }
    }
}

fn quantiles(latency: &Record) -> Vec<Quantile> {
    latency.spread().into_iter().map(|(share, us)| Quantile { share, us }).collect()
}

impl PlanReport {
    fn of(plan: &Plan, sources: &Sources, wire: &Wire) -> Self {
        Self {
            mode: "http",
            url: plan.common.url(plan.common.target.resource("/")),
            method: plan.method.clone(),
            request_bytes: wire.len(),
            body_bytes: plan.body.len(),
            chunked: plan.chunked,
            connections: plan.common.connections,
            pipeline: plan.pipeline,
            keep_alive: plan.keep_alive,
            rate_per_s: match plan.pace {
                Pace::Closed => None,
                Pace::Open { rate_per_s } => Some(rate_per_s),
            },
            expect_status: plan.expect.to_string(),
            number: plan.common.number,
            duration_s: plan.common.number.is_none().then_some(plan.duration.as_secs_f64()),
            warmup_s: plan.warmup.as_secs_f64(),
            rate_ramp_s: ramp_s(plan.common.rate_ramp),
            stages: StageReport::of(&plan.common.stages),
            timeout_s: plan.timeout.as_secs_f64(),
            threads: plan.common.threads,
            source_addresses: sources.count(),
            headers: header_names(&plan.common.headers),
            tokens: Some(plan.common.tokens.len()).filter(|&count| count > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_ends_with_the_maximum_and_goes_only_upwards() {
        let mut latency = Record::new();
        (1..=1000).for_each(|us| latency.add(us * 1000));
        let points = quantiles(&latency);
        assert!(points.is_sorted_by(|a, b| a.share < b.share && a.us <= b.us), "{points:?}");
        assert_eq!(points.last().map(|point| point.share), Some(1.0));
        assert!((15..30).contains(&points.len()), "{points:?}");
        assert_eq!(quantiles(&Record::new()), []);
    }
}
