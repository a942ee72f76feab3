//! One shard's side of a server: what the engine calls, and where HTTP becomes WebSocket.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use throng_engine::workers::{Patience, WorkerFigures, Workers};
use throng_engine::{
    Admission, Answer, Close, ConnMap, Cx, Flow, Message, Parcel, Piece, Refusal, Service, Snapshot,
};
use throng_http::{
    DateCache, HeaderError, IntoResponse, Match, Origins, Reject, ReplyTo, Request, Response,
    Router, Status,
};
use throng_io::{ConnId, Instant};
use throng_proto::http1::{BodyLength, HeaderLines};
use throng_proto::ws::handshake::{self, encode_response_with};
use throng_proto::ws::{self, deflate};
use throng_proto::{http1, sse};

use crate::http::exchange::{Exchange, Outgoing, Progress};
use crate::http::{BodyReader, Delivered, Responder, reader};
use crate::observe;
use crate::routes::Routes;
use crate::stalls::Stalls;
use crate::workers::{BlockingHandler, BlockingJob, Pool};

/// How long a client that is turned away should stay away, in seconds.
pub(crate) const RETRY_AFTER: u64 = 5;

/// What a path leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Ws(u16),
    Events(u16),
    Http(u16),
    /// By index into [`Shared::later`].
    Later(u16),
    /// By index into [`Shared::streams`].
    Stream(u16),
    /// By index into [`Shared::blocking`].
    Blocking(u16),
    Metrics,
    Stats,
    Live,
    Ready,
}

impl Target {
    /// What the engine calls it when it is held up: the routes of [`Routes`] by their number, the others above those.
    pub(crate) fn code(self) -> u32 {
        let (kind, index) = match self {
            Self::Ws(route) | Self::Events(route) | Self::Http(route) => (0, route),
            Self::Later(index) => (1, index),
            Self::Stream(index) => (2, index),
            Self::Blocking(index) => (3, index),
            Self::Metrics => (4, 0),
            Self::Stats => (4, 1),
            Self::Live => (4, 2),
            Self::Ready => (4, 3),
        };
        kind << 16 | u32::from(index)
    }
}

