//! HTTP on a connection: requests, or the answer to ours; and the start of a session, or of a
//! stream of events.

use throng_io::ConnId;
use throng_proto::Input;
use throng_proto::http1::BodyLength;
use throng_proto::{http1, ws};

use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::context::{Core, Cx};
use crate::http1::body::{BodyMode, RequestBodies};
use crate::message::Refusal;
use crate::service::{Answer, Flow, Service};
use crate::shard::state::State;
use crate::ws::inbound::Inbound;

/// Events that a request counts for in [`InputTime`](crate::conn::input_time::InputTime).
const REQUEST_EVENTS: u32 = 4;

/// Returns how a connection closes after the answer to `request`. `is_here`: the whole request has
/// arrived, and nothing else. A client that has announced this as its last request sends nothing
/// more (RFC 9112 section 9.6), so no close of ours becomes a reset that destroys data it has not
/// read; from any other, input is read for a while.
fn close_mode(request: &http1::Request<'_>, is_here: bool) -> AfterFlush {
    match is_here && !request.keep_alive() {
        true => AfterFlush::Close,
        false => AfterFlush::Linger,
    }
}

/// Returns whether more than `max` bytes of body are announced.
fn is_longer(request: &http1::Request<'_>, max: u64) -> bool {
    matches!(request.body_length(), BodyLength::Known(length) if length > max)
}

/// Ends bodies that hold memory which that of `id` needs. Returns false if there are none.
#[cold]
fn end_slowest_bodies<S: Service>(
    core: &mut Core,
    service: &mut S,
    request_bodies: &mut RequestBodies,
    id: ConnId,
) -> bool {
    let slowest = request_bodies.slowest(id, core.connections.now);
    for &id in &slowest {
        request_bodies.end(id);
        let conn = core.connections.table.conn(id);
        if conn.is_some_and(|conn| !conn.is_finishing()) {
            core.connections.stats.timeouts += 1;
            let reason = "the body came too slowly while memory for bodies was short";
            service.on_bad_request(&mut Cx::new(core, id), 408, reason);
            core.connections.finish(id, AfterFlush::Linger);
        }
    }
    !slowest.is_empty()
}

impl<S: Service> State<S> {
    /// Handles input before there is a session: requests, or the answer to ours. Input after an
    /// upgrade is left; returns true if there is any.
    #[inline(never)]
    pub(crate) fn pump_handshake(&mut self, id: ConnId, input: &mut Input<'_>) -> bool {
        match self.inbound[id.slot()] {
            Inbound::Http(_) => self.pump_http(id, input),
            Inbound::Response(_) => self.pump_response(id, input),
            Inbound::Events => {
                input.take(usize::MAX);
            }
            Inbound::Nothing | Inbound::Refused | Inbound::Ws(_) => {}
        }
        matches!(self.inbound[id.slot()], Inbound::Ws(_)) && !input.is_empty()
    }

