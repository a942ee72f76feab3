//! Plans made from a seed: limits, faults, and the peers with their scripts.

pub mod adversary;
mod conforming;
mod http_client;
mod members;
mod pace;
mod stopping;
mod strangers;

use std::sync::Arc;
use std::time::Duration;

use throng_balance::{Pick, Settings, Timeouts};
use throng_engine::{
    BuildOptions, DrainPlan, Limit, Limits, PresenceRules, ProxyProtocol, TrustedProxies, Watching,
};
use throng_proto::ws::handshake::{Key, encode_request};

use crate::ask::Ask;
use crate::faults::Faults;
use crate::net::LinkOptions;
use crate::record::Audience;
use crate::rng::Rng;
use crate::rules::Rules;
use crate::script::Do;
use crate::secured::Hops;

/// The required end of a peer, unless something excuses another end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The peer closes and gets an answer, after everything that was due to it.
    Clean,
    /// The server closes with this code.
    Code(u16),
    /// So many HTTP answers of status 200, then the end of the stream.
    Answers(usize),
    /// The last HTTP answer has one of these statuses, then the end of the stream.
    Status(&'static [u16]),
    /// Each of its requests is answered.
    Served,
    /// The peer's first request is answered with 200, regardless of the number of connections from
    /// its address.
    Admitted,
    /// The stream of events lasts until the peer resets it, and reports each message that was too
    /// large for an event.
    Streamed,
    /// The peer ends within this many nanoseconds.
    Within(u64),
    /// Only the general rules apply.
    Anything,
}

/// One peer of the plan.
#[derive(Clone, Debug)]
pub struct Part {
    /// Name of its kind, for reports.
    pub name: &'static str,
    /// Its actions.
    pub script: Vec<Do>,
    /// See [`Expect`].
    pub expect: Expect,
    /// Its requests.
    pub asks: Vec<Ask>,
    /// Answers pings and Close frames.
    pub polite: bool,
    /// Whether the peer writes frames that the checkers do not know.
    pub raw: bool,
    /// Whether the peer receives only its own messages, and reads everything.
    pub echo_only: bool,
    /// The time at which the peer connects, in nanoseconds.
    pub at: u64,
    /// Maximum bytes of a write (0 = no cut), and the maximum pause between two writes.
    pub cut: (usize, u64),
    /// Its link.
    pub link: LinkOptions,
    /// The last octet of its address.
    pub address: u8,
    /// The key of the peer's handshake.
    pub key: Key,
}

/// A drain in the middle of a run.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// The time of the request, in nanoseconds.
    pub at: u64,
    /// The settings of the drain.
    pub plan: DrainPlan,
}

/// Everything that is decided before a run begins.
#[derive(Clone, Debug)]
pub struct SimPlan {
    /// The seed from which the plan was made, which is also the engine's seed.
    pub seed: u64,
    /// Real shards, 1 to 3.
    pub shards: usize,
    /// The engine's limits.
    pub limits: Limits,
    /// The limit on connections; 0 means no limit.
    pub max_connections: usize,
    /// Rules for messages to slow receivers.
    pub rules: Rules,
    /// Whether subscriptions may be patterns.
    pub wildcards: bool,
    /// Number of commands above which a shard's mailbox is crowded; `None`: as in production.
    pub mailbox_mark: Option<usize>,
    /// Maximum connections that may be moving to a shard; `None`: as in production.
    pub handover_capacity: Option<usize>,
    /// Faults of every driver.
    pub faults: Faults,
    /// The peers.
    pub parts: Vec<Part>,
    /// Actions of other threads, with their times in nanoseconds.
    pub outside: Vec<(u64, Outside)>,
    /// A drain, if there is one.
    pub drain: Option<Drain>,
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: bool,
    /// A balancer between the peers and the server, if there is one.
    pub balancer: Option<BalancerPlan>,
    /// The hops that have TLS.
    pub secured: Hops,
}

