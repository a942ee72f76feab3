//! The road of a request: a client is accepted, and its bytes become exchanges, event by event.
//!
//! A connection that is passed through by the server name in its ClientHello is like a request
//! whose text is the ClientHello, until a backend is connected: it waits for a permit, and is tried
//! on another backend if one does not accept. Then it is a tunnel of bytes that are not frames.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_engine::AddressKey;
use throng_http::ReplyTo;
use throng_io::{ConnId, Driver, ListenerId, PassedThrough};
use throng_proto::http1::{Event, HeaderLines};
use throng_proto::{Input, proxy_protocol};

use crate::access::{EndReason, Subject};
use crate::blocks::BLOCKED;
use crate::forward::{self, Bound};
use crate::pick::client_key;
use crate::settings::Sticky;
use crate::shard::BalanceParts;
use crate::shard::actions::{ActionQueue, ConnAction};
use crate::shard::clients::{Evicted, Full};
use crate::shard::records::{
    BalanceRecord, ClientRecord, EighthTick, Exchange, Fact, HIGH_WATER, Origin, Phase, Upstream,
};
use crate::shard::roads::request_head::{OwnAnswer, Unserved, begin_exchange, own_answer};
use crate::unix_peer::known;

/// Clients that make room for one: another shard may take the place that one has left.
const MAX_EVICTIONS: usize = 4;

/// The consequence of an event of a client's decoder, once that is no longer lent.
enum Next {
    Continue,
    Begin(Box<Exchange>),
    Refuse(u16, &'static str),
    /// It is beyond a limit; whether it asks for a head only.
    RefuseBeyond(Full, bool),
    /// The balancer answers itself, with this text; whether the connection continues.
    Answer(Box<OwnAnswer>, Vec<u8>, bool),
}

/// Returns whether a client that has ended its stream waits for nothing.
fn has_left(client: &ClientRecord) -> bool {
    match (client.phase, &client.exchange) {
        (Phase::Leaving, _) => false,
        // Half a request, or a client that wants a tunnel and has left.
        (_, Some(exchange)) => !exchange.is_complete() || exchange.facts().key().is_some(),
        (_, None) => true,
    }
}

impl BalanceParts {
    /// Takes a client that has connected; one beyond a limit for one request, to refuse that.
    pub(in crate::shard) fn accept<D: Driver>(
        &mut self,
        driver: &mut D,
        socket: D::Socket,
        address: SocketAddr,
        listener: ListenerId,
    ) {
        let accept_proxy = self.rules.accepts_proxy(listener);
        let head = self.rules.timeouts().head;
        let is_proxy = self.rules.trusts(address.ip(), listener);
        if accept_proxy && !is_proxy {
            self.meters.count(|it| {
                it.refused += 1;
                it.proxy_errors += 1;
            });
            let client = known(address.ip().to_canonical());
            let subject = Subject { session: None, peer: client.map(|_| address), client };
            return self.log.ended(&subject, None, EndReason::UntrustedProxy);
        }
        let admitted = self.enter_or_make_room(driver, address, (is_proxy, listener));
        if let Err(full) = admitted {
            self.count_refused(full);
        }
        let Ok(id) = driver.adopt(socket) else {
            if let Ok(counted) = admitted {
                self.clients.undo(counted, Some(listener));
                self.meters.count(|it| it.refused += 1);
            }
            return;
        };
        match admitted {
            Ok(counted) => {
                self.clients.admit(id, counted, listener, driver.now());
                self.meters.count(|it| it.accepted += 1);
            }
            Err(full) => {
                if let Some(oldest) = self.enter_reserve(id, full) {
                    self.close_for_another(driver, oldest, full);
                }
            }
        }
        let mut origin = Origin::new(id, address, listener, self.clients.tls(listener));
        if !accept_proxy && let Some(tls) = origin.take_tls() {
            driver.secure_accepted(id, &tls, known(address.ip()).map(|_| address), &[]);
        }
        let client = ClientRecord::new(origin, accept_proxy, self.time.tick());
        self.meters.count(|it| it.connections += 1);
        self.clients.enter_shard();
        self.records.enter(id, BalanceRecord::Client(Box::new(client)));
        self.records.set_deadline(id, self.time.after(head));
    }

