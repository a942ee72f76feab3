//! What a shard counts, and how others see it.
//!
//! Counters are plain integers of the shard's own. They are copied to a shared [`Snapshot`] once a second while
//! there is something to copy, so the hot path holds no atomic and a scrape is at most a second old.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident $kind:ident,)+) => {
        /// A shard's counters and gauges.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        /// A [`Stats`] that another thread can read.
        #[derive(Debug, Default)]
        pub struct Snapshot {
            $($name: AtomicU64,)+
        }

        impl Stats {
            /// Each figure: name, meaning, whether it only grows, value.
            pub fn each(&self, mut see: impl FnMut(&'static str, &'static str, Kind, u64)) {
                $(see(stringify!($name), concat!($($doc),+).trim(), Kind::$kind, self.$name);)+
            }

            /// Adds another shard's figures to these.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }

        impl Snapshot {
            /// The figures as they were when last published.
            #[must_use]
            pub fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }

            /// Whether it says something else than `stats`.
            pub(crate) fn is_behind(&self, stats: &Stats) -> bool {
                $(if stringify!($name) != "turns"
                    && self.$name.load(Ordering::Relaxed) != stats.$name { return true; })+
                false
            }

            pub(crate) fn publish(&self, stats: &Stats) {
                $(self.$name.store(stats.$name, Ordering::Relaxed);)+
            }
        }
    };
}

/// How a figure behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows.
    Counter,
}

stats! {
    /// Connections of any kind that are open now.
    connections Gauge,
    /// WebSocket sessions that are open now.
    sessions Gauge,
    /// Channels with at least one subscriber on the shard.
    channels Gauge,
    /// Subscriptions of all connections together.
    subscriptions Gauge,
    /// Connections whose output waits for the peer to read.
    backlogged Gauge,
    /// Connections accepted.
    accepted Counter,
    /// Connections refused: a limit on connections was reached, or the server is draining.
    refused Counter,
    /// Accepted sockets handed to a less loaded shard.
    handed_over Counter,
    /// Times that accepting stopped because descriptors or memory ran out.
    accept_stopped Counter,
    /// HTTP requests answered.
    requests Counter,
    /// HTTP requests refused because they broke a rule or a limit.
    bad_requests Counter,
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
    /// Connections ended because they missed a deadline.
    timeouts Counter,
    /// Messages received.
    messages_in Counter,
    /// Messages queued for sending, one for each receiver.
    messages_out Counter,
    /// Messages not sent because the connection's backlog was full.
    messages_dropped Counter,
    /// Letters to other shards that found their mailbox full.
    letters_dropped Counter,
    /// Bytes received.
    bytes_in Counter,
    /// Bytes flushed: the kernel has them, or has no room for them yet.
    bytes_out Counter,
    /// Heartbeat pings sent.
    pings Counter,
    /// Publishes made on this shard.
    publishes Counter,
    /// Turns of the event loop.
    turns Counter,
}
