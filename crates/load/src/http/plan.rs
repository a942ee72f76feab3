//! What to run. [`Plan::check`] refuses what makes no sense, before any socket.

use std::time::Duration;

use super::request::Wire;
use super::{Expect, Slo};
use crate::plan::{MAX_CONNECTIONS, MAX_THREADS};
use crate::units::show_duration;
use crate::{Error, RateStage, Target, TlsPlan, Tokens};

/// A whole run: where, how many, what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server, from [`Target::parse_http`]; without a path `/`.
    pub target: Target,
    /// Request method. Default `GET`. `CONNECT` is refused.
    pub method: String,
    /// Header lines besides those that the request needs by itself, values as [templates](crate::Template). A `Host`
    /// replaces ours. Default none.
    pub headers: Vec<(String, String)>,
    /// Body of every request, with any method. Default empty.
    pub body: Vec<u8>,
    /// Read the body as a [template](crate::Template), filled in for each request. Default false.
    pub body_has_places: bool,
    /// Tokens that clients take in turn where a template has `{token}`. Default none.
    pub tokens: Tokens,
    /// Send the body in chunks instead of by its length. Default false.
    pub chunked: bool,
    /// Connections held, or, without `keep_alive`, requests under way at a time. Default 100.
    pub connections: usize,
    /// Threads, each with its own share of the connections. Default 1.
    pub threads: usize,
    /// Requests of a closed loop in all, after which the run is over; without a warm-up. Default: as many as fit its time.
    pub number: Option<u64>,
    /// Time over which the rate of an open loop rises from 0, before the warm-up; not counted. Default zero.
    pub rate_ramp: Duration,
    /// Stages of the rate of an open loop, all of them measured; [`Plan::pace`] has the highest, [`Plan::duration`] their
    /// length. Default none.
    pub stages: Vec<RateStage>,
    /// Time measured. Default 10 s.
    pub duration: Duration,
    /// Time run before, not counted. Default 1 s.
    pub warmup: Duration,
    /// When the next request leaves. Default [`Pace::Closed`].
    pub pace: Pace,
    /// Requests under way on a connection at most. Default 1.
    pub pipeline: usize,
    /// Use a connection for many requests; else one for each, which says `Connection: close`. Default true.
    pub keep_alive: bool,
    /// Statuses that count; an answer with another is an error. Default 2xx.
    pub expect: Expect,
    /// Longest wait for an answer, or for a connection. Default 30 s.
    pub timeout: Duration,
    /// Source addresses to use; default as many as the ports need (see [`Sources`](crate::Sources)).
    pub sources: Option<usize>,
    /// Connections being made at a time while all are set up. Default 100.
    pub window: usize,
    /// Time over which connections are set up, evenly; zero for as fast as `window` allows, the default.
    pub ramp: Duration,
    /// Longest time without any progress while connections are set up. Default 10 s.
    pub setup_timeout: Duration,
    /// Processes whose CPU and memory are the server's; empty means the process that listens on the port, if it is on this
    /// machine.
    pub server_pids: Vec<u32>,
    /// How a server with TLS is connected to.
    pub tls: TlsPlan,
    /// Thresholds that decide over the exit code. Default none.
    pub slos: Vec<Slo>,
}

/// When the next request leaves.
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

/// Most requests under way on a connection.
pub const MAX_PIPELINE: usize = 4096;
/// Most requests under way on all connections together: each has its time of sending in memory.
const MAX_UNDER_WAY: usize = 1 << 26;
/// Largest body: 1 GiB.
const MAX_BODY: usize = 1 << 30;

