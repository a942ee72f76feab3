//! A WebSocket route: a handler of any type, and its options.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{Backpressure, Limit, RouteOptions, SettingError};
use throng_proto::ws::{self, deflate::Settings as Deflate};

use super::closures::Ws;
use super::handler::Handler;
use super::sessions::{AnyEndpoint, Plain};
use crate::shard::hash_of;

/// A WebSocket handler with the options of its route, whatever the type of the handler.
///
/// [`App::ws`](crate::App::ws) takes a handler as it is where the defaults are right:
///
/// ```
/// use throng::prelude::*;
///
/// let echo = || Ws::new().on_message(|ws, message| ws.send(message));
/// let app = App::new()
///     .ws("/echo", echo())
///     .ws("/small", WsRoute::new(echo()).max_message_size(1024).subprotocols(["echo.v1"]));
/// ```
pub struct WsRoute {
    pub(crate) endpoint: Arc<dyn AnyEndpoint>,
    pub(crate) options: WsOptions,
}

/// Options of a WebSocket route.
#[derive(Clone, Debug, Default)]
pub(crate) struct WsOptions {
    pub(crate) subprotocols: Vec<Box<str>>,
    /// Limits of its own, and whether messages are passed on in chunks.
    pub(crate) limits: RouteOptions,
    pub(crate) backpressure: Option<Backpressure>,
    pub(crate) compression: Option<Deflate>,
    /// The threads of the pool of workers are started with the server.
    pub(crate) uses_workers: bool,
    /// Sessions are placed by key.
    pub(crate) is_placed: bool,
    /// A mistake in the handler's settings, for `bind`.
    pub(crate) mistake: Option<SettingError>,
}

/// A type that can be served at a WebSocket route: a [`Handler`], a [`Ws`], or a [`WsRoute`] with
/// options.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be served at a WebSocket route",
    label = "not a WebSocket handler",
    note = "make a handler of closures with `Ws::new().on_message(|ws, message| ..)`",
    note = "or implement `Handler`"
)]
pub trait IntoWsRoute {
    /// Converts it.
    fn into_ws_route(self) -> WsRoute;
}

impl IntoWsRoute for WsRoute {
    fn into_ws_route(self) -> WsRoute {
        self
    }
}

impl<D: Send + 'static> IntoWsRoute for Ws<D> {
    fn into_ws_route(self) -> WsRoute {
        let (streaming, uses_workers) = self.traits();
        let is_placed = self.is_placed();
        let limits = RouteOptions { streams: streaming, ..RouteOptions::default() };
        let options = WsOptions { limits, uses_workers, is_placed, ..WsOptions::default() };
        WsRoute { endpoint: self.into_endpoint(), options }
    }
}

impl<H: Handler> IntoWsRoute for H {
    fn into_ws_route(self) -> WsRoute {
        let endpoint = Arc::new(Plain { handler: self, key: None });
        WsRoute { endpoint, options: WsOptions::default() }
    }
}

impl WsRoute {
    /// A route with default options.
    #[must_use]
    pub fn new(handler: impl IntoWsRoute) -> Self {
        handler.into_ws_route()
    }

