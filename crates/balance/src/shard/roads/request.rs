//! The road of a request: a client is accepted, its bytes become exchanges, event by event, and
//! each is dispatched to a backend, or waits for one.
//!
//! A connection that is passed through by the server name in its ClientHello is like a request
//! whose text is the ClientHello, until a backend is connected: it waits for a permit, and is tried
//! on another backend if one does not accept. Then it is a tunnel of bytes that are not frames.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use throng_engine::{AddressKey, LINGER_SILENCE, Linger};
use throng_http::{MISDIRECTED, ReplyTo, Response};
use throng_io::{ConnId, Driver, Instant, ListenerId, PassedThrough};
use throng_proto::http1::{Event, HeaderLines, Request};
use throng_proto::{Input, proxy_protocol};

use crate::access::{EndReason, Subject};
use crate::backend::Backend;
use crate::forward::{self, Bound};
use crate::guards::HandshakePermit;
use crate::pick::client_key;
use crate::report::Failure;
use crate::settings::{Sticky, Target};
use crate::shard::BalanceParts;
use crate::shard::actions::{ActionQueue, ConnAction};
use crate::shard::clients::{Evicted, Full};
use crate::shard::dispatch::Choice;
use crate::shard::records::{
    BalanceRecord, ClientRecord, EighthTick, Exchange, HIGH_WATER, Phase, RequestFacts, Upstream,
};
use crate::shard::request_log::RequestLog;
use crate::shard::rules::BalanceRules;

/// Clients that make room for one: another shard may take the place that one has left.
const MAX_EVICTIONS: usize = 4;

/// Waiting clients looked at in a turn, at most, however many wait.
const BUDGET: usize = 64;

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

/// The consequence of an event of a client's decoder, once that is no longer lent.
enum Next {
    Continue,
    Begin(Box<Exchange>),
    Refuse(u16, &'static str),
    /// It is beyond a limit; whether it asks for a head only.
    RefuseBeyond(Full, bool),
    /// The balancer answers itself, with this response.
    Answer(u16, &'static str, Vec<u8>),
}

/// Returns whether a client that has ended its stream waits for nothing.
fn has_left(client: &ClientRecord) -> bool {
    match (client.phase, &client.exchange) {
        (Phase::Leaving, _) => false,
        // Half a request, or a client that wants a tunnel and has left.
        (_, Some(exchange)) => !exchange.is_complete() || exchange.facts().key.is_some(),
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
        let settings = self.rules.settings();
        let (accept_proxy, head) = (settings.accept_proxy, settings.timeouts.head);
        let is_proxy = self.rules.trusts(address.ip());
        if accept_proxy && !is_proxy {
            self.meters.count(|it| {
                it.refused += 1;
                it.proxy_errors += 1;
            });
            let client = Some(address.ip().to_canonical());
            let subject = Subject { session: None, peer: Some(address), client };
            return self.log.ended(&subject, None, EndReason::UntrustedProxy);
        }
        let admitted = self.enter_or_make_room(driver, address, is_proxy);
        if let Err(full) = admitted {
            self.count_refused(full);
        }
        let Ok(id) = driver.adopt(socket) else {
            if let Ok(counted) = admitted {
                self.clients.undo(counted);
                self.meters.count(|it| it.refused += 1);
            }
            return;
        };
        match admitted {
            Ok(counted) => {
                self.clients.admit(id, counted, driver.now());
                self.meters.count(|it| it.accepted += 1);
            }
            Err(full) => {
                if let Some(oldest) = self.enter_reserve(id, full) {
                    self.close_for_another(driver, oldest);
                }
            }
        }
        let mut client = ClientRecord::new(id, address, accept_proxy, self.time.tick());
        client.tls = self.clients.tls(listener);
        client.is_due_tls = client.tls.is_some();
        if !accept_proxy && let Some(tls) = client.tls.take() {
            driver.secure_accepted(id, &tls, Some(address), &[]);
        }
        self.meters.count(|it| it.connections += 1);
        self.records.enter(id, BalanceRecord::Client(Box::new(client)));
        self.records.set_deadline(id, self.time.after(head));
    }

    /// Counts one more client. At a limit another one makes room: of all, or of its address.
    fn enter_or_make_room<D: Driver>(
        &mut self,
        driver: &mut D,
        address: SocketAddr,
        is_proxy: bool,
    ) -> Result<Option<AddressKey>, Full> {
        let mut entered = self.clients.enter(&self.rules, address.ip(), is_proxy);
        for _ in 0..MAX_EVICTIONS {
            let Err(full) = entered else { break };
            let Some(id) = self.evict(full, address) else { break };
            self.count_refused(full);
            self.close_for_another(driver, id);
            entered = self.clients.enter(&self.rules, address.ip(), is_proxy);
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
            Evicted::New(id) => id,
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
                Full::All => it.refused_full += 1,
                Full::Address => it.refused_full_address += 1,
            }
        });
    }

