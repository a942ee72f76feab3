//! Options of WebSocket routes.

use std::time::Duration;

use throng_engine::{Backpressure, Limit};
use throng_proto::ws;
#[cfg(feature = "deflate")]
use throng_proto::ws::deflate::Settings as Deflate;

use super::closures::Ws;

/// Options of its route.
///
/// ```
/// use throng::prelude::*;
///
/// let echo = || Ws::new().on_message(|ws, (), message| ws.send(message));
/// let app = App::new()
///     .ws("/echo", echo())
///     .ws("/small", echo().max_message_size(1024).subprotocols(["echo.v1"]));
/// ```
impl<D: Send + 'static> Ws<D> {
    /// The subprotocols this route speaks ([RFC 6455 section
    /// 1.9](https://www.rfc-editor.org/rfc/rfc6455#section-1.9)). The client's first offer
    /// among them is chosen; without one, the session has no subprotocol. Default: none.
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
    /// [`Compression`](crate::ws::Compression), or all settings as a
    /// [`Deflate`](crate::ws::Deflate).
    #[must_use]
    #[cfg(feature = "deflate")]
    pub fn compression(mut self, compression: impl Into<Deflate>) -> Self {
        self.options.compression = Some(compression.into());
        self
    }

    /// The rules for messages to connections of this route that read too slowly, instead of the
    /// server's. A channel's rules win over both.
    #[must_use]
    pub fn backpressure(mut self, rules: impl Into<Backpressure>) -> Self {
        self.options.backpressure = Some(rules.into());
        self
    }

    /// Silence after which a ping is sent, instead of the server's
    /// [`heartbeat_interval`](crate::Limits#structfield.heartbeat_interval); `None` for no pings.
    /// Fractions of a second are rounded up; at most 18 hours. If a route has its own interval,
    /// each read of any session looks up the interval of its route, which costs a few instructions.
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
    /// [`Limit::Unlimited`]. More are closed with 1008, which a reconnecting client takes as final.
    #[must_use]
    pub fn max_messages_per_second(mut self, messages: impl Into<Limit>) -> Self {
        self.options.limits.max_messages_per_second = messages.into();
        self
    }

    /// Sets the maximum bytes that a connection may send per second, instead of the server's
    /// [`max_bytes_per_second`](crate::Limits#structfield.max_bytes_per_second): a number, or
    /// [`Limit::Unlimited`]. A connection that sends more is closed with 1008.
    #[must_use]
    pub fn max_bytes_per_second(mut self, bytes: impl Into<Limit>) -> Self {
        self.options.limits.max_bytes_per_second = bytes.into();
        self
    }

    /// Whether messages are passed to [`Handler::on_chunk`](crate::Handler::on_chunk) as they come,
    /// instead of whole to [`Handler::on_message`](crate::Handler::on_message): no part of them is
    /// kept, so that an upload larger than memory runs in the shard's receive buffer.
    /// [`max_message_size`](Self::max_message_size) still bounds the whole message; the reassembly
    /// timeout does not apply, and compression is not negotiated. Default: false, or true for
    /// [`Ws::on_chunk`].
    #[must_use]
    pub fn streaming(mut self, streaming: bool) -> Self {
        self.options.streaming = Some(streaming);
        self
    }
}
