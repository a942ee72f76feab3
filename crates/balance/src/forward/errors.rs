//! The balancer's own answers, for requests without a backend's answer.

use throng_http::{STRICT_TRANSPORT_SECURITY, Status};
use throng_proto::http1::{HeaderName, HeaderValue, ResponseHead};

use super::Client;

const DATE: HeaderName<'_> = HeaderName::literal("Date");
const CONTENT_TYPE: HeaderName<'_> = HeaderName::literal("Content-Type");
const HSTS: HeaderName<'_> = HeaderName::literal(STRICT_TRANSPORT_SECURITY);
const TEXT: &str = "text/plain; charset=utf-8";
const CONNECTION: HeaderName<'_> = HeaderName::literal("Connection");
const CLOSE: HeaderValue<'_> = HeaderValue::literal("close");
const KEEP_ALIVE: HeaderValue<'_> = HeaderValue::literal("keep-alive");
const RETRY_AFTER: HeaderName<'_> = HeaderName::literal("Retry-After");
/// Seconds. A backend may be available at any moment; this only keeps clients from retrying in a
/// loop.
const SOON: HeaderValue<'_> = HeaderValue::literal("1");

/// Appends an answer of the balancer: `text` is the reason ("the backend refused the connection"),
/// as plain text in one line. A 429 or 503 has a Retry-After. For HEAD the body is left out, but
/// its length is given.
pub fn write_error(out: &mut Vec<u8>, status: u16, text: &str, to: &Client<'_>) {
    write_head(out, status, (TEXT, text.len() + 1), to);
    if !to.is_head {
        out.extend_from_slice(text.as_bytes());
        out.push(b'\n');
    }
}

/// Does the same with a media type and content.
pub(crate) fn write_page(
    out: &mut Vec<u8>,
    status: u16,
    (media_type, content): (&'static str, &[u8]),
    to: &Client<'_>,
) {
    write_head(out, status, (media_type, content.len()), to);
    if !to.is_head {
        out.extend_from_slice(content);
    }
}

fn write_head(
    out: &mut Vec<u8>,
    status: u16,
    (media_type, len): (&'static str, usize),
    to: &Client<'_>,
) {
    let mut head = ResponseHead::start(out, status, Status::new(status).reason());
    if let Ok(date) = HeaderValue::new(to.date) {
        head = head.field(DATE, date);
    }
    if let Ok(media_type) = HeaderValue::new(media_type) {
        head = head.field(CONTENT_TYPE, media_type);
    }
    head = head.content_length(len as u64);
    if matches!(status, 429 | 503) {
        head = head.field(RETRY_AFTER, SOON);
    }
    if let Some(Ok(value)) = to.hsts.map(HeaderValue::new) {
        head = head.field(HSTS, value);
    }
    if !to.keep_alive {
        head = head.field(CONNECTION, CLOSE);
    } else if !to.http11 {
        head = head.field(CONNECTION, KEEP_ALIVE);
    }
    head.finish();
}
