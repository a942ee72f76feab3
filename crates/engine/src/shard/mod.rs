//! The event loop of one thread: one driver and its connections. Read [`Shard::turn`] first.

pub(crate) mod accept;
pub(crate) mod admission;
mod admit;
mod adopt;
pub(crate) mod audit;
pub(crate) mod burst;
mod commands;
mod flush;
mod memory;
pub(crate) mod moves;
pub(crate) mod peak;
pub(crate) mod proxy;
mod publishers;
mod receive;
mod request_events;
mod requests;
pub(crate) mod shutdown;
pub(crate) mod state;
mod timeouts;
pub(crate) mod token_bucket;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_io::memory::Trim;
use throng_io::{Clock, ConnId, Driver, Instant, SessionFailure};

use crate::conn::arrivals::{Arrivals, ArrivalsByAddress};
use crate::conn::by_address::KeyBySlot;
use crate::conn::map::ConnMap;
use crate::conn::proxy_protocol::ProxyProtocol;
use crate::conn::record::Conn;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::conn::timers::Tick;
use crate::context::{Core, Cx};
use crate::http1::body::RequestBodies;
use crate::message::{EndReason, Fault};
use crate::remote::ShardInbox;
use crate::remote::mailbox::{Inbox, Mailbox};
use crate::remote::registry::ThreadRegistry;
use crate::service::Service;
use crate::shard::accept::Starter;
use crate::shard::admission::Admission;
use crate::shard::burst::BurstDetector;
use crate::shard::moves::Handover;
use crate::shard::peak::Peak;
use crate::shard::shutdown::Phase;
use crate::shard::state::{AfterEvent, State};
use crate::stats::Snapshot;
use crate::ws::inbound::Inbound;
use crate::ws::messages::Assembly;

/// Pause of accepting after descriptors ran out, unless a connection ends earlier.
const ACCEPT_REST: Duration = Duration::from_millis(200);

/// Time in which a turn continues connections whose input was held; it continues at least one.
const MAX_RESUMING: Duration = Duration::from_micros(500);

/// Time that a turn spends on commands of other threads, and on connections from other shards.
const MAX_MAIL_TIME: Duration = Duration::from_millis(1);

/// Maximum bytes for joining messages that an idle shard keeps; with more it sweeps to free them.
const SPARE_AT_REST: usize = 64 << 10;

/// Heap that the thread of a connection uses, of its own and in its part of the allocator.
const THREAD_MEMORY: usize = 8 << 10;

/// The event loop.
pub struct Shard<D: Driver, S: Service> {
    pub(crate) driver: D,
    pub(crate) state: State<S>,
    pub(crate) handovers: Inbox<Handover<D::Socket>>,
    /// Handovers taken from the queue that wait for their turn.
    arrived: VecDeque<Handover<D::Socket>>,
    /// The other shards' `handovers`, indexed by shard. Empty where each shard has a descriptor
    /// table of its own: a socket cannot reach another thread.
    pub(crate) neighbours: Vec<Mailbox<Handover<D::Socket>>>,
    pub(crate) accept_rests_until: Option<Instant>,
    /// Starts a thread for each connection, in thread-per-connection mode.
    pub(crate) starter: Option<Starter<D::Socket>>,
    /// Slots whose deadline has passed; kept for its memory.
    due: Vec<u32>,
    peak: Peak,
    burst: BurstDetector,
    trim: Trim,
}

/// Parts of one shard, assembled by [`crate::build()`].
pub(crate) struct Parts<D: Driver, S> {
    pub(crate) driver: D,
    pub(crate) core: Core,
    pub(crate) service: S,
    pub(crate) admission: Arc<Admission>,
    pub(crate) inbox: ShardInbox,
    pub(crate) handovers: Inbox<Handover<D::Socket>>,
    pub(crate) neighbours: Vec<Mailbox<Handover<D::Socket>>>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) capacity: usize,
    pub(crate) seed: u64,
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
}