/// A balancer between the peers and the server.
#[derive(Clone, Debug)]
pub struct BalancerPlan {
    /// The number of the balancer's real shards.
    pub shards: usize,
    /// Its settings.
    pub settings: Settings,
    /// Faults of its drivers.
    pub faults: Faults,
}

/// An action of another thread on the server.
#[derive(Clone, Debug)]
pub enum Outside {
    /// A publish to a channel.
    Publish {
        /// The channel.
        channel: String,
        /// The value's key; empty for none.
        key: String,
        /// A peer that must not receive the message.
        except: Option<u32>,
        /// Bytes of the message in addition to its name.
        fill: usize,
    },
    /// A broadcast.
    Broadcast {
        /// The receivers.
        audience: Audience,
        /// Bytes of the message in addition to its name.
        fill: usize,
    },
    /// A message to one peer.
    Send {
        /// The peer.
        to: u32,
        /// Bytes of the message in addition to its name.
        fill: usize,
    },
    /// The end of a stream of events.
    Dismiss(u32),
}

/// Nanoseconds of one second.
pub const SECOND: u64 = 1_000_000_000;

/// Nanoseconds of one millisecond.
const MILLI: u64 = SECOND / 1000;

impl SimPlan {
    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let faults = Faults::of(&mut rng);
        let limits = limits(&mut rng, &faults);
        let max_connections = if rng.one_in(8) { 1 + rng.below(8) } else { 0 };
        let shards = 1 + rng.below(3);
        let count = 2 + rng.below(14);
        let busy = rng.between(0, 3 * SECOND);
        let mut parts = Vec::with_capacity(count);
        let lawful_only = rng.one_in(4);
        for number in 0..count as u32 {
            let mut part = Part::new(number, &mut rng);
            part.at = rng.between(0, busy);
            if faults.cut_links > 0 && rng.one_in(faults.cut_links) {
                part.link.cut_after = Some(rng.between(1, 3000));
            }
            let context =
                ScriptContext { limits: &limits, number, peers: count as u32, key: part.key };
            match lawful_only || rng.one_in(2) {
                true => conforming::write(&mut part, &context, &mut rng),
                false => adversary::write(&mut part, &context, &mut rng),
            }
            part.cut = cut(&mut rng, &part.script);
            parts.push(part);
        }
        let drain = rng.one_in(4).then(|| Drain {
            at: rng.between(0, busy + 5 * SECOND),
            plan: DrainPlan::default()
                .window(Duration::from_millis(rng.between(0, 3000)))
                .grace(Duration::from_millis(rng.between(500, 6000)))
                .code(rng.pick(&[1001, 1012])),
        });
        let mut plan = Self {
            seed,
            shards,
            limits,
            max_connections,
            rules: Rules::default(),
            wildcards: false,
            mailbox_mark: None,
            handover_capacity: None,
            faults,
            parts,
            outside: Vec::new(),
            drain,
            proxy_protocol: false,
            balancer: None,
            secured: Hops::default(),
        };
        stopping::gather(&mut plan, &mut Rng::new(seed ^ 0x0073_746f_7073));
        members::gather(&mut plan, &mut Rng::new(seed ^ 0x0063_726f_7764));
        http_client::gather(&mut plan, &mut Rng::new(seed ^ 0x6874_7470));
        plan.place(&mut Rng::new(seed ^ 0x706c_6163_6564));
        let mut rng = Rng::new(seed ^ 0x6d61_726b);
        plan.mailbox_mark = rng.one_in(2).then(|| rng.below(4));
        strangers::gather(&mut plan, &mut Rng::new(seed ^ 0x7374_7261_6e67));
        plan
    }

    /// Makes some peers request placed sessions, in a third of all plans.
    fn place(&mut self, rng: &mut Rng) {
        if !rng.one_in(3) {
            return;
        }
        self.handover_capacity = rng.one_in(3).then(|| rng.below(2));
        for part in self.parts.iter_mut().filter(|_| rng.one_in(2)) {
            part.place();
        }
    }

    /// Returns the options that the engine is built with.
    #[must_use]
    pub fn options(&self) -> BuildOptions {
        BuildOptions {
            limits: self.limits.clone(),
            classes: self.rules.classes(),
            presences: PresenceRules::default(),
            routes: Arc::default(),
            max_connections: self.max_connections,
            own_tables: None,
            trusted_proxies: self.proxy_protocol.then(|| {
                TrustedProxies(Arc::new(|address| address.is_some_and(|it| it.is_loopback())))
            }),
            proxy_protocol: self.proxy_protocol.then(ProxyProtocol::default),
            relay: None,
            // A turn takes no time here, so there are no stalls to report.
            watching: Some(Watching {
                warning: Duration::from_nanos(1),
                on_stall: Arc::new(|_| {}),
            }),
            mailbox_mark: self.mailbox_mark,
            mailbox_capacity: None,
            handover_capacity: self.handover_capacity,
            seed: Some(self.seed),
        }
    }

    /// Returns a plan for one test: without faults, effective limits, or peers.
    #[must_use]
    pub fn calm(seed: u64) -> Self {
        Self {
            seed,
            shards: 1,
            limits: Limits::default(),
            max_connections: 0,
            rules: Rules::default(),
            wildcards: false,
            mailbox_mark: None,
            handover_capacity: None,
            faults: Faults::default(),
            parts: Vec::new(),
            outside: Vec::new(),
            drain: None,
            proxy_protocol: false,
            balancer: None,
            secured: Hops::default(),
        }
    }

    /// Returns the plan of a seed with a balancer between the peers and the server. Peers that keep
    /// to the rules must not notice it. For other peers the balancer decides the end, which must
    /// not affect the rest.
    #[must_use]
    pub fn chained(seed: u64) -> Self {
        let mut plan = Self::of(seed);
        let mut rng = Rng::new(seed ^ 0x0063_6861_696e);
        // All peers reach the server from one address, and a draining server would refuse later
        // ones.
        plan.drain = None;
        plan.max_connections = 0;
        plan.limits.max_connections_per_address = Limit::Auto;
        plan.limits.max_pending_handshakes = Limit::Auto;
        (plan.faults.adopt_fails, plan.faults.clock_leaps) = (0, 0);
        let mut faults = Faults::of(&mut rng);
        (faults.adopt_fails, faults.clock_leaps) = (0, 0);
        if faults.is_fine() {
            // Single bytes, each of them late, would take longer than the server waits for the
            // answer to its Close frame.
            (faults.starved_receives, faults.partial_sends, faults.delayed_sends) = (0, 0, 0);
        }
        if faults.cut_receives > 0 {
            // Messages are as long as the server's faults allow. Sent one byte at a time, they
            // would need millions of steps.
            faults.cut_receives = faults.cut_receives.max(30);
        }
        for part in &mut plan.parts {
            // The records of requests and streams are by connection, but a connection of the
            // balancer carries requests of many clients. So these peers only connect and leave.
            if !part.asks.is_empty() || part.name == "stream" {
                part.script = vec![Do::Reset];
                part.asks.clear();
            }
            if !matches!(part.expect, Expect::Clean | Expect::Code(_)) {
                part.expect = Expect::Anything;
            }
        }
        let settings = Settings {
            timeouts: patient(),
            retries: 0,
            keep_alive: rng.pick(&[0, 8]),
            pick: rng.pick(&[Pick::PowerOfTwo, Pick::RoundRobin, Pick::IpHash]),
            ..Settings::default()
        };
        plan.balancer = Some(BalancerPlan { shards: 1 + rng.below(2), settings, faults });
        pace::keep_up(&mut plan);
        plan
    }

    /// The plan of a seed with TLS: without a balancer, or with one if the seed is odd.
    #[must_use]
    pub fn secured(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0074_6c73);
        let mut plan = match seed % 2 {
            0 => Self { secured: Hops { front: true, back: false }, ..Self::of(seed) },
            _ => Self { secured: Hops::of(&mut rng), ..Self::chained(seed) },
        };
        for part in &mut plan.parts {
            // At most some of the clients may be in the middle of the handshake.
            part.link.cut_after = part.link.cut_after.map(|at| at + rng.between(0, 4000));
        }
        pace::keep_up(&mut plan);
        plan
    }

    /// Adds a peer with this script, and returns its number.
    pub fn add(&mut self, name: &'static str, expect: Expect, script: Vec<Do>) -> usize {
        let number = self.parts.len();
        let mut rng = Rng::new(self.seed ^ number as u64 ^ 0x5eed);
        let mut part = Part::new(number as u32, &mut rng);
        part.link = LinkOptions { latency: 50_000, capacity: 64 * 1024, cut_after: None };
        (part.name, part.expect, part.script) = (name, expect, script);
        let asks = upgrade_request("/ws", number as u32, &part.key);
        part.script.insert(0, Do::Write(asks));
        self.parts.push(part);
        number
    }

    /// Adds a peer with requests. Its script may write any of them.
    pub fn add_http_client(
        &mut self,
        name: &'static str,
        expect: Expect,
        asks: Vec<Ask>,
        script: Vec<Do>,
    ) -> usize {
        let number = self.add(name, expect, script);
        self.parts[number].script.remove(0);
        self.parts[number].asks = asks;
        number
    }

    /// Adds a peer with a request for a stream of events of a channel.
    pub fn add_stream(&mut self, name: &'static str, channel: &str, script: Vec<Do>) -> usize {
        let number = self.add(name, Expect::Anything, script);
        self.parts[number].script[0] = Do::Write(events_request(channel, number as u32));
        number
    }

    /// Returns whether a connection may be refused, or closed for another before its first request.
    #[must_use]
    pub fn caps_connections(&self) -> bool {
        let Limits { max_pending_handshakes, max_connections_per_address, .. } = &self.limits;
        let caps = [max_pending_handshakes, max_connections_per_address];
        self.max_connections > 0 || caps.into_iter().any(|cap| matches!(cap, Limit::AtMost(_)))
    }

    /// Returns whether output never exceeds the limit, as long as reading stops in time: a peer
    /// that only echoes must then not be closed as a slow consumer.
    #[must_use]
    pub fn back_pressure_suffices(&self) -> bool {
        self.limits.max_backlog / 2
            >= self.faults.receive_buffer + self.limits.ws.max_message_size + 400
    }

    /// Returns the maximum time in nanoseconds within which everything that must end has ended.
    #[must_use]
    pub fn time_limit(&self) -> u64 {
        let limits = &self.limits;
        let all = limits.handshake_timeout
            + limits.keep_alive_timeout
            + limits.reassembly_timeout
            + limits.write_timeout
            + limits.close_timeout
            + limits.heartbeat_interval.unwrap_or_default()
            + limits.heartbeat_timeout;
        let balancer = if self.balancer.is_some() { 3 * BALANCER_TIMEOUT } else { Duration::ZERO };
        (all + balancer).as_nanos() as u64 + 30 * SECOND
    }
}

