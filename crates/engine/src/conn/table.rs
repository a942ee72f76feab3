//! The records of a shard's connections, and the side tables for state that few connections have.

use throng_io::ConnId;

use crate::conn::record::{Admitted, Cold, Conn, NO_CONN};
use crate::conn::slab::Slab;
use crate::conn::stage::Stage;
use crate::conn::subprotocols::Subprotocols;
use crate::message::Refusal;

/// The records of a shard's connections, by slot.
#[derive(Debug)]
pub(crate) struct Table {
    conns: Vec<Conn>,
    cold: Slab<Cold>,
    subprotocols: Subprotocols,
}

impl Table {
    /// Creates an empty table with address space for `capacity` connections.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            conns: Vec::with_capacity(capacity),
            cold: Slab::default(),
            subprotocols: Subprotocols::default(),
        }
    }

    /// Enters a connection that the driver has just reported.
    pub(crate) fn enter(&mut self, id: ConnId, stage: Stage) {
        let slot = id.slot();
        while self.conns.len() <= slot {
            self.conns.push(Conn::new(NO_CONN, Stage::Free));
        }
        self.subprotocols.forget(slot);
        debug_assert_eq!(self.conns[slot].stage(), Stage::Free, "a slot was named twice");
        self.conns[slot] = Conn::new(id, stage);
    }

    /// Frees the slot of a connection.
    pub(crate) fn leave(&mut self, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else { return };
        let cold = conn.cold.take();
        *conn = Conn::new(NO_CONN, Stage::Free);
        if let Some(index) = cold {
            self.cold.remove(index);
        }
    }

    /// Returns the connection if `id` still names one.
    #[inline]
    pub(crate) fn conn(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(id.slot()).filter(|conn| conn.id == id)
    }

    /// Returns the connection if `id` still names one.
    #[inline]
    pub(crate) fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.slot()).filter(|conn| conn.id == id)
    }

    /// Returns the stage; [`Stage::Free`] if the connection is gone.
    #[inline]
    pub(crate) fn stage(&self, id: ConnId) -> Stage {
        self.conn(id).map_or(Stage::Free, |conn| conn.stage())
    }

    /// Returns whether the connection is there and has any of these flags.
    pub(crate) fn has(&self, id: ConnId, flags: u32) -> bool {
        self.conn(id).is_some_and(|conn| conn.has(flags))
    }

    /// Sets flags of a connection, if it is still there.
    pub(crate) fn set(&mut self, id: ConnId, flags: u32, on: bool) {
        if let Some(conn) = self.conn_mut(id) {
            conn.set(flags, on);
        }
    }

    /// Returns the connection in `slot`, if there is one.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<ConnId> {
        let conn = self.conns.get(slot as usize)?;
        (!conn.is(Stage::Free)).then_some(conn.id)
    }

    /// Returns the route in the slot that `id` names, whether or not it is still this connection's.
    pub(crate) fn route_in_slot(&self, id: ConnId) -> Option<u16> {
        self.conns.get(id.slot()).map(|conn| conn.service.route)
    }

    /// Returns the number of slots in use or used before.
    pub(crate) fn slots(&self) -> usize {
        self.conns.len()
    }

    /// Returns the connection in `slot`, if broadcasts reach it.
    pub(crate) fn listener_in(&self, slot: usize) -> Option<ConnId> {
        let conn = &self.conns[slot];
        matches!(conn.stage(), Stage::Open | Stage::Events).then_some(conn.id)
    }

    /// Returns the ids of all connections.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> {
        self.conns.iter().filter(|conn| !conn.is(Stage::Free)).map(|conn| conn.id)
    }

    /// Returns the cold record of a connection, created if there is none.
    pub(crate) fn cold_mut(&mut self, id: ConnId) -> Option<&mut Cold> {
        let index = match self.conn(id)?.cold {
            Some(index) => index,
            None => {
                let index = self.cold.insert(Cold::default());
                self.conn_mut(id)?.cold = Some(index);
                index
            }
        };
        self.cold.entry_mut(index)
    }

    /// Returns the cold record of a connection, if it has one.
    pub(crate) fn cold(&self, id: ConnId) -> Option<&Cold> {
        self.cold.entry(self.conn(id)?.cold?)
    }

    /// Frees the cold record when it no longer holds anything.
    pub(crate) fn shed_cold(&mut self, id: ConnId) {
        let Some(index) = self.conn(id).and_then(|conn| conn.cold) else { return };
        if self.cold.entry(index).is_some_and(Cold::is_idle) {
            self.cold.remove(index);
            if let Some(conn) = self.conn_mut(id) {
                conn.cold = None;
            }
        }
    }

    /// Returns the number of cold records; for audits.
    pub(crate) fn cold_len(&self) -> usize {
        self.cold.len()
    }

    /// Returns the reason why a connection may send one request only, if it has a place of the
    /// reserve.
    pub(crate) fn refusal(&self, id: ConnId) -> Option<Refusal> {
        match self.cold(id)?.admitted {
            Admitted::Reserve(why) => Some(why),
            Admitted::Counted | Admitted::Evicted => None,
        }
    }

    /// Returns the subprotocol that was agreed on.
    pub(crate) fn subprotocol(&self, id: ConnId) -> Option<&str> {
        self.conn(id).and_then(|_| self.subprotocols.of(id.slot()))
    }

    /// Records the subprotocol that was agreed on.
    pub(crate) fn set_subprotocol(&mut self, id: ConnId, name: &str) {
        if self.conn(id).is_some() {
            self.subprotocols.set(id.slot(), name);
        }
    }

    /// Clears the flag of a connection that was removed from a
    /// [`WorkList`](crate::conn::work_list::WorkList).
    pub(crate) fn unlist(&mut self, id: ConnId, flag: u32) {
        if let Some(conn) = self.conn_mut(id) {
            conn.set(flag, false);
            self.shed_cold(id);
        }
    }
}
