//! Finds the highest rate at which a server keeps its thresholds, by bisection over runs of an open
//! loop.
//!
//! Every rate has its own run with new connections and its own warm-up. Latency counts from the
//! planned time, so a server that falls behind cannot look fast because it gets fewer messages.

mod report;
mod search;

use std::sync::atomic::{AtomicBool, Ordering};

pub use self::report::{FindMaxReport, SearchStep};
use self::search::Search;
use crate::common::Common;
use crate::error::Error;
use crate::http::{self, RequestsReport};
use crate::merge::Merge;
use crate::negotiated::{Negotiated, TlsReport};
use crate::plan::{MAX_CONNECTS_PER_S, Mode, Pace, Plan};
use crate::progress::Progress;
use crate::record::Summary;
use crate::report::{LoadReport, Measured, OpenLoopReport};
use crate::units::rounded;
use crate::verdict::{Limit, waited_for_place};

/// Minimum share of the planned messages that must be answered within the measured time.
const ANSWERED: f64 = 0.95;

/// The plan whose rate is searched. Its own pace is ignored.
#[derive(Clone, Debug)]
pub enum Load {
    /// [`Mode::Echo`], [`Mode::Connect`] or [`Mode::Fanout`].
    WebSocket(Box<Plan>),
    /// Requests.
    Http(Box<http::HttpPlan>),
}

/// Options of the search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The first rate to try, of all connections together.
    pub start_per_s: f64,
    /// The search ends when the highest kept rate and the lowest missed rate differ by at most this
    /// share. Default 0.05.
    pub precision: f64,
}

