//! Connections that the balancer passes through by the server name in their ClientHello.
//!
//! The real TLS driver reads a ClientHello, complete or not, cut into records of any size. Backends
//! are slow, silent, absent, or end first.
//! [`BalancePlan::passed_through`](super::BalancePlan::passed_through) gives a seed its meaning,
//! and `checks` adds the conditions that must hold in such a world.

mod backend;
mod checks;
mod client;
mod conduct;
mod hello;
mod plan;

pub(super) use backend::PassedBackend;
pub(super) use checks::{MAX_HELLO, client_is_well, hellos_are_well};
pub(super) use client::PassedClient;
pub(super) use conduct::{Conduct, HelloPlan};
