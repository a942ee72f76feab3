//! Responses: sent at once, later, and while their bodies are produced.

#[cfg(feature = "gzip")]
use std::sync::Arc;

use throng_engine::{Answer, CloseCode, Cx};
use throng_http::{ReplyTo, Response, Status};
use throng_proto::http1::{self, BodyLength};
use throng_proto::ws;

#[cfg(feature = "gzip")]
use super::BoundRoute;
use super::ShardService;
use crate::access::count_body;
use crate::events::ServerEvent;
#[cfg(feature = "gzip")]
use crate::exchanges::exchange::accepts_gzip;
use crate::exchanges::exchange::{Exchange, Outgoing, Progress};
use crate::middleware::Pending;

/// Whether an answer before the body must be the connection's last. A client that waits for a 100
/// and gets this instead may or may not send the body (RFC 9110 section 10.1.1), and a body that is
/// too large is not worth reading.
fn is_last(request: &http1::Request<'_>, max_body: u64) -> bool {
    let too_large = matches!(request.body_length(), BodyLength::Known(length) if length > max_body);
    request.expects_continue() || too_large
}

/// Returns the length of a body that is sent with the head.
fn whole_body(response: &Response, to: &ReplyTo<'_>) -> usize {
    if response.has_body_bytes(to) { response.body().len() } else { 0 }
}

/// Ends a refused upgrade whose client has already got the 101.
fn close_answered(cx: &mut Cx<'_>, status: Status) -> Answer {
    let code = match status {
        Status::SERVICE_UNAVAILABLE => CloseCode::TRY_AGAIN_LATER,
        _ if status.code() >= 500 => CloseCode::INTERNAL_ERROR,
        _ => CloseCode::POLICY_VIOLATION,
    };
    cx.write(|out| ws::encode_close(code.get(), &status.to_string(), None, out));
    Answer::Done { keep_alive: false }
}

/// Ends a connection whose response is incomplete, so that its client cannot take it for complete.
/// `is_delimited`: the response has not begun, or the client can see that its end is missing
/// (RFC 9112 section 8); earlier answers then still arrive.
fn break_off(cx: &mut Cx<'_>, is_delimited: bool) {
    let id = cx.id();
    match is_delimited {
        true => cx.core().finish_answer(id, false),
        false => cx.abort(),
    }
}

impl ShardService {
    /// Compresses a response by the settings of its route.
    #[cfg(feature = "gzip")]
    fn coded(
        &mut self,
        cx: &Cx<'_>,
        route: u16,
        accepts: impl FnOnce() -> bool,
        response: Response,
    ) -> Response {
        let BoundRoute { route, context, .. } = self.shared.route(route);
        let Some(gzip) = &route.gzip else { return response };
        let id = cx.id();
        self.compressor.compress(gzip, accepts(), response, || crate::gzip::Destination {
            pool: self.shared.pool.clone(),
            id,
            path: Arc::clone(&context.path),
        })
    }

    /// Answers a request to a route: as [`reply`](Self::reply), by the settings of the route.
    pub(super) fn reply_of(
        &mut self,
        cx: &mut Cx<'_>,
        route: u16,
        head: &http1::Request<'_>,
        has_come: bool,
        response: Response,
    ) -> Answer {
        #[cfg(feature = "gzip")]
        let response = self.coded(cx, route, || accepts_gzip(head), response);
        #[cfg(not(feature = "gzip"))]
        let _ = route;
        self.reply(cx, head, has_come, response)
    }

    /// Answers a request, before or after its body has come.
    pub(super) fn reply(
        &mut self,
        cx: &mut Cx<'_>,
        head: &http1::Request<'_>,
        has_come: bool,
        response: Response,
    ) -> Answer {
        self.note_status(cx, response.status().code());
        if cx.is_answered() {
            return close_answered(cx, response.status());
        }
        self.refresh_date(cx.core_ref().now());
        let mut to = ReplyTo::request(head, self.date.current());
        to.hsts = self.shared.security.hsts(cx);
        let is_last = !has_come && head.has_body() && is_last(head, cx.core_ref().max_body());
        to.keep_alive &= self.admission.is_ready() && !is_last;
        cx.write(|out| response.encode(&to, out));
        count_body(&mut self.entries, cx.id(), 0, whole_body(&response, &to));
        let keep_alive = response.keeps_alive(&to);
        if !response.is_streamed() {
            return Answer::Done { keep_alive };
        }
        let mut exchange = Exchange::new(head, cx.entered_route(), Pending::default());
        exchange.outgoing = Outgoing::of(cx, response, &to, exchange.wants_trailers);
        if exchange.outgoing.is_none() {
            return Answer::Done { keep_alive };
        }
        if exchange.ends_with_client() {
            let id = cx.id();
            cx.core().watch_client(id);
        }
        self.exchanges.insert(cx.id(), exchange);
        match self.send_more(cx) {
            Some(keep_alive) => Answer::Done { keep_alive },
            None => Answer::Later,
        }
    }

