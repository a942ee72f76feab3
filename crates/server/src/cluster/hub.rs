//! Access to connections and channels of all servers of a cluster.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use throng_cluster::redis::AskError as ClusterError;
use throng_cluster::redis::{
    Counted, Health, Recipients, Reply, Surveyed, block_on, is_thread_of_a_node,
};
use throng_cluster::{Control, NodeCommand, Target};
use throng_engine::{CloseCode, Frame, Relay};

use super::relay::ClusterRelay;
use crate::filter::Filter;
use crate::handle::Handle;
use crate::hub::Hub;

/// Reaches the servers of a cluster from any thread; [`Hub::cluster`] returns it. Clone it freely.
#[derive(Clone, Debug)]
pub struct ClusterHub {
    hub: Hub,
    relay: Arc<ClusterRelay>,
}

/// The identifier of a connection of any server of a cluster.
///
/// Its text has 32 hexadecimal digits: the number of the server, which changes at each start, and
/// the [`Handle`] there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterHandle {
    node: u64,
    handle: Handle,
}

impl ClusterHandle {
    /// Creates an identifier from the number of a server and a handle there.
    #[must_use]
    pub fn new(node: u64, handle: Handle) -> Self {
        Self { node, handle }
    }

    /// Returns the number of the server.
    #[must_use]
    pub fn node(self) -> u64 {
        self.node
    }

    /// Returns the handle, which is valid only on that server.
    #[must_use]
    pub fn handle(self) -> Handle {
        self.handle
    }
}

impl fmt::Display for ClusterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{}", self.node, self.handle)
    }
}

/// Error for a text that is not a valid [`ClusterHandle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterHandleError;

impl fmt::Display for ClusterHandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a client of a cluster is 32 hexadecimal digits, as its presence lists it")
    }
}

impl std::error::Error for ClusterHandleError {}

impl FromStr for ClusterHandle {
    type Err = ClusterHandleError;

    fn from_str(text: &str) -> Result<Self, ClusterHandleError> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = |digits| u64::from_str_radix(digits, 16).map_err(|_| ClusterHandleError);
        if !is_hex {
            return Err(ClusterHandleError);
        }
        let (node, handle) = text.split_at(16);
        Ok(Self { node: number(node)?, handle: Handle::from_bits(number(handle)?) })
    }
}

/// A member of a channel with presence on any server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterPresent {
    /// The connection.
    pub handle: ClusterHandle,
    /// The information given when the member joined, as
    /// [`Present::info`](crate::channel::Present::info).
    pub info: Arc<str>,
}

/// The members of a channel on all servers of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterPresence {
    /// The number of members.
    pub total: usize,
    /// The members that are listed, in the order of their identifiers.
    pub clients: Vec<ClusterPresent>,
}

/// The subscriptions to a channel, or the receivers of a broadcast, on all servers of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterCount {
    /// Members, or the receivers of a broadcast, on all servers that have answered.
    pub total: usize,
    /// Numbers of the servers that have not answered in time, in order.
    pub missing: Vec<u64>,
}

/// The answers of all servers of a cluster to a question from the program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterSurvey {
    /// The numbers of the servers that have answered, in order, with their answers.
    pub answers: Vec<(u64, Vec<u8>)>,
    /// Numbers of the servers that have not answered in time, in order.
    pub missing: Vec<u64>,
}

type ReplyFuture<T> = Pin<Box<dyn Future<Output = Result<T, ClusterError>> + Send>>;

/// The pending answer of a cluster: a future, for any runtime. It completes within some seconds,
/// with an answer or an error.
#[must_use = "an answer is there when it was waited for"]
pub struct ClusterReply<T>(ReplyFuture<T>);

impl<T> fmt::Debug for ClusterReply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterReply")
    }
}

