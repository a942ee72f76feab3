//! Connections that come: the choice of a shard for each accepted socket, who is ended when all
//! places are taken, the PROXY header, and moves to other shards.

use std::io;
use std::net::{IpAddr, SocketAddr};

use throng_io::{ConnId, Driver};
use throng_proto::Input;
use throng_proto::proxy_protocol::{self, Decoded, Header, MAX_LENGTH};

use crate::conn::by_address::AddressKey;
use crate::conn::held::HeldInput;
use crate::conn::record::{Admitted, Conn};
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::context::{Cx, Move};
use crate::message::{EndReason, Fault, Refusal, UserEvent};
use crate::remote::adoption::{Adoption, Early};
use crate::remote::handover::{Handover, MovedUpgrade};
use crate::service::Service;
use crate::shard::{EngineParts, MAX_MAIL_TIME, Shard};
use crate::ws::inbound::Inbound;

/// Maximum connections that are evicted for one connection: another shard may take a slot that has
/// become free.
const MAX_EVICTIONS: usize = 4;

/// The reason why a peer that is not trusted is closed.
const UNTRUSTED: &str = "it is not in trusted_proxies, and with proxy_protocol only those may \
                         connect: add it there (unix: for Unix sockets), or let it \
                         connect through the proxy";

/// The reason why a connection without a header is closed at its deadline.
pub(super) const LATE: &str = "no complete PROXY protocol header came within handshake_timeout: \
                               turn it on in the proxy (HAProxy: send-proxy-v2, nginx: \
                               proxy_protocol on)";

impl<S: Service> EngineParts<S> {
    /// Reads the PROXY header, and the first request if that came with it.
    pub(super) fn pump_proxy_header(&mut self, id: ConnId, input: &mut Input<'_>) {
        let Some(start) = self.intake.proxy_header(id) else { return };
        let before = start.len();
        let bytes = input.as_slice();
        start.extend_from_slice(&bytes[..bytes.len().min(MAX_LENGTH - before)]);
        match proxy_protocol::decode(start) {
            Ok(Decoded::Needs(_)) => {
                input.take(usize::MAX);
            }
            Ok(Decoded::Header(header)) => self.begin_behind_proxy(id, &header, before, input),
            Err(error) => {
                input.take(usize::MAX);
                self.refuse_proxy(id, &error.to_string());
            }
        }
    }

    /// Begins with the input after a PROXY header; `before` bytes of the header came earlier.
    fn begin_behind_proxy(
        &mut self,
        id: ConnId,
        header: &Header,
        before: usize,
        input: &mut Input<'_>,
    ) {
        if let Some((client, _)) = header.addresses
            && !self.count_for(id, client)
        {
            input.take(usize::MAX);
            return;
        }
        let rest_at = header.len - before;
        if self.entrance.tls_behind_proxy().is_some() {
            // The received bytes are held unchanged until the driver can take the bytes after the
            // header.
            self.intake.set(id, Inbound::DueTls(rest_at));
            return;
        }
        input.take(rest_at);
        self.intake.set(id, Inbound::http());
        if !input.is_empty() {
            self.pump_http(id, input);
        }
    }

    /// Counts a connection under the address of its client instead of its proxy. Returns false if
    /// it was closed; if only the client's own cap is reached, the connection may send one request,
    /// so that the client gets the reason.
    fn count_for(&mut self, id: ConnId, client: SocketAddr) -> bool {
        let cold = self.core.conns.cold_mut(id);
        let admitted = cold.map_or(Admitted::Evicted, |cold| {
            cold.peer = Some(client);
            cold.admitted
        });
        if admitted != Admitted::Counted {
            return true;
        }
        let address = Some(client.ip());
        let mut entered = self.entrance.admission().enter_address(address);
        if entered.is_err()
            && let Some(oldest) =
                self.entrance.oldest(Refusal::FullForAddress, address, &self.core.conns)
        {
            self.end_for_another(oldest, EndReason::PlaceOfAddress);
            entered = self.entrance.admission().enter_address(address);
        }
        if let Ok(key) = entered {
            self.entrance.replace_key(id, key, self.core.now());
            return true;
        }
        let connections = &mut self.core.conns;
        connections.count(|stats| stats.refused += 1);
        if !self.entrance.takes_reserve() {
            self.intake.set(id, Inbound::Refused);
            connections.note_fault(id, Fault::Ended(EndReason::PlaceOfAddress));
            connections.finish(id, AfterFlush::Close);
            return false;
        }
        self.entrance.leave(id, Admitted::Reserve(Refusal::FullForAddress), connections);
        self.entrance.enter_reserve(id);
        true
    }

