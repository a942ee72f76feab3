//! What comes before there is a session: requests, or the answer to ours; and how a session, or a stream of events,
//! begins.

use throng_io::ConnId;
use throng_proto::Input;
use throng_proto::{http1, ws};

use crate::conn::{AfterFlush, Stage, flag};
use crate::core::Cx;
use crate::receive::Inbound;
use crate::service::{Answer, Service};
use crate::state::State;

impl<S: Service> State<S> {
    /// What comes before there is a session: requests, or the answer to ours. What follows an upgrade is left;
    /// true if that is something.
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
            let Self { core, service, inbound, uploads, .. } = self;
            let Inbound::Http(decoder) = &mut inbound[id.slot()] else { return };
            match core.connections.conn(id) {
                Some(conn)
                    if conn.stage == Stage::Http && conn.after_flush == AfterFlush::Nothing => {}
                _ => return,
            }
            if !input.is_empty() && core.must_yield(id) {
                return;
            }
            match decoder.next_event(input, &core.connections.limits.http) {
                Ok(None) => {
                    let between = decoder.is_between_requests();
                    self.note_request(id, between);
                    return;
                }
                Ok(Some(http1::Event::Head(request))) => {
                    core.connections.stats.requests += 1;
                    let answer = service.on_request(&mut Cx::new(core, id), &request);
                    if answer == Answer::Body {
                        uploads.begin(id, &request);
                        // Nobody waits for permission who sends without it (RFC 9110 section 10.1.1).
                        if request.expects_continue() && input.is_empty() {
                            core.connections.write(id, http1::encode::encode_continue);
                        }
                    }
                    self.settle(id);
                    if self.follow(id, answer, input) {
                        return;
                    }
                }
                Ok(Some(http1::Event::Body(bytes))) => {
                    let limits = &core.connections.limits;
                    let (timeout, rate) = (limits.handshake, limits.min_body_rate);
                    if uploads.push(id, bytes, usize::from(timeout) * rate) {
                        core.connections.due_in(id, timeout);
                    }
                }
                Ok(Some(http1::Event::End)) => {
                    let keep_alive = core.connections.limits.keep_alive;
                    core.connections.due_in(id, keep_alive);
                    if let Some(conn) = core.connections.conn_mut(id) {
                        conn.set(flag::REQUEST, false);
                    }
                    let Some(upload) = uploads.end(id) else { continue };
                    let Some(request) = upload.head.request() else { continue };
                    let answer = service.on_body(&mut Cx::new(core, id), &request, &upload.body);
                    uploads.put_back(upload);
                    if self.follow(id, answer, input) {
                        return;
                    }
                }
                Err(error) => {
                    core.connections.stats.bad_requests += 1;
                    service.on_bad_request(
                        &mut Cx::new(core, id),
                        error.status(),
                        &error.to_string(),
                    );
                    core.connections.finish(id, AfterFlush::Linger);
                    return;
                }
            }
        }
    }

    /// What an answer means for its connection. True if no request follows.
    fn follow(&mut self, id: ConnId, answer: Answer, input: &mut Input<'_>) -> bool {
        match answer {
            Answer::Upgraded => self.open_session(id, ws::Role::Server),
            Answer::Events => {
                input.take(usize::MAX);
                self.open_events(id);
            }
            Answer::Done { keep_alive: false } => {
                self.core.connections.finish(id, AfterFlush::Linger);
                return false;
            }
            Answer::Done { keep_alive: true } | Answer::Body => return false,
        }
        true
    }

    /// The first byte of a request starts its deadline; later ones do not move it, so a slow drip ends on time.
    fn note_request(&mut self, id: ConnId, between: bool) {
        let connections = &mut self.core.connections;
        let Some(conn) = connections.conn_mut(id) else { return };
        // The first request's deadline runs since the accept.
        if !between && !conn.has(flag::REQUEST) && !conn.has(flag::PENDING) {
            connections.due_in(id, connections.limits.handshake);
        }
        if let Some(conn) = connections.conn_mut(id) {
            conn.set(flag::REQUEST, !between);
        }
    }

    /// The connection has said what it wants: it is no pending handshake any more.
    fn settle(&mut self, id: ConnId) {
        if let Some(conn) = self.core.connections.conn_mut(id)
            && conn.has(flag::PENDING)
        {
            conn.set(flag::PENDING, false);
            self.admission.settle();
        }
    }

    fn pump_response(&mut self, id: ConnId, input: &mut Input<'_>) {
        let Self { core, service, inbound, .. } = self;
        let Inbound::Response(decoder) = &mut inbound[id.slot()] else { return };
        if core.connections.stage(id) != Stage::Upgrading {
            return;
        }
        match decoder.next_event(input, &core.connections.limits.http) {
            Ok(None) => {}
            Ok(Some(http1::ResponseEvent::Head(response))) => {
                match service.on_response(&mut Cx::new(core, id), &response) {
                    Answer::Upgraded => self.open_session(id, ws::Role::Client),
                    Answer::Done { .. } | Answer::Events | Answer::Body => {
                        core.connections.finish(id, AfterFlush::Abort);
                    }
                }
            }
            Ok(Some(_)) | Err(_) => core.connections.finish(id, AfterFlush::Abort),
        }
    }

    fn open_session(&mut self, id: ConnId, role: ws::Role) {
        let deflate = self.core.connections.conn(id).is_some_and(|conn| conn.has(flag::DEFLATE));
        self.inbound[id.slot()] = Inbound::Ws(match deflate {
            true => ws::Decoder::with_deflate(role),
            false => ws::Decoder::new(role),
        });
        let counts_addresses = self.admission.counts_addresses();
        let connections = &mut self.core.connections;
        let Some(conn) = connections.conn_mut(id) else { return };
        if conn.after_flush != AfterFlush::Nothing {
            return;
        }
        conn.stage = Stage::Open;
        conn.set(flag::SESSION, true);
        conn.set(flag::UPGRADING, conn.out.is_some());
        conn.set(flag::REQUEST, false);
        connections.stats.opened += 1;
        connections.stats.sessions += 1;
        if !counts_addresses && let Some(cold) = connections.cold_mut(id) {
            cold.peer = None;
        }
        connections.shed_cold(id);
        connections.start_session(id.slot());
        self.service.on_open(&mut Cx::new(&mut self.core, id));
    }

    /// The head of the answer is queued, and the connection subscribed: events follow for as long as both want.
    fn open_events(&mut self, id: ConnId) {
        self.inbound[id.slot()] = Inbound::Events;
        let connections = &mut self.core.connections;
        connections.stats.streams += 1;
        connections.start_session(id.slot());
        if let Some(conn) = connections.conn_mut(id) {
            conn.set(flag::REQUEST, false);
        }
    }
}