impl<T> Future for ClusterReply<T> {
    type Output = Result<T, ClusterError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<T> ClusterReply<T> {
    /// Waits for the answer on this thread. Do not call it in callbacks, which would block their
    /// shard: use [`Socket::offload`](crate::Socket::offload) there.
    ///
    /// # Errors
    /// The cluster does not answer, too many questions already wait, or this is the cluster's own
    /// thread, as in the function of [`Cluster::answer`](crate::cluster::Cluster::answer): that
    /// thread would wait for itself.
    pub fn wait(self) -> Result<T, ClusterError> {
        if is_thread_of_a_node() {
            return Err(ClusterError::OwnThread);
        }
        block_on(self)
    }
}

async fn count(reply: Reply<Counted>) -> Result<ClusterCount, ClusterError> {
    let Counted { total, missing, .. } = reply.await?;
    Ok(ClusterCount { total: usize::try_from(total).unwrap_or(usize::MAX), missing })
}

impl Hub {
    /// Returns access to the other servers of the cluster; `None` if this server is not in a
    /// cluster ([`Server::cluster`](crate::Server::cluster)).
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterHub> {
        ClusterHub::of(self)
    }
}

impl ClusterHub {
    pub(crate) fn of(hub: &Hub) -> Option<Self> {
        let broker: Arc<dyn Any + Send + Sync> = Arc::clone(hub.remote().broker()?) as _;
        Some(Self { hub: hub.clone(), relay: broker.downcast().ok()? })
    }

    /// Returns the number of this server in the cluster.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.relay.node
    }

    /// Returns for how long the broker has delivered nothing, and why; `None` while it delivers.
    /// With several servers, or partitions of a Redis Cluster, it is the longest outage, with the
    /// server or the number of partitions concerned: channels of the other servers or partitions
    /// are delivered.
    #[must_use]
    pub fn down(&self) -> Option<(Duration, String)> {
        self.relay.bus.status().down()
    }

    /// Returns the numbers of live servers with different rules for channels, as 16 hexadecimal
    /// digits: channels have a history there and not here, or another history, end at their server,
    /// or have other presence or another [`WhileDown`](crate::cluster::WhileDown). The list may be
    /// incomplete if there are many. Such servers are normal while the rules of one server after
    /// the other change; until then, members of channels still get all messages.
    #[must_use]
    pub fn differing(&self) -> Vec<String> {
        self.relay.bus.status().differing()
    }

    /// Returns how long a part of the broker has delivered nothing or accepted no publications, and
    /// why, with its address; `None` if the broker works.
    #[must_use]
    pub fn trouble(&self) -> Option<(Duration, String)> {
        match self.relay.bus.status().health() {
            Health::Up => None,
            Health::Degraded(time, why) | Health::Unlinked(time, why) => Some((time, why)),
        }
    }

