//! The table of connections by slot: 16 bytes each. Freed slots are used again in the order in
//! which they were freed, so that a stale id names another connection
//! as late as possible.

use std::io;

use crate::id::ConnId;

/// No batch in flight, or no further free slot.
pub(crate) const NONE: u32 = u32::MAX;

/// The state of a connection between events.
pub(crate) struct SocketEntry<S> {
    /// `None` if the slot is free, or if the end of the connection has not been delivered yet.
    pub(crate) socket: Option<S>,
    /// The batch in flight, an index into [`Outgoing`](super::outgoing::Outgoing); in a free slot
    /// the next free slot.
    pub(crate) outgoing: u32,
    /// Bits of [`flag`], and above them the shard and the generation, at the same bits as in an id,
    /// so that one comparison checks both; in a free slot the shard and the generation of the next
    /// id.
    pub(crate) flags: u64,
}

/// Bits of [`SocketEntry::flags`].
pub(crate) mod flag {
    /// The connect has not finished.
    pub(crate) const CONNECTING: u64 = 1;
    /// The engine has paused reading.
    pub(crate) const PAUSED: u64 = 1 << 1;
    /// The peer's end of stream was delivered; there is nothing more to read.
    pub(crate) const FINISHED: u64 = 1 << 2;
    /// Level-triggered: the kernel reports input.
    pub(crate) const ARMED_READ: u64 = 1 << 3;
    /// Level-triggered: the kernel reports room for output.
    pub(crate) const ARMED_WRITE: u64 = 1 << 4;
    /// Level-triggered: switched to reports of changes only, because a hang-up cannot be masked.
    pub(crate) const MUTED: u64 = 1 << 5;
    /// Edge-triggered: input may be available.
    pub(crate) const CAN_READ: u64 = 1 << 6;
    /// Edge-triggered: room for output may be available.
    pub(crate) const CAN_WRITE: u64 = 1 << 7;
    /// Edge-triggered: an error or hang-up was reported and is not handled yet.
    pub(crate) const ERROR_PENDING: u64 = 1 << 8;
    /// In the list of ready connections.
    pub(crate) const QUEUED: u64 = 1 << 9;

    /// Not registered yet; see
    /// [`Poller::DEFERS_REGISTRATION`](super::poller::Poller::DEFERS_REGISTRATION).
    pub(crate) const UNREGISTERED: u64 = 1 << 10;

    /// A send has failed: no more output is sent, and input in the kernel is read before the end is
    /// reported.
    pub(crate) const BROKEN: u64 = 1 << 11;
    /// Together with `BROKEN`: the peer's end of stream came before its reset.
    pub(crate) const FIN_BEFORE_RESET: u64 = 1 << 12;
    /// The byte counts are requested after its end.
    pub(crate) const COUNTED: u64 = 1 << 13;
    /// All bits below this one may be flags.
    pub(crate) const END: u64 = COUNTED << 1;

    /// While any of these is set, nothing is read.
    pub(crate) const NOT_READING: u64 = CONNECTING | PAUSED | FINISHED;

    // The shard and the generation are above the slot.
    const _: () = assert!(END <= 1 << crate::id::SLOT_BITS);
}

/// Minimum slots that lie free before any is used again. With 2^26 generations of each, a stale id
/// names another connection after 2^34 more at the earliest: five days at 40,000 a second.
const MIN_FREE: usize = 256;

/// All connections of a driver.
pub(crate) struct Table<S> {
    shard: u16,
    first_generation: u32,
    max_connections: usize,
    live: usize,
    /// The slot that was freed first, and the slot that was freed last.
    first_free: u32,
    last_free: u32,
    entries: Vec<SocketEntry<S>>,
}

impl<S> Table<S> {
    /// Reserves address space for `max_connections` connections; memory is used on demand.
    pub(crate) fn new(shard: u16, first_generation: u32, max_connections: usize) -> Self {
        let entries = Vec::with_capacity(max_connections);
        Self {
            shard,
            first_generation,
            max_connections,
            live: 0,
            first_free: NONE,
            last_free: NONE,
            entries,
        }
    }

