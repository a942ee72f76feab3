//! The tests of tunnels, requests, health and operations, with a descriptor table for each event
//! loop.
#![cfg(target_os = "linux")]

#[path = "all/connections.rs"]
mod connections;
#[path = "all/early.rs"]
mod early;
#[path = "all/health.rs"]
mod health;
#[path = "all/operations.rs"]
mod operations;
#[path = "all/requests.rs"]
mod requests;
mod support;
#[path = "all/tunnels.rs"]
mod tunnels;
