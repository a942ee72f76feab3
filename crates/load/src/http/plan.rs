//! Plan of an HTTP run. [`HttpPlan::check`] refuses invalid settings before any socket is opened.

use std::time::Duration;

use super::Expect;
use crate::common::{Common, check_number, check_time};
use crate::error::Error;

/// A whole run: the server, the connections, the requests.
#[derive(Clone, Debug)]
pub struct HttpPlan {
    /// Settings that the plans of all protocols share. Its target is from
    /// [`Target::parse_http`](crate::Target::parse_http); without a path `/`.
    pub common: Common,
    /// Request method. Default `GET`. `CONNECT` is refused.
    pub method: String,
    /// The body of every request, allowed with any method. Default: empty.
    pub body: Vec<u8>,
    /// Read the body as a [template](crate::Template), filled in for each request. Default false.
    pub body_has_places: bool,
    /// Whether to send the body in chunks instead of with its length. Default false.
    pub chunked: bool,
    /// Measured time. Default 10 s.
    pub duration: Duration,
    /// Warm-up time, not counted. Default 1 s.
    pub warmup: Duration,
    /// When the next request is sent. Default [`Pace::Closed`].
    pub pace: Pace,
    /// Maximum requests in progress on a connection. Default 1.
    pub pipeline: usize,
    /// Whether a connection carries many requests. Otherwise each carries one, with `Connection:
    /// close`. Default true.
    pub keep_alive: bool,
    /// Statuses that count as success; any other status is an error. Default 2xx.
    pub expect: Expect,
    /// Maximum wait for an answer, or for a connection. Default 30 s.
    pub timeout: Duration,
}

/// When the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: each answer triggers the next request.
    Closed,
    /// Open loop: a fixed rate, whether or not answers come; latency counts from the planned time.
    Open {
        /// Requests a second of all connections together, which take turns.
        rate_per_s: f64,
    },
}

/// Maximum requests in progress on a connection.
pub const MAX_PIPELINE: usize = 4096;
/// Maximum requests in progress on all connections together. The send time of each takes memory.
const MAX_UNDER_WAY: usize = 1 << 26;
/// Maximum length of a body: 1 GiB.
const MAX_BODY: usize = 1 << 30;