    /// Returns the number of slots in use, including those whose end was not delivered yet.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Returns the id that the next insertion will get.
    ///
    /// # Errors
    /// Every slot is in use.
    pub(crate) fn next_id(&self) -> io::Result<ConnId> {
        let (slot, generation) = match self.first_free {
            _ if self.takes_new_slot() => (self.entries.len(), self.first_generation),
            NONE => {
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "every slot is taken"));
            }
            free => {
                let next = ConnId::from_bits(self.entries[free as usize].flags);
                (free as usize, next.generation())
            }
        };
        Ok(ConnId::new(self.shard, slot as u32, generation))
    }

    /// Returns whether the next connection gets a slot that was not used before.
    fn takes_new_slot(&self) -> bool {
        let free = self.entries.len() - self.live;
        free < MIN_FREE && self.entries.len() < self.max_connections
    }

    /// Inserts a connection under the id that [`Table::next_id`] returned.
    pub(crate) fn insert(&mut self, socket: S, flags: u64) {
        if self.takes_new_slot() {
            let flags = flags | ConnId::new(self.shard, 0, self.first_generation).to_bits();
            self.entries.push(SocketEntry { socket: Some(socket), outgoing: NONE, flags });
            self.live += 1;
            return;
        }
        debug_assert!(self.first_free != NONE, "next_id was asked first");
        self.live += 1;
        let entry = &mut self.entries[self.first_free as usize];
        self.first_free = entry.outgoing;
        if self.first_free == NONE {
            self.last_free = NONE;
        }
        (entry.socket, entry.outgoing) = (Some(socket), NONE);
        entry.flags |= flags;
    }

    /// Returns the open connection with that id.
    #[inline]
    pub(crate) fn entry(&mut self, id: ConnId) -> Option<&mut SocketEntry<S>> {
        let entry = self.entries.get_mut(id.slot())?;
        (id.is_of(entry.flags) && entry.socket.is_some()).then_some(entry)
    }

    /// Returns the open connection with that id, read-only.
    pub(crate) fn entry_ref(&self, id: ConnId) -> Option<&SocketEntry<S>> {
        let entry = self.entries.get(id.slot())?;
        (id.is_of(entry.flags) && entry.socket.is_some()).then_some(entry)
    }

    /// Frees the slot of a connection whose end is being delivered; its id becomes stale.
    pub(crate) fn release(&mut self, id: ConnId) {
        let entry = &mut self.entries[id.slot()];
        debug_assert!(entry.socket.is_none() && id.is_of(entry.flags));
        entry.flags = ConnId::new(self.shard, 0, id.generation().wrapping_add(1)).to_bits();
        entry.outgoing = NONE;
        let slot = id.slot() as u32;
        match std::mem::replace(&mut self.last_free, slot) {
            NONE => self.first_free = slot,
            last => self.entries[last as usize].outgoing = slot,
        }
        self.live -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_16_bytes() {
        #[cfg(unix)]
        assert_eq!(size_of::<SocketEntry<std::os::fd::OwnedFd>>(), 16);
    }

    #[test]
    fn slots_come_back_first_in_first_out_under_a_new_generation() {
        let mut table = Table::new(3, 0, 2);
        let a = table.next_id().unwrap();
        table.insert("a", flag::END - 1);
        let b = table.next_id().unwrap();
        table.insert("b", 0);
        assert_eq!(table.next_id().unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        for id in [a, b] {
            table.entry(id).unwrap().socket = None;
            assert!(table.entry(id).is_none());
            table.release(id);
        }
        assert_eq!(table.len(), 0);
        let again = table.next_id().unwrap();
        assert_eq!((again.slot(), again.generation(), again.shard()), (a.slot(), 1, 3));
        table.insert("c", 0);
        assert!(table.entry(a).is_none());
        assert!(table.entry(ConnId::new(2, again.slot() as u32, 1)).is_none(), "another shard's");
        assert_eq!(table.entry(again).unwrap().flags % flag::END, 0, "no flag is left");
    }

    #[test]
    fn a_slot_rests_until_many_others_are_free() {
        let mut table = Table::new(3, 0, 10_000);
        let mut open_and_close = || {
            let id = table.next_id().unwrap();
            table.insert("a", 0);
            table.entry(id).unwrap().socket = None;
            table.release(id);
            (id.slot(), id.generation())
        };
        for round in 0..3 {
            for slot in 0..MIN_FREE {
                assert_eq!(
                    open_and_close(),
                    (slot, round),
                    "memory stays that of {MIN_FREE} slots"
                );
            }
        }
    }

    #[test]
    fn a_successor_table_continues_the_generations() {
        let mut table = Table::new(3, ConnId::MAX_GENERATION, 1);
        for generation in [ConnId::MAX_GENERATION, 0] {
            let id = table.next_id().unwrap();
            assert_eq!((id.slot(), id.generation()), (0, generation));
            table.insert("a", 0);
            table.entry(id).unwrap().socket = None;
            table.release(id);
        }
    }
}