/// The maximum timeout of a balancer. It is longer than the timeouts of the server after it, so
/// that the server's timeouts decide.
const BALANCER_TIMEOUT: Duration = Duration::from_secs(500);

/// Returns timeouts of a balancer that no peer exceeds if it keeps to the rules.
fn patient() -> Timeouts {
    let short = Duration::from_secs(30);
    Timeouts {
        connect: short,
        response: short,
        upgrade: short,
        body: short,
        head: short,
        keep_alive: short,
        tunnel: BALANCER_TIMEOUT,
        half_closed: BALANCER_TIMEOUT,
        close: BALANCER_TIMEOUT,
        queue: short,
    }
}

/// The parts of a plan that a script depends on.
pub(crate) struct ScriptContext<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) number: u32,
    pub(crate) peers: u32,
    pub(crate) key: Key,
}

impl ScriptContext<'_> {
    /// The request for an upgrade.
    pub(crate) fn request(&self) -> Vec<u8> {
        upgrade_request("/ws", self.number, &self.key)
    }
}

/// The request of peer `number` for an upgrade.
#[must_use]
pub fn upgrade_request(path: &str, number: u32, key: &Key) -> Vec<u8> {
    let mut out = Vec::new();
    let target = format!("{path}?peer={number}");
    encode_request("sim", &target, key, &[], &[], &mut out).expect("a host, a path and no extras");
    out
}

