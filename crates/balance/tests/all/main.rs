//! Tests of the balancer over real sockets, and tests that measure parts of it.

mod allocations;
mod backups;
mod blocks;
mod capacity;
mod connections;
mod early;
mod forward_allocations;
mod headers;
mod health;
mod hostile;
#[cfg(target_os = "linux")]
mod limits;
mod listeners;
mod meters;
#[cfg(target_os = "linux")]
mod moves;
mod operations;
#[cfg(target_os = "linux")]
mod oracle;
#[cfg(target_os = "linux")]
mod oracle_headers;
mod pages;
#[cfg(target_os = "linux")]
mod pinning;
mod pipelining;
mod pools;
mod request_log;
mod requests;
mod route_times;
mod secrets;
mod site_counts;
mod sites;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod tunnel_allocations;
#[cfg(target_os = "linux")]
mod tunnel_limits;
mod tunnels;
#[cfg(unix)]
mod unix;
mod waiting;
