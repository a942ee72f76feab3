//! The road of an answer: a backend's bytes become the client's output, event by event; then both
//! connections continue or end.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use throng_engine::{HeldInput, LINGER_SILENCE, Progress};
use throng_io::{Batch, ConnId, Driver, SendOutcome};
use throng_proto::Input;
use throng_proto::http1::{HeaderLines, Limits, Response, ResponseDecoder, ResponseEvent};

use crate::backend::State;
use crate::forward::{self, Framing};
use crate::report::Failure;
use crate::shard::actions::{ActionQueue, ConnAction};
use crate::shard::records::{
    BalanceRecord, EighthTick, Exchange, Fact, HIGH_WATER, HttpSide, Phase, RecordDeadlines,
};
use crate::shard::rules::BalanceRules;
use crate::shard::time::Time;
use crate::shard::{BalanceParts, RECEIVE_BUFFER};

/// The reason why reading a response stopped.
enum Stop {
    Failed(Failure),
    Whole,
    Switched,
    Starved,
}

/// Maximum interim responses to a request. A backend that sends them forever would keep its client
/// waiting, and the shard busy.
const MAX_INTERIM: u8 = 16;

impl BalanceParts {
    /// Handles lent bytes of a backend that speaks HTTP.
    pub(in crate::shard) fn upstream_received(&mut self, id: ConnId, bytes: &mut [u8]) {
        let Some(upstream) = self.records.upstream(id) else { return };
        let Some(client_id) = upstream.client() else {
            // No request is in progress: the next one must not get these bytes for an answer.
            self.idle.remove(upstream.backend().id(), id);
            return self.actions.push(ConnAction::Close(id));
        };
        let Some((upstream, client, deadlines)) = self.records.exchange(id) else {
            return self.actions.push(ConnAction::Close(id));
        };
        let is_cut = bytes.len() >= RECEIVE_BUFFER;
        let mut input = Input::new(bytes);
        let may_follow = client.may_ask_again();
        let stop = match client.exchange.as_deref_mut() {
            None => Stop::Starved,
            Some(exchange) => {
                let timeouts = self.rules.timeouts();
                let mut answer = AnswerReader {
                    rules: &self.rules,
                    time: &mut self.time,
                    actions: &mut self.actions,
                    deadlines,
                    before: None,
                    of_answer: upstream.answer_timeout(timeouts),
                    of_body: self.rules.body_timeout(Some(exchange)),
                    upstream: id,
                    client: client_id,
                    is_sent: upstream.http.is_clear(),
                    is_last: &mut upstream.is_last,
                    progress: &mut upstream.progress,
                    has_tls: client.origin.is_secure(),
                    may_follow: may_follow && !self.tunnels.is_ending(),
                    to: &mut client.http,
                    exchange,
                };
                let limits = self.rules.response_limits();
                let stop = answer.read(&mut upstream.decoder, &mut input, &limits);
                answer.settle(&stop);
                stop
            }
        };
        match stop {
            Stop::Failed(failure) => self.actions.push(ConnAction::Fail(id, failure)),
            Stop::Switched => {
                let surplus = input.as_slice();
                upstream.begin_frames(surplus);
                self.actions.write(&mut client.http, |out| out.extend_from_slice(surplus));
                self.actions.push(ConnAction::Open { client: client_id, upstream: id });
            }
            Stop::Whole => {
                // Surplus bytes cannot be distinguished from an answer to the next request; nor can
                // bytes beyond a read that filled the buffer.
                if !input.is_empty() || is_cut {
                    upstream.is_last = true;
                }
                self.actions.push(ConnAction::Complete(client_id));
            }
            Stop::Starved => self.actions.push(ConnAction::Flush(client_id)),
        }
    }

