//! A WebSocket load balancer that never drops a tunnel.
//!
//! * Duty: accept clients, pick a backend, forward requests and tunnels, track backends' health and
//!   counts, drain and rebalance.
//! * Not its duty: the bytes of any protocol (`throng-proto`), sockets (`throng-io`), flags, paths
//!   of files and pages (the binary).
//! * Depends on: `throng-carry`, `throng-engine` (mailbox, side tables, deadlines, spare batches),
//!   `throng-http` (reason phrases), `throng-io`, `throng-proto`.
//! * Start reading at: [`Backend`] for the balanced servers, [`Settings`] for the rules, `shard`
//!   for the turn.
#![forbid(unsafe_code)]

mod access;
mod backend;
mod blocks;
mod checks;
mod classes;
mod clients;
mod command;
mod config;
mod configuration;
mod control;
mod cookie;
mod descriptors;
pub mod forward;
mod guards;
mod health;
mod host;
mod inherited;
mod issuer;
mod limit;
mod listener;
mod lookups;
mod machine;
mod meter;
#[cfg_attr(not(target_os = "linux"), path = "moves/none.rs")]
mod moves;
mod moving;
mod pick;
mod pool;
mod queue;
mod rebalance;
mod recent;
mod registry;
mod report;
mod settings;
mod shard;
mod shards;
mod site;
mod slow_start;
mod status;
mod unix_peer;
mod wait_line;

pub use access::{Access, AccessDetail, AccessLog, EndReason, Subject};
pub use backend::{
    Backend, FirstByteTimes, FirstBytes, MAX_WEIGHT, SHARES_PER_WEIGHT, State, Totals, Wanted,
};
pub use blocks::{Block, Blocks, MAX_BLOCKS};
pub use classes::TunnelClasses;
pub use config::{
    BackendConfig, BackendSide, ClientSide, Config, ListenerConfig, NamedBackend, PoolConfig,
    Register, Shutdown, Token,
};
pub use configuration::Configuration;
pub use control::{BackendKey, Balancer, CarriedCounts, CarriedState, Error};
pub use cookie::CookieKey;
pub use health::{HealthTracker, Verdict};
pub use issuer::CertificateEvent;
pub use limit::{LimitConfig, LimitKey, LimitRow, LimitedEvent, RateLimits, Refusal};
pub use listener::{ListenAt, ListenerRow, ListenerRules, Listeners};
pub use lookups::Resolver;
pub use meter::{OverRate, TunnelRates};
#[doc(hidden)]
pub use moves::{Moves, Passage};
#[doc(hidden)]
pub use moving::{MovedTunnels, Pause, Stays};
pub use pick::{Picker, client_key, pick_bound, pick_by_key};
pub use pool::{DEFAULT_POOL, Pool, PoolSettings, Pools};
pub use rebalance::{Occupancy, RebalancePlan};
pub use report::{BackendReport, Failure, Metrics};
pub use throng_config::{ConfigError, ConfigErrors, Location};
pub use throng_http::Network;
pub use throng_io::{PeerAddress, TlsFailure, UnixPath};
/// One shard over any driver, for callers that bring their own: simulations.
#[doc(hidden)]
pub mod shard_over_driver {
    pub use crate::command::BalanceCommand;
    pub use crate::shard::{Admission, Audit, BalanceStart, Holdings, Placing, Shard, Walk};
}

pub use settings::{
    Check, CheckKind, CloseOrder, Closing, DROPPED_HEADERS, Health, Observe, Pick, Removed,
    SameSite, Settings, Sticky, Target, Timeouts,
};
pub use shards::{Launch, OnBound, Shards};
pub use site::{
    ActionSummary, Explanation, GuardConfig, HeaderRulesConfig, HostPolicies, Matchers, OtherRoute,
    Page, PathChange, Paths, Policy, PolicyConfig, Reading, RedirectTarget, RequestIds,
    RouteAction, RouteConfig, RouteSummary, RouteTimes, Secrets, SiteConfig, SiteCounters, SiteRow,
    SiteSummary, SiteTls, Sites, SplitBy, SplitConfig, SplitShare, Template, TunnelTimes,
    ValuePattern,
};
pub use slow_start::share_at;
pub use status::{
    Changes, DrainProgress, Draining, LastFailure, NameRow, PoolDraining, PoolRow, Rebalance,
    Removal, RemovedBackend, Row, RowTotals, Status, Surplus, TlsStatus,
};
