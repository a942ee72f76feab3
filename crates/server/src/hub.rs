//! Access to connections and channels from any thread.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use throng_engine::{CloseCode, Frame, Notice, Position, Publication, QueueFull, Receipt, Remote};

use crate::filter::Filter;
use crate::handle::Handle;

/// Reaches every connection and channel of a server from any thread; clone it freely.
///
/// Each call queues one command for each shard concerned, and wakes the shard if it sleeps. A
/// shard's queue holds 65,536 commands and 64 MiB of messages; a call that finds it full returns an
/// error. Connections that publish with [`Socket::publish`](crate::Socket::publish) are delayed
/// before the queue fills up. The commands of one thread run in order; commands of a callback run
/// after the callback's own sends.
#[derive(Clone, Debug)]
pub struct Hub {
    reach: Reach,
}

/// The shards that a hub reaches.
#[derive(Clone, Debug)]
enum Reach {
    /// The shards of a server.
    Shards(Remote),
    /// The shards of a server that is built later.
    Later(Arc<Later>),
}

#[derive(Debug)]
struct Later {
    shards: OnceLock<Remote>,
    /// A hub without receivers, used until the hub has a server.
    none: Remote,
}

/// Maximum bytes of the data of [`Hub::refresh`], as between the servers of a cluster.
const MAX_REFRESH: usize = u16::MAX as usize;

/// Error of [`Hub::refresh`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RefreshError {
    /// The data has more than 65,535 bytes: no session is called.
    TooLong,
    /// The queue of a shard is full: sessions on the others are called.
    QueueFull(QueueFull),
}

impl From<QueueFull> for RefreshError {
    fn from(full: QueueFull) -> Self {
        Self::QueueFull(full)
    }
}

impl fmt::Display for RefreshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "the data of a refresh has {MAX_REFRESH} bytes at most"),
            Self::QueueFull(full) => full.fmt(f),
        }
    }
}

impl std::error::Error for RefreshError {}

/// A command for sessions that runs on their shards.
pub(crate) enum SessionNotice {
    /// Leave a channel.
    Unsubscribe(Box<str>),
    /// Look up the client's rights again.
    Refresh(Box<[u8]>),
    /// Messages of a channel without history may be lost.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only clusters lose messages"))]
    Missed(Arc<str>),
}

impl From<SessionNotice> for Notice {
    fn from(notice: SessionNotice) -> Self {
        let bytes = match &notice {
            SessionNotice::Unsubscribe(channel) => channel.len(),
            SessionNotice::Refresh(data) => data.len(),
            SessionNotice::Missed(channel) => channel.len(),
        };
        Self { content: Arc::new(notice), bytes }
    }
}

/// A member of a channel with presence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Present {
    /// The connection.
    pub handle: Handle,
    /// The information given when the member joined, by
    /// [`Socket::subscribe_as`](crate::Socket::subscribe_as) or
    /// [`EventStream::info`](crate::http::EventStream::info); empty if none was given.
    pub info: Arc<str>,
}

/// A channel, or pattern, that has subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelSize {
    /// The name of the channel, or the pattern.
    pub name: Arc<str>,
    /// The number of subscriptions on all shards, as [`Hub::subscribers`] counts them.
    pub members: usize,
}

/// The last publications of a channel with history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The position after the newest publication.
    pub position: Position,
    /// The publications, oldest first.
    pub publications: Vec<Publication>,
}

impl Hub {
    /// Creates a hub without a server, for handlers that are made before their server;
    /// [`Server::with_hub`](crate::Server::with_hub) connects it. Until the server is bound there
    /// are no receivers, and receipts count none.
    ///
    /// ```no_run
    /// use throng::prelude::*;
    ///
    /// # fn main() -> throng::Result<()> {
    /// let hub = Hub::new();
    /// let publisher = hub.clone();
    /// let news = Ws::new().on_open(|ws, ()| {
    ///     ws.subscribe("news");
    /// });
    /// let app = App::new().ws("/news", news).post("/news", move |request| {
    ///     let published = publisher.publish("news", request.body().to_vec());
    ///     published.map_or(Status::SERVICE_UNAVAILABLE, |_| Status::NO_CONTENT)
    /// });
    /// Server::new(app).with_hub(&hub).bind("127.0.0.1:9001")?.run()
    /// # }
    /// ```
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a hub without a server is no usual value")]
    pub fn new() -> Self {
        let later = Later { shards: OnceLock::new(), none: Remote::of_no_shard() };
        Self { reach: Reach::Later(Arc::new(later)) }
    }

    /// Creates the hub of a server.
    pub(crate) fn of(remote: Remote) -> Self {
        Self { reach: Reach::Shards(remote) }
    }

