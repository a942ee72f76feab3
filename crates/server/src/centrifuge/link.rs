//! A session's connection and channels.

use std::collections::{BTreeMap, HashSet};

use throng_centrifuge::command::{HistoryRequest, StreamPosition};
use throng_centrifuge::reply::{
    ClientInfo, Empty, HistoryResult, PresenceResult, PresenceStatsResult, Publication, Reply,
};
use throng_centrifuge::{
    Attempt, Counting, Disconnect, Encoding, ErrorCode, FoundPlace, Host, Joined, Limits, info,
};
use throng_engine::{About, Frame, Message, Position, Receipt, Recovery, Since};

use super::dialect::{client, node_of, publication};
use super::disconnect;
use super::later::reply_later;
use crate::ws::Socket;

/// Bytes of replies that are sent together.
const FULL: usize = 32 << 10;

/// Maximum clients that presence lists and counts by user.
const MOST_CLIENTS: usize = 1_000;

/// The connection of a session, and the channels of its server.
pub(super) struct Link<'l, 's, D> {
    ws: &'l mut Socket<'s, D>,
    encoding: Encoding,
    limits: &'l Limits,
    /// Replies that are not sent yet.
    out: Vec<u8>,
}

impl<'l, 's, D: Send + 'static> Link<'l, 's, D> {
    pub(super) fn new(ws: &'l mut Socket<'s, D>, encoding: Encoding, limits: &'l Limits) -> Self {
        Self { ws, encoding, limits, out: Vec::new() }
    }

    pub(super) fn limits(&self) -> &'l Limits {
        self.limits
    }

    /// Returns whether the replies must be sent before more are made.
    pub(super) fn is_full(&self) -> bool {
        self.out.len() >= FULL
    }

    /// Sends the replies; returns whether the session continues.
    pub(super) fn flush(&mut self) -> bool {
        if !self.out.is_empty() {
            let out = std::mem::take(&mut self.out);
            match (self.encoding, std::str::from_utf8(&out)) {
                (Encoding::Json, Ok(text)) => self.ws.send(Message::Text(text)),
                _ => self.ws.send(Message::Binary(&out)),
            };
        }
        self.ws.cx().is_open()
    }

    /// Sends the replies, and closes the connection.
    pub(super) fn end(mut self, reason: Disconnect) {
        self.flush();
        disconnect(self.ws, reason);
    }

    /// Replies to a publication that a cluster carries when the cluster has taken it.
    fn acknowledge_later(&mut self, id: u32, receipt: Receipt) {
        let replying = async move {
            let failed = receipt.clone();
            let _ = receipt.await;
            match failed.is_refused() || failed.is_unknown() {
                true => Reply::failed(id, ErrorCode::Internal),
                false => Reply { id, publish: Some(Empty {}), ..Reply::default() },
            }
        };
        reply_later(self.ws, self.encoding, Box::pin(replying));
    }

    fn has_cluster(&self) -> bool {
        self.ws.cx().core_ref().remote().broker().is_some()
    }

    /// Looks up presence of all servers, if a cluster has the channel.
    #[cfg(feature = "redis")]
    fn presence_later(&mut self, id: u32, channel: &str, counting: Counting) -> bool {
        let cluster = self.ws.hub().cluster();
        let asked = cluster.and_then(|cluster| cluster.presence(channel, MOST_CLIENTS));
        let Some(asked) = asked else { return false };
        let replying = async move {
            let Ok(presence) = asked.await else { return Reply::failed(id, ErrorCode::Internal) };
            let clients = presence.clients.iter();
            let clients = clients.map(|one| info::decode(one.handle.to_string(), &one.info));
            present(id, presence.total, clients, counting)
        };
        self.flush();
        reply_later(self.ws, self.encoding, Box::pin(replying));
        true
    }

    #[cfg(not(feature = "redis"))]
    fn presence_later(&mut self, _: u32, _: &str, _: Counting) -> bool {
        false
    }
}

