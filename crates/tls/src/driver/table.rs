//! The secured connections of a driver.

use std::collections::HashMap;
use std::sync::Arc;

use throng_io::{Batch, ConnId};

use crate::handshake::Handshake;
use crate::server::TlsServer;
use crate::session::Session;

/// The stage of a secured connection.
pub(super) enum Stage {
    /// The ClientHello is not complete, or waits for its turn.
    Hello(Arc<TlsServer>),
    /// The handshake has begun.
    Handshake(Box<Handshake>),
    /// The handshake is complete.
    Established(Session),
    /// Nothing more is opened or sealed.
    Ended,
}

/// Bits of [`Conn::flags`].
pub(super) mod flag {
    /// Reading is paused.
    pub(crate) const PAUSED: u8 = 1;
    /// The end of the peer's stream was found; nothing is received after it.
    pub(crate) const FINISHED: u8 = 1 << 1;
    /// The peer did not say that its stream was complete.
    pub(crate) const TRUNCATED: u8 = 1 << 2;
    /// The engine has closed the connection.
    pub(crate) const CLOSING: u8 = 1 << 3;
    /// close_notify was sent, or cannot be sent any more.
    pub(crate) const CLOSE_SENT: u8 = 1 << 4;
    /// There is an entry in [`Table::busy`].
    pub(crate) const BUSY: u8 = 1 << 5;
    /// The connection is in the queue of handshakes.
    pub(crate) const QUEUED: u8 = 1 << 6;

    /// Input is dropped.
    pub(crate) const NO_INPUT_MASK: u8 = FINISHED | CLOSING;
}

/// A secured connection.
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) stage: Stage,
    pub(super) flags: u8,
}

impl Conn {
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The state of a connection whose input or output is not complete; an idle one has none.
#[derive(Default)]
pub(super) struct Busy {
    /// Input that is not opened: the start of a record, or what came before a pause.
    pub(super) input: Vec<u8>,
    /// The batch in flight, in plaintext.
    pub(super) batch: Option<Box<Batch>>,
    /// Bytes of `batch` that were sealed and given to the driver below.
    pub(super) sealed: usize,
    /// Whether the driver below has a send in flight.
    pub(super) in_flight: bool,
    /// Records of our own that wait for its end.
    pub(super) control: Vec<u8>,
    /// Whether our side of the stream is to end after that.
    pub(super) finish: bool,
    /// Whether the end of the peer's stream is to be reported when reading is resumed.
    pub(super) finished: bool,
}

impl Busy {
    fn is_idle(&self) -> bool {
        let Self { input, batch, sealed: _, in_flight, control, finish, finished } = self;
        let has_output = batch.is_some() || *in_flight || !control.is_empty() || *finish;
        input.is_empty() && !has_output && !*finished
    }
}

/// Connections in chunks that never move: keys would leave copies behind in memory that is given
/// back, and the copying of a large table would hold up its shard.
#[derive(Default)]
struct Chunks {
    chunks: Vec<Box<[Option<Conn>]>>,
    len: usize,
}

/// Connections of a chunk: 27 KiB.
const CHUNK: usize = 128;

impl Chunks {
    /// Adds an entry; returns its index.
    fn grow(&mut self) -> u32 {
        if self.len == self.chunks.len() * CHUNK {
            self.chunks.push((0..CHUNK).map(|_| None).collect());
        }
        self.len += 1;
        (self.len - 1) as u32
    }