impl Plan {
    /// A plan with all defaults.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            body_has_places: false,
            tokens: Tokens::default(),
            chunked: false,
            connections: 100,
            threads: 1,
            number: None,
            rate_ramp: Duration::ZERO,
            stages: Vec::new(),
            duration: Duration::from_secs(10),
            warmup: Duration::from_secs(1),
            pace: Pace::Closed,
            pipeline: 1,
            keep_alive: true,
            expect: Expect::default(),
            timeout: Duration::from_secs(30),
            sources: None,
            window: 100,
            ramp: Duration::ZERO,
            setup_timeout: Duration::from_secs(10),
            server_pids: Vec::new(),
            tls: TlsPlan::default(),
            slos: Vec::new(),
        }
    }

    /// Connections of thread `thread`: as even as possible, the first threads take the rest.
    pub(super) fn share(&self, thread: usize) -> usize {
        self.connections / self.threads + usize::from(thread < self.connections % self.threads)
    }

    /// Requests of the connection with this number among all; all that fit the time, if there is no number of them.
    pub(super) fn requests_of(&self, connection: usize) -> u64 {
        let connections = self.connections as u64;
        self.number.map_or(u64::MAX, |number| {
            number / connections + u64::from((connection as u64) < number % connections)
        })
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag, the value and what to write instead.
    pub fn check(&self) -> Result<(), Error> {
        let week = Duration::from_secs(7 * 24 * 3600);
        let not_within = |flag: &str, value: usize, most: usize| {
            let text = format!("{flag} is {value}; it must be between 1 and {most}");
            (!(1..=most).contains(&value)).then_some(text)
        };
        let not_lasting = |flag: &str, value: Duration, least: Duration| {
            let (least, value_shown) = (least, show_duration(value));
            let text = format!(
                "{flag} is {value_shown}; it must be between {} and a week (168h)",
                show_duration(least)
            );
            (value < least || value > week).then_some(text)
        };
        let ten_ms = Duration::from_millis(10);
        let wrong = not_within("--connections", self.connections, MAX_CONNECTIONS)
            .or_else(|| not_within("--threads", self.threads, MAX_THREADS))
            .or_else(|| not_within("--pipeline", self.pipeline, MAX_PIPELINE))
            .or_else(|| not_within("--window", self.window, MAX_CONNECTIONS))
            .or_else(|| not_lasting("--duration", self.duration, ten_ms))
            .or_else(|| not_lasting("--warmup", self.warmup, Duration::ZERO))
            .or_else(|| not_lasting("--rate-ramp", self.rate_ramp, Duration::ZERO))
            .or_else(|| not_lasting("--timeout", self.timeout, ten_ms))
            .or_else(|| not_lasting("--setup-timeout", self.setup_timeout, ten_ms))
            .or_else(|| self.contradiction());
        match wrong {
            Some(text) => Err(Error::Usage(text)),
            None => Wire::of(self).map(drop),
        }
    }

    /// Flags that do not go together, or a value outside what it may be.
    fn contradiction(&self) -> Option<String> {
        if self.threads > self.connections {
            return Some(format!(
                "--threads {} needs at least as many --connections, not {}",
                self.threads, self.connections
            ));
        }
        if self.pipeline > 1 && !self.keep_alive {
            return Some(format!(
                "--pipeline {} needs connections that carry more than one request; leave out --no-keep-alive",
                self.pipeline
            ));
        }
        if self.pipeline * self.connections > MAX_UNDER_WAY {
            return Some(format!(
                "--pipeline {} on {} connections is more than {MAX_UNDER_WAY} requests under way",
                self.pipeline, self.connections
            ));
        }
        if let Pace::Open { rate_per_s } = self.pace
            && !(0.001..=1e8).contains(&rate_per_s)
        {
            return Some(format!(
                "--rate is {rate_per_s}; it is requests a second of all connections together, between 0.001 and \
                 100000000"
            ));
        }
        if !self.rate_ramp.is_zero() && self.pace == Pace::Closed {
            return Some("--rate-ramp is for --rate, which it lets rise".to_owned());
        }
        if let Some(wrong) = RateStage::mistake(&self.stages, 1e8) {
            return Some(wrong);
        }
        if let Some(number) = self.number
            && (number == 0 || self.pace != Pace::Closed)
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
        self.headers.iter().find_map(|(name, value)| {
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

    fn refusal(change: impl FnOnce(&mut Plan)) -> String {
        let mut plan = Plan::new(Target::parse_http("http://127.0.0.1:9001/").unwrap());
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
            (refusal(|plan| plan.connections = 0), "--connections is 0"),
            (refusal(|plan| plan.threads = 65), "--threads is 65; it must be between 1 and 64"),
            (refusal(|plan| plan.threads = 3_000_000), "--threads"),
            (refusal(|plan| (plan.threads, plan.connections) = (2, 1)), "--threads 2"),
            (refusal(|plan| plan.pipeline = 0), "--pipeline is 0"),
            (refusal(|plan| plan.pipeline = 5000), "--pipeline is 5000"),
            (
                refusal(|plan| (plan.pipeline, plan.keep_alive) = (2, false)),
                "leave out --no-keep-alive",
            ),
            (
                refusal(|plan| (plan.pipeline, plan.connections) = (4096, 20_000)),
                "requests under way",
            ),
            (refusal(|plan| plan.pace = Pace::Open { rate_per_s: 0.0 }), "--rate is 0"),
            (refusal(|plan| plan.duration = Duration::ZERO), "--duration is 0s"),
            (refusal(|plan| plan.timeout = Duration::ZERO), "--timeout is 0s"),
            (refusal(|plan| plan.chunked = true), "--body-size"),
            (refusal(|plan| plan.method = "CONNECT".to_owned()), "tunnel"),
            (refusal(|plan| plan.method = String::new()), "--method"),
            (refusal(|plan| plan.headers = header("content-length")), "follows from the body"),
            (refusal(|plan| plan.headers = header("Transfer-Encoding")), "--chunked"),
            (refusal(|plan| plan.headers = header("Connection")), "--no-keep-alive"),
        ] {
            assert!(text.contains(words), "{words:?} in {text:?}");
        }
    }

    #[test]
    fn shares_add_up() {
        let mut plan = Plan::new(Target::parse_http("http://h/").unwrap());
        (plan.connections, plan.threads) = (10, 4);
        let shares: Vec<usize> = (0..4).map(|thread| plan.share(thread)).collect();
        assert_eq!(shares, [3, 3, 2, 2]);
    }
}
