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
        let (mut id, mut trace, mut agent) = (None, None, None);
        for (name, value) in head.lines().fields() {
            let (known, part) = match name.len() {
                12 => ("x-request-id", &mut id),
                11 => ("traceparent", &mut trace),
                10 => ("user-agent", &mut agent),
                _ => continue,
            };
            // The first value that is text.
            if part.is_none() && name.eq_ignore_ascii_case(known.as_bytes()) {
                *part = str::from_utf8(value).ok();
            }
        }
        let [id, trace, agent] = [id, trace, agent].map(Option::unwrap_or_default);
        let host = head.host().unwrap_or_default();
        Self::of_parts([head.method(), head.path(), id, trace, host, agent])
    }

    /// Copies the parts as [`parts`](Self::parts) returns them, each up to its maximum length.
    #[must_use]
    pub fn of_parts(parts: [&str; 6]) -> Self {
        let mut text = String::new();
        let most = [HEADER, PATH, HEADER, HEADER, HEADER, USER_AGENT];
        let mut most = most.into_iter();
        let parts = parts.map(|part| {
            let start = text.len() as u16;
            text.push_str(&part[..part.floor_char_boundary(most.next().unwrap_or_default())]);
            start..text.len() as u16
        });
        Self { text, parts }
    }

    /// Returns method, path, X-Request-ID, traceparent, host and User-Agent, to
    /// [copy](Self::of_parts) them in another process; a missing part is empty.
    #[must_use]
    pub fn parts(&self) -> [&str; 6] {
        [0, 1, 2, 3, 4, 5].map(|at| self.part(at).unwrap_or_default())
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