    /// Counts one more client. At a limit another one makes room: of all, or of its address.
    fn enter_or_make_room<D: Driver>(
        &mut self,
        driver: &mut D,
        address: SocketAddr,
        by: (bool, ListenerId),
    ) -> Result<Option<AddressKey>, Full> {
        let mut entered = self.clients.enter(&self.rules, address.ip(), by);
        for _ in 0..MAX_EVICTIONS {
            let Err(full) = entered else { break };
            let Some(id) = self.evict(full, address) else { break };
            self.count_refused(full);
            self.close_for_another(driver, id, full);
            entered = self.clients.enter(&self.rules, address.ip(), by);
        }
        entered
    }

    /// Takes the client that must make room, of all or of this address, and counts it.
    fn evict(&mut self, full: Full, address: SocketAddr) -> Option<ConnId> {
        let evicted = self.clients.evict(full, address.ip(), &self.records, &self.time)?;
        Some(match evicted {
            Evicted::Idle(id) => {
                self.meters.count(|it| it.ended_idle += 1);
                id
            }
            Evicted::New(id) => {
                self.meters.count(|it| it.ended_new += 1);
                id
            }
            Evicted::Gone(id) => {
                self.meters.count(|it| it.ended_gone += 1);
                id
            }
        })
    }

    /// Gives a refused client a place of the reserve, and counts it.
    fn enter_reserve(&mut self, id: ConnId, full: Full) -> Option<ConnId> {
        self.meters.count(|it| it.refused_beyond += u64::from(full == Full::All));
        self.clients.enter_reserve(id, full)
    }

    /// Counts a client that was refused at a limit, or ended so that another one could connect.
    fn count_refused(&mut self, full: Full) {
        self.meters.count(|it| {
            it.refused += 1;
            match full {
                Full::All | Full::Listener => it.refused_full += 1,
                Full::Address => it.refused_full_address += 1,
            }
        });
    }

    /// Counts a client for the address that its PROXY header names. At the limit of that address,
    /// another of its clients makes room; if no other can, the new one gets a place of the
    /// reserve.
    fn count_behind_proxy(&mut self, id: ConnId, address: SocketAddr) {
        let Some(client) = self.records.client(id) else { return };
        let listener = client.origin.listener();
        if self.rules.trusts(address.ip(), listener) || self.clients.beyond(id).is_some() {
            return;
        }
        let entered = match self.clients.enter_address(&self.rules, address.ip()) {
            Some(entered) => entered,
            None => return,
        };
        let key = match entered {
            Ok(key) => key,
            Err(full) => {
                self.count_refused(full);
                let Some(oldest) = self.evict(full, address) else {
                    let counted = self.clients.take_count(id);
                    self.clients.undo(counted, None);
                    if let Some(oldest) = self.enter_reserve(id, full) {
                        self.actions.push(ConnAction::Evict(oldest, full));
                    }
                    return;
                };
                self.actions.push(ConnAction::Evict(oldest, full));
                // The new one takes its place in the count.
                self.clients.take_count(oldest)
            }
        };
        self.clients.admit_address(id, key, self.time.now());
    }

    /// Handles lent bytes of a client that speaks HTTP.
    pub(in crate::shard) fn client_received(&mut self, id: ConnId, bytes: &mut [u8]) {
        let Some(client) = self.records.client(id) else { return };
        match client.phase {
            Phase::Proxy => {
                client.held.push(bytes);
                self.read_proxy_header(id);
            }
            Phase::Head | Phase::Queued | Phase::Exchange => {
                let left = self.read_request(id, bytes);
                if let Some(client) = self.records.client(id)
                    && left > 0
                    && !matches!(client.phase, Phase::Leaving | Phase::Lingering)
                {
                    client.held.push(&bytes[bytes.len() - left..]);
                    self.actions.pause_if_far_ahead(client);
                }
            }
            Phase::Leaving => {}
            Phase::Lingering => {
                if let Some(due) = client.drop_input(self.time.tick(), bytes.len()) {
                    self.records.set_deadline(id, due);
                }
            }
        }
    }

