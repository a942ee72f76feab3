//! The table of connections by slot: 16 bytes each. Freed slots are used again in the order in
//! which they were freed, so that a stale id names another connection
//! as late as possible.

use std::io;

use crate::id::{ConnId, Slots};

/// No batch in flight, or no further free slot.
pub(crate) const NONE: u32 = u32::MAX;

/// In place of the next free slot: the slot is another process's. Its successor may use it, or its
/// predecessor has a connection in it.
const AWAY: u32 = u32::MAX - 1;

/// Generations that a successor which has gone may have used of a slot: a slot is used again only
/// after [`MIN_FREE`] others.
const GENERATIONS_AWAY: u32 = 1 << 16;

/// The state of a connection between events.
pub(crate) struct SocketEntry<S> {
    /// `None` if the slot is free, if the end of the connection has not been delivered yet, or if
    /// the connection is parked.
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
    /// It came from another process, which may still have a descriptor of it: the poll would
    /// report it even after the descriptor here is closed.
    pub(crate) const ADOPTED: u64 = 1 << 14;
    /// All bits below this one may be flags.
    pub(crate) const END: u64 = ADOPTED << 1;

    /// Flags of a parked connection that move with it.
    pub(crate) const MOVED: u64 = PAUSED | COUNTED;
    /// Flags that are made again from the report of the poll.
    pub(crate) const REBUILT: u64 = ARMED_READ
        | ARMED_WRITE
        | MUTED
        | CAN_READ
        | CAN_WRITE
        | ERROR_PENDING
        | QUEUED
        | UNREGISTERED
        | ADOPTED;
    /// Flags that keep a connection from being parked.
    pub(crate) const WAITS: u64 = CONNECTING | FINISHED | BROKEN | FIN_BEFORE_RESET;

