//! Routes as a type: each handler is a field of a nested pair, so that a call finds it by comparing a number and is
//! inlined, without `dyn` and without a table of function pointers.

use std::any::Any;

use throng_engine::{Close, Cx, Index, Message, Piece, Slab};
use throng_http::{IntoResponse, Reject, Request, Response};
use throng_proto::ws::deflate::Settings as Deflate;

use crate::handler::Handler;
use crate::socket::Socket;
use crate::workers::{Continuation, Desk};

/// The handlers of a server; `()` has none, `(Route, Rest)` has one more. Users never name it.
pub trait Routes: Send + Sync + 'static {
    /// One shard's data of all connections of these routes.
    type Data: Default + Send;

    /// Asks a WebSocket handler to accept; the number finds the connection's data again.
    fn upgrade(
        &self,
        data: &mut Self::Data,
        route: u16,
        request: &Request<'_>,
    ) -> Result<u32, Reject>;

    /// See [`Handler::open`].
    fn open(&self, data: &mut Self::Data, cx: Cx<'_>);

    /// See [`Handler::message`].
    fn message(&self, data: &mut Self::Data, cx: Cx<'_>, message: Message<'_>);

    /// See [`Handler::piece`].
    fn piece(&self, data: &mut Self::Data, cx: Cx<'_>, piece: Piece<'_>);

    /// See [`Handler::streams`].
    fn streams(&self, route: u16) -> bool;

    /// See [`Handler::drain`].
    fn drain(&self, data: &mut Self::Data, cx: Cx<'_>);

    /// Goes on with a session after what it offloaded was done.
    fn go_on(&self, data: &mut Self::Data, cx: Cx<'_>, continuation: Box<dyn Any + Send>);

    /// See [`Handler::close`]; the connection's data is dropped after it.
    fn close(&self, data: &mut Self::Data, cx: Cx<'_>, close: Close<'_>);

    /// See [`Handler::subprotocols`].
    fn subprotocols(&self, route: u16) -> &[&'static str];

    /// See [`Handler::max_message_size`].
    fn max_message_size(&self, route: u16) -> Option<usize>;

    /// See [`Handler::compression`].
    fn compression(&self, route: u16) -> Option<Deflate>;

    /// Answers an HTTP request.
    fn respond(&self, route: u16, request: &Request<'_>) -> Response;

    /// Tells which channel a stream of events is of.
    fn events(&self, route: u16, request: &Request<'_>) -> Result<String, Reject>;
}

/// A WebSocket endpoint among [`Routes`].
pub struct WsRoute<H> {
    pub(crate) number: u16,
    pub(crate) handler: H,
    pub(crate) desk: Desk,
}

/// An HTTP handler among [`Routes`].
pub struct HttpRoute<F> {
    pub(crate) number: u16,
    pub(crate) handler: F,
}

/// A stream of events among [`Routes`].
pub struct EventsRoute<F> {
    pub(crate) number: u16,
    pub(crate) channel: F,
}

/// The end of the list. Only a number that no route has leads here, and numbers come from the router alone.
impl Routes for () {
    type Data = ();

    fn upgrade(&self, (): &mut (), _: u16, _: &Request<'_>) -> Result<u32, Reject> {
        Err(Reject::not_found())
    }

    fn open(&self, (): &mut (), _: Cx<'_>) {}

    fn message(&self, (): &mut (), _: Cx<'_>, _: Message<'_>) {}

    fn piece(&self, (): &mut (), _: Cx<'_>, _: Piece<'_>) {}

    fn streams(&self, _: u16) -> bool {
        false
    }

    fn drain(&self, (): &mut (), _: Cx<'_>) {}

    fn go_on(&self, (): &mut (), _: Cx<'_>, _: Box<dyn Any + Send>) {}

    fn close(&self, (): &mut (), _: Cx<'_>, _: Close<'_>) {}

    fn subprotocols(&self, _: u16) -> &[&'static str] {
        &[]
    }

    fn max_message_size(&self, _: u16) -> Option<usize> {
        None
    }

    fn compression(&self, _: u16) -> Option<Deflate> {
        None
    }

    fn respond(&self, _: u16, _: &Request<'_>) -> Response {
        Reject::not_found().into_response()
    }

    fn events(&self, _: u16, _: &Request<'_>) -> Result<String, Reject> {
        Err(Reject::not_found())
    }
}

/// The connection's data, if the index is one of ours. It always is: `upgrade` made it and `close` takes it.
fn entry<'d, D>(slab: &'d mut Slab<D>, cx: &Cx<'_>) -> Option<&'d mut D> {
    slab.entry_mut(Index::new(cx.data())?)
}

impl<H: Handler, R: Routes> Routes for (WsRoute<H>, R) {
    type Data = (Slab<H::Data>, R::Data);

    fn upgrade(
        &self,
        data: &mut Self::Data,
        route: u16,
        request: &Request<'_>,
    ) -> Result<u32, Reject> {
        if route != self.0.number {
            return self.1.upgrade(&mut data.1, route, request);
        }
        Ok(data.0.insert(self.0.handler.upgrade(request)?).get())
    }

    fn open(&self, data: &mut Self::Data, cx: Cx<'_>) {
        if cx.route() != self.0.number {
            self.1.open(&mut data.1, cx);
        } else if let Some(entry) = entry(&mut data.0, &cx) {
            self.0.handler.open(&mut Socket::new(cx, entry, &self.0.desk));
        }
    }

    #[inline(always)]
    fn message(&self, data: &mut Self::Data, cx: Cx<'_>, message: Message<'_>) {
        if cx.route() != self.0.number {
            self.1.message(&mut data.1, cx, message);
        } else if let Some(entry) = entry(&mut data.0, &cx) {
            self.0.handler.message(&mut Socket::new(cx, entry, &self.0.desk), message);
        }
    }

    fn piece(&self, data: &mut Self::Data, cx: Cx<'_>, piece: Piece<'_>) {
        if cx.route() != self.0.number {
            self.1.piece(&mut data.1, cx, piece);
        } else if let Some(entry) = entry(&mut data.0, &cx) {
            self.0.handler.piece(&mut Socket::new(cx, entry, &self.0.desk), piece);
        }
    }

    fn streams(&self, route: u16) -> bool {
        match route == self.0.number {
            true => self.0.handler.streams(),
            false => self.1.streams(route),
        }
    }

    fn drain(&self, data: &mut Self::Data, cx: Cx<'_>) {
        if cx.route() != self.0.number {
            self.1.drain(&mut data.1, cx);
        } else if let Some(entry) = entry(&mut data.0, &cx) {
            self.0.handler.drain(&mut Socket::new(cx, entry, &self.0.desk));
        }
    }

    fn go_on(&self, data: &mut Self::Data, cx: Cx<'_>, continuation: Box<dyn Any + Send>) {
        if cx.route() != self.0.number {
            self.1.go_on(&mut data.1, cx, continuation);
        } else if let Some(entry) = entry(&mut data.0, &cx) {
            // It is this route's, since the session is.
            let mut ws = Socket::new(cx, entry, &self.0.desk);
            match continuation.downcast::<Continuation<H::Data>>() {
                Ok(continuation) => (continuation.0)(&mut ws),
                Err(inner) => self.0.handler.go_on(&mut ws, inner),
            }
        }
    }

    fn close(&self, data: &mut Self::Data, cx: Cx<'_>, close: Close<'_>) {
        if cx.route() != self.0.number {
            self.1.close(&mut data.1, cx, close);
        } else if let Some(index) = Index::new(cx.data())
            // Taken out first, so that a panic in the callback cannot leave it behind.
            && let Some(mut entry) = data.0.remove(index)
        {
            self.0.handler.close(&mut Socket::new(cx, &mut entry, &self.0.desk), close);
        }
    }

    fn subprotocols(&self, route: u16) -> &[&'static str] {
        match route == self.0.number {
            true => self.0.handler.subprotocols(),
            false => self.1.subprotocols(route),
        }
    }

    fn max_message_size(&self, route: u16) -> Option<usize> {
        match route == self.0.number {
            true => self.0.handler.max_message_size(),
            false => self.1.max_message_size(route),
        }
    }

    fn compression(&self, route: u16) -> Option<Deflate> {
        match route == self.0.number {
            true => self.0.handler.compression(),
            false => self.1.compression(route),
        }
    }

    fn respond(&self, route: u16, request: &Request<'_>) -> Response {
        self.1.respond(route, request)
    }

    fn events(&self, route: u16, request: &Request<'_>) -> Result<String, Reject> {
        self.1.events(route, request)
    }
}

/// What a route without sessions leaves to the rest of the list.
macro_rules! sessions_of_the_rest {
    () => {
        type Data = R::Data;

        fn upgrade(
            &self,
            data: &mut Self::Data,
            route: u16,
            request: &Request<'_>,
        ) -> Result<u32, Reject> {
            self.1.upgrade(data, route, request)
        }

        fn open(&self, data: &mut Self::Data, cx: Cx<'_>) {
            self.1.open(data, cx);
        }

        #[inline(always)]
        fn message(&self, data: &mut Self::Data, cx: Cx<'_>, message: Message<'_>) {
            self.1.message(data, cx, message);
        }

        fn piece(&self, data: &mut Self::Data, cx: Cx<'_>, piece: Piece<'_>) {
            self.1.piece(data, cx, piece);
        }

        fn streams(&self, route: u16) -> bool {
            self.1.streams(route)
        }

        fn drain(&self, data: &mut Self::Data, cx: Cx<'_>) {
            self.1.drain(data, cx);
        }

        fn go_on(&self, data: &mut Self::Data, cx: Cx<'_>, continuation: Box<dyn Any + Send>) {
            self.1.go_on(data, cx, continuation);
        }

        fn close(&self, data: &mut Self::Data, cx: Cx<'_>, close: Close<'_>) {
            self.1.close(data, cx, close);
        }

        fn subprotocols(&self, route: u16) -> &[&'static str] {
            self.1.subprotocols(route)
        }

        fn max_message_size(&self, route: u16) -> Option<usize> {
            self.1.max_message_size(route)
        }

        fn compression(&self, route: u16) -> Option<Deflate> {
            self.1.compression(route)
        }
    };
}

impl<F, T, R> Routes for (HttpRoute<F>, R)
where
    F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
    T: IntoResponse,
    R: Routes,
{
    sessions_of_the_rest!();

    fn respond(&self, route: u16, request: &Request<'_>) -> Response {
        match route == self.0.number {
            true => (self.0.handler)(request).into_response(),
            false => self.1.respond(route, request),
        }
    }

    fn events(&self, route: u16, request: &Request<'_>) -> Result<String, Reject> {
        self.1.events(route, request)
    }
}

impl<F, R> Routes for (EventsRoute<F>, R)
where
    F: Fn(&Request<'_>) -> Result<String, Reject> + Send + Sync + 'static,
    R: Routes,
{
    sessions_of_the_rest!();

    fn respond(&self, route: u16, request: &Request<'_>) -> Response {
        self.1.respond(route, request)
    }

    fn events(&self, route: u16, request: &Request<'_>) -> Result<String, Reject> {
        match route == self.0.number {
            true => (self.0.channel)(request),
            false => self.1.events(route, request),
        }
    }
}
