//! The server models side by side, one thread per connection and event loops: CPU and memory of
//! idle connections, the time to connect and echo, and a handler that blocks.
//!
//! Every cell has a fresh server process, which the caller starts ([`ServerPlan`]), so that its
//! memory and CPU time are its own; within each size the models follow one another, so that what
//! disturbs the machine disturbs all alike. What a model cannot do here (too few descriptors, say)
//! is reported in its cell. Beside the measured figures stand those that were published for other
//! servers ([`published`]).

mod advice;
mod capacity;
mod cells;
pub(crate) mod command;
mod document;
mod plan;
pub(crate) mod published;
mod report;
mod run;
mod session;

pub(crate) use plan::{IoModel, IoModelsPlan, ServerPlan, Table};
pub(crate) use run::run;