/// Answers later. Behind a pointer, unlike other handlers: a thread switch follows anyway.
pub(crate) type LaterHandler = Box<dyn Fn(&Request<'_>, Responder) + Send + Sync>;

/// Takes a body of so many bytes while it comes, and answers later.
pub(crate) struct StreamHandler {
    pub(crate) max_body: u64,
    pub(crate) handler: Box<StreamFn>,
}

pub(crate) type StreamFn = dyn Fn(&Request<'_>, BodyReader, Responder) + Send + Sync;

/// What all shards of a server share; never changed after `bind`.
pub(crate) struct Shared<R> {
    pub(crate) routes: R,
    pub(crate) router: Router<Target>,
    pub(crate) origins: Origins,
    pub(crate) later: Vec<LaterHandler>,
    pub(crate) streams: Vec<StreamHandler>,
    pub(crate) blocking: Vec<BlockingHandler>,
    pub(crate) pool: Pool,
    /// By route.
    pub(crate) compression: Vec<Option<deflate::Policy>>,
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) snapshots: std::sync::OnceLock<Arc<[Arc<Snapshot>]>>,
}

pub(crate) struct ShardService<R: Routes> {
    shared: Arc<Shared<R>>,
    data: R::Data,
    admission: Arc<Admission>,
    date: DateCache,
    date_until: Instant,
    /// By route; empty where no route differs.
    ws_limits: Vec<ws::Limits>,
    /// Requests whose answer comes later, or is still being sent.
    exchanges: ConnMap<Exchange>,
    /// What a source gave, on its way into a queue.
    scratch: Vec<u8>,
}

impl<R: Routes> ShardService<R> {
    pub(crate) fn new(
        shared: Arc<Shared<R>>,
        admission: Arc<Admission>,
        ws_limits: Vec<ws::Limits>,
    ) -> Self {
        Self {
            ws_limits,
            shared,
            data: R::Data::default(),
            admission,
            date: DateCache::new(),
            date_until: Instant(0),
            exchanges: ConnMap::default(),
            scratch: Vec::new(),
        }
    }

    /// Reads the calendar once a second at most; in between the turn's own time tells that it still holds.
    fn refresh_date(&mut self, now: Instant) {
        if now >= self.date_until {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.date.at(since_epoch.as_secs());
            let rest = 1_000_000_000 - u64::from(since_epoch.subsec_nanos());
            self.date_until = Instant(now.0 + rest);
        }
    }

    /// Answers a request of which the body has come, or is still to come.
    fn reply(
        &mut self,
        cx: &mut Cx<'_>,
        head: &http1::Request<'_>,
        has_come: bool,
        response: Response,
    ) -> Answer {
        self.refresh_date(cx.core_ref().now());
        let mut to = ReplyTo::request(head, self.date.current());
        let is_last = !has_come && head.has_body() && is_last(head, cx.core_ref().max_body());
        to.keep_alive &= self.admission.is_ready() && !is_last;
        cx.write(|out| response.encode(&to, out));
        if !response.is_streamed() {
            return Answer::Done { keep_alive: response.keeps_alive(&to) };
        }
        let keep_alive = response.keeps_alive(&to);
        let mut exchange = Exchange::new(head, cx.entered_route());
        exchange.outgoing = Outgoing::of(response, &to, exchange.wants_trailers);
        if exchange.outgoing.is_none() {
            return Answer::Done { keep_alive };
        }
        self.exchanges.insert(cx.id(), exchange);
        match self.send_more(cx) {
            Some(keep_alive) => Answer::Done { keep_alive },
            None => Answer::Later,
        }
    }

    /// Answers what is no request, or none that its handler will answer.
    fn reply_to_fault(&mut self, cx: &mut Cx<'_>, response: &Response) {
        let exchange = self.exchanges.remove(&cx.id());
        if exchange.is_some_and(|exchange| exchange.outgoing.is_some()) {
            // In the middle of another answer, nobody would understand it.
            return cx.abort();
        }
        self.refresh_date(cx.core_ref().now());
        let to = ReplyTo::error(self.date.current());
        cx.write(|out| response.encode(&to, out));
    }

    /// The answer to a request has come, after its handler was called.
    fn reply_later(&mut self, cx: &mut Cx<'_>, response: Response) {
        let id = cx.id();
        self.refresh_date(cx.core_ref().now());
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let mut to = exchange.reply_to(self.date.current());
        to.keep_alive &= self.admission.is_ready();
        cx.write(|out| response.encode(&to, out));
        let keep_alive = response.keeps_alive(&to);
        exchange.outgoing = Outgoing::of(response, &to, exchange.wants_trailers);
        let over = match exchange.outgoing {
            Some(_) => self.send_more(cx),
            None => {
                self.exchanges.remove(&id);
                Some(keep_alive)
            }
        };
        if let Some(keep_alive) = over {
            cx.core().finish_answer(id, keep_alive);
        }
    }

    /// Sends the next part of an answer. When it is whole: whether the connection is kept alive.
    fn send_more(&mut self, cx: &mut Cx<'_>) -> Option<bool> {
        let id = cx.id();
        let exchange = self.exchanges.get_mut(&id)?;
        let outgoing = exchange.outgoing.as_mut()?;
        // Its source is the handler's.
        if let Some(route) = exchange.route {
            cx.enter_route(route);
        }
        match outgoing.send(cx, &mut self.scratch) {
            Progress::Sending => cx.core().await_drain(id),
            Progress::Waiting => {}
            Progress::Ended => {
                let keep_alive = outgoing.keep_alive && self.admission.is_ready();
                self.exchanges.remove(&id);
                return Some(keep_alive);
            }
            Progress::Broken => {
                let is_told = outgoing.is_delimited();
                self.exchanges.remove(&id);
                match is_told {
                    // The missing end tells (RFC 9112 section 8), and what was answered before still arrives.
                    true => cx.core().finish_answer(id, false),
                    false => cx.abort(),
                }
            }
        }
        None
    }

    /// Goes on with an answer that is not whole yet.
    fn go_on(&mut self, cx: &mut Cx<'_>) {
        if let Some(keep_alive) = self.send_more(cx) {
            let id = cx.id();
            cx.core().finish_answer(id, keep_alive);
        }
    }

    fn upgrade(
        &mut self,
        cx: &mut Cx<'_>,
        route: u16,
        head: &http1::Request<'_>,
        request: &Request<'_>,
    ) -> Result<(), Reject> {
        let key = handshake::check_request(head.method(), head.is_http11(), head)?;
        if head.has_body() {
            // Its bytes would be taken for frames.
            return Err(Reject::bad_request("an upgrade request has no body"));
        }
        if !self.admission.is_ready() {
            return Err(Reject::unavailable(RETRY_AFTER).because("the server is shutting down"));
        }
        if !self.shared.origins.allow(head.origins(), head.host()) {
            return Err(Reject::forbidden().because("this origin is not allowed"));
        }
        let subprotocols = self.shared.routes.subprotocols(route);
        let subprotocol = handshake::choose_subprotocol(head, subprotocols);
        let policy = self.shared.compression.get(usize::from(route)).copied().flatten();
        let accepted = match &policy {
            Some(policy) => {
                policy.accept(head).map_err(|error| Reject::bad_request(error.to_string()))?
            }
            None => None,
        };
        let data = self.shared.routes.upgrade(&mut self.data, route, request)?;
        let accepted = policy.zip(accepted).and_then(|(policy, accepted)| {
            cx.set_deflate(policy, accepted.agreed).then_some(accepted)
        });
        let answer = accepted.as_ref().map(|accepted| &accepted.answer);
        let mut sendable = Ok(());
        cx.write(|out| {
            sendable = encode_response_with(&key.accept(), subprotocol, answer, out);
        });
        if sendable.is_err() {
            cx.clear_deflate();
            // `Server::ws` refuses such names, so this is a handler whose list changes.
            return Err(Reject::status(Status::INTERNAL_SERVER_ERROR));
        }
        cx.set_route(route, data);
        if let Some(name) = subprotocol {
            cx.set_subprotocol(name);
        }
        Ok(())
    }

    /// The answer to a request, of which the body has come or is still to come.
    fn answer(
        &mut self,
        cx: &mut Cx<'_>,
        head: &http1::Request<'_>,
        body: Option<&[u8]>,
    ) -> Answer {
        let shared = Arc::clone(&self.shared);
        let response = match shared.find(head) {
            Match::Found { value, params } => {
                cx.enter_route(value.code());
                let request = Request::new(*head, params, body.unwrap_or_default(), cx.peer());
                match value {
                    // Whether it is wanted is for the handler to say, who sees it whole.
                    Target::Http(_) if body.is_none() && head.has_body() => return Answer::Body,
                    Target::Ws(route) => match self.upgrade(cx, route, head, &request) {
                        Ok(()) => return Answer::Upgraded,
                        Err(reject) => reject.into_response(),
                    },
                    Target::Events(route) => match self.events(cx, route, head, &request) {
                        Ok(answer) => return answer,
                        Err(reject) => reject.into_response(),
                    },
                    Target::Http(route) => shared.routes.respond(route, &request),
                    Target::Later(_) if body.is_none() && head.has_body() => return Answer::Body,
                    Target::Later(index) => {
                        let responder = Responder::new(cx.core_ref().remote().clone(), cx.id());
                        (shared.later[usize::from(index)])(&request, responder);
                        self.exchanges.insert(cx.id(), Exchange::new(head, cx.entered_route()));
                        return Answer::Later;
                    }
                    Target::Stream(index) => return self.stream(cx, head, &request, index),
                    Target::Blocking(_) if body.is_none() && head.has_body() => {
                        return Answer::Body;
                    }
                    Target::Blocking(index) => return self.block(cx, head, body, index),
                    Target::Metrics => observe::metrics(
                        &shared.snapshots(),
                        &self.admission,
                        shared.workers(),
                        &shared.stalls,
                    ),
                    Target::Stats => {
                        let workers = shared.workers();
                        let (snapshots, stalls) = (shared.snapshots(), &shared.stalls);
                        observe::stats(&snapshots, &self.admission, &workers, stalls)
                    }
                    Target::Live => Response::text("alive\n"),
                    Target::Ready if self.admission.is_ready() => Response::text("ready\n"),
                    Target::Ready => {
                        Response::unavailable(RETRY_AFTER, "the server is shutting down")
                    }
                }
            }
            Match::Options(allow) => Response::allowing(Status::NO_CONTENT, allow),
            Match::MethodNotAllowed(allow) => Response::allowing(Status::METHOD_NOT_ALLOWED, allow),
            Match::NotFound => Response::error(Status::NOT_FOUND, "there is nothing at this path"),
            Match::BadPath => {
                Response::error(Status::BAD_REQUEST, "the path has a broken percent-encoding")
            }
            Match::NotImplemented => {
                Response::error(Status::NOT_IMPLEMENTED, "this method is not known here")
            }
        };
        self.reply(cx, head, body.is_some(), response)
    }

    /// Gives a request to a handler that takes its body while it comes.
    fn stream(
        &mut self,
        cx: &mut Cx<'_>,
        head: &http1::Request<'_>,
        request: &Request<'_>,
        index: u16,
    ) -> Answer {
        let shared = Arc::clone(&self.shared);
        let StreamHandler { max_body, handler } = &shared.streams[usize::from(index)];
        let remote = cx.core_ref().remote();
        let responder = Responder::new(remote.clone(), cx.id());
        let (inlet, reader) = reader::body(remote.clone(), cx.id());
        handler(request, reader, responder);
        let mut exchange = Exchange::new(head, cx.entered_route());
        let answer = match head.has_body() {
            true => {
                exchange.inlet = Some(inlet);
                Answer::Pieces { max_body: *max_body }
            }
            false => {
                inlet.end(Vec::new());
                Answer::Later
            }
        };
        self.exchanges.insert(cx.id(), exchange);
        answer
    }

    /// Has a request answered by a worker.
    fn block(
        &mut self,
        cx: &mut Cx<'_>,
        head: &http1::Request<'_>,
        body: Option<&[u8]>,
        index: u16,
    ) -> Answer {
        let id = cx.id();
        let responder = Responder::new(cx.core_ref().remote().clone(), id);
        let job = BlockingJob::new(index, head, body.unwrap_or_default(), cx.peer(), responder);
        self.exchanges.insert(id, Exchange::new(head, cx.entered_route()));
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let handler = &shared.blocking[usize::from(index)];
            job.run(&shared.router, handler);
        };
        if let Some(pool) = self.shared.pool.get() {
            let route = &self.shared.blocking[usize::from(index)].path;
            // Where it is dropped, it answers so.
            let _ = pool.submit(id, route, Patience::Silent, Box::new(work));
        }
        Answer::Later
    }

    /// What this connection wants from workers is not wanted any more.
    fn cancel_work(&self, id: ConnId) {
        if let Some(pool) = self.shared.pool.get() {
            pool.cancel(id);
        }
    }

    /// Begins a stream of events.
    fn events(
        &mut self,
        cx: &mut Cx<'_>,
        route: u16,
        head: &http1::Request<'_>,
        request: &Request<'_>,
    ) -> Result<Answer, Reject> {
        if !self.admission.is_ready() {
            return Err(Reject::unavailable(RETRY_AFTER).because("the server is shutting down"));
        }
        if !self.shared.origins.allow(head.origins(), head.host()) {
            return Err(Reject::forbidden().because("this origin is not allowed"));
        }
        let channel = self.shared.routes.events(route, request)?;
        cx.core_ref()
            .check_channel(&channel)
            .map_err(|error| Reject::bad_request(error.to_string()))?;
        self.refresh_date(cx.core_ref().now());
        let to = ReplyTo::request(head, self.date.current());
        let response = events_head(head)
            .map_err(|_| Reject::bad_request("this origin cannot be repeated in an answer"))?;
        if to.is_head {
            cx.write(|out| response.encode_endless_head(&to, out));
            return Ok(Answer::Done { keep_alive: false });
        }
        cx.write(|out| {
            response.encode_endless_head(&to, out);
            out.extend_from_slice(sse::COMMENT);
        });
        cx.start_events();
        cx.set_route(route, 0);
        cx.subscribe(&channel);
        Ok(Answer::Events)
    }
}

