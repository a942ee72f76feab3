//! The wire form of messages to a successor process, and the rules of who owns a connection.
//!
//! * Duty: encode and decode messages of tagged fields within a limit; declare which fields of a
//!   record move; decide which of two processes owns the connections of a batch.
//! * Not its duty: I/O, the meaning of the fields of a connection.
//! * Depends on: no crate of this workspace.
//! * Start reading at: [`link`], then [`Encoder`] and [`Inbox`].
#![forbid(unsafe_code)]

mod fields;
pub mod link;
mod secret;
mod wire;

#[doc(hidden)]
pub use fields::RECORD;
pub use fields::{Age, Carried, freeze, thaw};
pub use secret::Secret;
pub use wire::{CarryError, Content, Encoder, Inbox, Message};
