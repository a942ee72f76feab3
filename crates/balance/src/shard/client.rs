//! Requests: from clients' bytes to exchanges, and the end of clients.

use std::net::IpAddr;
use std::time::SystemTime;

use throng_engine::{HeldInput, LINGER_SILENCE, Linger, Progress};
use throng_http::{DateCache, ReplyTo, Response};
use throng_io::{ConnId, Driver};
use throng_proto::http1::{BodyLength, Event, Request};
use throng_proto::{Input, proxy_protocol};

use super::conn::{Client, Conn, Exchange, Phase, Tick};
use super::output::HIGH_WATER;
use super::{Action, State};
use crate::forward;

/// The bytes of a request that are kept for a retry; a longer request has only its first try.
pub(super) const REPLAY_LIMIT: usize = 64 << 10;

/// The peer of a client's connection.
struct Peer<'a> {
    address: std::net::SocketAddr,
    has_tls: bool,
    /// The certificate that it has shown, in DER.
    certificate: Option<&'a [u8]>,
}

impl State {
    /// Handles lent bytes of a client that speaks HTTP.
    pub(super) fn client_received(&mut self, id: ConnId, bytes: &mut [u8]) {
        let Conn::Client(mut client) = self.conns.take(id) else { return };
        match client.phase {
            Phase::Proxy => {
                client.held.push(bytes);
                self.read_proxy_header(id, &mut client);
            }
            Phase::Head | Phase::Queued | Phase::Exchange => {
                let left = self.read(id, &mut client, bytes);
                if left > 0 && client.exchange.is_some() {
                    client.held.push(&bytes[bytes.len() - left..]);
                    self.pause_if_far_ahead(id, &client);
                }
            }
            Phase::Leaving => {}
            Phase::Lingering => {
                let dropped = client.dropped.get_or_insert(Linger::new(self.tick));
                if dropped.drop_input(self.tick, bytes.len()) {
                    self.conns.set_deadline(id, self.tick.after(LINGER_SILENCE));
                }
            }
        }
        self.conns.insert(id, Conn::Client(client));
    }