    /// Decodes what was held back, up to the end of one request.
    pub(in crate::shard) fn proceed<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        let mut held = std::mem::take(&mut client.held);
        let before = held.len();
        let left = self.read_request(id, held.as_mut_slice());
        let Some(client) = self.records.client(id) else { return };
        if !matches!(client.phase, Phase::Leaving | Phase::Lingering) {
            held.consume(before - left);
            client.held = held;
            self.actions.pause_if_far_ahead(client);
        }
        if client.http.has_finished() && has_left(client) {
            // Before its request is sent to a backend.
            self.actions.push_first(ConnAction::Close(id));
        }
        // The rest of a head longer than the high water mark: no exchange will resume the client.
        if client.phase == Phase::Head && client.http.is_clear() && client.http.resume() {
            driver.resume(id);
        }
    }

    /// Reads the PROXY header of a trusted proxy, before all else.
    fn read_proxy_header(&mut self, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        match proxy_protocol::decode(client.held.as_slice()) {
            Ok(proxy_protocol::Decoded::Needs(_)) => {}
            Ok(proxy_protocol::Decoded::Header(header)) => {
                let source = header.addresses.map(|(source, _)| source);
                // No client has it: it stands for one on a Unix socket here.
                let source = source.filter(|source| known(source.ip().to_canonical()).is_some());
                let len = header.len;
                if let Some(source) = source {
                    client.origin.set_address(source);
                }
                client.held.consume(len);
                client.phase = Phase::Head;
                let next = match client.origin.awaits_tls() {
                    true => Some(ConnAction::Secure(id)),
                    false => (!client.held.is_empty()).then_some(ConnAction::Proceed(id)),
                };
                if let Some(source) = source {
                    self.count_behind_proxy(id, source);
                }
                if let Some(next) = next {
                    self.actions.push(next);
                }
            }
            Err(_) => {
                let subject = client.origin.subject();
                self.meters.count(|it| {
                    it.refused += 1;
                    it.proxy_errors += 1;
                });
                self.log.ended(&subject, None, EndReason::BadProxyHeader);
                self.actions.push(ConnAction::Close(id));
            }
        }
    }