impl HttpPlan {
    /// Returns a plan with all defaults, from a [`Target`](crate::Target) or a
    /// [`Common`](crate::Common).
    #[must_use]
    pub fn new(common: impl Into<Common>) -> Self {
        Self {
            common: common.into(),
            method: "GET".to_owned(),
            body: Vec::new(),
            body_has_places: false,
            chunked: false,
            duration: Duration::from_secs(10),
            warmup: Duration::from_secs(1),
            pace: Pace::Closed,
            pipeline: 1,
            keep_alive: true,
            expect: Expect::default(),
            timeout: Duration::from_secs(30),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.pace != Pace::Closed
    }

    /// Returns the rate of an open loop.
    pub(crate) fn rate_per_s(&self) -> Option<f64> {
        match self.pace {
            Pace::Closed => None,
            Pace::Open { rate_per_s } => Some(rate_per_s),
        }
    }

    /// Returns how many requests the connection sends, given its number in the sequence of all
    /// connections; unlimited if the plan has no number of requests.
    pub(super) fn requests_of(&self, connection: usize) -> u64 {
        let connections = self.common.connections as u64;
        self.common.number.map_or(u64::MAX, |number| {
            number / connections + u64::from((connection as u64) < number % connections)
        })
    }

    /// Refuses values that a request must not contain, and values that contradict each other.
    pub(super) fn check_values(&self) -> Result<(), Error> {
        let ten_ms = Duration::from_millis(10);
        self.common.check(self.is_open(), 1e8)?;
        check_number("--pipeline", self.pipeline, MAX_PIPELINE)?;
        check_time("--duration", self.duration, ten_ms)?;
        check_time("--warmup", self.warmup, Duration::ZERO)?;
        check_time("--timeout", self.timeout, ten_ms)?;
        match self.contradiction() {
            Some(text) => Err(Error::Usage(text)),
            None => Ok(()),
        }
    }

    /// Describes flags that exclude each other, or a value outside its valid range.
    fn contradiction(&self) -> Option<String> {
        if self.pipeline > 1 && !self.keep_alive {
            return Some(format!(
                "--pipeline {} needs connections that carry more than one request; leave out \
                 --no-keep-alive",
                self.pipeline
            ));
        }
        if self.pipeline * self.common.connections > MAX_UNDER_WAY {
            return Some(format!(
                "--pipeline {} on {} connections is more than {MAX_UNDER_WAY} requests under way",
                self.pipeline, self.common.connections
            ));
        }
        if let Some(rate_per_s) = self.rate_per_s()
            && !(0.001..=1e8).contains(&rate_per_s)
        {
            return Some(format!(
                "--rate is {rate_per_s}; it is requests a second of all connections together, \
                 between 0.001 and 100000000"
            ));
        }
        if let Some(number) = self.common.number
            && (number == 0 || self.is_open())
        {
            return Some(format!(
                "--number is {number}; it is requests of a closed loop, at least 1"
            ));
        }
        if self.body.len() > MAX_BODY {
            return Some(format!("the body has {} bytes; at most 1GiB is sent", self.body.len()));
        }
        if self.chunked && self.body.is_empty() {
            return Some(
                "--chunked needs a body: give --body, --body-file or --body-size".to_owned(),
            );
        }
        if self.body_has_places && self.body.is_empty() {
            return Some("--template needs a body: give --body or --body-file".to_owned());
        }
        if self.method == "CONNECT" {
            return Some("--method CONNECT makes a tunnel, which is not measured here".to_owned());
        }
        self.common.headers.iter().find_map(|(name, value)| {
            let instead = match name.to_ascii_lowercase().as_str() {
                "content-length" => "it follows from the body",
                "transfer-encoding" => "use --chunked",
                "connection" => "use --no-keep-alive",
                "upgrade" => "an answer to it is no HTTP (see throng bench echo)",
                _ => return None,
            };
            Some(format!("--header \"{name}: {value}\" is not for you to set: {instead}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    fn refusal(change: impl FnOnce(&mut HttpPlan)) -> String {
        let mut plan = HttpPlan::new(Target::parse_http("http://127.0.0.1:9001/").unwrap());
        plan.check().unwrap();
        change(&mut plan);
        let error = plan.check().unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn nonsense_is_refused_with_the_flag_the_value_and_a_remedy() {
        let header = |name: &str| vec![(name.to_owned(), "x".to_owned())];
        for (text, words) in [
            (refusal(|plan| plan.common.connections = 0), "--connections is 0"),
            (
                refusal(|plan| plan.common.threads = 65),
                "--threads is 65; it must be between 1 and 64",
            ),
            (refusal(|plan| plan.common.threads = 3_000_000), "--threads"),
            (
                refusal(|plan| (plan.common.threads, plan.common.connections) = (2, 1)),
                "--threads 2",
            ),
            (refusal(|plan| plan.pipeline = 0), "--pipeline is 0"),
            (refusal(|plan| plan.pipeline = 5000), "--pipeline is 5000"),
            (
                refusal(|plan| (plan.pipeline, plan.keep_alive) = (2, false)),
                "leave out --no-keep-alive",
            ),
            (
                refusal(|plan| (plan.pipeline, plan.common.connections) = (4096, 20_000)),
                "requests under way",
            ),
            (refusal(|plan| plan.pace = Pace::Open { rate_per_s: 0.0 }), "--rate is 0"),
            (refusal(|plan| plan.duration = Duration::ZERO), "--duration is 0s"),
            (refusal(|plan| plan.timeout = Duration::ZERO), "--timeout is 0s"),
            (refusal(|plan| plan.chunked = true), "--body-size"),
            (refusal(|plan| plan.method = "CONNECT".to_owned()), "tunnel"),
            (refusal(|plan| plan.method = String::new()), "--method"),
            (
                refusal(|plan| plan.common.headers = header("content-length")),
                "follows from the body",
            ),
            (refusal(|plan| plan.common.headers = header("Transfer-Encoding")), "--chunked"),
            (refusal(|plan| plan.common.headers = header("Connection")), "--no-keep-alive"),
        ] {
            assert!(text.contains(words), "{words:?} in {text:?}");
        }
    }
}
