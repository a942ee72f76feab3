//! Effects of time: deadlines of connections, and the sweep once a second, which also ends the
//! connections that use the most memory.

use throng_io::{ConnId, Driver, Instant};
use throng_proto::ws;
use throng_proto::ws::Close;

use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::connections::memory::Holder;
use crate::connections::records::Listed;
use crate::message::{EndReason, Fault, Refusal};
use crate::remote::registry::ThreadRegistry;
use crate::service::Service;
use crate::shard::roads::entering::LATE;
use crate::shard::{EngineParts, Shard};
use crate::ws::inbound::Inbound;

/// Heap memory that the thread of a connection uses, directly and in its part of the allocator.
const THREAD_MEMORY: usize = 8 << 10;

impl<S: Service> EngineParts<S> {
    /// Handles a connection's deadline, whose meaning follows from its stage.
    pub(crate) fn on_due(&mut self, slot: u32) {
        let connections = &mut self.core.conns;
        let Some(id) = connections.at_slot(slot) else { return };
        let in_flight = connections.has(id, flag::IN_FLIGHT);
        match connections.stage(id) {
            Stage::Open => self.on_silence(id),
            Stage::Http => self.on_request_due(id),
            Stage::Serving => self.on_answer_due(id),
            Stage::Events => connections.keep_stream_alive(id, in_flight),
            // The time for the peer's Close begins when our Close has been sent, which the write
            // timeout watches.
            Stage::Closing if in_flight => connections.due_in(id, connections.limits().close),
            Stage::Connecting | Stage::Upgrading | Stage::Closing => {
                connections.count(|stats| stats.timeouts += 1);
                self.life.count_forced(1);
                connections.finish(id, AfterFlush::Abort);
            }
            Stage::Lingering => connections.end_lingering(id),
            Stage::Ending | Stage::Free => {}
        }
    }

    /// Pings a silent session, or ends a session that did not answer a ping.
    fn on_silence(&mut self, id: ConnId) {
        let connections = &mut self.core.conns;
        let timeout = connections.route_limits_of(id).heartbeat_timeout;
        // Its input is not read, so its silence means nothing; the write timeout watches it.
        if connections.has(id, flag::PAUSED) {
            return connections.due_in(id, timeout);
        }
        if !connections.has(id, flag::PINGED) {
            connections.ping(id);
            connections.set(id, flag::PINGED, true);
            return connections.due_in(id, timeout);
        }
        connections.count(|stats| stats.timeouts += 1);
        connections.note_fault(id, Fault::Ended(EndReason::Heartbeat));
        let close = Close::new(EndReason::Heartbeat.code(), EndReason::Heartbeat.text());
        self.end_session(id, close, false);
        self.core.conns.finish(id, AfterFlush::Abort);
    }

    /// Ends a connection whose request did not come in time, or that asks for nothing more.
    fn on_request_due(&mut self, id: ConnId) {
        let connections = &mut self.core.conns;
        let Some(conn) = connections.conn(id) else { return };
        let (paused, in_flight) = (conn.has(flag::PAUSED), conn.has(flag::IN_FLIGHT));
        let (pending, in_request) = (conn.has(flag::PENDING), conn.has(flag::REQUEST));
        if matches!(self.intake.inbound(id), Inbound::ProxyHeader(_)) {
            connections.count(|stats| stats.timeouts += 1);
            self.refuse_proxy(id, LATE);
        } else if paused {
            // Its requests are held back until it has read its answers; the write timeout watches
            // that.
            connections.await_handshake(id);
        } else if in_request && self.intake.is_body_dropped(id) {
            // The request that it belongs to is answered.
            connections.count(|stats| stats.timeouts += 1);
            connections.finish(id, AfterFlush::Linger);
        } else if pending && !in_request {
            // A browser that connects early would take such a response for the answer to its first
            // request, or show it: without a request it is not a response (RFC 9112 section 9.2).
            connections.count(|stats| stats.timeouts += 1);
            connections.note_fault(id, Fault::Ended(EndReason::Handshake));
            connections.finish(id, AfterFlush::Close);
        } else if in_request {
            connections.count(|stats| stats.timeouts += 1);
            self.intake.end_body(id);
            self.end_unanswered(id, 408, EndReason::Request);
        } else if in_flight {
            // It is idle when its answer has left, and not before.
            connections.due_in(id, connections.limits().keep_alive);
        } else {
            // An idle kept-alive connection: closing it is not a fault.
            connections.note_unserved(id);
            connections.finish(id, AfterFlush::Close);
        }
    }

    /// Refuses an upgrade that takes longer than any handshake; the service is responsible for the
    /// delay of other answers.
    fn on_answer_due(&mut self, id: ConnId) {
        let connections = &mut self.core.conns;
        if !connections.has(id, flag::UPGRADE_LATER) {
            return;
        }
        connections.count(|stats| stats.timeouts += 1);
        self.end_unanswered(id, 503, EndReason::Upgrade);
    }

