//! The sessions of one route on one shard: turns the engine's calls into callbacks of a handler.

use std::any::Any;
use std::sync::Arc;

#[cfg(feature = "tokio")]
use throng_engine::SettingError;
use throng_engine::{Chunk, Close, Cx, Index, Message, Messages, Receive, Slab};
use throng_http::{Reject, Request, Status};

#[cfg(feature = "tokio")]
use super::async_options::AsyncOptions;
use super::callbacks::Callbacks;
use super::decision::UpgradeLater;
use super::event::{EventKind, SessionEvent, Unpublished};
use super::offload::Continuation;
use super::socket::Socket;
use crate::accept::{AcceptHeaders, AnyAccept};
use crate::workers::RouteContext;

/// A handler's callback for messages, of one closure's type: it is compiled into the loop over the
/// messages of a read.
pub(crate) trait OnMessage<D>: Send + Sync + 'static {
    /// The callback's state of a session besides the data.
    type Kept: Default + Send + 'static;

    const STREAMS: bool = false;
    const BLOCKS: bool = false;

    fn on_message(
        &self,
        ws: &mut Socket<'_, D>,
        data: &mut D,
        state: &mut Self::Kept,
        message: Message<'_>,
    );

    fn on_chunk(&self, ws: &mut Socket<'_, D>, data: &mut D, chunk: Chunk<'_>) {
        let _ = (ws, data, chunk);
    }

    /// Follows an event, except the end, after its callback.
    fn after_event(
        &self,
        ws: &mut Socket<'_, D>,
        data: &D,
        state: &mut Self::Kept,
        kind: EventKind,
    ) {
        let _ = (ws, data, state, kind);
    }

    /// Ends a session, before the callback.
    fn end(&self, state: &mut Self::Kept, close: Close<'_>) {
        let _ = (state, close);
    }

    /// Whether futures process messages of this session, or will.
    fn has_work(&self, state: &Self::Kept) -> bool {
        let _ = state;
        false
    }

    /// Sets the options of futures.
    #[cfg(feature = "tokio")]
    fn set_options(&mut self, options: &AsyncOptions) -> Result<(), SettingError> {
        let _ = options;
        let message = "messages are not processed by futures; async_options is for \
                       on_message_async and on_session_async";
        Err(SettingError::new("async_options", message.to_owned()))
    }
}

/// A handler as the shards call it: all its callbacks.
pub(super) struct Endpoint<D, M> {
    pub(super) callbacks: Callbacks<D>,
    pub(super) messages: M,
}

/// An upgrade that the handler has accepted.
pub(crate) enum Accepted {
    /// The number by which the connection's data are found.
    Here(u32, AcceptHeaders),
    /// The hash of the key, for a route whose sessions are placed by key.
    Placed(u64, AnyAccept),
}

/// An [`Endpoint`] of any type.
pub(crate) trait AnyEndpoint: Send + Sync {
    /// Creates the empty set of sessions of one shard.
    fn sessions(self: Arc<Self>, context: &Arc<RouteContext>) -> Box<dyn Sessions>;
}

impl<D: Send + 'static, M: OnMessage<D>> AnyEndpoint for Endpoint<D, M> {
    fn sessions(self: Arc<Self>, context: &Arc<RouteContext>) -> Box<dyn Sessions> {
        let context = Arc::clone(context);
        Box::new(RouteSessions { endpoint: self, sessions: Slab::default(), context })
    }
}

/// The sessions of one route on one shard, for any type of data.
pub(crate) trait Sessions: Send {
    /// True for [`NoSessions`].
    fn is_none(&self) -> bool {
        false
    }

