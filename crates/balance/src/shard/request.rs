//! Requests: from clients' bytes to exchanges, event by event.

use std::net::{IpAddr, SocketAddr};

use throng_http::{MISDIRECTED, ReplyTo, Response};
use throng_io::ConnId;
use throng_proto::Input;
use throng_proto::http1::{Event, HeaderLines, Request};

use super::records::{ClientRecord, Phase, EighthTick, Exchange};
use super::output::HIGH_WATER;
use super::{ConnAction, BalanceParts};
use crate::access::Subject;
use crate::forward;

/// The bytes of a request that are kept for a retry; a longer request has only its first try.
pub(super) const REPLAY_LIMIT: usize = 64 << 10;

const LOOPED: &str = "this request has come through this balancer before: a backend of it, or \
                      of one behind it, leads back to it";

/// The peer of a client's connection.
struct Peer<'a> {
    subject: Subject,
    address: SocketAddr,
    has_tls: bool,
    /// The address that it connected to has TLS.
    is_due_tls: bool,
    /// The certificate that it has shown, in DER.
    certificate: Option<&'a [u8]>,
    /// The host that its requests must be for.
    server_name: Option<&'a str>,
}

impl BalanceParts {
    /// Decodes the usable bytes. Returns the number of bytes at the end of `bytes` that cannot be
    /// used yet.
    pub(super) fn read_request(
        &mut self,
        id: ConnId,
        client: &mut ClientRecord,
        bytes: &mut [u8],
    ) -> usize {
        let limits = self.limits;
        let enough = self.enough(self.configuration.settings.min_body_rate);
        let mut has_progressed = false;
        let mut input = Input::new(bytes);
        let was_between = client.decoder.is_between_requests();
        while client.takes_requests() {
            let peer = Peer {
                subject: client.subject(),
                address: client.address,
                has_tls: client.is_secure,
                is_due_tls: client.is_due_tls,
                certificate: client.certificate.as_deref(),
                server_name: client.server_name.as_deref(),
            };
            match client.decoder.next_event(&mut input, &limits) {
                Ok(None) => break,
                Ok(Some(Event::Head(request))) => {
                    self.metrics.requests += 1;
                    let is_head = request.method() == "HEAD";
                    if self.places.beyond(id).is_some() {
                        self.refuse_beyond(id, client, is_head);
                        break;
                    }
                    if let Some((response, reason)) = self.own_answer(&request, &peer) {
                        let hsts = self.hsts(peer.has_tls);
                        let date = self.time.date();
                        let to = ReplyTo::request(&request, date);
                        let mut answer = Vec::new();
                        response.encode(&ReplyTo { hsts: hsts.as_deref(), ..to }, &mut answer);
                        let status = response.status().code();
                        let write = |out: &mut Vec<u8>| out.extend_from_slice(&answer);
                        self.end_with(id, client, status, reason, write);
                        break;
                    }
                    match self.begin_exchange(&request, &peer) {
                        Ok(exchange) => self.on_request_head(id, client, exchange),
                        Err((status, reason)) => self.refuse(id, client, status, reason),
                    }
                }
                Ok(Some(Event::Body(piece))) => {
                    let Some(exchange) = client.exchange.as_mut() else { break };
                    has_progressed |= exchange.progress.add(piece.len(), enough);
                    self.on_request_body(exchange, piece);
                }
                Ok(Some(Event::End)) => {
                    let Some(exchange) = client.exchange.as_mut() else { break };
                    self.on_request_end(exchange, client.decoder.trailers());
                    if client.phase == Phase::Exchange && !client.http.sending {
                        self.records.set_deadline(id, EighthTick::NEVER);
                    }
                }
                Err(error) => self.refuse(id, client, error.status(), error.reason()),
            }
        }
        let left = input.len();
        if was_between {
            self.begin_head_timeout(id, client);
        }
        self.forward_or_pause(id, client, has_progressed);
        left
    }

    /// Sets the deadline of a head that has begun. That of the first request runs since the accept.
    fn begin_head_timeout(&mut self, id: ConnId, client: &ClientRecord) {
        let is_later = client.phase == Phase::Head && client.has_asked;
        if is_later && client.decoder.is_in_head() {
            let head = self.configuration.settings.timeouts.head;
            self.records.set_deadline(id, self.time.after(head));
        }
    }

    /// Returns the answer to a request that no backend sees, and the reason for it.
    fn own_answer(
        &self,
        request: &Request<'_>,
        peer: &Peer<'_>,
    ) -> Option<(Response, &'static str)> {
        let (response, reason) = match self.configuration.answer_challenge(request) {
            Some(response) => (response, "a challenge of the authority"),
            None if !peer.is_due_tls => return None,
            None => {
                let (https, name) = (&self.configuration.https, peer.server_name);
                let is_trusted = || self.trusts(peer.address.ip());
                let response = https.refusal(request, peer.has_tls, name, is_trusted)?;
                (response, if peer.has_tls { MISDIRECTED } else { "the client uses no TLS" })
            }
        };
        Some((response.closing(), reason))
    }

