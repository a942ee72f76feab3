//! Requests: finds the route and calls its handler.

use std::net::IpAddr;
use std::sync::Arc;

use throng_engine::workers::OverflowPolicy;
use throng_engine::{Answer, Cx, EndReason};
use throng_http::{
    Extensions, IntoResponse, MISDIRECTED, Match, Params, Ranges, Reject, Request, Response, Status,
};
use throng_proto::http1;

use super::routed::{Routed, responder_of};
use super::upgrade::Upgraded;
use super::{BoundRoute, RouteShared, ShardService};
use crate::app::{RouteAction, StreamingFn};
use crate::cluster::Guard;
use crate::events::{ServerEvent, Subject};
#[cfg(feature = "tokio")]
use crate::exchanges::OwnedRequest;
use crate::exchanges::exchange::Exchange;
use crate::exchanges::{ClientGuard, Responder, reader};
use crate::health::live;
use crate::middleware::Pending;
#[cfg(feature = "metrics")]
use crate::observe::Observer;
use crate::panic_notice::PanicNotice;
use crate::readiness::Readiness;
use crate::tls;
use crate::workers::BlockingJob;

/// A request whose body is read before its handler is called: everything except its bytes.
pub(super) struct AwaitedBody {
    route: u16,
    ranges: Ranges,
    extensions: Extensions,
    pending: Pending,
}

impl ShardService {
    fn ready(&self) -> Response {
        let node = self.shared.cluster.get().map(|Guard(node)| node.clone());
        let panics = self.shared.events.panics();
        Readiness::of(&self.admission, &node.unwrap_or_default(), panics).response()
    }

    /// Finds the route of a request and runs its middleware. The handler runs at once, or when the
    /// body has come.
    pub(super) fn route_request(&mut self, cx: &mut Cx<'_>, head: &http1::Request<'_>) -> Answer {
        let shared = Arc::clone(&self.shared);
        // The redirect and the app do not see an authority's request.
        if let Some(response) = shared.security.answer_challenge(head) {
            return self.reply(cx, head, false, response);
        }
        if let Some(response) = shared.security.refusal(cx, head, &shared.trusted_proxies) {
            if response.status().is_error() {
                let has_tls = cx.tls().is_some();
                let reason = if has_tls { MISDIRECTED } else { "the client uses no TLS" };
                self.report_refused(cx, response.status(), reason);
            }
            let response = self.in_form(response);
            return self.reply(cx, head, false, response);
        }
        let found = shared.find(head);
        let Match::Found { value: route, params } = found else {
            return self.reply_without_route(cx, head, &shared, found);
        };
        cx.enter_route(route.into());
        let BoundRoute { route: found, .. } = shared.route(route);
        if cx.is_answered() && !found.is_ws() {
            // The connection has sent 101; an HTTP response would corrupt the stream.
            return self.reply(cx, head, false, Response::new(Status::NOT_FOUND));
        }
        let mut request = Request::new(*head, params, &[], cx.peer())
            .with_trusted_proxies(&shared.trusted_proxies);
        tls::attach(&mut request, cx);
        let answered = self.begin_call(cx).run(found.layers(), &mut request);
        self.note_route(cx, Some(&shared.route(route).context.path), &request);
        if let Some(response) = answered {
            let response = self.changed(response);
            return self.reply_of(cx, route, head, false, response);
        }
        if found.action.wants_body() && head.has_body() {
            let extensions = request.into_extensions();
            let (ranges, pending) = (params.ranges(), self.end_call());
            let awaited = AwaitedBody { route, ranges, extensions, pending };
            self.awaited.insert(cx.id(), awaited);
            let max_body = found.max_body.unwrap_or(cx.core_ref().max_body());
            return Answer::Body { max_body };
        }
        self.call_handler(cx, &shared, Routed { route, head, request, has_body: false })
    }

    /// Calls the handler of a request whose body has come.
    pub(super) fn request_with_body(
        &mut self,
        cx: &mut Cx<'_>,
        head: &http1::Request<'_>,
        body: &[u8],
    ) -> Answer {
        let Some(awaited) = self.awaited.remove(&cx.id()) else {
            return Answer::Done { keep_alive: false };
        };
        let AwaitedBody { route, ranges, extensions, pending } = awaited;
        cx.enter_route(route.into());
        let shared = Arc::clone(&self.shared);
        let params = Params::new(&shared.route(route).names, ranges);
        let request = Request::new(*head, params, body, cx.peer())
            .with_trusted_proxies(&shared.trusted_proxies)
            .with_extensions(extensions);
        *self.begin_call(cx) = pending;
        self.call_handler(cx, &shared, Routed { route, head, request, has_body: true })
    }

