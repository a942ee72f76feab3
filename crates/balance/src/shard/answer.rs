//! Responses: bytes of backends to clients, event by event.

use std::time::Duration;

use throng_engine::Progress;
use throng_io::{Batch, ConnId};
use throng_proto::Input;
use throng_proto::http1::{HeaderLines, Limits, Response, ResponseDecoder, ResponseEvent};

use super::records::{ClientRecord, BalanceRecord, HttpSide, Upstream, Exchange};
use super::{ConnAction, RECEIVE_BUFFER, BalanceParts};
use crate::forward::{self, Framing};
use crate::report::Failure;

/// The reason why reading a response stopped.
enum Stop {
    Failed(Failure),
    Whole,
    Switched,
    Starved,
}

/// Maximum interim responses to a request. A backend that sends them for ever would keep its
/// client waiting, and the shard busy.
const MAX_INTERIM: u8 = 16;

impl BalanceParts {
    /// Handles lent bytes of a backend that speaks HTTP.
    pub(super) fn upstream_received(&mut self, id: ConnId, bytes: &mut [u8]) {
        let BalanceRecord::Upstream(mut upstream) = self.records.take(id) else { return };
        let client_id = upstream.client;
        let Some(client_id) = client_id else {
            // No request is under way: the next one must not get these bytes for an answer.
            self.pool.remove(upstream.backend.address(), id);
            self.records.insert(id, BalanceRecord::Upstream(upstream));
            return self.actions.push_back(ConnAction::Close(id));
        };
        let BalanceRecord::Client(mut client) = self.records.take(client_id) else {
            self.records.insert(id, BalanceRecord::Upstream(upstream));
            return self.actions.push_back(ConnAction::Close(id));
        };
        let is_cut = bytes.len() >= RECEIVE_BUFFER;
        let mut input = Input::new(bytes);
        let stop = self.read_answer(id, &mut upstream, &mut client, &mut input);
        match stop {
            Stop::Failed(failure) => self.actions.push_back(ConnAction::Fail(id, failure)),
            Stop::Switched => {
                let surplus = input.as_slice();
                upstream.boundary.advance(surplus);
                self.write(&mut client.http, |out| out.extend_from_slice(surplus));
                self.actions.push_back(ConnAction::Open { client: client_id, upstream: id });
            }
            Stop::Whole => {
                // Surplus bytes cannot be distinguished from an answer to the next request; nor can
                // bytes beyond a read that filled the buffer.
                if !input.is_empty() || is_cut {
                    upstream.is_last = true;
                }
                self.actions.push_back(ConnAction::Complete(client_id));
            }
            Stop::Starved => self.actions.push_back(ConnAction::Flush(client_id)),
        }
        self.records.insert(client_id, BalanceRecord::Client(client));
        self.records.insert(id, BalanceRecord::Upstream(upstream));
    }

    fn read_answer(
        &mut self,
        id: ConnId,
        upstream: &mut Upstream,
        client: &mut ClientRecord,
        input: &mut Input<'_>,
    ) -> Stop {
        let may_follow = client.may_ask_again();
        let Some(exchange) = client.exchange.as_deref_mut() else { return Stop::Starved };
        let limits = self.response_limits;
        let timeouts = &self.configuration.settings.timeouts;
        let (of_answer, of_body) = (upstream.answer_timeout(timeouts), timeouts.body);
        let decoder = &mut upstream.decoder;
        let mut answer = AnswerReader {
            before: None,
            of_answer,
            of_body,
            upstream: id,
            client: upstream.client,
            is_sent: upstream.http.is_clear(),
            is_last: &mut upstream.is_last,
            progress: &mut upstream.progress,
            has_tls: client.is_secure,
            may_follow,
            to: &mut client.http,
            exchange,
            state: self,
        };
        let stop = answer.read(decoder, input, &limits);
        answer.settle(&stop);
        stop
    }

