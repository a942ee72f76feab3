//! The parts of a request that appear in an access log.

use std::ops::Range;

use throng_proto::http1::Request;

/// Maximum kept lengths of the path, of User-Agent, and of other headers.
const PATH: usize = 512;
const HEADER: usize = 128;
const USER_AGENT: usize = 256;

/// A copy of a request's method, its path without the query, and the headers that identify it.
/// One allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSummary {
    text: String,
    /// Ranges of method, path, X-Request-ID, traceparent, host and User-Agent in the copy.
    parts: [Range<u16>; 6],
}

impl RequestSummary {
    /// Copies at most 512 bytes of the path, 256 of User-Agent, and 128 of each other part.
    #[must_use]
    pub fn new(head: &Request<'_>) -> Self {
        let header = |name| head.values(name).next().unwrap_or_default();
        let mut text = String::new();
        let mut part = |value: &str, most| {
            let start = text.len() as u16;
            text.push_str(&value[..value.floor_char_boundary(most)]);
            start..text.len() as u16
        };
        let parts = [
            part(head.method(), HEADER),
            part(head.path(), PATH),
            part(header("x-request-id"), HEADER),
            part(header("traceparent"), HEADER),
            part(head.host().unwrap_or_default(), HEADER),
            part(header("user-agent"), USER_AGENT),
        ];
        Self { text, parts }
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &str {
        self.part(0).unwrap_or_default()
    }

    /// Returns the path without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.part(1).unwrap_or_default()
    }

    /// Returns the header X-Request-ID, if it is not empty.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.part(2)
    }

    /// Returns the header traceparent (W3C Trace Context), if it is not empty.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.part(3)
    }

    /// Returns the host that the request is for, with its port, if it has one.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.part(4)
    }

    /// Returns the header User-Agent, if it is not empty.
    #[must_use]
    pub fn user_agent(&self) -> Option<&str> {
        self.part(5)
    }

    fn part(&self, at: usize) -> Option<&str> {
        let Range { start, end } = self.parts[at];
        self.text.get(start.into()..end.into()).filter(|text| !text.is_empty())
    }
}
