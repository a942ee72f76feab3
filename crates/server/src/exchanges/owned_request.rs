//! Requests for futures.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use throng_http::{Extensions, Network, Params, Ranges, Request};
use throng_proto::http1::{self, SavedRequest};

/// A request, owned, so that a future can keep it: see
/// [`Ws::from_request_async`](crate::Ws::from_request_async) and
/// [`http::get_async`](crate::http::get_async).
pub struct OwnedRequest {
    /// The parameter names of the request's route.
    names: Arc<[Box<str>]>,
    trusted_proxies: Arc<[Network]>,
    head: SavedRequest,
    ranges: Ranges,
    peer: Option<SocketAddr>,
    extensions: Extensions,
    /// The body; empty for an upgrade.
    body: Box<[u8]>,
}

impl OwnedRequest {
    pub(crate) fn new(
        names: &Arc<[Box<str>]>,
        trusted_proxies: &Arc<[Network]>,
        head: &http1::Request<'_>,
        request: Request<'_>,
    ) -> Self {
        let mut saved = SavedRequest::new();
        saved.save(head);
        let (ranges, peer, body) =
            (request.params().ranges(), request.peer(), request.body().into());
        let extensions = request.into_extensions();
        let (names, trusted_proxies) = (Arc::clone(names), Arc::clone(trusted_proxies));
        Self { names, trusted_proxies, head: saved, ranges, peer, extensions, body }
    }

    /// Borrows the request, without the values attached by middleware; see
    /// [`OwnedRequest::extension`] for them.
    #[must_use]
    #[allow(clippy::missing_panics_doc, reason = "a head that was saved is whole")]
    pub fn as_request(&self) -> Request<'_> {
        let head = self.head.request().expect("the head was saved");
        let params = Params::new(&self.names, self.ranges);
        Request::new(head, params, &self.body, self.peer)
            .with_trusted_proxies(&self.trusted_proxies)
    }

    /// Returns the token of `Authorization: Bearer`, as
    /// [`Request::bearer`](crate::Request::bearer) does.
    #[must_use]
    pub fn bearer(&self) -> Option<&str> {
        self.as_request().bearer()
    }

    /// Returns the value of the first header called `name`, as
    /// [`Request::header`](crate::Request::header) does.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.as_request().header(name)
    }

    /// Returns a copy of the decoded value of the route's `{name}`, as
    /// [`Request::param`](crate::Request::param) decodes it.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<String> {
        self.as_request().param(name).map(str::to_owned)
    }

    /// Returns a copy of the decoded value of the first query parameter called `name`, as
    /// [`Request::query`](crate::Request::query) decodes it.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<String> {
        self.as_request().query(name).map(str::to_owned)
    }

    /// Returns the whole body; empty for an upgrade.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Parses the body as JSON, as [`Request::json`](crate::Request::json) does.
    ///
    /// # Errors
    /// As for [`Request::json`](crate::Request::json).
    #[cfg(feature = "serde")]
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, throng_http::Reject> {
        self.as_request().json()
    }

    /// Returns a value that middleware has attached.
    #[must_use]
    pub fn extension<T: 'static>(&self) -> Option<&T> {
        self.extensions.get()
    }
}

impl fmt::Debug for OwnedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRequest").field("peer", &self.peer).finish_non_exhaustive()
    }
}
