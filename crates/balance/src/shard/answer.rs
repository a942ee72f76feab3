//! Responses: bytes of backends to clients.

use throng_engine::HeldInput;
use throng_io::{ConnId, Driver};
use throng_proto::Input;
use throng_proto::http1::ResponseEvent;

use super::conn::{Client, Conn, Phase, Upstream};
use super::{Action, State};
use crate::Failure;
use crate::forward::{self, Framing};
use crate::shards::RECEIVE_BUFFER;

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

impl State {
    /// Handles lent bytes of a backend that speaks HTTP.
    pub(super) fn upstream_received(&mut self, id: ConnId, bytes: &mut [u8]) {
        let Conn::Upstream(mut upstream) = self.conns.take(id) else { return };
        let client_id = upstream.client;
        let Some(client_id) = client_id else {
            // No request is under way: the next one must not get these bytes for an answer.
            self.pool.remove(upstream.backend.address(), id);
            self.conns.insert(id, Conn::Upstream(upstream));
            return self.actions.push_back(Action::Close(id));
        };
        let Conn::Client(mut client) = self.conns.take(client_id) else {
            self.conns.insert(id, Conn::Upstream(upstream));
            return self.actions.push_back(Action::Close(id));
        };
        let is_cut = bytes.len() >= RECEIVE_BUFFER;
        let mut input = Input::new(bytes);
        let stop = self.read_answer(id, &mut upstream, &mut client, &mut input);
        match stop {
            Stop::Failed(failure) => self.actions.push_back(Action::Fail(id, failure)),
            Stop::Switched => {
                let surplus = input.as_slice();
                upstream.boundary.advance(surplus);
                self.write(&mut client.http, |out| out.extend_from_slice(surplus));
                self.actions.push_back(Action::Open { client: client_id, upstream: id });
            }
            Stop::Whole => {
                // Surplus bytes cannot be distinguished from an answer to the next request; nor can
                // bytes beyond a read that filled the buffer.
                if !input.is_empty() || is_cut {
                    upstream.is_last = true;
                }
                self.actions.push_back(Action::Complete(client_id));
            }
            Stop::Starved => self.actions.push_back(Action::Flush(client_id)),
        }
        self.conns.insert(client_id, Conn::Client(client));
        self.conns.insert(id, Conn::Upstream(upstream));
    }

    fn read_answer(
        &mut self,
        id: ConnId,
        upstream: &mut Upstream,
        client: &mut Client,
        input: &mut Input<'_>,
    ) -> Stop {
        let Some(exchange) = client.exchange.as_mut() else { return Stop::Starved };
        let limits = self.response_limits;
        let timeouts = &self.configuration.settings.timeouts;
        let (of_answer, of_body) = (upstream.answer_timeout(timeouts), timeouts.body);
        let mut is_switch = false;
        loop {
            match upstream.decoder.next_event(input, &limits) {
                Err(error) => return Stop::Failed(Failure::BadResponse(error.reason())),
                Ok(None) => return Stop::Starved,
                Ok(Some(ResponseEvent::Head(response))) if response.status() == 101 => {
                    if let Err(bad) = forward::check_upgrade(&response, exchange.key.as_ref()) {
                        return Stop::Failed(Failure::BadUpgrade(bad));
                    }
                    let cookie = self.cookie_for(exchange);
                    let to = forward::Client { http11: true, keep_alive: true, is_head: false };
                    exchange.is_answered = true;
                    is_switch = true;
                    if let Some(entry) = &mut exchange.access {
                        entry.answered(101);
                    }
                    self.write(&mut client.http, |out| {
                        forward::write_response(out, &response, &to, cookie.as_deref())
                    });
                }
                Ok(Some(ResponseEvent::Head(response))) => {
                    let is_interim = response.is_interim();
                    exchange.interim += u8::from(is_interim);
                    if exchange.interim > MAX_INTERIM {
                        return Stop::Failed(Failure::BadResponse("too many interim responses"));
                    }
                    // A part of a head is no answer, however it trickles.
                    let timeout = if is_interim { of_answer } else { of_body };
                    self.conns.set_deadline(id, self.tick.after(timeout));
                    if is_interim && !exchange.is_http11 {
                        continue;
                    }
                    if is_interim {
                        // A second backend's interim answer would be one too many.
                        exchange.replay = None;
                        if response.status() == 100
                            && !exchange.is_complete
                            && let Some(client) = upstream.client
                        {
                            // It has waited for this with its body.
                            self.conns.set_deadline(client, self.tick.after(of_body));
                        }
                    } else {
                        exchange.is_answered = true;
                        if let Some(entry) = &mut exchange.access {
                            entry.answered(response.status());
                        }
                        // The handshake is over, and the client may read slowly.
                        exchange.permit = None;
                    }
                    // The rest of an incomplete request would be taken for the next one.
                    let keep_alive = exchange.keep_alive
                        && exchange.is_complete
                        && self.shutdown.is_none()
                        && !client.http.finished;
                    let to = forward::Client {
                        http11: exchange.is_http11,
                        keep_alive,
                        is_head: exchange.is_head,
                    };
                    let cookie = if is_interim { None } else { self.cookie_for(exchange) };
                    let framing = self.write(&mut client.http, |out| {
                        forward::write_response(out, &response, &to, cookie.as_deref())
                    });
                    if !is_interim {
                        // A backend that answers before it has the whole request may not read the
                        // rest; one that announces a body that is not due may send it.
                        upstream.is_last |= !exchange.is_complete
                            || !upstream.http.is_clear()
                            || forward::names_a_body_that_is_not_due(&response);
                        exchange.framing = framing;
                        exchange.keep_alive = keep_alive && framing != Framing::UntilClose;
                    }
                }
                Ok(Some(ResponseEvent::Body(piece))) => {
                    let enough = self.enough_of_answer(exchange.framing);
                    if upstream.progress.add(piece.len(), enough) {
                        self.conns.set_deadline(id, self.tick.after(of_body));
                    }
                    if let Some(entry) = &mut exchange.access {
                        entry.bytes_out += piece.len() as u64;
                    }
                    match exchange.framing {
                        Framing::Empty => {}
                        Framing::Chunked => {
                            self.write(&mut client.http, |out| forward::write_chunk(out, piece))
                        }
                        Framing::Length(_) | Framing::UntilClose => {
                            self.write(&mut client.http, |out| out.extend_from_slice(piece));
                        }
                    }
                }
                Ok(Some(ResponseEvent::End)) => {
                    if is_switch {
                        return Stop::Switched;
                    }
                    if exchange.framing == Framing::Chunked {
                        let trailers = upstream.decoder.trailers();
                        self.write(&mut client.http, |out| {
                            forward::write_last_chunk(out, trailers)
                        });
                    }
                    return Stop::Whole;
                }
            }
        }
    }