/// The request of peer `number` for the events of a channel.
#[must_use]
pub fn events_request(channel: &str, number: u32) -> Vec<u8> {
    format!("GET /sse/{channel}?peer={number} HTTP/1.1\r\nHost: sim\r\n\r\n").into_bytes()
}

impl Part {
    /// Requests a session placed by the peer's number, if the target is `/ws`.
    pub fn place(&mut self) {
        const PLAIN: &[u8] = b"GET /ws?";
        for line in &mut self.script {
            if let Do::Write(bytes) = line
                && bytes.starts_with(PLAIN)
            {
                bytes.splice(..PLAIN.len(), *b"GET /placed?");
            }
        }
    }

    pub(crate) fn new(number: u32, rng: &mut Rng) -> Self {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&rng.draw().to_le_bytes());
        nonce[8..12].copy_from_slice(&number.to_le_bytes());
        Self {
            name: "",
            script: Vec::new(),
            expect: Expect::Anything,
            asks: Vec::new(),
            polite: true,
            echo_only: false,
            raw: false,
            at: 0,
            cut: (0, 0),
            link: LinkOptions {
                latency: rng.pick(&[0, 1_000, 50_000, 2_000_000]),
                capacity: rng.pick(&[200, 3000, 64 * 1024, 1 << 20]),
                cut_after: None,
            },
            address: 1 + rng.below(3) as u8,
            key: Key::new(nonce),
        }
    }
}

