//! Events of requests: what each asks of the service, and of its connection.

use throng_io::ConnId;
use throng_proto::http1::{self, BodyLength, HeaderLines, Request};

use crate::conn::stage::AfterFlush;
use crate::connections::Connections;
use crate::context::{Core, Cx};
use crate::http1::body::{BodyMode, RequestBodies};
use crate::message::{EndReason, Fault};
use crate::service::{Answer, Flow, Service};

/// Weight of a request in [`InputTime`](crate::conn::input_time::InputTime): the clock is read
/// after every second request that others follow, since a page of metrics takes as long as hundreds
/// of messages.
const REQUEST_EVENTS: u32 = 16;

/// Returns how a connection closes after the answer to `request`. `is_here`: the whole request has
/// arrived, and nothing else. A client that has announced its last request sends nothing more (RFC
/// 9112 section 9.6), so our close does not become a reset that destroys data it has not read. From
/// any other client, and with TLS, where the client still answers our close_notify, input is read
/// for a while.
fn close_mode(
    connections: &Connections,
    id: ConnId,
    request: &Request<'_>,
    is_here: bool,
) -> AfterFlush {
    let has_tls = || connections.cold(id).is_some_and(|cold| cold.tls.is_some());
    match is_here && !request.keep_alive() && !has_tls() {
        true => AfterFlush::Close,
        false => AfterFlush::Linger,
    }
}

/// Returns whether more than `max` bytes of body are announced.
fn is_longer(request: &Request<'_>, max: u64) -> bool {
    matches!(request.body_length(), BodyLength::Known(length) if length > max)
}

/// Result of an event for its connection.
pub(crate) enum RequestOutcome {
    /// The next event is decoded.
    Continue,
    /// All input is taken. `is_between`: the last request in it is complete.
    Incomplete { is_between: bool },
    /// The service was called with a head. `is_too_large`: it answered without the body, which is
    /// longer than its limit.
    Begin { answer: Answer, close_mode: AfterFlush, is_too_large: bool },
    /// The service was called with a body, or with its end.
    Answer(Answer, AfterFlush),
    /// The only request of a connection beyond the caps is answered.
    End(AfterFlush),
    /// The request is refused.
    Refuse(http1::Error),
    /// No memory is left for the body.
    TurnAway,
}

/// Returns the limits of the next event. The limit of a body depends on the handler, which the head
/// selects.
pub(crate) fn event_limits(
    core: &Core,
    decoder: &http1::Decoder,
    bodies: &RequestBodies,
    id: ConnId,
) -> http1::Limits {
    let usual = core.conns.limits().http;
    let in_head = decoder.is_between_requests() || decoder.is_in_head();
    let max_body = if in_head { u64::MAX } else { bodies.max_body(id, usual.max_body) };
    http1::Limits { max_body, ..usual }
}

/// The requests of one connection, while its decoder lends their parts.
pub(crate) struct Requests<'a, S> {
    core: &'a mut Core,
    service: &'a mut S,
    bodies: &'a mut RequestBodies,
    id: ConnId,
}

impl<'a, S: Service> Requests<'a, S> {
    pub(crate) fn new(
        core: &'a mut Core,
        service: &'a mut S,
        bodies: &'a mut RequestBodies,
        id: ConnId,
    ) -> Self {
        Self { core, service, bodies, id }
    }

    /// Calls the service with a head. `is_last_input`: nothing that has arrived follows it.
    pub(crate) fn on_head(&mut self, request: &Request<'_>, is_last_input: bool) -> RequestOutcome {
        let Self { core, service, id, .. } = self;
        let connections = &mut core.conns;
        connections.count(|stats| stats.requests += 1);
        core.clocks.begin_request(*id, connections.stats().requests);
        if request.has_body() {
            // A slow head is not charged to its body.
            connections.await_handshake(*id);
        }
        let is_here = !request.has_body() && is_last_input;
        let close_mode = close_mode(connections, *id, request, is_here);
        if let Some(why) = connections.refusal(*id) {
            service.on_request_refused(&mut Cx::new(core, *id), request, why);
            return RequestOutcome::End(close_mode);
        }
        core.clocks.spend(REQUEST_EVENTS - 1);
        let answer = service.on_request(&mut Cx::new(core, *id), request);
        self.begin_body(request, answer, close_mode, is_last_input)
    }

