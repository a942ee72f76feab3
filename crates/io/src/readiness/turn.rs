//! A turn: converts reports of the poll to events, one at a time.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use super::ReadinessDriver;
use super::poller::{ERROR, HANG_UP, Poller, READ, Ready, WRITE};
use super::table::{NONE, flag};
use crate::batch::Batch;
use crate::driver::{Closed, ListenerId, Traffic};
use crate::id::ConnId;
use crate::options::MAX_CONNECTIONS;

/// Maximum receives for one readable event, if it is the only one. More than one only if the buffer
/// was filled completely.
const READS_PER_EVENT: u8 = 4;

/// Bytes that a turn receives from all connections together if there are several. The last receive
/// from reported connections, and the last from waiting ones, may exceed it. A millisecond or less,
/// even if the bytes go to fresh memory. Connections beyond it wait for the next turn, in
/// [`ReadinessDriver::ready_list`].
const RECEIVED_PER_TURN: isize = 1 << 20;

/// Part of [`RECEIVED_PER_TURN`] for connections that wait since earlier turns, so that others
/// cannot always come before them.
const FOR_WAITING: isize = RECEIVED_PER_TURN / 2;

/// Minimum size of a receive: a message of 64 KiB fits into one, so that messages of that size cost
/// as many calls from a hundred senders as from one. [`RECEIVED_PER_TURN`] bounds the turn.
const MIN_RECEIVE: usize = 65 << 10;

/// Part of a turn that each readable connection has.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// Maximum bytes of a receive.
    pub(super) bytes: usize,
    /// Maximum receives.
    pub(super) reads: u8,
}

impl Share {
    /// Divides a turn among this many events.
    pub(super) fn of(events: usize, buffer: usize) -> Self {
        if events <= 1 {
            return Self { bytes: buffer, reads: READS_PER_EVENT };
        }
        // Powers of two: a division takes as long as the rest of a turn's preparation.
        let halvings = events.ilog2();
        Self {
            bytes: (RECEIVED_PER_TURN.cast_unsigned() >> halvings).max(MIN_RECEIVE).min(buffer),
            reads: (READS_PER_EVENT >> halvings.min(7)).max(1),
        }
    }
}

/// Bytes that a turn may still receive.
#[derive(Clone, Copy, Default)]
pub(super) struct Budget {
    /// Below 0 when the last receive has exceeded it.
    bytes: isize,
    /// Set aside for the connections of earlier turns, until the poll's reports are handled.
    for_waiting: isize,
}

impl Budget {
    /// Returns the budget of a turn with this many events; `are_waiting`: connections of earlier
    /// turns wait.
    pub(super) fn of(events: usize, are_waiting: bool, share: Share) -> Self {
        if events <= 1 {
            let bytes = share.bytes.cast_signed() * isize::from(share.reads);
            return Self { bytes, for_waiting: 0 };
        }
        let for_waiting = if are_waiting { FOR_WAITING } else { 0 };
        Self { bytes: RECEIVED_PER_TURN - for_waiting, for_waiting }
    }

    /// Returns whether no more may be received.
    #[inline]
    fn is_spent(&self) -> bool {
        self.bytes <= 0
    }

    /// Subtracts a receive of this many bytes.
    #[inline]
    pub(super) fn spend(&mut self, bytes: usize) {
        self.bytes -= bytes.cast_signed();
    }

    /// Limits it to the budget of a turn with several events.
    fn limit(&mut self) {
        self.bytes = self.bytes.min(RECEIVED_PER_TURN);
    }

    /// Adds the part of the connections that wait since earlier turns: it is reserved for them,
    /// even if other connections have used up their part.
    fn add_waiting(&mut self) {
        self.bytes = self.bytes.max(0) + std::mem::take(&mut self.for_waiting);
    }
}

/// Pending work for a connection.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub(super) id: ConnId,
    pub(super) bits: u8,
    /// Number of receives left.
    pub(super) reads: u8,
}

