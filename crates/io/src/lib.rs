//! The driver contract and its drivers.
//!
//! * Duty: move bytes between sockets and the engine; lend what was received, take what is to be sent.
//! * Not its duty: protocols, limits, policy. It does not know what a frame or a request is.
//! * Depends on: the operating system (through rustix, mio, socket2).
//! * Start reading at: [`driver`], the contract; then `readiness`, the one loop both drivers share.
#![deny(unsafe_code)]

pub mod batch;
pub mod driver;
pub mod id;
pub mod time;

pub use batch::{Batch, Segment};
pub use driver::{Closed, Driver, Event, SendOutcome, Wake, Waker};
pub use id::ConnId;
pub use time::Instant;