impl<D: Driver, S: Service> Shard<D, S> {
    pub(crate) fn new(parts: Parts<D, S>) -> Self {
        let started = parts.driver.now();
        let mut state = State {
            core: parts.core,
            service: parts.service,
            inbound: Vec::with_capacity(parts.capacity),
            held: ConnMap::default(),
            assembly: Assembly::new(),
            request_bodies: RequestBodies::default(),
            admission: parts.admission,
            inbox: parts.inbox,
            snapshot: parts.snapshot,
            added: None,
            phase: Phase::Running,
            started,
            swept_secs: 0,
            address_keys: KeyBySlot::default(),
            pending: Arrivals::default(),
            pending_of_address: ArrivalsByAddress::default(),
            reserve: Arrivals::default(),
            reserved: 0,
            seed: parts.seed,
            proxy_protocol: parts.proxy_protocol,
        };
        state.core.connections.now = started;
        Self {
            driver: parts.driver,
            state,
            handovers: parts.handovers,
            arrived: VecDeque::new(),
            neighbours: parts.neighbours,
            accept_rests_until: None,
            starter: None,
            due: Vec::new(),
            peak: Peak::default(),
            burst: BurstDetector::default(),
            trim: Trim::default(),
        }
    }

    /// Runs turns until a drain has ended. Returns how many connections missed its deadline and
    /// were reset.
    ///
    /// # Errors
    /// The driver's wait failed; the shard cannot continue.
    pub fn run(&mut self) -> io::Result<usize> {
        loop {
            if let Some(forced) = self.turn()? {
                return Ok(forced);
            }
        }
    }

    /// Runs one turn: waits, handles events, answers and flushes. All output leaves in `flush`.
    /// Returns `Some` when the shard has stopped.
    ///
    /// # Errors
    /// The driver's wait failed.
    // Compiled into the closure of a thread, it keeps less in registers.
    #[inline(never)]
    pub fn turn(&mut self) -> io::Result<Option<usize>> {
        self.driver.wait(self.next_deadline())?;
        self.state.core.connections.now = self.driver.now();
        self.state.core.connections.stats.turns += 1;
        self.state.core.input_time.begin_turn();
        self.state.core.connections.outbox.compression().begin_phase();
        self.state.core.watch.begin_turn(self.driver.now());
        if self.state.core.connections.stats.connections == 0 || self.state.added.is_some() {
            // There was no connection whose deadline kept the sweeps going, or the sweeps ran only
            // when something was due: deadlines set from here on count from now, not from the last
            // sweep.
            self.sweep_if_due();
        }
        while let Some(event) = self.driver.next_event() {
            // `event` borrows the driver, so nothing in `on_event` *can* write to a socket.
            match self.state.on_event(event) {
                AfterEvent::Flush(id) => self.flush(id),
                AfterEvent::Hold(id) => {
                    self.flush(id);
                    self.hold(id);
                }
                AfterEvent::Place(socket, peer) => self.place(socket, peer),
                AfterEvent::RestAccept => {
                    self.accept_rests_until = Some(self.state.core.now().after(ACCEPT_REST));
                }
                AfterEvent::Finish(id) => {
                    if let Some(why) = self.session_failure(id) {
                        let peer = self.driver.peer(id);
                        self.state.report(id, Fault::Tls(why), peer);
                    }
                    self.state.on_finished(id);
                }
                AfterEvent::RetryAccept(counted) => {
                    if let Some(id) = counted {
                        self.state.report_traffic(id, self.driver.traffic(id));
                    }
                    self.retry_accept();
                }
                AfterEvent::Nothing => {}
            }
            self.flush_early();
            self.checkpoint();
        }
        self.take_handovers();
        self.checkpoint();
        self.take_commands();
        self.expire();
        self.checkpoint();
        self.end_delays();
        self.resume_held();
        self.move_upgrades();
        self.flush_all();
        if self.state.core.watch.is_on() {
            let now = self.state.core.clock.read();
            self.state.core.watch.end_turn(now);
            self.state.core.samples.end_turn(now);
        }
        Ok(self.stopped())
    }

    /// Returns why the TLS session failed on a connection whose stream has ended. A missing
    /// close_notify is a failure only when the peer is a server: many clients leave it out.
    fn session_failure(&self, id: ConnId) -> Option<SessionFailure> {
        let is_cut = || {
            let table = &self.state.core.connections.table;
            let is_open_client = table.has(id, flag::CLIENT) && table.has(id, flag::SESSION);
            is_open_client && self.driver.was_truncated(id)
        };
        let failure = self.driver.session_failure(id);
        failure.or_else(|| is_cut().then_some(SessionFailure::Truncated))
    }

