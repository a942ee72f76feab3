//! Accepted upgrades, and the headers of their 101 responses.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;

use throng_http::{HeaderError, STRICT_TRANSPORT_SECURITY, check_header};
use throng_proto::http1::{HeaderName, HeaderValue};

/// Headers of a 101 response besides the headers of the handshake, such as cookies: see
/// [`Ws::on_accept`](crate::Ws::on_accept).
#[derive(Default)]
pub struct AcceptHeaders(Vec<(Cow<'static, str>, Cow<'static, str>)>);

impl AcceptHeaders {
    /// Appends a header.
    ///
    /// # Errors
    /// [`HeaderError`]: the name or value is invalid, or the header is written by the server.
    pub fn add(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Result<(), HeaderError> {
        let (name, value) = (name.into(), value.into());
        let is_handshake = name.eq_ignore_ascii_case("upgrade")
            || name.get(..14).is_some_and(|start| start.eq_ignore_ascii_case("sec-websocket-"));
        if is_handshake {
            return Err(HeaderError::Reserved);
        }
        check_header(&name, &value)?;
        self.0.push((name, value));
        Ok(())
    }

    /// Returns the headers, with this value of Strict-Transport-Security unless they already
    /// contain that header.
    pub(crate) fn fields<'a>(
        &'a self,
        hsts: Option<&'a str>,
    ) -> Vec<(HeaderName<'a>, HeaderValue<'a>)> {
        let is_hsts = |(name, _): (&str, _)| name.eq_ignore_ascii_case(STRICT_TRANSPORT_SECURITY);
        let hsts = hsts.filter(|_| !self.iter().any(is_hsts));
        let hsts = hsts.map(|value| (STRICT_TRANSPORT_SECURITY, value));
        let field =
            |(name, value)| Some((HeaderName::new(name).ok()?, HeaderValue::new(value).ok()?));
        self.iter().chain(hsts).filter_map(field).collect()
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

impl fmt::Debug for AcceptHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets, such as cookies.
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// An accepted upgrade: the data of the connection, and additional headers of the 101 response.
pub(crate) struct Accept<D> {
    pub(crate) data: D,
    pub(crate) headers: AcceptHeaders,
}

impl<D: Send + 'static> Accept<D> {
    /// Hides the type of the data.
    pub(crate) fn erase(self) -> AnyAccept {
        AnyAccept { data: Box::new(self.data), headers: self.headers }
    }
}

/// An [`Accept`] that a worker, a future or another shard returns to the route, which alone
/// knows its type.
pub(crate) type AnyAccept = Accept<Box<dyn Any + Send>>;
