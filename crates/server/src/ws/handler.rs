//! A WebSocket handler as a user's type.

use throng_engine::{Chunk, EndReason, Message};
use throng_http::{Reject, Request};

use super::event::{SessionEvent, Unpublished};
use super::socket::Socket;

/// A WebSocket handler.
///
/// The arguments of each callback are the socket, the connection's data, and the event. Callbacks
/// of one connection run on its shard, in order, one at a time; callbacks of different connections
/// may run at once on different threads, which is why they get `&self`. They must not block: a
/// blocked callback delays every connection of its shard, and is reported as a
/// [`Stall`](crate::server::Stall). A panic closes its connection with 1011 and has no other
/// effect.
///
/// [`Ws`](crate::Ws) makes a handler of closures. Options of a route, such as its largest message,
/// are set on `Ws::handler(handler)`.
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
///     fn on_message(&self, ws: &mut Socket<'_, u64>, count: &mut u64, _: Message<'_>) {
///         *count += 1;
///         ws.send(count.to_string());
///     }
///
///     fn on_event(&self, ws: &mut Socket<'_, u64>, count: &mut u64, event: SessionEvent<'_>) {
///         match event {
///             SessionEvent::Open => {
///                 ws.send("count with me");
///             }
///             SessionEvent::Closed(_) => println!("{count} messages"),
///             _ => {}
///         }
///     }
/// }
///
/// let app = App::new().ws("/count", Counter);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a WebSocket handler",
    note = "make a handler of closures with `Ws::new().on_message(|ws, (), message| ..)`",
    note = "or implement `Handler`"
)]
pub trait Handler: Send + Sync + 'static {
    /// Data of a connection. It lives on the connection's shard and never moves to another thread.
    type Data: Send + 'static;

    /// Makes the data of a connection from its upgrade request, or refuses the upgrade.
    ///
    /// # Errors
    /// The client gets the [`Reject`] as the answer instead of the upgrade.
    fn on_upgrade(&self, request: &Request<'_>) -> Result<Self::Data, Reject>;

    /// Called with each whole message. It is borrowed from the memory it was received in: copy the
    /// parts that you keep.
    fn on_message(
        &self,
        ws: &mut Socket<'_, Self::Data>,
        data: &mut Self::Data,
        message: Message<'_>,
    );

    /// Called with each part of a message as it comes, on routes that are
    /// [streaming](crate::Ws::streaming). A message that came in one part is `first` and `last`.
    fn on_chunk(&self, ws: &mut Socket<'_, Self::Data>, data: &mut Self::Data, chunk: Chunk<'_>) {
        let _ = (ws, data, chunk);
    }

    /// Called with each [`SessionEvent`], such as the begin and the end of the session. Default:
    /// nothing happens.
    fn on_event(
        &self,
        ws: &mut Socket<'_, Self::Data>,
        data: &mut Self::Data,
        event: SessionEvent<'_>,
    ) {
        let _ = (ws, data, event);
    }

    /// Called when messages that this session has published are lost, or may be, although the
    /// cluster had accepted them: its broker was away for some seconds, or has refused them. One
    /// call reports all messages lost at one time. By default it closes the session with 1013 (try
    /// again later), so that its client learns of the loss; for that reason it is not a
    /// [`SessionEvent`], which a handler may ignore. Messages that are refused at once are only in
    /// the receipt ([`Receipt::is_refused`](crate::channel::Receipt::is_refused)).
    fn on_unpublished(
        &self,
        ws: &mut Socket<'_, Self::Data>,
        data: &mut Self::Data,
        lost: Unpublished,
    ) {
        let _ = data;
        ws.close_for_with(EndReason::Publication, lost.text());
    }
}