    /// Begins to route or to handle the request of this connection.
    fn begin_call(&mut self, cx: &Cx<'_>) -> &mut Pending {
        self.calling = (Some(cx.id()), Pending::default());
        &mut self.calling.1
    }

    /// Returns the middleware's remaining changes to the response of the current request.
    pub(super) fn end_call(&mut self) -> Pending {
        std::mem::take(&mut self.calling).1
    }

    /// Passes the response to the current request through its middleware, a refusal in the app's
    /// form.
    pub(super) fn changed(&mut self, response: Response) -> Response {
        let response = self.in_form(response);
        let response = self.calling.1.apply(response);
        self.calling.0 = None;
        response
    }

    /// Gives a refusal the app's form. Where that has panicked, the answer to that stays text.
    fn in_form(&mut self, response: Response) -> Response {
        let Some(form) = &self.shared.refusals else { return response };
        if std::mem::take(&mut self.is_forming) {
            return response;
        }
        let Some(reason) = response.refused_because() else { return response };
        let refused = Reject::status(response.status()).with_reason(reason.to_owned());
        self.is_forming = true;
        let formed = response.in_form(form(&refused));
        self.is_forming = false;
        formed
    }

    /// Answers a request in place of its handler, with `response` as its middleware changes it.
    pub(super) fn refuse_request(&mut self, cx: &mut Cx<'_>, response: Response) {
        let id = cx.id();
        if self.calling.0 != Some(id) {
            let awaited = self.awaited.remove(&id).map(|awaited| awaited.pending);
            let exchange = self.exchanges.get_mut(&id);
            let pending = awaited.or_else(|| Some(std::mem::take(&mut exchange?.pending)));
            self.calling = (Some(id), pending.unwrap_or_default());
        }
        let response = self.changed(response);
        self.reply_to_fault(cx, &response);
    }

    fn call_handler(
        &mut self,
        cx: &mut Cx<'_>,
        shared: &Arc<RouteShared>,
        routed: Routed<'_, '_>,
    ) -> Answer {
        let Routed { route, head, ref request, has_body } = routed;
        let response = match &shared.route(route).route.action {
            RouteAction::Http(handler) => handler(request),
            #[cfg(feature = "files")]
            RouteAction::Files(files) => self.file_or_refusal(cx, shared, files, (head, request)),
            RouteAction::Ws(ws) => match self.upgrade(cx, shared, ws, &routed) {
                Ok(Upgraded::Now) => {
                    // Middleware does not change a 101.
                    drop(self.end_call());
                    return Answer::Upgraded;
                }
                Ok(Upgraded::Later(negotiated, later)) => {
                    return self.decide_later(cx, shared, *negotiated, later, routed);
                }
                Ok(Upgraded::Elsewhere(negotiated, shard, accept)) => {
                    return self.move_upgrade(cx, *negotiated, (shard, accept), routed);
                }
                Err(reject) => self.refusal(cx, route, request.client(), reject),
            },
            RouteAction::Sse(channel) => {
                match self.stream_events(cx, route, channel, (head, request)) {
                    Ok(answer) => return answer,
                    Err(reject) => self.refusal(cx, route, request.client(), reject),
                }
            }
            RouteAction::Deferred(handler) => {
                let (responder, client) = responder_of(cx, shared.route(route));
                handler(request, responder);
                self.begin_exchange(cx, head, client);
                return Answer::Later;
            }
            #[cfg(feature = "tokio")]
            RouteAction::Async(start) => {
                let BoundRoute { names, .. } = shared.route(route);
                let (responder, client) = responder_of(cx, shared.route(route));
                responder.end_with_client();
                let request =
                    OwnedRequest::new(names, &shared.trusted_proxies, head, routed.request);
                start(request, responder);
                self.begin_exchange(cx, head, client);
                return Answer::Later;
            }
            RouteAction::Streaming(handler) => {
                let max_body = shared.route(route).route.max_body;
                return self.stream_body(cx, handler, max_body, (shared, routed));
            }
            RouteAction::Blocking(_) => return self.hand_to_worker(cx, shared, routed),
            #[cfg(feature = "metrics")]
            RouteAction::Metrics(own) => {
                let observer = shared.observer.get();
                observer.map_or_else(live, |observer| observer.metrics_with(request, own))
            }
            #[cfg(feature = "metrics")]
            RouteAction::Stats => shared.observer.get().map_or_else(live, Observer::stats),
            RouteAction::Live => live(),
            RouteAction::Ready => self.ready(),
        };
        let response = self.changed(response);
        self.reply_of(cx, route, head, has_body, response)
    }

