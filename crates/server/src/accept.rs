//! Accepted upgrades, and the headers of their 101 responses.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;

use throng_http::{HeaderError, Response, STRICT_TRANSPORT_SECURITY, Status};
use throng_proto::http1::{HeaderName, HeaderValue};

/// An accepted upgrade: the data of the connection, and headers of the 101 response, such as
/// cookies.
///
/// ```
/// use throng::prelude::*;
///
/// let app = App::new().ws(
///     "/",
///     Ws::on_upgrade_with(|_| Ok(Accept::new(()).header("Set-Cookie", "seen=1; HttpOnly")?)),
/// );
/// ```
pub struct Accept<D> {
    data: D,
    /// Its headers alone are sent.
    response: Response,
}

impl<D> Accept<D> {
    /// Accepts an upgrade, without further headers.
    #[must_use]
    pub fn new(data: D) -> Self {
        Self { data, response: Response::new(Status::OK) }
    }

    /// Appends a header to the 101 response.
    ///
    /// # Errors
    /// [`HeaderError`]: the name or value is invalid, or the header is written by the server.
    /// Returned from `on_upgrade` it becomes a 500.
    pub fn header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Result<Self, HeaderError> {
        let name = name.into();
        let of_handshake = |name: &str| {
            name.eq_ignore_ascii_case("upgrade")
                || name.get(..14).is_some_and(|start| start.eq_ignore_ascii_case("sec-websocket-"))
        };
        if of_handshake(&name) {
            return Err(HeaderError::Reserved);
        }
        self.response = self.response.header(name, value)?;
        Ok(self)
    }

    /// Converts the data, and keeps the headers.
    pub(crate) fn map<T>(self, convert: impl FnOnce(D) -> T) -> Accept<T> {
        Accept { data: convert(self.data), response: self.response }
    }

    pub(crate) fn data(&self) -> &D {
        &self.data
    }

    pub(crate) fn into_parts(self) -> (D, ResponseHeaders) {
        (self.data, ResponseHeaders(self.response))
    }
}

impl<D: Send + 'static> Accept<D> {
    /// Hides the type of the data.
    pub(crate) fn erase(self) -> AnyAccept {
        self.map(|data| Box::new(data) as Box<dyn Any + Send>)
    }
}

impl<D: fmt::Debug> fmt::Debug for Accept<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accept").field("data", &self.data).finish_non_exhaustive()
    }
}

/// The headers of a 101 response besides those of the handshake.
pub(crate) struct ResponseHeaders(Response);

impl ResponseHeaders {
    /// Returns them, with that value of Strict-Transport-Security unless there is one.
    pub(crate) fn fields<'a>(
        &'a self,
        hsts: Option<&'a str>,
    ) -> Vec<(HeaderName<'a>, HeaderValue<'a>)> {
        let is_hsts = |(name, _): (&str, _)| name.eq_ignore_ascii_case(STRICT_TRANSPORT_SECURITY);
        let hsts = hsts.filter(|_| !self.0.headers().any(is_hsts));
        let hsts = hsts.map(|value| (STRICT_TRANSPORT_SECURITY, value));
        let field =
            |(name, value)| Some((HeaderName::new(name).ok()?, HeaderValue::new(value).ok()?));
        self.0.headers().chain(hsts).filter_map(field).collect()
    }
}

/// An [`Accept`] on its way from a worker or a future to the route, which alone knows its type.
pub(crate) type AnyAccept = Accept<Box<dyn Any + Send>>;