    /// Returns whether an address is that of a trusted proxy.
    pub(super) fn trusts(&self, ip: IpAddr) -> bool {
        let trusted = &self.configuration.settings.trusted_proxies;
        trusted.iter().any(|network| network.contains(ip))
    }

    fn on_request_head(&mut self, id: ConnId, client: &mut ClientRecord, exchange: Exchange) {
        client.exchange = Some(Box::new(exchange));
        client.has_asked = true;
        client.phase = Phase::Exchange;
        let body = self.configuration.settings.timeouts.body;
        self.records.set_deadline(id, self.time.after(body));
        self.actions.push_back(ConnAction::Dispatch(id));
    }

    fn on_request_body(&mut self, exchange: &mut Exchange, piece: &[u8]) {
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

    fn on_request_end(&mut self, exchange: &mut Exchange, trailers: HeaderLines<'_>) {
        exchange.is_complete = true;
        if exchange.chunked {
            self.forward_body(exchange, |out, _| forward::write_last_chunk(out, trailers));
        }
    }

    /// Sends what was read to the backend, if there is one; reads no more of a body that is far
    /// ahead of it, and gives one that comes fast enough more time.
    fn forward_or_pause(&mut self, id: ConnId, client: &ClientRecord, has_progressed: bool) {
        let Some(exchange) = &client.exchange else { return };
        let backlog = self.body_backlog(exchange);
        if exchange.is_complete {
            return;
        }
        if backlog > HIGH_WATER {
            self.actions.push_back(ConnAction::Pause(id));
        } else if has_progressed
            && client.phase == Phase::Exchange
            && self.records.deadline(id) != EighthTick::NEVER
        {
            let body = self.configuration.settings.timeouts.body;
            self.records.set_deadline(id, self.time.after(body));
        }
    }

    /// Returns the bytes that wait for a connection to the backend. A connected one is flushed, and
    /// that pauses the client where it is behind.
    fn body_backlog(&mut self, exchange: &Exchange) -> usize {
        let Some(id) = exchange.upstream else {
            return exchange.replay.as_ref().map_or(0, Vec::len);
        };
        let Some(upstream) = self.records.upstream(id) else { return 0 };
        let backlog = upstream.http.backlog();
        let is_connected = upstream.is_connected;
        if backlog > 0 {
            self.actions.push_back(ConnAction::Flush(id));
        }
        if is_connected { 0 } else { backlog }
    }

    /// Builds the exchange of a request: its relevant properties and the text for its backend.
    fn begin_exchange(
        &mut self,
        request: &Request<'_>,
        peer: &Peer<'_>,
    ) -> Result<Exchange, (u16, &'static str)> {
        let settings = &self.configuration.settings;
        let asked =
            forward::validate(request).map_err(|refusal| (refusal.status(), refusal.reason()))?;
        if forward::has_looped(request, &self.configuration.loop_id) {
            return Err((508, LOOPED));
        }
        let ip = peer.address.ip();
        let is_trusted = self.trusts(ip);
        let client = forward::client_address(request, peer.address, &settings.trusted_proxies);
        let mut exchange = Exchange::new(request, client, self.time.now());
        let hop = forward::Hop {
            peer: ip,
            trusted: is_trusted,
            certificate: peer.certificate,
            scheme: if peer.has_tls { forward::Scheme::Https } else { forward::Scheme::Http },
            close: exchange.has_odd_body,
            dropped: &settings.drop_headers,
            loop_id: &self.configuration.loop_id,
        };
        let mut head = Vec::with_capacity(request.raw().len() + 256);
        exchange.host_at = forward::write_request(&mut head, request, &hop);
        let is_without = request.values("x-request-id").all(str::is_empty);
        let id = (settings.request_ids && is_without).then(|| self.ids.create());
        if let Some(id) = &id {
            head.truncate(head.len() - b"\r\n".len());
            head.extend_from_slice(format!("X-Request-ID: {id}\r\n\r\n").as_bytes());
        }
        exchange.replay = Some(head);
        exchange.key = asked.key().cloned();
        match forward::sticky_key(&settings.sticky, &settings.cookie_key, request, client) {
            Some(forward::Bound::Hash(hash)) => exchange.sticky_key = Some(hash),
            Some(forward::Bound::Backend(key)) => exchange.bound = Some(key),
            None => {}
        }
        exchange.is_secure = match is_trusted {
            true => forward::came_by_https(request),
            false => peer.has_tls,
        };
        let subject = Subject { client: Some(client), ..peer.subject };
        exchange.access = self.new_entry(request, subject);
        if let Some(entry) = &mut exchange.access {
            entry.request_id = id.map(Into::into);
        }
        Ok(exchange)
    }

    /// Forwards more of a request's body to its backend if it has one, and to the copy for a retry
    /// while there is one.
    fn forward_body(&mut self, exchange: &mut Exchange, write: impl Fn(&mut Vec<u8>, bool)) {
        let chunked = exchange.chunked;
        let upstream = exchange.upstream.and_then(|id| self.records.upstream(id));
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
}
