//! HTTP on a connection: requests, or the answer to our request; and the start of a session, or of
//! a stream of events.

use std::ops::ControlFlow;

use throng_io::ConnId;
use throng_proto::Input;
use throng_proto::{http1, ws};

use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::context::Cx;
use crate::message::Refusal;
use crate::service::{Answer, Service};
use crate::shard::EngineParts;
use crate::shard::input::request_events::{RequestOutcome, Requests, event_limits};
use crate::ws::inbound::Inbound;

impl<S: Service> EngineParts<S> {
    /// Handles input before there is a session: requests, or the answer to our request. Input after
    /// an upgrade is left; returns true if there is any.
    #[inline(never)]
    pub(crate) fn pump_handshake(&mut self, id: ConnId, input: &mut Input<'_>) -> bool {
        match self.intake.inbound(id) {
            Inbound::Http(_) => self.pump_http(id, input),
            Inbound::Response(_) => self.pump_response(id, input),
            Inbound::Events => {
                input.take(usize::MAX);
            }
            Inbound::ProxyHeader(_) => self.pump_proxy_header(id, input),
            // The remaining input is held, and given to the driver later.
            Inbound::DueTls(_) => {}
            Inbound::Nothing | Inbound::Refused | Inbound::Ws(_) => {}
        }
        self.intake.is_ws(id) && !input.is_empty()
    }

    /// Decodes requests until all input is used, the connection stops serving, or the remaining
    /// input has to wait.
    pub(super) fn pump_http(&mut self, id: ConnId, input: &mut Input<'_>) {
        self.core.conns.promise_flush(id);
        while self.reads_requests(id) && !self.must_wait(id, input) {
            let Self { core, service, intake, .. } = self;
            let Some((decoder, bodies)) = intake.requests(id) else { return };
            let limits = event_limits(core, decoder, bodies, id);
            let mut requests = Requests::new(core, service, bodies, id);
            let outcome = match decoder.next_event(input, &limits) {
                Ok(None) => {
                    RequestOutcome::Incomplete { is_between: decoder.is_between_requests() }
                }
                Ok(Some(http1::Event::Head(request))) => {
                    requests.on_head(&request, input.is_empty())
                }
                Ok(Some(http1::Event::Body(bytes))) => requests.on_body(bytes),
                Ok(Some(http1::Event::End)) => {
                    requests.on_end(decoder.trailers(), input.is_empty())
                }
                Err(error) => RequestOutcome::Refuse(error),
            };
            if self.apply(id, outcome, input).is_break() {
                return;
            }
        }
    }

    /// Returns whether further requests of this connection are decoded.
    fn reads_requests(&self, id: ConnId) -> bool {
        let conn = self.core.conns.conn(id);
        self.intake.is_http(id)
            && conn.is_some_and(|conn| conn.is(Stage::Http) && !conn.is_finishing())
    }

    /// Returns whether the rest of the input waits for its connection's output, or for others.
    fn must_wait(&mut self, id: ConnId, input: &Input<'_>) -> bool {
        let core = &mut self.core;
        !input.is_empty() && (core.conns.must_yield(id) || core.clocks.is_up(id))
    }

    /// Applies the result of an event. Breaks if no further request is decoded now.
    fn apply(
        &mut self,
        id: ConnId,
        outcome: RequestOutcome,
        input: &mut Input<'_>,
    ) -> ControlFlow<()> {
        match outcome {
            RequestOutcome::Continue => return ControlFlow::Continue(()),
            RequestOutcome::Incomplete { is_between } => {
                self.core.conns.record_request(id, is_between);
            }
            RequestOutcome::Refuse(error) => self.refuse(id, error),
            RequestOutcome::TurnAway => self.turn_away(id),
            RequestOutcome::End(close_mode) => {
                self.intake.set(id, Inbound::Refused);
                self.core.conns.finish(id, close_mode);
            }
            RequestOutcome::Begin { answer, close_mode, is_too_large } => {
                self.entrance.complete(id, &mut self.core.conns);
                self.apply_answer(id, answer, input, close_mode)?;
                if is_too_large {
                    // A body that the service did not request is read and dropped, within bounds.
                    self.core.conns.finish(id, AfterFlush::Linger);
                }
                return ControlFlow::Continue(());
            }
            RequestOutcome::Answer(answer, close_mode) => {
                return self.apply_answer(id, answer, input, close_mode);
            }
        }
        ControlFlow::Break(())
    }

