//! RFC 9112: HTTP/1.1 messages as bytes <-> events, strictly.
//!
//! A server feeds what it received to a [`Decoder`] and pulls [`Event`]s: a head, the pieces of a
//! body, the end. A client does the same with a [`ResponseDecoder`]. What leaves is written by
//! [`ResponseHead`], [`RequestHead`] and the chunk functions of [`encode`].
//!
//! Wherever RFC 9112 leaves a recipient the choice between repairing a message and refusing it, this
//! decoder refuses: two parsers that repair differently are how requests are smuggled past a proxy.
//! Every refusal is one [`Error`], which knows its status.
//!
//! Where is what: `head` finds the end of a head line by line, `target` and `fields` understand the
//! lines, `body` walks content by length or chunks, `rare` keeps what few messages need, and `state` has every transition in one table.

mod block;
mod body;
mod decoder;
pub mod encode;
mod error;
mod fields;
mod head;
mod limits;
mod rare;
mod request;
mod response;
mod response_decoder;
mod scan;
mod state;
mod target;
#[cfg(test)]
mod tests;

pub use decoder::{Decoder, Event};
pub use encode::{HeaderName, HeaderValue, InvalidHeader, RequestHead, ResponseHead};
pub use error::Error;
pub use fields::{BodyLength, Header, HeaderLines};
pub use limits::Limits;
pub use request::{Request, SavedRequest, TargetForm};
pub use response::Response;
pub use response_decoder::{ResponseDecoder, ResponseEvent};