    /// Counts a client for the address that its PROXY header names. At the limit of that address,
    /// another of its clients makes room; if no other can, the new one gets a place of the
    /// reserve.
    fn count_behind_proxy(&mut self, id: ConnId, address: SocketAddr) {
        if self.rules.trusts(address.ip()) || self.clients.beyond(id).is_some() {
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
                    self.clients.undo(counted);
                    if let Some(oldest) = self.enter_reserve(id, full) {
                        self.actions.push(ConnAction::Close(oldest));
                    }
                    return;
                };
                self.actions.push(ConnAction::Close(oldest));
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
                    && client.exchange.is_some()
                {
                    client.held.push(&bytes[bytes.len() - left..]);
                    self.actions.pause_if_far_ahead(client);
                }
            }
            Phase::Leaving => {}
            Phase::Lingering => {
                let tick = self.time.tick();
                let dropped = client.dropped.get_or_insert(Linger::new(tick));
                if dropped.drop_input(tick, bytes.len()) {
                    self.records.set_deadline(id, tick.after(LINGER_SILENCE));
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
        if client.http.finished && has_left(client) {
            // Before its request is sent to a backend.
            self.actions.push_first(ConnAction::Close(id));
        }
        // The rest of a head longer than the high water mark: no exchange will resume the client.
        if client.phase == Phase::Head && client.http.paused && client.http.is_clear() {
            client.http.paused = false;
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
                let len = header.len;
                if let Some(source) = source {
                    client.address = source;
                }
                client.held.consume(len);
                client.phase = Phase::Head;
                let next = match client.tls.is_some() {
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
                let subject = client.subject();
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
        let Some(tls) = client.tls.take() else { return };
        let held = std::mem::take(&mut client.held);
        let address = client.address;
        if !driver.secure_accepted(id, &tls, Some(address), held.as_slice()) {
            self.close(driver, id);
        }
    }

    /// Handles the end of a client's stream.
    pub(in crate::shard) fn client_finished(&mut self, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        client.http.finished = true;
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
        if let Some(exchange) = &client.exchange {
            self.log.left(exchange, self.time.now());
        }
        self.actions.drop_exchange(&mut client);
    }

    /// Handles a client whose TLS is not ended here.
    pub(in crate::shard) fn on_passed_through(&mut self, id: ConnId, passed: PassedThrough) {
        let PassedThrough { server_name, route, received } = passed;
        let Some(client) = self.records.client(id) else { return };
        if self.clients.beyond(id).is_some() {
            // There is no answer that it would understand.
            return self.actions.push(ConnAction::Close(id));
        }
        let (address, now) = (client.address.ip(), self.time.now());
        let settings = self.rules.settings();
        let is_bound = settings.sticky == Sticky::Ip;
        let bound = is_bound.then(|| Bound::Hash(client_key(&settings.cookie_key, address)));
        let entry = self.log.begin_passthrough(server_name, client.subject(), now);
        let exchange = Exchange::passed_through(route, received, (address, bound), entry, now);
        self.meters.count(|it| it.passed_through += 1);
        client.begin(Box::new(exchange));
        self.records.set_deadline(id, EighthTick::NEVER);
        self.actions.push(ConnAction::Dispatch(id));
    }

    /// Decodes the usable bytes. Returns the number of bytes at the end of `bytes` that cannot be
    /// used yet.
    fn read_request(&mut self, id: ConnId, bytes: &mut [u8]) -> usize {
        let limits = self.rules.request_limits();
        let enough = self.rules.enough_of_request();
        let mut has_progressed = false;
        let mut input = Input::new(bytes);
        let was_between =
            self.records.client(id).is_some_and(|it| it.decoder.is_between_requests());
        while let Some((client, upstream)) = self.records.request(id)
            && client.takes_requests()
        {
            let peer = Peer {
                subject: client.subject(),
                address: client.address,
                has_tls: client.is_secure,
                is_due_tls: client.is_due_tls,
                certificate: client.certificate.as_deref(),
                server_name: client.server_name.as_deref(),
            };
            let next = match client.decoder.next_event(&mut input, &limits) {
                Ok(None) => break,
                Ok(Some(Event::Head(request))) => {
                    self.meters.count(|it| it.requests += 1);
                    if let Some(full) = self.clients.beyond(id) {
                        Next::RefuseBeyond(full, request.method() == "HEAD")
                    } else if let Some((response, reason)) =
                        own_answer(&self.rules, &request, &peer)
                    {
                        let hsts = self.rules.hsts(peer.has_tls);
                        let to = ReplyTo::request(&request, self.time.date());
                        let mut answer = Vec::new();
                        response.encode(&ReplyTo { hsts: hsts.as_deref(), ..to }, &mut answer);
                        Next::Answer(response.status().code(), reason, answer)
                    } else {
                        let now = self.time.now();
                        match begin_exchange(&self.rules, &self.log, now, &request, &peer) {
                            Ok(exchange) => Next::Begin(Box::new(exchange)),
                            Err((status, reason)) => Next::Refuse(status, reason),
                        }
                    }
                }
                Ok(Some(Event::Body(piece))) => {
                    let Some(exchange) = client.exchange.as_mut() else { break };
                    has_progressed |= exchange.receive_body(piece.len(), enough);
                    on_request_body(exchange, upstream, &mut self.actions, piece);
                    Next::Continue
                }
                Ok(Some(Event::End)) => {
                    let Some(exchange) = client.exchange.as_mut() else { break };
                    let trailers = client.decoder.trailers();
                    on_request_end(exchange, upstream, &mut self.actions, trailers);
                    if client.phase == Phase::Exchange && !client.http.sending {
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
                Next::Answer(status, reason, answer) => {
                    self.end_with(id, status, reason, |out| out.extend_from_slice(&answer));
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
        let is_later = client.phase == Phase::Head && client.has_asked;
        if is_later && client.decoder.is_in_head() {
            let head = self.rules.timeouts().head;
            self.records.set_deadline(id, self.time.after(head));
        }
    }

    fn on_request_head(&mut self, id: ConnId, exchange: Box<Exchange>) {
        if let Some(client) = self.records.client(id) {
            client.begin(exchange);
            let body = self.rules.timeouts().body;
            self.records.set_deadline(id, self.time.after(body));
            self.actions.push(ConnAction::Dispatch(id));
        }
    }

    /// Sends what was read to the backend, if there is one; reads no more of a body that is far
    /// ahead of it, and gives a body that comes fast enough more time.
    fn forward_or_pause(&mut self, id: ConnId, has_progressed: bool) {
        let Some((client, upstream)) = self.records.request(id) else { return };
        let Some(exchange) = &client.exchange else { return };
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
                if upstream.is_connected { 0 } else { backlog }
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
            let body = self.rules.timeouts().body;
            self.records.set_deadline(id, self.time.after(body));
        }
    }

    /// Finds a backend and a connection for the request of `id`.
    pub(in crate::shard) fn dispatch<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let configuration = Arc::clone(self.rules.configuration());
        loop {
            let Some(client) = self.records.client(id) else { return };
            let Some(exchange) = &client.exchange else { return };
            let (index, permit) = match self.dispatch.choose(exchange, &self.rules, &self.mail) {
                Choice::Backend(index, permit) => (index, permit),
                Choice::Full(backend) => return self.enqueue(id, backend),
                Choice::None => return self.refuse_without_backend(id),
            };
            if self.begin_try(driver, id, &configuration.backends[index], permit) {
                return;
            }
        }
    }

    /// Lets a request wait for a permit: of `backend`, or of any.
    fn enqueue(&mut self, id: ConnId, backend: Option<Arc<Backend>>) {
        let Some(client) = self.records.client(id) else { return };
        let route = client.exchange.as_ref().and_then(|exchange| exchange.facts().route.as_deref());
        self.dispatch.enqueue(id, backend, route);
        if client.phase != Phase::Queued {
            client.phase = Phase::Queued;
            let queue = self.rules.timeouts().queue;
            self.records.set_deadline(id, self.time.after(queue));
        }
    }

    /// Sends a request to `target`. Returns false if the connection could not even be begun.
    fn begin_try<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        target: &Target,
        permit: HandshakePermit,
    ) -> bool {
        let backend = &target.backend;
        let Some(client) = self.records.client(id) else { return true };
        let Some(exchange) = &mut client.exchange else { return true };
        client.phase = Phase::Exchange;
        exchange.begin_try(backend, self.time.now());
        let is_complete = exchange.is_complete();
        let facts = exchange.facts();
        let may_reuse = !facts.wants_tunnel() && !target.send_proxy;
        let carried = facts.has_body.then(|| facts.owner(id));
        let (owner, address) = (facts.owner(id), client.address);
        let timeouts = self.rules.timeouts();
        let due = if is_complete { EighthTick::NEVER } else { self.time.after(timeouts.body) };
        self.records.set_deadline(id, due);
        let Self { idle, records, actions, .. } = self;
        let reused =
            if may_reuse { idle.take_usable(backend, owner, records, actions) } else { None };
        let connected = match reused {
            Some(reused) => Ok(reused),
            None => self.connect(driver, target, address),
        };
        let upstream_id = match connected {
            Ok(upstream) => upstream,
            Err(error) => {
                self.note_failed_connect(id, backend, &error);
                return false;
            }
        };
        let before = self.records.upstream(upstream_id).map(|it| (it.generation, it.owner));
        let Some(client) = self.records.client(id) else { return true };
        let Some(exchange) = &mut client.exchange else { return true };
        let is_reused = reused.is_some();
        // A plain request needs a permit only for a new connection.
        exchange.send_on(upstream_id, (!is_reused).then_some(permit));
        let mut upstream = Upstream::new(id, exchange, target, is_reused);
        let (generation, before) = before.unwrap_or_else(|| (backend.generation(), None));
        upstream.generation = generation;
        upstream.owner = before.or(carried);
        // With TLS it comes before the handshake.
        if target.send_proxy && target.tls.is_none() {
            self.actions.write(&mut upstream.http, |out| {
                proxy_protocol::encode(address, backend.address(), out);
            });
        }
        if exchange.has_replay() {
            self.actions.write(&mut upstream.http, |out| exchange.write_to(target, out));
        }
        // A client is read again that was paused because its body had no receiver.
        let has_room = exchange.replay_len() <= HIGH_WATER;
        if client.http.paused && has_room && client.held.is_empty() {
            client.http.paused = false;
            driver.resume(id);
        }
        let timeouts = self.rules.timeouts();
        let timeout = if is_reused { timeouts.response } else { timeouts.connect };
        self.records.enter(upstream_id, BalanceRecord::Upstream(Box::new(upstream)));
        self.records.set_deadline(upstream_id, self.time.after(timeout));
        self.actions.push(ConnAction::Flush(upstream_id));
        true
    }

    /// Begins a connection to `target` for a client with the address `client`.
    fn connect<D: Driver>(
        &mut self,
        driver: &mut D,
        target: &Target,
        client: SocketAddr,
    ) -> io::Result<ConnId> {
        let address = target.backend.address();
        let local = self.dispatch.next_source(&self.rules, address);
        target.backend.totals().connects.fetch_add(1, Relaxed);
        let Some(tls) = &target.tls else { return driver.connect(address, local) };
        let mut preface = Vec::new();
        if target.send_proxy {
            proxy_protocol::encode(client, address, &mut preface);
        }
        driver.connect_secured(address, local, &tls.for_driver(), &preface)
    }

    /// Notes a connection that could not be begun.
    fn note_failed_connect(&mut self, id: ConnId, backend: &Arc<Backend>, error: &io::Error) {
        let Some(client) = self.records.client(id) else { return };
        let Some(exchange) = &mut client.exchange else { return };
        let failure = Failure::of_connect(error);
        let is_retry = exchange.tries() > 0;
        exchange.fail(failure, Some(backend.key()));
        exchange.end_try();
        self.mail.report(&mut self.meters, backend, failure, is_retry);
    }

    /// Finds backends for waiting requests, as far as there are permits.
    pub(in crate::shard) fn serve_waiting<D: Driver>(&mut self, driver: &mut D) {
        self.dispatch.waiting_mut().set_more(false);
        if self.dispatch.waiting().is_empty() {
            return;
        }
        let cap = self.rules.settings().max_handshakes;
        let numbers = |parts: &Self| {
            let waiting = parts.dispatch.waiting();
            (waiting.len(), waiting.unbound())
        };
        let before = numbers(self);
        let mut budget = BUDGET;
        while budget > 0
            && let Some(id) = self.dispatch.waiting_mut().pop_bound(cap)
        {
            budget -= 1;
            self.serve(driver, id);
        }
        // Each route has its part, so that no crowd of one holds up the others.
        let routes = self.dispatch.waiting().open_routes(&self.rules);
        let part = (budget / routes.len().max(1)).max(1);
        let mut is_spent = budget == 0;
        for (route, len) in routes {
            // Once around at most: a client that has tried all backends with a permit goes to the
            // end.
            let mut rest = len.min(part).min(budget);
            let is_crowd = rest < len;
            while rest > 0
                && !self.rules.is_full(route.as_deref())
                && let Some(id) = self.dispatch.waiting_mut().pop_any(&route)
            {
                (rest, budget) = (rest - 1, budget - 1);
                self.serve(driver, id);
            }
            is_spent |= is_crowd && rest == 0;
        }
        let after = numbers(self);
        let has_progressed = after.0 < before.0 || after.1 < before.1;
        self.dispatch.waiting_mut().set_more(is_spent && has_progressed);
    }

    fn serve<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        self.dispatch.waiting_mut().count_look();
        if self.records.client(id).is_some_and(|client| client.phase == Phase::Queued) {
            self.dispatch(driver, id);
            self.perform(driver);
        }
    }
}

/// Returns the answer to a request that no backend sees, and the reason for it.
fn own_answer(
    rules: &BalanceRules,
    request: &Request<'_>,
    peer: &Peer<'_>,
) -> Option<(Response, &'static str)> {
    let configuration = rules.configuration();
    let (response, reason) = match configuration.answer_challenge(request) {
        Some(response) => (response, "a challenge of the authority"),
        None if !peer.is_due_tls => return None,
        None => {
            let (https, name) = (&configuration.https, peer.server_name);
            let is_trusted = || rules.trusts(peer.address.ip());
            let response = https.refusal(request, peer.has_tls, name, is_trusted)?;
            (response, if peer.has_tls { MISDIRECTED } else { "the client uses no TLS" })
        }
    };
    Some((response.closing(), reason))
}

/// Builds the exchange of a request: its relevant properties and the text for its backend.
fn begin_exchange(
    rules: &BalanceRules,
    log: &RequestLog,
    now: Instant,
    request: &Request<'_>,
    peer: &Peer<'_>,
) -> Result<Exchange, (u16, &'static str)> {
    let settings = rules.settings();
    let loop_id = &rules.configuration().loop_id;
    let asked =
        forward::validate(request).map_err(|refusal| (refusal.status(), refusal.reason()))?;
    if forward::has_looped(request, loop_id) {
        return Err((508, LOOPED));
    }
    let ip = peer.address.ip();
    let is_trusted = rules.trusts(ip);
    let client = forward::client_address(request, peer.address, &settings.trusted_proxies);
    let is_secure = match is_trusted {
        true => forward::came_by_https(request),
        false => peer.has_tls,
    };
    let bound = forward::sticky_key(&settings.sticky, &settings.cookie_key, request, client);
    let facts = RequestFacts::new(request, asked.key().cloned(), client, bound, is_secure);
    let hop = forward::Hop {
        peer: ip,
        trusted: is_trusted,
        certificate: peer.certificate,
        scheme: if peer.has_tls { forward::Scheme::Https } else { forward::Scheme::Http },
        close: facts.has_odd_body,
        dropped: &settings.drop_headers,
        loop_id,
    };
    let mut head = Vec::with_capacity(request.raw().len() + 256);
    let host_at = forward::write_request(&mut head, request, &hop);
    let is_without = request.values("x-request-id").all(str::is_empty);
    let id = (settings.request_ids && is_without).then(|| log.create_id());
    if let Some(id) = &id {
        head.truncate(head.len() - b"\r\n".len());
        head.extend_from_slice(format!("X-Request-ID: {id}\r\n\r\n").as_bytes());
    }
    let subject = Subject { client: Some(client), ..peer.subject };
    let entry = log.begin(request, subject, id, now);
    Ok(Exchange::new(facts, head, host_at, entry, now))
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
    if exchange.facts().is_chunked {
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
    let is_chunked = exchange.facts().is_chunked;
    let is_sent = upstream.is_some();
    if let Some(upstream) = upstream {
        actions.write(&mut upstream.http, |out| write(out, is_chunked));
    }
    exchange.keep_body(is_sent, |replay| write(replay, is_chunked));
}
