//! Shards, connections, output queues, deadlines and channels over any driver.
//!
//! * Duty: run the life of every connection of one thread: bytes to decoder to callback, output to
//!   one flush, deadlines, back-pressure, channels, commands from other threads, graceful shutdown.
//! * Not its duty: system calls (`throng-io`), bytes of any protocol (`throng-proto`), the meaning
//!   of a path (`throng-http`), the public API (`throng`).
//! * Depends on: `throng-io`, `throng-proto`.
//! * Start reading at: [`Shard::turn`].
#![forbid(unsafe_code)]

mod accept;
mod admission;
mod audit;
mod backpressure;
mod behind;
mod borrowed;
mod build;
mod calm;
mod channels;
mod compression;
mod conn;
mod connections;
mod core;
mod delivery;
mod due;
mod fanout;
mod filter;
mod flush;
mod frame;
mod handshake;
mod limits;
mod linger;
mod losses;
pub mod mailbox;
mod map;
mod messages;
mod pattern;
mod publishers;
mod publishing;
mod rate;
mod receive;
mod registry;
mod remote;
mod request_bodies;
mod sending;
mod service;
mod shard;
mod shutdown;
mod slab;
mod spares;
mod stalls;
mod state;
mod stats;
mod subprotocols;
mod threads;
mod tick;
mod waiting;
pub mod workers;

pub use self::core::{Core, Cx};
pub use admission::Admission;
pub use audit::Audit;
pub use backpressure::{Backpressure, Classes, SlowPolicy};
pub use build::{BuildOptions, Built, build};
pub use channels::{Interest, MAX_PATTERN_TOKENS, PatternError, Tally, Totals};
pub use delivery::{AckSlot, Delivery, Receipt};
pub use filter::Filter;
pub use frame::Frame;
pub use limits::{LimitError, Limits};
pub use map::{ConnMap, IdHasher};
pub use messages::{Messages, Receive, RouteOptions};
pub use remote::{Command, MAILBOX_CAPACITY, MAILBOX_MARK, MailboxFull, Remote};
pub use sending::Sent;
pub use throng_proto::ws::Chunk;

pub use service::{Answer, Close, Flow, Message, Refusal, Service, UserEvent};
pub use shard::{Handover, Shard};
pub use shutdown::DrainPlan;
pub use slab::{Index, Slab};
pub use stalls::{Culprit, ShardProgress, Stall, Watching};
pub use stats::{ClassCounters, Kind, Snapshot, Stats};
pub use threads::{ThreadDriver, ThreadOptions, build_threads};
