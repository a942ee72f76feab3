//! The WebSocket protocol, RFC 6455.
//!
//! A frame's road: [`Decoder::next_event`] (decode.rs) reads its head (header.rs), unmasks and checks
//! the payload where it lies, and gives an [`Event`]. A frame's birth: [`encode`] (encode.rs).
//! Before either there is the [`handshake`]; messages may be compressed between ([`deflate`]).

mod boundary;
mod close;
mod decode;
pub mod deflate;
mod encode;
mod error;
mod event;
mod fragments;
pub mod handshake;
mod header;
mod limits;
mod pieces;

pub use boundary::Boundary;
pub use close::{CloseReason, is_sendable_close_code};
pub use decode::Decoder;
pub use encode::{encode, encode_close, encode_deflated, encode_masked};
pub use error::ProtocolError;
pub use event::{Deflated, Event, Incoming, Piece, Streamed};
pub use fragments::{Fragment, Fragments};
pub use header::{Header, Opcode, encode_header};
pub use limits::Limits;
pub use pieces::Spare;

/// Which end of the connection we are; it decides who masks (RFC 6455 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// We are the server: frames that come must be masked.
    Server,
    /// We are the client: frames that come must not be masked.
    Client,
}
