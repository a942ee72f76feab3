//! Ids of requests.

use std::fmt;

use throng_http::{IntoResponse, Request, RequestIdSource};

use crate::middleware::{Middleware, Next};

/// The longest id accepted from a client or a proxy.
const MAX_LENGTH: usize = 128;

/// Middleware that gives each request an id: the value of its header `X-Request-ID`, which a proxy
/// has set, otherwise a new id of 128 bits. Handlers find it with
/// `request.extension::<RequestId>()`, and responses have it in the same header.
///
/// An id longer than 128 bytes, or with characters other than letters, digits and `-._~+/=:`, is
/// replaced, so that nothing can be smuggled into a log.
///
/// ```
/// use throng::http::{RequestId, RequestIds};
/// use throng::prelude::*;
///
/// let app = App::new()
///     .get("/", |request| {
///         let id = request.extension::<RequestId>().map(RequestId::as_str).unwrap_or_default();
///         eprintln!("{id}: {}", request.path());
///         "hello"
///     })
///     .layer(RequestIds::new());
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct RequestIds(RequestIdSource);

/// The id of a request, as [`RequestIds`] gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(Box<str>);

impl RequestIds {
    /// Creates the middleware.
    pub fn new() -> Self {
        Self::default()
    }
}

impl RequestId {
    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn of(request: &Request<'_>) -> Option<Self> {
        let id = request.header("x-request-id")?;
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=:".contains(&byte);
        let is_valid = (1..=MAX_LENGTH).contains(&id.len()) && id.bytes().all(is_safe);
        is_valid.then(|| Self(id.into()))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Middleware for RequestIds {
    fn call(&self, request: &mut Request<'_>) -> Next {
        let id = RequestId::of(request).unwrap_or_else(|| RequestId(self.0.create().into()));
        let shown = id.0.to_string();
        request.insert_extension(id);
        Next::then(move |response| response.header("X-Request-ID", shown).into_response())
    }
}