/// An event caused by our own calls.
pub(super) enum QueuedEvent {
    Sent(ConnId, Box<Batch>),
    Parked(ConnId),
    /// With its byte counts, if they are requested.
    Closed(ConnId, Closed, Option<Traffic>),
}

/// An [`Event`] that does not borrow.
pub(super) enum TurnStep<S> {
    Incoming(S, Option<SocketAddr>, ListenerId),
    AcceptStopped(ErrorKind),
    Connected(ConnId),
    /// Bytes were received: the lent bytes at the start of the buffer.
    Received(ConnId),
    Finished(ConnId),
    Sent(ConnId, Box<Batch>),
    Parked(ConnId),
    Closed(ConnId, Closed),
}

/// Returns the readiness of an edge-triggered connection with these flags.
fn bits_of(flags: u64) -> u8 {
    let bits = [(flag::CAN_READ, READ), (flag::CAN_WRITE, WRITE), (flag::ERROR_PENDING, ERROR)];
    bits.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |bits, (_, bit)| bits | bit)
}

impl<P: Poller> ReadinessDriver<P> {
    /// Receives for the next connection, if the next report is of the most common kind: input, for
    /// a connection that is being read, with no other work pending. Otherwise does nothing.
    #[inline(always)]
    pub(super) fn receive_next(&mut self) -> Option<(ConnId, io::Result<usize>)> {
        let is_alone = self.queued_events.is_empty()
            && !self.listeners.are_ready()
            && self.pending.bits == 0
            && !self.budget.is_spent();
        if !P::LEVEL || !is_alone {
            return None;
        }
        let Ready { token, bits } = self.poller.ready(self.taken)?;
        let id = ConnId::from_bits(token);
        // The waker and the listeners have no entry.
        let entry = self.table.entry(id)?;
        if bits != READ || entry.flags & (flag::NOT_READING | flag::QUEUED) != 0 {
            return None;
        }
        let socket = entry.socket.as_ref()?;
        self.taken += 1;
        Some((id, P::recv(socket, &mut self.buffer[..self.share.bytes])))
    }

    /// Returns the next event. Received bytes are in `buffer`.
    #[inline(never)]
    pub(super) fn step(&mut self) -> Option<TurnStep<P::Socket>> {
        loop {
            if let Some(local) = self.queued_events.pop_front() {
                return Some(match local {
                    QueuedEvent::Sent(id, batch) => TurnStep::Sent(id, batch),
                    QueuedEvent::Parked(id) => {
                        self.report_parked(id);
                        TurnStep::Parked(id)
                    }
                    QueuedEvent::Closed(id, why, traffic) => {
                        self.table.release(id);
                        self.ended = traffic.map(|traffic| (id, traffic));
                        TurnStep::Closed(id, why)
                    }
                });
            }
            if self.listeners.are_ready()
                && let Some(step) = self.listeners.next(&self.poller, &self.options)
            {
                return Some(step);
            }
            let pending = self.next_ready()?;
            if let Some(step) = self.handle_ready(pending) {
                return Some(step);
            }
        }
    }

    /// Returns the next connection that has work.
    fn next_ready(&mut self) -> Option<Pending> {
        if self.pending.bits != 0 {
            let pending = self.pending;
            self.pending.bits = 0;
            return Some(pending);
        }
        if P::LEVEL {
            while let Some(Ready { token, bits }) = self.poller.ready(self.taken) {
                self.taken += 1;
                let id = ConnId::from_bits(token);
                if id.slot() < MAX_CONNECTIONS {
                    return Some(Pending { id, bits, reads: self.share.reads });
                }
                self.listeners.on_ready(id);
                if self.listeners.are_ready() {
                    // Empty bits do nothing, so that the listeners are served next.
                    return Some(Pending { id, bits: 0, reads: 0 });
                }
            }
            // A client's first request has usually arrived before its connection is accepted, and
            // many connections have only one request.
            if let Some(&id) = self.unregistered.get(self.cursor) {
                if self.cursor == 0 {
                    let accepted = self.unregistered.len();
                    self.share = Share::of(accepted, self.buffer.len());
                    if accepted > 1 {
                        self.budget.limit();
                    }
                }
                self.cursor += 1;
                return Some(Pending { id, bits: READ, reads: self.share.reads });
            }
            self.budget.add_waiting();
        }
        while self.quota > 0 && !self.budget.is_spent() {
            self.quota -= 1;
            let id = self.ready_list.pop_front()?;
            let Some(entry) = self.table.entry(id) else { continue };
            if P::LEVEL {
                entry.flags &= !flag::QUEUED;
                if entry.flags & flag::NOT_READING != 0 {
                    continue;
                }
                return Some(Pending { id, bits: READ, reads: self.share.reads });
            }
            let bits = bits_of(entry.flags);
            entry.flags &= !(flag::QUEUED | flag::ERROR_PENDING);
            return Some(Pending { id, bits, reads: 1 });
        }
        if !P::LEVEL && self.budget.is_spent() { self.next_without_input() } else { None }
    }