    /// Answers with a file. If the path also has a WebSocket route, a malformed upgrade request is
    /// answered with its fault (RFC 6455 sections 4.2.1 and 4.4), and so is a request without a
    /// matching file.
    #[cfg(feature = "files")]
    fn file_or_refusal(
        &self,
        cx: &Cx<'_>,
        shared: &RouteShared,
        files: &throng_http::Files,
        (head, request): (&http1::Request<'_>, &Request<'_>),
    ) -> Response {
        let lines = head.lines();
        let is_upgrade =
            lines.first("Sec-WebSocket-Key").is_some() || lines.lists("Upgrade", "websocket");
        let found = (!is_upgrade).then(|| files.respond(request));
        let found = found.filter(|found| found.status() != Status::NOT_FOUND);
        let found = match found {
            Some(found) => found,
            None => match shared.wrong_upgrade(head) {
                Some((route, reject)) => return self.refusal(cx, route, request.client(), reject),
                None => files.respond(request),
            },
        };
        if found.status() == Status::SERVICE_UNAVAILABLE {
            self.report_refused(cx, found.status(), "too many files are open; Files::max_open");
        }
        found
    }

    /// Reports the refusal of an upgrade or a stream, and returns its answer.
    pub(super) fn refusal(
        &self,
        cx: &Cx<'_>,
        route: u16,
        client: Option<IpAddr>,
        reject: Reject,
    ) -> Response {
        self.shared.events.report(ServerEvent::Refused {
            subject: Subject { client, ..self.subject(cx) },
            route: Some(&self.shared.route(route).route.path),
            status: Status::new(reject.code()),
            reason: reject.reason(),
        });
        reject.into_response()
    }

    /// Reports a request that the workers have no room for; its job has answered it.
    #[cold]
    pub(super) fn report_busy(&self, cx: &Cx<'_>, route: u16, client: Option<IpAddr>) {
        self.shared.events.report(ServerEvent::Refused {
            subject: Subject { client, ..self.subject(cx) },
            route: Some(&self.shared.route(route).route.path),
            status: Status::SERVICE_UNAVAILABLE,
            reason: &EndReason::Workers.to_string(),
        });
    }

    /// Reports a refused connection, or a request refused before its route was known.
    pub(super) fn report_refused(&self, cx: &Cx<'_>, status: Status, reason: &str) {
        let subject = self.subject(cx);
        self.shared.events.report(ServerEvent::Refused { subject, route: None, status, reason });
    }

    /// Counts, reports and answers a request whose handler panicked on another thread or in a
    /// future.
    pub(super) fn request_panicked(&mut self, cx: &mut Cx<'_>, notice: PanicNotice) {
        // Without an exchange, its client has left, and dropping the notice reports the panic.
        let Some(exchange) = self.exchanges.get(&cx.id()) else { return };
        notice.answer();
        let route = exchange.route.map(|route| self.shared.stalls.path(route));
        self.shared.events.report(ServerEvent::Panicked { subject: self.subject(cx), route });
        cx.count_panic();
        self.reply_later(cx, Responder::no_answer());
    }

    /// Answers the one request of a connection beyond the caps, if it is a health check. Returns
    /// false for any other.
    pub(super) fn answer_health_check(
        &mut self,
        cx: &mut Cx<'_>,
        head: &http1::Request<'_>,
    ) -> bool {
        let Match::Found { value: route, .. } = self.shared.find(head) else { return false };
        let response = match self.shared.route(route).route.action {
            RouteAction::Live => live(),
            RouteAction::Ready => self.ready(),
            _ => return false,
        };
        self.reply(cx, head, false, response.closing());
        true
    }

