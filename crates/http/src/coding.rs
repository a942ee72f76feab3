//! Content codings: which ones a client accepts, and which responses are worth one.
//! [RFC 9110 section 8.4](https://www.rfc-editor.org/rfc/rfc9110#section-8.4).

use throng_proto::http1::HeaderLines;

use crate::body::Body;
use crate::response::Response;
use crate::status::Status;

/// Returns whether a client accepts gzip
/// ([RFC 9110 section 12.5.3](https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3)).
#[must_use]
pub fn accepts_gzip(lines: HeaderLines<'_>) -> bool {
    is_accepted(lines, &["gzip", "x-gzip"])
}

/// Returns whether a coding is accepted: listed under one of its names with a weight above zero, or
/// not listed and covered by `*`.
pub(crate) fn is_accepted(lines: HeaderLines<'_>, names: &[&str]) -> bool {
    let (mut named, mut any) = (None, None);
    let members = lines.all("accept-encoding").flat_map(|value| value.split(','));
    for member in members {
        let (coding, weight) = member.split_once(';').unwrap_or((member, ""));
        let (coding, is_wanted) = (coding.trim(), !is_zero(weight));
        if names.iter().any(|name| coding.eq_ignore_ascii_case(name)) {
            named = named.or(Some(is_wanted));
        } else if coding == "*" {
            any = any.or(Some(is_wanted));
        }
    }
    named.or(any).unwrap_or(false)
}

/// Returns whether a weight is `q=0`, `q=0.000` and so on; an invalid weight is not zero.
fn is_zero(weight: &str) -> bool {
    let value = weight.trim().strip_prefix(['q', 'Q']).map(str::trim_start);
    let value = value.and_then(|value| value.strip_prefix('=')).map(str::trim);
    value.is_some_and(|value| {
        let mut bytes = value.bytes();
        bytes.next() == Some(b'0') && bytes.all(|byte| matches!(byte, b'.' | b'0'))
    })
}

/// Fields that describe the bytes of a body, or forbid changes to it.
const FIXED: [&str; 6] =
    ["content-encoding", "content-range", "content-md5", "digest", "content-digest", "repr-digest"];

/// Media types, besides the text types, whose bytes are not already compressed.
const COMPRESSIBLE: [&str; 13] = [
    "application/javascript",
    "application/json",
    "application/rtf",
    "application/toml",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-ndjson",
    "application/xml",
    "application/yaml",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/vnd.microsoft.icon",
];

impl Response {
    /// Returns whether a content coding would make the body shorter, and is allowed: a media type
    /// that is not compressed already, at least `min_size` bytes or an unknown number of them, not
    /// a range, without a coding or a digest, and without `Cache-Control: no-transform`.
    #[must_use]
    pub fn is_compressible(&self, min_size: u64) -> bool {
        let length = match self.body_ref() {
            Body::Whole(bytes) => Some(bytes.len() as u64),
            Body::Stream(stream) => stream.length,
        };
        if !self.status().allows_body()
            || self.status() == Status::new(206)
            || length.is_some_and(|length| length < min_size)
        {
            return false;
        }
        let mut is_of_type = false;
        for (name, value) in self.headers() {
            if name.eq_ignore_ascii_case("content-type") {
                is_of_type = is_compressible_type(value);
            }
            let is_fixed = FIXED.iter().any(|fixed| name.eq_ignore_ascii_case(fixed))
                || name.eq_ignore_ascii_case("cache-control")
                    && value.to_ascii_lowercase().contains("no-transform");
            if is_fixed {
                return false;
            }
        }
        is_of_type
    }

    /// Adds a field name to `Vary` ([RFC 9110 section
    /// 12.5.5](https://www.rfc-editor.org/rfc/rfc9110#section-12.5.5)), unless it is there.
    pub fn varying_by(self, name: &'static str) -> Self {
        let is_listed = |value: &str| {
            value.split(',').map(str::trim).any(|n| n == "*" || n.eq_ignore_ascii_case(name))
        };
        let varies = self
            .headers()
            .any(|(field, value)| field.eq_ignore_ascii_case("vary") && is_listed(value));
        if varies { self } else { self.push_checked("Vary", name) }
    }

