//! `lab proxies`: what a WebSocket proxy costs and adds, whosever it is.
//!
//! * Two tests that were published for nginx: many mostly idle connections with messages of 10 to
//!   4096 bytes every 0.1 to 10 seconds ([`plan::Test::MostlyIdle`]), and 500 connections x 50
//!   messages without delay ([`plan::Test::Burst`]).
//! * What one worker does by its CPU-second ([`plan::Test::Echo`], [`plan::Test::Connect`]), what
//!   an idle tunnel takes ([`plan::Test::Idle`]), and what latency the proxy adds at a rate that
//!   all can keep ([`plan::Test::Latency`]).
//!
//! Either one proxy that runs already ([`ProxyUnderTest`]), or peers that are started here: each
//! cell has a fresh proxy on a core of its own, with the backend and this generator on another, and
//! peers follow one another within each round.
//!
//! Start reading at [`run()`], then `cells` (one measurement).

mod burst;
mod cells;
pub(crate) mod command;
mod document;
mod mostly_idle;
mod peers;
mod pin;
mod plan;
mod report;
mod run;
mod traffic;

pub(crate) use peers::Peer;
pub(crate) use plan::{ProxyPlan, Table};
pub(crate) use run::{ProxyUnderTest, Targets, run};
