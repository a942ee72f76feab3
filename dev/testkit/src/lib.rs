//! Parts that the tests of several crates share.
//!
//! * Duty: a blocking client on the wire, waits for conditions, random numbers from a seed, a Redis
//!   server or cluster, a folder for temporary files; the driver contract as tests.
//! * Not its duty: the servers under test; each crate's tests start their own.
//! * Depends on: `throng-proto`, whose decoders have their own tests and oracles; `throng-io` for
//!   the contract.
//! * Start reading at: [`Client`].
#![forbid(unsafe_code)]

mod client;
#[cfg(feature = "contract")]
pub mod contract;
mod folder;
mod random;
mod redis;
mod redis_cluster;
mod waiting;
mod wire;

pub use client::{Client, Got};
pub use folder::TempFolder;
pub use random::{Random, noise};
pub use redis::{Redis, RedisTls, documented_user};
pub use redis_cluster::RedisCluster;
pub use waiting::{eventually, hold_up, poll};
pub use wire::{Damaging, TIMEOUT, dial, read_head};
