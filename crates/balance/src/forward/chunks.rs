//! Bodies in chunks, chunked again: the sender's chunk boundaries and extensions are dropped.

use throng_proto::http1::{HeaderLines, encode};

use super::names::{self, Kind};
use super::push_line;

/// Appends a part of a body as one chunk. An empty part appends nothing, so it does not end the
/// body.
pub fn write_chunk(out: &mut Vec<u8>, piece: &[u8]) {
    encode::encode_chunk(piece, out);
}

/// Appends the end of a body in chunks, with its trailers.
///
/// The decoder refused forbidden trailers. Also dropped are fields that mean something in a head to
/// the balancer or the backend, such as X-Forwarded-For, in case a receiver merges trailers into
/// the head (RFC 9110 section 6.5.1 allows it).
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: HeaderLines<'_>) {
    out.extend_from_slice(b"0\r\n");
    for trailer in trailers.fields().filter(|(name, _)| may_trail(name)) {
        push_line(out, trailer);
    }
    out.extend_from_slice(b"\r\n");
}

fn may_trail(name: &[u8]) -> bool {
    // Trailers exist for ETag and the digests of a body (Content-Digest, Content-MD5).
    let is_of_content = ["etag", "content-digest", "content-md5"];
    names::kind(name) == Kind::Other
        || is_of_content.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
}