/// Writes in one piece, or in about so many pieces that a run stays short.
fn cut(rng: &mut Rng, script: &[Do]) -> (usize, u64) {
    let total: usize = script
        .iter()
        .map(|line| match line {
            Do::Write(bytes) => bytes.len(),
            Do::Message { payload, .. } => payload.len(),
            _ => 0,
        })
        .sum();
    match rng.below(3) {
        0 => (0, 0),
        1 => ((total / 400).max(1), rng.pick(&[0, 1_000, 500_000])),
        _ => ((total / 20).max(1), rng.pick(&[0, 1_000, 2_000_000])),
    }
}

fn limits(rng: &mut Rng, faults: &Faults) -> Limits {
    let mut limits = Limits::default();
    let mut secs = |low, high| Duration::from_secs(rng.between(low, high));
    limits.handshake_timeout = secs(2, 10);
    limits.keep_alive_timeout = secs(2, 20);
    limits.reassembly_timeout = secs(3, 10);
    limits.write_timeout = secs(3, 10);
    limits.close_timeout = secs(4, 6);
    limits.heartbeat_interval = Some(secs(4, 25));
    limits.heartbeat_timeout = secs(2, 60);
    if rng.one_in(4) {
        limits.heartbeat_interval = None;
    }
    limits.heartbeat_always = rng.one_in(3);
    let finely_cut = faults.receive_buffer < 1000 || (1..1000).contains(&faults.cut_receives);
    limits.ws.max_message_size = match finely_cut {
        true => rng.pick(&[125, 126, 1000, 2000]),
        false => rng.pick(&[125, 1000, 5000, 65_536, 100_000]),
    };
    limits.ws.max_frame_size = match rng.one_in(3) {
        true => limits.ws.max_message_size.div_ceil(2),
        false => limits.ws.max_message_size,
    };
    limits.max_backlog = rng.pick(&[400, 4000, 60_000, 400_000]);
    limits.http.max_header_bytes = if finely_cut { 600 } else { rng.pick(&[600, 2000, 16 * 1024]) };
    limits.http.max_headers = rng.pick(&[10, 100]);
    if rng.one_in(10) {
        limits.max_connections_per_address = Limit::AtMost(1 + rng.below(4));
    }
    if rng.one_in(10) {
        limits.max_pending_handshakes = Limit::AtMost(1 + rng.below(4));
    }
    limits
}