impl<R: Routes> Service for ShardService<R> {
    fn on_request(&mut self, cx: &mut Cx<'_>, head: &http1::Request<'_>) -> Answer {
        self.answer(cx, head, None)
    }

    fn on_body(&mut self, cx: &mut Cx<'_>, head: &http1::Request<'_>, body: &[u8]) -> Answer {
        self.answer(cx, head, Some(body))
    }

    fn on_body_piece(&mut self, cx: &mut Cx<'_>, bytes: &[u8]) -> Flow {
        let exchange = self.exchanges.get(&cx.id());
        match exchange.and_then(|exchange| exchange.inlet.as_ref()) {
            Some(inlet) => inlet.push(bytes),
            None => Flow::More,
        }
    }

    fn on_body_end(&mut self, cx: &mut Cx<'_>, trailers: HeaderLines<'_>) -> Answer {
        let Some(exchange) = self.exchanges.get_mut(&cx.id()) else {
            return Answer::Done { keep_alive: false };
        };
        if let Some(inlet) = exchange.inlet.take() {
            let text = |field: http1::Header<'_>| {
                Some((field.name.to_owned(), str::from_utf8(field.value).ok()?.to_owned()))
            };
            inlet.end(trailers.iter().filter_map(text).collect());
        }
        Answer::Later
    }

    fn on_delivery(&mut self, cx: &mut Cx<'_>, parcel: Parcel) {
        let delivered = match parcel.0.downcast::<Delivered>() {
            Ok(delivered) => delivered,
            #[cfg(feature = "tokio")]
            Err(other) => return crate::asynchronous::on_delivery(cx, other),
            #[cfg(not(feature = "tokio"))]
            Err(_) => return,
        };
        match *delivered {
            Delivered::Answer(response) => self.reply_later(cx, response),
            Delivered::More => self.go_on(cx),
            Delivered::Then(continuation, debt) if cx.is_open() => {
                cx.enter_route(cx.route().into());
                self.shared.routes.go_on(&mut self.data, cx.reborrow(), continuation);
                if self.shared.pool.get().is_some_and(|pool| pool.settle(cx.id(), debt)) {
                    cx.read_on();
                }
            }
            Delivered::WorkPanicked if cx.is_open() => {
                self.cancel_work(cx.id());
                cx.close(1011, "internal error");
            }
            Delivered::RoomInQueue if cx.is_open() => {
                // By now another job may wait, submitted by a continuation, or many results be to come.
                if self.shared.pool.get().is_some_and(|pool| pool.wants_more(cx.id())) {
                    cx.read_on();
                }
            }
            // The session has ended before.
            Delivered::Then(..) | Delivered::WorkPanicked | Delivered::RoomInQueue => {}
            // Once its body has come to its end, there is another request to wait with.
            Delivered::Room => {
                let id = cx.id();
                if self.exchanges.get(&id).is_some_and(|exchange| exchange.inlet.is_some()) {
                    cx.core().read_on(id);
                }
            }
        }
    }

    fn on_gone(&mut self, cx: &mut Cx<'_>) {
        if !self.exchanges.is_empty() && self.exchanges.remove(&cx.id()).is_some() {
            self.cancel_work(cx.id());
        }
    }

    fn on_bad_request(&mut self, cx: &mut Cx<'_>, status: u16, reason: &str) {
        let status = Status::new(status);
        self.reply_to_fault(cx, &Response::error(status, reason));
    }

    fn on_refused(&mut self, cx: &mut Cx<'_>, why: Refusal) {
        let response = match why {
            Refusal::Full => Response::unavailable(RETRY_AFTER, "the server is full"),
            Refusal::FullForAddress => {
                Response::error(Status::TOO_MANY_REQUESTS, "too many connections from this address")
            }
            Refusal::Draining => Response::unavailable(RETRY_AFTER, "the server is shutting down"),
        };
        self.reply_to_fault(cx, &response);
    }

    #[inline]
    fn ws_limits(&self, route: u16, usual: ws::Limits) -> ws::Limits {
        self.ws_limits.get(usize::from(route)).copied().unwrap_or(usual)
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        cx.enter_route(cx.route().into());
        self.shared.routes.open(&mut self.data, cx.reborrow());
    }

    #[inline(always)]
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        cx.enter_route(cx.route().into());
        self.shared.routes.message(&mut self.data, cx.reborrow(), message);
    }

    fn streams(&self, route: u16) -> bool {
        self.shared.routes.streams(route)
    }

    fn on_piece(&mut self, cx: &mut Cx<'_>, piece: Piece<'_>) {
        cx.enter_route(cx.route().into());
        self.shared.routes.piece(&mut self.data, cx.reborrow(), piece);
    }

    fn on_drain(&mut self, cx: &mut Cx<'_>) {
        if !self.exchanges.is_empty() && self.exchanges.contains_key(&cx.id()) {
            return self.go_on(cx);
        }
        cx.enter_route(cx.route().into());
        self.shared.routes.drain(&mut self.data, cx.reborrow());
    }

    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>) {
        // Before the callback, whose own last work may still be run.
        self.cancel_work(cx.id());
        cx.enter_route(cx.route().into());
        self.shared.routes.close(&mut self.data, cx.reborrow(), close);
    }
}

