//! The WebSocket protocol, RFC 6455.
//!
//! Receiving: [`Decoder::next_event`] (decode.rs) decodes a frame header (header.rs), unmasks and
//! validates the payload in place, and returns an [`Event`]. Sending: [`encode()`] (encode.rs).
//! Before either comes the [`handshake`]; messages may be compressed ([`deflate`]).

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
mod message;
mod reassembly;

pub use boundary::Boundary;
pub use close::{Close, CloseCode, CloseReason, is_sendable_close_code};
pub use decode::Decoder;
pub use encode::{encode, encode_close, encode_deflated, encode_masked};
pub use error::ProtocolError;
pub use event::{Chunk, Deflated, Event};
pub use fragments::{Fragment, Fragments};
pub use header::{Header, Opcode, encode_header};
pub use limits::Limits;
pub use message::{Message, OwnedMessage};
pub use reassembly::Spare;

/// Our end of the connection; it determines who masks
/// ([RFC 6455 section 5.1](https://www.rfc-editor.org/rfc/rfc6455#section-5.1)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// We are the server: received frames must be masked.
    Server,
    /// We are the client: received frames must not be masked.
    Client,
}