    /// Returns the next connection with other work than input, for which the budget is used up. All
    /// keep their places in the list, in which their input is received in a later turn.
    #[cold]
    fn next_without_input(&mut self) -> Option<Pending> {
        while self.quota > 0 {
            self.quota -= 1;
            let id = *self.ready_list.get(self.passed)?;
            self.passed += 1;
            let Some(entry) = self.table.entry(id) else { continue };
            let mut bits = bits_of(entry.flags) & !READ;
            if entry.flags & flag::NOT_READING != 0 {
                entry.flags &= !flag::ERROR_PENDING;
            } else if bits != 0 {
                // Without output an error is found by receiving.
                let can_send = entry.outgoing != NONE && entry.flags & flag::BROKEN == 0;
                bits = if can_send { WRITE } else { 0 };
            }
            if bits != 0 {
                return Some(Pending { id, bits, reads: 1 });
            }
        }
        None
    }

    /// Does one unit of work for a connection. The rest is stored in `self.pending`.
    fn handle_ready(&mut self, pending: Pending) -> Option<TurnStep<P::Socket>> {
        let Pending { id, bits, reads } = pending;
        // The connection may have been closed in this very turn: the event is stale.
        let entry = self.table.entry(id)?;
        if entry.flags & flag::CONNECTING != 0 {
            return self.handle_connecting(pending);
        }
        let can_send = entry.outgoing != NONE && entry.flags & flag::BROKEN == 0;
        if bits & (WRITE | ERROR) != 0 && can_send {
            self.pending = Pending { bits: bits & !WRITE & !ERROR, ..pending };
            if bits & ERROR != 0 {
                self.pending.bits |= READ;
            }
            return self.continue_sending(id);
        }
        if bits & (READ | ERROR | HANG_UP) != 0 {
            if entry.flags & flag::NOT_READING == 0 {
                if P::LEVEL && (self.budget.is_spent() || entry.flags & flag::QUEUED != 0) {
                    // It has its place in the list of waiting connections.
                    self.enqueue(id);
                    return None;
                }
                let step = self.receive(id, reads);
                if !P::LEVEL && bits & ERROR != 0 && step.is_some() {
                    self.keep_error_pending(id);
                }
                return step;
            }
            self.handle_while_paused(pending);
        } else if bits & WRITE != 0 {
            // Room for output, and nothing to send.
            self.sync(id);
        }
        None
    }

    /// Keeps an error pending that came together with input or the end of the stream.
    ///
    /// No further edge reports it: a reset that came with a FIN is noticed only by looking again.
    #[cold]
    fn keep_error_pending(&mut self, id: ConnId) {
        if let Some(entry) = self.table.entry(id) {
            entry.flags |= flag::ERROR_PENDING;
            self.enqueue(id);
        }
    }

    fn receive(&mut self, id: ConnId, reads: u8) -> Option<TurnStep<P::Socket>> {
        let received = loop {
            let socket = self.table.entry(id)?.socket.as_ref()?;
            match P::recv(socket, &mut self.buffer[..self.share.bytes]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received,
            }
        };
        if let Ok(n) = received {
            self.budget.spend(n);
            if P::LEVEL && n == self.share.bytes {
                self.read_again(id, reads);
            }
        }
        self.received(id, received)
    }

