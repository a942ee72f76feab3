//! One thread of the generator: its connections, and the event loop that keeps them busy.

use std::time::Duration;

use throng_engine::ConnMap;
use throng_io::tables::OwnTable;
use throng_io::{Batch, ConnId, Driver, Event, Instant, Segment, SendOutcome};

use super::HttpPlan;
use super::conn::HttpPhase;
use super::pool::{Http, HttpPool, Next};
use super::request::Wire;
use super::tally::Tally;
use crate::error::Error;
use crate::pool::{Setup, ThreadStart};
use crate::tls::Sockets;

/// Maximum requests of an open loop in one turn. If the generator has fallen behind, it must not
/// delay its own answers and blame the server.
const MAX_SENT: usize = 256;

/// A thread's event loop.
pub(super) struct HttpThread<'a> {
    driver: Sockets,
    pool: HttpPool<'a>,
    /// The thread's descriptor table, if it has its own.
    _table: Option<OwnTable>,
}

impl<'a> HttpThread<'a> {
    /// Prepares a thread's event loop; must be called on that thread, which gets its descriptor
    /// table.
    ///
    /// # Errors
    /// There is no memory for the descriptor table.
    pub(super) fn new(start: ThreadStart, plan: &'a HttpPlan, wire: Wire) -> Result<Self, Error> {
        let table = start.enter()?;
        let pool = HttpPool::of(&start, plan, wire);
        Ok(Self { driver: start.driver, pool, _table: table })
    }

    /// Runs until the run is finished, ends all remaining connections, and returns the figures.
    ///
    /// # Errors
    /// The server is unreachable, or the poll failed.
    pub(super) fn run(mut self) -> Result<(Setup, Tally), Error> {
        while !self.pool.shared.is_finishing() {
            self.begin();
            self.send_due();
            self.sweep();
            self.dial()?;
            let deadline = self.pool.deadline();
            let waited = self.driver.wait(Some(deadline));
            waited.map_err(|error| Error::io("wait for events", error))?;
            self.events()?;
            self.pool.publish();
        }
        self.end()
    }

    fn events(&mut self) -> Result<(), Error> {
        while let Some(event) = self.driver.next_event() {
            let next = match event {
                Event::Received(id, bytes) => self.pool.on_received(id, bytes),
                Event::Connected(id) => self.pool.on_connected(id),
                Event::Finished(id) => {
                    let failure = self.driver.session_failure(id);
                    let was_cut = self.driver.was_truncated(id);
                    self.pool.on_finished(id, was_cut, failure)?
                }
                Event::Sent(id, batch) => self.pool.on_sent(id, batch),
                Event::Closed(id, why) => {
                    self.pool.on_closed(id, why)?;
                    Next::Wait
                }
                // A `Connected` event follows.
                Event::Secured(id, info) => {
                    self.pool.on_secured(id, &info);
                    Next::Wait
                }
                // There is no listener, and no connection is parked.
                Event::Incoming(..)
                | Event::AcceptStopped(_)
                | Event::PassedThrough(..)
                | Event::Parked(_) => Next::Wait,
            };
            match next {
                Next::Fill(index) => self.fill(index),
                Next::Close(id) => self.driver.close(id),
                Next::Abort(id) => self.driver.abort(id),
                Next::Wait => {}
            }
        }
        Ok(())
    }

    /// Begins the run proper when its time has come.
    fn begin(&mut self) {
        let pool = &mut self.pool;
        if pool.started.is_some() {
            return;
        }
        let Some(&timeline) = pool.shared.timeline() else { return };
        if pool.clock.now() < timeline.start {
            return;
        }
        let plan = pool.protocol.plan;
        let schedule = plan.rate_per_s().map(|rate_per_s| {
            let rate = plan.common.thread_rate(pool.thread, rate_per_s);
            rate.schedule(timeline.start, pool.conns.len())
        });
        let last = Instant(timeline.to.0 - 1);
        pool.protocol.planned = schedule.as_ref().map_or(0, |schedule| schedule.due(last));
        let is_closed = schedule.is_none();
        (pool.started, pool.protocol.schedule) = (Some(timeline), schedule);
        if is_closed {
            for (index, conn) in pool.conns.iter_mut().enumerate() {
                conn.due = plan.requests_of(pool.first + index);
            }
            (0..self.pool.conns.len()).for_each(|index| self.fill(index));
        }
    }