    /// Asks the handler to accept an upgrade.
    fn on_upgrade(&mut self, request: &Request<'_>) -> Result<Accepted, Reject>;

    /// Returns the hash of this session's key, if its route places by key.
    fn key_of(&self, accept: &AnyAccept) -> Option<u64>;

    /// The decision on an upgrade, if it takes time.
    fn upgrade_later(&self) -> Option<UpgradeLater>;

    /// Stores the data of an upgrade that was accepted elsewhere.
    fn insert(&mut self, accept: AnyAccept) -> Result<(u32, AcceptHeaders), Reject>;

    /// The one indirect call of a read: the loop over its messages is compiled into the
    /// implementation.
    fn on_read(&mut self, messages: &mut Messages<'_, '_>);

    /// The connection's data is dropped after its end.
    fn on_event(&mut self, cx: Cx<'_>, event: SessionEvent<'_>);

    fn on_unpublished(&mut self, cx: Cx<'_>, lost: Unpublished);

    /// Whether futures have work for this session.
    fn has_work(&mut self, cx: Cx<'_>) -> bool;

    /// Continues after offloaded work, or at a timer. The continuation has the type of this route,
    /// since the session belongs to it.
    fn resume(&mut self, cx: Cx<'_>, continuation: Box<dyn Any + Send>);
}

/// Sessions of a route that has had none. Its box takes no memory.
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

    fn insert(&mut self, _: AnyAccept) -> Result<(u32, AcceptHeaders), Reject> {
        Err(Reject::status(Status::INTERNAL_SERVER_ERROR))
    }

    fn on_read(&mut self, messages: &mut Messages<'_, '_>) {
        messages.discard();
    }

    fn on_event(&mut self, _: Cx<'_>, _: SessionEvent<'_>) {}

    fn on_unpublished(&mut self, _: Cx<'_>, _: Unpublished) {}

    fn has_work(&mut self, _: Cx<'_>) -> bool {
        false
    }

    fn resume(&mut self, _: Cx<'_>, _: Box<dyn Any + Send>) {}
}

/// The session of a connection: its data, and the state of its handler.
struct WsSession<D, S> {
    data: D,
    state: S,
}

struct RouteSessions<D, M: OnMessage<D>> {
    endpoint: Arc<Endpoint<D, M>>,
    sessions: Slab<WsSession<D, M::Kept>>,
    context: Arc<RouteContext>,
}

impl<D: Send + 'static, M: OnMessage<D>> RouteSessions<D, M> {
    fn keep(&mut self, data: D) -> u32 {
        self.sessions.insert(WsSession { data, state: M::Kept::default() }).get()
    }
}

/// The session always exists: `on_upgrade` or `insert` stores it, and the event of its end removes
/// it.
fn entry<'s, T>(sessions: &'s mut Slab<T>, cx: &Cx<'_>) -> Option<&'s mut T> {
    sessions.entry_mut(Index::new(cx.data())?)
}

impl<D: Send + 'static, M: OnMessage<D>> Sessions for RouteSessions<D, M> {
    fn on_upgrade(&mut self, request: &Request<'_>) -> Result<Accepted, Reject> {
        let accept = self.endpoint.callbacks.on_upgrade.decide(request)?;
        if let Some(key) = &self.endpoint.callbacks.key {
            return Ok(Accepted::Placed(key(&accept.data), accept.erase()));
        }
        Ok(Accepted::Here(self.keep(accept.data), accept.headers))
    }

    fn key_of(&self, accept: &AnyAccept) -> Option<u64> {
        let key = self.endpoint.callbacks.key.as_ref()?;
        Some(key(accept.data.downcast_ref()?))
    }

    fn upgrade_later(&self) -> Option<UpgradeLater> {
        self.endpoint.callbacks.on_upgrade.later()
    }

    fn insert(&mut self, accept: AnyAccept) -> Result<(u32, AcceptHeaders), Reject> {
        let foreign = |_| Reject::status(Status::INTERNAL_SERVER_ERROR);
        let data = accept.data.downcast().map_err(foreign)?;
        Ok((self.keep(*data), accept.headers))
    }

    fn on_read(&mut self, messages: &mut Messages<'_, '_>) {
        let Self { endpoint, sessions, context } = self;
        let index = Index::new(messages.data());
        match index.and_then(|index| sessions.entry_mut(index)) {
            Some(session) => {
                messages.deliver(&mut Receiver { on_message: &endpoint.messages, session, context })
            }
            None => messages.discard(),
        }
    }

    fn on_event(&mut self, cx: Cx<'_>, event: SessionEvent<'_>) {
        let Self { endpoint, sessions, context } = self;
        let Endpoint { callbacks, messages } = &**endpoint;
        let Some(index) = Index::new(cx.data()) else { return };
        let kind = event.kind();
        if let SessionEvent::Closed(close) = event {
            // Removed first, so that a panic in the callback cannot leave it in the slab.
            if let Some(mut session) = sessions.remove(index) {
                messages.end(&mut session.state, close);
                callbacks.on_event(&mut Socket::new(cx, context), &mut session.data, event);
            }
        } else if let Some(WsSession { data, state }) = sessions.entry_mut(index) {
            let mut socket = Socket::new(cx, context);
            callbacks.on_event(&mut socket, data, event);
            messages.after_event(&mut socket, data, state, kind);
        }
    }

    fn on_unpublished(&mut self, cx: Cx<'_>, lost: Unpublished) {
        let Self { endpoint, sessions, context } = self;
        if let Some(session) = entry(sessions, &cx) {
            let mut socket = Socket::new(cx, context);
            endpoint.callbacks.on_unpublished(&mut socket, &mut session.data, lost);
        }
    }

    fn has_work(&mut self, cx: Cx<'_>) -> bool {
        let session = entry(&mut self.sessions, &cx);
        session.is_some_and(|session| self.endpoint.messages.has_work(&session.state))
    }

    fn resume(&mut self, cx: Cx<'_>, continuation: Box<dyn Any + Send>) {
        if let Ok(continuation) = continuation.downcast::<Continuation<D>>()
            && let Some(session) = entry(&mut self.sessions, &cx)
        {
            (continuation.0)(&mut Socket::new(cx, &self.context), &mut session.data);
        }
    }
}

/// The handler and the session of the connection that is read.
struct Receiver<'a, D, M: OnMessage<D>> {
    on_message: &'a M,
    /// The data, and the state of the handler, by one pointer.
    session: &'a mut WsSession<D, M::Kept>,
    context: &'a RouteContext,
}

impl<D, M: OnMessage<D>> Receive for Receiver<'_, D, M> {
    #[inline(always)]
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let mut socket = Socket::new(cx.reborrow(), self.context);
        let WsSession { data, state } = &mut *self.session;
        self.on_message.on_message(&mut socket, data, state, message);
    }

    fn on_chunk(&mut self, cx: &mut Cx<'_>, piece: Chunk<'_>) {
        let mut socket = Socket::new(cx.reborrow(), self.context);
        self.on_message.on_chunk(&mut socket, &mut self.session.data, piece);
    }
}