    /// Begins TLS with a client whose PROXY header has come.
    pub(in crate::shard) fn begin_tls<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        let Some(tls) = client.origin.take_tls() else { return };
        let held = std::mem::take(&mut client.held);
        let address = client.origin.address();
        let address = known(address.ip()).map(|_| address);
        if !driver.secure_accepted(id, &tls, address, held.as_slice()) {
            self.close(driver, id);
        }
    }

    /// Handles the end of a client's stream.
    pub(in crate::shard) fn client_finished(&mut self, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        client.http.finish();
        // Requests that it has sent before are decoded when the last response has left.
        let has_more = client.phase == Phase::Head && !client.held.is_empty();
        if !has_more && has_left(client) {
            return self.actions.push(ConnAction::Close(id));
        }
        self.clients.note_gone(id, self.time.tick());
    }

    /// Handles the end of a client, which still counts; its record was taken out.
    pub(in crate::shard) fn client_closed(&mut self, id: ConnId, mut client: ClientRecord) {
        for idle in self.idle.take_of(id) {
            self.actions.push(ConnAction::Close(idle));
        }
        if let Some(exchange) = &mut client.exchange {
            exchange.leave_queue(self.time.now());
            self.log.left(exchange, self.time.now());
        }
        self.actions.drop_exchange(&mut client);
    }

    /// Handles a client whose TLS is not ended here.
    pub(in crate::shard) fn on_passed_through(&mut self, id: ConnId, passed: PassedThrough) {
        let PassedThrough { server_name, route, random, received } = passed;
        let Some(client) = self.records.client(id) else { return };
        if let Some(full) = self.clients.beyond(id) {
            // There is no answer that it would understand.
            return self.actions.push(ConnAction::Evict(id, full));
        }
        let (address, now) = (client.origin.address().ip(), self.time.now());
        let pool = self.rules.configuration().pools.passthrough(&route);
        let settings = &pool.settings;
        let is_bound = settings.sticky == Sticky::Ip;
        let bound = is_bound.then(|| Bound::Hash(client_key(&settings.cookie_key, address)));
        let entry = self.log.begin_passthrough(server_name, client.origin.subject(), now);
        let of_pool = (pool, Arc::clone(&self.rules.configuration().policy));
        let exchange = Exchange::passed_through(of_pool, received, (address, bound), entry, now);
        self.meters.count(|it| it.passed_through += 1);
        client.begin(Box::new(exchange));
        if self.rules.configuration().blocks.has(address) {
            return self.refuse_passthrough(id, BLOCKED, ConnAction::Close(id));
        }
        if !self.clients.may_pass(&random, self.time.tick()) {
            return self.end_circle(id);
        }
        self.records.set_deadline(id, EighthTick::NEVER);
        self.actions.push(ConnAction::Dispatch(id));
    }

    /// Ends a connection that was passed through in a circle: by a reset, which ends all rounds at
    /// once.
    #[cold]
    fn end_circle(&mut self, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        self.meters.count(|it| it.circles_ended += 1);
        self.log.ended(&client.origin.subject(), None, EndReason::Circle);
        self.refuse_passthrough(id, &EndReason::Circle.to_string(), ConnAction::Cut(id));
    }

    /// Decodes the usable bytes. Returns the number of bytes at the end of `bytes` that cannot be
    /// used yet.
    fn read_request(&mut self, id: ConnId, bytes: &mut [u8]) -> usize {
        let mut has_progressed = false;
        let mut input = Input::new(bytes);
        let was_between =
            self.records.client(id).is_some_and(|it| it.decoder.is_between_requests());
        while let Some((client, upstream)) = self.records.request(id)
            && client.takes_requests()
        {
            let limits = self.rules.request_limits(client.exchange.as_deref());
            let next = match client.decoder.next_event(&mut input, &limits) {
                Ok(None) => break,
                Ok(Some(Event::Head(request))) => {
                    self.meters.count(|it| it.requests += 1);
                    if let Some(full) = self.clients.beyond(id) {
                        Next::RefuseBeyond(full, request.method() == "HEAD")
                    } else {
                        let (origin, now) = (&client.origin, self.time.now());
                        let own = own_answer(&self.rules, &request, origin).map(Box::new);
                        let begun = match own {
                            Some(answer) => Err(Unserved::Answered(answer)),
                            None => {
                                let random = self.dispatch.random();
                                let memory = (origin, &mut self.scratch, random);
                                begin_exchange(&self.rules, &self.log, now, &request, memory)
                            }
                        };
                        match begun {
                            Ok(exchange) => Next::Begin(Box::new(exchange)),
                            Err(Unserved::Refused(status, reason)) => Next::Refuse(status, reason),
                            Err(Unserved::Answered(answer)) => {
                                let hsts = self.rules.hsts(origin.is_secure(), answer.policy());
                                let to = ReplyTo {
                                    hsts: hsts.as_deref(),
                                    keep_alive: request.keep_alive()
                                        && !request.has_body()
                                        && !client.http.has_finished()
                                        && !self.tunnels.is_ending(),
                                    ..ReplyTo::request(&request, self.time.date())
                                };
                                let mut text = Vec::new();
                                let continues = answer.encode(&to, &mut text);
                                Next::Answer(answer, text, continues)
                            }
                        }
                    }
                }
                Ok(Some(Event::Body(piece))) => {
                    let Some(exchange) = client.exchange.as_mut() else { break };
                    let enough = self.rules.enough_of_request(exchange);
                    has_progressed |= exchange.receive_body(piece.len(), enough);
                    on_request_body(exchange, upstream, &mut self.actions, piece);
                    Next::Continue
                }
                Ok(Some(Event::End)) => {
                    let Some(exchange) = client.exchange.as_mut() else { break };
                    let trailers = client.decoder.trailers();
                    on_request_end(exchange, upstream, &mut self.actions, trailers);
                    if client.phase == Phase::Exchange && !client.http.is_sending() {
                        self.records.set_deadline(id, EighthTick::NEVER);
                    }
                    Next::Continue
                }
                Err(error) => Next::Refuse(error.status(), error.reason()),
            };
            match next {
                Next::Continue => {}
                Next::Begin(exchange) => self.on_request_head(id, exchange),
                Next::Refuse(status, reason) => self.refuse(id, status, reason),
                Next::RefuseBeyond(full, is_head) => {
                    self.refuse_beyond(id, full, is_head);
                    break;
                }
                Next::Answer(answer, text, continues) => {
                    if continues && let Some(client) = self.records.client(id) {
                        // The end of a request without a body takes no byte.
                        let end = client.decoder.next_event(&mut input, &limits);
                        debug_assert!(matches!(end, Ok(Some(Event::End))), "{end:?}");
                    }
                    self.answer_itself(id, &answer, &text, continues);
                    break;
                }
            }
        }
        let left = input.len();
        if was_between {
            self.begin_head_timeout(id);
        }
        self.forward_or_pause(id, has_progressed);
        left
    }

    /// Sets the deadline of a head that has begun. The first request's runs since the accept.
    fn begin_head_timeout(&mut self, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        let is_later = client.phase == Phase::Head && client.has_asked();
        if is_later && client.decoder.is_in_head() {
            let head = self.rules.timeouts().head;
            self.records.set_deadline(id, self.time.after(head));
        }
    }

    fn on_request_head(&mut self, id: ConnId, exchange: Box<Exchange>) {
        if let Some(client) = self.records.client(id) {
            let body = self.rules.body_timeout(Some(&exchange));
            client.begin(exchange);
            self.records.set_deadline(id, self.time.after(body));
            self.actions.push(ConnAction::Dispatch(id));
        }
    }

    /// Sends what was read to the backend, if there is one; reads no more of a body that is far
    /// ahead of it, and gives a body that comes fast enough more time.
    fn forward_or_pause(&mut self, id: ConnId, has_progressed: bool) {
        let Some((client, upstream)) = self.records.request(id) else { return };
        let Some(exchange) = &client.exchange else { return };
        let body = self.rules.body_timeout(Some(exchange));
        // The bytes that wait for a connection to the backend. A connected one is flushed, and that
        // pauses the client where it is behind.
        let backlog = match (exchange.upstream(), upstream) {
            (None, _) => exchange.replay_len(),
            (Some(_), None) => 0,
            (Some(upstream_id), Some(upstream)) => {
                let backlog = upstream.http.backlog();
                if backlog > 0 {
                    self.actions.push(ConnAction::Flush(upstream_id));
                }
                if upstream.is_connected() { 0 } else { backlog }
            }
        };
        if exchange.is_complete() {
            return;
        }
        if backlog > HIGH_WATER {
            self.actions.push(ConnAction::Pause(id));
        } else if has_progressed
            && client.phase == Phase::Exchange
            && self.records.deadline(id) != EighthTick::NEVER
        {
            self.records.set_deadline(id, self.time.after(body));
        }
    }
}

