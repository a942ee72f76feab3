//! Conditions of a route beside its path.

use std::fmt;
use std::net::IpAddr;

use throng_http::{Network, percent};
use throng_proto::http1::Request;

use crate::cookie::cookie_value;

/// Conditions of a route beside its path; all must hold. The default holds for every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matchers {
    /// The methods; if empty, all. GET includes HEAD.
    pub methods: Vec<String>,
    /// Whether the request is a WebSocket handshake; `None`: it may be.
    pub websocket: Option<bool>,
    /// Headers by name. Of several with the name, one must have the value.
    pub header: Vec<(String, ValuePattern)>,
    /// Cookies by name. Of several with the name, the first counts.
    pub cookie: Vec<(String, ValuePattern)>,
    /// Parameters of the query by name, decoded. Of several with the name, the first counts.
    pub query: Vec<(String, ValuePattern)>,
    /// Networks of the client's address, past trusted proxies; if empty, all.
    pub from: Vec<Network>,
}

/// A condition of a value: `""` absent, `"*"` present, `"v2*"` a beginning, otherwise the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePattern {
    /// There is no value.
    Absent,
    /// It begins with this text, which may be empty.
    Beginning(Box<str>),
    /// It is this text.
    Exact(Box<str>),
}

impl From<&str> for ValuePattern {
    fn from(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(beginning) => Self::Beginning(beginning.into()),
            None if text.is_empty() => Self::Absent,
            None => Self::Exact(text.into()),
        }
    }
}

/// Writes it as in a file.
impl fmt::Display for ValuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("\"\""),
            Self::Beginning(text) => write!(f, "{:?}", format!("{text}*")),
            Self::Exact(text) => write!(f, "{text:?}"),
        }
    }
}

impl ValuePattern {
    /// Returns whether it holds for these values.
    fn holds<V: AsRef<[u8]>>(&self, mut values: impl Iterator<Item = V>) -> bool {
        match self {
            Self::Absent => values.next().is_none(),
            Self::Beginning(text) => {
                values.any(|value| value.as_ref().starts_with(text.as_bytes()))
            }
            Self::Exact(text) => values.any(|value| value.as_ref() == text.as_bytes()),
        }
    }
}

/// The first condition that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mismatch<'m> {
    Methods,
    WebSocket,
    Header(&'m str),
    Cookie(&'m str),
    Query(&'m str),
    From,
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Methods => f.write_str("methods does not list the method"),
            Self::WebSocket => f.write_str("websocket does not hold"),
            Self::Header(name) => write!(f, "header {name} does not hold"),
            Self::Cookie(name) => write!(f, "cookie {name} does not hold"),
            Self::Query(name) => write!(f, "query {name} does not hold"),
            Self::From => f.write_str("from does not list the client's network"),
        }
    }
}

impl Matchers {
    /// Returns the first condition that does not hold for a request of a client.
    pub(super) fn mismatch(&self, request: &Request<'_>, client: IpAddr) -> Option<Mismatch<'_>> {
        let is_method = |wanted: &String| {
            wanted == request.method() || wanted == "GET" && request.method() == "HEAD"
        };
        if !self.methods.is_empty() && !self.methods.iter().any(is_method) {
            return Some(Mismatch::Methods);
        }
        if self.websocket.is_some_and(|wanted| wanted != request.wants_websocket()) {
            return Some(Mismatch::WebSocket);
        }
        for (name, pattern) in &self.header {
            if !pattern.holds(request.lines().all_bytes(name)) {
                return Some(Mismatch::Header(name));
            }
        }
        for (name, pattern) in &self.cookie {
            if !pattern.holds(cookie_value(request, name).into_iter()) {
                return Some(Mismatch::Cookie(name));
            }
        }
        for (name, pattern) in &self.query {
            let value = request.query().and_then(|query| percent::query_value(query, name));
            if !pattern.holds(value.as_deref().into_iter()) {
                return Some(Mismatch::Query(name));
            }
        }
        let is_there = self.from.is_empty() || self.from.iter().any(|it| it.contains(client));
        (!is_there).then_some(Mismatch::From)
    }
}
