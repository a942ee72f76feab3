//! What to run. A [`Plan`] is what was asked for; [`Plan::check`] refuses what makes no sense, before any socket.

use std::sync::Arc;
use std::time::Duration;

use throng_proto::ws::deflate::{Policy, Settings as Deflate};

use crate::client::{Handshake, JSON_SMALLEST};
use crate::script::Script;
use crate::template::{Template, Values};
use crate::work::{FANOUT_SMALLEST, split_stamp};
use crate::{Error, RateStage, Slo, Target, TlsPlan, Tokens};

/// A whole run: where, how many, what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub target: Target,
    /// What is measured.
    pub mode: Mode,
    /// Connections held, or, with [`Mode::Connect`], being made at a time, and at a rate of its own the most that are. With [`Mode::Broadcast`] the
    /// subscribers; the publisher is one more. With [`Mode::Fanout`] what [`Plan::fanout_connections`] says.
    /// Default 100.
    pub connections: usize,
    /// Payload bytes of each message, of a template those of the first. Default 100.
    pub size: usize,
    /// Send text messages instead of binary ones. Default false.
    pub text: bool,
    /// Content of the payload; with [`Mode::Fanout`] letters, or a given text in which `{stamp}` stands for the
    /// [`FANOUT_STAMP`] bytes that name a message. Default [`Content::Letters`].
    pub content: Content,
    /// What to offer of permessage-deflate; a server may decline. Default off.
    pub deflate: Deflate,
    /// Whether [`Mode::Idle`] ends with one message on each connection, which has to be answered by the same.
    /// Default: false.
    pub echo_after_idle: bool,
    /// After that, how long to wait for the server to close every connection; `None`: not at all.
    pub await_close: Option<Duration>,
    /// Threads, each with its own share of the connections. One keeps up with one server shard. Default 1.
    pub threads: usize,
    /// Source addresses to use; default as many as the ports need (see [`Sources`](crate::Sources)).
    pub sources: Option<usize>,
    /// Connections being made at a time while all are set up: a server's accept queue is finite. Default 100.
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
    /// Fields of the upgrade request besides its own, names and [templates](crate::Template). A `Host` replaces ours.
    /// Default none.
    pub headers: Vec<(String, String)>,
    /// Subprotocols to offer, as [templates](crate::Template), in order of preference. Default none.
    pub subprotocols: Vec<String>,
    /// Tokens that clients take in turn where a template has `{token}`. Default none.
    pub tokens: Tokens,
    /// Thresholds that decide over the exit code: with [`Mode::Connect`] times from the connect call to the echo, with
    /// [`Mode::Broadcast`] those until the last subscriber has a message. Default none.
    pub slos: Vec<Slo>,
    /// The steps of [`Mode::Script`]. Default none.
    pub script: Option<Arc<Script>>,
    /// Messages of a closed [`Mode::Echo`], or connections of a closed [`Mode::Connect`], in all, after which the run is over;
    /// without a warm-up. Default: as many as fit its time.
    pub number: Option<u64>,
    /// Time over which the rate of an open [`Mode::Echo`] or [`Mode::Connect`] rises from 0, before the warm-up; not
    /// counted. Default zero.
    pub rate_ramp: Duration,
    /// Stages of the rate of an open [`Mode::Echo`] or [`Mode::Connect`], all of them measured; the mode has the highest
    /// rate, and their length as its duration. Default none.
    pub stages: Vec<RateStage>,
}

/// The content of a payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Random letters, the same in every message but for a stamp.
    #[default]
    Letters,
    /// JSON text as applications send it, quotes and chat lines, another document in every message.
    Json {
        /// The same seed makes the same documents. Default 1.
        seed: u64,
    },
    /// These bytes in every message; UTF-8, if [`Plan::text`] is set.
    Given(Arc<[u8]>),
    /// A text with values of each client and message.
    Template(Template),
}

