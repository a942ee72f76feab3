//! Counters of a shard, and their copy for other threads.
//!
//! Counters are plain integers of the shard's own. They are copied to a shared [`Snapshot`] once a
//! second while there is something to copy, so the hot path holds no atomic and a scrape is at most
//! a second old.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::backpressure::{Rules, SlowPolicy};
use crate::samples::{Durations, Measured};
use crate::stalls::{Load, ShardProgress, SharedProgress};

macro_rules! counters {
    (
        $(#[doc = $about:literal])+ $counters:ident, $published:ident;
        $($(#[doc = $doc:literal])+ $name:ident $kind:ident,)+
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        /// Shared copy of the counters, readable from any thread.
        #[derive(Debug, Default)]
        struct $published {
            $($name: AtomicU64,)+
        }

        impl $counters {
            /// Calls `each` for every counter: name, meaning, whether it only grows, value.
            pub fn each(&self, mut see: impl FnMut(&'static str, &'static str, Kind, u64)) {
                $(see(stringify!($name), concat!($($doc),+).trim(), Kind::$kind, self.$name);)+
            }

            /// Adds another shard's counters to these.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }

        impl $published {
            /// Adds the difference between `now` and `before`.
            fn add(&self, now: &$counters, before: &$counters) {
                $(if now.$name != before.$name {
                    self.$name.fetch_add(now.$name.wrapping_sub(before.$name), Ordering::Relaxed);
                })+
            }

            fn read(&self) -> $counters {
                $counters { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }

            /// Returns whether it differs from `counters`; the number of turns alone does not
            /// matter.
            fn is_congested(&self, counters: &$counters) -> bool {
                $(if stringify!($name) != "turns"
                    && self.$name.load(Ordering::Relaxed) != counters.$name { return true; })+
                false
            }

            fn export(&self, counters: &$counters) {
                $(self.$name.store(counters.$name, Ordering::Relaxed);)+
            }
        }
    };
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows.
    Counter,
}

counters! {
    /// Counters and gauges of a shard.
    Stats, PublishedStats;
    /// Connections of any kind that are open now.
    connections Gauge,
    /// WebSocket sessions that are open now.
    sessions Gauge,
    /// Server-sent event streams that are open now.
    streams Gauge,
    /// Channels with at least one subscriber on the shard.
    channels Gauge,
    /// Subscriptions of all connections together.
    subscriptions Gauge,
    /// Connections whose output waits until the peer reads.
    backlogged Gauge,
    /// Connections accepted.
    accepted Counter,
    /// Connections refused: a limit on connections was reached, or the server is draining.
    refused Counter,
    /// Connections given to another shard: at accept to a less loaded one, and with a session that
    /// is placed by key to the one of its key.
    handed_over Counter,
    /// Connections closed because they came from no trusted proxy, or their PROXY header was wrong
    /// or late.
    proxy_errors Counter,
    /// Connections refused because the system would not start a thread for them.
    thread_failures Counter,
    /// Times that accepting stopped because descriptors or memory ran out.
    accept_stopped Counter,
    /// HTTP requests answered.
    requests Counter,
    /// HTTP requests refused because they broke a rule or a limit.
    bad_requests Counter,
    /// HTTP requests answered with a status of 5xx.
    server_errors Counter,
    /// WebSocket sessions opened.
    opened Counter,
    /// Sessions ended by a closing handshake.
    closed_clean Counter,
    /// Sessions that ended without one: reset, end of stream, or a missed deadline.
    closed_abnormally Counter,
    /// Sessions closed because the peer broke RFC 6455.
    protocol_errors Counter,
    /// Sessions closed because a handler panicked.
    handler_panics Counter,
    /// Sessions closed because the peer read too slowly.
    slow_consumers Counter,
    /// Connections ended because all together held more memory than `max_memory`.
    memory_ended Counter,
    /// Connections ended because they missed a deadline.
    timeouts Counter,
    /// Messages received.
    messages_in Counter,
    /// Messages queued for sending, one for each receiver.
    messages_out Counter,
    /// Messages not sent because the connection's backlog was full.
    messages_dropped Counter,
    /// Messages sent to one connection through a hub that equal the message sent just before to
    /// another one.
    repeated_sends Counter,
    /// Commands to other shards that found their mailbox full.
    commands_dropped Counter,
    /// Times that a connection was not read because the queue of another shard to which it
    /// publishes, or the queue of messages for the cluster, was nearly full.
    publishers_held Counter,
    /// Bytes received.
    bytes_in Counter,
    /// Bytes flushed: the kernel has them, or has no room for them yet.
    bytes_out Counter,
    /// Bytes of messages that were compressed, once for each compression.
    deflate_input_bytes Counter,
    /// Bytes they were compressed to.
    deflate_output_bytes Counter,
    /// Bytes of messages that compressing did not shrink; they are sent as they are.
    deflate_kept_bytes Counter,
    /// Bytes of compressed messages received.
    inflate_input_bytes Counter,
    /// Bytes they inflated to.
    inflate_output_bytes Counter,
    /// Heartbeat pings sent.
    pings Counter,
    /// Publishes made on this shard.
    publishes Counter,
    /// Turns of the event loop.
    turns Counter,
}

counters! {
    /// Outcomes of the messages of one class of back-pressure, on one shard. The first four count
    /// publications and broadcasts by the result their publisher got; the rest count every message
    /// of the class.
    ClassCounters, PublishedClass;
    /// Queued for receivers that keep up.
    delivered Counter,
    /// Queued behind output that a receiver has not taken yet.
    queued Counter,
    /// Not sent: the receiver was closing.
    closed Counter,
    /// Not sent: the receiver's filter did not want it.
    filtered Counter,
    /// Not sent: the receiver was closed for being too slow.
    slow_consumers Counter,
    /// Dropped on arrival: their cap was reached (`drop_newest`).
    dropped_newest Counter,
    /// Dropped while they waited, to make room for a newer one (`drop_oldest`, `latest`).
    dropped_oldest Counter,
    /// Replaced while they waited by a newer value of their key (`latest`).
    conflated Counter,
    /// Dropped because they waited longer than `max_age`.
    expired Counter,
    /// Waiting when their receiver went away.
    discarded Counter,
    /// Not sent to a stream of events: as an event, a text of many empty lines is too large.
    too_large Counter,
    /// Lost between shards, for one receiver each: the queue of its shard was full.
    lost Counter,
}

/// Counts that a shard has added to a common [`Snapshot`].
#[derive(Debug, Default)]
pub(crate) struct Added {
    stats: Stats,
    /// Indexed by class; shorter while there was nothing.
    classes: Vec<ClassCounters>,
}

impl Added {
    /// Returns whether it differs from `counters`; the number of turns alone does not matter.
    pub(crate) fn is_congested(&self, stats: &Stats, classes: &[ClassCounters]) -> bool {
        let turns = stats.turns;
        let nothing = ClassCounters::default();
        Stats { turns, ..self.stats } != *stats
            || classes
                .iter()
                .enumerate()
                .any(|(n, now)| now != self.classes.get(n).unwrap_or(&nothing))
    }
}

/// Counters of one shard, readable from any thread; at most a second old.
#[derive(Debug)]
pub struct Snapshot {
    stats: PublishedStats,
    /// Classes are only added.
    classes: RwLock<Vec<(Arc<str>, SlowPolicy, PublishedClass)>>,
    pub(crate) load: Arc<Load>,
    pub(crate) measured: Arc<Measured>,
    pub(crate) progress: Arc<SharedProgress>,
}

impl Snapshot {
    pub(crate) fn new(rules: &Rules) -> Self {
        let snapshot = Self {
            stats: PublishedStats::default(),
            classes: RwLock::default(),
            load: Arc::default(),
            measured: Arc::default(),
            progress: Arc::default(),
        };
        snapshot.add_classes(rules);
        snapshot
    }

    /// Adds the classes of `rules` to the existing ones.
    pub(crate) fn add_classes(&self, rules: &Rules) {
        let mut classes = self.classes.write().unwrap_or_else(PoisonError::into_inner);
        let known = classes.len();
        let class = |(name, policy): (&Arc<str>, _)| (Arc::clone(name), policy, Default::default());
        classes.extend(rules.names().skip(known).map(class));
    }

    fn exported(&self) -> impl Deref<Target = Vec<(Arc<str>, SlowPolicy, PublishedClass)>> {
        self.classes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the total time of its turns, up to now: per second, the time it was busy. Zero where
    /// nothing is [watched](crate::Watching).
    #[must_use]
    pub fn busy(&self) -> Duration {
        self.load.busy()
    }

    /// Returns the longest turn since the last call, or of the last one or two seconds if called
    /// more often: an upper bound of the time that an event waited for earlier ones.
    #[must_use]
    pub fn longest_turn(&self) -> Duration {
        self.load.longest()
    }

    /// Returns the durations of its turns, and of a sample of its handshakes, requests and
    /// publications. Turns and publications are missing where nothing is
    /// [watched](crate::Watching).
    #[must_use]
    pub fn durations(&self) -> Durations {
        Durations {
            turns: self.load.turns(),
            handshakes: self.measured.handshakes.read(),
            requests: self.measured.requests.read(),
            publications: self.measured.publications.read(),
        }
    }

    /// Returns the sessions that were closed, by the code of their Close frame or a range of codes;
    /// 1006 without one.
    pub fn closes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.measured.closes()
    }

    /// Returns the sessions that ended without a Close frame, by the seconds for which their client
    /// had been silent; without sessions that were pinged since, or that have no heartbeats.
    pub fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.measured.losses()
    }

    /// Returns the number of connections and requests that each [`Fault`](crate::Fault) ended, by
    /// the word for the fault.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.measured.faults()
    }

    /// Returns the current progress of the shard; with a thread for each connection, the acceptor's
    /// progress.
    #[must_use]
    pub fn progress(&self) -> ShardProgress {
        self.progress.read()
    }

    /// Returns the counters as last exported.
    #[must_use]
    pub fn read(&self) -> Stats {
        self.stats.read()
    }

    /// Returns the classes of back-pressure: the pattern of channels or the route's path, its
    /// policy, and its counters. Every shard has the same classes in the same order.
    /// Classes of rules that were replaced while the server ran are included.
    #[must_use]
    pub fn classes(&self) -> Vec<(Arc<str>, SlowPolicy, ClassCounters)> {
        let class = |(name, policy, counters): &(Arc<str>, _, PublishedClass)| {
            (Arc::clone(name), *policy, counters.read())
        };
        self.exported().iter().map(class).collect()
    }

    /// Adds the difference to `added`, for a shard that shares its counters with others.
    pub(crate) fn add(&self, stats: &Stats, classes: &[ClassCounters], added: &mut Added) {
        self.stats.add(stats, &added.stats);
        added.classes.resize(classes.len(), ClassCounters::default());
        let all = self.exported();
        for (((.., exported), now), before) in all.iter().zip(classes).zip(&added.classes) {
            exported.add(now, before);
        }
        added.stats = *stats;
        added.classes.copy_from_slice(classes);
    }

    pub(crate) fn is_congested(&self, stats: &Stats, classes: &[ClassCounters]) -> bool {
        let all = self.exported();
        let mut pairs = all.iter().zip(classes);
        self.stats.is_congested(stats)
            || pairs.any(|((.., exported), now)| exported.is_congested(now))
    }

    pub(crate) fn export(&self, stats: &Stats, classes: &[ClassCounters]) {
        self.stats.export(stats);
        for ((.., exported), now) in self.exported().iter().zip(classes) {
            exported.export(now);
        }
    }
}
