//! The Centrifuge client protocol, version 2, on the server's side.
//!
//! * Duty: commands, replies and pushes in both encodings; the state of a client's session; the
//!   protocol's codes and limits.
//! * Not its duty: sockets, time, channels and their members, the rights of clients: the caller has
//!   them, and lends them as a [`Host`] and an [`Authority`].
//! * Depends on: no other crate of the workspace.
//! * Start reading at: [`ClientSession::handle_command`].
#![forbid(unsafe_code)]

mod authority;
mod codes;
pub mod command;
mod data;
mod encoding;
mod host;
pub mod info;
mod limits;
pub mod reply;
mod session;

pub use authority::{Authority, Grant, Identity, Refusal};
pub use codes::{Disconnect, ErrorCode, UnsubscribeCode};
pub use encoding::{Commands, Encoding, Malformed};
pub use host::{Attempt, Counting, FoundPlace, Host, Joined};
pub use limits::Limits;
pub use session::{ClientSession, Now};
