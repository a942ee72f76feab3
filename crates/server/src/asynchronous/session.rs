//! Access to a session from futures and other tasks.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use throng_engine::{CloseCode, Frame, PatternError};

use super::shared::{AsyncCommand, CloseReason, SessionClosed, SessionShared};
use crate::handle::Handle;
use crate::hub::Hub;

/// A session outside of its shard: sends to it from any task or thread. Clones are cheap, and do
/// not keep the session open.
///
/// Messages sent through a session, its clones and its
/// [`AsyncSocket`](crate::asynchronous::AsyncSocket) leave in the order in which they were sent.
/// `D` is the connection's data, cloned when the session opened; use an `Arc` to share it.
pub struct AsyncSender<D = ()> {
    pub(super) shared: Arc<SessionShared>,
    pub(super) data: D,
}

impl<D> AsyncSender<D> {
    /// Returns the connection's data.
    #[must_use]
    pub fn data(&self) -> &D {
        &self.data
    }

    /// Sends a message, and waits while 256 KiB (see
    /// [`AsyncOptions::send_window`](crate::asynchronous::AsyncOptions::send_window)) wait for a
    /// receiver that reads too slowly. Cancel-safe: if the future is dropped before it is done, the
    /// message is not sent; once it is done, it is sent exactly once, without a flush.
    ///
    /// # Errors
    /// [`SessionClosed`]: the session no longer accepts messages.
    pub async fn send(&self, message: impl Into<Frame>) -> Result<(), SessionClosed> {
        let frame = message.into();
        room(&self.shared).await?;
        self.shared.submit(AsyncCommand::Send(frame))
    }

    /// Sends a message to every member of a channel, including this session if it is a member, in
    /// one order for all members, as [`Socket::publish`](crate::Socket::publish) does, and waits as
    /// [`AsyncSender::send`] does. If a cluster refuses the message, at once or later, the session
    /// is closed with 1013 (try again later).
    ///
    /// # Errors
    /// [`SessionClosed`]: the session can no longer publish; the [`Hub`] can.
    pub async fn publish(
        &self,
        channel: &str,
        message: impl Into<Frame>,
    ) -> Result<(), SessionClosed> {
        let command = publication(channel, message, false);
        room(&self.shared).await?;
        self.shared.submit(command)
    }

    /// Sends a message to every *other* member of a channel; otherwise like
    /// [`AsyncSender::publish`].
    ///
    /// # Errors
    /// [`SessionClosed`]: the session can no longer publish; the [`Hub`] can.
    pub async fn publish_to_others(
        &self,
        channel: &str,
        message: impl Into<Frame>,
    ) -> Result<(), SessionClosed> {
        let command = publication(channel, message, true);
        room(&self.shared).await?;
        self.shared.submit(command)
    }

    /// Joins the channel of exactly this name. The subscription takes effect before messages that
    /// this session sends or publishes later.
    ///
    /// # Errors
    /// [`SessionClosed`]: the session no longer has subscriptions.
    pub fn subscribe(&self, channel: &str) -> Result<(), SessionClosed> {
        let interest = self.shared.hub().remote().announce(self.shared.id().shard(), channel);
        self.shared.submit(AsyncCommand::Subscribe(channel.into(), interest))
    }

    /// Joins all channels that match a pattern, like
    /// [`Socket::subscribe_pattern`](crate::Socket::subscribe_pattern). Nothing happens if the
    /// session has ended.
    ///
    /// # Errors
    /// The pattern is malformed.
    pub fn subscribe_pattern(&self, pattern: &str) -> Result<(), PatternError> {
        throng_engine::check_pattern(pattern)?;
        let shard = self.shared.id().shard();
        let interest = self.shared.hub().remote().announce_pattern(shard, pattern);
        let _ = self.shared.submit(AsyncCommand::SubscribePattern(pattern.into(), interest));
        Ok(())
    }