    /// Decodes what was held back, up to the end of one request.
    pub(super) fn proceed<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Conn::Client(mut client) = self.conns.take(id) else { return };
        let mut held = std::mem::take(&mut client.held);
        let before = held.len();
        let left = self.read(id, &mut client, held.as_mut_slice());
        if !matches!(client.phase, Phase::Leaving | Phase::Lingering) {
            held.consume(before - left);
            client.held = held;
            self.pause_if_far_ahead(id, &client);
        }
        // The rest of a head longer than the high water mark: no exchange will resume the client.
        if client.phase == Phase::Head && client.http.paused && client.http.is_clear() {
            client.http.paused = false;
            driver.resume(id);
        }
        self.conns.insert(id, Conn::Client(client));
    }

    /// Stops reading a client whose requests are far ahead of the answers.
    fn pause_if_far_ahead(&mut self, id: ConnId, client: &Client) {
        if client.held.len() > HIGH_WATER {
            self.actions.push_back(Action::Pause(id));
        }
    }

    /// Reads the PROXY header of a trusted proxy, before all else.
    fn read_proxy_header(&mut self, id: ConnId, client: &mut Client) {
        match proxy_protocol::decode(client.held.as_slice()) {
            Ok(proxy_protocol::Decoded::Needs(_)) => {}
            Ok(proxy_protocol::Decoded::Header(header)) => {
                if let Some((source, _)) = header.addresses {
                    client.address = source;
                }
                client.held.consume(header.len);
                client.phase = Phase::Head;
                if client.tls.is_some() {
                    self.actions.push_back(Action::Secure(id));
                } else if !client.held.is_empty() {
                    self.actions.push_back(Action::Proceed(id));
                }
            }
            Err(_) => {
                self.metrics.refused += 1;
                self.actions.push_back(Action::Close(id));
            }
        }
    }

    /// Begins TLS with a client whose PROXY header has come.
    pub(super) fn begin_tls<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.conns.client(id) else { return };
        let Some(tls) = client.tls.take() else { return };
        let held = std::mem::take(&mut client.held);
        let address = client.address;
        if !driver.secure_accepted(id, &tls, address, held.as_slice()) {
            self.close(driver, id);
        }
    }

    /// Decodes the usable bytes. Returns the number of bytes at the end of `bytes` that cannot be
    /// used yet.
    fn read(&mut self, id: ConnId, client: &mut Client, bytes: &mut [u8]) -> usize {
        let limits = self.limits;
        let enough = self.enough(self.configuration.settings.min_body_rate);
        let mut has_progressed = false;
        let mut input = Input::new(bytes);
        let was_between = client.decoder.is_between_requests();
        loop {
            if client.exchange.as_ref().is_some_and(|exchange| exchange.is_complete)
                || matches!(client.phase, Phase::Leaving | Phase::Lingering)
            {
                break;
            }
            let peer = Peer {
                address: client.address,
                has_tls: client.is_secure,
                certificate: client.certificate.as_deref(),
            };
            match client.decoder.next_event(&mut input, &limits) {
                Ok(None) => break,
                Ok(Some(Event::Head(request))) => {
                    if client.is_due_tls
                        && !client.is_secure
                        && let Some(response) = self.configuration.plain.response(&request)
                    {
                        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                        let mut date = DateCache::new();
                        let date = date.at(now.map_or(0, |now| now.as_secs()));
                        let to = ReplyTo::request(&request, date);
                        self.answer_without_tls(id, client, &response, &to);
                        break;
                    }
                    match self.begin_exchange(&request, &peer) {
                        Ok(exchange) => {
                            client.exchange = Some(Box::new(exchange));
                            client.has_asked = true;
                            client.phase = Phase::Exchange;
                            let body = self.configuration.settings.timeouts.body;
                            self.conns.set_deadline(id, self.tick.after(body));
                            self.actions.push_back(Action::Dispatch(id));
                        }
                        Err((status, reason)) => self.refuse(id, client, status, reason),
                    }
                }
                Ok(Some(Event::Body(piece))) => {
                    let Some(exchange) = client.exchange.as_mut() else { break };
                    has_progressed |= exchange.progress.add(piece.len(), enough);
                    if let Some(entry) = &mut exchange.access {
                        entry.bytes_in += piece.len() as u64;
                    }
                    self.forward_body(exchange, |out, chunked| {
                        if chunked {
                            forward::write_chunk(out, piece);
                        } else {
                            out.extend_from_slice(piece);
                        }
                    });
                }
                Ok(Some(Event::End)) => {
                    let trailers = client.decoder.trailers();
                    let Some(exchange) = client.exchange.as_mut() else { break };
                    exchange.is_complete = true;
                    if exchange.chunked {
                        self.forward_body(exchange, |out, _| {
                            forward::write_last_chunk(out, trailers)
                        });
                    }
                    if client.phase == Phase::Exchange && !client.http.sending {
                        self.conns.set_deadline(id, Tick::NEVER);
                    }
                }
                Err(error) => self.refuse(id, client, error.status(), error.reason()),
            }
        }
        let left = input.len();
        if client.phase == Phase::Head && was_between && client.decoder.is_in_head() {
            let head = self.configuration.settings.timeouts.head;
            self.conns.set_deadline(id, self.tick.after(head));
        }
        if let Some(exchange) = &client.exchange {
            let backlog = match exchange.upstream {
                Some(upstream) => {
                    let (backlog, is_connected) =
                        self.conns.upstream(upstream).map_or((0, true), |upstream| {
                            (upstream.http.backlog(), upstream.is_connected)
                        });
                    if backlog > 0 {
                        self.actions.push_back(Action::Flush(upstream));
                    }
                    // The flush itself pauses the client of a connected backend that is behind.
                    if is_connected { 0 } else { backlog }
                }
                None => exchange.replay.as_ref().map_or(0, Vec::len),
            };
            if backlog > HIGH_WATER && !exchange.is_complete {
                self.actions.push_back(Action::Pause(id));
            } else if has_progressed
                && client.phase == Phase::Exchange
                && !exchange.is_complete
                && self.conns.deadline(id) != Tick::NEVER
            {
                let body = self.configuration.settings.timeouts.body;
                self.conns.set_deadline(id, self.tick.after(body));
            }
        }
        left
    }

    /// Builds the exchange of a request: its relevant properties and the text for its backend.
    fn begin_exchange(
        &mut self,
        request: &Request<'_>,
        &Peer { address: peer, has_tls, certificate }: &Peer<'_>,
    ) -> Result<Exchange, (u16, &'static str)> {
        self.metrics.requests += 1;
        let settings = &self.configuration.settings;
        let asked =
            forward::validate(request).map_err(|refusal| (refusal.status(), refusal.reason()))?;
        let is_trusted = settings.trusted_proxies.iter().any(|network| network.contains(peer.ip()));
        let client: IpAddr = forward::client_address(request, peer, &settings.trusted_proxies);
        let binding = forward::sticky_key(&settings.sticky, request, client);
        let mut head = Vec::with_capacity(request.raw().len() + 256);
        // Backends may leave the body of any other method unread, and of one they do not know.
        let has_odd_body =
            request.has_body() && !matches!(request.method(), "POST" | "PUT" | "PATCH");
        let hop = forward::Hop {
            peer: peer.ip(),
            trusted: is_trusted,
            certificate,
            scheme: if has_tls { forward::Scheme::Https } else { forward::Scheme::Http },
            close: has_odd_body,
            dropped: &settings.drop_headers,
        };
        forward::write_request(&mut head, request, &hop);
        Ok(Exchange {
            replay: Some(head),
            key: asked.key().cloned(),
            is_head: request.method() == "HEAD",
            is_idempotent: matches!(
                request.method(),
                "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "TRACE"
            ),
            is_http11: request.is_http11(),
            keep_alive: request.keep_alive(),
            has_odd_body,
            chunked: request.body_length() == BodyLength::Chunked,
            client,
            sticky_key: match binding {
                Some(forward::Bound::Hash(hash)) => Some(hash),
                _ => None,
            },
            bound: match binding {
                Some(forward::Bound::Backend(key)) => Some(key),
                _ => None,
            },
            is_secure: match is_trusted {
                true => forward::came_by_https(request),
                false => has_tls,
            },
            tried: Vec::new(),
            failure: None,
            is_complete: false,
            progress: Progress::default(),
            interim: 0,
            is_answered: false,
            framing: forward::Framing::Empty,
            upstream: None,
            count: None,
            permit: None,
            began: self.now,
            access: self.new_entry(request, client),
        })
    }

    /// Forwards more of a request's body to its backend if it has one, and to the copy for a retry
    /// while there is one.
    fn forward_body(&mut self, exchange: &mut Exchange, write: impl Fn(&mut Vec<u8>, bool)) {
        let chunked = exchange.chunked;
        let upstream = exchange.upstream.and_then(|id| self.conns.upstream(id));
        if let Some(upstream) = upstream {
            let out = upstream.http.out.get_or_insert_with(|| self.spares.take());
            out.append(|out| write(out, chunked));
            if exchange.replay.as_ref().is_some_and(|replay| replay.len() > REPLAY_LIMIT) {
                exchange.replay = None;
            }
        }
        if let Some(replay) = &mut exchange.replay {
            write(replay, chunked);
        }
    }

    /// Sends a client the balancer's own answer and ends its connection.
    pub(super) fn answer_error(&mut self, id: ConnId, status: u16, reason: &str) {
        let Conn::Client(mut client) = self.conns.take(id) else { return };
        self.refuse(id, &mut client, status, reason);
        self.conns.insert(id, Conn::Client(client));
    }

    /// Refuses a client whose record was taken out.
    pub(super) fn refuse(&mut self, id: ConnId, client: &mut Client, status: u16, reason: &str) {
        let to = forward::Client {
            http11: true,
            keep_alive: false,
            is_head: client.exchange.as_ref().is_some_and(|exchange| exchange.is_head),
        };
        self.end_with(id, client, status, reason, |out| {
            forward::write_error(out, status, reason, &to);
        });
    }

    /// Answers a request that came without TLS at an address that has it.
    fn answer_without_tls(
        &mut self,
        id: ConnId,
        client: &mut Client,
        response: &Response,
        to: &ReplyTo<'_>,
    ) {
        let status = response.status().code();
        self.end_with(id, client, status, "the client uses no TLS", |out| response.encode(to, out));
    }

    /// Answers a client instead of its backend, and ends its connection.
    fn end_with(
        &mut self,
        id: ConnId,
        client: &mut Client,
        status: u16,
        reason: &str,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        match status {
            500.. => self.metrics.backend_errors += 1,
            400.. => self.metrics.client_errors += 1,
            _ => {}
        }
        self.record_refusal(client, status, reason);
        let is_answered = self.drop_exchange(client);
        client.held = HeldInput::default();
        client.phase = Phase::Leaving;
        let body = self.configuration.settings.timeouts.body;
        self.conns.set_deadline(id, self.tick.after(body));
        if is_answered {
            // Half an answer cannot be followed by another: a reset is the only sign that it is
            // incomplete.
            self.actions.push_back(Action::Cut(id));
            return;
        }
        self.write(&mut client.http, write);
        self.actions.push_back(Action::Flush(id));
    }

    /// Drops a client's exchange and closes its backend connection. Returns whether its answer had
    /// begun.
    pub(super) fn drop_exchange(&mut self, client: &mut Client) -> bool {
        let Some(exchange) = client.exchange.take() else { return false };
        if let Some(upstream) = exchange.upstream {
            self.actions.push_back(Action::Close(upstream));
        }
        exchange.is_answered
    }

    /// Handles the end of a client's stream.
    pub(super) fn client_finished(&mut self, id: ConnId) {
        let Some(client) = self.conns.client(id) else { return };
        client.http.finished = true;
        let is_gone = match (client.phase, &client.exchange) {
            (Phase::Leaving, _) => false,
            // Half a request, or a client that wants a tunnel and has left.
            (_, Some(exchange)) => !exchange.is_complete || exchange.key.is_some(),
            (_, None) => true,
        };
        if is_gone {
            self.actions.push_back(Action::Close(id));
        }
    }

    /// Handles the end of a client's connection; its record was taken out.
    pub(super) fn client_closed(&mut self, id: ConnId, mut client: Client) {
        self.give_room_back(id);
        if let Some(exchange) = &client.exchange {
            self.record_leaving(exchange);
        }
        self.drop_exchange(&mut client);
    }
}
