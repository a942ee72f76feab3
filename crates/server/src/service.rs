//! One shard's side of a server: what the engine calls, and where HTTP becomes WebSocket.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use throng_engine::{Admission, Answer, Close, Cx, Message, Piece, Refusal, Service, Snapshot};
use throng_http::{
    DateCache, HeaderError, IntoResponse, Match, Origins, Reject, ReplyTo, Request, Response,
    Router, Status,
};
use throng_io::Instant;
use throng_proto::ws::handshake::{self, encode_response_with};
use throng_proto::ws::{self, deflate};
use throng_proto::{http1, sse};

use crate::observe;
use crate::routes::Routes;

/// How long a client that is turned away should stay away, in seconds.
const RETRY_AFTER: u64 = 5;

/// What a path leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Ws(u16),
    Events(u16),
    Http(u16),
    Metrics,
    Stats,
    Live,
    Ready,
}

/// What all shards of a server share; never changed after `bind`.
pub(crate) struct Shared<R> {
    pub(crate) routes: R,
    pub(crate) router: Router<Target>,
    pub(crate) origins: Origins,
    /// By route.
    pub(crate) compression: Vec<Option<deflate::Policy>>,
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

    fn reply(
        &mut self,
        cx: &mut Cx<'_>,
        // Its head, and whether its body has come.
        request: Option<(&http1::Request<'_>, bool)>,
        response: &Response,
    ) -> Answer {
        self.refresh_date(cx.core_ref().now());
        let mut to = match request {
            Some((request, _)) => ReplyTo::request(request, self.date.current()),
            None => ReplyTo::error(self.date.current()),
        };
        let waits = request.is_some_and(|(head, has_come)| !has_come && waits_for_continue(head));
        to.keep_alive &= self.admission.is_ready() && !waits;
        cx.write(|out| response.encode(&to, out));
        Answer::Done { keep_alive: response.keeps_alive(&to) }
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
                    Target::Metrics => observe::metrics(&shared.snapshots(), &self.admission),
                    Target::Stats => observe::stats(&shared.snapshots(), &self.admission),
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
        self.reply(cx, Some((head, body.is_some())), &response)
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

    fn on_bad_request(&mut self, cx: &mut Cx<'_>, status: u16, reason: &str) {
        let status = Status::new(status);
        self.reply(cx, None, &Response::error(status, reason));
    }

    fn on_refused(&mut self, cx: &mut Cx<'_>, why: Refusal) {
        let response = match why {
            Refusal::Full => Response::unavailable(RETRY_AFTER, "the server is full"),
            Refusal::FullForAddress => {
                Response::error(Status::TOO_MANY_REQUESTS, "too many connections from this address")
            }
            Refusal::Draining => Response::unavailable(RETRY_AFTER, "the server is shutting down"),
        };
        self.reply(cx, None, &response);
    }

    #[inline]
    fn ws_limits(&self, route: u16, usual: ws::Limits) -> ws::Limits {
        self.ws_limits.get(usize::from(route)).copied().unwrap_or(usual)
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        self.shared.routes.open(&mut self.data, cx.reborrow());
    }

    #[inline(always)]
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        self.shared.routes.message(&mut self.data, cx.reborrow(), message);
    }

    fn streams(&self, route: u16) -> bool {
        self.shared.routes.streams(route)
    }

    fn on_piece(&mut self, cx: &mut Cx<'_>, piece: Piece<'_>) {
        self.shared.routes.piece(&mut self.data, cx.reborrow(), piece);
    }

    fn on_drain(&mut self, cx: &mut Cx<'_>) {
        self.shared.routes.drain(&mut self.data, cx.reborrow());
    }

    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>) {
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

/// It gets its final answer instead of a 100; whether its body then comes is its choice, so the connection cannot go
/// on (RFC 9110 section 10.1.1).
fn waits_for_continue(request: &http1::Request<'_>) -> bool {
    request.expects_continue() && request.has_body()
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

    fn snapshots(&self) -> Arc<[Arc<Snapshot>]> {
        self.snapshots.get().map(Arc::clone).unwrap_or_default()
    }
}
