//! A route as data: where it is, and what answers there.

use std::sync::Arc;

#[cfg(feature = "files")]
use throng_http::Files;
use throng_http::{Method, Reject, Request};

#[cfg(feature = "tokio")]
use crate::exchanges::futures::AsyncFn;
use crate::exchanges::{BodyReader, HttpFn, Responder};
use crate::middleware::Middleware;
use crate::topic::EventStream;
use crate::ws::WsRoute;

/// A route of an [`App`](super::App).
pub(crate) struct AppRoute {
    /// `None`: every method that has no route of its own.
    pub(crate) method: Option<Method>,
    pub(crate) path: String,
    pub(crate) action: RouteAction,
    /// The outermost comes first.
    pub(crate) layers: Vec<Arc<dyn Middleware>>,
    /// Maximum bytes of a request's body; `None` for the server's limit.
    pub(crate) max_body: Option<u64>,
    /// Compression of its responses.
    #[cfg(feature = "gzip")]
    pub(crate) gzip: Option<crate::gzip::Gzip>,
}

/// The handler of a route.
pub(crate) enum RouteAction {
    /// Accepts upgrades.
    Ws(Box<WsRoute>),
    /// Streams a channel as server-sent events.
    Sse(Box<ChannelFn>),
    /// Answers at once.
    Http(Box<HttpFn>),
    /// Serves the files of a directory.
    #[cfg(feature = "files")]
    Files(Box<Files>),
    /// Answers later, from any thread.
    Deferred(Box<DeferredFn>),
    /// Answers with the output of a future.
    #[cfg(feature = "tokio")]
    Async(Box<AsyncFn>),
    /// Takes the body while it comes, and answers later.
    Streaming(Box<StreamingFn>),
    /// Answers on a worker.
    Blocking(Box<HttpFn>),
    /// Serves the metrics for Prometheus.
    #[cfg(feature = "metrics")]
    Metrics(Box<MetricsFn>),
    /// Serves the metrics as JSON.
    #[cfg(feature = "metrics")]
    Stats,
    /// 200 while the process answers.
    Live,
    /// 200 while new connections are accepted.
    Ready,
}

pub(crate) type DeferredFn = dyn Fn(&Request<'_>, Responder) + Send + Sync;
pub(crate) type StreamingFn = dyn Fn(&Request<'_>, BodyReader, Responder) + Send + Sync;
#[cfg(feature = "metrics")]
pub(crate) type MetricsFn = dyn Fn(&mut throng_http::openmetrics::Writer) + Send + Sync;
pub(crate) type ChannelFn = dyn Fn(&Request<'_>) -> Result<EventStream, Reject> + Send + Sync;

impl RouteAction {
    /// Whether a request's body is read before the handler is called.
    pub(crate) fn wants_body(&self) -> bool {
        match self {
            Self::Http(_) | Self::Deferred(_) | Self::Blocking(_) => true,
            #[cfg(feature = "tokio")]
            Self::Async(_) => true,
            _ => false,
        }
    }
}

impl AppRoute {
    pub(crate) fn new(method: Option<Method>, path: &str, action: RouteAction) -> Self {
        Self {
            method,
            path: path.to_owned(),
            action,
            layers: Vec::new(),
            max_body: None,
            #[cfg(feature = "gzip")]
            gzip: None,
        }
    }

    pub(crate) fn is_ws(&self) -> bool {
        matches!(self.action, RouteAction::Ws(_))
    }

    pub(crate) fn layers(&self) -> impl Iterator<Item = &dyn Middleware> {
        self.layers.iter().map(|layer| &**layer)
    }
}
