//! What a balancer does to the heads it passes on, as functions of bytes.
//!
//! A request's road: [`validate`] says whether it may pass and what it asks for, [`client_address`] whose it is,
//! [`sticky_key`] where it belongs, [`write_request`] what the backend reads. The answer's: [`check_upgrade`] for a 101,
//! [`write_response`], then [`write_chunk`] and [`write_last_chunk`] if the body goes out in chunks. [`write_error`] is
//! the answer when there is none.
//!
//! What is written is made anew from what the strict decoder understood: one request line, one Host, one framing. What
//! the backend reads is what we read, so there is nothing to smuggle.

mod address;
mod chunks;
mod errors;
mod names;
mod request;
mod response;
mod sticky;
#[cfg(test)]
mod tests;
mod upgrade;
mod validate;

pub use address::client_address;
pub use chunks::{write_chunk, write_last_chunk};
pub use errors::write_error;
pub use request::{Hop, Scheme, write_request};
pub use response::{Client, Framing, names_a_body_that_is_not_due, write_response};
pub use sticky::{Bound, came_by_https, set_cookie, sticky_key};
pub use upgrade::{BadUpgrade, check_upgrade};
pub use validate::{MAX_CONNECTION_OPTIONS, Refusal, RequestKind, validate};

use throng_proto::http1::{Header, HeaderLines};

/// The members of a comma-separated list over several values (RFC 9110 section 5.6.1), without the empty ones.
fn members<'a>(values: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    values
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// Whether the fields called `name` list `wanted`, without regard to case.
fn lists(lines: HeaderLines<'_>, name: &str, wanted: &str) -> bool {
    members(lines.all_bytes(name)).any(|member| member.eq_ignore_ascii_case(wanted.as_bytes()))
}

/// One field line. Both parts come from a head that was accepted, so they cannot break out of it.
fn push_line(out: &mut Vec<u8>, header: &Header<'_>) {
    out.reserve(header.name.len() + header.value.len() + 4);
    out.extend_from_slice(header.name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(header.value);
    out.extend_from_slice(b"\r\n");
}

/// The framing header of a body of that length.
fn push_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    throng_proto::http1::encode::push_decimal(length, out);
    out.extend_from_slice(b"\r\n");
}

const CHUNKED: &[u8] = b"Transfer-Encoding: chunked\r\n";
