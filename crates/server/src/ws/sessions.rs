//! The sessions of one route on one shard: where the engine's calls become callbacks of a handler.

use std::any::Any;
use std::sync::Arc;

use throng_engine::{Chunk, Close, Cx, Index, Message, Messages, Receive, Recovery, Slab};
use throng_http::{Reject, Request};

use super::Unpublished;
use super::decision::UpgradeLater;
use super::handler::Handler;
use super::offload::Continuation;
use super::socket::Socket;
use crate::accept::{Accept, AnyAccept, ResponseHeaders};
use crate::workers::RouteContext;

/// A handler as the shards call it: a [`Handler`], or one made of closures or futures.
pub(crate) trait Endpoint: Send + Sync + 'static {
    type Data: Send + 'static;

    fn on_upgrade(&self, request: &Request<'_>) -> Result<Accept<Self::Data>, Reject>;

    /// The decision on an upgrade, if it takes time.
    fn upgrade_later(&self) -> Option<UpgradeLater> {
        None
    }

    /// Whether sessions are placed by key.
    fn is_placed(&self) -> bool {
        false
    }

    /// Returns the hash of the key that a session with this data is placed by.
    fn key_of(&self, data: &(dyn Any + Send)) -> Option<u64> {
        let _ = data;
        None
    }

    /// Converts the data for the way to another shard; [`accepted`](Self::accepted) converts it
    /// back.
    fn pack(&self, data: Self::Data) -> Box<dyn Any + Send> {
        Box::new(data)
    }

    /// Converts the data that such a decision has made.
    fn accepted(&self, data: Box<dyn Any + Send>) -> Option<Self::Data> {
        let _ = data;
        None
    }

    fn on_open(&self, ws: &mut Socket<'_, Self::Data>);

    fn on_message(&self, ws: &mut Socket<'_, Self::Data>, message: Message<'_>);

    fn on_chunk(&self, ws: &mut Socket<'_, Self::Data>, chunk: Chunk<'_>);

    fn on_recovery(&self, ws: &mut Socket<'_, Self::Data>, channel: &str, recovery: Recovery);

    fn on_refresh(&self, ws: &mut Socket<'_, Self::Data>, data: &[u8]);

    fn on_unpublished(&self, ws: &mut Socket<'_, Self::Data>, lost: Unpublished);

    fn on_drained(&self, ws: &mut Socket<'_, Self::Data>);

    fn on_shutdown(&self, ws: &mut Socket<'_, Self::Data>);

    /// Whether futures process messages of this session, or are to.
    fn has_work(&self, ws: &Socket<'_, Self::Data>) -> bool {
        let _ = ws;
        false
    }

    fn on_close(&self, ws: &mut Socket<'_, Self::Data>, close: Close<'_>);

    /// Continues after offloaded work. It is this route's continuation, since the session is.
    fn resume(&self, ws: &mut Socket<'_, Self::Data>, continuation: Box<dyn Any + Send>) {
        if let Ok(continuation) = continuation.downcast::<Continuation<Self::Data>>() {
            (continuation.0)(ws);
        }
    }
}

/// The hash of the key that a session with this data is placed by.
pub(crate) type KeyFn<D> = dyn Fn(&D) -> u64 + Send + Sync;

/// A user's [`Handler`].
pub(crate) struct Plain<H: Handler> {
    pub(crate) handler: H,
    pub(crate) key: Option<Box<KeyFn<H::Data>>>,
}

impl<H: Handler> Endpoint for Plain<H> {
    type Data = H::Data;

    fn on_upgrade(&self, request: &Request<'_>) -> Result<Accept<H::Data>, Reject> {
        self.handler.on_upgrade(request).map(Accept::new)
    }

    fn is_placed(&self) -> bool {
        self.key.is_some()
    }

    fn key_of(&self, data: &(dyn Any + Send)) -> Option<u64> {
        Some(self.key.as_ref()?(data.downcast_ref()?))
    }

    fn accepted(&self, data: Box<dyn Any + Send>) -> Option<H::Data> {
        data.downcast().ok().map(|data| *data)
    }

    fn on_open(&self, ws: &mut Socket<'_, H::Data>) {
        self.handler.on_open(ws);
    }

    #[inline]
    fn on_message(&self, ws: &mut Socket<'_, H::Data>, message: Message<'_>) {
        self.handler.on_message(ws, message);
    }

    fn on_chunk(&self, ws: &mut Socket<'_, H::Data>, chunk: Chunk<'_>) {
        self.handler.on_chunk(ws, chunk);
    }

    fn on_recovery(&self, ws: &mut Socket<'_, H::Data>, channel: &str, recovery: Recovery) {
        self.handler.on_recovery(ws, channel, recovery);
    }

    fn on_refresh(&self, ws: &mut Socket<'_, H::Data>, data: &[u8]) {
        self.handler.on_refresh(ws, data);
    }

    fn on_unpublished(&self, ws: &mut Socket<'_, H::Data>, lost: Unpublished) {
        self.handler.on_unpublished(ws, lost);
    }

    fn on_drained(&self, ws: &mut Socket<'_, H::Data>) {
        self.handler.on_drained(ws);
    }

    fn on_shutdown(&self, ws: &mut Socket<'_, H::Data>) {
        self.handler.on_shutdown(ws);
    }

    fn on_close(&self, ws: &mut Socket<'_, H::Data>, close: Close<'_>) {
        self.handler.on_close(ws, close);
    }
}

/// An upgrade that the handler has accepted.
pub(crate) enum Accepted {
    /// The number finds the connection's data again.
    Here(u32, ResponseHeaders),
    /// Sessions of the route are placed by key: this is its hash.
    Placed(u64, AnyAccept),
}

/// An [`Endpoint`] of any type.
pub(crate) trait AnyEndpoint: Send + Sync {
    /// The sessions of one shard, none at first.
    fn sessions(self: Arc<Self>, context: &Arc<RouteContext>) -> Box<dyn Sessions>;
}

impl<E: Endpoint> AnyEndpoint for E {
    fn sessions(self: Arc<Self>, context: &Arc<RouteContext>) -> Box<dyn Sessions> {
        let context = Arc::clone(context);
        Box::new(EndpointSessions { endpoint: self, data: Slab::default(), context })
    }
}

/// The sessions of one route on one shard, whatever their data is.
pub(crate) trait Sessions: Send {
    /// True for [`NoSessions`].
    fn is_none(&self) -> bool {
        false
    }

    /// Asks the handler to accept an upgrade.
    fn on_upgrade(&mut self, request: &Request<'_>) -> Result<Accepted, Reject>;

    /// Returns the hash of the key that this session is placed by, if it is.
    fn key_of(&self, accept: &AnyAccept) -> Option<u64>;

    /// The decision on an upgrade, if it takes time.
    fn upgrade_later(&self) -> Option<UpgradeLater>;

    /// Keeps the data of an upgrade that was decided on.
    fn insert(&mut self, accept: AnyAccept) -> Option<(u32, ResponseHeaders)>;

    fn on_open(&mut self, cx: Cx<'_>);

    /// The one indirect call of a read: the loop over its messages is compiled into the
    /// implementation.
    fn on_read(&mut self, messages: &mut Messages<'_, '_>);

    fn on_recovery(&mut self, cx: Cx<'_>, channel: &str, recovery: Recovery);

    fn on_refresh(&mut self, cx: Cx<'_>, data: &[u8]);

    fn on_unpublished(&mut self, cx: Cx<'_>, lost: Unpublished);

    fn on_drained(&mut self, cx: Cx<'_>);

    fn on_shutdown(&mut self, cx: Cx<'_>);

    /// Whether futures have work of this session.
    fn has_work(&mut self, cx: Cx<'_>) -> bool;

    fn resume(&mut self, cx: Cx<'_>, continuation: Box<dyn Any + Send>);

    /// The connection's data is dropped afterwards.
    fn on_close(&mut self, cx: Cx<'_>, close: Close<'_>);
}

/// Sessions of a route that has had none. A box of it takes no memory.
pub(crate) struct NoSessions;

impl Sessions for NoSessions {
    fn is_none(&self) -> bool {
        true
    }

    fn on_upgrade(&mut self, _: &Request<'_>) -> Result<Accepted, Reject> {
        Err(Reject::not_found())
    }

    fn key_of(&self, _: &AnyAccept) -> Option<u64> {
        None
    }

    fn upgrade_later(&self) -> Option<UpgradeLater> {
        None
    }

    fn insert(&mut self, _: AnyAccept) -> Option<(u32, ResponseHeaders)> {
        None
    }

    fn on_open(&mut self, _: Cx<'_>) {}

    fn on_read(&mut self, messages: &mut Messages<'_, '_>) {
        messages.discard();
    }

    fn on_recovery(&mut self, _: Cx<'_>, _: &str, _: Recovery) {}

    fn on_refresh(&mut self, _: Cx<'_>, _: &[u8]) {}

    fn on_unpublished(&mut self, _: Cx<'_>, _: Unpublished) {}

    fn on_drained(&mut self, _: Cx<'_>) {}

    fn on_shutdown(&mut self, _: Cx<'_>) {}

    fn has_work(&mut self, _: Cx<'_>) -> bool {
        false
    }

    fn resume(&mut self, _: Cx<'_>, _: Box<dyn Any + Send>) {}

    fn on_close(&mut self, _: Cx<'_>, _: Close<'_>) {}
}

struct EndpointSessions<E: Endpoint> {
    endpoint: Arc<E>,
    data: Slab<E::Data>,
    context: Arc<RouteContext>,
}

impl<E: Endpoint> EndpointSessions<E> {
    /// Calls the handler with the connection's socket. The data is always there: `on_upgrade`
    /// inserts it and `on_close` removes it.
    fn with_socket(&mut self, cx: Cx<'_>, call: impl FnOnce(&E, &mut Socket<'_, E::Data>)) {
        let index = Index::new(cx.data());
        if let Some(data) = index.and_then(|index| self.data.entry_mut(index)) {
            call(&self.endpoint, &mut Socket::new(cx, data, &self.context));
        }
    }
}

impl<E: Endpoint> Sessions for EndpointSessions<E> {
    fn on_upgrade(&mut self, request: &Request<'_>) -> Result<Accepted, Reject> {
        let accept = self.endpoint.on_upgrade(request)?;
        if self.endpoint.is_placed() {
            let accept = accept.map(|data| self.endpoint.pack(data));
            let key = self.key_of(&accept).unwrap_or_default();
            return Ok(Accepted::Placed(key, accept));
        }
        let (data, headers) = accept.into_parts();
        Ok(Accepted::Here(self.data.insert(data).get(), headers))
    }

    fn key_of(&self, accept: &AnyAccept) -> Option<u64> {
        self.endpoint.key_of(&**accept.data())
    }

    fn upgrade_later(&self) -> Option<UpgradeLater> {
        self.endpoint.upgrade_later()
    }

    fn insert(&mut self, accept: AnyAccept) -> Option<(u32, ResponseHeaders)> {
        let (data, headers) = accept.into_parts();
        Some((self.data.insert(self.endpoint.accepted(data)?).get(), headers))
    }

    fn on_open(&mut self, cx: Cx<'_>) {
        self.with_socket(cx, |endpoint, ws| endpoint.on_open(ws));
    }

    fn on_read(&mut self, messages: &mut Messages<'_, '_>) {
        let Self { endpoint, data, context } = self;
        let index = Index::new(messages.data());
        match index.and_then(|index| data.entry_mut(index)) {
            Some(data) => messages.deliver(&mut Receiver { endpoint: &**endpoint, data, context }),
            None => messages.discard(),
        }
    }

    fn on_recovery(&mut self, cx: Cx<'_>, channel: &str, recovery: Recovery) {
        self.with_socket(cx, |endpoint, ws| endpoint.on_recovery(ws, channel, recovery));
    }

    fn on_refresh(&mut self, cx: Cx<'_>, data: &[u8]) {
        self.with_socket(cx, |endpoint, ws| endpoint.on_refresh(ws, data));
    }

    fn on_unpublished(&mut self, cx: Cx<'_>, lost: Unpublished) {
        self.with_socket(cx, |endpoint, ws| endpoint.on_unpublished(ws, lost));
    }

    fn on_drained(&mut self, cx: Cx<'_>) {
        self.with_socket(cx, |endpoint, ws| endpoint.on_drained(ws));
    }

    fn on_shutdown(&mut self, cx: Cx<'_>) {
        self.with_socket(cx, |endpoint, ws| endpoint.on_shutdown(ws));
    }

    fn has_work(&mut self, cx: Cx<'_>) -> bool {
        let mut has_work = false;
        self.with_socket(cx, |endpoint, ws| has_work = endpoint.has_work(ws));
        has_work
    }

    fn resume(&mut self, cx: Cx<'_>, continuation: Box<dyn Any + Send>) {
        self.with_socket(cx, |endpoint, ws| endpoint.resume(ws, continuation));
    }

    fn on_close(&mut self, cx: Cx<'_>, close: Close<'_>) {
        // Taken out first, so that a panic in the callback cannot leave it behind.
        let data = Index::new(cx.data()).and_then(|index| self.data.remove(index));
        if let Some(mut data) = data {
            self.endpoint.on_close(&mut Socket::new(cx, &mut data, &self.context), close);
        }
    }
}

/// The handler and the data of the connection that is read.
struct Receiver<'a, E: Endpoint> {
    endpoint: &'a E,
    data: &'a mut E::Data,
    context: &'a RouteContext,
}

impl<E: Endpoint> Receive for Receiver<'_, E> {
    #[inline(always)]
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let mut socket = Socket::new(cx.reborrow(), self.data, self.context);
        self.endpoint.on_message(&mut socket, message);
    }

    fn on_chunk(&mut self, cx: &mut Cx<'_>, piece: Chunk<'_>) {
        let mut socket = Socket::new(cx.reborrow(), self.data, self.context);
        self.endpoint.on_chunk(&mut socket, piece);
    }
}