    fn pump_http(&mut self, id: ConnId, input: &mut Input<'_>) {
        self.core.connections.promise_flush(id);
        loop {
            let Self { core, service, inbound, request_bodies, .. } = self;
            let Inbound::Http(decoder) = &mut inbound[id.slot()] else { return };
            match core.connections.table.conn(id) {
                Some(conn) if conn.is(Stage::Http) && !conn.is_finishing() => {}
                _ => return,
            }
            if !input.is_empty() && (core.must_yield(id) || core.input_time.is_up(id, &core.clock))
            {
                return;
            }
            let usual = core.connections.limits.http;
            let in_head = decoder.is_between_requests() || decoder.is_in_head();
            let max_body = match !in_head {
                true => request_bodies.max_body(id, usual.max_body),
                // The limit of a body depends on its handler, which its head selects.
                false => u64::MAX,
            };
            match decoder.next_event(input, &http1::Limits { max_body, ..usual }) {
                Ok(None) => {
                    let between = decoder.is_between_requests();
                    self.record_request(id, between);
                    return;
                }
                Ok(Some(http1::Event::Head(request))) => {
                    core.connections.stats.requests += 1;
                    if request.has_body() {
                        // A slow head is not charged to its body.
                        core.connections.timers.due_in(id, core.connections.limits.handshake);
                    }
                    if let Some(why) = core.connections.table.refusal(id) {
                        let close_mode =
                            close_mode(&request, !request.has_body() && input.is_empty());
                        service.on_request_refused(&mut Cx::new(core, id), &request, why);
                        inbound[id.slot()] = Inbound::Refused;
                        return core.connections.finish(id, close_mode);
                    }
                    // Even a small page costs as much as several messages.
                    core.input_time.spend(REQUEST_EVENTS - 1);
                    let answer = service.on_request(&mut Cx::new(core, id), &request);
                    let (mode, max_body) = match answer {
                        Answer::Body { max_body } => (BodyMode::Buffer, max_body),
                        Answer::Chunks { max_body } => (BodyMode::Stream, max_body),
                        _ => (BodyMode::Discard, usual.max_body),
                    };
                    let too_large = is_longer(&request, max_body);
                    if too_large && mode != BodyMode::Discard {
                        return self.refuse(id, http1::Error::BodyTooLarge);
                    }
                    // A service that asks for a body where there is none gets its end at once.
                    if request.has_body() || mode != BodyMode::Discard {
                        let now = core.connections.now;
                        request_bodies.begin(id, &request, (mode, max_body), now);
                    }
                    // A client that sends the body already does not wait for permission (RFC 9110
                    // section 10.1.1).
                    if mode != BodyMode::Discard && request.expects_continue() && input.is_empty() {
                        core.connections.write(id, http1::encode::encode_continue);
                    }
                    let close_mode = close_mode(&request, !request.has_body() && input.is_empty());
                    self.complete_handshake(id);
                    if self.apply_answer(id, answer, input, close_mode) {
                        return;
                    }
                    if too_large {
                        // A body that the service did not ask for is read and dropped, but not
                        // without end.
                        self.core.connections.finish(id, AfterFlush::Linger);
                    }
                }
                Ok(Some(http1::Event::Body(bytes))) => {
                    let Some(request_body) = request_bodies.of(id) else { continue };
                    let limits = &core.connections.limits;
                    let (timeout, rate) = (limits.handshake, limits.min_body_rate);
                    let most = limits.max_body_memory;
                    let (enough, now) = (u64::from(timeout) * rate as u64, core.connections.now);
                    if request_body.note(bytes.len(), enough, now) {
                        core.connections.timers.due_in(id, timeout);
                    }
                    match request_body.mode {
                        BodyMode::Discard => {}
                        BodyMode::Buffer => {
                            core.connections.memory.add(bytes.len());
                            let mut buffered = request_bodies.buffer(id, bytes, most);
                            while !buffered && end_slowest_bodies(core, service, request_bodies, id)
                            {
                                buffered = request_bodies.buffer(id, bytes, most);
                            }
                            if !buffered {
                                return self.turn_away(id);
                            }
                        }
                        BodyMode::Stream => {
                            let flow = service.on_body_chunk(&mut Cx::new(core, id), bytes);
                            if flow == Flow::Stop
                                && let Some(conn) = core.connections.table.conn_mut(id)
                                && conn.is(Stage::Http)
                            {
                                conn.advance(Stage::Serving);
                            }
                        }
                    }
                }
                Ok(Some(http1::Event::End)) => {
                    let keep_alive = core.connections.limits.keep_alive;
                    core.connections.timers.due_in(id, keep_alive);
                    if let Some(conn) = core.connections.table.conn_mut(id) {
                        conn.set(flag::REQUEST, false);
                    }
                    let Some(request_body) = request_bodies.end(id) else { continue };
                    let cx = &mut Cx::new(core, id);
                    let followed = match request_body.mode {
                        BodyMode::Discard => None,
                        BodyMode::Stream => {
                            let answer = service.on_body_end(cx, decoder.trailers());
                            Some((answer, AfterFlush::Linger))
                        }
                        BodyMode::Buffer => request_body.head.request().map(|request| {
                            let answer = service.on_body(cx, &request, &request_body.body);
                            (answer, close_mode(&request, input.is_empty()))
                        }),
                    };
                    request_bodies.put_back(request_body);
                    if let Some((answer, close_mode)) = followed
                        && self.apply_answer(id, answer, input, close_mode)
                    {
                        return;
                    }
                }
                Err(error) => return self.refuse(id, error),
            }
        }
    }

    /// Refuses a request that cannot be accepted; it is the connection's last.
    #[cold]
    fn refuse(&mut self, id: ConnId, error: http1::Error) {
        let Self { core, service, request_bodies, .. } = self;
        core.connections.stats.bad_requests += 1;
        // Of two answers to one request, the client would take the second for that to its next.
        if !request_bodies.is_dropped(id) {
            service.on_bad_request(&mut Cx::new(core, id), error.status(), &error.to_string());
        }
        core.connections.finish(id, AfterFlush::Linger);
    }

    /// Refuses a body for which no memory is left.
    #[cold]
    fn turn_away(&mut self, id: ConnId) {
        let Self { core, service, request_bodies, .. } = self;
        request_bodies.end(id);
        core.connections.stats.bad_requests += 1;
        service.on_refused(&mut Cx::new(core, id), Refusal::Full);
        core.connections.finish(id, AfterFlush::Linger);
    }

