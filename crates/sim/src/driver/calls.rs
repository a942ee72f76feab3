//! The calls that the engine may make, and their conditions.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_io::{
    Batch, Clock, Closed, ConnId, Driver, Event, Instant, PeerAddress, SendOutcome, Slots, Waker,
};

use super::{Found, SimDriver, SimRecord, Waiting, leave};
use crate::faults::strikes;
use crate::net::{SharedNet, Side, SimSocket};

/// The number of a reason in the trace.
fn number(why: Closed) -> u64 {
    match why {
        Closed::Local => 0,
        Closed::Reset => 1,
        Closed::Refused => 2,
        Closed::Insecure(_) => 3,
    }
}

impl Driver for SimDriver {
    type Socket = SimSocket;
    type Descriptor = SimSocket;
    type Record = SimRecord;

    fn now(&self) -> Instant {
        Instant(self.net.borrow().now())
    }

    fn clock(&self) -> Clock {
        self.net.borrow().clock()
    }

    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.take_back();
        self.progress();
        let before = self.net.borrow().now();
        loop {
            self.net.borrow_mut().settle();
            let now = self.net.borrow().now();
            if self.is_ready() {
                self.calls.idle_turns_in_a_row = 0;
                break;
            }
            if deadline.is_some_and(|deadline| deadline.0 <= now) {
                match self.last_wait.is_some_and(|last| now - last < 100_000) {
                    true => self.calls.idle_turns_in_a_row += 1,
                    false => self.calls.idle_turns_in_a_row = 0,
                }
                break;
            }
            assert!(
                self.waiting == Waiting::Jump,
                "a turn was due, and its wait would sleep until {deadline:?}"
            );
            let next = [self.next_event_at(), deadline.map(|deadline| deadline.0)];
            let next = next.into_iter().flatten().min().expect("a wait that would never end");
            self.net.borrow_mut().advance_to(next);
            self.progress();
        }
        self.wakeup.0.store(false, Ordering::Release);
        if before == self.net.borrow().now() && self.waiting == Waiting::Jump {
            // A turn takes time; otherwise two turns that wait for each other would never make
            // progress.
            self.net.borrow_mut().advance_to(before + 1_000);
        }
        if strikes(&mut self.rng, self.faults.clock_leaps) {
            let leap = Duration::from_secs(self.rng.pick(&[1, 10, 100, 100_000])).as_nanos() as u64;
            let now = self.net.borrow().now();
            self.net.borrow_mut().advance_to(now + leap);
        }
        let now = self.net.borrow().now();
        self.last_wait = Some(now);
        self.events_left = self.faults.events_per_turn;
        let mut round: Vec<usize> =
            (0..self.slots.len()).filter(|slot| self.slots[*slot].conn.is_some()).collect();
        if self.faults.shuffled {
            for at in (1..round.len()).rev() {
                round.swap(at, self.rng.below(at + 1));
            }
        }
        self.round = round.into();
        Ok(())
    }

    fn next_event(&mut self) -> Option<Event<'_, SimSocket>> {
        self.take_back();
        if self.events_left == 0 {
            return self.tell_no_more();
        }
        if let Some(id) = self.next_parked() {
            self.events_left -= 1;
            self.mix(15, id.to_bits());
            return Some(Event::Parked(id));
        }
        if let Some(event) = self.next_accept() {
            self.events_left -= 1;
            self.mix(2, u64::from(matches!(event, Event::Incoming(..))));
            return Some(event);
        }
        while let Some(&slot) = self.round.front() {
            match self.look_at(slot) {
                None => {
                    self.round.pop_front();
                }
                Some(Found::Again) => {}
                Some(Found::Bytes(id)) => {
                    self.events_left -= 1;
                    // One receive per turn and connection; then the other connections follow.
                    self.round.pop_front();
                    self.mix(3, id.to_bits());
                    let net = SharedNet::clone(&self.net);
                    net.borrow_mut().trace_received(&self.lent);
                    self.lending = true;
                    return Some(Event::Received(id, &mut self.lent));
                }
                Some(Found::Event(event)) => {
                    self.events_left -= 1;
                    let (kind, id) = match &event {
                        Event::Sent(id, batch) => (4 + 16 * (batch.len() as u64), *id),
                        Event::Closed(id, why) => (5 + 16 * number(*why), *id),
                        Event::Finished(id) => (6, *id),
                        Event::Connected(id) => (7, *id),
                        _ => unreachable!("not an event of a connection"),
                    };
                    if matches!(event, Event::Closed(..)) {
                        self.net.borrow_mut().ended.push(id);
                    }
                    self.mix(kind, id.to_bits());
                    return Some(event);
                }
            }
        }
        self.tell_no_more()
    }

    fn lent(&mut self) -> &mut [u8] {
        if self.lending { &mut self.lent } else { &mut [] }
    }

    fn adopt(&mut self, socket: SimSocket) -> io::Result<ConnId> {
        if strikes(&mut self.rng, self.faults.adopt_fails) {
            return Err(io::Error::other("no descriptor is left (simulated)"));
        }
        let (link, side) = socket.into_link();
        Ok(self.enter(link, side, None))
    }

    fn release(&mut self, id: ConnId) -> io::Result<SimSocket> {
        let conn = self.conn_mut(id).ok_or(io::ErrorKind::NotConnected)?;
        let is_ending = conn.ending.is_some() || conn.fin_sent || conn.finished_reported;
        if conn.connecting.is_some() || conn.batch.is_some() || is_ending {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let (link, side) = (conn.link, conn.side);
        self.slots[id.slot()].conn = None;
        self.free_slot(id.slot());
        Ok(self.net.borrow().socket(link, side))
    }

    fn park(&mut self, id: ConnId) -> io::Result<()> {
        self.park_connection(id)
    }

    fn take_record(&mut self, id: ConnId) -> Option<SimRecord> {
        self.take_parked_record(id)
    }

    fn descriptor(&self, id: ConnId) -> Option<&SimSocket> {
        self.parked_socket(id)
    }

    fn unpark(&mut self, id: ConnId, record: SimRecord) {
        self.unpark_connection(id, record);
    }

    fn surrender(&mut self, id: ConnId) {
        self.surrender_connection(id);
    }

    fn adopt_at(&mut self, id: ConnId, socket: SimSocket) -> io::Result<()> {
        self.adopt_parked(id, socket)
    }

    fn give_slots(&mut self, kept: usize) -> io::Result<Slots> {
        self.give_free_slots(kept).ok_or(io::ErrorKind::AlreadyExists.into())
    }

    fn take_slots_back(&mut self) {
        self.take_back_slots();
    }

    fn begin_with(&mut self, slots: &Slots) -> io::Result<()> {
        self.begin_with_slots(slots)
    }

    fn vacate(&mut self, id: ConnId) {
        self.vacate_slot(id);
    }

    fn connect(&mut self, peer: PeerAddress, local: Option<SocketAddr>) -> io::Result<ConnId> {
        if strikes(&mut self.rng, self.faults.connect_fails) {
            // A local failure or a failure of the peer, equally likely: an engine that connects
            // must distinguish them.
            let kinds = [io::ErrorKind::Other, io::ErrorKind::NetworkUnreachable];
            return Err(self.rng.pick(&kinds).into());
        }
        let local = local.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 40_000)));
        let net = SharedNet::clone(&self.net);
        let mut net = net.borrow_mut();
        let Some(peer) = net.address_of(peer) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let listener = net.listener_at(peer);
        let mut options = net.dial_options(listener);
        if strikes(&mut self.rng, self.faults.cut_dials) {
            options.cut_after = Some(self.rng.between(1, 3000));
        }
        let at = match net.is_silent(peer) {
            // All data sent to this address is lost.
            true => u64::MAX,
            false => net.now() + 2 * options.latency,
        };
        let link = match listener {
            Some(listener) => net.dial(listener, local, options),
            None => None,
        };
        let link = link.unwrap_or_else(|| net.dead_link(local, options));
        drop(net);
        Ok(self.enter(link, Side::Dialer, Some(at)))
    }

    fn send(&mut self, id: ConnId, batch: Box<Batch>) -> SendOutcome {
        // Lent bytes used after another event or a wait are out of bounds, and cause a panic.
        let lent = if self.lending { std::mem::take(&mut self.lent) } else { Vec::new() };
        let outcome = self.send_from(id, batch, &lent);
        if self.lending {
            self.lent = lent;
        }
        outcome
    }

    fn try_send(&mut self, id: ConnId, bytes: &[u8]) -> usize {
        self.calls.idle_turns_in_a_row = 0;
        assert!(!bytes.is_empty(), "C3: nothing was to be sent");
        self.mix(14, id.to_bits());
        let partial = strikes(&mut self.rng, self.faults.partial_sends);
        let share = self.rng.draw();
        let net = SharedNet::clone(&self.net);
        let mut net = net.borrow_mut();
        let Some(conn) = self.conn_mut(id) else { return 0 };
        assert!(conn.batch.is_none(), "C3: a second send while one is in flight");
        if conn.ending.is_some() || conn.connecting.is_some() {
            return 0;
        }
        assert!(!conn.fin_sent, "a send after the end of our stream");
        let mut n = net.space(conn.link, conn.side).min(bytes.len());
        if partial {
            n = (share % (n as u64 + 1)) as usize;
        }
        if n > 0 {
            net.write(conn.link, conn.side, &bytes[..n]);
        }
        self.calls.bytes_sent += n as u64;
        self.calls.sends += 1;
        n
    }

    fn output_memory(&self, id: ConnId) -> usize {
        let slot = self.slots.get(id.slot()).filter(|slot| slot.generation == id.generation());
        let batch = slot.and_then(|slot| slot.conn.as_ref()?.batch.as_ref());
        batch.map_or(0, |batch| batch.memory())
    }

    fn held_output(&self) -> usize {
        let batches = self.slots.iter().filter_map(|slot| slot.conn.as_ref()?.batch.as_ref());
        batches.map(|batch| batch.memory()).sum()
    }

    fn unsent(&self, id: ConnId) -> usize {
        let Some(slot) = self.slots.get(id.slot()) else { return 0 };
        match &slot.conn {
            Some(conn) if slot.generation == id.generation() => {
                conn.batch.as_ref().map_or(0, |batch| batch.len())
            }
            _ => 0,
        }
    }

    fn pause(&mut self, id: ConnId) {
        self.mix(9, id.to_bits());
        if let Some(conn) = self.conn_mut(id) {
            conn.paused = true;
        }
    }

    fn resume(&mut self, id: ConnId) {
        self.mix(10, id.to_bits());
        if let Some(conn) = self.conn_mut(id) {
            conn.paused = false;
        }
    }

    fn finish(&mut self, id: ConnId) {
        self.mix(11, id.to_bits());
        let net = SharedNet::clone(&self.net);
        let strict = self.waiting != Waiting::Jump;
        let Some(conn) = self.conn_mut(id) else { return };
        assert!(conn.batch.is_none() || !strict, "finish while a send is in flight");
        assert!(!conn.fin_sent || !strict, "finish, twice");
        if conn.ending.is_none() {
            conn.fin_sent = true;
            net.borrow_mut().finish(conn.link, conn.side);
        }
    }

    fn close(&mut self, id: ConnId) {
        self.mix(12, id.to_bits());
        self.assert_first_end(id);
        self.end(id, Closed::Local, false);
    }

    fn abort(&mut self, id: ConnId) {
        self.mix(13, id.to_bits());
        self.assert_first_end(id);
        self.end(id, Closed::Local, true);
    }

    fn resume_accept(&mut self) {
        self.accept_stopped = false;
    }

    fn stop_listening(&mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            self.net.borrow_mut().stop_listening(listener);
        }
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.wakeup) as Waker
    }
}