    /// Returns the number of this server's publications that were refused, or waited for the broker
    /// for too long: no member has received them.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.relay.bus.status().snapshot().refused
    }

    /// Returns the number of this server's publications that were sent to the broker without an
    /// answer: members may or may not have received them.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.relay.bus.status().snapshot().unknown
    }

    /// Returns the broker's error for the last publications that it has refused, or that failed
    /// while it executed them, with the names of their keys; `None` if it has refused none, or if
    /// the last ones were lost without an answer.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.relay.bus.status().refusal()
    }

    /// Returns the number of times so far that members of a channel without history, on this
    /// server, may have missed messages: the broker did not deliver for a moment. They get a
    /// [`SessionEvent::Missed`](crate::ws::SessionEvent::Missed).
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.relay.bus.status().snapshot().gaps
    }

    /// Asks for up to `most` members of a channel with presence on all servers, of other servers at
    /// most 10,000 and 1 MiB; `None` if the channel has no presence, or only members on this
    /// server: then [`Hub::presence`] lists all of them. If there are more members, the answer has
    /// an arbitrary selection of them.
    ///
    /// Members of a server that has ended without notice are listed until they time out, some 10
    /// seconds later. A member that asks after it has joined, and then gets joins and leaves, knows
    /// all members: a change that is not in the answer comes after it.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// let chat = Ws::new().on_open(|ws, ()| {
    ///     let _ = ws.subscribe_as("chat.lobby", "ann", None);
    ///     let Some(asked) = ws.hub().cluster().and_then(|all| all.presence("chat.lobby", 1000))
    ///     else { return };
    ///     ws.offload(move || asked.wait(), |ws, (), here| {
    ///         if let Ok(here) = here {
    ///             ws.send(format!("{} are here", here.total));
    ///         }
    ///     });
    /// });
    /// # let _ = App::new().ws("/", chat);
    /// ```
    pub fn presence(&self, channel: &str, most: usize) -> Option<ClusterReply<ClusterPresence>> {
        self.hub.remote().present(channel)?;
        if !self.relay.carries(channel) {
            return None;
        }
        let channel: Arc<str> = channel.into();
        let others = self.relay.bus.presence(Arc::clone(&channel), most);
        let this = self.clone();
        Some(ClusterReply(Box::pin(async move {
            let others = others.await?;
            let own = this.hub.presence(&channel, most).unwrap_or_default();
            // Members join and leave during this, so the length of a whole list is used and not
            // another question.
            let own_total = match own.len() < most {
                true => own.len(),
                false => this.hub.remote().present(&channel).unwrap_or_default().max(most),
            };
            let own = own.into_iter().map(|present| (this.node(), present.handle, present.info));
            let of = |(node, handle, info)| {
                let handle = ClusterHandle { node, handle };
                ClusterPresent { handle, info }
            };
            let mut clients: Vec<_> = own.map(of).collect();
            let others_here = others.members.into_iter();
            clients
                .extend(others_here.map(|member| {
                    of((member.node, Handle::from_bits(member.client), member.info))
                }));
            clients.sort_unstable_by_key(|client| client.handle);
            clients.truncate(most);
            let total = own_total + usize::try_from(others.total).unwrap_or(usize::MAX);
            Ok(ClusterPresence { total, clients })
        })))
    }

    /// Begins the closing handshake with one connection of any server, as [`Hub::close`]; nothing
    /// happens if it has ended. The answer is whether its server was reached; the caller need not
    /// wait for it.
    ///
    /// # Errors
    /// (Of the answer.) The cluster is away: the command is lost.
    pub fn close(
        &self,
        to: ClusterHandle,
        code: impl Into<CloseCode>,
        reason: &str,
    ) -> ClusterReply<bool> {
        let code = code.into();
        self.control_one(to, NodeCommand::Close { code: code.get(), reason }, |hub, _| {
            hub.close(to.handle, code, reason).is_ok()
        })
    }

    /// Begins the closing handshake with every session that a publish to this channel would reach,
    /// on all servers, and ends event streams of the channel, as [`Hub::close_all`]. To disconnect
    /// a user, have each of its connections subscribe to a channel of that user. The answer is the
    /// number of servers that were reached, this server included; the caller need not wait for it.
    /// In a Redis Cluster this reaches the servers that use the channel's partition, which includes
    /// all servers with members.
    ///
    /// # Errors
    /// (Of the answer.) The cluster is away: the command is lost, also on this server.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn ban(hub: &Hub) {
    /// if let Some(cluster) = hub.cluster() {
    ///     let _ = cluster.close_members("user.ann", 4001, "signed out");
    /// }
    /// # }
    /// ```
    pub fn close_members(
        &self,
        channel: &str,
        code: impl Into<CloseCode>,
        reason: &str,
    ) -> ClusterReply<usize> {
        self.control_members(channel, NodeCommand::Close { code: code.into().get(), reason })
    }

    /// Removes one connection of any server from a channel, as [`Hub::unsubscribe`]. The answer is
    /// whether its server was reached; the caller need not wait for it.
    ///
    /// # Errors
    /// (Of the answer.) The cluster is away: the command is lost. Or the name of the channel has
    /// more than 65,535 bytes.
    pub fn unsubscribe(&self, from: ClusterHandle, channel: &str) -> ClusterReply<bool> {
        self.control_one(from, NodeCommand::Unsubscribe { channel }, |hub, filter| {
            hub.unsubscribe(filter, channel).is_ok()
        })
    }

    /// Removes all members of one channel, on all servers, from another channel, as
    /// [`Hub::unsubscribe`]: for a user whose connections share a channel. The answer is the number
    /// of servers that were reached, this server included; the caller need not wait for it.
    ///
    /// # Errors
    /// (Of the answer.) The cluster is away: the command is lost, also on this server. Or a name
    /// has more than 65,535 bytes.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn expel(hub: &Hub) {
    /// if let Some(cluster) = hub.cluster() {
    ///     let _ = cluster.unsubscribe_members("user.ann", "chat.lobby");
    /// }
    /// # }
    /// ```
    pub fn unsubscribe_members(&self, members_of: &str, channel: &str) -> ClusterReply<usize> {
        self.control_members(members_of, NodeCommand::Unsubscribe { channel })
    }

    /// Sends [`SessionEvent::Refresh`](crate::SessionEvent::Refresh) to one session of any server,
    /// as [`Hub::refresh`] does, with at most 65,535 bytes of data. The answer is whether its
    /// server was reached; the caller need not wait for it.
    ///
    /// # Errors
    /// (Of the answer.) The cluster is away: the command is lost. Or there are more bytes.
    pub fn refresh(&self, of: ClusterHandle, data: impl AsRef<[u8]>) -> ClusterReply<bool> {
        let data = data.as_ref();
        self.control_one(of, NodeCommand::Refresh { data }, |hub, filter| {
            hub.refresh(filter, data).is_ok()
        })
    }

    /// Sends [`SessionEvent::Refresh`](crate::SessionEvent::Refresh) to all members of a channel on
    /// all servers, as [`Hub::refresh`] does, with at most 65,535 bytes of data: for a user whose
    /// rights have changed, and whose connections share a channel. The answer is the number of
    /// servers that were reached, this server included; the caller need not wait for it. A session
    /// whose server is disconnected at that moment does not get the event: so also look up rights
    /// from time to time.
    ///
    /// # Errors
    /// (Of the answer.) The cluster is away: the command is lost, also on this server. Or there are
    /// more bytes.
    pub fn refresh_members(&self, members_of: &str, data: impl AsRef<[u8]>) -> ClusterReply<usize> {
        self.control_members(members_of, NodeCommand::Refresh { data: data.as_ref() })
    }

    /// Asks all servers, this server included, a question from the program, of at most 64 KiB,
    /// which the function of [`Cluster::answer`](crate::cluster::Cluster::answer) answers. Servers
    /// that do not answer within `limit`, at most 5 seconds, are listed in
    /// [`ClusterSurvey::missing`] and do not cause an error; the same applies to servers whose
    /// answers do not fit in 4 MiB.
    ///
    /// # Errors
    /// (Of the answer.) The cluster is away, so that other servers are unknown, or the question is
    /// longer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throng::prelude::*;
    /// # fn ask(hub: &Hub) -> Result<(), throng::cluster::ClusterError> {
    /// if let Some(cluster) = hub.cluster() {
    ///     let survey = cluster.survey("channels", Duration::from_secs(1)).wait()?;
    ///     for (server, answer) in survey.answers {
    ///         println!("{server:016x}: {} channels", String::from_utf8_lossy(&answer));
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn survey(
        &self,
        question: impl AsRef<[u8]>,
        limit: Duration,
    ) -> ClusterReply<ClusterSurvey> {
        let reply = self.relay.bus.survey(question.as_ref(), limit);
        ClusterReply(Box::pin(async move {
            let Surveyed { answers, missing, .. } = reply.await?;
            Ok(ClusterSurvey { answers, missing })
        }))
    }

    /// Asks all servers for the number of their subscriptions to exactly this channel, as
    /// [`Hub::subscribers`]. Servers that do not answer within `limit`, at most 5 seconds, are
    /// listed in [`ClusterCount::missing`] and do not cause an error: a killed server is listed for
    /// some 10 seconds.
    ///
    /// # Errors
    /// (Of the answer.) The cluster is away, so that other servers are unknown.
    pub fn subscribers(&self, channel: &str, limit: Duration) -> ClusterReply<ClusterCount> {
        ClusterReply(Box::pin(count(self.relay.bus.count(channel.into(), limit))))
    }

    /// Sends a message to every session and every event stream of all servers, as
    /// [`Hub::broadcast`] does on one server, and counts the receivers that it was queued for. It
    /// is sent at most once: servers that do not answer within `limit`, at most 5 seconds, are
    /// listed in [`ClusterCount::missing`] and do not cause an error. They may be cut off from the
    /// cluster, or have a shard whose queue is full, and their receivers may or may not get it.
    ///
    /// # Errors
    /// (Of the answer.) [`ClusterError::Busy`] since too many questions wait, or the message has
    /// more than about 1 MiB: it is not sent. Any other error, for example while the cluster is
    /// away: it may not be sent, also on this server.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throng::prelude::*;
    /// # fn announce(hub: &Hub) -> Result<(), throng::cluster::ClusterError> {
    /// if let Some(cluster) = hub.cluster() {
    ///     let count = cluster.broadcast("back at noon", Duration::from_secs(1)).wait()?;
    ///     println!("{} clients, {} servers have not counted", count.total, count.missing.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn broadcast(
        &self,
        message: impl Into<Frame>,
        limit: Duration,
    ) -> ClusterReply<ClusterCount> {
        let envelope = self.relay.envelope(&message.into(), None);
        ClusterReply(Box::pin(count(self.relay.bus.broadcast(envelope, limit))))
    }

    /// Publishes a message as [`Hub::publish`], and counts the subscriptions to its channel on all
    /// servers: each server counts when the message arrives there. Servers that do not answer
    /// within `limit`, at most 5 seconds, are listed in [`ClusterCount::missing`] and do not cause
    /// an error. The count ignores the policies of slow subscribers.
    ///
    /// In a channel of local scope the count is the number of subscriptions on this server.
    ///
    /// # Errors
    /// (Of the answer.) [`ClusterError::Refused`], or [`ClusterError::Busy`] since too many
    /// questions wait: it is not published. [`ClusterError::Unknown`]: it was sent, and may be
    /// published. Any other error: it is published, and not counted.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throng::prelude::*;
    /// # fn announce(hub: &Hub) -> Result<(), throng::cluster::ClusterError> {
    /// if let Some(cluster) = hub.cluster() {
    ///     let count = cluster.publish_counted("news", "hello", Duration::from_secs(1)).wait()?;
    ///     println!("{} receivers, {} servers have not counted", count.total, count.missing.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish_counted(
        &self,
        channel: &str,
        message: impl Into<Frame>,
        limit: Duration,
    ) -> ClusterReply<ClusterCount> {
        let message = message.into();
        let Some(outgoing) = self.relay.outgoing(channel, &message, None) else {
            let counted = match self.hub.publish(channel, &message) {
                Ok(_) => Ok(ClusterCount { total: self.hub.subscribers(channel), missing: vec![] }),
                Err(error) => Err(ClusterError::Failed(error.to_string())),
            };
            return ClusterReply(Box::pin(std::future::ready(counted)));
        };
        ClusterReply(Box::pin(count(self.relay.bus.publish_counted(outgoing, limit))))
    }

    /// Sends a command to a connection's server. If that is this server, calls `here` with a filter
    /// that selects the connection.
    fn control_one(
        &self,
        to: ClusterHandle,
        command: NodeCommand<'_>,
        here: impl FnOnce(&Hub, &Filter) -> bool,
    ) -> ClusterReply<bool> {
        let target = Target::Client(to.handle.to_bits());
        let control = Control { target, command };
        // A command that could not be encoded for another server is also refused here.
        if to.node == self.node() && control.encode().is_some() {
            let is_queued = here(&self.hub, &Filter::new().include([to.handle]));
            return ClusterReply(Box::pin(std::future::ready(Ok(is_queued))));
        }
        let reached = self.control(Recipients::Node(to.node), control);
        ClusterReply(Box::pin(async move { Ok(reached.await? > 0) }))
    }

    fn control_members(&self, channel: &str, command: NodeCommand<'_>) -> ClusterReply<usize> {
        let reached = self.control(
            Recipients::Of(channel),
            Control { target: Target::Members(channel), command },
        );
        ClusterReply(Box::pin(async move { Ok(usize::try_from(reached.await?).unwrap_or(0)) }))
    }

    fn control(&self, to: Recipients<'_>, control: Control<'_>) -> ReplyFuture<u64> {
        match control.encode() {
            Some(command) => Box::pin(self.relay.bus.control(to, command)),
            None => {
                let why = "a channel's name, and data, have 65,535 bytes at most".to_owned();
                Box::pin(std::future::ready(Err(ClusterError::Failed(why))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_read_as_it_is_written() {
        let handle = ClusterHandle::new(0xab, Handle::from_bits(0x40_0002));
        assert_eq!(handle.to_string(), "00000000000000ab0000000000400002");
        assert_eq!(handle.to_string().parse(), Ok(handle));
        for wrong in ["", "ab", "+0000000000000ab0000000000400002", &"ü".repeat(16)] {
            assert!(wrong.parse::<ClusterHandle>().is_err(), "{wrong}");
        }
    }
}