/// Neither browsers nor proxies are to keep it, or to wait for its end.
fn events_head(head: &http1::Request<'_>) -> Result<Response, HeaderError> {
    let response = Response::new(Status::OK)
        .with_bytes("text/event-stream", Vec::new())
        .header("Cache-Control", "no-store")?
        .header("X-Accel-Buffering", "no")?;
    // It was let in; a page of another host may then read the stream, too (WHATWG Fetch section 3.2).
    match head.origins().next().map(str::from_utf8) {
        Some(Ok(origin)) => response
            .header("Access-Control-Allow-Origin", origin.to_owned())?
            .header("Vary", "Origin"),
        _ => Ok(response),
    }
}

/// Whether an answer before the body must be the connection's last. A client that waits for a 100 and gets this instead
/// may send the body or not (RFC 9110 section 10.1.1), and one that is too large is not worth reading.
fn is_last(request: &http1::Request<'_>, max_body: u64) -> bool {
    let too_large = matches!(request.body_length(), BodyLength::Known(length) if length > max_body);
    request.expects_continue() || too_large
}

/// Not `h2c`, say, which is to be ignored where it is not spoken (RFC 9110 section 7.8).
fn wants_websocket(request: &http1::Request<'_>) -> bool {
    let is_websocket = |name: &str| name.eq_ignore_ascii_case("websocket");
    request.wants_upgrade() && handshake::list(request.values("Upgrade")).any(is_websocket)
}

impl<R> Shared<R> {
    /// What a request leads to. One that asks for no upgrade passes WebSockets over, so that a path can have both; if it
    /// has nothing else, it hears of that by a 426.
    fn find(&self, head: &http1::Request<'_>) -> Match<'_, Target> {
        let (method, path) = (head.method(), head.path());
        if !wants_websocket(head) {
            let is_plain = |target| !matches!(target, Target::Ws(_));
            let found = self.router.find_if(method, path, is_plain);
            if let Match::Found { .. } = found {
                return found;
            }
        }
        self.router.find(method, path)
    }

    fn workers(&self) -> WorkerFigures {
        self.pool.get().map(Workers::figures).unwrap_or_default()
    }

    fn snapshots(&self) -> Arc<[Arc<Snapshot>]> {
        self.snapshots.get().map(Arc::clone).unwrap_or_default()
    }
}
