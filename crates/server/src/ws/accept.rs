//! Decisions on upgrades: at once, on a worker, or by a future.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;

use throng_http::{HeaderError, Reject, Request, Response, STRICT_TRANSPORT_SECURITY, Status};
use throng_proto::http1::{HeaderName, HeaderValue};

#[cfg(feature = "tokio")]
use crate::http::OwnedRequest;

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

type UpgradeFn<D> = dyn Fn(&Request<'_>) -> Result<Accept<D>, Reject> + Send + Sync;

#[cfg(feature = "tokio")]
pub(crate) type UpgradeFuture<T> = Pin<Box<dyn Future<Output = Result<T, Reject>> + Send>>;

#[cfg(feature = "tokio")]
type AsyncUpgradeFn<D> = dyn Fn(OwnedRequest) -> UpgradeFuture<Accept<D>> + Send + Sync;

type UpgradeOnce = dyn FnOnce(&Request<'_>) -> Result<AnyAccept, Reject> + Send;

#[cfg(feature = "tokio")]
type AsyncUpgradeOnce = dyn FnOnce(OwnedRequest) -> UpgradeFuture<AnyAccept> + Send;

/// How a handler decides on upgrades.
pub(crate) enum OnUpgrade<D> {
    Now(Box<UpgradeFn<D>>),
    Blocking(Arc<UpgradeFn<D>>),
    #[cfg(feature = "tokio")]
    Async(tokio::runtime::Handle, Arc<AsyncUpgradeFn<D>>),
}

/// A decision that takes time: it is made by a worker, or on a runtime.
pub(crate) enum UpgradeLater {
    Blocking(Box<UpgradeOnce>),
    #[cfg(feature = "tokio")]
    Async(tokio::runtime::Handle, Box<AsyncUpgradeOnce>),
}

fn erase<D: Send + 'static>(accept: Accept<D>) -> AnyAccept {
    accept.map(|data| Box::new(data) as Box<dyn Any + Send>)
}

impl<D: Send + 'static> OnUpgrade<D> {
    /// Decides now.
    pub(crate) fn decide(&self, request: &Request<'_>) -> Result<Accept<D>, Reject> {
        match self {
            Self::Now(decide) => decide(request),
            Self::Blocking(decide) => decide(request),
            #[cfg(feature = "tokio")]
            Self::Async(..) => Err(Reject::status(Status::INTERNAL_SERVER_ERROR)),
        }
    }

    /// Returns the decision if it takes time.
    pub(crate) fn later(&self) -> Option<UpgradeLater> {
        match self {
            Self::Now(_) => None,
            Self::Blocking(decide) => {
                let decide = Arc::clone(decide);
                let decide = move |request: &Request<'_>| decide(request).map(erase);
                Some(UpgradeLater::Blocking(Box::new(decide)))
            }
            #[cfg(feature = "tokio")]
            Self::Async(runtime, decide) => {
                let decide = Arc::clone(decide);
                let decide = move |request: OwnedRequest| -> UpgradeFuture<AnyAccept> {
                    let decision = decide(request);
                    Box::pin(async move { decision.await.map(erase) })
                };
                Some(UpgradeLater::Async(runtime.clone(), Box::new(decide)))
            }
        }
    }

    pub(crate) fn blocks(&self) -> bool {
        matches!(self, Self::Blocking(_))
    }
}