    /// Begins the body of a request, if it has one or the service asks for one.
    fn begin_body(
        &mut self,
        request: &Request<'_>,
        answer: Answer,
        close_mode: AfterFlush,
        is_last_input: bool,
    ) -> RequestOutcome {
        let connections = &mut self.core.conns;
        let (mode, max_body) = match answer {
            Answer::Body { max_body } => (BodyMode::Buffer, max_body),
            Answer::Chunks { max_body } => (BodyMode::Stream, max_body),
            _ => (BodyMode::Discard, connections.limits().http.max_body),
        };
        let is_too_large = is_longer(request, max_body);
        if is_too_large && mode != BodyMode::Discard {
            return RequestOutcome::Refuse(http1::Error::BodyTooLarge);
        }
        // A service that asks for a body where there is none gets its end at once.
        if request.has_body() || mode != BodyMode::Discard {
            self.bodies.begin(self.id, request, (mode, max_body), connections.now());
        }
        // A client that sends the body already does not wait for permission (RFC 9110 section
        // 10.1.1).
        if mode != BodyMode::Discard && request.expects_continue() && is_last_input {
            connections.write(self.id, http1::encode::encode_continue);
        }
        RequestOutcome::Begin { answer, close_mode, is_too_large }
    }

    /// Handles the next bytes of a body, in the mode that the service selected at its head.
    pub(crate) fn on_body(&mut self, bytes: &[u8]) -> RequestOutcome {
        let Self { core, service, bodies, id } = self;
        let connections = &mut core.conns;
        let Some(body) = bodies.of(*id) else { return RequestOutcome::Continue };
        let timeout = connections.limits().handshake;
        let enough = u64::from(timeout) * connections.limits().min_body_rate as u64;
        if body.note(bytes.len(), enough, connections.now()) {
            connections.due_in(*id, timeout);
        }
        match body.mode {
            BodyMode::Discard => RequestOutcome::Continue,
            BodyMode::Buffer => self.buffer(bytes),
            BodyMode::Stream => {
                if service.on_body_chunk(&mut Cx::new(core, *id), bytes) == Flow::Stop {
                    core.conns.await_answer(*id);
                }
                RequestOutcome::Continue
            }
        }
    }

    /// Appends bytes to a buffered body, for which others may have to end.
    fn buffer(&mut self, bytes: &[u8]) -> RequestOutcome {
        let connections = &mut self.core.conns;
        let most = connections.limits().max_body_memory;
        connections.memory().add(bytes.len());
        while !self.bodies.buffer(self.id, bytes, most) {
            if !self.end_slowest_bodies() {
                return RequestOutcome::TurnAway;
            }
        }
        RequestOutcome::Continue
    }

    /// Ends bodies that hold memory which this one needs. Returns false if there are none.
    #[cold]
    fn end_slowest_bodies(&mut self) -> bool {
        let Self { core, service, bodies, id } = self;
        let slowest = bodies.slowest(*id, core.conns.now());
        for &id in &slowest {
            bodies.end(id);
            let conn = core.conns.conn(id);
            if conn.is_some_and(|conn| !conn.is_finishing()) {
                core.conns.count(|stats| stats.timeouts += 1);
                core.clocks.measured().count_fault(Fault::Ended(EndReason::Body));
                service.on_request_ended(&mut Cx::new(core, id), 408, EndReason::Body);
                core.conns.finish(id, AfterFlush::Linger);
            }
        }
        !slowest.is_empty()
    }

    /// Ends a request, and calls the service with its body if it asked for one.
    pub(crate) fn on_end(
        &mut self,
        trailers: HeaderLines<'_>,
        is_last_input: bool,
    ) -> RequestOutcome {
        let Self { core, service, bodies, id } = self;
        core.conns.end_request(*id);
        let Some(body) = bodies.end(*id) else { return RequestOutcome::Continue };
        let cx = &mut Cx::new(core, *id);
        let outcome = match body.mode {
            BodyMode::Discard => RequestOutcome::Continue,
            BodyMode::Stream => {
                RequestOutcome::Answer(service.on_body_end(cx, trailers), AfterFlush::Linger)
            }
            BodyMode::Buffer => body.head.request().map_or(RequestOutcome::Continue, |request| {
                let answer = service.on_body(cx, &request, &body.body);
                RequestOutcome::Answer(
                    answer,
                    close_mode(&cx.core().conns, *id, &request, is_last_input),
                )
            }),
        };
        bodies.put_back(body);
        outcome
    }
}