    /// Closes a connection whose PROXY header is wrong or late. No response is sent: the peer may
    /// not speak HTTP.
    pub(super) fn refuse_proxy(&mut self, id: ConnId, reason: &str) {
        self.intake.set(id, Inbound::Refused);
        let peer = self.core.conns.cold(id).and_then(|cold| cold.peer);
        self.report_proxy(peer, reason);
        self.core.conns.finish(id, AfterFlush::Close);
    }

    #[cold]
    fn report_proxy(&mut self, peer: Option<SocketAddr>, reason: &str) {
        self.core.conns.count(|stats| stats.proxy_errors += 1);
        self.service.on_proxy_refused(peer, reason);
    }

    /// Ends a connection that has not sent a whole request, in favour of another: with a 408 if it
    /// has sent a part of one. Its place is free at once, and it closes with the next flush.
    pub(super) fn end_for_another(&mut self, id: ConnId, reason: EndReason) {
        let connections = &mut self.core.conns;
        connections.count(|stats| stats.refused += 1);
        let unanswered = connections
            .conn(id)
            .is_some_and(|conn| conn.has(flag::REQUEST) && !conn.is_finishing());
        if unanswered {
            self.end_unanswered(id, 408, reason);
        } else {
            connections.note_fault(id, Fault::Ended(reason));
        }
        self.evict(id);
    }

    /// Uncounts a connection, which closes with the next flush.
    fn evict(&mut self, id: ConnId) {
        let connections = &mut self.core.conns;
        self.entrance.leave(id, Admitted::Evicted, connections);
        match connections.stage(id) {
            Stage::Lingering => connections.end_lingering(id),
            _ => connections.finish(id, AfterFlush::Close),
        }
    }
}

impl<D: Driver, S: Service> Shard<D, S> {
    /// Opens a client connection to `peer`; `on_connected` or `on_failed` follows.
    ///
    /// # Errors
    /// The connection could not be started: no descriptor, or no free port on `local`.
    pub fn connect(
        &mut self,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        data: u32,
    ) -> io::Result<ConnId> {
        let id = self.driver.connect(peer.into(), local)?;
        self.parts.enter(id, Stage::Connecting, Inbound::Nothing);
        let connections = &mut self.parts.core.conns;
        if let Some(conn) = connections.conn_mut(id) {
            conn.set(flag::CLIENT, true);
            conn.service.data = data;
        }
        connections.await_handshake(id);
        Ok(id)
    }

    /// Places an accepted socket: here, at a less loaded shard, or nowhere.
    pub(crate) fn place(&mut self, socket: D::Socket, peer: Option<SocketAddr>) {
        self.parts.core.conns.count(|stats| stats.accepted += 1);
        if !self.parts.entrance.may_connect(peer) {
            return self.parts.report_proxy(peer, UNTRUSTED);
        }
        let address = peer.map(|peer| peer.ip());
        let mut entered = self.parts.entrance.admission().enter(address);
        for _ in 0..MAX_EVICTIONS {
            if !entered.is_err_and(|why| self.make_room(why, address)) {
                break;
            }
            entered = self.parts.entrance.admission().enter(address);
        }
        let key = match entered {
            Ok(key) => key,
            Err(why) => {
                self.refuse(socket, peer, why);
                return;
            }
        };
        let here = self.parts.core.shard;
        let shard = match self.moves.has_neighbours() {
            true => self.parts.entrance.admission().place(here),
            false => self.parts.entrance.admission().keep_here(here),
        };
        if let Some(start) = self.moves.starter() {
            if let Err(socket) = start(socket, peer, key, None) {
                self.parts.entrance.give_up(true, key);
                self.parts.core.conns.count(|stats| stats.thread_failures += 1);
                self.refuse(socket, peer, Refusal::Full);
            }
            return;
        }
        if shard == here {
            self.adopt(socket, peer, key);
            return;
        }
        let handover = Handover { socket, peer, key, upgrade: None };
        match self.moves.give(shard, handover, 0) {
            Ok(()) => self.parts.core.conns.count(|stats| stats.handed_over += 1),
            Err(Handover { socket, peer, key, .. }) => {
                self.parts.entrance.admission().keep(here, shard);
                self.adopt(socket, peer, key);
            }
        }
    }

