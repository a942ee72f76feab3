//! Settings that the plans of all protocols share, and their validation.

use std::time::Duration;

use crate::error::Error;
use crate::schedule::{RateStage, ThreadRate};
use crate::slo::Slo;
use crate::target::Target;
use crate::template::Tokens;
use crate::tls::TlsPlan;
use crate::units::{WEEK, show_duration};

/// Maximum connections of one run; the descriptor limit is usually lower.
pub const MAX_CONNECTIONS: usize = 50_000_000;
/// Maximum threads.
pub const MAX_THREADS: usize = 64;

/// The settings that plans of WebSocket and HTTP share: the server, the connections, the identity
/// of the clients, the duration, and the thresholds. A [`Target`] converts to it, with all
/// defaults.
#[derive(Clone, Debug)]
pub struct Common {
    /// The server.
    pub target: Target,
    /// Fields of each request besides the standard ones: names and [templates](crate::Template). A
    /// `Host` replaces the default one. Default: no fields.
    pub headers: Vec<(String, String)>,
    /// Tokens that clients take in turn where a template has `{token}`. Default none.
    pub tokens: Tokens,
    /// The number of connections that stay open. If each connection carries one echo or one
    /// request: the number in progress, or the maximum at a fixed rate. With
    /// [`Mode::Broadcast`](crate::Mode::Broadcast): the number of subscribers, with the publisher
    /// as one more. With [`Mode::Fanout`](crate::Mode::Fanout): the value of
    /// [`Plan::fanout_connections`](crate::Plan::fanout_connections). Default 100.
    pub connections: usize,
    /// Threads, each with its own share of the connections. One thread can load one server shard.
    /// Default 1.
    pub threads: usize,
    /// Total messages, requests or connections of a closed loop, after which the run ends; without
    /// a warm-up. Default: no limit within the measured time.
    pub number: Option<u64>,
    /// Time over which the rate of an open loop rises from 0, before the warm-up; not counted.
    /// Default zero.
    pub rate_ramp: Duration,
    /// Stages of the rate of an open loop. All of them are measured; the plan's rate is their
    /// highest rate, and its duration their total length. Default: no stages.
    pub stages: Vec<RateStage>,
    /// Number of source addresses. Default: as many as the ports require (see
    /// [`Sources`](crate::Sources)).
    pub sources: Option<usize>,
    /// Maximum connections in progress during set-up, because a server's accept queue is finite.
    /// Without effect on [`Mode::Connect`](crate::Mode::Connect), which has no set-up. Default 100.
    pub window: usize,
    /// Time over which connections are set up at an even pace. Zero, the default, means as fast as
    /// `window` allows.
    pub ramp: Duration,
    /// Maximum time without progress while connections are set up. Default 10 s.
    pub setup_timeout: Duration,
    /// Processes whose CPU and memory count as the server's; empty means the process that listens
    /// on the port, if it is on this machine.
    pub server_pids: Vec<u32>,
    /// TLS settings of the connections.
    pub tls: TlsPlan,
    /// Thresholds that decide the exit code. With [`Mode::Connect`](crate::Mode::Connect) they
    /// apply to the time from the connect call to the echo; with
    /// [`Mode::Broadcast`](crate::Mode::Broadcast) to the time until the last subscriber has a
    /// message. Default: no thresholds.
    pub slos: Vec<Slo>,
}

impl From<Target> for Common {
    fn from(target: Target) -> Self {
        Self {
            target,
            headers: Vec::new(),
            tokens: Tokens::default(),
            connections: 100,
            threads: 1,
            number: None,
            rate_ramp: Duration::ZERO,
            stages: Vec::new(),
            sources: None,
            window: 100,
            ramp: Duration::ZERO,
            setup_timeout: Duration::from_secs(10),
            server_pids: Vec::new(),
            tls: TlsPlan::default(),
            slos: Vec::new(),
        }
    }
}

impl Common {
    /// Returns the number of connections of a thread. They are divided as evenly as possible; the
    /// first threads have one more.
    #[must_use]
    pub fn share(&self, thread: usize) -> usize {
        self.connections / self.threads + usize::from(thread < self.connections % self.threads)
    }

    /// Returns the number of a thread's first connection in the sequence of all connections.
    #[must_use]
    pub fn first(&self, thread: usize) -> usize {
        (0..thread).map(|before| self.share(before)).sum()
    }

    /// Returns a thread's part of the rate of an open loop.
    pub(crate) fn thread_rate(&self, thread: usize, rate_per_s: f64) -> ThreadRate {
        ThreadRate {
            rate_per_s,
            ramp: self.rate_ramp,
            stages: self.stages.clone(),
            of: self.connections,
            shift: thread as f64 / self.threads as f64,
        }
    }

    /// The URL with a request target, which may be the default of a plan.
    pub(crate) fn url(&self, resource: &str) -> String {
        format!("{}://{}{resource}", self.target.scheme(), self.target.host_header())
    }

    /// Refuses an invalid plan. An open loop has at most `most_per_s`.
    pub(crate) fn check(&self, is_open: bool, most_per_s: f64) -> Result<(), Error> {
        check_number("--connections", self.connections, MAX_CONNECTIONS)?;
        check_number("--threads", self.threads, MAX_THREADS)?;
        check_number("--window", self.window, MAX_CONNECTIONS)?;
        check_time("--rate-ramp", self.rate_ramp, Duration::ZERO)?;
        check_time("--setup-timeout", self.setup_timeout, Duration::from_millis(10))?;
        if self.threads > self.connections {
            return Err(Error::Usage(format!(
                "--threads {} needs at least as many connections, not {}",
                self.threads, self.connections
            )));
        }
        if !self.rate_ramp.is_zero() && !is_open {
            return Err(Error::Usage("--rate-ramp is for --rate, which it lets rise".to_owned()));
        }
        match RateStage::mistake(&self.stages, most_per_s) {
            Some(wrong) => Err(Error::Usage(wrong)),
            None => Ok(()),
        }
    }
}

/// Refuses a value that is zero or more than `most`.
pub(crate) fn check_number(flag: &str, value: usize, most: usize) -> Result<(), Error> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Usage(format!("{flag} is {value}; it must be between 1 and {most}")))
}

/// Refuses a time below `least` or above a week.
pub(crate) fn check_time(flag: &str, value: Duration, least: Duration) -> Result<(), Error> {
    if (least..=WEEK).contains(&value) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{flag} is {}; it must be between {} and a week (168h)",
        show_duration(value),
        show_duration(least)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_differ_by_at_most_one() {
        let mut common = Common::from(Target::parse("ws://127.0.0.1:9001").unwrap());
        for (connections, threads) in [(1, 1), (10, 3), (11, 4), (100, 7)] {
            (common.connections, common.threads) = (connections, threads);
            let shares: Vec<_> = (0..threads).map(|thread| common.share(thread)).collect();
            assert_eq!(common.first(threads), connections);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
    }
}
