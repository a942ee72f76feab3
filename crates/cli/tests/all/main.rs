//! The binary as users run it. `balance_scale` beside this folder has a `main` of its own.

#[cfg(all(feature = "acme", feature = "balance"))]
mod acme;
mod attack;
#[cfg(feature = "balance")]
mod balance;
mod balance_sockets;
mod bench;
mod bench_http;
#[cfg(feature = "tls")]
mod bench_tls;
mod centrifuge;
#[cfg(all(feature = "acme", feature = "balance", feature = "redis"))]
mod check;
#[cfg(feature = "tls")]
mod client_certificates;
mod cluster;
mod cluster_failures;
mod cluster_outages;
mod cluster_pressure;
mod cluster_status;
mod doctor;
mod exits;
mod fanout;
mod files;
mod full_disk;
mod health;
#[cfg(all(feature = "balance", target_os = "linux"))]
mod import;
mod link_local;
mod memory;
mod metrics;
mod nodes;
mod other_proxies;
mod presence;
#[cfg(feature = "balance")]
mod proxied;
mod published;
mod register;
mod reload;
mod serve;
mod service;
mod signals;
#[path = "../started/mod.rs"]
mod started;
#[path = "../support/mod.rs"]
mod support;
mod tables;
#[cfg(unix)]
mod tune;
#[cfg(feature = "balance")]
mod upgrade;
#[cfg(feature = "balance")]
mod upgrade_tunnels;