    /// Returns the bytes of an answer's body that must come within `timeouts.body`. One whose
    /// length is not known may be a stream of events, whose pace is no fault.
    fn enough_of_answer(&self, framing: Framing) -> u64 {
        match framing {
            Framing::Length(_) => self.enough(self.configuration.settings.min_response_rate),
            Framing::Empty | Framing::Chunked | Framing::UntilClose => 0,
        }
    }

    /// Ends an answer whose body ends with its connection.
    pub(super) fn end_answer(&mut self, client_id: ConnId) {
        let Conn::Client(mut client) = self.conns.take(client_id) else { return };
        if client.exchange.as_ref().is_some_and(|exchange| exchange.framing == Framing::Chunked) {
            self.write(&mut client.http, |out| {
                forward::write_last_chunk(out, throng_proto::http1::HeaderLines::default());
            });
        }
        self.conns.insert(client_id, Conn::Client(client));
        self.actions.push_back(Action::Complete(client_id));
    }

    /// Completes an exchange: the backend's connection is free, and the client's continues or ends.
    pub(super) fn complete<D: Driver>(&mut self, driver: &mut D, client_id: ConnId) {
        let Conn::Client(mut client) = self.conns.take(client_id) else { return };
        let Some(exchange) = client.exchange.take() else {
            return self.conns.insert(client_id, Conn::Client(client));
        };
        if let Some(count) = &exchange.count {
            let requests = &count.backend().totals().requests;
            requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        self.record_answer(&exchange);
        let upstream_id = exchange.upstream;
        let keeps = exchange.keep_alive && exchange.is_complete && !client.http.finished;
        let is_complete = exchange.is_complete;
        drop(exchange);
        if let Some(upstream_id) = upstream_id {
            self.release(driver, upstream_id, is_complete);
        }
        let timeouts = &self.configuration.settings.timeouts;
        if keeps && self.shutdown.is_none() {
            // The flush continues with it.
            client.phase = Phase::Head;
        } else {
            client.phase = Phase::Leaving;
            client.held = HeldInput::default();
            self.conns.set_deadline(client_id, self.tick.after(timeouts.body));
            if client.http.paused {
                client.http.paused = false;
                driver.resume(client_id);
            }
        }
        self.conns.insert(client_id, Conn::Client(client));
        self.flush(driver, client_id);
    }

    /// Keeps a backend's connection for the next request, if it can carry one.
    fn release<D: Driver>(&mut self, driver: &mut D, id: ConnId, is_complete: bool) {
        let settings = &self.configuration.settings;
        let deadline = self.tick.after(settings.timeouts.keep_alive);
        let Some(upstream) = self.conns.upstream(id) else { return };
        let is_clean = is_complete
            && upstream.decoder.is_between_responses()
            && upstream.http.is_clear()
            && !upstream.http.finished
            && !upstream.is_last;
        upstream.client = None;
        if upstream.http.paused {
            upstream.http.paused = false;
            driver.resume(id);
        }
        let address = upstream.backend.address();
        let is_up = upstream.backend.state() == crate::State::Up;
        self.conns.set_deadline(id, deadline);
        if !is_clean
            || !is_up
            || self.shutdown.is_some()
            || !self.pool.put(address, id, settings.keep_alive)
        {
            self.close(driver, id);
        }
    }
}