    fn at(&self, index: u32) -> &Option<Conn> {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    fn at_mut(&mut self, index: u32) -> &mut Option<Conn> {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

/// Secured connections by slot.
#[derive(Default)]
pub(super) struct Table {
    /// One more than the index into `conns`; 0: not secured.
    of_slot: Vec<u32>,
    conns: Chunks,
    free: Vec<u32>,
    busy: HashMap<u32, Box<Busy>>,
}

impl Table {
    /// Returns whether the slot's connection is secured.
    #[inline(always)]
    pub(super) fn is_secured(&self, id: ConnId) -> bool {
        self.of_slot.get(id.slot()).is_some_and(|index| *index != 0)
    }

    /// Returns the number of secured connections.
    pub(super) fn len(&self) -> usize {
        self.conns.len - self.free.len()
    }

    pub(super) fn insert(&mut self, id: ConnId, stage: Stage) {
        let conn = Some(Conn { id, stage, flags: 0 });
        let index = self.free.pop().unwrap_or_else(|| self.conns.grow());
        *self.conns.at_mut(index) = conn;
        if self.of_slot.len() <= id.slot() {
            self.of_slot.resize(id.slot() + 1, 0);
        }
        self.of_slot[id.slot()] = index + 1;
    }

    /// Removes the connection with that id, if it is secured.
    pub(super) fn remove(&mut self, id: ConnId) {
        let Some(index) = self.index(id) else { return };
        *self.conns.at_mut(index) = None;
        self.free.push(index);
        self.busy.remove(&index);
        self.of_slot[id.slot()] = 0;
    }

    fn index(&self, id: ConnId) -> Option<u32> {
        let index = self.of_slot.get(id.slot())?.checked_sub(1)?;
        let conn = self.conns.at(index).as_ref()?;
        (conn.id == id).then_some(index)
    }

    /// Returns the secured connection with that id.
    pub(super) fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        let index = self.index(id)?;
        self.conns.at_mut(index).as_mut()
    }

    /// Returns the secured connection with that id, read-only.
    pub(super) fn conn_ref(&self, id: ConnId) -> Option<&Conn> {
        let index = self.index(id)?;
        self.conns.at(index).as_ref()
    }

    /// Returns the connection, and its state if it is busy.
    pub(super) fn conn_and_busy(&mut self, id: ConnId) -> Option<(&mut Conn, Option<&mut Busy>)> {
        let index = self.index(id)?;
        let conn = self.conns.at_mut(index).as_mut()?;
        let busy = match conn.has(flag::BUSY) {
            true => self.busy.get_mut(&index).map(Box::as_mut),
            false => None,
        };
        Some((conn, busy))
    }

    /// Returns the connection and its state, which begins if there is none.
    pub(super) fn make_busy(&mut self, id: ConnId) -> Option<(&mut Conn, &mut Busy)> {
        let index = self.index(id)?;
        let conn = self.conns.at_mut(index).as_mut()?;
        conn.flags |= flag::BUSY;
        Some((conn, self.busy.entry(index).or_default()))
    }

    /// Returns the connection's state, if it is busy.
    pub(super) fn busy_ref(&self, id: ConnId) -> Option<&Busy> {
        self.busy.get(&self.index(id)?).map(Box::as_ref)
    }

    /// Gives the state back if nothing is in it.
    pub(super) fn settle(&mut self, id: ConnId) {
        let Some(index) = self.index(id) else { return };
        if self.busy.get(&index).is_some_and(|busy| busy.is_idle()) {
            self.busy.remove(&index);
            if let Some(conn) = self.conns.at_mut(index) {
                conn.flags &= !flag::BUSY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_secured_connection_takes_less_than_230_bytes() {
        assert!(
            size_of::<Option<Conn>>() + size_of::<u32>() <= 228,
            "{}",
            size_of::<Option<Conn>>()
        );
    }

    #[test]
    fn entries_stay_where_they_are_while_the_table_grows() {
        let mut table = Table::default();
        let id = |slot| ConnId::new(0, slot, 1);
        table.insert(id(0), Stage::Ended);
        let first = std::ptr::from_ref(table.conn_ref(id(0)).unwrap());
        for slot in 1..1000 {
            table.insert(id(slot), Stage::Ended);
        }
        assert_eq!(first, std::ptr::from_ref(table.conn_ref(id(0)).unwrap()));
        for slot in (0..1000).rev() {
            assert_eq!(table.conn(id(slot)).unwrap().id, id(slot));
            table.remove(id(slot));
        }
        assert_eq!((table.len(), table.conns.len), (0, 1000));
    }

    #[test]
    fn an_id_of_an_earlier_connection_finds_nothing() {
        let mut table = Table::default();
        let (first, second) = (ConnId::new(0, 7, 1), ConnId::new(0, 7, 2));
        table.insert(first, Stage::Ended);
        assert!(table.is_secured(first) && table.conn(first).is_some());
        assert!(table.conn(second).is_none());
        table.remove(second);
        assert_eq!(table.len(), 1);
        table.remove(first);
        assert_eq!(table.len(), 0);
        assert!(!table.is_secured(first));
        table.insert(second, Stage::Ended);
        assert!(table.conn(first).is_none() && table.conn(second).is_some());
    }
}
