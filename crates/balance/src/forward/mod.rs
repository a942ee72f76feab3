//! Forwarding of heads, as functions of bytes.
//!
//! A request passes through [`validate`], which decides whether it may pass and returns its kind;
//! [`has_looped`], which detects loops; [`client_address`], which returns its origin;
//! [`sticky_key`], which returns its binding; and [`write_request`], which writes the text for the
//! backend. An answer passes through [`check_upgrade`] for a 101, [`write_response`], then
//! [`write_chunk`] and [`write_last_chunk`] if its body is sent in chunks. [`write_error`] writes
//! the answer when a backend gives none.
//!
//! All text is written from the strict decoder's result: one request line, one Host, one framing.
//! The backend reads exactly what the balancer read, so smuggling is impossible.

mod chunks;
mod edits;
mod errors;
mod names;
mod request;
mod response;
mod sticky;
#[cfg(test)]
mod tests;
mod upgrade;
mod validate;

pub use chunks::{write_chunk, write_last_chunk};
pub(crate) use edits::{
    AnswerEdits, BACKEND, ForwardedHost, RequestEdits, WritePart, is_written_by_balancer,
};
pub use errors::write_error;
pub(crate) use errors::write_page;
pub(crate) use request::write_request_with;
pub use request::{Hop, Scheme, has_looped, write_request};
pub(crate) use response::write_response_with;
pub use response::{Client, Framing, names_a_body_that_is_not_due, write_response};
pub use sticky::{Bound, came_by_https, set_cookie, sticky_key};
pub(crate) use sticky::{hash_value, point_in_cookie};
pub use throng_http::client_address;
pub use upgrade::{BadUpgrade, check_upgrade};
pub use validate::{MAX_CONNECTION_OPTIONS, Refusal, RequestKind, validate};

/// Appends a field line. Both parts come from a head that was accepted, so they cannot break out of
/// it.
fn push_line(out: &mut Vec<u8>, (name, value): (&[u8], &[u8])) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the framing header of a body of that length.
fn push_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    throng_proto::http1::encode::push_decimal(length, out);
    out.extend_from_slice(b"\r\n");
}

const CHUNKED: &[u8] = b"Transfer-Encoding: chunked\r\n";
