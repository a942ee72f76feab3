//! The report of requests: its rows and tables.

use std::collections::BTreeMap;

use serde::Serialize;
use throng_proto::url;

use super::plan::HttpPlan;
use super::tally::Tally;
use crate::plan::ModeName;
use crate::pool::Setup;
use crate::record::{Record, Summary};
use crate::report::document::list_and_times;
use crate::report::figures::{Figure, Results, RunSums, figures, quantiles};
use crate::report::model::Table;
use crate::report::{OpenLoopReport, PlanReport, ProtocolReport, RequestPlanReport};
use crate::units::grouped;

figures! {
    /// Requests and their answers.
    #[derive(Clone, Debug, Serialize)]
    pub struct RequestsReport from |run: (RunSums<'_, Tally, HttpPlan>, &Setup)| {
        /// Complete answers with an expected status within the measured time.
        requests: u64 = run.0.sum.requests, Count "requests" csv;
        /// Measured time.
        measured_s: f64 = run.0.measured_s, Seconds "measured";
        /// Expected answers per second.
        requests_per_s: f64 = run.0.per_s(run.0.sum.requests), Number "requests a second" csv;
        /// Expected answers per second of server CPU time (all threads): the figure least affected
        /// by other load on the machine.
        requests_per_server_cpu_s: Option<f64> = run.0.sampled.per_server_cpu_s(),
            Number "requests per server CPU-second" csv;
        /// Server CPU time (all threads) per request.
        server_cpu_us_per_request: Option<f64> = run.0.sampled.server_cpu_us_each(),
            Us "server CPU by request" csv;
        /// Bytes received within the measured time, including heads.
        received_bytes: u64 = run.0.sum.bytes_in;
        /// Received bytes per second.
        received_bytes_per_s: Option<f64> = run.0.bytes_per_s(run.0.sum.bytes_in),
            Bytes "received a second" csv;
        /// Bytes of sent requests per second.
        sent_bytes_per_s: Option<f64> = run.0.bytes_per_s(run.0.sum.bytes_out);
        /// Answers within the measured time by status, expected or not.
        statuses: BTreeMap<u16, u64> = run.0.sum.statuses(),
            Text "statuses" => Self::statuses_in_words;
        /// From the send to the complete answer; in an open loop from the planned time.
        latency: Option<Summary> = run.0.sum.latency.summary(), Us "latency";
        /// From the connect call to the established TCP connection.
        connect: Option<Summary> = run.1.tcp.summary(), Us "connect";
        /// From the TCP connection to the end of the TLS handshake; `null` without TLS.
        tls: Option<Summary> = run.1.tls.summary(), Us "TLS";
        /// From the connect call to the complete answer; only with one request per connection.
        connect_and_answer: Option<Summary> = run.0.sum.whole.summary(), Us "together";
        /// The distribution of the latencies.
        quantiles: Vec<Quantile> = distribution(&run.0.sum.latency);
        /// The figures that only an open loop has.
        open_loop: Option<OpenLoopReport> = run.0.plan.is_open().then(|| {
            let Tally { planned, unanswered, lateness, .. } = run.0.sum;
            OpenLoopReport::of((*planned, *unanswered, lateness, run.0.measured_s))
        });
    }
}

impl RunSums<'_, Tally, HttpPlan> {
    /// Returns the bytes per second. With a fixed number of requests the measured time ends with
    /// the last answer: without an answer there is no such time.
    fn bytes_per_s(&self, bytes: u64) -> Option<f64> {
        (self.sum.requests > 0).then(|| self.per_s(bytes))
    }
}

impl RequestsReport {
    fn statuses_in_words(&self) -> Option<String> {
        let statuses = self.statuses.iter();
        let words = statuses.map(|(status, &count)| format!("{status}: {}", grouped(count)));
        let words: Vec<String> = words.collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// One point of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantile {
    /// Share (0 to 1) of the answers.
    pub share: f64,
    /// The maximum time of these answers.
    pub us: f64,
}

fn distribution(latency: &Record) -> Vec<Quantile> {
    latency.spread().into_iter().map(|(share, us)| Quantile { share, us }).collect()
}

impl Results for RequestsReport {
    fn title(&self) -> String {
        "HTTP requests and their answers".to_owned()
    }

    fn tables(&self, plan: &PlanReport, last: Vec<Figure>) -> Vec<Table> {
        let mut figures = plan.figures();
        figures.extend(Self::figures(Some(self)));
        // Kept connections have these times in the figures of the set-up.
        if plan.request().is_some_and(|request| request.keep_alive) {
            figures.retain(|(column, _)| !["connect", "TLS"].contains(&column.label()));
        }
        figures.extend(OpenLoopReport::figures(self.open_loop.as_ref()));
        figures.extend(quantiles(self.latency.as_ref()).chain(last));
        let [list, times] = list_and_times(figures);
        vec![list, times.notes(self.open_loop.as_ref().map(OpenLoopReport::note))]
    }
}

impl PlanReport {
    /// Returns the plan of a run whose first request has this length.
    pub(crate) fn of_requests(
        plan: &HttpPlan,
        source_addresses: usize,
        request_bytes: usize,
    ) -> Self {
        let protocol = ProtocolReport::Requests(RequestPlanReport {
            method: plan.method.clone(),
            request_bytes,
            body_bytes: plan.body.len(),
            chunked: plan.chunked,
            keep_alive: plan.keep_alive,
            expect_status: plan.expect.to_string(),
            timeout_s: plan.timeout.as_secs_f64(),
        });
        let url = url::masked(&plan.common.url(plan.common.target.resource("/")));
        let is_timed = plan.common.number.is_none();
        Self {
            pipeline: Some(plan.pipeline),
            rate_per_s: plan.rate_per_s(),
            duration_s: is_timed.then_some(plan.duration.as_secs_f64()),
            warmup_s: Some(plan.warmup.as_secs_f64()),
            ..Self::common(&plan.common, ModeName::Http, url, source_addresses, protocol)
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
        let points = distribution(&latency);
        assert!(points.is_sorted_by(|a, b| a.share < b.share && a.us <= b.us), "{points:?}");
        assert_eq!(points.last().map(|point| point.share), Some(1.0));
        assert!((15..30).contains(&points.len()), "{points:?}");
        assert_eq!(distribution(&Record::new()), []);
    }
}
