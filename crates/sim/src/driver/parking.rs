//! Parked connections (C14), and slots that move to a successor.

use std::io;

use throng_io::{Batch, ConnId, Slots};

use super::{Conn, SimDriver, Slot};
use crate::faults::strikes;
use crate::net::SimSocket;

/// Maximum generations of a slot that an ended successor may have used.
const GENERATIONS_AWAY: u32 = 1 << 16;

/// A parked connection. It is named by its slot and generation.
#[derive(Debug)]
pub(super) struct Parked {
    socket: SimSocket,
    record: Option<SimRecord>,
    is_reported: bool,
    /// It came from another driver.
    is_adopted: bool,
}

/// The state of a parked connection apart from its socket.
#[derive(Debug, Default)]
pub struct SimRecord {
    /// The batch in flight.
    pub batch: Option<Box<Batch>>,
    /// Whether reading is paused.
    pub paused: bool,
    /// Whether our side of the stream has ended.
    pub fin_sent: bool,
}

throng_carry::carried! {
    SimRecord {
        required { 1 paused, 3 fin_sent }
        optional { }
        if_any { 5 batch }
        rebuilt { }
    }
}

impl SimDriver {
    pub(super) fn park_connection(&mut self, id: ConnId) -> io::Result<()> {
        let conn = self.conn_mut(id).ok_or(io::ErrorKind::NotConnected)?;
        if conn.ending.is_some() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if conn.connecting.is_some() || conn.finished_reported {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let slot = &mut self.slots[id.slot()];
        let Some(conn) = slot.conn.take() else { return Ok(()) };
        let Conn {
            link,
            side,
            connecting: _,
            batch,
            batch_rests_until: _,
            paused,
            finished_reported: _,
            fin_sent,
            starved_until: _,
            ending: _,
        } = conn;
        let socket = self.net.borrow().socket(link, side);
        let record = Some(SimRecord { batch, paused, fin_sent });
        slot.parked = Some(Parked { socket, record, is_reported: false, is_adopted: false });
        self.parking.push_back(id);
        Ok(())
    }

    pub(super) fn next_parked(&mut self) -> Option<ConnId> {
        let id = self.parking.pop_front()?;
        if let Some(parked) = self.parked_mut(id) {
            parked.is_reported = true;
        }
        Some(id)
    }

    pub(super) fn take_parked_record(&mut self, id: ConnId) -> Option<SimRecord> {
        let parked = self.parked_mut(id)?;
        parked.record.take_if(|_| parked.is_reported)
    }

    pub(super) fn parked_socket(&self, id: ConnId) -> Option<&SimSocket> {
        let slot = self.slots.get(id.slot()).filter(|slot| slot.generation == id.generation())?;
        slot.parked.as_ref().map(|parked| &parked.socket)
    }

    pub(super) fn unpark_connection(&mut self, id: ConnId, record: SimRecord) {
        let Some(parked) = self.take_reported(id) else { return };
        assert!(parked.record.is_none(), "C14: unparked with the record of another");
        let SimRecord { batch, paused, fin_sent } = record;
        let (link, side) = parked.socket.into_link();
        self.slots[id.slot()].conn =
            Some(Conn { batch, paused, fin_sent, ..Conn::new(link, side, None) });
    }

    pub(super) fn surrender_connection(&mut self, id: ConnId) {
        let Some(parked) = self.take_reported(id) else { return };
        match parked.is_adopted {
            true => self.slots[id.slot()].away = true,
            false => self.free_slot(id.slot()),
        }
    }

    pub(super) fn adopt_parked(&mut self, id: ConnId, socket: SimSocket) -> io::Result<()> {
        if strikes(&mut self.rng, self.faults.adopt_fails) {
            return Err(io::Error::other("no watch is left (simulated)"));
        }
        let is_reserved = id.shard() == usize::from(self.shard)
            && self.kept.is_none()
            && self.slots.get(id.slot()).is_some_and(|slot| {
                slot.away && slot.generation <= id.generation() && slot.parked.is_none()
            });
        if !is_reserved {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let slot = &mut self.slots[id.slot()];
        (slot.away, slot.generation) = (false, id.generation());
        slot.parked = Some(Parked { socket, record: None, is_reported: true, is_adopted: true });
        self.calls.entered += 1;
        Ok(())
    }

    pub(super) fn give_free_slots(&mut self, kept: usize) -> Option<Slots> {
        if self.kept.is_some() {
            return None;
        }
        while self.free.len() < kept {
            self.free.push(self.slots.len());
            self.slots.push(Slot::default());
        }
        let given = self.free.split_off(kept);
        given.iter().for_each(|slot| self.slots[*slot].away = true);
        self.kept = Some(self.free.clone());
        // A free slot has the generation of its last connection here.
        let next = |slot: &Slot| match slot.conn.is_some() || slot.parked.is_some() {
            true => slot.generation,
            false => slot.generation + 1,
        };
        Some(Slots {
            generations: self.slots.iter().map(next).collect(),
            free: given.into_iter().map(|slot| slot as u32).collect(),
        })
    }

    pub(super) fn take_back_slots(&mut self) {
        self.kept = None;
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if std::mem::take(&mut slot.away) {
                slot.generation += GENERATIONS_AWAY;
                self.free.push(at);
            }
        }
    }

    pub(super) fn begin_with_slots(&mut self, slots: &Slots) -> io::Result<()> {
        if !self.slots.is_empty() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let Slots { generations, free } = slots;
        for generation in generations {
            let slot = Slot { generation: *generation, away: true, ..Slot::default() };
            self.slots.push(slot);
        }
        for slot in free {
            let entry = &mut self.slots[*slot as usize];
            entry.generation = entry.generation.wrapping_sub(1);
            entry.away = false;
            self.free.push(*slot as usize);
        }
        Ok(())
    }

    pub(super) fn vacate_slot(&mut self, id: ConnId) {
        let Some(slot) = self.slots.get_mut(id.slot()) else { return };
        if slot.away && self.kept.is_none() && id.shard() == usize::from(self.shard) {
            (slot.away, slot.generation) = (false, id.generation());
            self.free.push(id.slot());
        }
    }

    /// Frees the slot of a connection that has ended or moved.
    pub(super) fn free_slot(&mut self, at: usize) {
        match &self.kept {
            Some(kept) if !kept.contains(&at) => self.slots[at].away = true,
            _ => self.free.push(at),
        }
    }

    fn parked_mut(&mut self, id: ConnId) -> Option<&mut Parked> {
        let slot = self.slots.get_mut(id.slot())?;
        if slot.generation != id.generation() {
            return None;
        }
        slot.parked.as_mut()
    }

    /// Removes a parked connection from its slot.
    fn take_reported(&mut self, id: ConnId) -> Option<Parked> {
        let is_reported = self.parked_mut(id)?.is_reported;
        assert!(is_reported, "C14: unparked or surrendered before it was reported as parked");
        self.slots[id.slot()].parked.take()
    }
}
