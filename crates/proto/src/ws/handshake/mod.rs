//! The opening handshake, RFC 6455 section 4, without reading or routing HTTP.
//!
//! A server asks [`check_request`], picks with [`choose_subprotocol`], and answers with
//! [`encode_response`] or as the [`Refusal`] says. A client sends [`encode_request`] and trusts nothing
//! until [`check_response`].

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
    Refusal, check_request, choose_subprotocol, encode_response, encode_response_with,
};

/// The one version of the protocol there is (section 4.1).
const VERSION: &str = "13";