    /// Applies an answer to its connection; `close_mode` if it is the last one. Returns true if no
    /// request follows.
    fn apply_answer(
        &mut self,
        id: ConnId,
        answer: Answer,
        input: &mut Input<'_>,
        close_mode: AfterFlush,
    ) -> bool {
        match answer {
            Answer::Upgraded => self.open_session(id, ws::Role::Server),
            Answer::Events => {
                input.take(usize::MAX);
                self.open_events(id);
            }
            Answer::Done { keep_alive: false } => {
                self.core.connections.finish(id, close_mode);
                return false;
            }
            Answer::Upgrading => {
                let connections = &mut self.core.connections;
                if let Some(conn) = connections.table.conn_mut(id)
                    && conn.is(Stage::Http)
                    && !conn.is_finishing()
                {
                    conn.advance(Stage::Serving);
                    conn.set(flag::UPGRADE_LATER, true);
                    connections.timers.due_in(id, connections.limits.handshake);
                }
                return false;
            }
            Answer::Later => {
                if let Some(conn) = self.core.connections.table.conn_mut(id)
                    && conn.is(Stage::Http)
                {
                    conn.advance(Stage::Serving);
                }
                return false;
            }
            Answer::Done { keep_alive: true } | Answer::Body { .. } | Answer::Chunks { .. } => {
                return false;
            }
        }
        true
    }

    /// Starts a request's deadline at its first byte; later bytes do not move it, so a slow drip
    /// ends on time.
    fn record_request(&mut self, id: ConnId, between: bool) {
        let connections = &mut self.core.connections;
        let Some(conn) = connections.table.conn_mut(id) else { return };
        if conn.has(flag::FINISHED) {
            // It has half-closed, and what it had asked for before that is answered.
            return connections.finish(id, AfterFlush::Close);
        }
        // The first request's deadline runs since the accept.
        if !between && !conn.has(flag::REQUEST) && !conn.has(flag::PENDING) {
            connections.timers.due_in(id, connections.limits.handshake);
        }
        if let Some(conn) = connections.table.conn_mut(id) {
            conn.set(flag::REQUEST, !between);
        }
        if !between {
            connections.count_incomplete();
            connections.list_incomplete(id);
        }
    }

    /// Marks a connection that has sent its first request as no pending handshake any more.
    fn complete_handshake(&mut self, id: ConnId) {
        if let Some(conn) = self.core.connections.table.conn_mut(id)
            && conn.has(flag::PENDING)
        {
            conn.set(flag::PENDING, false);
            self.admission.complete_handshake();
        }
    }

    fn pump_response(&mut self, id: ConnId, input: &mut Input<'_>) {
        let Self { core, service, inbound, .. } = self;
        let Inbound::Response(decoder) = &mut inbound[id.slot()] else { return };
        if core.connections.table.stage(id) != Stage::Upgrading {
            return;
        }
        match decoder.next_event(input, &core.connections.limits.http) {
            Ok(None) => {}
            Ok(Some(http1::ResponseEvent::Head(response))) => {
                match service.on_response(&mut Cx::new(core, id), &response) {
                    Answer::Upgraded => self.open_session(id, ws::Role::Client),
                    _ => {
                        core.connections.finish(id, AfterFlush::Abort);
                    }
                }
            }
            Ok(Some(_)) | Err(_) => core.connections.finish(id, AfterFlush::Abort),
        }
    }

    /// Opens the session of an upgrade that the service has accepted just now.
    pub(crate) fn open_accepted(&mut self, id: ConnId) {
        let Some(conn) = self.core.connections.table.conn_mut(id) else { return };
        if conn.is(Stage::Http) && conn.has(flag::UPGRADE_LATER) {
            conn.set(flag::UPGRADE_LATER, false);
            self.open_session(id, ws::Role::Server);
        }
    }

    fn open_session(&mut self, id: ConnId, role: ws::Role) {
        let deflate =
            self.core.connections.table.conn(id).is_some_and(|conn| conn.has(flag::DEFLATE));
        self.inbound[id.slot()] = Inbound::Ws(match deflate {
            true => ws::Decoder::with_deflate(role),
            false => ws::Decoder::new(role),
        });
        let connections = &mut self.core.connections;
        let Some(conn) = connections.table.conn_mut(id) else { return };
        if conn.is_finishing() {
            return;
        }
        conn.advance(Stage::Open);
        conn.set(flag::SESSION, true);
        conn.set(flag::UPGRADING, conn.out.is_some());
        conn.set(flag::REQUEST, false);
        connections.stats.opened += 1;
        connections.stats.sessions += 1;
        if let Some(cold) = connections.table.cold_mut(id) {
            (cold.peer, cold.tls) = (None, None);
        }
        connections.table.shed_cold(id);
        connections.timers.start_session(id.slot());
        self.service.on_open(&mut Cx::new(&mut self.core, id));
    }

    /// Opens a stream of events: the head of the answer is queued, and the connection subscribed;
    /// events follow until either side ends it.
    fn open_events(&mut self, id: ConnId) {
        self.inbound[id.slot()] = Inbound::Events;
        let connections = &mut self.core.connections;
        connections.stats.streams += 1;
        connections.timers.start_session(id.slot());
        if let Some(conn) = connections.table.conn_mut(id) {
            conn.set(flag::REQUEST, false);
        }
    }
}
