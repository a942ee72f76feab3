//! Parked connections (C14): out of the poll, and beside the table.
//!
//! The entry of a parked connection has no socket, as if its end were not delivered yet. So every
//! call and every report that is left over finds nothing, and no step of an open connection has a
//! branch for it.

use std::io;

use super::ReadinessDriver;
use super::interest::interest;
use super::poller::{Interest, Poller};
use super::table::{NONE, SocketEntry, flag};
use super::turn::QueuedEvent;
use crate::driver::{Closed, SocketRecord};
use crate::id::ConnId;
use crate::options::MAX_CONNECTIONS;

/// The state of a parked connection.
pub(super) struct Parked<S> {
    socket: S,
    /// `None` once it was moved out, and for a connection that was adopted.
    record: Option<SocketRecord>,
    /// Whether [`Event::Parked`](crate::Event::Parked) was delivered.
    is_reported: bool,
    /// Whether it came from another process. It is registered, in silence.
    is_adopted: bool,
}

impl<S> Parked<S> {
    pub(super) fn socket(&self) -> &S {
        &self.socket
    }

    pub(super) fn take_record(&mut self) -> Option<SocketRecord> {
        self.record.take_if(|_| self.is_reported)
    }
}

impl<P: Poller> ReadinessDriver<P> {
    /// Takes a connection out of the poll, the table and all lists.
    pub(super) fn park_connection(&mut self, id: ConnId) -> io::Result<()> {
        let entry = self.table.entry(id).ok_or(io::ErrorKind::NotConnected)?;
        let SocketEntry { socket, outgoing, flags } = entry;
        if *flags & flag::WAITS != 0 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut socket = socket.take().ok_or(io::ErrorKind::NotConnected)?;
        let index = std::mem::replace(outgoing, NONE);
        let is_new = *flags & flag::UNREGISTERED != 0;
        let record = SocketRecord {
            unsent: (index != NONE).then(|| self.outgoing.remove(index)),
            is_paused: *flags & flag::PAUSED != 0,
            is_counted: *flags & flag::COUNTED != 0,
        };
        self.poller.release(&mut socket);
        if is_new {
            // If it comes back in this turn, it must not be registered twice. A second place in
            // `ready_list` does no harm.
            self.unregistered.iter_mut().filter(|it| **it == id).for_each(|it| *it = nothing(id));
        }
        let record = Some(record);
        let parked = Parked { socket, record, is_reported: false, is_adopted: false };
        self.parked.insert(id, parked);
        self.queued_events.push_back(QueuedEvent::Parked(id));
        Ok(())
    }

    /// Records that [`Event::Parked`](crate::Event::Parked) is being delivered.
    pub(super) fn report_parked(&mut self, id: ConnId) {
        if let Some(parked) = self.parked.get_mut(&id) {
            parked.is_reported = true;
        }
    }

    /// Puts a connection back into the table and the poll.
    pub(super) fn unpark_connection(&mut self, id: ConnId, record: SocketRecord) {
        let Some(parked) = self.parked.remove(&id) else { return };
        let Parked { mut socket, record: _, is_reported, is_adopted } = parked;
        debug_assert!(is_reported, "C14: unparked before it was reported as parked");
        let SocketRecord { unsent, is_paused, is_counted } = record;
        let outgoing = match unsent {
            Some(batch) if batch.is_empty() => {
                self.queued_events.push_back(QueuedEvent::Sent(id, batch));
                NONE
            }
            Some(batch) => self.outgoing.insert(batch),
            None => NONE,
        };
        let mut flags = if is_paused { flag::PAUSED } else { 0 };
        flags |= if is_counted { flag::COUNTED } else { 0 };
        flags |= if is_adopted { flag::ADOPTED } else { 0 };
        debug_assert!(flags & !(flag::MOVED | flag::ADOPTED) == 0);
        if P::LEVEL {
            flags |= if is_paused { 0 } else { flag::ARMED_READ };
            flags |= if outgoing == NONE { 0 } else { flag::ARMED_WRITE };
        }
        let (token, interest) = (id.to_bits(), interest(flags));
        let polled = match (is_adopted, P::LEVEL) {
            (true, true) => self.poller.modify(&socket, token, interest),
            (true, false) => {
                // The edges of its silence were dropped.
                self.poller.release(&mut socket);
                self.poller.register(&mut socket, token, interest)
            }
            (false, _) => self.poller.register(&mut socket, token, interest),
        };
        self.table.put_back(id, socket, outgoing, flags);
        if polled.is_err() {
            // Without events the connection would hang forever.
            self.end(id, Closed::Reset);
        }
    }

    /// Closes the descriptor of a parked connection.
    pub(super) fn surrender_connection(&mut self, id: ConnId) {
        let Some(mut parked) = self.parked.remove(&id) else { return };
        debug_assert!(parked.is_reported, "C14: surrendered before it was reported as parked");
        if parked.is_adopted {
            // The connection lives on in the process that it came from.
            self.poller.release(&mut parked.socket);
            return self.table.reserve_again(id);
        }
        self.table.release(id);
    }

    /// Enters a connection of another process.
    pub(super) fn adopt_parked(&mut self, id: ConnId, mut socket: P::Socket) -> io::Result<()> {
        if !self.table.is_reserved(id) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let silence = Interest { read: false, write: false, muted: true };
        self.poller.register(&mut socket, id.to_bits(), silence)?;
        self.table.enter_reserved(id);
        let parked = Parked { socket, record: None, is_reported: true, is_adopted: true };
        self.parked.insert(id, parked);
        Ok(())
    }
}

/// An id that no connection has: its slot is a listener's.
fn nothing(id: ConnId) -> ConnId {
    ConnId::new(id.shard() as u16, MAX_CONNECTIONS as u32, 0)
}
