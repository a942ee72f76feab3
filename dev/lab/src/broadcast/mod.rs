//! One message to all, three variants: how long until the last has it, and what it costs the
//! server.
//!
//! The server, and the subscribers, are processes of their own: the CPU time of each is its own,
//! and each has a descriptor limit of its own, so that several of them hold more subscribers than
//! one process could. This one only asks and counts. How the processes are started is the caller's
//! business ([`Role`](crate::servers::children::Role)); what they say to each other is in
//! [`wire`](crate::servers::wire).

mod child;
pub(crate) mod command;
mod plan;
mod processes;
mod report;
mod run;
pub(crate) mod subscriber_process;
mod subscribers;
#[cfg(test)]
mod tests;

pub(crate) use plan::ComparisonPlan;
pub(crate) use run::{ComparisonProgress, run};
