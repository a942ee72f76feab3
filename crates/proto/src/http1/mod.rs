//! HTTP/1.1 messages, RFC 9112: strict conversion between bytes and events.
//!
//! A server feeds received bytes to a [`Decoder`] and pulls [`Event`]s: a head, parts of a body,
//! the end. A client does the same with a [`ResponseDecoder`]. Messages are written by
//! [`ResponseHead`], [`RequestHead`] and the chunk functions of [`encode`].
//!
//! Wherever RFC 9112 lets a recipient choose between repairing a message and refusing it, this
//! decoder refuses: requests are smuggled past a proxy when two parsers repair differently. Every
//! refusal is an [`Error`], which has its status.
//!
//! Modules: `head` finds the end of a head line by line, `target` and `fields` parse the lines,
//! `body` follows content by length or chunks, `buffered` stores what few messages need, `state`
//! has every transition in one table, and `message` is the decoder that both directions share.

mod block;
mod body;
mod buffered;
mod decoder;
pub mod encode;
mod error;
mod fields;
mod head;
mod host;
mod limits;
mod message;
mod request;
mod response;
mod response_decoder;
mod scan;
mod span;
mod state;
mod target;
#[cfg(test)]
mod tests;

pub use decoder::{Decoder, Event};
pub use encode::{HeaderName, HeaderValue, InvalidHeader, RequestHead, ResponseHead};
pub use error::Error;
pub use fields::{BodyLength, Header, HeaderLines};
pub use limits::Limits;
pub use message::MessageEvent;
pub use request::{Request, SavedRequest};
pub use response::Response;
pub use response_decoder::{ResponseDecoder, ResponseEvent};
pub use target::TargetForm;