    /// Measures the time since the last checkpoint, after each step that may have called a handler,
    /// while fine-grained timing is on.
    #[inline]
    fn checkpoint(&mut self) {
        if self.state.core.watch.is_fine_grained() {
            let now = self.state.core.clock.read();
            self.state.core.watch.checkpoint(now);
        }
    }

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
        let id = self.driver.connect(peer, local)?;
        self.state.enter(id, Stage::Connecting, Inbound::Nothing);
        if let Some(conn) = self.state.core.connections.table.conn_mut(id) {
            conn.set(flag::CLIENT, true);
            conn.service.data = data;
        }
        let secs = self.state.core.connections.limits.handshake;
        self.state.core.connections.timers.due_in(id, secs);
        Ok(id)
    }

    /// Returns the service.
    pub fn service(&mut self) -> &mut S {
        &mut self.state.service
    }

    /// Returns the service and the shard's state, for work outside of callbacks. Output leaves in
    /// the next turn's flush at the latest, or with [`Shard::flush_all`].
    pub fn service_and_core(&mut self) -> (&mut S, &mut Core) {
        (&mut self.state.service, &mut self.state.core)
    }

    /// Returns the driver, for the simulator's checkers.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Returns the shard's state.
    pub fn core(&self) -> &Core {
        &self.state.core
    }

    /// Returns the whole state, for [`Shard::audit`].
    pub(crate) fn state(&self) -> &State<S> {
        &self.state
    }

    /// Handles timeouts: the sweep once a second, then the service's own deadline and the drain.
    fn expire(&mut self) {
        let now = self.state.core.now();
        self.sweep_if_due();
        if self.accept_rests_until.is_some_and(|until| now >= until) {
            self.retry_accept();
        }
        if self.state.service.next_deadline().is_some_and(|at| now >= at) {
            self.state.service.on_deadline(&mut self.state.core, now);
        }
        if let Phase::Announced { plan, at } = self.state.phase
            && now >= at
        {
            self.begin_drain(plan);
        }
        if let Phase::Draining(_) = self.state.phase {
            self.continue_drain();
        }
    }

    fn continue_drain(&mut self) {
        if self.state.continue_drain() {
            self.driver.stop_listening();
            self.add_late_threads();
        }
        let core = &self.state.core;
        if let Phase::Draining(drain) = &self.state.phase
            && drain.is_overdue(core.now())
        {
            // A close with TLS may wait for its peer.
            let table = &core.connections.table;
            for id in table.ids().filter(|id| table.stage(*id) == Stage::Ending) {
                self.driver.close_now(id);
            }
        }
    }

    /// Adds the threads that have started since the drain began to its list.
    fn add_late_threads(&mut self) {
        if self.starter.is_none() {
            return;
        }
        let started = self.state.core.remote.registry().map(ThreadRegistry::taken);
        if let Phase::Draining(drain) = &mut self.state.phase {
            drain.add(started.unwrap_or_default(), self.state.seed);
        }
    }

    fn sweep_if_due(&mut self) {
        let secs = self.state.core.now().since(self.state.started).as_secs();
        if secs > self.state.swept_secs {
            self.sweep(secs);
        }
    }

    fn sweep(&mut self, secs: u64) {
        let state = &mut self.state;
        let last = state.core.connections.timers.tick();
        let strides = (secs - state.swept_secs).min(u64::from(crate::conn::timers::MAX_SECS - 1));
        let now = last.after(strides as u16);
        state.swept_secs = secs;
        let mut due = std::mem::take(&mut self.due);
        state.core.connections.timers.advance(now, &mut due);
        for slot in due.drain(..) {
            state.on_due(slot);
        }
        self.due = due;
        state.expire_lifetimes();
        state.expire_assembling(now);
        state.expire_arrivals();
        self.expire_writes(now);
        self.end_deserted();
        self.measure_memory();
        self.state.release_messages();
        self.state.core.end_waits();
        let core = &self.state.core;
        core.remote.expire_histories(core.shard, secs, core.now());
        // Runs the trim that the last sweep requested, unless another shard did.
        self.trim.run();
        // Call both, no short circuit: each updates its own state.
        let (held, most) = self.held_memory();
        let is_over = self.peak.is_over(held, most);
        let stats = &self.state.core.connections.stats;
        if self.burst.is_over(stats.accepted, stats.connections) || is_over {
            self.trim.request();
        }
        self.state.export_stats();
        // Simulated time has no kernel.
        if matches!(self.state.core.clock, Clock::System) {
            self.state.core.watch.sample_run_delay();
        }
        if self.state.added.is_some() {
            self.state.shed_memory();
        }
    }

    /// Returns the memory of all shards that may be returned to the system when it is free, and its
    /// maximum since a shard last asked. The thread of a connection uses little, and the accepting
    /// shard counts all of them.
    fn held_memory(&self) -> (usize, usize) {
        let core = &self.state.core;
        let memory = &core.connections.memory;
        if self.state.added.is_some() {
            return (memory.measured(), 0);
        }
        let of_threads = self.threads().unwrap_or(0) * THREAD_MEMORY;
        let of_all = [memory.of_all_shards(), core.remote.kept_memory()];
        let [held, most] = of_all
            .into_iter()
            .fold([of_threads; 2], |sum, (held, most)| [sum[0] + held, sum[1] + most]);
        (held, most)
    }

    /// Returns the number of threads of connections, if this shard starts them.
    fn threads(&self) -> Option<usize> {
        self.starter.as_ref()?;
        self.state.core.remote.registry().map(ThreadRegistry::count)
    }

    /// Resets connections whose output has not moved for the write timeout.
    fn expire_writes(&mut self, now: Tick) {
        let mut listed = self.state.core.connections.outbox.in_flight().take();
        listed.retain(|&id| {
            let is_in_flight = self.is_in_flight(id, now);
            if !is_in_flight {
                self.state.core.connections.table.unlist(id, flag::FLIGHT_LISTED);
            }
            is_in_flight
        });
        self.state.core.connections.outbox.in_flight().put_back(listed);
    }

    /// Returns whether this connection has a batch in flight, and resets the connection if the
    /// batch has been in flight for too long.
    fn is_in_flight(&mut self, id: ConnId, now: Tick) -> bool {
        let unsent = self.driver.unsent(id);
        let connections = &mut self.state.core.connections;
        let (timeout, rate) = (connections.limits.write, connections.limits.min_response_rate);
        let millis = connections.millis();
        let Some(conn) = connections.table.conn_mut(id) else { return false };
        if !conn.has(flag::IN_FLIGHT) {
            return false;
        }
        let is_http = conn.stage() <= Stage::Serving;
        // Its end was reported already, or is the program's own.
        let is_closing = conn.stage() >= Stage::Closing;
        connections.outbox.expire_waiting(conn, millis);
        // One byte is a sign of life from a session's peer. A client that requests a page and then
        // takes it a byte at a time would hold the connection for days.
        let enough = if is_http { usize::from(timeout) * rate } else { 1 };
        if connections.outbox.record_unsent(conn, unsent, enough, now) > timeout {
            connections.stats.timeouts += 1;
            if !is_closing {
                connections.note_fault(id, Fault::Ended(EndReason::Write));
            }
            connections.finish(id, AfterFlush::Abort);
        }
        true
    }

    fn resume_held(&mut self) {
        let connections = &self.state.core.connections;
        if connections.outbox.has_drained() || connections.reading.has_resumed() {
            self.continue_held();
        }
    }

    /// Continues connections that waited for room or for their turn, for a bounded time. The rest
    /// comes first in the next turn.
    #[inline(never)]
    fn continue_held(&mut self) {
        self.state.core.connections.outbox.compression().begin_phase();
        let until = self.state.core.clock.read().after(MAX_RESUMING);
        self.call_drained(until);
        self.resume(until);
    }

    fn call_drained(&mut self, until: Instant) {
        let mut listed = self.state.core.connections.outbox.drained().take().into_iter();
        for id in listed.by_ref() {
            self.continue_drained(id);
            self.checkpoint();
            if self.state.core.clock.read() >= until {
                break;
            }
        }
        self.state.core.connections.outbox.drained().put_back(listed.collect());
    }

    /// Calls `on_drain` if the backlog is low enough, and resumes reading.
    fn continue_drained(&mut self, id: ConnId) {
        let state = &mut self.state;
        let connections = &mut state.core.connections;
        let (low, kept) = (connections.outbox.low_water(), connections.kept_backlog(id));
        let (backlog, is_held) = (connections.backlog(id), connections.awaits_capacity(id));
        let Some(conn) = connections.table.conn_mut(id) else { return };
        conn.set(flag::DRAIN_LISTED, false);
        if kept > low || is_held {
            // The connection is listed again when more output has left, and when there is room
            // for its publications.
            return;
        }
        let paused = conn.has(flag::PAUSED);
        if conn.has(flag::NOTIFY_ON_DRAIN) && backlog <= low {
            conn.set(flag::NOTIFY_ON_DRAIN, false);
            if matches!(conn.stage(), Stage::Http | Stage::Serving | Stage::Open) {
                state.guarded(id, |state| {
                    state.service.on_drain(&mut Cx::new(&mut state.core, id));
                });
            }
        }
        let connections = &self.state.core.connections;
        let is_stopped = connections.table.conn(id).is_some_and(Conn::is_stopped);
        if paused && !is_stopped && !connections.awaits_capacity(id) {
            self.resume_reading(id);
        }
    }

    /// Resumes connections whose answer was completed later, or whose service has room for more of
    /// a body.
    fn resume(&mut self, until: Instant) {
        let mut listed = self.state.core.connections.reading.resumed().take().into_iter();
        for id in listed.by_ref() {
            self.state.core.connections.table.unlist(id, flag::RESUME_LISTED);
            let conn = self.state.core.connections.table.conn(id);
            if conn.is_some_and(|conn| conn.is(Stage::Open) && conn.is_stopped()) {
                // A message after its upgrade has stopped it: its service resumes it.
                continue;
            }
            // Also called without bytes: the end of the request may still have to be reported.
            let bytes = self.state.held.remove(&id).unwrap_or_default();
            self.state.on_held(id, bytes);
            self.flush(id);
            self.flush_early();
            let connections = &mut self.state.core.connections;
            if connections.table.conn(id).is_some_and(|conn| conn.has(flag::PAUSED)) {
                connections.mark_drained(id);
            }
            self.checkpoint();
            if self.state.core.clock.read() >= until {
                break;
            }
        }
        self.state.core.connections.reading.resumed().put_back(listed.collect());
    }

    /// Stops reading a connection until the rest of its input has been decoded.
    fn hold(&mut self, id: ConnId) {
        if let Inbound::DueTls(rest_at) = self.state.inbound[id.slot()] {
            return self.begin_tls(id, rest_at);
        }
        let connections = &mut self.state.core.connections;
        if let Some(conn) = connections.table.conn_mut(id) {
            conn.set(flag::PAUSED, true);
            connections.mark_drained(id);
            self.driver.pause(id);
        }
    }

    /// Resumes with input that was held back, or else with reading.
    fn resume_reading(&mut self, id: ConnId) {
        let Some(bytes) = self.state.held.remove(&id) else {
            if let Some(conn) = self.state.core.connections.table.conn_mut(id) {
                conn.set(flag::PAUSED, false);
                self.driver.resume(id);
            }
            return;
        };
        self.state.on_held(id, bytes);
        self.flush(id);
        self.flush_early();
        // Either way the connection is resumed again: for the rest, or to be read.
        self.state.core.connections.mark_drained(id);
    }

    /// Returns when the next turn is due at the latest if no event comes earlier; `None`: not
    /// before an event.
    pub fn next_deadline(&self) -> Option<Instant> {
        let state = &self.state;
        let core = &state.core;
        let is_idle = core.connections.outbox.is_idle() && !core.connections.reading.has_resumed();
        // Commands that came while earlier ones were carried out woke a shard that was awake.
        let has_mail =
            !core.commands.is_empty() || !self.arrived.is_empty() || state.inbox.has_any();
        if !is_idle || has_mail {
            return Some(core.now());
        }
        let awaits_memory = || {
            self.burst.is_awaited()
                || self.trim.is_requested()
                || self.peak.is_awaited()
                || state.assembly.spare.capacity() > SPARE_AT_REST
                || self.threads().is_some_and(|threads| threads > 0)
        };
        let sweeping = core.connections.stats.connections > 0
            || state.has_stats_to_export()
            || awaits_memory();
        let sweep = match state.added.is_some() && !awaits_memory() {
            true => state.next_due_sweep(),
            false => {
                sweeping.then(|| state.started.after(Duration::from_secs(state.swept_secs + 1)))
            }
        };
        let drain = match &state.phase {
            Phase::Announced { at, .. } => Some(*at),
            Phase::Draining(drain) => Some(drain.next_step(core.now())),
            _ => None,
        };
        [sweep, drain, self.accept_rests_until, state.service.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn stopped(&mut self) -> Option<usize> {
        match self.state.phase {
            Phase::Draining(ref drain)
                if drain.has_notified_all()
                    && self.state.core.connections.stats.connections == 0
                    && self.awaited(drain.deadline()) == 0
                    && self.arrived.is_empty()
                    // Last: sockets that another shard would send from here on stay there.
                    && self.handovers.close_if_empty() =>
            {
                let forced = drain.forced + self.forced_elsewhere();
                self.state.phase = Phase::Stopped { forced };
                self.state.export_stats();
                Some(forced)
            }
            Phase::Stopped { forced } => Some(forced),
            _ => None,
        }
    }
}
