//! Shards, connections, output queues, deadlines and channels over any driver.
//!
//! * Duty: run the life of every connection of one thread: bytes to decoder to callback, output to
//!   one flush, deadlines, back-pressure, channels, commands from other threads, graceful shutdown.
//! * Not its duty: system calls (`throng-io`), bytes of any protocol (`throng-proto`), the meaning
//!   of a path (`throng-http`), the public API (`throng`).
//! * Depends on: `throng-io`, `throng-proto`.
//! * Start reading at: [`Shard::turn`].
#![forbid(unsafe_code)]

mod admission;
mod backpressure;
mod build;
mod configuration;
mod configurator;
mod conn;
mod connections;
mod context;
mod drain;
mod drop_guarded;
mod histogram;
mod http1;
mod limits;
mod message;
mod outbox;
mod pubsub;
pub mod random;
mod remote;
mod route_options;
mod run_delay;
mod samples;
mod service;
mod shard;
mod stalls;
mod start;
mod stats;
mod threads;
pub mod workers;
mod ws;

pub use admission::{Admission, TrustedProxies};
pub use backpressure::history::{History, HistoryMode};
pub use backpressure::pattern::Pattern as ChannelPattern;
pub use backpressure::{Backpressure, Classes, SlowPolicy};
pub use build::{BuildOptions, Built, build};
pub use configuration::Configuration;
pub use configurator::Configurator;
pub use conn::arrivals::{Arrivals, ArrivalsByAddress};
pub use conn::by_address::{AddressCounts, AddressKey, KeyBySlot};
pub use conn::deadlines::{DeadlineTick, Deadlines};
pub use conn::held::HeldInput;
pub use conn::linger::{LINGER_SILENCE, Linger};
pub use conn::map::{ConnMap, IdHasher};
pub use conn::progress::Progress;
pub use conn::proxy_protocol::ProxyProtocol;
pub use conn::slab::{Index, Slab};
pub use connections::dialect::{Delivered, Dialect};
pub use connections::wanted::WantedBy;
pub use context::{Core, Cx};
pub use drain::DrainPlan;
pub use histogram::Histogram;
pub use limits::{Limit, Limits};
pub use message::{EndReason, Fault, Notice, Refusal, UserEvent};
pub use outbox::about::{About, PresenceChange, PresenceNote};
pub use outbox::frame::{Frame, FrameParts};
pub use outbox::sent::Sent;
pub use outbox::spares::Spares;
pub use pubsub::channels::{
    Interest, MAX_PATTERN_TOKENS, PatternError, Tally, Totals, check_pattern, is_channel_token,
};
pub use pubsub::delivery::{AckSlot, Delivery, Receipt, UntilDelivered};
pub use pubsub::filter::Filter;
pub use pubsub::history::{
    HistoryCounts, HistoryTail, Position, PositionError, Publication, Recorded, Recovery, Since,
};
pub use pubsub::presence::{
    Presence, PresenceCounts, PresenceEvent, PresenceRules, PresenceSwitch, Present,
};
pub use pubsub::relay::{
    Carried, CarriedOutcome, CarriedPresence, Joined, Question, Relay, RelayFill,
};
pub use pubsub::waiting::Waiting;
pub use remote::adoption::Adoption;
pub use remote::{
    Command, MAILBOX_CAPACITY, MAILBOX_MARK, QueueFull, Remote, RemoteCounts, mailbox,
};
pub use route_options::RouteOptions;
pub use samples::Durations;
pub use service::{Answer, Flow, Service};
pub use shard::Shard;
pub use shard::audit::Audit;
pub use shard::time::token_bucket::TokenBucket;
pub use shard::upkeep::burst::BurstDetector;
pub use shard::upkeep::peak::Peak;
pub use stalls::{Culprit, ShardProgress, Stall, Watching};
pub use stats::{ClassCounters, Kind, Snapshot, Stats};
pub use threads::{ThreadDriver, ThreadOptions, build_threads};
pub use throng_proto::ws::{Chunk, Close, CloseCode, Message};
pub use throng_proto::{SettingError, UnknownName};
pub use ws::messages::{Messages, Receive};