    /// Replaces the body by one in a content coding. The bytes differ, so the entity tag becomes
    /// weak and ranges are no longer offered.
    pub fn coded(self, coding: &'static str, body: Body) -> Self {
        let mut coded = self.push_checked("Content-Encoding", coding).replacing_body(body);
        coded.edit_headers(|name, value| match name {
            _ if name.eq_ignore_ascii_case("accept-ranges") => None,
            _ if name.eq_ignore_ascii_case("etag") && value.starts_with('"') => {
                Some(format!("W/{value}").into())
            }
            _ => Some(value),
        });
        coded
    }
}

/// Returns whether bodies of a media type are worth compressing.
fn is_compressible_type(value: &str) -> bool {
    let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    // Compression would delay events, which must arrive one by one.
    (media_type.starts_with("text/") && media_type != "text/event-stream")
        || media_type.ends_with("+json")
        || media_type.ends_with("+xml")
        || COMPRESSIBLE.contains(&media_type.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::SourcePull;

    fn of_type(content_type: &'static str) -> Response {
        Response::new(Status::OK).with_body(content_type, "x".repeat(1024))
    }

    fn field<'r>(response: &'r Response, name: &str) -> Vec<&'r str> {
        let fields = response.headers().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        fields.map(|(_, value)| value).collect()
    }

    #[test]
    fn types_that_are_compressed_already_are_not_worth_it() {
        for content_type in [
            "text/plain; charset=utf-8",
            "Text/HTML",
            "application/json",
            "application/geo+json;v=1",
            "image/svg+xml",
            "application/wasm",
        ] {
            assert!(of_type(content_type).is_compressible(1024), "{content_type}");
        }
        for content_type in
            ["image/png", "video/mp4", "application/zip", "font/woff2", "text/event-stream", "*/*"]
        {
            assert!(!of_type(content_type).is_compressible(1024), "{content_type}");
        }
        assert!(!of_type("text/plain").is_compressible(1025));
    }

    #[test]
    fn responses_that_must_not_change_are_not_compressed() {
        for (name, value) in [
            ("Content-Encoding", "br"),
            ("content-range", "bytes 0-1/2"),
            ("Repr-Digest", "sha-256=:x:"),
            ("Cache-Control", "public, No-Transform"),
        ] {
            let response = of_type("text/plain").header(name, value).unwrap();
            assert!(!response.is_compressible(0), "{name}");
        }
        for status in [204, 206, 304].map(Status::new) {
            assert!(!of_type("text/plain").with_status(status).is_compressible(0), "{status}");
        }
        // A body of unknown length may be long enough to compress.
        let endless = Response::new(Status::OK)
            .header("Content-Type", "text/plain")
            .unwrap()
            .with_stream(None, |_, _: &mut Vec<u8>| Ok(SourcePull::End));
        assert!(endless.is_compressible(u64::MAX));
    }

    #[test]
    fn rfc9110_8_8_3_the_tag_of_a_coded_body_is_weak() {
        for (tag, expected) in [("\"a\"", "W/\"a\""), ("W/\"a\"", "W/\"a\"")] {
            let response = of_type("text/plain").header("ETag", tag).unwrap();
            let response = response.header("Accept-Ranges", "bytes").unwrap();
            let coded = response.coded("gzip", Body::Whole(vec![1].into()));
            assert_eq!(field(&coded, "etag"), [expected]);
            assert_eq!(field(&coded, "content-encoding"), ["gzip"]);
            assert_eq!((field(&coded, "accept-ranges").len(), coded.body()), (0, &[1][..]));
        }
    }

    #[test]
    fn a_name_is_added_to_vary_once() {
        for (before, expected) in [
            (None, vec!["Accept-Encoding"]),
            (Some("Origin"), vec!["Origin", "Accept-Encoding"]),
            (Some("Origin, accept-encoding"), vec!["Origin, accept-encoding"]),
            (Some("*"), vec!["*"]),
        ] {
            let response = match before {
                Some(value) => of_type("text/plain").header("Vary", value).unwrap(),
                None => of_type("text/plain"),
            };
            assert_eq!(field(&response.varying_by("Accept-Encoding"), "vary"), expected);
        }
    }
}