    /// Sends the requests of the schedule that are due.
    fn send_due(&mut self) {
        let Some(timeline) = self.pool.started else { return };
        let Some(schedule) = self.pool.protocol.schedule.clone() else { return };
        let now = self.pool.clock.now();
        for _ in 0..MAX_SENT {
            let pool = &mut self.pool;
            let Some(index) = pool.next_due(&timeline, &schedule, now) else { break };
            let conn = &mut pool.conns[index];
            if conn.step == HttpPhase::Out && !pool.protocol.plan.keep_alive {
                conn.step = HttpPhase::Queued;
                pool.protocol.again.push_back(index as u32);
            }
            self.fill(index);
        }
    }

    /// Sends all requests that are due and fit the pipeline, in one send.
    #[inline]
    fn fill(&mut self, index: usize) {
        let Self { driver, pool, .. } = self;
        let conn = &mut pool.conns[index];
        let requests = conn.sendable(pool.protocol.plan.pipeline);
        if requests == 0 {
            return;
        }
        let now = pool.clock.now();
        let (slots, ring) = (pool.protocol.ring + 1, pool.protocol.ring);
        let stamps = &mut pool.protocol.stamps[index * slots..][..slots];
        for request in conn.sent..conn.sent + requests as u64 {
            stamps[request as usize & ring] = now;
        }
        conn.sent += requests as u64;
        let is_counted = pool.started.is_some_and(|timeline| timeline.counts(now));
        let wire = &pool.protocol.wire;
        if wire.own().is_some() {
            return self.fill_each(index, requests, is_counted);
        }
        if is_counted {
            pool.protocol.tally.bytes_out += (requests * wire.len()) as u64;
        }
        let mut left = requests;
        while left > 0 {
            let row = wire.row(left.min(wire.repeats()));
            let taken = driver.try_send(conn.id, row);
            if taken < row.len() {
                let spare = &mut pool.protocol.spare;
                conn.is_sending = send_rest(driver, spare, wire, conn.id, left, taken);
                return;
            }
            left -= left.min(wire.repeats());
        }
    }

    /// Sends requests that differ: the last `requests` of the requests counted as sent.
    fn fill_each(&mut self, index: usize, requests: usize, is_counted: bool) {
        let Self { driver, pool, .. } = self;
        let conn = &mut pool.conns[index];
        let Some(request) = pool.protocol.wire.own() else { return };
        let client = (pool.first + index) as u64;
        let mut batch = pool.protocol.spare.take().unwrap_or_default();
        for sequence in conn.sent - requests as u64..conn.sent {
            let encoded = batch.append(|out| request.encode(client, sequence, out));
            if let Err(error) = encoded {
                return pool.shared.fail(error);
            }
        }
        pool.protocol.tally.bytes_out += if is_counted { batch.len() as u64 } else { 0 };
        match driver.send(conn.id, batch) {
            SendOutcome::Done(batch) => pool.protocol.spare = Some(batch),
            SendOutcome::Pending => conn.is_sending = true,
        }
    }

    /// Ends connections that have waited too long.
    fn sweep(&mut self) {
        let Self { driver, pool, .. } = self;
        let now = pool.clock.now();
        if now < pool.protocol.next_sweep {
            return;
        }
        pool.protocol.next_sweep = now.after(pool.protocol.sweep_every);
        let timeout = pool.protocol.plan.timeout;
        for (index, conn) in pool.conns.iter_mut().enumerate() {
            let oldest =
                index * (pool.protocol.ring + 1) + (conn.done as usize & pool.protocol.ring);
            let (since, what) = match conn.step {
                HttpPhase::Connecting => (conn.since, "a connection to be made"),
                HttpPhase::Open if conn.under_way() > 0 => {
                    (pool.protocol.stamps[oldest], "an answer")
                }
                HttpPhase::Ending => (conn.since, "the server to end a connection"),
                HttpPhase::Out | HttpPhase::Queued | HttpPhase::Open => continue,
            };
            if now.since(since) >= timeout {
                pool.errors.timeouts += 1;
                pool.errors.note(|| format!("connection {index} waited too long for {what}"));
                conn.has_failed = true;
                driver.abort(conn.id);
            }
        }
    }