    /// Leaves a channel.
    ///
    /// # Errors
    /// [`SessionClosed`]: the session no longer has subscriptions.
    pub fn unsubscribe(&self, channel: &str) -> Result<(), SessionClosed> {
        self.shared.submit(AsyncCommand::Unsubscribe(channel.into()))
    }

    /// Begins the closing handshake, after the messages already sent. Nothing can be sent after it,
    /// and messages that the peer sends until it answers are dropped. Only the first call has an
    /// effect. For the codes see [`Socket::close`](crate::Socket::close).
    pub fn close(&self, code: CloseCode, reason: &str) {
        // It may be over already.
        let _ = self.shared.submit(AsyncCommand::Close(code, reason.into()));
    }

    /// Waits for the end of the session, and returns its reason. The future borrows nothing, so
    /// that it can be awaited beside others. While a session is not read because its messages wait,
    /// it does not notice that its peer closes.
    pub fn closed(&self) -> UntilClosed {
        UntilClosed { watch: Watch::new(&self.shared) }
    }

    /// Waits until the server [shuts down](crate::server::Running::shutdown); fails with
    /// [`SessionClosed`] if the session ends before. The future borrows nothing, and can be polled
    /// again when it is done. In a `select!` the pattern `Ok(()) = &mut shutdown` matches the
    /// shutdown alone.
    ///
    /// A session of [`Ws::on_session_async`](crate::Ws::on_session_async) that has called this
    /// closes itself: the server waits for it until its drain is almost over. The server closes all
    /// other sessions.
    pub fn shutting_down(&self) -> UntilShutdown {
        self.shared.handle_shutdown();
        UntilShutdown { watch: Watch::new(&self.shared) }
    }

    /// Returns how the session ended; `None` while it is open.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.shared.end_reason()
    }

    /// Returns the connection's [`Handle`].
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::of(self.shared.id())
    }

    /// Returns the [`Hub`], which reaches all connections and channels.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.shared.hub().clone()
    }
}

fn publication(channel: &str, message: impl Into<Frame>, to_others: bool) -> AsyncCommand {
    AsyncCommand::Publish { channel: channel.into(), frame: message.into(), to_others }
}

/// Waits until there is room to send.
pub(super) async fn room(shared: &SessionShared) -> Result<(), SessionClosed> {
    let mut writer = Writer { shared, slot: None };
    poll_fn(|cx| writer.shared.poll_ready(cx, &mut writer.slot)).await
}

impl<D: Clone> Clone for AsyncSender<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), data: self.data.clone() }
    }
}

impl<D> fmt::Debug for AsyncSender<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncSender({:?})", self.shared.id())
    }
}

/// A future that waits for room. Frees its slot when the wait ends, or is cancelled.
struct Writer<'a> {
    shared: &'a SessionShared,
    slot: Option<usize>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.shared.leave_writers(&mut self.slot);
    }
}

/// A future for the end of a session: see [`AsyncSender::closed`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct UntilClosed {
    watch: Watch,
}

impl Future for UntilClosed {
    type Output = CloseReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        match self.watch.poll(cx) {
            Poll::Ready(()) => self.watch.shared.end_reason().map_or(Poll::Pending, Poll::Ready),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl fmt::Debug for UntilClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UntilClosed({:?})", self.watch.shared.id())
    }
}

/// A future for the shutdown of the server: see [`AsyncSender::shutting_down`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct UntilShutdown {
    watch: Watch,
}

impl Future for UntilShutdown {
    type Output = Result<(), SessionClosed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SessionClosed>> {
        let Watch { shared, slot } = &mut self.watch;
        shared.poll_shutdown(cx, slot)
    }
}

impl fmt::Debug for UntilShutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UntilShutdown({:?})", self.watch.shared.id())
    }
}

/// Watches for the end of a session.
pub(super) struct Watch {
    shared: Arc<SessionShared>,
    slot: Option<usize>,
}

impl Watch {
    pub(super) fn new(shared: &Arc<SessionShared>) -> Self {
        Self { shared: Arc::clone(shared), slot: None }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.poll_end(cx, &mut self.slot)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.leave_watchers(&mut self.slot);
    }
}