    /// Handles an established connection to a backend.
    pub(in crate::shard) fn on_connected<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(upstream) = self.records.upstream(id) else { return };
        let deadline = self.time.after(upstream.answer_timeout(self.rules.timeouts()));
        upstream.connected();
        let client = upstream.client();
        let passed = client.filter(|_| upstream.is_passthrough());
        self.records.set_deadline(id, deadline);
        if let Some(exchange) =
            client.and_then(|client| self.records.client(client)?.exchange.as_mut())
        {
            // A handshake keeps its permit until its 101; other requests need it only for the
            // connection.
            if exchange.facts().key().is_none() {
                exchange.give_permit_back();
            }
        }
        self.flush(driver, id);
        if let Some(client) = passed {
            self.actions.push(ConnAction::Open { client, upstream: id });
        }
    }

    /// Ends an answer whose body ends with its connection.
    pub(in crate::shard) fn end_answer(&mut self, client_id: ConnId) {
        let Some(client) = self.records.client(client_id) else { return };
        if client.exchange.as_ref().is_some_and(|it| it.framing() == Framing::Chunked) {
            self.actions.write(&mut client.http, |out| {
                forward::write_last_chunk(out, HeaderLines::default());
            });
        }
        self.actions.push(ConnAction::Complete(client_id));
    }

    /// Completes an exchange: the backend's connection is free, and the client's continues or ends.
    pub(in crate::shard) fn complete<D: Driver>(&mut self, driver: &mut D, client_id: ConnId) {
        let Some(client) = self.records.client(client_id) else { return };
        let Some(exchange) = client.end_exchange() else { return };
        if let Some(backend) = exchange.backend() {
            backend.totals().requests.fetch_add(1, Relaxed);
        }
        self.log.answered(&exchange, self.time.now());
        let upstream_id = exchange.upstream();
        let is_complete = exchange.is_complete();
        let keeps = exchange.keeps_alive() && is_complete && client.may_ask_again();
        drop(exchange);
        if let Some(upstream_id) = upstream_id {
            self.release(driver, upstream_id, is_complete, keeps);
        }
        let Some(client) = self.records.client(client_id) else { return };
        if keeps && !self.tunnels.is_ending() {
            // The flush continues with it.
            client.phase = Phase::Head;
        } else {
            client.phase = Phase::Leaving;
            client.held = HeldInput::default();
            if client.http.resume() {
                driver.resume(client_id);
            }
            self.records.set_deadline(client_id, self.time.after(self.rules.timeouts().body));
        }
        self.flush(driver, client_id);
    }

    /// Keeps a backend's connection for the next request, if it can carry another. `keeps`: the
    /// client may send another request.
    fn release<D: Driver>(&mut self, driver: &mut D, id: ConnId, is_complete: bool, keeps: bool) {
        let deadline = self.time.after(self.rules.timeouts().keep_alive);
        let Some(upstream) = self.records.upstream(id) else { return };
        let owner = upstream.release();
        let is_clean = is_complete && upstream.may_carry_more() && (keeps || owner.is_none());
        if upstream.http.resume() {
            driver.resume(id);
        }
        let (backend, most) = (upstream.backend().id(), upstream.keep_alive());
        let is_up = upstream.backend().state() == State::Up;
        self.records.set_deadline(id, deadline);
        let surplus = match is_clean && is_up && !self.tunnels.is_ending() {
            true => self.idle.put(backend, id, owner, most),
            false => Some(id),
        };
        if let Some(surplus) = surplus {
            self.close(driver, surplus);
        }
    }

    /// Sends the outbox of `id`; when all is sent, resumes its source.
    pub(in crate::shard) fn flush<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let (http, source) = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) => {
                let upstream = client.exchange.as_ref().and_then(|exchange| exchange.upstream());
                (&mut client.http, upstream)
            }
            Some(BalanceRecord::Upstream(upstream)) if upstream.is_connected() => {
                let source = upstream.client();
                (&mut upstream.http, source)
            }
            _ => return,
        };
        if http.is_sending() {
            return self.hold_back(driver, id, source);
        }
        if let Some(out) = http.take_output() {
            match driver.send(id, out) {
                SendOutcome::Done(batch) => self.actions.reuse(batch),
                SendOutcome::Pending => {
                    http.set_sending(true);
                    self.hold_back(driver, id, source);
                    return self.record_progress(id);
                }
            }
        }
        self.record_progress(id);
        if let Some(source) = source {
            self.resume(driver, source);
        }
        let Some(client) = self.records.client(id) else { return };
        let is_far_ahead = client.held.len() > HIGH_WATER;
        if matches!(client.phase, Phase::Head | Phase::Leaving)
            && !is_far_ahead
            && client.http.resume()
        {
            driver.resume(id);
        }
        if client.phase == Phase::Head && !client.held.is_empty() {
            self.actions.push(ConnAction::Proceed(id));
        }
        if client.phase == Phase::Leaving {
            client.phase = Phase::Lingering;
            let sends_no_more = client.sends_no_more();
            let due = self.time.after(LINGER_SILENCE);
            self.clients.note_idle(id, client, self.time.tick());
            self.records.set_deadline(id, due);
            if sends_no_more {
                self.actions.push(ConnAction::Close(id));
            } else {
                driver.finish(id);
            }
        }
    }

    /// Pauses the source of the outbox of `id`: its `source`, or a client that sends requests and
    /// reads no answers.
    fn hold_back<D: Driver>(&mut self, driver: &mut D, id: ConnId, source: Option<ConnId>) {
        let is_between = self.records.client(id).is_some_and(|client| client.phase == Phase::Head);
        if let Some(waits) = source.or(is_between.then_some(id)) {
            self.pause(driver, waits);
        }
    }

    /// Extends the deadline of a peer that reads.
    fn record_progress(&mut self, id: ConnId) {
        let timeouts = self.rules.timeouts();
        let client = self.records.client(id).and_then(|client| client.exchange.as_deref());
        let body = self.time.after(self.rules.body_timeout(client));
        let keep_alive = self.time.after(timeouts.keep_alive);
        let mut is_idle = false;
        let due = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) if client.phase == Phase::Head => {
                is_idle = client.http.is_clear();
                if is_idle { keep_alive } else { body }
            }
            Some(BalanceRecord::Client(client)) if client.phase == Phase::Exchange => {
                let is_done =
                    client.exchange.as_ref().is_some_and(|exchange| exchange.is_complete());
                match (is_done, client.http.is_clear()) {
                    (_, false) => body,
                    (true, true) => EighthTick::NEVER,
                    // Only its body counts as progress of a request.
                    (false, true) => return,
                }
            }
            Some(BalanceRecord::Upstream(upstream)) if upstream.client().is_some() => {
                self.time.after(upstream.answer_timeout(timeouts))
            }
            _ => return,
        };
        self.records.set_deadline(id, due);
        if is_idle && let Some(client) = self.records.client(id) {
            self.clients.note_idle(id, client, self.time.tick());
        }
    }

    pub(in crate::shard) fn pause<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let http = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) => &mut client.http,
            Some(BalanceRecord::Upstream(upstream)) => &mut upstream.http,
            _ => return,
        };
        if http.pause() {
            driver.pause(id);
        }
    }

    pub(in crate::shard) fn resume<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let client = self.records.client(id).and_then(|client| client.exchange.as_deref());
        let body = self.time.after(self.rules.body_timeout(client));
        let (http, is_due) = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) if client.http.is_paused() => {
                let is_due =
                    client.exchange.as_ref().is_some_and(|exchange| !exchange.is_complete());
                if !is_due && client.held.len() > HIGH_WATER {
                    // The input waits for the answer: otherwise each completed request would allow
                    // another read.
                    return;
                }
                // Held bytes come before new ones.
                if !client.held.is_empty() && is_due {
                    self.actions.push(ConnAction::Proceed(id));
                }
                (&mut client.http, is_due)
            }
            Some(BalanceRecord::Upstream(upstream)) if upstream.http.is_paused() => {
                upstream.progress = Progress::default();
                (&mut upstream.http, true)
            }
            _ => return,
        };
        if http.resume() {
            driver.resume(id);
        }
        if is_due {
            self.records.set_deadline(id, body);
        }
    }
}