impl SimDriver {
    fn send_from(&mut self, id: ConnId, mut batch: Box<Batch>, lent: &[u8]) -> SendOutcome {
        self.calls.idle_turns_in_a_row = 0;
        assert!(!batch.is_empty(), "C3: an empty batch was sent");
        self.mix(8, id.to_bits());
        self.calls.bytes_sent += batch.len() as u64;
        self.calls.sends += 1;
        let (partial, delayed) = (
            strikes(&mut self.rng, self.faults.partial_sends),
            strikes(&mut self.rng, self.faults.delayed_sends),
        );
        let (share, rest) = (self.rng.draw(), self.rng.between(1_000, 5_000_000));
        let net = SharedNet::clone(&self.net);
        let mut net = net.borrow_mut();
        let strict = self.waiting != Waiting::Jump;
        let Some(conn) = self.conn_mut(id) else { return SendOutcome::Done(batch) };
        assert!(conn.batch.is_none(), "C3: a second send while one is in flight");
        assert!(!conn.fin_sent || !strict, "a send after the end of our stream");
        if conn.ending.is_some() {
            assert!(
                !strict || conn.ending.is_some_and(|(_, why)| why != Closed::Local),
                "a send after close"
            );
            return SendOutcome::Done(batch);
        }
        if conn.connecting.is_none() && net.knows_reset(conn.link, conn.side) {
            return SendOutcome::Done(batch);
        }
        let (now, space) = (net.now(), net.space(conn.link, conn.side));
        let mut n = space.min(batch.len());
        if conn.connecting.is_some() {
            n = 0;
        } else if partial {
            n = (share % (n as u64 + 1)) as usize;
        }
        leave(&mut batch, lent, n, |bytes| net.write(conn.link, conn.side, bytes));
        if batch.is_empty() && !delayed {
            return SendOutcome::Done(batch);
        }
        batch.own(lent);
        conn.batch = Some(batch);
        conn.batch_rests_until = if partial || delayed { now + rest } else { now };
        self.calls.pending += 1;
        SendOutcome::Pending
    }

    /// Marks the end of the turn's events, after which the shard reads its mailbox.
    fn tell_no_more(&self) -> Option<Event<'_, SimSocket>> {
        self.net.borrow_mut().after_events = Some(usize::from(self.shard));
        None
    }

    /// Asserts that the engine closes a connection only once.
    #[track_caller]
    fn assert_first_end(&mut self, id: ConnId) {
        let strict = self.waiting == Waiting::Never;
        if let Some(conn) = self.conn_mut(id) {
            let ours = conn.ending.is_some_and(|(_, why)| why == Closed::Local);
            assert!(!strict || !ours, "close or abort, twice");
        }
    }
}