impl<D: Send + 'static> Host for Link<'_, '_, D> {
    fn reply(&mut self, reply: &Reply) {
        self.encoding.encode(reply, &mut self.out);
    }

    fn ping(&mut self) {
        self.encoding.encode_ping(&mut self.out);
    }

    fn join(&mut self, channel: &str, info: &str, since: Option<&StreamPosition>) -> Joined {
        let remote = self.ws.cx().core_ref().remote();
        let is_carried = remote.broker().is_some_and(|broker| broker.carries(channel));
        let since = since.map_or(Since::Now, |since| {
            let position = position(since, is_carried);
            position.map_or(Since::Now, Since::Position)
        });
        let recovery = self.ws.subscribe_as(channel, info, since);
        match (recovery.joined, recovery.pending) {
            (true, true) => Joined::Later,
            (true, false) => Joined::At(place_of(recovery, self.limits)),
            (false, _) => Joined::Failed(ErrorCode::Internal),
        }
    }

    fn leave(&mut self, channel: &str) {
        self.ws.unsubscribe(channel);
    }

    fn publish(&mut self, id: u32, channel: &str, data: &[u8], by: &ClientInfo) -> Attempt<()> {
        // Its own publications come behind the replies to its earlier commands.
        self.flush();
        let message = match std::str::from_utf8(data) {
            Ok(text) => Frame::text(text),
            Err(_) => Frame::binary(data),
        };
        let by = serde_json::to_string(by).unwrap_or_default();
        let message = message.with_about(About::Publisher(by.into()));
        let receipt = self.ws.publish(channel, message);
        if receipt.is_refused() {
            return Attempt::Failed(ErrorCode::Internal);
        }
        if self.has_cluster() {
            self.acknowledge_later(id, receipt);
            return Attempt::Later;
        }
        Attempt::Done(())
    }

    fn presence(&mut self, id: u32, channel: &str, counting: Counting) -> Attempt<Reply> {
        if self.presence_later(id, channel, counting) {
            return Attempt::Later;
        }
        let hub = self.ws.hub();
        let Some(members) = hub.presence(channel, MOST_CLIENTS) else {
            return Attempt::Failed(ErrorCode::NotAvailable);
        };
        let node = node_of(self.ws);
        let clients = members.iter();
        let clients =
            clients.map(|one| info::decode(client(node, one.handle.to_bits()), &one.info));
        let total = hub.remote().present(channel).unwrap_or_default();
        Attempt::Done(present(id, total, clients, counting))
    }

    fn history(&mut self, _: u32, request: &HistoryRequest) -> Attempt<HistoryResult> {
        let hub = self.ws.hub();
        let page = hub.history(&request.channel, usize::MAX);
        let Some(page) = page else { return Attempt::Failed(ErrorCode::NotAvailable) };
        let (offset, epoch) = (page.position.to_number(), epoch(page.position.epoch));
        let since = request.since.as_ref();
        if since.is_some_and(|since| since.epoch != epoch || since.offset > offset) {
            return Attempt::Failed(ErrorCode::UnrecoverablePosition);
        }
        let mut all: Vec<_> = page.publications.iter().collect();
        if let Some(since) = since {
            all.retain(|one| match request.reverse {
                true => one.position().to_number() < since.offset,
                false => one.position().to_number() > since.offset,
            });
        }
        if request.reverse {
            all.reverse();
        }
        let limit = usize::try_from(request.limit).unwrap_or_default();
        let publications = up_to(all.into_iter().take(limit), self.limits).0;
        Attempt::Done(HistoryResult { publications, epoch, offset })
    }
}

/// Returns the reply to a question about presence.
fn present(
    id: u32,
    total: usize,
    clients: impl Iterator<Item = ClientInfo>,
    counting: Counting,
) -> Reply {
    match counting {
        Counting::Clients => {
            let of = |info: ClientInfo| (info.client.clone(), info);
            let presence: BTreeMap<_, _> = clients.map(of).collect();
            Reply { id, presence: Some(PresenceResult { presence }), ..Reply::default() }
        }
        Counting::Numbers => {
            let users: HashSet<_> = clients.map(|info| info.user).collect();
            let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            let (num_clients, num_users) = (number(total), number(users.len()));
            let presence_stats = Some(PresenceStatsResult { num_clients, num_users });
            Reply { id, presence_stats, ..Reply::default() }
        }
    }
}

/// Returns as many publications as a reply may have, and whether these are all.
fn up_to<'p>(
    all: impl Iterator<Item = &'p throng_engine::Publication>,
    limits: &Limits,
) -> (Vec<Publication>, bool) {
    let (mut publications, mut bytes) = (Vec::new(), 0);
    for one in all {
        bytes += one.frame().payload().len();
        if publications.len() == limits.max_publications || bytes > limits.max_publication_bytes {
            return (publications, false);
        }
        publications.push(publication(one.frame(), Some(one.position().to_number())));
    }
    (publications, true)
}

/// Returns the place at which a session joins a channel.
pub(super) fn place_of(recovery: Recovery, limits: &Limits) -> FoundPlace {
    let Some(position) = recovery.position else { return FoundPlace::default() };
    let (publications, are_all) = up_to(recovery.missed.iter(), limits);
    let position = StreamPosition { offset: position.to_number(), epoch: epoch(position.epoch) };
    let recovered = recovery.recovered && are_all;
    FoundPlace { position: Some(position), recovered, publications }
}

/// Returns an epoch as clients keep it.
fn epoch(epoch: u64) -> String {
    format!("{epoch:016x}")
}

/// Returns the position that a client gives; `None`: it can be in no sequence.
fn position(since: &StreamPosition, is_carried: bool) -> Option<Position> {
    let epoch =
        u64::from_str_radix(&since.epoch, 16).ok().filter(|of| epoch(*of) == since.epoch)?;
    Some(Position::from_number(epoch, since.offset, is_carried))
}