/// The parts of an answer's two connections, while its decoder lends the events.
struct AnswerReader<'a> {
    rules: &'a BalanceRules,
    time: &'a mut Time,
    actions: &'a mut ActionQueue,
    deadlines: RecordDeadlines<'a>,
    /// The backend's connection, and the client of its answer.
    upstream: ConnId,
    client: ConnId,
    /// The timeouts of the answer's head and of a body.
    of_answer: Duration,
    of_body: Duration,
    /// All bytes of the request so far have been sent.
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
    /// The head came with the bytes being read, after this output, if there was any.
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
                    self.before = Some(self.to.take_output());
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

    /// Takes back an answer whose first bytes have a fault: none of it has left, so its client is
    /// answered with 502 instead of half an answer and a reset.
    fn settle(&mut self, stop: &Stop) {
        let Some(before) = self.before.take() else { return };
        if matches!(stop, Stop::Failed(_)) {
            if let Some(out) = self.to.out() {
                out.clear();
            }
            self.exchange.take_answer_back();
        } else {
            self.exchange.count_answer();
        }
        let Some(mut before) = before else { return };
        if let Some(mut answer) = self.to.out().take() {
            before.append(|out| answer.copy_to(&[], out));
            answer.clear();
            self.actions.reuse(answer);
        }
        *self.to.out() = Some(before);
    }

    /// Forwards a 101, if it fits the client's request.
    fn on_switch(&mut self, response: &Response<'_>) -> Result<(), Failure> {
        let exchange = &mut *self.exchange;
        forward::check_upgrade(response, exchange.facts().key()).map_err(Failure::BadUpgrade)?;
        exchange.answer(101, Framing::Empty, self.time.now());
        let cookie = self.rules.cookie_for(exchange);
        self.write_head(response, true, true, cookie);
        Ok(())
    }

    /// Forwards an interim response to a client that supports them.
    fn on_interim(&mut self, response: &Response<'_>) -> Result<(), Failure> {
        if self.exchange.count_interim() > MAX_INTERIM {
            return Err(Failure::BadResponse("too many interim responses"));
        }
        self.extend(self.of_answer);
        if !self.exchange.facts().is(Fact::Http11) {
            return Ok(());
        }
        if response.status() == 100 && !self.exchange.is_complete() {
            // The client has waited for this with its body.
            let due = self.time.after(self.of_body);
            self.deadlines.set(self.client, due);
        }
        self.write_head(response, true, self.keeps_alive(), None);
        Ok(())
    }

    /// Forwards the head of the final response.
    fn on_head(&mut self, response: &Response<'_>) {
        // A part of a head does not count as an answer, even if it keeps growing.
        self.extend(self.of_body);
        let keep_alive = self.keeps_alive();
        let cookie = self.rules.cookie_for(self.exchange);
        let http11 = self.exchange.facts().is(Fact::Http11);
        let framing = self.write_head(response, http11, keep_alive, cookie);
        self.exchange.answer(response.status(), framing, self.time.now());
        // The handshake is over, and the client may read slowly.
        self.exchange.give_permit_back();
        // A backend that answers before it has the whole request may not read the rest. If it
        // announces a body where none is allowed, it may send it. If it refuses an upgrade, it may
        // have left the socket to a handler that reads no further request (Node).
        *self.is_last |= !self.exchange.is_complete()
            || self.exchange.facts().key().is_some()
            || !self.is_sent
            || forward::names_a_body_that_is_not_due(response);
        self.exchange.set_keep_alive(keep_alive && framing != Framing::UntilClose);
    }

    /// Forwards a part of the body.
    fn on_body(&mut self, piece: &[u8]) {
        let Self { actions, exchange, to, .. } = self;
        let enough = self.rules.enough_of_answer(exchange);
        if self.progress.add(piece.len(), enough) {
            self.deadlines.set(self.upstream, self.time.after(self.of_body));
        }
        exchange.send_body(piece.len());
        match exchange.framing() {
            Framing::Empty => {}
            Framing::Chunked => actions.write(to, |out| forward::write_chunk(out, piece)),
            Framing::Length(_) | Framing::UntilClose => {
                actions.write(to, |out| out.extend_from_slice(piece));
            }
        }
    }

    /// Forwards the end of the body.
    fn on_end(&mut self, trailers: HeaderLines<'_>) {
        if self.exchange.framing() == Framing::Chunked {
            self.actions.write(self.to, |out| forward::write_last_chunk(out, trailers));
        }
    }

    /// Returns whether the client's connection can continue after this answer. The rest of an
    /// incomplete request would be taken for the next one.
    fn keeps_alive(&self) -> bool {
        self.exchange.keeps_alive() && self.exchange.is_complete() && self.may_follow
    }

    /// Gives the backend `timeout` more.
    fn extend(&mut self, timeout: Duration) {
        let due = self.time.after(timeout);
        self.deadlines.set(self.upstream, due);
    }

    fn write_head(
        &mut self,
        response: &Response<'_>,
        http11: bool,
        keep_alive: bool,
        cookie: Option<String>,
    ) -> Framing {
        let hsts = self.rules.hsts(self.has_tls, Some(self.exchange.policy()));
        let is_head = self.exchange.facts().is(Fact::Head);
        let date = if response.is_interim() { "" } else { self.time.date() };
        let to = forward::Client { http11, keep_alive, is_head, hsts: hsts.as_deref(), date };
        let cookies = cookie.as_deref().into_iter().chain(self.exchange.split_cookie());
        let edits = self.exchange.answer_edits();
        self.actions
            .write(self.to, |out| forward::write_response_with(out, response, &to, cookies, &edits))
    }
}
