//! A WebSocket handler as a type of the user's.

use throng_engine::{Chunk, Close, EndReason, Message, Recovery};
use throng_http::{Reject, Request};

use super::Unpublished;
use super::socket::Socket;

/// A WebSocket handler.
///
/// Callbacks of one connection run on its shard, in order, one at a time; those of different
/// connections may run at once on different threads, which is why they get `&self`. They must not
/// block: a blocked callback holds up every connection of its shard, and is reported as a
/// [`Stall`](crate::Stall). A panic in one closes its connection with 1011 and nothing else.
///
/// [`Ws`](crate::Ws) makes a handler of closures. Options of a route, such as its largest message,
/// are set on its [`WsRoute`](crate::WsRoute).
///
/// ```
/// use throng::prelude::*;
///
/// struct Counter;
///
/// impl Handler for Counter {
///     type Data = u64;
///
///     fn on_upgrade(&self, _: &Request<'_>) -> Result<u64, Reject> {
///         Ok(0)
///     }
///
///     fn on_message(&self, ws: &mut Socket<'_, u64>, _: Message<'_>) {
///         *ws.data_mut() += 1;
///         let _ = ws.send(ws.data().to_string());
///     }
/// }
///
/// let app = App::new().ws("/count", Counter);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a WebSocket handler",
    note = "make a handler of closures with `Ws::new().on_message(|ws, message| ..)`",
    note = "or implement `Handler`"
)]
pub trait Handler: Send + Sync + 'static {
    /// Data of a connection. It lives on the connection's shard and never moves to another thread.
    type Data: Send + 'static;

    /// Makes the data of a connection from its upgrade request, or refuses the upgrade.
    ///
    /// # Errors
    /// [`Reject`] is the answer the client gets instead of the upgrade.
    fn on_upgrade(&self, request: &Request<'_>) -> Result<Self::Data, Reject>;

    /// Called when the session is open: exactly once, before all others.
    fn on_open(&self, ws: &mut Socket<'_, Self::Data>) {
        let _ = ws;
    }

    /// Called with each whole message. It is borrowed from the memory it was received in: copy what
    /// you keep.
    fn on_message(&self, ws: &mut Socket<'_, Self::Data>, message: Message<'_>);

    /// Called with each part of a message as it comes, on routes that are
    /// [streaming](crate::WsRoute::streaming). A message that came in one part is `first` and
    /// `last`.
    fn on_chunk(&self, ws: &mut Socket<'_, Self::Data>, chunk: Chunk<'_>) {
        let _ = (ws, chunk);
    }

    /// Called with the outcome of a [`Socket::subscribe_since`] whose
    /// [`Recovery`](crate::Recovery) was pending: a cluster's broker was asked first. What the
    /// channel's members get from then on continues at its position. A session for which the broker
    /// has not answered within ten seconds is closed with 1013 (try again later) instead.
    fn on_recovery(&self, ws: &mut Socket<'_, Self::Data>, channel: &str, recovery: Recovery) {
        let _ = (ws, channel, recovery);
    }

    /// Called with the data of a [`Hub::refresh`](crate::Hub::refresh), of this server or of
    /// another one in its [cluster](crate::ClusterHub::refresh): what this session may do has
    /// changed, and is to be looked up again. What the data are is the program's affair.
    fn on_refresh(&self, ws: &mut Socket<'_, Self::Data>, data: &[u8]) {
        let _ = (ws, data);
    }

    /// Called when messages that this session has published are lost, or may be, although the
    /// cluster had accepted them: its broker was away for some seconds, or has not taken them. It
    /// is called once for all that are lost at one time. Unless it is overridden, the session is
    /// closed with 1013 (try again later), so that its client learns it; what is refused at once is
    /// only in the receipt ([`Receipt::is_refused`](crate::Receipt::is_refused)).
    fn on_unpublished(&self, ws: &mut Socket<'_, Self::Data>, lost: Unpublished) {
        let _ = lost;
        ws.close_for(EndReason::Publication);
    }

    /// Called when the backlog has fallen to a quarter of `max_backlog`, after a send returned
    /// [`Sent::Queued`](crate::Sent::Queued) or [`Sent::Dropped`](crate::Sent::Dropped): sending
    /// can continue.
    fn on_drained(&self, ws: &mut Socket<'_, Self::Data>) {
        let _ = ws;
    }

    /// Called when the server [drains](crate::Running::drain) and has reached this session: the
    /// time for a last message. It is closed afterwards, or when work that it has begun with its
    /// messages is done: jobs of the pool of workers, and futures. What its peer sends meanwhile is
    /// dropped. Its own [`Socket::close`] counts, too.
    fn on_shutdown(&self, ws: &mut Socket<'_, Self::Data>) {
        let _ = ws;
    }

    /// Called when the session has ended, for whatever reason: exactly once, after all others.
    /// Sends return [`Sent::Closed`](crate::Sent::Closed).
    fn on_close(&self, ws: &mut Socket<'_, Self::Data>, close: Close<'_>) {
        let _ = (ws, close);
    }
}