    /// Connects a hub that was made before its server. Returns false if it is already connected.
    pub(crate) fn connect(&self, remote: &Remote) -> bool {
        match &self.reach {
            Reach::Shards(_) => false,
            Reach::Later(later) => later.shards.set(remote.clone()).is_ok(),
        }
    }

    pub(crate) fn remote(&self) -> &Remote {
        match &self.reach {
            Reach::Shards(remote) => remote,
            Reach::Later(later) => later.shards.get().unwrap_or(&later.none),
        }
    }

    /// Sends a message to every member of a channel, in one order: all members, on all shards, get
    /// the publications of hubs and [`Socket::publish`](crate::Socket::publish) in the same order.
    /// A publication costs one command for each shard that has members at this moment, for any
    /// number of members.
    ///
    /// # Errors
    /// A shard's queue is full. Members on the other shards get the message, and the error has the
    /// receipt.
    pub fn publish(&self, channel: &str, message: impl Into<Frame>) -> Result<Receipt, QueueFull> {
        self.remote().publish(channel, &message.into(), None)
    }

    /// Publishes several messages like [`publish`](Self::publish), one after another: other
    /// publications come before or after all of them. It costs one command for each shard that has
    /// members, for any number of messages. In channels with history, and in channels of a cluster,
    /// it costs one command for each message, and other publications may come in between. The
    /// receipt has the counts of all messages.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn f(hub: &Hub, trades: &[String]) {
    /// let _ = hub.publish_all("trades", trades);
    /// # }
    /// ```
    ///
    /// # Errors
    /// A shard's queue is full. Members on the other shards get the messages, and the error has the
    /// receipt. In a channel with history, all members get the messages before the failed one.
    pub fn publish_all<M: Into<Frame>>(
        &self,
        channel: &str,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Receipt, QueueFull> {
        self.remote().publish_all(channel, messages.into_iter().map(Into::into).collect())
    }

    /// Publishes a message like [`publish`](Self::publish), and waits at most `timeout` for space
    /// in the shards' queues; while it waits, other publications may come first. Do not call it in
    /// callbacks: their shard would wait for itself.
    ///
    /// # Errors
    /// A shard's queue had no space in time. Members on the other shards get the message.
    pub fn publish_timeout(
        &self,
        channel: &str,
        message: impl Into<Frame>,
        timeout: Duration,
    ) -> Result<Receipt, QueueFull> {
        let deadline = Instant::now().checked_add(timeout);
        self.remote().publish_by(channel, &message.into(), None, deadline)
    }

    /// Sends a message to every session and every event stream. It costs one command per shard, and
    /// is encoded once. Pass a `&`[`Frame`] to send one message several times.
    ///
    /// # Errors
    /// A shard's queue is full. Receivers on the other shards get the message.
    pub fn broadcast(&self, message: impl Into<Frame>) -> Result<Receipt, QueueFull> {
        self.broadcast_to(&Filter::new(), message)
    }

    /// Sends a message to every session and event stream that `filter` selects.
    ///
    /// # Errors
    /// As for [`Hub::broadcast`].
    pub fn broadcast_to(
        &self,
        filter: &Filter,
        message: impl Into<Frame>,
    ) -> Result<Receipt, QueueFull> {
        self.remote().broadcast(filter.inner(), &message.into())
    }

    /// Returns the number of subscriptions to exactly this channel, or pattern, on all shards at
    /// this moment. Event streams count, and a session that is being closed counts until it has
    /// ended.
    #[must_use]
    pub fn subscribers(&self, channel: &str) -> usize {
        self.remote().totals().count(channel)
    }

    /// Returns the channels and patterns that have subscribers, with their numbers, in no order.
    #[must_use]
    pub fn channels(&self) -> Vec<ChannelSize> {
        let channels = self.remote().totals().list().into_iter();
        channels.map(|(name, members)| ChannelSize { name, members }).collect()
    }

    /// Returns whether a channel has a history
    /// ([`Channels::history`](crate::channel::Channels::history)).
    #[must_use]
    pub fn has_history(&self, channel: &str) -> bool {
        self.remote().history_of(channel).is_some()
    }

    /// Returns up to `most` of the last publications in a channel's history; `None` if the channel
    /// has no history, or belongs to a cluster and has no members on this server, which therefore
    /// does not follow it.
    #[must_use]
    pub fn history(&self, channel: &str, most: usize) -> Option<HistoryPage> {
        let (position, publications) = self.remote().history(channel, most)?;
        Some(HistoryPage { position, publications })
    }

    /// Returns up to `most` members of a channel with presence on this server, in the order of
    /// their handles; `None` if the channel has no presence
    /// ([`Channels::presence`](crate::channel::Channels::presence)). `ClusterHub::presence` (with
    /// the feature `redis`) lists the members of all servers.
    ///
    /// A member that asks after it has joined, and then gets joins and leaves, knows all members: a
    /// change that is not in the answer comes after it.
    #[must_use]
    pub fn presence(&self, channel: &str, most: usize) -> Option<Vec<Present>> {
        let present = self.remote().presence(channel, most)?;
        let of = |present: throng_engine::Present| Present {
            handle: Handle::of(present.client),
            info: present.info,
        };
        Some(present.into_iter().map(of).collect())
    }

    /// Sends a message to one connection. The receipt has the outcome after the connection's shard
    /// has processed the message: without receivers, the connection has ended.
    ///
    /// # Errors
    /// The queue of the connection's shard is full.
    pub fn send(&self, to: Handle, message: impl Into<Frame>) -> Result<Receipt, QueueFull> {
        self.remote().send(to.id(), &message.into())
    }

    /// Begins the closing handshake with one connection; nothing happens if it has ended. See
    /// [`Socket::close`](crate::Socket::close).
    ///
    /// # Errors
    /// The queue of the connection's shard is full.
    pub fn close(
        &self,
        to: Handle,
        code: impl Into<CloseCode>,
        reason: &str,
    ) -> Result<(), QueueFull> {
        self.remote().close(to.id(), code.into().get(), reason)
    }

    /// Removes the sessions that `filter` selects from a channel, as
    /// [`Socket::unsubscribe`](crate::Socket::unsubscribe), and ends the event streams of that
    /// channel that the filter selects. Sessions may subscribe again. The receipt counts all
    /// selected receivers as delivered.
    ///
    /// # Errors
    /// A shard's queue is full. Sessions on the other shards are removed.
    pub fn unsubscribe(&self, filter: &Filter, channel: &str) -> Result<Receipt, QueueFull> {
        self.notify(filter, SessionNotice::Unsubscribe(channel.into()))
    }

    /// Sends [`SessionEvent::Refresh`](crate::SessionEvent::Refresh) to the sessions that `filter`
    /// selects, which look up their rights again. The receipt counts all selected receivers as
    /// delivered; event streams ignore it.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn rights_of(user: &str) -> bool { user == "ann" }
    /// let chat = Ws::from_request(|request| Ok(request.query("user").unwrap_or("").to_owned()))
    ///     .on_refresh(|ws, user, _| {
    ///         if !rights_of(user) {
    ///             ws.close(CloseCode::POLICY_VIOLATION, "no longer allowed");
    ///         }
    ///     });
    /// # let _ = App::new().ws("/", chat);
    /// # fn changed(hub: &Hub) -> Result<(), Box<dyn std::error::Error>> {
    /// // Each session has subscribed to a channel of its user's own.
    /// hub.refresh(&Filter::new().channel("user.ann"), "")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The data has more than 65,535 bytes, or a shard's queue is full: sessions on the other
    /// shards are called then.
    pub fn refresh(
        &self,
        filter: &Filter,
        data: impl AsRef<[u8]>,
    ) -> Result<Receipt, RefreshError> {
        let data = data.as_ref();
        if data.len() > MAX_REFRESH {
            return Err(RefreshError::TooLong);
        }
        Ok(self.notify(filter, SessionNotice::Refresh(data.into()))?)
    }

    fn notify(&self, filter: &Filter, notice: SessionNotice) -> Result<Receipt, QueueFull> {
        self.remote().notify_all(filter.inner(), &notice.into())
    }

    /// Begins the closing handshake with every session that `filter` selects, and ends the event
    /// streams that the filter selects. The receipt counts them as delivered, and sessions that
    /// were already closing as closed.
    ///
    /// # Errors
    /// A shard's queue is full. Sessions on the other shards are closed.
    pub fn close_all(
        &self,
        filter: &Filter,
        code: impl Into<CloseCode>,
        reason: &str,
    ) -> Result<Receipt, QueueFull> {
        self.remote().close_all(filter.inner(), code.into().get(), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_a_refresh_is_bounded_and_counts_in_queues() {
        let refresh = |bytes| Hub::new().refresh(&Filter::new(), vec![0; bytes]);
        assert!(refresh(MAX_REFRESH).is_ok());
        let error = refresh(MAX_REFRESH + 1).unwrap_err();
        assert!(matches!(error, RefreshError::TooLong));
        assert_eq!(error.to_string(), "the data of a refresh has 65535 bytes at most");
        assert_eq!(Notice::from(SessionNotice::Refresh(vec![0; 9].into())).bytes, 9);
        assert_eq!(Notice::from(SessionNotice::Unsubscribe("chat".into())).bytes, 4);
    }
}
