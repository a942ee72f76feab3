//! Connections that the balancer passes through by the server name in their ClientHello.
//!
//! The real TLS driver reads a ClientHello, whole or not, however it is cut; backends are slow,
//! mute, gone, or end first.
//! [`Plan::passed_through`](super::Plan::passed_through) says what a seed means, and `checks` adds
//! what must hold in such a world.

mod backend;
mod checks;
mod client;
mod conduct;
mod hello;
mod plan;

pub(super) use backend::PassedBackend;
pub(super) use checks::{MOST_OF_HELLO, client_is_well, hellos_are_well};
pub(super) use client::PassedClient;
pub(super) use conduct::{Conduct, HelloPlan};