    /// Refuses a request that cannot be accepted; it is the connection's last.
    #[cold]
    fn refuse(&mut self, id: ConnId, error: http1::Error) {
        let Self { core, service, intake, .. } = self;
        core.conns.count(|stats| stats.bad_requests += 1);
        // If one request got two answers, the client would take the second for the answer to its
        // next request.
        if !intake.is_body_dropped(id) {
            service.on_bad_request(&mut Cx::new(core, id), error.status(), &error.to_string());
        }
        core.conns.finish(id, AfterFlush::Linger);
    }

    /// Refuses a body for which no memory is left.
    #[cold]
    fn turn_away(&mut self, id: ConnId) {
        self.intake.end_body(id);
        self.core.conns.count(|stats| stats.bad_requests += 1);
        self.refuse_request(id, Refusal::BodyMemory);
    }

    /// Answers a request with this refusal; it is the connection's last.
    pub(super) fn refuse_request(&mut self, id: ConnId, why: Refusal) {
        self.guarded(id, |parts| {
            parts.service.on_refused(&mut Cx::new(&mut parts.core, id), why);
        });
        self.core.conns.finish(id, AfterFlush::Linger);
    }

    /// Applies an answer to its connection; `close_mode` if it is the last one. Breaks if no
    /// request follows.
    fn apply_answer(
        &mut self,
        id: ConnId,
        answer: Answer,
        input: &mut Input<'_>,
        close_mode: AfterFlush,
    ) -> ControlFlow<()> {
        if let Answer::Done { .. } = answer {
            self.core.clocks.end_request(id);
        }
        match answer {
            Answer::Upgraded => {
                self.open_session(id, ws::Role::Server);
                return ControlFlow::Break(());
            }
            Answer::Events => {
                self.core.clocks.samples().forget(id);
                input.take(usize::MAX);
                self.open_events(id);
                return ControlFlow::Break(());
            }
            Answer::Done { keep_alive: false } => self.core.conns.finish(id, close_mode),
            Answer::Upgrading => self.core.conns.await_upgrade(id),
            Answer::Later => self.core.conns.await_answer(id),
            Answer::Done { keep_alive: true } | Answer::Body { .. } | Answer::Chunks { .. } => {}
        }
        ControlFlow::Continue(())
    }

    fn pump_response(&mut self, id: ConnId, input: &mut Input<'_>) {
        let Self { core, service, intake, .. } = self;
        let Some(decoder) = intake.response(id) else { return };
        if core.conns.stage(id) != Stage::Upgrading {
            return;
        }
        // Other responses may come before the final response, such as 103 (RFC 9110 section 15.2).
        let answer = loop {
            match decoder.next_event(input, &core.conns.limits().http) {
                Ok(Some(http1::ResponseEvent::Head(response))) if response.is_interim() => {}
                other => break other,
            }
        };
        let is_upgraded = match answer {
            Ok(None) => return,
            Ok(Some(http1::ResponseEvent::Head(response))) => {
                let answer = service.on_response(&mut Cx::new(core, id), &response);
                matches!(answer, Answer::Upgraded)
            }
            Ok(Some(_)) | Err(_) => false,
        };
        match is_upgraded {
            true => self.open_session(id, ws::Role::Client),
            false => core.conns.finish(id, AfterFlush::Abort),
        }
    }

    /// Opens the session of an upgrade that the service has accepted just now.
    pub(crate) fn open_accepted(&mut self, id: ConnId) {
        let Some(conn) = self.core.conns.conn_mut(id) else { return };
        if conn.is(Stage::Http) && conn.has(flag::UPGRADE_LATER) {
            conn.set(flag::UPGRADE_LATER, false);
            self.open_session(id, ws::Role::Server);
        }
    }

    fn open_session(&mut self, id: ConnId, role: ws::Role) {
        let deflate = self.core.conns.has(id, flag::DEFLATE);
        let decoder = if deflate { ws::Decoder::with_deflate } else { ws::Decoder::new };
        self.intake.set(id, Inbound::Ws(decoder(role)));
        if !self.core.conns.open_session(id) {
            return;
        }
        self.core.clocks.open(id);
        self.service.on_open(&mut Cx::new(&mut self.core, id));
        if let Some(conn) = self.core.conns.conn_mut(id)
            && conn.has(flag::COUNTED)
        {
            // Without a 101 response to send, no flush would begin to count.
            conn.set(flag::UPGRADING, true);
        }
    }

    /// Opens a stream of events: the head of the answer is queued, and the connection subscribed;
    /// events follow until either side ends it.
    fn open_events(&mut self, id: ConnId) {
        self.intake.set(id, Inbound::Events);
        self.core.conns.open_events(id);
    }
}