    /// Starts all wanted connections.
    fn dial(&mut self) -> Result<(), Error> {
        let now = self.pool.clock.now();
        let Http { later, again, .. } = &mut self.pool.protocol;
        while later.front().is_some_and(|&(at, _)| at <= now) {
            again.extend(later.pop_front().map(|(_, index)| index));
        }
        while let Some(index) = self.pool.protocol.again.pop_front() {
            self.dial_one(index as usize, now)?;
        }
        // If each connection carries one request, connecting is a part of the measurement, so no
        // connection is made before.
        if self.pool.protocol.plan.keep_alive || self.pool.started.is_some() {
            while let Some(index) = self.pool.dialler.next(now) {
                self.pool.conns[index].is_first = true;
                self.dial_one(index, now)?;
            }
        }
        Ok(())
    }

    fn dial_one(&mut self, index: usize, now: Instant) -> Result<(), Error> {
        let Self { driver, pool, .. } = self;
        // Connections that carry one request use all addresses in turn, so that used ports have
        // time to become free.
        let turn = if pool.protocol.plan.keep_alive { index } else { pool.protocol.dials };
        let local = pool.local(turn);
        match driver.connect(pool.peer.into(), local) {
            Ok(id) => {
                if pool.protocol.by_slot.len() <= id.slot() {
                    pool.protocol.by_slot.resize(id.slot() + 1, 0);
                }
                pool.protocol.by_slot[id.slot()] = index as u32;
                pool.conns[index].dialled(id, now, pool.protocol.answers_head);
                pool.protocol.tally.opened += 1;
                pool.protocol.dials += 1;
                Ok(())
            }
            Err(reason) => pool.on_no_socket(index, reason, now),
        }
    }

    /// Ends the remaining connections: with a FIN if no request is in progress and few ports are in
    /// TIME_WAIT, otherwise with a reset.
    fn end(mut self) -> Result<(Setup, Tally), Error> {
        self.pool.give_up();
        let mut ending = ConnMap::default();
        for conn in &self.pool.conns {
            match conn.step {
                HttpPhase::Out | HttpPhase::Queued => {}
                HttpPhase::Open if !conn.is_sending && ending.len() < MAX_IN_TIME_WAIT => {
                    self.driver.finish(conn.id);
                    ending.insert(conn.id, ());
                }
                _ => self.driver.abort(conn.id),
            }
        }
        let until = self.driver.now().after(CLOSING);
        while !ending.is_empty() && self.driver.now() < until {
            let waited = self.driver.wait(Some(until));
            waited.map_err(|error| Error::io("wait for events", error))?;
            while let Some(event) = self.driver.next_event() {
                match event {
                    Event::Finished(id) => self.driver.close(id),
                    Event::Closed(id, _) => drop(ending.remove(&id)),
                    _ => {}
                }
            }
        }
        ending.keys().for_each(|id| self.driver.abort(*id));
        Ok(self.pool.into_parts())
    }
}

/// Maximum ports that a thread may leave in TIME_WAIT, out of 28,000 for each address.
const MAX_IN_TIME_WAIT: usize = 4096;

/// The time for servers to end their side.
const CLOSING: Duration = Duration::from_secs(1);

/// Queues the rest of `requests` requests after the kernel took `taken` bytes; returns true if a
/// part is still queued.
#[cold]
fn send_rest(
    driver: &mut Sockets,
    spare: &mut Option<Box<Batch>>,
    wire: &Wire,
    id: ConnId,
    requests: usize,
    taken: usize,
) -> bool {
    let mut batch = spare.take().unwrap_or_default();
    for _ in 0..requests {
        batch.push(Segment::Shared(wire.shared()));
    }
    batch.advance(taken);
    match driver.send(id, batch) {
        SendOutcome::Done(batch) => {
            *spare = Some(batch);
            false
        }
        SendOutcome::Pending => true,
    }
}