    /// Enters a connection that was admitted with `key`.
    pub(crate) fn adopt(
        &mut self,
        socket: D::Socket,
        peer: Option<SocketAddr>,
        key: Option<AddressKey>,
    ) -> Option<ConnId> {
        self.adopt_as(socket, peer, key, true)
    }

    /// Enters a connection: a new one, or a connection from another shard after its first request.
    pub(super) fn adopt_as(
        &mut self,
        socket: D::Socket,
        peer: Option<SocketAddr>,
        key: Option<AddressKey>,
        is_new: bool,
    ) -> Option<ConnId> {
        let Ok(id) = self.driver.adopt(socket) else {
            self.parts.entrance.give_up(is_new, key);
            self.parts.core.conns.count(|stats| stats.refused += 1);
            return None;
        };
        let inbound = if is_new { self.parts.entrance.first_inbound() } else { Inbound::http() };
        self.parts.enter(id, Stage::Http, inbound);
        self.parts.entrance.enter(id, key, is_new, self.parts.core.now());
        let connections = &mut self.parts.core.conns;
        connections.set(id, flag::PENDING, is_new);
        connections.await_client(id, peer, Admitted::Counted);
        let now = connections.now();
        if is_new {
            self.parts.core.clocks.samples().accept(id, now);
        }
        // Where another process takes over, connections come until the listeners are closed.
        self.parts.await_request(id);
        Some(id)
    }

    /// Ends the oldest connection that has not sent a whole request: of all, or of an address that
    /// has too many. Returns false if there is none.
    fn make_room(&mut self, why: Refusal, address: Option<IpAddr>) -> bool {
        let Some(reason) = EndReason::of_refusal(why) else { return false };
        let EngineParts { entrance, core, .. } = &mut self.parts;
        let oldest = entrance.oldest(why, address, &core.conns);
        let Some(id) = oldest else { return false };
        self.parts.end_for_another(id, reason);
        self.flush_evicted(id);
        true
    }

    /// Closes a connection at once, without waiting for its peer: its resources must be free before
    /// another connection gets them.
    fn flush_evicted(&mut self, id: ConnId) {
        self.flush(id);
        let connections = &mut self.parts.core.conns;
        if connections.stage(id) < Stage::Ending {
            connections.finish(id, AfterFlush::Abort);
            self.flush(id);
        }
        self.driver.close_now(id);
    }

    /// Takes a connection beyond the caps into the reserve, or refuses it while the server is
    /// draining.
    pub(crate) fn refuse(
        &mut self,
        socket: D::Socket,
        peer: Option<SocketAddr>,
        why: Refusal,
    ) -> Option<ConnId> {
        let EngineParts { entrance, core, .. } = &mut self.parts;
        let connections = &mut core.conns;
        connections.count(|stats| stats.refused += 1);
        if let Some(oldest) = entrance.oldest_reserved(connections) {
            connections.note_unserved(oldest);
            self.parts.evict(oldest);
            self.flush_evicted(oldest);
        }
        let id = self.driver.adopt(socket).ok()?;
        self.parts.enter(id, Stage::Http, self.parts.entrance.first_inbound());
        self.parts.entrance.enter_reserve(id);
        let connections = &mut self.parts.core.conns;
        connections.await_client(id, peer, Admitted::Reserve(why));
        if why == Refusal::Draining {
            self.parts.intake.set(id, Inbound::Refused);
            match self.parts.entrance.tls_behind_proxy() {
                // Nothing can be sent before the handshake.
                Some(_) => connections.finish(id, AfterFlush::Close),
                None => self.parts.refuse_request(id, why),
            }
            self.flush(id);
        }
        Some(id)
    }