impl Content {
    /// The content of a template, which is given if it has no places.
    #[must_use]
    pub fn of_template(template: Template) -> Self {
        match template.constant() {
            Some(text) => Self::Given(text.as_bytes().into()),
            None => Self::Template(template),
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Each message comes back; how many a second, how soon.
    Echo {
        /// Closed or open loop.
        pace: Pace,
        /// Time measured. Default 10 s.
        duration: Duration,
        /// Time run before, not counted. Default 1 s.
        warmup: Duration,
    },
    /// Connections that do nothing; what they cost the server.
    Idle {
        /// Time held. Default 5 s.
        hold: Duration,
    },
    /// Connect, upgrade, one echo, reset; how many a second, how soon.
    Connect {
        /// Connections a second that begin by a schedule (open loop), in all; time counts from the planned moment, and also
        /// while one waits because [`Plan::connections`] are open. `None`, the default: a closed loop, in which the end
        /// of each connection begins the next.
        rate_per_s: Option<f64>,
        /// Time measured. Default 10 s.
        duration: Duration,
        /// Time run before, not counted. Default 1 s.
        warmup: Duration,
    },
    /// Messages to many channels at a fixed rate; how late they reach each subscriber, and which never do.
    Fanout {
        /// Channels; each has one publisher. The URL names them by `{channel}`. Default 1,000.
        channels: usize,
        /// Subscribers of each channel. Default 15.
        subscribers: usize,
        /// Messages a second to all channels together, which take turns. Default 1,000.
        rate_per_s: f64,
        /// Time measured. Default 10 s.
        duration: Duration,
        /// Time run before, not counted. Default 2 s.
        warmup: Duration,
    },
    /// Each client sends and expects what [`Plan::script`] says.
    Script {
        /// Longest time measured. Default 10 s.
        duration: Duration,
        /// Time run before, not counted. Default none.
        warmup: Duration,
        /// Longest wait for an expected message. Default 10 s.
        timeout: Duration,
    },
    /// One publishes, all others receive; time until the last has it.
    Broadcast {
        /// Publishes measured, one after the other. Default 10.
        publishes: usize,
        /// Longest wait for one publish to reach everybody. Default 30 s.
        timeout: Duration,
    },
}

/// When the next message leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: so many messages are under way per connection, and each answer triggers the next message.
    Closed {
        /// Messages under way per connection. Default 1.
        pipeline: usize,
    },
    /// Open loop: a fixed rate, whether or not answers come; latency counts from the planned time.
    Open {
        /// Messages a second per connection.
        rate_per_s: f64,
    },
}

/// Most connections of one run; the descriptor limit is usually lower.
pub const MAX_CONNECTIONS: usize = 50_000_000;
/// Most messages under way on all connections together: each has its time of sending in memory.
const MAX_UNDER_WAY: usize = 1 << 26;
/// Most messages under way per connection.
pub const MAX_PIPELINE: usize = 65_536;
/// Most connections a second of one run.
pub(crate) const MAX_CONNECTS_PER_S: f64 = 1e6;
/// Largest message: 1 GiB.
pub const MAX_SIZE: usize = 1 << 30;
/// Bytes of a message of [`Mode::Fanout`] that name it.
pub const FANOUT_STAMP: usize = FANOUT_SMALLEST;
/// Longest duration, warm-up, hold and ramp: a week.
const TOO_LONG: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most event loops of a server that a benchmark starts.
pub const MAX_SHARDS: usize = 256;
/// Most threads.
pub const MAX_THREADS: usize = 64;

impl Mode {
    /// The mode's name in reports and on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Echo { .. } => "echo",
            Self::Idle { .. } => "idle",
            Self::Connect { .. } => "connect",
            Self::Broadcast { .. } => "broadcast",
            Self::Fanout { .. } => "fanout",
            Self::Script { .. } => "script",
        }
    }

    /// Where our own server does what the mode needs, for a URL that stops at the port.
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
    /// A plan with all defaults.
    #[must_use]
    pub fn new(target: Target, mode: Mode) -> Self {
        Self {
            target,
            mode,
            connections: 100,
            size: 100,
            text: false,
            content: Content::default(),
            deflate: Deflate::default(),
            threads: 1,
            echo_after_idle: false,
            await_close: None,
            sources: None,
            window: 100,
            ramp: Duration::ZERO,
            setup_timeout: Duration::from_secs(10),
            server_pids: Vec::new(),
            tls: TlsPlan::default(),
            headers: Vec::new(),
            subprotocols: Vec::new(),
            tokens: Tokens::default(),
            slos: Vec::new(),
            script: None,
            number: None,
            rate_ramp: Duration::ZERO,
            stages: Vec::new(),
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
            Mode::Broadcast { .. } => self.connections + 1,
            _ => self.connections,
        }
    }

    /// Length of a given payload, of a template that of the first message; `None` if [`Plan::size`] says it.
    #[must_use]
    pub fn given_size(&self) -> Option<usize> {
        let values = Values { client: 0, sequence: 0, seed: 0, tokens: &self.tokens };
        match &self.content {
            Content::Letters | Content::Json { .. } => None,
            Content::Given(bytes) => Some(bytes.len()),
            Content::Template(template) => Some(template.rendered(&values).len()),
        }
    }

    /// Messages of a thread, if there is a number of them in all.
    #[must_use]
    pub fn number_of(&self, thread: usize) -> Option<u64> {
        let threads = self.threads as u64;
        Some(self.number? / threads + u64::from((thread as u64) < self.number? % threads))
    }

    /// Number of the first connection of a thread among all.
    #[must_use]
    pub fn first(&self, thread: usize) -> usize {
        (0..thread).map(|before| self.share(before)).sum()
    }

    /// What to offer, checked; `None`: nothing.
    ///
    /// # Errors
    /// A setting that cannot be.
    pub fn policy(&self) -> Result<Option<Policy>, Error> {
        self.deflate.check().map_err(|error| Error::Usage(error.to_string()))
    }

    /// The request target all connections ask for.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.target.resource(self.mode.default_resource())
    }

    /// Connections of thread `thread`: as even as possible, the first threads take the rest.
    #[must_use]
    pub fn share(&self, thread: usize) -> usize {
        self.connections / self.threads + usize::from(thread < self.connections % self.threads)
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag and the bound.
    pub fn check(&self) -> Result<(), Error> {
        if let Mode::Fanout { channels, subscribers, rate_per_s, .. } = self.mode {
            self.check_fanout(channels, subscribers, rate_per_s)?;
        }
        self.check_connections()?;
        Handshake::of(self, 0)?;
        self.check_content()?;
        self.check_times()?;
        self.check_pace()
    }

    fn check_connections(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        if self.connections == 0 {
            return refuse("--connections must be at least 1".to_owned());
        }
        if self.connections > MAX_CONNECTIONS {
            return refuse(format!(
                "--connections must be at most {MAX_CONNECTIONS}, not {}",
                self.connections
            ));
        }
        if self.threads == 0 || self.threads > MAX_THREADS {
            return refuse(format!("--threads must be between 1 and {MAX_THREADS}"));
        }
        if self.threads > self.connections {
            return refuse(format!(
                "--threads {} needs at least as many connections, not {}",
                self.threads, self.connections
            ));
        }
        if self.setup_timeout.is_zero() {
            return refuse("--setup-timeout must be longer than 0s".to_owned());
        }
        Ok(())
    }

    fn check_content(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        if matches!(self.content, Content::Json { .. }) && self.size < JSON_SMALLEST {
            return refuse(format!(
                "--size is {}; a JSON document needs {JSON_SMALLEST} bytes",
                self.size
            ));
        }
        let is_open = matches!(
            self.mode,
            Mode::Echo { pace: Pace::Open { .. }, .. } | Mode::Connect { rate_per_s: Some(_), .. }
        );
        if !self.rate_ramp.is_zero() && (!is_open || self.rate_ramp > TOO_LONG) {
            return refuse(
                "--rate-ramp is for --rate, which it lets rise over a week (168h) at most"
                    .to_owned(),
            );
        }
        if let Some(number) = self.number {
            let (least, of) = match self.mode {
                Mode::Echo { pace: Pace::Closed { .. }, .. } => (1, "messages of a closed loop"),
                // Each place of a connection is used.
                Mode::Connect { rate_per_s: None, .. } => {
                    (self.connections as u64, "connections, as many as --concurrency")
                }
                _ => (u64::MAX, "for echo and connect"),
            };
            if number < least {
                let least =
                    if least == u64::MAX { String::new() } else { format!(", at least {least}") };
                return refuse(format!("--number is {number}; it is {of}{least}"));
            }
        }
        let most = match self.mode {
            Mode::Connect { .. } => MAX_CONNECTS_PER_S,
            _ => 1e6 * self.connections as f64,
        };
        if let Some(wrong) = RateStage::mistake(&self.stages, most) {
            return refuse(wrong);
        }
        if let Content::Given(bytes) = &self.content
            && self.text
            && str::from_utf8(bytes).is_err()
        {
            return refuse("the payload is no text (UTF-8); send it in binary messages".to_owned());
        }
        if self.size > MAX_SIZE {
            return refuse("--size must be at most 1GiB".to_owned());
        }
        if self.window == 0 {
            return refuse("--window must be at least 1".to_owned());
        }
        Ok(())
    }

    /// Refuses durations and thresholds that the mode cannot have.
    fn check_times(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        match self.mode {
            Mode::Echo { duration, .. }
            | Mode::Connect { duration, .. }
            | Mode::Fanout { duration, .. }
            | Mode::Script { duration, .. }
                if duration < Duration::from_millis(10) =>
            {
                return refuse(
                    "--duration must be at least 10ms: less measures nothing".to_owned(),
                );
            }
            Mode::Echo { duration, warmup, .. }
            | Mode::Connect { duration, warmup, .. }
            | Mode::Fanout { duration, warmup, .. }
            | Mode::Script { duration, warmup, .. }
                if duration > TOO_LONG || warmup > TOO_LONG =>
            {
                return refuse("--duration and --warmup must be at most a week (168h)".to_owned());
            }
            Mode::Script { timeout, .. } if timeout < Duration::from_millis(1) => {
                return refuse("--timeout must be at least 1ms".to_owned());
            }
            Mode::Script { .. } if self.script.is_none() => {
                return refuse("the script mode needs a script".to_owned());
            }
            Mode::Idle { hold } if hold < Duration::from_millis(10) || hold > TOO_LONG => {
                return refuse("--hold must be between 10ms and a week (168h)".to_owned());
            }
            Mode::Idle { .. } if !self.slos.iter().all(Slo::is_about_errors) => {
                return refuse(
                    "--slo: idle connections have no latency and no rate; write errors<0.1%"
                        .to_owned(),
                );
            }
            Mode::Broadcast { .. } if self.slos.iter().any(Slo::is_about_rate) => {
                return refuse(
                    "--slo: broadcasts have no rate, one follows another; write p99<10ms"
                        .to_owned(),
                );
            }
            Mode::Broadcast { publishes: 0, .. } => {
                return refuse("--publishes must be at least 1".to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    fn check_pace(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        match self.mode {
            Mode::Echo { pace: Pace::Closed { pipeline }, .. }
                if pipeline == 0 || pipeline > MAX_PIPELINE =>
            {
                refuse(format!("--pipeline must be between 1 and {MAX_PIPELINE}"))
            }
            Mode::Echo { pace: Pace::Closed { pipeline }, .. }
                if pipeline * self.connections > MAX_UNDER_WAY =>
            {
                refuse(format!(
                    "--pipeline {pipeline} on {} connections is more than {MAX_UNDER_WAY} messages under way",
                    self.connections
                ))
            }
            Mode::Echo { pace: Pace::Open { rate_per_s }, .. }
                if !(0.001..=1e6).contains(&rate_per_s) =>
            {
                refuse(format!(
                    "--rate is messages a second per connection, between 0.001 and 1000000, not {rate_per_s}"
                ))
            }
            Mode::Connect { rate_per_s: Some(rate_per_s), .. }
                if !(0.001..=MAX_CONNECTS_PER_S).contains(&rate_per_s) =>
            {
                refuse(format!(
                    "--rate is connections a second, between 0.001 and {MAX_CONNECTS_PER_S}, not {rate_per_s}"
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_fanout(
        &self,
        channels: usize,
        subscribers: usize,
        rate_per_s: f64,
    ) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        if channels == 0 || subscribers == 0 {
            return refuse(format!(
                "--channels is {channels} and --subscribers {subscribers}; both must be at least 1"
            ));
        }
        if self.connections != Self::fanout_connections(channels, subscribers) {
            return refuse(format!(
                "--connections is {}, but {channels} channels of {subscribers} subscribers and a publisher need {}",
                self.connections,
                Self::fanout_connections(channels, subscribers)
            ));
        }
        if !(0.001..=1e7).contains(&rate_per_s) {
            return refuse(format!(
                "--rate is {rate_per_s}; it is messages a second to all channels together, between 0.001 and \
                 10000000"
            ));
        }
        let is_stamped = match &self.content {
            Content::Letters => true,
            Content::Given(bytes) => split_stamp(bytes).is_some(),
            Content::Json { .. } | Content::Template(_) => false,
        };
        if !is_stamped {
            return refuse(
                "--payload has to be a text with {stamp} once, where the 40 characters go that name the message"
                    .to_owned(),
            );
        }
        if self.size < FANOUT_SMALLEST {
            return refuse(format!(
                "--size is {}; a message needs {FANOUT_SMALLEST} bytes for its channel, number and planned time",
                self.size
            ));
        }
        if channels > 1 && !self.resource().contains("{channel}") {
            return refuse(format!(
                "--against has the path {:?}, which names one channel; write {{channel}} where its name goes, as in \
                 /ws/{{channel}}, or --channels 1",
                self.resource()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn plan(pace: Pace) -> Plan {
        let target = Target::parse("ws://127.0.0.1:9001").unwrap();
        Plan::new(target, Mode::Echo { pace, duration: SECOND, warmup: SECOND })
    }

    #[test]
    fn defaults_pass() {
        assert!(plan(Pace::Closed { pipeline: 1 }).check().is_ok());
    }

    #[test]
    fn shares_add_up_and_differ_by_at_most_one() {
        let mut plan = plan(Pace::Closed { pipeline: 1 });
        for (connections, threads) in [(1, 1), (10, 3), (11, 4), (100, 7)] {
            (plan.connections, plan.threads) = (connections, threads);
            let shares: Vec<_> = (0..threads).map(|thread| plan.share(thread)).collect();
            assert_eq!(shares.iter().sum::<usize>(), connections);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let fine = || plan(Pace::Closed { pipeline: 1 });
        let bad = [
            (Plan { connections: 0, ..fine() }, "--connections"),
            (Plan { connections: usize::MAX, ..fine() }, "--connections"),
            (
                Plan { connections: 20_000, ..plan(Pace::Closed { pipeline: MAX_PIPELINE }) },
                "messages under way",
            ),
            (Plan { threads: 0, ..fine() }, "--threads"),
            (Plan { threads: 65, ..fine() }, "--threads"),
            (Plan { threads: 2, connections: 1, ..fine() }, "--threads 2"),
            (Plan { size: MAX_SIZE + 1, ..fine() }, "--size"),
            (Plan { size: 71, content: Content::Json { seed: 1 }, ..fine() }, "needs 72 bytes"),
            (Plan { deflate: Deflate::default().level(0), ..fine() }, "level is 0"),
            (Plan { window: 0, ..fine() }, "--window"),
            (Plan { setup_timeout: Duration::ZERO, ..fine() }, "--setup-timeout"),
            (plan(Pace::Closed { pipeline: 0 }), "--pipeline"),
            (plan(Pace::Open { rate_per_s: 0.0 }), "--rate"),
            (plan(Pace::Open { rate_per_s: f64::NAN }), "--rate"),
            (Plan { mode: Mode::Idle { hold: Duration::ZERO }, ..fine() }, "--hold"),
            (
                Plan {
                    mode: Mode::Connect {
                        rate_per_s: None,
                        duration: Duration::ZERO,
                        warmup: SECOND,
                    },
                    ..fine()
                },
                "--duration",
            ),
            (
                Plan { mode: Mode::Broadcast { publishes: 0, timeout: SECOND }, ..fine() },
                "--publishes",
            ),
        ];
        for (plan, flag) in bad {
            let error = plan.check().unwrap_err();
            assert!(error.to_string().contains(flag) && error.exit_code() == 2, "{flag}: {error}");
        }
    }

    #[test]
    fn a_fanout_must_fit_together() {
        let fanout = |url: &str, channels, subscribers, rate_per_s| {
            let (duration, warmup) = (SECOND, SECOND);
            let mode = Mode::Fanout { channels, subscribers, rate_per_s, duration, warmup };
            let connections = Plan::fanout_connections(channels, subscribers);
            Plan { connections, ..Plan::new(Target::parse(url).unwrap(), mode) }
        };
        let url = "ws://127.0.0.1:9001";
        let fine = || fanout(url, 1_000, 15, 1_000.0);
        assert!(fine().check().is_ok());
        assert_eq!((fine().sockets(), fine().resource()), (16_000, "/ws/{channel}"));
        let one = "ws://127.0.0.1:9001/feed";
        assert!(fanout(one, 1, 15, 1.0).check().is_ok());
        for (plan, words) in [
            (fanout(url, 0, 15, 1.0), "--channels is 0"),
            (fanout(url, 5, 0, 1.0), "--subscribers 0"),
            (fanout(url, 5, 5, 0.0), "--rate is 0"),
            (fanout(url, 5, 5, f64::INFINITY), "--rate is inf"),
            (fanout(one, 2, 5, 1.0), "write {channel}"),
            (Plan { size: 39, ..fine() }, "--size is 39; a message needs 40"),
            (Plan { connections: 7, ..fine() }, "need 16000"),
        ] {
            let error = plan.check().unwrap_err();
            assert!(
                error.to_string().contains(words) && error.exit_code() == 2,
                "{words}: {error}"
            );
        }
    }

    #[test]
    fn each_mode_knows_where_our_server_does_it() {
        let mut plan = plan(Pace::Closed { pipeline: 1 });
        assert_eq!(plan.resource(), "/echo");
        plan.mode = Mode::Broadcast { publishes: 1, timeout: SECOND };
        assert_eq!((plan.resource(), plan.sockets()), ("/ws/bench", 101));
        plan.target = Target::parse("ws://127.0.0.1:9001/").unwrap();
        assert_eq!(plan.resource(), "/");
    }
}