    /// Frees the memory of earlier messages that no message needs now.
    pub(super) fn release_messages(&mut self) {
        self.intake.release_unused();
        self.core.conns.borrowed().set_joined(None);
    }

    /// Ends a connection to free its memory: a session with 1008, a request with 503; by a reset if
    /// its output is with the driver, since it would have to leave first, or while its TLS
    /// handshake is in progress.
    #[cold]
    fn end_to_free_memory(&mut self, id: ConnId, is_handshaking: bool) {
        let connections = &mut self.core.conns;
        let Some(conn) = connections.conn(id) else { return };
        let (stage, in_flight) = (conn.stage(), conn.has(flag::IN_FLIGHT));
        let role = if conn.has(flag::CLIENT) { ws::Role::Client } else { ws::Role::Server };
        connections.count(|stats| stats.memory_ended += 1);
        let (code, reason) = (EndReason::Memory.code(), EndReason::Memory.text());
        // A request that is answered with 503 is reported as refused.
        if stage != Stage::Http || in_flight || is_handshaking {
            connections.note_fault(id, Fault::Ended(EndReason::Memory));
        }
        let is_answered = self.intake.is_body_dropped(id);
        self.intake.end(id);
        match stage {
            _ if in_flight || is_handshaking => connections.finish(id, AfterFlush::Abort),
            Stage::Open => connections.fail(id, code.get(), reason),
            Stage::Http if is_answered => connections.finish(id, AfterFlush::Linger),
            Stage::Http => self.refuse_request(id, Refusal::Memory),
            _ => connections.finish(id, AfterFlush::Abort),
        }
        self.end_session(id, Close::new(code, ""), false);
        self.intake.forget_buffered(id, role);
    }

    pub(crate) fn export_stats(&mut self) {
        self.upkeep.export(&mut self.core);
    }

    /// Returns when the next sweep must run; `None`: not before an event.
    fn next_sweep(&self, runs_threads: impl Fn() -> bool) -> Option<Instant> {
        let Self { core, upkeep, clockwork, intake, .. } = self;
        let awaits_memory = || upkeep.awaits_memory() || intake.has_spare() || runs_threads();
        let has_to_export = || upkeep.has_to_export(core);
        if !upkeep.is_thread() {
            let has_connections = core.conns.stats().connections > 0;
            let is_due = has_connections || has_to_export() || awaits_memory();
            return is_due.then(|| clockwork.sweep_in(1));
        }
        if awaits_memory() {
            return Some(clockwork.sweep_in(1));
        }
        // A shard that sleeps until something is due.
        let is_due = core.pubsub.has_waiting() || has_to_export();
        let secs = if is_due { 1 } else { core.conns.earliest_deadline()? };
        Some(clockwork.sweep_in(u64::from(secs.max(1))))
    }
}

