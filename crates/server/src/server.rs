//! A server's settings, its life cycle, and its observable state.
//!
//! [`Server::bind`](crate::Server::bind) returns a [`Bound`] server, which listens; started, it is
//! [`Running`].

pub use throng_engine::{DrainPlan, EndReason, Limit, SettingError, Stats, UnknownName};
#[cfg(unix)]
pub use throng_io::UnixSocket;
pub use throng_io::{
    Inherited, InheritedAddress, Listener, inherited_addresses, inherited_listeners,
};
pub use throng_proto::Blame;

pub use crate::access::{AccessEntry, AccessLog};
pub use crate::affinity::CpuAffinity;
pub use crate::builder::{Observe, Proxies, Shards, SocketOptions};
pub use crate::events::{ServerEvent, Stall, Subject};
pub use crate::io_backend::IoBackend;
pub use crate::readiness::Readiness;
pub use crate::running::{
    Bound, Capacity, Drained, Running, ShardLoad, Shutdown, Stopper, StuckShard,
};
pub use crate::shard::Shard;
pub use throng_io::placement::{CpuPlace, Placement};
