//! One message to everybody, three ways: how long until the last has it, and what it costs the server.
//!
//! The server, and the subscribers, are processes of their own: the CPU time of each is its own, and each has a
//! descriptor limit of its own, so that several of them hold more subscribers than one process could. This one only
//! asks and counts. How the processes are started is the caller's business ([`Role`]); what they say to each other
//! is in [`wire`].

mod child;
mod crowd;
pub mod message;
mod plan;
mod report;
mod run;
mod spread;
mod subscribers;
pub mod wire;

pub use plan::{CastPlan, DEFAULT_SUBSCRIBERS, Role, SubscriberPlan};
pub use report::{CastReport, Row};
pub use run::{CastProgress, run};
pub use spread::Spread;
pub use subscribers::subscribe;