    pub(crate) fn retry_accept(&mut self) {
        if self.parts.entrance.end_rest() {
            self.driver.resume_accept();
        }
    }

    /// Takes over a connection, within the limits on accepted ones. It stays on this shard.
    #[cold]
    pub(super) fn take_over(&mut self, adoption: Adoption) {
        let Adoption { stream, received, is_answered } = adoption;
        let early = Early { received, is_answered };
        let peer = stream.peer_addr().ok();
        self.parts.core.conns.count(|stats| stats.accepted += 1);
        let Ok(socket) = self.driver.socket(stream) else {
            self.parts.core.conns.count(|stats| stats.refused += 1);
            return;
        };
        let key = match self.parts.entrance.admission().enter(peer.map(|peer| peer.ip())) {
            Ok(key) => key,
            Err(_) if is_answered => {
                self.parts.core.conns.count(|stats| stats.refused += 1);
                return;
            }
            Err(why) => {
                if let Some(id) = self.refuse(socket, peer, why) {
                    self.begin_with(id, early);
                }
                return;
            }
        };
        self.parts.entrance.admission().keep_here(self.parts.core.shard);
        let Some(start) = self.moves.starter() else {
            if let Some(id) = self.adopt(socket, peer, key) {
                self.begin_with(id, early);
            }
            return;
        };
        if start(socket, peer, key, Some(early)).is_err() {
            self.parts.entrance.give_up(true, key);
            self.parts.core.conns.count(|stats| stats.thread_failures += 1);
        }
    }

    /// Begins a connection with input that was received elsewhere; no proxy's header is expected in
    /// it.
    pub(crate) fn begin_with(&mut self, id: ConnId, early: Early) {
        let Early { received, is_answered } = early;
        let parts = &mut self.parts;
        if !matches!(parts.intake.inbound(id), Inbound::Refused) {
            parts.intake.set(id, Inbound::http());
        }
        let connections = &mut parts.core.conns;
        connections.set(id, flag::ANSWERED, is_answered);
        if received.is_empty() {
            return;
        }
        connections.count(|stats| stats.bytes_in += received.len() as u64);
        // As held input: it does not lie in memory of the driver's.
        let is_held = parts.on_held(id, HeldInput::new(&received));
        self.flush(id);
        if is_held {
            self.hold(id);
        }
    }

    /// Begins TLS on a connection whose PROXY header has come: the first `rest_at` held bytes
    /// belong to the header.
    #[cold]
    pub(super) fn begin_tls(&mut self, id: ConnId, rest_at: usize) {
        let held = self.parts.intake.take_held(id).unwrap_or_default();
        self.parts.intake.set(id, Inbound::http());
        let peer = self.parts.core.conns.cold(id).and_then(|cold| cold.peer);
        let tls = self.parts.entrance.tls_behind_proxy();
        let rest = held.as_slice().get(rest_at..).unwrap_or_default();
        let is_secured = tls.is_some_and(|tls| self.driver.secure_accepted(id, tls, peer, rest));
        if !is_secured {
            self.parts.core.conns.finish(id, AfterFlush::Abort);
            self.flush(id);
        }
    }

    pub(crate) fn move_upgrades(&mut self) {
        if self.parts.core.has_moves() {
            self.carry_out_moves();
        }
    }

    #[cold]
    fn carry_out_moves(&mut self) {
        for Move { id, to, event } in self.parts.core.take_moves() {
            let Some(conn) = self.parts.core.conns.conn(id) else {
                self.parts.report_failed_move(event);
                continue;
            };
            match can_move(conn) && self.moves.reaches(to) {
                true => self.move_to(id, to, event),
                false => self.pass_upgrade(id, event),
            }
        }
    }

