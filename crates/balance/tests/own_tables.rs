//! The tests of tunnels, requests, health and operations, with a descriptor table for each event
//! loop.
#![cfg(target_os = "linux")]
#![expect(
    clippy::duplicate_mod,
    reason = "each of these files declares what it shares with others"
)]

#[path = "connections.rs"]
mod connections;
#[path = "early.rs"]
mod early;
#[path = "health.rs"]
mod health;
#[path = "operations.rs"]
mod operations;
#[path = "requests.rs"]
mod requests;
#[path = "tunnels.rs"]
mod tunnels;