    /// Answers a request without a matching route.
    fn reply_without_route(
        &mut self,
        cx: &mut Cx<'_>,
        head: &http1::Request<'_>,
        shared: &RouteShared,
        found: Match<'_, u16>,
    ) -> Answer {
        let asked_about = match found {
            Match::Options(_) => shared.find_for_preflight(head),
            _ => None,
        };
        let (layers, params) = match asked_about {
            Some((route, params)) => (&shared.route(route).route.layers, params),
            None => (&shared.layers, Params::NONE),
        };
        self.begin_call(cx);
        let answered = match layers.is_empty() {
            true => None,
            false => {
                let mut request = Request::new(*head, params, &[], cx.peer())
                    .with_trusted_proxies(&shared.trusted_proxies);
                tls::attach(&mut request, cx);
                let layers = layers.iter().map(|layer| &**layer);
                let answered = self.calling.1.run(layers, &mut request);
                self.note_route(cx, None, &request);
                answered
            }
        };
        let response = answered.unwrap_or_else(|| match found {
            Match::Options(allow) => Response::allowing(Status::NO_CONTENT, allow),
            Match::MethodNotAllowed(allow) => Response::allowing(Status::METHOD_NOT_ALLOWED, allow),
            Match::BadPath => {
                Response::error(Status::BAD_REQUEST, "the path has a broken percent-encoding")
            }
            Match::NotImplemented => {
                Response::error(Status::NOT_IMPLEMENTED, "this method is not known here")
            }
            Match::NotFound | Match::Found { .. } => {
                Response::error(Status::NOT_FOUND, "there is nothing at this path")
            }
        });
        let response = self.changed(response);
        self.reply(cx, head, false, response)
    }

    /// Keeps the state of a request whose answer comes later.
    fn begin_exchange(&mut self, cx: &mut Cx<'_>, head: &http1::Request<'_>, client: ClientGuard) {
        let mut exchange = Exchange::new(head, cx.entered_route(), self.end_call());
        let id = cx.id();
        cx.core().watch_client(id);
        client.await_response();
        exchange.client = Some(client);
        self.exchanges.insert(id, exchange);
    }

    /// Calls a handler that takes the body as it arrives.
    fn stream_body(
        &mut self,
        cx: &mut Cx<'_>,
        handler: &StreamingFn,
        max_body: Option<u64>,
        (shared, routed): (&RouteShared, Routed<'_, '_>),
    ) -> Answer {
        let Routed { route, head, request, .. } = routed;
        let (responder, client) = responder_of(cx, shared.route(route));
        let (body_sender, reader) = reader::body(cx.core_ref().remote().clone(), cx.id());
        handler(&request, reader, responder);
        let mut exchange = Exchange::new(head, cx.entered_route(), self.end_call());
        client.await_response();
        exchange.client = Some(client);
        let answer = match head.has_body() {
            true => {
                exchange.body_sender = Some(body_sender);
                Answer::Chunks { max_body: max_body.unwrap_or(cx.core_ref().max_body()) }
            }
            false => {
                body_sender.end(Vec::new());
                let id = cx.id();
                cx.core().watch_client(id);
                Answer::Later
            }
        };
        self.exchanges.insert(cx.id(), exchange);
        answer
    }

    /// Passes a request to a worker, which calls the handler.
    fn hand_to_worker(
        &mut self,
        cx: &mut Cx<'_>,
        shared: &Arc<RouteShared>,
        routed: Routed<'_, '_>,
    ) -> Answer {
        let Routed { route, head, request, .. } = routed;
        let id = cx.id();
        let (responder, client) = responder_of(cx, shared.route(route));
        let asked_by = request.client();
        let job = BlockingJob::new(head, request, responder);
        self.begin_exchange(cx, head, client);
        let its = Arc::clone(shared);
        let work = move || {
            let BoundRoute { route, names, .. } = its.route(route);
            if let RouteAction::Blocking(handler) = &route.action {
                job.run(names, &its.trusted_proxies, handler);
            }
        };
        if let Some(pool) = shared.pool.get() {
            let path = &shared.route(route).context.path;
            // A dropped job answers that the server is busy.
            if pool.submit(id, path, OverflowPolicy::Wait, Box::new(work)).is_err() {
                self.report_busy(cx, route, asked_by);
            }
        }
        Answer::Later
    }
}
