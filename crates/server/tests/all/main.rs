//! Tests over real sockets. Tests that need their own process are files beside this folder: they
//! measure it, or send it signals.

mod access_log;
mod across_shards;
mod admission;
mod adopted;
mod apps;
#[cfg(all(feature = "test", feature = "tokio"))]
mod async_http;
#[cfg(feature = "tokio")]
mod asynchronous;
mod basic_auth;
mod bodies;
#[cfg(feature = "centrifuge")]
mod centrifuge;
mod channels;
#[cfg(all(feature = "client", feature = "deflate"))]
mod client;
#[cfg(all(feature = "client", feature = "deflate", feature = "tokio"))]
mod client_async;
#[cfg(all(feature = "client", feature = "tls"))]
mod client_tls;
mod cluster_hub;
#[cfg(feature = "test")]
mod compared;
mod compression;
mod compression_fairness;
mod cors;
#[cfg(feature = "test")]
#[path = "../../examples/dashboard.rs"]
mod dashboard;
mod early_hub;
mod events;
mod files;
mod fragments;
#[cfg(feature = "test")]
#[path = "../../examples/game.rs"]
mod game;
#[cfg(all(feature = "gzip", feature = "files"))]
mod gzip;
#[cfg(feature = "client")]
mod history;
mod http_streams;
#[cfg(all(feature = "serde", feature = "test"))]
mod json_messages;
mod life;
mod mistakes;
#[cfg(feature = "test")]
mod order;
mod panics;
mod pinned;
mod placed;
mod presence;
mod pressure;
#[cfg(all(feature = "signals", feature = "test", feature = "tokio"))]
mod programs;
mod proxies;
mod reported;
mod route_limits;
mod run_at;
mod server;
mod shutdown;
mod slow_receivers;
mod stalls;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "test")]
mod test_kit;
mod threads;
mod timers;
#[cfg(feature = "tls")]
mod tls;
#[cfg(all(feature = "tower", feature = "test"))]
mod tower;
mod types;
mod unix_sockets;
mod upgrades;
mod wanted;
mod workers;