fn on_request_body(
    exchange: &mut Exchange,
    upstream: Option<&mut Upstream>,
    actions: &mut ActionQueue,
    piece: &[u8],
) {
    forward_body(exchange, upstream, actions, |out, chunked| {
        if chunked {
            forward::write_chunk(out, piece);
        } else {
            out.extend_from_slice(piece);
        }
    });
}

fn on_request_end(
    exchange: &mut Exchange,
    upstream: Option<&mut Upstream>,
    actions: &mut ActionQueue,
    trailers: HeaderLines<'_>,
) {
    exchange.complete();
    if exchange.facts().is(Fact::Chunked) {
        forward_body(exchange, upstream, actions, |out, _| {
            forward::write_last_chunk(out, trailers);
        });
    }
}

/// Forwards more of a request's body to its backend if it has one, and to the copy for a retry
/// while there is one.
fn forward_body(
    exchange: &mut Exchange,
    upstream: Option<&mut Upstream>,
    actions: &mut ActionQueue,
    write: impl Fn(&mut Vec<u8>, bool),
) {
    let is_chunked = exchange.facts().is(Fact::Chunked);
    let is_sent = upstream.is_some();
    if let Some(upstream) = upstream {
        actions.write(&mut upstream.http, |out| write(out, is_chunked));
    }
    exchange.keep_body(is_sent, |replay| write(replay, is_chunked));
}
