//! One message to everybody, three variants: how long until the last has it, and what it costs the server.
//!
//! The server, and the subscribers, are processes of their own: the CPU time of each is its own, and each has a
//! descriptor limit of its own, so that several of them hold more subscribers than one process could. This one only
//! asks and counts. How the processes are started is the caller's business ([`Role`]); what they say to each other
//! is in [`wire`].

mod child;
pub(crate) mod command;
pub(crate) mod message;
mod plan;
mod processes;
mod report;
mod run;
mod subscribers;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub(crate) use plan::{ComparisonPlan, Role, SubscriberPlan};
pub(crate) use run::{ComparisonProgress, run};
pub(crate) use subscribers::subscribe;