    /// Schedules further receives, in this turn or in a later one, after a receive that filled the
    /// share of the buffer. `reads` is the number of receives left in a row, including that one.
    ///
    /// A connection with much input waits behind connections that wait already. A connection with
    /// little does not: its message is received in the turn that reports it.
    #[inline(never)]
    pub(super) fn read_again(&mut self, id: ConnId, reads: u8) {
        let reads = reads - 1;
        if reads > 0 && !self.budget.is_spent() {
            self.pending = Pending { id, bits: READ, reads };
        } else {
            self.enqueue(id);
        }
    }

    /// Converts the result of a receive to an event.
    pub(super) fn received(
        &mut self,
        id: ConnId,
        received: io::Result<usize>,
    ) -> Option<TurnStep<P::Socket>> {
        let entry = self.table.entry(id)?;
        match received {
            Ok(0) if entry.flags & flag::BROKEN != 0 => {
                let ended = entry.flags & flag::FIN_BEFORE_RESET != 0;
                self.end(id, Closed::Reset);
                ended.then_some(TurnStep::Finished(id))
            }
            Ok(0) => {
                // Interest is dropped only if the kernel reports again: the engine usually closes
                // at once.
                entry.flags |= flag::FINISHED;
                Some(TurnStep::Finished(id))
            }
            Ok(n) => {
                if !P::LEVEL {
                    self.enqueue(id);
                }
                self.lent = n;
                Some(TurnStep::Received(id))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                entry.flags &= !flag::CAN_READ;
                None
            }
            // Level-triggered: reported again. Edge-triggered: `receive` has retried already.
            Err(error) if error.kind() == ErrorKind::Interrupted => None,
            Err(_) => {
                self.end(id, Closed::Reset);
                None
            }
        }
    }

    /// Handles an event of a connection that is not read: paused, or the peer's stream has ended.
    #[cold]
    pub(super) fn handle_while_paused(&mut self, Pending { id, bits, .. }: Pending) {
        let Some(entry) = self.table.entry(id) else { return };
        let Some(socket) = &entry.socket else { return };
        if bits & ERROR != 0 && P::take_error(socket) {
            self.end(id, Closed::Reset);
            return;
        }
        if P::LEVEL && bits & (ERROR | HANG_UP) != 0 {
            // It cannot be masked and lasts: report only changes from now on. The switch itself
            // causes one more report.
            if entry.flags & flag::MUTED == 0 {
                entry.flags |= flag::MUTED;
                entry.flags &= !flag::ARMED_READ;
                self.modify(id);
            }
            return;
        }
        self.sync(id);
    }

    #[cold]
    pub(super) fn handle_connecting(
        &mut self,
        Pending { id, bits, .. }: Pending,
    ) -> Option<TurnStep<P::Socket>> {
        let entry = self.table.entry(id)?;
        match P::connected(entry.socket.as_ref()?, bits) {
            None => None,
            Some(true) => {
                entry.flags &= !flag::CONNECTING;
                // Output that was sent before the connection was established leaves now.
                self.pending = Pending { id, bits: bits & (READ | WRITE), reads: self.share.reads };
                self.sync(id);
                Some(TurnStep::Connected(id))
            }
            Some(false) => {
                self.end(id, Closed::Refused);
                None
            }
        }
    }