    // Each flag is of one kind: a flag without a kind does not compile.
    const _: () = assert!(MOVED ^ REBUILT ^ WAITS == END - 1);
    const _: () = assert!((MOVED | REBUILT) & WAITS == 0 && MOVED & REBUILT == 0);

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
    /// Slots that are another process's.
    away: usize,
    /// The slots that are free here although a successor has the others, in order, and the
    /// maximum of connections before.
    kept: Option<(Vec<u32>, usize)>,
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
            away: 0,
            kept: None,
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
        let free = self.entries.len() - self.live - self.away;
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
        let free = self.pop_free();
        debug_assert!(free.is_some(), "next_id was asked first");
        let Some(free) = free else { return };
        self.live += 1;
        let entry = &mut self.entries[free as usize];
        entry.socket = Some(socket);
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
        self.live -= 1;
        let slot = id.slot() as u32;
        if let Some((kept, _)) = &self.kept
            && kept.binary_search(&slot).is_err()
        {
            entry.outgoing = AWAY;
            self.away += 1;
            return;
        }
        self.push_free(slot);
    }

    /// Adds a slot to the end of the list of free ones.
    fn push_free(&mut self, slot: u32) {
        self.entries[slot as usize].outgoing = NONE;
        match std::mem::replace(&mut self.last_free, slot) {
            NONE => self.first_free = slot,
            last => self.entries[last as usize].outgoing = slot,
        }
    }

    /// Takes the slot that was freed first.
    fn pop_free(&mut self) -> Option<u32> {
        let slot = self.first_free;
        if slot == NONE {
            return None;
        }
        self.first_free = std::mem::replace(&mut self.entries[slot as usize].outgoing, NONE);
        if self.first_free == NONE {
            self.last_free = NONE;
        }
        Some(slot)
    }

    fn push_entry(&mut self, generation: u32, outgoing: u32) {
        let flags = ConnId::new(self.shard, 0, generation).to_bits();
        self.entries.push(SocketEntry { socket: None, outgoing, flags });
    }

    /// Gives the free slots to a successor, except `kept`. Returns `None` if that was done before.
    pub(crate) fn give(&mut self, kept: usize) -> Option<Slots> {
        if self.kept.is_some() {
            return None;
        }
        while self.entries.len() - self.live - self.away < kept
            && self.entries.len() < self.max_connections
        {
            self.push_entry(self.first_generation, NONE);
            self.push_free((self.entries.len() - 1) as u32);
        }
        let mut own: Vec<u32> = (0..kept).map_while(|_| self.pop_free()).collect();
        let mut free = Vec::new();
        while let Some(slot) = self.pop_free() {
            self.entries[slot as usize].outgoing = AWAY;
            free.push(slot);
        }
        self.away += free.len();
        own.iter().for_each(|slot| self.push_free(*slot));
        own.sort_unstable();
        let most = std::mem::replace(&mut self.max_connections, self.entries.len());
        self.kept = Some((own, most));
        let generation = |entry: &SocketEntry<S>| ConnId::from_bits(entry.flags).generation();
        Some(Slots { generations: self.entries.iter().map(generation).collect(), free })
    }

    /// Takes back the slots of a successor that has gone.
    pub(crate) fn take_back(&mut self) {
        let Some((_, most)) = self.kept.take() else { return };
        self.max_connections = most;
        for slot in 0..self.entries.len() {
            let entry = &mut self.entries[slot];
            if entry.socket.is_none() && entry.outgoing == AWAY {
                let next = ConnId::from_bits(entry.flags).generation() + GENERATIONS_AWAY;
                entry.flags = ConnId::new(self.shard, 0, next).to_bits();
                self.away -= 1;
                self.push_free(slot as u32);
            }
        }
    }

    /// Begins with the slots of a predecessor: more than the limit, if it had more.
    ///
    /// # Errors
    /// A slot was used before, or the list contradicts itself.
    pub(crate) fn begin_with(&mut self, Slots { generations, free }: &Slots) -> io::Result<()> {
        if !self.entries.is_empty() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a slot was used before"));
        }
        let mut is_free = vec![false; generations.len()];
        let is_new = |slot: &u32| {
            let is_free = is_free.get_mut(*slot as usize);
            is_free.is_some_and(|is_free| !std::mem::replace(is_free, true))
        };
        let are_valid = generations.len() <= crate::options::MAX_CONNECTIONS
            && generations.iter().all(|generation| *generation <= ConnId::MAX_GENERATION);
        if !are_valid || !free.iter().all(is_new) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.max_connections = self.max_connections.max(generations.len());
        self.entries.reserve(self.max_connections);
        generations.iter().for_each(|generation| self.push_entry(*generation, AWAY));
        free.iter().for_each(|slot| self.push_free(*slot));
        self.away = generations.len() - free.len();
        Ok(())
    }

    /// Returns whether the slot is reserved for this connection of a predecessor, which may have
    /// used a slot that it kept again.
    pub(crate) fn is_reserved(&self, id: ConnId) -> bool {
        let is_reserved = |entry: &SocketEntry<S>| {
            let first = ConnId::from_bits(entry.flags).generation();
            let uses = id.generation().wrapping_sub(first) & ConnId::MAX_GENERATION;
            entry.socket.is_none() && entry.outgoing == AWAY && uses <= ConnId::MAX_GENERATION / 2
        };
        let is_here = id.shard() == usize::from(self.shard) && self.kept.is_none();
        is_here && self.entries.get(id.slot()).is_some_and(is_reserved)
    }

    /// Enters a connection into its [reserved](Self::is_reserved) slot. It is parked.
    pub(crate) fn enter_reserved(&mut self, id: ConnId) {
        debug_assert!(self.is_reserved(id));
        let entry = &mut self.entries[id.slot()];
        entry.flags = ConnId::new(self.shard, 0, id.generation()).to_bits();
        entry.outgoing = NONE;
        self.away -= 1;
        self.live += 1;
    }

    /// Reserves the slot of a connection that goes on in the predecessor.
    pub(crate) fn reserve_again(&mut self, id: ConnId) {
        self.entries[id.slot()].outgoing = AWAY;
        self.away += 1;
        self.live -= 1;
    }

    /// Frees a reserved slot, whose last connection was `id`.
    pub(crate) fn vacate(&mut self, id: ConnId) {
        let is_away =
            |entry: &&mut SocketEntry<S>| entry.socket.is_none() && entry.outgoing == AWAY;
        let Some(entry) = self.entries.get_mut(id.slot()).filter(is_away) else { return };
        if self.kept.is_some() || id.shard() != usize::from(self.shard) {
            return;
        }
        entry.flags = ConnId::new(self.shard, 0, id.generation().wrapping_add(1)).to_bits();
        self.away -= 1;
        self.push_free(id.slot() as u32);
    }

    /// Puts the socket of a parked connection back.
    pub(crate) fn put_back(&mut self, id: ConnId, socket: S, outgoing: u32, flags: u64) {
        if let Some(entry) = self.entries.get_mut(id.slot()) {
            debug_assert!(entry.socket.is_none() && id.is_of(entry.flags));
            let flags = flags | ConnId::new(self.shard, 0, id.generation()).to_bits();
            *entry = SocketEntry { socket: Some(socket), outgoing, flags };
        }
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

    /// Inserts a connection; returns its id.
    fn open(table: &mut Table<&'static str>) -> ConnId {
        let id = table.next_id().unwrap();
        table.insert("a", 0);
        id
    }

    fn close(table: &mut Table<&'static str>, id: ConnId) {
        table.entry(id).unwrap().socket = None;
        table.release(id);
    }

    #[test]
    fn a_successor_begins_with_the_generations_and_the_free_slots() {
        let mut table = Table::new(3, 7, 300);
        let ids: Vec<_> = (0..300).map(|_| open(&mut table)).collect();
        for id in &ids[10..] {
            close(&mut table, *id);
        }
        let slots = table.give(2).unwrap();
        assert_eq!(table.give(2), None, "they are given once");
        assert_eq!(slots.generations[..10], [7; 10]);
        assert_eq!(slots.generations[10..], [8; 290]);
        assert_eq!(slots.free, (12..300).collect::<Vec<_>>());
        // This table has only the slots that were kept.
        let kept = [open(&mut table), open(&mut table)];
        assert_eq!(kept.map(ConnId::slot), [10, 11]);
        assert!(table.next_id().is_err());
        close(&mut table, kept[0]);
        close(&mut table, ids[0]);
        assert_eq!(open(&mut table), ConnId::new(3, 10, 9));
        assert!(table.next_id().is_err(), "the other is the successor's");

        // Its limit is lower, but it takes what there is.
        let mut next = Table::new(3, 0, 100);
        next.begin_with(&slots).unwrap();
        assert!(next.begin_with(&slots).is_err(), "once");
        assert_eq!((next.len(), next.next_id().unwrap()), (0, ConnId::new(3, 12, 8)));
        assert!(next.is_reserved(ids[1]) && next.is_reserved(ConnId::new(3, 10, 9)));
        for wrong in [ConnId::new(3, 1, 6), ConnId::new(4, 1, 7), ConnId::new(3, 12, 8)] {
            assert!(!next.is_reserved(wrong), "{wrong:?}");
        }
        next.enter_reserved(ids[1]);
        next.reserve_again(ids[1]);
        assert!(next.is_reserved(ids[1]) && next.len() == 0);
        next.enter_reserved(ids[1]);
        assert!(!next.is_reserved(ids[1]) && next.entry(ids[1]).is_none(), "it is parked");
        next.put_back(ids[1], "b", NONE, flag::PAUSED);
        assert_eq!(next.entry(ids[1]).unwrap().flags % flag::END, flag::PAUSED);
        // A connection that has ended there, and one of a slot that was used there again.
        next.vacate(ids[0]);
        next.vacate(ConnId::new(3, 10, 9));
        next.vacate(ids[1]);
        let mut last = Vec::new();
        while next.next_id().is_ok() {
            last.push(open(&mut next));
        }
        assert_eq!(last.len(), 290);
        assert_eq!(last[288..], [ConnId::new(3, 0, 8), ConnId::new(3, 10, 10)]);
    }

    #[test]
    fn slots_are_made_for_those_that_are_kept() {
        let mut table = Table::new(3, 7, 4);
        let id = open(&mut table);
        let slots = table.give(256).unwrap();
        assert_eq!(slots, Slots { generations: vec![7; 4], free: Vec::new() });
        assert_eq!([(); 3].map(|()| open(&mut table).slot()), [1, 2, 3]);
        assert!(table.next_id().is_err());
        close(&mut table, id);
        assert!(table.next_id().is_err());
    }

    #[test]
    fn slots_come_back_with_room_for_the_generations_of_a_successor() {
        let mut table = Table::new(3, ConnId::MAX_GENERATION, 600);
        let ids: Vec<_> = (0..300).map(|_| open(&mut table)).collect();
        close(&mut table, ids[1]);
        table.give(0).unwrap();
        close(&mut table, ids[0]);
        table.take_back();
        table.take_back();
        assert_eq!(table.len(), 298);
        assert_eq!(open(&mut table).slot(), 300, "its limit is as before");
        for _ in 0..255 {
            open(&mut table);
        }
        let mut last: Vec<_> = (0..46).map(|_| open(&mut table)).collect();
        assert!(table.next_id().is_err());
        last.sort_unstable_by_key(|id| id.slot());
        assert_eq!(last[0], ConnId::new(3, 0, GENERATIONS_AWAY));
        assert_eq!(last[1], ConnId::new(3, 1, GENERATIONS_AWAY));
        assert!(table.entry(ids[2]).is_some(), "what is open stays");
        assert!(table.give(0).is_some(), "for another successor");
    }

    #[test]
    fn a_list_of_slots_that_contradicts_itself_is_refused() {
        let slots = |generations: &[u32], free: &[u32]| Slots {
            generations: generations.to_vec(),
            free: free.to_vec(),
        };
        for wrong in [
            slots(&[1, 2], &[2]),
            slots(&[1, 2], &[0, 0]),
            slots(&[1, ConnId::MAX_GENERATION + 1], &[0]),
            slots(&vec![0; ConnId::MAX_SLOTS], &[]),
        ] {
            let mut table = Table::<&str>::new(3, 0, 4);
            let error = table.begin_with(&wrong).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert_eq!(open(&mut table).slot(), 0);
        }
        let mut table = Table::<&str>::new(3, 0, 4);
        table.begin_with(&Slots::default()).unwrap();
        assert_eq!(open(&mut table).slot(), 0, "the list of a driver without connections");
    }
}