    /// Returns the bytes of an answer's body that must come within `timeouts.body`. One whose
    /// length is not known may be a stream of events, whose pace is no fault.
    fn enough_of_answer(&self, framing: Framing) -> u64 {
        match framing {
            Framing::Length(_) => self.enough(self.configuration.settings.min_response_rate),
            Framing::Empty | Framing::Chunked | Framing::UntilClose => 0,
        }
    }
}

/// The parts of an answer's two connections, while its decoder lends the events.
struct AnswerReader<'a> {
    state: &'a mut BalanceParts,
    /// The backend's connection, and the client that it answers.
    upstream: ConnId,
    client: Option<ConnId>,
    /// The timeouts of the answer's head and of a body.
    of_answer: Duration,
    of_body: Duration,
    /// All that there was of the request has been sent.
    is_sent: bool,
    is_last: &'a mut bool,
    progress: &'a mut Progress,
    /// The client's connection has TLS.
    has_tls: bool,
    /// The client may send another request, or has done so.
    may_follow: bool,
    /// The client's side.
    to: &'a mut HttpSide,
    exchange: &'a mut Exchange,
    /// The head came with the bytes that are read, after this output, if there was any.
    before: Option<Option<Box<Batch>>>,
}

impl AnswerReader<'_> {
    fn read(
        &mut self,
        decoder: &mut ResponseDecoder,
        input: &mut Input<'_>,
        limits: &Limits,
    ) -> Stop {
        let mut is_switch = false;
        loop {
            let event = match decoder.next_event(input, limits) {
                Err(error) => return Stop::Failed(Failure::BadResponse(error.reason())),
                Ok(None) => return Stop::Starved,
                Ok(Some(event)) => event,
            };
            let outcome = match event {
                ResponseEvent::Head(response) if response.status() == 101 => {
                    is_switch = true;
                    self.on_switch(&response)
                }
                ResponseEvent::Head(response) if response.is_interim() => {
                    self.on_interim(&response)
                }
                ResponseEvent::Head(response) => {
                    // Until these bytes are read, it can be taken back.
                    self.before = Some(self.to.out.take_if(|out| !out.is_empty()));
                    self.on_head(&response);
                    Ok(())
                }
                ResponseEvent::Body(piece) => {
                    self.on_body(piece);
                    Ok(())
                }
                ResponseEvent::End if is_switch => return Stop::Switched,
                ResponseEvent::End => {
                    self.on_end(decoder.trailers());
                    return Stop::Whole;
                }
            };
            if let Err(failure) = outcome {
                return Stop::Failed(failure);
            }
        }
    }

    /// Takes an answer back whose first bytes have a fault: nothing of it has left, so its client
    /// is answered with 502 instead of a half answer and a reset.
    fn settle(&mut self, stop: &Stop) {
        let Some(before) = self.before.take() else { return };
        if matches!(stop, Stop::Failed(_)) {
            if let Some(out) = &mut self.to.out {
                out.clear();
            }
            self.exchange.is_answered = false;
            if let Some(entry) = &mut self.exchange.access {
                entry.unanswered();
            }
        }
        let Some(mut before) = before else { return };
        if let Some(mut answer) = self.to.out.take() {
            before.append(|out| answer.copy_to(&[], out));
            answer.clear();
            self.state.spares.give(answer);
        }
        self.to.out = Some(before);
    }

    /// Forwards a 101, if it agrees to what the client asked for.
    fn on_switch(&mut self, response: &Response<'_>) -> Result<(), Failure> {
        let exchange = &mut *self.exchange;
        forward::check_upgrade(response, exchange.key.as_ref()).map_err(Failure::BadUpgrade)?;
        exchange.is_answered = true;
        exchange.note_answer(101, self.state.time.now());
        if let Some(entry) = &mut exchange.access {
            entry.answered(101);
        }
        let cookie = self.state.cookie_for(exchange);
        self.write_head(response, true, true, cookie);
        Ok(())
    }

    /// Forwards an interim response to a client that knows of them.
    fn on_interim(&mut self, response: &Response<'_>) -> Result<(), Failure> {
        self.exchange.interim += 1;
        if self.exchange.interim > MAX_INTERIM {
            return Err(Failure::BadResponse("too many interim responses"));
        }
        self.extend(self.of_answer);
        if !self.exchange.is_http11 {
            return Ok(());
        }
        // A second backend's interim answer would be one too many.
        self.exchange.replay = None;
        if response.status() == 100
            && !self.exchange.is_complete
            && let Some(client) = self.client
        {
            // It has waited for this with its body.
            let due = self.state.time.after(self.of_body);
            self.state.records.set_deadline(client, due);
        }
        self.write_head(response, true, self.keeps_alive(), None);
        Ok(())
    }

    /// Forwards the head of the final response.
    fn on_head(&mut self, response: &Response<'_>) {
        // A part of a head is no answer, however it trickles.
        self.extend(self.of_body);
        let keep_alive = self.keeps_alive();
        let exchange = &mut *self.exchange;
        exchange.is_answered = true;
        exchange.note_answer(response.status(), self.state.time.now());
        if let Some(entry) = &mut exchange.access {
            entry.answered(response.status());
        }
        // The handshake is over, and the client may read slowly.
        exchange.permit = None;
        let cookie = self.state.cookie_for(exchange);
        let framing = self.write_head(response, self.exchange.is_http11, keep_alive, cookie);
        // A backend that answers before it has the whole request may not read the rest; one that
        // announces a body that is not due may send it. The server of one that refuses an upgrade
        // may have left the socket to a handler that reads no further request (Node).
        *self.is_last |= !self.exchange.is_complete
            || self.exchange.key.is_some()
            || !self.is_sent
            || forward::names_a_body_that_is_not_due(response);
        self.exchange.framing = framing;
        self.exchange.keep_alive = keep_alive && framing != Framing::UntilClose;
    }

    /// Forwards a part of the body.
    fn on_body(&mut self, piece: &[u8]) {
        let Self { state, exchange, to, .. } = self;
        let enough = state.enough_of_answer(exchange.framing);
        if self.progress.add(piece.len(), enough) {
            let due = state.time.after(self.of_body);
            state.records.set_deadline(self.upstream, due);
        }
        if let Some(entry) = &mut exchange.access {
            entry.bytes_out += piece.len() as u64;
        }
        match exchange.framing {
            Framing::Empty => {}
            Framing::Chunked => state.write(to, |out| forward::write_chunk(out, piece)),
            Framing::Length(_) | Framing::UntilClose => {
                state.write(to, |out| out.extend_from_slice(piece));
            }
        }
    }

    /// Forwards the end of the body.
    fn on_end(&mut self, trailers: HeaderLines<'_>) {
        if self.exchange.framing == Framing::Chunked {
            self.state.write(self.to, |out| forward::write_last_chunk(out, trailers));
        }
    }

    /// Returns whether the client's connection can continue after this answer. The rest of an
    /// incomplete request would be taken for the next one.
    fn keeps_alive(&self) -> bool {
        self.exchange.keep_alive
            && self.exchange.is_complete
            && self.state.shutdown.is_none()
            && self.may_follow
    }

    /// Gives the backend `timeout` more.
    fn extend(&mut self, timeout: Duration) {
        let due = self.state.time.after(timeout);
        self.state.records.set_deadline(self.upstream, due);
    }

    fn write_head(
        &mut self,
        response: &Response<'_>,
        http11: bool,
        keep_alive: bool,
        cookie: Option<String>,
    ) -> Framing {
        let hsts = self.state.hsts(self.has_tls);
        let is_head = self.exchange.is_head;
        let mut date = [0; 29];
        if !response.is_interim() {
            date.copy_from_slice(self.state.time.date().as_bytes());
        }
        let date = str::from_utf8(&date).unwrap_or_default();
        let to = forward::Client { http11, keep_alive, is_head, hsts: hsts.as_deref(), date };
        self.state
            .write(self.to, |out| forward::write_response(out, response, &to, cookie.as_deref()))
    }
}
