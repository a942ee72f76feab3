//! The [`Driver`] implementation.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::ReadinessDriver;
use super::parking::Parked;
use super::poller::Poller;
use super::table::{NONE, SocketEntry, flag};
use super::turn::{Budget, Share, TurnStep};
use crate::batch::Batch;
use crate::clock::Clock;
use crate::driver::{Closed, Driver, Event, SendOutcome, SocketRecord, Traffic, Waker};
use crate::id::{ConnId, Slots};
use crate::peer::PeerAddress;
use crate::time::Instant;

/// A deadline nearer than this is worth a second reading of the clock, since the turn took time
/// too.
const NEAR: u64 = 100_000_000;

impl<P: Poller> Driver for ReadinessDriver<P> {
    type Socket = P::Socket;
    type Descriptor = P::Socket;
    type Record = SocketRecord;

    fn now(&self) -> Instant {
        self.now
    }

    fn clock(&self) -> Clock {
        Clock::System
    }

    /// Reads the clock once, after the wait, and before it only if the deadline is near. After a
    /// turn longer than 0.1 s a distant deadline may therefore be late by the length of that turn.
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.lent = 0;
        if !self.unregistered.is_empty() {
            self.register_deferred();
        }
        if !P::LEVEL && self.pending.bits != 0 {
            // No further edge would report it.
            let id = self.pending.id;
            if let Some(entry) = self.table.entry(id) {
                entry.flags |= flag::CAN_READ | flag::CAN_WRITE | flag::ERROR_PENDING;
            }
            self.enqueue(id);
        }
        let busy = !self.queued_events.is_empty()
            || self.listeners.has_stop_report()
            || !self.ready_list.is_empty()
            || !P::LEVEL && self.listeners.are_ready();
        let timeout = match deadline {
            _ if busy => Some(Duration::ZERO),
            None => None,
            Some(deadline) if deadline.0.saturating_sub(self.now.0) < NEAR => {
                Some(if deadline > self.now {
                    deadline.since(Clock::System.read())
                } else {
                    Duration::ZERO
                })
            }
            Some(deadline) => Some(deadline.since(self.now)),
        };
        let timeout = match timeout {
            Some(Duration::ZERO) => timeout,
            _ if self.wakeup.may_sleep() => timeout,
            _ => Some(Duration::ZERO),
        };
        let waited = self.poller.wait(timeout);
        self.wakeup.awake();
        self.now = Clock::System.read();
        let events = waited?;
        (self.taken, self.pending.bits) = (0, 0);
        self.listeners.begin_turn(P::LEVEL, self.options.accepts_per_turn);
        if !P::LEVEL {
            self.record_edges();
        }
        (self.quota, self.passed) = (self.ready_list.len(), 0);
        let ready = events.max(self.quota);
        self.share = Share::of(ready, self.buffer.len());
        self.budget = Budget::of(ready, P::LEVEL && self.quota > 0, self.share);
        Ok(())
    }

    #[inline(always)]
    fn next_event(&mut self) -> Option<Event<'_, P::Socket>> {
        self.lent = 0;
        let step = match self.receive_next() {
            // Fast path for the most frequent event.
            Some((id, Ok(n))) if n > 0 => {
                self.budget.spend(n);
                if n == self.share.bytes {
                    self.read_again(id, self.share.reads);
                }
                self.lent = n;
                return Some(Event::Received(id, &mut self.buffer[..n]));
            }
            Some((id, received)) => self.received(id, received).or_else(|| self.step()),
            None => self.step(),
        };
        Some(match step? {
            TurnStep::Received(id) => Event::Received(id, &mut self.buffer[..self.lent]),
            TurnStep::Sent(id, batch) => Event::Sent(id, batch),
            TurnStep::Parked(id) => Event::Parked(id),
            TurnStep::Closed(id, why) => Event::Closed(id, why),
            TurnStep::Finished(id) => Event::Finished(id),
            TurnStep::Connected(id) => Event::Connected(id),
            TurnStep::Incoming(socket, peer, listener) => Event::Incoming(socket, peer, listener),
            TurnStep::AcceptStopped(kind) => Event::AcceptStopped(kind),
        })
    }

    #[inline]
    fn lent(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.lent]
    }

    fn socket(&mut self, stream: TcpStream) -> io::Result<P::Socket> {
        let socket = socket2::Socket::from(stream);
        crate::connect::prepare_accepted(&socket, &self.options)?;
        Ok(P::from_connecting(socket))
    }

    fn adopt(&mut self, socket: P::Socket) -> io::Result<ConnId> {
        if !P::DEFERS_REGISTRATION {
            return self.enter(socket, if P::LEVEL { flag::ARMED_READ } else { 0 });
        }
        let id = self.table.next_id()?;
        self.table.insert(socket, flag::ARMED_READ | flag::UNREGISTERED);
        self.unregistered.push(id);
        Ok(id)
    }

    fn release(&mut self, conn: ConnId) -> io::Result<P::Socket> {
        const ENDING: u64 = flag::CONNECTING | flag::FINISHED | flag::BROKEN;
        let entry = self.table.entry(conn).ok_or(io::ErrorKind::NotConnected)?;
        if entry.outgoing != NONE || entry.flags & ENDING != 0 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut socket = entry.socket.take().ok_or(io::ErrorKind::NotConnected)?;
        self.table.release(conn);
        self.poller.release(&mut socket);
        Ok(socket)
    }

    fn park(&mut self, conn: ConnId) -> io::Result<()> {
        self.park_connection(conn)
    }

    fn take_record(&mut self, conn: ConnId) -> Option<SocketRecord> {
        self.parked.get_mut(&conn)?.take_record()
    }

    fn descriptor(&self, conn: ConnId) -> Option<&P::Socket> {
        self.parked.get(&conn).map(Parked::socket)
    }

    fn unpark(&mut self, conn: ConnId, record: SocketRecord) {
        self.unpark_connection(conn, record);
    }

    fn surrender(&mut self, conn: ConnId) {
        self.surrender_connection(conn);
    }

    fn adopt_at(&mut self, conn: ConnId, descriptor: P::Socket) -> io::Result<()> {
        self.adopt_parked(conn, descriptor)
    }

    fn give_slots(&mut self, kept: usize) -> io::Result<Slots> {
        self.table.give(kept).ok_or(io::ErrorKind::AlreadyExists.into())
    }

    fn take_slots_back(&mut self) {
        self.table.take_back();
    }

    fn begin_with(&mut self, slots: &Slots) -> io::Result<()> {
        self.table.begin_with(slots)
    }

    fn vacate(&mut self, conn: ConnId) {
        self.table.vacate(conn);
    }

    fn connect(&mut self, peer: PeerAddress, local: Option<SocketAddr>) -> io::Result<ConnId> {
        self.table.next_id()?;
        let socket = P::start_connect(peer, local, &self.options)?;
        let armed = if P::LEVEL { flag::ARMED_READ | flag::ARMED_WRITE } else { 0 };
        self.enter(socket, flag::CONNECTING | armed)
    }

    #[inline(always)]
    fn send(&mut self, conn: ConnId, mut batch: Box<Batch>) -> SendOutcome {
        // Fast path, inline: owned bytes that are sent whole.
        if let Some(SocketEntry { socket: Some(socket), flags, .. }) = self.table.entry(conn)
            && *flags & flag::CONNECTING == 0
            && let Some(bytes) = batch.plain()
        {
            let (offered, sent) = (bytes.len(), P::send(socket, bytes));
            return match sent {
                Ok(n) if n == offered => {
                    batch.clear();
                    SendOutcome::Done(batch)
                }
                sent => self.send_rest(conn, batch, Some((offered, sent))),
            };
        }
        self.send_rest(conn, batch, None)
    }

    #[inline]
    fn try_send(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        match self.table.entry(conn) {
            Some(SocketEntry { socket: Some(socket), flags, .. })
                if *flags & flag::CONNECTING == 0 =>
            {
                match P::send(socket, bytes) {
                    Ok(n) => n,
                    Err(error) => self.handle_try_send_error(conn, &error),
                }
            }
            _ => 0,
        }
    }

    fn unsent(&self, conn: ConnId) -> usize {
        match self.table.entry_ref(conn) {
            Some(entry) if entry.outgoing != NONE => self.outgoing.unsent(entry.outgoing),
            _ => 0,
        }
    }

    fn output_memory(&self, conn: ConnId) -> usize {
        match self.table.entry_ref(conn) {
            Some(entry) if entry.outgoing != NONE => self.outgoing.memory(entry.outgoing),
            _ => 0,
        }
    }

    fn peer(&self, conn: ConnId) -> Option<SocketAddr> {
        P::peer(self.table.entry_ref(conn)?.socket.as_ref()?)
    }

    fn held_output(&self) -> usize {
        self.outgoing.held()
    }

    fn traffic(&self, conn: ConnId) -> Option<Traffic> {
        match self.table.entry_ref(conn) {
            Some(entry) => P::traffic(entry.socket.as_ref()?),
            None => self.ended.filter(|(ended, _)| *ended == conn).map(|(_, traffic)| traffic),
        }
    }

    fn count_traffic(&mut self, conn: ConnId) {
        if let Some(entry) = self.table.entry(conn) {
            entry.flags |= flag::COUNTED;
        }
    }

    /// Makes no system call: interest is dropped only if input comes while paused.
    fn has_peer_finished(&self, conn: ConnId) -> bool {
        let entry = self.table.entry_ref(conn);
        entry.and_then(|entry| entry.socket.as_ref()).is_some_and(P::has_peer_finished)
    }

    fn pause(&mut self, conn: ConnId) {
        if let Some(entry) = self.table.entry(conn) {
            entry.flags |= flag::PAUSED;
            if entry.flags & flag::BROKEN != 0 {
                // Its reset was reported to us already, and will not be reported again.
                self.end(conn, Closed::Reset);
            }
        }
    }

    fn resume(&mut self, conn: ConnId) {
        let Some(entry) = self.table.entry(conn) else { return };
        entry.flags &= !flag::PAUSED;
        if P::LEVEL {
            self.sync(conn);
        } else if entry.flags & flag::CAN_READ != 0 {
            self.enqueue(conn);
        }
    }

    fn finish(&mut self, conn: ConnId) {
        if let Some(SocketEntry { socket: Some(socket), .. }) = self.table.entry(conn) {
            P::finish(socket);
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.end(conn, Closed::Local);
    }

    fn abort(&mut self, conn: ConnId) {
        if let Some(SocketEntry { socket: Some(socket), .. }) = self.table.entry(conn) {
            P::reset_on_drop(socket);
        }
        self.end(conn, Closed::Local);
    }

    fn resume_accept(&mut self) {
        self.listeners.resume(&self.poller);
    }

    fn stop_listening(&mut self) {
        self.listeners.clear(&self.poller);
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.wakeup) as Waker
    }
}