impl<D: Driver, S: Service> Shard<D, S> {
    /// Returns when the next turn is due at the latest if no event comes earlier; `None`: not
    /// before an event.
    pub fn next_deadline(&self) -> Option<Instant> {
        let EngineParts { core, service, entrance, life, .. } = &self.parts;
        let now = core.now();
        // Commands that came while earlier ones were carried out woke a shard that was awake.
        let has_mail = self.moves.has_arrived() || core.mail.has_any();
        if !core.conns.is_idle() || has_mail {
            return Some(now);
        }
        let runs_threads = || self.threads().is_some_and(|threads| threads > 0);
        let sweep = self.parts.next_sweep(runs_threads);
        [sweep, life.next_step(now), entrance.rests_until(), service.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles timeouts: the sweep once a second, then the service's own deadline and the drain.
    pub(crate) fn expire(&mut self) {
        let now = self.parts.core.now();
        self.sweep_if_due();
        if self.parts.entrance.rests_until().is_some_and(|until| now >= until) {
            self.retry_accept();
        }
        if self.parts.service.next_deadline().is_some_and(|at| now >= at) {
            self.parts.service.on_deadline(&mut self.parts.core, now);
        }
        if !self.parts.life.is_running() {
            self.continue_drain();
        }
    }

    pub(crate) fn sweep_if_due(&mut self) {
        if let Some(secs) = self.parts.clockwork.due_sweep(self.parts.core.now()) {
            self.sweep(secs);
        }
    }

    fn sweep(&mut self, secs: u64) {
        let EngineParts { clockwork, core, .. } = &mut self.parts;
        let (now, mut due) = clockwork.begin_sweep(secs, &mut core.conns);
        for slot in due.drain(..) {
            self.parts.on_due(slot);
        }
        let Self { driver, parts, .. } = self;
        parts.clockwork.end_sweep(due);
        parts.core.conns.end_lifetimes();
        for id in parts.core.conns.end_incomplete(now) {
            parts.end_session(id, Close::new(EndReason::Reassembly.code(), ""), false);
        }
        parts.entrance.expire(&parts.core.conns);
        parts.core.conns.expire_writes(now, |id| driver.unsent(id));
        self.end_deserted();
        self.measure_memory();
        self.parts.release_messages();
        self.parts.core.end_waits();
        let core = &self.parts.core;
        core.remote.expire_histories(core.shard, secs, core.now());
        self.parts.upkeep.trim();
        let held = self.held_memory();
        let EngineParts { core, upkeep, intake, .. } = &mut self.parts;
        upkeep.look(held, core);
        upkeep.export(core);
        // Simulated time has no kernel.
        if core.clocks.is_system() {
            core.clocks.watch().sample_run_delay();
        }
        if upkeep.is_thread() {
            intake.shed_memory();
            core.conns.shed_memory();
        }
    }

    /// Returns the memory of all shards that may be returned to the system when it is free, and its
    /// maximum since a shard last asked. The thread of a connection uses little, and the accepting
    /// shard counts all of them.
    fn held_memory(&mut self) -> (usize, usize) {
        if self.parts.upkeep.is_thread() {
            return (self.parts.core.conns.memory().measured(), 0);
        }
        let of_threads = self.threads().unwrap_or(0) * THREAD_MEMORY;
        let core = &mut self.parts.core;
        let of_all = [core.conns.memory().of_all_shards(), core.remote.kept_memory()];
        let [held, most] = of_all
            .into_iter()
            .fold([of_threads; 2], |sum, (held, most)| [sum[0] + held, sum[1] + most]);
        (held, most)
    }

    /// Returns the number of threads of connections, if this shard starts them.
    pub(crate) fn threads(&self) -> Option<usize> {
        let registry = self.parts.core.remote.registry().filter(|_| self.moves.starts_threads());
        registry.map(ThreadRegistry::count)
    }

    /// Ends unread sessions whose peer has gone, as if the end of their input had been read.
    /// Notifies the service of requests that are being answered.
    pub(crate) fn end_deserted(&mut self) {
        let mut listed = self.parts.core.conns.take_listed(Listed::Watched);
        listed.retain(|&id| {
            let conn = self.parts.core.conns.conn(id);
            let conn = conn.filter(|conn| !conn.has(flag::FINISHED));
            // A new request may have taken the place of the watched one.
            let is_serving =
                conn.is_some_and(|conn| conn.is(Stage::Serving) && !conn.has(flag::UPGRADE_LATER));
            let is_unread = is_serving || conn.is_some_and(|conn| conn.has(flag::STOPPED));
            // While a connection is read, the driver reports the end.
            let is_paused = conn.is_some_and(|conn| conn.has(flag::PAUSED));
            let has_gone = is_unread && is_paused && self.driver.has_peer_finished(id);
            match has_gone {
                // Requests before the end may still have to be read.
                true if is_serving => self.parts.on_half_closed(id),
                true => self.parts.on_finished(id),
                false => {}
            }
            let is_watched = is_unread && !has_gone;
            if !is_watched {
                self.parts.core.conns.unlist(Listed::Watched, id);
            }
            is_watched
        });
        self.parts.core.conns.put_back(Listed::Watched, listed);
    }

    /// Measures the memory of connections if enough may have changed, and ends the worst if all
    /// shards together are over the limit.
    #[inline]
    pub(crate) fn check_memory(&mut self) {
        let growth = self.driver.take_growth();
        let memory = self.parts.core.conns.memory();
        memory.add(growth);
        if memory.is_due() {
            self.measure_memory();
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn measure_memory(&mut self) {
        let mut holders = self.holders();
        let worst = self.parts.core.conns.memory().measure(&mut holders);
        for holder in &holders[..worst] {
            self.parts.end_to_free_memory(holder.id(), holder.is_handshaking());
            self.flush(holder.id());
        }
        if self.parts.core.conns.memory().must_wake_others() {
            self.parts.core.remote.wake_shards();
        }
    }

    /// Returns the memory that all connections of this shard cause.
    pub(crate) fn memory(&self) -> usize {
        self.holders().iter().map(Holder::bytes).sum()
    }

    /// Returns the connections that hold memory, with how much that is. Handshakes have the rank of
    /// their own size.
    fn holders(&self) -> Vec<Holder> {
        let EngineParts { core, intake, .. } = &self.parts;
        let connections = core.conns.memory_holders();
        let mut ids: Vec<ConnId> =
            connections.chain(intake.holders()).chain(self.driver.input_holders()).collect();
        ids.sort_unstable();
        ids.dedup();
        let holder =
            |id: ConnId| Holder::new(id, self.memory_of(id), self.driver.is_handshaking(id));
        ids.into_iter().map(holder).filter(|holder| holder.bytes() > 0).collect()
    }

    /// Returns the memory that one connection causes; 0 for a connection that is being closed at
    /// once.
    fn memory_of(&self, id: ConnId) -> usize {
        let EngineParts { core, intake, .. } = &self.parts;
        let Some(conn) = core.conns.conn(id).filter(|conn| !conn.is(Stage::Ending)) else {
            return 0;
        };
        self.driver.output_memory(id) + core.conns.output_memory(conn) + intake.memory(id)
    }
}