/// The progress of a search.
#[derive(Debug)]
pub enum Event<'a> {
    /// A rate is tried.
    Begins {
        /// Number of the step, from 1.
        step: usize,
        /// The rate, of all connections together.
        rate_per_s: f64,
    },
    /// The run is in progress.
    Running(&'a Progress),
    /// Its run is over.
    Ended(&'a SearchStep),
}

/// Searches the highest rate that keeps the plan's thresholds. Blocks; when `stop` becomes true the
/// search ends early with the result so far.
///
/// # Errors
/// The plan is invalid, for example without thresholds; or a failure leaves the first run without a
/// report.
pub fn find_max(
    load: &Load,
    options: Options,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<FindMaxReport, Error> {
    load.check(options)?;
    let mut search = Search::new(options.start_per_s, load.most_per_s(), options.precision);
    let mut steps: Vec<SearchStep> = Vec::new();
    let mut negotiated = Negotiated::default();
    while let Some(rate_per_s) = search.next() {
        watch(Event::Begins { step: steps.len() + 1, rate_per_s });
        let step = match load.run(rate_per_s, stop, &mut |progress| watch(Event::Running(progress)))
        {
            // An interrupted run proves nothing about its rate.
            _ if stop.load(Ordering::Relaxed) => break,
            Ok((step, tls)) => {
                negotiated.merge(tls.into());
                step
            }
            Err(error) if steps.is_empty() => return Err(error),
            Err(error) => SearchStep::failed(rate_per_s, &error),
        };
        watch(Event::Ended(&step));
        search.tell(rate_per_s, step.kept);
        steps.push(step);
    }
    if steps.is_empty() {
        return Err(Error::Interrupted);
    }
    let is_over = search.next().is_none();
    let bounds = (search.kept(), search.missed());
    Ok(FindMaxReport::of(load, options, bounds, steps, negotiated.into_report(), is_over))
}

impl Load {
    /// Settings that the plans of all protocols share.
    #[must_use]
    pub fn common(&self) -> &Common {
        match self {
            Self::WebSocket(plan) => &plan.common,
            Self::Http(plan) => &plan.common,
        }
    }

    /// Settings that the plans of all protocols share, for changes.
    pub fn common_mut(&mut self) -> &mut Common {
        match self {
            Self::WebSocket(plan) => &mut plan.common,
            Self::Http(plan) => &mut plan.common,
        }
    }

    fn check(&self, options: Options) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        if self.common().slos.is_empty() {
            return refuse(
                "--find-max needs a threshold to keep: write --slo 'p99<10ms', or another"
                    .to_owned(),
            );
        }
        if !(0.001..=1.0).contains(&options.precision) {
            return refuse(format!(
                "--precision is {} %; it must be between 0.1 and 100",
                options.precision * 100.0
            ));
        }
        match self {
            Self::WebSocket(plan) => match plan.mode {
                Mode::Echo { .. } | Mode::Connect { .. } | Mode::Fanout { .. } => {
                    self.plan_at(plan, options.start_per_s).check()
                }
                _ => refuse("--find-max is for echo, connect, fanout and http".to_owned()),
            },
            Self::Http(plan) => at(plan, options.start_per_s).check(),
        }
    }

    /// The highest rate that a plan may have.
    fn most_per_s(&self) -> f64 {
        match self {
            Self::WebSocket(plan) => match plan.mode {
                Mode::Connect { .. } => MAX_CONNECTS_PER_S,
                Mode::Fanout { .. } => 1e7,
                _ => (1e6 * plan.common.connections as f64).min(1e8),
            },
            Self::Http(_) => 1e8,
        }
    }

    fn plan_at(&self, plan: &Plan, rate: f64) -> Plan {
        let mut plan = plan.clone();
        match &mut plan.mode {
            Mode::Echo { pace, .. } => {
                *pace = Pace::Open { rate_per_s: rate / plan.common.connections as f64 };
            }
            Mode::Connect { rate_per_s, .. } => *rate_per_s = Some(rate),
            Mode::Fanout { rate_per_s, .. } => *rate_per_s = rate,
            _ => {}
        }
        plan
    }

    /// Measures one run at a rate; also returns the negotiated TLS of its connections.
    fn run(
        &self,
        rate_per_s: f64,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<(SearchStep, Vec<TlsReport>), Error> {
        match self {
            Self::WebSocket(plan) => {
                let report = crate::run(&self.plan_at(plan, rate_per_s), stop, watch)?;
                let answered = Answered::of_mode(&report.result)?;
                let mut step = SearchStep::measured(rate_per_s, &report, &answered);
                if let Some(reason) = &mut step.reason
                    && let Some(waited) = waited(&report.result, plan.common.connections)
                {
                    *reason += &format!("; {waited}");
                }
                Ok((step, report.tls))
            }
            Self::Http(plan) => {
                let report = http::run(&at(plan, rate_per_s), stop, watch)?;
                let answered = Answered::of_requests(&report.result);
                Ok((SearchStep::measured(rate_per_s, &report, &answered), report.tls))
            }
        }
    }
}

/// Answers of one run.
struct Answered {
    per_s: f64,
    latency: Option<Summary>,
    kept_pace: bool,
}

impl Answered {
    fn of_mode(result: &Measured) -> Result<Self, Error> {
        Ok(match result {
            Measured::Echo(echo) => Self {
                per_s: echo.messages_per_s,
                latency: echo.latency,
                kept_pace: kept_pace(echo.messages, echo.open_loop.as_ref()),
            },
            Measured::Connect(connect) => Self {
                per_s: connect.connections_per_s,
                latency: connect.total,
                kept_pace: kept_pace(connect.connections, connect.open_loop.as_ref()),
            },
            Measured::Fanout(fanout) => {
                let in_time = fanout.received_per_s * fanout.measured_s + 1.0;
                Self {
                    per_s: fanout.received_per_s,
                    latency: fanout.latency,
                    kept_pace: in_time >= fanout.expected as f64 * ANSWERED,
                }
            }
            _ => return Err(Error::Child("a run has the report of another mode".to_owned())),
        })
    }

    fn of_requests(result: &RequestsReport) -> Self {
        Self {
            per_s: result.requests_per_s,
            latency: result.latency,
            kept_pace: kept_pace(result.requests, result.open_loop.as_ref()),
        }
    }
}

fn at(plan: &http::HttpPlan, rate_per_s: f64) -> http::HttpPlan {
    http::HttpPlan { pace: http::Pace::Open { rate_per_s }, ..plan.clone() }
}

/// Returns how many connections of connect mode waited for one of `places`, if any did.
fn waited(result: &Measured, places: usize) -> Option<String> {
    let Measured::Connect(connect) = result else { return None };
    let waited = connect.waited_for_place.filter(|&waited| waited > 0)?;
    let planned = connect.open_loop.map_or(0, |open| open.planned);
    Some(waited_for_place(waited, planned, places as u64))
}

/// Returns whether answers came as fast as messages were planned. The answer to the last message
/// may come after the end.
fn kept_pace(answered: u64, open: Option<&OpenLoopReport>) -> bool {
    open.is_none_or(|open| (answered + 1) as f64 >= open.planned as f64 * ANSWERED)
}

impl SearchStep {
    fn at(rate_per_s: f64) -> Self {
        Self {
            rate_per_s,
            answered_per_s: None,
            latency: None,
            errors: 0,
            slo: Vec::new(),
            limit: Limit::Invalid,
            kept: false,
            reason: None,
        }
    }

    /// Returns the step of a run that has a report.
    fn measured<R>(rate_per_s: f64, report: &LoadReport<R>, answered: &Answered) -> Self {
        let mut step = Self {
            answered_per_s: Some(answered.per_s),
            errors: report.errors.total(),
            latency: answered.latency,
            slo: report.slo.clone(),
            limit: report.verdict.limit,
            ..Self::at(rate_per_s)
        };
        step.judge(answered.kept_pace, report.errors.first.clone());
        step
    }

    /// Returns the step of a run without a report, for example because the server was no longer
    /// reachable.
    fn failed(rate_per_s: f64, error: &Error) -> Self {
        Self { reason: Some(error.to_string()), ..Self::at(rate_per_s) }
    }

    /// Decides whether the rate was kept, and why not.
    fn judge(&mut self, kept_pace: bool, first_error: Option<String>) {
        let missed = self.slo.iter().find(|slo| !slo.kept);
        self.reason = if let Some(slo) = missed {
            Some(slo.remark().1)
        } else if self.limit == Limit::Invalid {
            Some(first_error.unwrap_or_else(|| "nothing was measured".to_owned()))
        } else if !kept_pace {
            let answered = self.answered_per_s.map_or_else(String::new, rounded);
            Some(format!("answers fell behind: {answered} a second"))
        } else {
            None
        };
        self.kept = self.reason.is_none();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::slo::{Figures, Slo};

    #[test]
    fn a_rate_is_kept_only_if_nothing_speaks_against_it() {
        let latency = Record::new();
        let slo = |text: &str| {
            let figures = Figures { latency: &latency, rate_per_s: 10.0, failed: 0, begun: 5 };
            vec![Slo::parse(text).unwrap().judge(&figures)]
        };
        let judged = |slo, limit, kept_pace| {
            let mut step =
                SearchStep { slo, limit, answered_per_s: Some(7.0), ..SearchStep::at(10.0) };
            step.judge(kept_pace, Some("reset".to_owned()));
            (step.kept, step.reason.unwrap_or_default())
        };
        assert_eq!(judged(slo("errors<1%"), Limit::Server, true), (true, String::new()));
        let (kept, why) = judged(slo("rate>10"), Limit::Server, true);
        assert!(!kept && why.contains("rate>10 NOT KEPT"), "{why}");
        assert_eq!(judged(slo("errors<1%"), Limit::Invalid, true), (false, "reset".to_owned()));
        let (kept, why) = judged(slo("errors<1%"), Limit::Generator, false);
        assert!(!kept && why.contains("fell behind: 7.00 a second"), "{why}");
    }
}
