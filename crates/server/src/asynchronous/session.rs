//! A session, as futures and other tasks reach it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use throng_engine::Frame;

use super::shared::{CloseReason, Closed, Order, Shared};
use crate::hub::{Handle, Hub};

/// A session outside of its shard: sends to it, from any task or thread. Clones are cheap, and do not keep the session open.
///
/// What is sent through one session, its clones and its [`AsyncSocket`](crate::AsyncSocket) leaves in the order in which it was
/// given. `D` is what the connection remembers, cloned when the session opened: an `Arc` where it is to be shared.
pub struct AsyncSession<D = ()> {
    pub(super) shared: Arc<Shared>,
    pub(super) data: D,
}

impl<D> AsyncSession<D> {
    /// What the connection remembers.
    #[must_use]
    pub fn data(&self) -> &D {
        &self.data
    }

    /// Sends a message, and waits while 256 KiB (see [`AsyncWs::send_window`](crate::AsyncWs::send_window)) wait for a
    /// receiver that reads too slowly. Cancel-safe: if the future is dropped before it is done, the message is not
    /// sent; once it is done, it is sent exactly once, without a flush.
    ///
    /// # Errors
    /// [`Closed`]: nothing can be sent any more.
    pub async fn send(&self, message: impl Into<Frame>) -> Result<(), Closed> {
        let frame = message.into();
        room(&self.shared).await?;
        self.shared.order(Order::Send(frame))
    }

    /// Sends to every *other* member of a channel, as [`Socket::publish`](crate::Socket::publish) does; waits as
    /// [`AsyncSession::send`] does. With the [`Hub`] it would reach this session, too.
    ///
    /// # Errors
    /// [`Closed`]: the session cannot publish any more; the [`Hub`] can.
    pub async fn publish(&self, channel: &str, message: impl Into<Frame>) -> Result<(), Closed> {
        let order = Order::Publish(channel.into(), message.into());
        room(&self.shared).await?;
        self.shared.order(order)
    }

    /// Joins a channel, or with [`Server::wildcards`](crate::Server::wildcards) all that match a pattern. It comes about
    /// before what is sent or published afterwards from here.
    ///
    /// # Errors
    /// [`Closed`]: the session is no member of anything any more.
    pub fn subscribe(&self, channel: &str) -> Result<(), Closed> {
        let interest = self.shared.hub().remote().announce(self.shared.id().shard(), channel);
        self.shared.order(Order::Subscribe(channel.into(), interest))
    }

    /// Leaves a channel.
    ///
    /// # Errors
    /// [`Closed`]: the session is no member of anything any more.
    pub fn unsubscribe(&self, channel: &str) -> Result<(), Closed> {
        self.shared.order(Order::Unsubscribe(channel.into()))
    }

    /// Begins the closing handshake behind what was sent. Nothing can be sent after it; what the peer sends until it answers is
    /// dropped. The first call counts. For the codes see [`Socket::close`](crate::Socket::close).
    pub fn close(&self, code: u16, reason: &str) {
        // It may be over already.
        let _ = self.shared.order(Order::Close(code, reason.into()));
    }

    /// Waits for the end of the session, and tells how it came about. The future is on its own: it can be waited for beside
    /// anything else. A session that is not read because its messages wait to be dealt with does not see that its peer closes.
    pub fn closed(&self) -> Ended {
        Ended { watch: Watch::new(&self.shared) }
    }

    /// How the session ended; `None` while it has not.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.shared.end_reason()
    }

    /// The connection's name: 64 bits, `Copy`.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::of(self.shared.id())
    }

    /// The way to all connections and channels.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.shared.hub().clone()
    }
}

/// Waits until there is room to send.
pub(super) async fn room(shared: &Shared) -> Result<(), Closed> {
    let mut writer = Writer { shared, seat: None };
    poll_fn(|cx| writer.shared.poll_ready(cx, &mut writer.seat)).await
}

impl<D: Clone> Clone for AsyncSession<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), data: self.data.clone() }
    }
}

impl<D> fmt::Debug for AsyncSession<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncSession({:?})", self.shared.id())
    }
}

/// Gives its seat back, however the waiting ends.
struct Writer<'a> {
    shared: &'a Shared,
    seat: Option<usize>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.shared.leave_writers(&mut self.seat);
    }
}

/// The end of a session, to wait for: [`AsyncSession::closed`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct Ended {
    watch: Watch,
}

impl Future for Ended {
    type Output = CloseReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        match self.watch.poll(cx) {
            Poll::Ready(()) => self.watch.shared.end_reason().map_or(Poll::Pending, Poll::Ready),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ended({:?})", self.watch.shared.id())
    }
}

/// Learns of the end of a session.
pub(super) struct Watch {
    shared: Arc<Shared>,
    seat: Option<usize>,
}

impl Watch {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), seat: None }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.poll_end(cx, &mut self.seat)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.leave_watchers(&mut self.seat);
    }
}