    fn move_to(&mut self, id: ConnId, to: usize, event: UserEvent) {
        let Ok(socket) = self.driver.release(id) else { return self.pass_upgrade(id, event) };
        let parts = &mut self.parts;
        let here = parts.core.shard;
        let connections = &mut parts.core.conns;
        let is_answered = connections.has(id, flag::ANSWERED);
        let cold = connections.cold(id);
        let (peer, tls) = cold.map_or((None, None), |cold| (cold.peer, cold.tls.clone()));
        connections.leave(id);
        let input = parts.intake.take_held(id).unwrap_or_default();
        let key = parts.entrance.take_key(id);
        parts.core.clocks.samples().forget(id);
        parts.intake.set(id, Inbound::Nothing);
        parts.entrance.admission().keep(to, here);
        let bytes = input.memory();
        let memory = parts.core.conns.memory().in_transit(bytes);
        let upgrade = Some(Box::new(MovedUpgrade { event, input, is_answered, tls, memory }));
        let handover = Handover { socket, peer, key, upgrade };
        match self.moves.give(to, handover, bytes) {
            Ok(()) => self.parts.core.conns.count(|stats| stats.handed_over += 1),
            Err(returned) => {
                self.parts.entrance.admission().keep(here, to);
                self.take_moved(returned);
            }
        }
    }

    pub(crate) fn take_handovers(&mut self) {
        if self.moves.has_any() {
            self.enter_arrived();
        }
    }

    /// Enters connections from other shards for a bounded time, since this opens their sessions;
    /// the remaining connections wait for the next turn.
    #[inline(never)]
    fn enter_arrived(&mut self) {
        self.moves.take();
        let until = self.parts.core.clocks.read().after(MAX_MAIL_TIME);
        while let Some(handover) = self.moves.next_arrival() {
            match handover.upgrade.is_some() {
                true => {
                    // The service refuses it if sessions can no longer open.
                    self.take_moved(handover);
                    // The session's publications must be sent before the next session publishes.
                    self.flush_early();
                    self.parts.core.clocks.checkpoint();
                }
                false => self.enter_accepted(handover),
            }
            if self.parts.core.clocks.read() >= until {
                break;
            }
        }
    }

    /// Enters a connection that another shard has just accepted.
    fn enter_accepted(&mut self, handover: Handover<D::Socket>) {
        let Handover { socket, peer, key, .. } = handover;
        if self.parts.life.admits() {
            self.adopt(socket, peer, key);
        } else {
            // Accepted before the drain began, and not entered yet: it is refused like later
            // connections.
            self.parts.entrance.give_up(true, key);
            self.refuse(socket, peer, Refusal::Draining);
        }
    }

    /// Enters a connection that another shard has given up, and passes its upgrade to the service.
    fn take_moved(&mut self, handover: Handover<D::Socket>) {
        let Handover { socket, peer, key, upgrade: Some(upgrade) } = handover else { return };
        let MovedUpgrade { event, input, is_answered, tls, memory } = *upgrade;
        let Some(id) = self.adopt_as(socket, peer, key, false) else {
            return self.parts.report_failed_move(event);
        };
        let connections = &mut self.parts.core.conns;
        connections.set(id, flag::ANSWERED, is_answered);
        if tls.is_some()
            && let Some(cold) = connections.cold_mut(id)
        {
            cold.tls = tls;
        }
        connections.await_upgrade(id);
        if !input.is_empty() {
            connections.memory().add(memory.bytes());
            self.parts.intake.keep(id, input);
            self.hold(id);
        }
        self.pass_upgrade(id, event);
    }

    fn pass_upgrade(&mut self, id: ConnId, event: UserEvent) {
        self.parts.guarded(id, |parts| {
            parts.service.on_user_event(&mut Cx::new(&mut parts.core, id), event);
            parts.open_accepted(id);
        });
        self.flush(id);
    }
}

/// Returns whether an upgrade is awaited on this connection, and nothing of it has to leave first.
fn can_move(conn: &Conn) -> bool {
    let has_output = conn.out.is_some() || conn.has(flag::IN_FLIGHT);
    let is_awaited = conn.is(Stage::Serving) && conn.has(flag::UPGRADE_LATER);
    is_awaited && !has_output && !conn.has(flag::FINISHED) && !conn.is_finishing()
}