    /// A route of a [`Handler`] whose sessions are placed by key, as [`Ws::place_by`] does for
    /// closures: all of a key are on one event loop, and share its
    /// [state](crate::Socket::shard_state).
    ///
    /// ```
    /// use throng::prelude::*;
    ///
    /// struct Room;
    ///
    /// impl Handler for Room {
    ///     type Data = String;
    ///
    ///     fn on_upgrade(&self, request: &Request<'_>) -> Result<String, Reject> {
    ///         Ok(request.param("name").unwrap_or_default().to_owned())
    ///     }
    ///
    ///     fn on_message(&self, ws: &mut Socket<'_, String>, _: Message<'_>) {
    ///         let count = ws.shard_state::<u64>();
    ///         *count += 1;
    ///         let text = count.to_string();
    ///         ws.send(text);
    ///     }
    /// }
    ///
    /// let app = App::new().ws("/{name}", WsRoute::placed_by(Room, |name| name));
    /// # Server::new(app).check().unwrap();
    /// ```
    #[must_use]
    pub fn placed_by<H, K, F>(handler: H, key: F) -> Self
    where
        H: Handler,
        K: Hash + ?Sized + 'static,
        F: for<'d> Fn(&'d H::Data) -> &'d K + Send + Sync + 'static,
    {
        let key = move |data: &H::Data| hash_of(key(data));
        let endpoint = Arc::new(Plain { handler, key: Some(Box::new(key)) });
        Self { endpoint, options: WsOptions { is_placed: true, ..WsOptions::default() } }
    }

    /// The subprotocols this route speaks ([RFC 6455 section
    /// 1.9](https://www.rfc-editor.org/rfc/rfc6455#section-1.9)). The first one that the client
    /// offers and that is among them is chosen; if there is none, the session has none. Default:
    /// none.
    #[must_use]
    pub fn subprotocols<S: Into<Box<str>>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.options.subprotocols = names.into_iter().map(Into::into).collect();
        self
    }

    /// The largest message in bytes, instead of the server's `max_message_size`; with 0 only empty
    /// messages are accepted. A larger message closes the connection with 1009.
    #[must_use]
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.options.limits.ws_limits =
            Some(ws::Limits { max_frame_size: bytes, max_message_size: bytes });
        self
    }

    /// The compression of messages, instead of the server's setting: a
    /// [`Compression`](crate::Compression), or all settings as a [`Deflate`](crate::Deflate).
    #[must_use]
    #[cfg(feature = "deflate")]
    pub fn compression(mut self, compression: impl Into<Deflate>) -> Self {
        self.options.compression = Some(compression.into());
        self
    }

    /// The rules for messages to connections of this route that read too slowly, instead of the
    /// server's. Those of a channel win over both.
    #[must_use]
    pub fn backpressure(mut self, rules: impl Into<Backpressure>) -> Self {
        self.options.backpressure = Some(rules.into());
        self
    }

    /// Silence after which a ping is sent, instead of the server's
    /// [`heartbeat_interval`](crate::Limits#structfield.heartbeat_interval); `None` for no pings.
    /// Fractions of a second are rounded up; at most 18 hours. Where a route has an interval of its
    /// own each read of any session looks its route's up, which costs a few instructions.
    #[must_use]
    pub fn heartbeat_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.options.limits.heartbeat_interval = Some(interval.into());
        self
    }

    /// Time from an unanswered ping to the end of the connection, instead of the server's
    /// [`heartbeat_timeout`](crate::Limits#structfield.heartbeat_timeout). At least a second, and
    /// at most 18 hours.
    #[must_use]
    pub fn heartbeat_timeout(mut self, timeout: Duration) -> Self {
        self.options.limits.heartbeat_timeout = Some(timeout);
        self
    }

    /// Lifetime of a session, after which it is closed with 1001, instead of the server's
    /// [`max_lifetime`](crate::Limits#structfield.max_lifetime); `None` for no limit. At most 18
    /// hours.
    #[must_use]
    pub fn max_lifetime(mut self, lifetime: impl Into<Option<Duration>>) -> Self {
        self.options.limits.max_lifetime = Some(lifetime.into());
        self
    }

    /// Messages that a connection may send in a second, instead of the server's
    /// [`max_messages_per_second`](crate::Limits#structfield.max_messages_per_second): a number, or
    /// [`Limit::Unlimited`]. More are closed with 1008.
    #[must_use]
    pub fn max_messages_per_second(mut self, messages: impl Into<Limit>) -> Self {
        self.options.limits.max_messages_per_second = messages.into();
        self
    }

    /// Bytes that a connection may send in a second, instead of the server's
    /// [`max_bytes_per_second`](crate::Limits#structfield.max_bytes_per_second): a number, or
    /// [`Limit::Unlimited`]. More are closed with 1008.
    #[must_use]
    pub fn max_bytes_per_second(mut self, bytes: impl Into<Limit>) -> Self {
        self.options.limits.max_bytes_per_second = bytes.into();
        self
    }

    /// Whether messages are passed to [`Handler::on_chunk`] as they come, instead of whole to
    /// [`Handler::on_message`]: nothing of them is held, so that an upload larger than memory runs
    /// in the shard's receive buffer. [`max_message_size`](Self::max_message_size) still bounds the
    /// whole message; the reassembly timeout does not apply, and no compression is agreed on.
    /// Default: false, or true for [`Ws::on_chunk`].
    #[must_use]
    pub fn streaming(mut self, streaming: bool) -> Self {
        self.options.limits.streams = streaming;
        self
    }
}

impl fmt::Debug for WsRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WsRoute").field("options", &self.options).finish_non_exhaustive()
    }
}
