//! A body in chunks, chunked anew: how the sender cut it, and what it wrote beside the sizes, stays behind.

use throng_proto::http1::{HeaderLines, encode};

use super::names::{self, Kind};
use super::push_line;

/// Appends a piece of a body as one chunk. No piece is no chunk, so it does not end the body.
pub fn write_chunk(out: &mut Vec<u8>, piece: &[u8]) {
    encode::encode_chunk(piece, out);
}

/// Appends the end of a body in chunks, with what trailers there are.
///
/// The decoder refused those that are forbidden. Dropped here is what else has a meaning to us or to the backend in a
/// head, such as X-Forwarded-For, in case somebody merges trailers into it (RFC 9110 section 6.5.1 lets us).
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: HeaderLines<'_>) {
    out.extend_from_slice(b"0\r\n");
    for trailer in trailers.iter().filter(|trailer| may_trail(trailer.name)) {
        push_line(out, &trailer);
    }
    out.extend_from_slice(b"\r\n");
}

fn may_trail(name: &str) -> bool {
    // ETag and the digests of a body (Content-Digest, Content-MD5) are what trailers are for.
    let is_of_content = ["etag", "content-digest", "content-md5"];
    names::kind(name) == Kind::Other
        || is_of_content.iter().any(|known| known.eq_ignore_ascii_case(name))
}
