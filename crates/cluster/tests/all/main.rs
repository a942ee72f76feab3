//! Nodes on a Redis server. Skipped without redis-server; with `TEST_PEERS=1` that is an error.

mod bytes;
mod control;
mod forwarder;
mod kept;
mod lost;
mod network;
mod nodes;
mod outcomes;
mod presence;
mod redis;
mod redis_cluster;
mod relay;
mod sentinel;
mod servers;
mod support;
mod tls;
