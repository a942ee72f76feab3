//! Sessions as a stream of messages and a sink.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use throng_engine::{CloseCode, Frame};
use throng_proto::ws::OwnedMessage;
use tokio::task::coop;

use super::session::{AsyncSender, UntilClosed, Watch};
use super::shared::{AsyncCommand, CloseReason, SessionClosed, SessionShared};

/// A session as a [`Stream`] of its messages and a [`Sink`] for anything that converts to a
/// [`Frame`]. It can be split.
///
/// *Receiving.* While [`credits`](crate::asynchronous::AsyncOptions::credits) messages or
/// [`receive_window`](crate::asynchronous::AsyncOptions::receive_window) bytes wait here, the
/// connection is not read, and TCP stops the peer. The stream ends after the last message of a
/// session that has ended; [`close_reason`](Self::close_reason) then returns the reason.
///
/// *Sending.* Messages given to the sink leave without a flush, in order. The sink is ready while
/// less than [`send_window`](crate::asynchronous::AsyncOptions::send_window) bytes wait besides the
/// connection's own queue; a slow receiver is never closed and loses nothing because of what is
/// sent from here. (Messages of 1 byte count as 129.)
///
/// *Cancel-safe.* [`next`](Self::next) and [`send`](Self::send) can be dropped in a `select!`: a
/// dropped call loses no received message, which a later call returns; a message is sent exactly
/// once if the call completes, and not at all otherwise.
///
/// *Closing.* Dropping the socket closes the session with 1000, after the messages already sent; a
/// future that ends with an error closes it with the code of that error; a panic that drops the
/// socket, with 1011. The sink's own `poll_close` closes with 1000 and waits for the end of the
/// session.
pub struct AsyncSocket<D = ()> {
    session: AsyncSender<D>,
    /// Its slot in the waker set for room to send.
    slot: Option<usize>,
    /// Watches for the end of the session.
    watch: Watch,
}

impl<D> AsyncSocket<D> {
    pub(super) fn new(session: AsyncSender<D>) -> Self {
        Self { watch: Watch::new(&session.shared), session, slot: None }
    }

    /// Receives the next message; `None` after the last of a session that has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<OwnedMessage> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// Sends a message when the queue has space. Cancel-safe: see [`AsyncSender::send`].
    ///
    /// # Errors
    /// [`SessionClosed`]: the session no longer accepts messages.
    pub async fn send(&mut self, message: impl Into<Frame>) -> Result<(), SessionClosed> {
        self.session.send(message).await
    }

    /// Begins the closing handshake, after the messages already sent. See [`AsyncSender::close`].
    /// The stream ends when the session has ended.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.session.close(code, reason);
    }

    /// Waits for the end of the session. See [`AsyncSender::closed`].
    pub fn closed(&self) -> UntilClosed {
        self.session.closed()
    }

    /// Returns how the session ended; `None` while it is open.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.session.close_reason()
    }

    /// Returns the connection's data.
    #[must_use]
    pub fn data(&self) -> &D {
        self.session.data()
    }

    /// Returns the sending half: for channels, its [`Handle`](crate::Handle), and clones to send
    /// from other tasks.
    #[must_use]
    pub fn sender(&self) -> &AsyncSender<D> {
        &self.session
    }

    fn poll_message(&self, cx: &mut Context<'_>) -> Poll<Option<OwnedMessage>> {
        // A peer that always has another message must not monopolize the runtime's thread.
        let turn = ready!(coop::poll_proceed(cx));
        let message = ready!(self.session.shared.poll_next(cx));
        turn.made_progress();
        Poll::Ready(message)
    }
}

/// It holds no references to itself.
impl<D> Unpin for AsyncSocket<D> {}

impl<D> Stream for AsyncSocket<D> {
    type Item = OwnedMessage;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<OwnedMessage>> {
        self.poll_message(cx)
    }
}

impl<D, T: Into<Frame>> Sink<T> for AsyncSocket<D> {
    type Error = SessionClosed;

    fn poll_ready(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SessionClosed>> {
        let Self { session, slot, .. } = &mut *self;
        session.shared.poll_ready(cx, slot)
    }

    fn start_send(self: Pin<&mut Self>, item: T) -> Result<(), SessionClosed> {
        self.session.shared.submit(AsyncCommand::Send(item.into()))
    }

    /// Returns at once: messages given to the sink leave without a flush. This makes `send`
    /// cancel-safe.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), SessionClosed>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SessionClosed>> {
        self.session.close(CloseCode::NORMAL, "");
        self.watch.poll(cx).map(Ok)
    }
}

impl<D> Drop for AsyncSocket<D> {
    fn drop(&mut self) {
        let shared = &self.session.shared;
        shared.leave_writers(&mut self.slot);
        shared.discard_messages();
        match std::thread::panicking() {
            true => shared.panic_with_socket(),
            false if Drops::held(shared) => {}
            false => self.session.close(CloseCode::NORMAL, ""),
        }
    }
}

thread_local! {
    /// The session whose future this thread polls, and whether its socket was dropped there.
    static POLLED: Cell<(*const SessionShared, bool)> = const { Cell::new((ptr::null(), false)) };
}

/// While this value lives, a socket of its session that is dropped on this thread does not close
/// the session: the end of this value does.
pub(super) struct Drops<'a> {
    shared: &'a Arc<SessionShared>,
    /// The previous value of `POLLED`, for a future that polls this one.
    outer: (*const SessionShared, bool),
}

impl<'a> Drops<'a> {
    pub(super) fn hold(shared: &'a Arc<SessionShared>) -> Self {
        Self { shared, outer: POLLED.replace((Arc::as_ptr(shared), false)) }
    }

    /// Records that a socket was dropped. Returns false if its session is not polled here.
    fn held(shared: &Arc<SessionShared>) -> bool {
        let is_polled = ptr::eq(POLLED.get().0, Arc::as_ptr(shared));
        if is_polled {
            POLLED.set((Arc::as_ptr(shared), true));
        }
        is_polled
    }
}

impl Drop for Drops<'_> {
    fn drop(&mut self) {
        let (_, dropped) = POLLED.replace(self.outer);
        if dropped {
            // The session may already be over.
            let _ = self.shared.submit(AsyncCommand::Close(CloseCode::NORMAL, "".into()));
        }
    }
}

impl<D> fmt::Debug for AsyncSocket<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncSocket({:?})", self.session.shared.id())
    }
}