    /// Records the edges that a wait reported.
    pub(super) fn record_edges(&mut self) {
        let mut index = 0;
        while let Some(Ready { token, bits }) = self.poller.ready(index) {
            index += 1;
            let id = ConnId::from_bits(token);
            if id.slot() >= MAX_CONNECTIONS {
                self.listeners.on_ready(id);
                continue;
            }
            let Some(entry) = self.table.entry(id) else { continue };
            for (flag, bit) in [
                (flag::CAN_READ, READ),
                (flag::CAN_WRITE, WRITE),
                (flag::ERROR_PENDING, ERROR | HANG_UP),
            ] {
                entry.flags |= if bits & bit != 0 { flag } else { 0 };
            }
            self.enqueue(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::batch::Segment;
    use crate::driver::{Driver, Event, SendOutcome};
    use crate::options::Options;
    use crate::portable::MioPoller;

    /// Takes the events of a turn: the connections whose input came, in order, the number of bytes,
    /// and the connections whose output has left.
    fn drain(driver: &mut ReadinessDriver<MioPoller>) -> (Vec<ConnId>, usize, Vec<ConnId>) {
        let (mut received, mut bytes, mut sent) = (Vec::new(), 0, Vec::new());
        while let Some(event) = driver.next_event() {
            match event {
                Event::Received(id, input) => {
                    bytes += input.len();
                    received.push(id);
                }
                Event::Sent(id, _) => sent.push(id),
                Event::Incoming(..) => {}
                _ => panic!("an end"),
            }
        }
        (received, bytes, sent)
    }

    /// Connects this many peers.
    fn connect(driver: &mut ReadinessDriver<MioPoller>, count: usize) -> Vec<(ConnId, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pair = |_| {
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let socket = driver.socket(listener.accept().unwrap().0).unwrap();
            (driver.adopt(socket).unwrap(), peer)
        };
        (0..count).map(pair).collect()
    }

    #[test]
    fn a_message_of_64_kib_is_received_at_once_beside_many_others() {
        let header = 14;
        for events in 1..=20_000 {
            let share = Share::of(events, Options::default().receive_buffer);
            assert!(share.bytes >= (64 << 10) + header && share.reads > 0, "{events} events");
        }
    }

    #[test]
    fn output_leaves_and_input_keeps_its_order_when_the_budget_of_a_turn_is_used_up() {
        const CHUNK: usize = MIN_RECEIVE * 2;
        let mut driver = ReadinessDriver::<MioPoller>::new(Options::default()).unwrap();
        let mut pairs = connect(&mut driver, 101);
        let (writer, mut reader) = pairs.pop().unwrap();
        let mut batch = Batch::default();
        batch.push(Segment::Own(vec![b'x'; 16 << 20]));
        assert!(matches!(driver.send(writer, Box::new(batch)), SendOutcome::Pending));
        // Its first edges are out of the way.
        let at_once = |driver: &ReadinessDriver<MioPoller>| Some(driver.now());
        for _ in 0..10 {
            driver.wait(at_once(&driver)).unwrap();
            drain(&mut driver);
        }
        for (_, peer) in &mut pairs {
            peer.write_all(&[b'i'; CHUNK]).unwrap();
        }
        let is = |driver: &mut ReadinessDriver<MioPoller>, id, flag| {
            driver.table.entry(id).is_some_and(|entry| entry.flags & flag != 0)
        };
        while !pairs.iter().all(|(id, _)| is(&mut driver, *id, flag::CAN_READ)) {
            driver.wait(at_once(&driver)).unwrap();
        }
        // Room for output comes last.
        reader.set_nonblocking(true).unwrap();
        let mut buffer = vec![0; 1 << 20];
        while !is(&mut driver, writer, flag::CAN_WRITE) {
            let _ = reader.read(&mut buffer);
            driver.wait(at_once(&driver)).unwrap();
        }
        let before = driver.unsent(writer);
        let (first, bytes, _) = drain(&mut driver);
        assert!(
            first.len() < pairs.len() && bytes < RECEIVED_PER_TURN.cast_unsigned() + CHUNK,
            "{bytes}"
        );
        assert!(driver.unsent(writer) < before, "it waits for the input of others");
        let mut all = first;
        // A turn reserves half a mebibyte for waiting connections.
        for _ in 0..2 * pairs.len() * CHUNK / RECEIVED_PER_TURN.cast_unsigned() {
            driver.wait(at_once(&driver)).unwrap();
            all.extend(drain(&mut driver).0);
        }
        assert!(all.len() >= pairs.len(), "one waits for more than its turn");
        all.truncate(pairs.len());
        let mut once: Vec<_> = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len(), "one has a second turn before another has its first");
    }
}
