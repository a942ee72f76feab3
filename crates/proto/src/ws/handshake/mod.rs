//! The opening handshake, [RFC 6455 section 4](https://www.rfc-editor.org/rfc/rfc6455#section-4),
//! without reading or routing HTTP.
//!
//! A server calls [`check_request`], chooses with [`choose_subprotocol`], and responds with
//! [`encode_response`] or as the [`Refusal`] specifies. A client sends [`encode_request`] and
//! trusts nothing until [`check_response`] succeeds.

mod client;
pub(super) mod extensions;
mod fields;
mod key;
mod server;

pub use client::{
    BadResponse, Opened, check_response, check_response_with, encode_request, encode_request_with,
};
pub use fields::{Headers, Unsendable, is_token, list};
pub use key::{Key, accept_key};
pub use server::{
    Refusal, check_request, choose_subprotocol, encode_response, encode_response_fields,
    encode_response_with,
};

/// The only version of the protocol (RFC 6455 section 4.1).
const VERSION: &str = "13";