    /// Answers in place of a handler: to malformed input, or to a request that will get no answer
    /// from its handler.
    pub(super) fn reply_to_fault(&mut self, cx: &mut Cx<'_>, response: &Response) {
        let exchange = self.exchanges.remove(&cx.id());
        if exchange.is_some_and(|exchange| exchange.outgoing.is_some()) {
            // In the middle of another answer the client would take it for a part of that answer.
            return cx.abort();
        }
        self.note_status(cx, response.status().code());
        if cx.is_answered() {
            self.record(cx, |_| {});
            close_answered(cx, response.status());
            return;
        }
        self.refresh_date(cx.core_ref().now());
        let hsts = self.shared.security.hsts(cx);
        let to = ReplyTo { hsts, ..ReplyTo::error(self.date.current()) };
        cx.write(|out| response.encode(&to, out));
        count_body(&mut self.entries, cx.id(), 0, response.body().len());
        self.record(cx, |_| {});
    }

    /// Answers a request whose handler was called before.
    pub(super) fn reply_later(&mut self, cx: &mut Cx<'_>, response: Response) {
        let id = cx.id();
        self.refresh_date(cx.core_ref().now());
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        self.calling = (Some(id), std::mem::take(&mut exchange.pending));
        #[cfg(feature = "gzip")]
        let (route, accepts_gzip) = (exchange.route.map(u16::try_from), exchange.accepts_gzip);
        let response = self.changed(response);
        #[cfg(feature = "gzip")]
        let response = match (route, accepts_gzip) {
            (Some(Ok(route)), accepts) => self.coded(cx, route, || accepts, response),
            _ => response,
        };
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let status = response.status();
        if cx.is_answered() {
            self.exchanges.remove(&id);
            close_answered(cx, status);
            self.note_status(cx, status.code());
            self.record(cx, |_| {});
            return cx.core().finish_answer(id, false);
        }
        let mut to = exchange.reply_to(self.date.current(), self.shared.security.hsts(cx));
        to.keep_alive &= self.admission.is_ready();
        cx.write(|out| response.encode(&to, out));
        count_body(&mut self.entries, id, 0, whole_body(&response, &to));
        let keep_alive = response.keeps_alive(&to);
        exchange.outgoing = Outgoing::of(cx, response, &to, exchange.wants_trailers);
        let ended = match exchange.outgoing {
            Some(_) if exchange.has_lost_client() => {
                self.note_status(cx, status.code());
                return self.end_with_client(cx);
            }
            Some(_) => self.send_more(cx),
            None => {
                self.exchanges.remove(&id);
                Some(keep_alive)
            }
        };
        self.note_status(cx, status.code());
        if let Some(keep_alive) = ended {
            self.record(cx, |_| {});
            cx.core().finish_answer(id, keep_alive);
        }
    }

    /// Ends a request whose client has ended its side of the connection.
    pub(super) fn end_with_client(&mut self, cx: &mut Cx<'_>) {
        self.record(cx, |access| access.is_complete = false);
        let outgoing = self.exchanges.remove(&cx.id()).and_then(|exchange| exchange.outgoing);
        break_off(cx, outgoing.is_none_or(|outgoing| outgoing.is_delimited()));
    }

    /// Sends the next part of a response. After the last part, returns whether the connection is
    /// kept alive.
    fn send_more(&mut self, cx: &mut Cx<'_>) -> Option<bool> {
        let id = cx.id();
        let exchange = self.exchanges.get_mut(&id)?;
        let outgoing = exchange.outgoing.as_mut()?;
        // Its source belongs to the handler.
        if let Some(route) = exchange.route {
            cx.enter_route(route);
        }
        let progress = outgoing.send(cx, &mut self.scratch);
        if !matches!(progress, Progress::Broken(_)) {
            count_body(&mut self.entries, id, 0, self.scratch.len());
        }
        match progress {
            Progress::Sending => cx.core().await_drain(id),
            Progress::Waiting => {}
            Progress::Ended => {
                let keep_alive = outgoing.keep_alive && self.admission.is_ready();
                self.exchanges.remove(&id);
                return Some(keep_alive);
            }
            Progress::Broken(reason) => {
                let is_delimited = outgoing.is_delimited();
                let route = exchange.route.map(|route| self.shared.stalls.path(route));
                let subject = self.subject(cx);
                self.shared.events.report(ServerEvent::BodyFailed {
                    subject,
                    route,
                    reason: &reason,
                });
                self.exchanges.remove(&id);
                break_off(cx, is_delimited);
            }
        }
        None
    }

    /// Sends more of a response whose source waited.
    pub(super) fn source_woke(&mut self, cx: &mut Cx<'_>) {
        // While output waits for the client, a source is not pulled.
        let outgoing = self.exchanges.get(&cx.id()).and_then(|exchange| exchange.outgoing.as_ref());
        if outgoing.is_some_and(|outgoing| outgoing.is_waiting) {
            self.continue_response(cx);
        }
    }

    /// Sends more of an incomplete response.
    pub(super) fn continue_response(&mut self, cx: &mut Cx<'_>) {
        if let Some(keep_alive) = self.send_more(cx) {
            let id = cx.id();
            self.record(cx, |_| {});
            cx.core().finish_answer(id, keep_alive);
        }
    }
}
