//! Places: decides which clients make room when all places are taken, and which are refused with
//! the reason.
//!
//! A client whose answer is not pending makes room: first the longest idle one between two
//! requests; then a client that has not sent a whole request; then a client that ended its stream
//! some time ago. If there is none, the new client gets a place of the reserve for one request, and
//! its answer has the reason.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use throng_engine::{AddressKey, Arrivals, ArrivalsByAddress, ConnMap};
use throng_io::{ConnId, Instant};

use super::admission::Full;
use crate::shard::records::{BalanceRecord, BalanceRecords, ClientRecord, EighthTick, Phase};
use crate::shard::time::Time;

/// The time after which a client that has ended its stream, and waits for an answer, may have to
/// make room. A client may end its stream and wait, but usually it has left.
const GONE: Duration = Duration::from_secs(5);

/// The time that a client has to read its last answer before it may have to make room: a close
/// while it still sends could destroy the answer.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Places of a shard for clients beyond the limits, as in `throng serve`: for one request each,
/// which is answered with the reason.
const RESERVE: usize = throng_io::capacity::Needs::BALANCER.of_a_shard;

/// A client that must make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Evicted {
    /// It is between two requests, or has had its last answer.
    Idle(ConnId),
    /// It has not sent a whole request.
    New(ConnId),
    /// It has ended its stream.
    Gone(ConnId),
}

/// Whether a client may make room.
enum Standing {
    /// It is gone, or is another kind of connection by now.
    Left,
    /// It may not make room now.
    Busy,
    /// It may make room, and has been idle since then.
    Free(EighthTick),
}

/// Clients by the time since which they may make room, the longest first. Each is in it once. Its
/// time only grows, and is checked when its turn comes: a request costs nothing here.
#[derive(Debug, Default)]
struct Line(BinaryHeap<Reverse<(EighthTick, ConnId)>>);

impl Line {
    fn push(&mut self, since: EighthTick, id: ConnId) {
        self.0.push(Reverse((since, id)));
    }

    /// Removes and returns the client that may make room for longest, since before `before`.
    fn pop(
        &mut self,
        before: EighthTick,
        standing: impl Fn(ConnId, EighthTick) -> Standing,
    ) -> Option<ConnId> {
        loop {
            let Reverse((since, id)) = self.0.pop()?;
            if since >= before {
                self.push(since, id);
                return None;
            }
            match standing(id, since) {
                Standing::Left => {}
                Standing::Busy => self.push(before, id),
                Standing::Free(now) if now == since => return Some(id),
                Standing::Free(now) => self.push(now, id),
            }
        }
    }

    fn retain(&mut self, standing: impl Fn(ConnId, EighthTick) -> Standing) {
        self.0.retain(|&Reverse((since, id))| !matches!(standing(id, since), Standing::Left));
        self.0.shrink_to(2 * self.0.len());
    }
}

/// A line of all clients, and one for each address that has a limit.
#[derive(Debug, Default)]
struct Lines {
    all: Line,
    of_address: HashMap<AddressKey, Line>,
}

impl Lines {
    fn push(&mut self, since: EighthTick, id: ConnId, key: Option<AddressKey>) {
        self.all.push(since, id);
        if let Some(key) = key {
            self.of_address.entry(key).or_default().push(since, id);
        }
    }

    /// Returns the line of all clients, or of an address.
    fn of(&mut self, full: Full, key: Option<AddressKey>) -> Option<&mut Line> {
        match full {
            Full::All => Some(&mut self.all),
            Full::Address => self.of_address.get_mut(&key?),
            Full::Listener => None,
        }
    }

    fn retain(&mut self, standing: impl Fn(ConnId, EighthTick) -> Standing) {
        if self.all.0.is_empty() && self.of_address.is_empty() {
            return;
        }
        self.all.retain(&standing);
        self.of_address.retain(|_, line| {
            line.retain(&standing);
            !line.0.is_empty()
        });
        self.of_address.shrink_to(2 * self.of_address.len());
    }
}

/// The clients of a shard that may have to make room, and those beyond the limits.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Clients that have been between two requests, or have had their last answer.
    idle: Lines,
    /// Clients that have not sent a whole request yet, the oldest first; and some that have, or
    /// have closed.
    new: Arrivals,
    /// The part of them whose address has a cap.
    new_of_address: ArrivalsByAddress,
    /// Clients that have ended their stream.
    gone: Lines,
    /// Clients beyond the limits, with the limit; and in the order in which they came.
    reserved: ConnMap<Full>,
    reserve: Arrivals,
}

impl Places {
    /// Enters a client that has come.
    pub(super) fn enter(&mut self, id: ConnId, key: Option<AddressKey>, now: Instant) {
        self.new.push(id);
        self.new_of_address.push(key, id, now);
    }

    /// Lists a client that is between two requests, or has had its last answer.
    pub(super) fn note_idle(
        &mut self,
        id: ConnId,
        client: &mut ClientRecord,
        key: Option<AddressKey>,
        now: EighthTick,
    ) {
        let since = match client.phase {
            Phase::Lingering => now.after(LAST_ANSWER),
            _ => now,
        };
        if client.note_idle(since) {
            self.idle.push(since, id, key);
        }
    }

    /// Lists a client that has ended its stream, and is not closed.
    pub(super) fn note_gone(&mut self, id: ConnId, key: Option<AddressKey>, now: EighthTick) {
        self.gone.push(now, id, key);
    }

    /// Takes the client that must make room, of all or of the address with this key.
    pub(super) fn evict(
        &mut self,
        full: Full,
        key: Option<AddressKey>,
        records: &BalanceRecords,
        time: &Time,
    ) -> Option<Evicted> {
        let tick = time.tick();
        let idle = |line: &mut Line| line.pop(tick, |id, _| idle_standing(records, id));
        if let Some(id) = self.idle.of(full, key).and_then(idle) {
            return Some(Evicted::Idle(id));
        }
        let is_new = |id| records.is_new_client(id);
        let new = match full {
            Full::All => self.new.pop_oldest(is_new),
            Full::Address => self.new_of_address.pop_oldest(key, time.now(), is_new),
            Full::Listener => None,
        };
        if let Some(id) = new {
            return Some(Evicted::New(id));
        }
        let before = tick.before(GONE);
        let gone =
            |line: &mut Line| line.pop(before, |id, since| gone_standing(records, id, since));
        self.gone.of(full, key).and_then(gone).map(Evicted::Gone)
    }

    /// Gives a client a place of the reserve. Returns the oldest client there if it must leave.
    pub(super) fn enter_reserve(&mut self, id: ConnId, full: Full) -> Option<ConnId> {
        let Self { reserved, reserve, .. } = self;
        let oldest = match reserved.len() < RESERVE {
            true => None,
            false => reserve.pop_oldest(|id| reserved.contains_key(&id)),
        };
        reserved.insert(id, full);
        reserve.push(id);
        oldest
    }

    /// Returns whether a client of this shard could make room for any other.
    pub(super) fn could_make_room(&self, records: &BalanceRecords, tick: EighthTick) -> bool {
        let before = tick.before(GONE);
        let idle = self.idle.all.0.iter().any(|&Reverse((_, id))| {
            matches!(idle_standing(records, id), Standing::Free(since) if since < tick)
        });
        idle || self.gone.all.0.iter().any(|&Reverse((since, id))| {
            since < before && matches!(gone_standing(records, id, since), Standing::Free(_))
        })
    }

    /// Enters a client that is counted for its address now.
    pub(super) fn enter_address(&mut self, id: ConnId, key: Option<AddressKey>, now: Instant) {
        self.new_of_address.push(key, id, now);
    }

    /// Returns the limit that a client is beyond.
    pub(super) fn beyond(&self, id: ConnId) -> Option<Full> {
        // Read first: usually there is none.
        if self.reserved.is_empty() { None } else { self.reserved.get(&id).copied() }
    }

    /// Gives up a client's place of the reserve. Returns false if it has none.
    pub(super) fn leave_reserve(&mut self, id: ConnId) -> bool {
        !self.reserved.is_empty() && self.reserved.remove(&id).is_some()
    }

    /// Returns the length of the longest list of clients.
    pub(super) fn len(&self) -> usize {
        let lines = self.idle.all.0.len().max(self.gone.all.0.len());
        self.new.len().max(lines).max(self.reserve.len())
    }

    /// Returns the clients beyond the limits.
    pub(super) fn beyond_limits(&self) -> usize {
        self.reserved.len()
    }

    /// Removes clients that have left.
    pub(super) fn retain(&mut self, records: &BalanceRecords) {
        self.new.retain(|id| records.is_new_client(id));
        self.new_of_address.retain(|id| records.is_new_client(id));
        self.idle.retain(|id, _| idle_standing(records, id));
        self.gone.retain(|id, since| gone_standing(records, id, since));
        let reserved = &self.reserved;
        self.reserve.retain(|id| reserved.contains_key(&id));
    }
}

/// Returns whether a client is between two requests, or has had its last answer.
fn idle_standing(records: &BalanceRecords, id: ConnId) -> Standing {
    let client = match records.at(id.slot()) {
        Some((at, BalanceRecord::Client(client))) if at == id => client,
        _ => return Standing::Left,
    };
    let is_free = match client.phase {
        Phase::Head => client.held.is_empty(),
        Phase::Lingering => true,
        Phase::Proxy | Phase::Queued | Phase::Exchange | Phase::Leaving => false,
    };
    match is_free && client.exchange.is_none() && client.http.is_clear() {
        true => Standing::Free(client.idle_since()),
        false => Standing::Busy,
    }
}

/// Returns whether a client that has ended its stream still waits for an answer, or has a tunnel.
fn gone_standing(records: &BalanceRecords, id: ConnId, since: EighthTick) -> Standing {
    let is_there = match records.at(id.slot()) {
        Some((at, BalanceRecord::Client(client))) => at == id && client.http.has_finished(),
        Some((at, BalanceRecord::Tunnel(tunnel))) => at == id && tunnel.has_finished(),
        _ => false,
    };
    if is_there { Standing::Free(since) } else { Standing::Left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_is_free_for_longest_makes_room() {
        let id = |slot| ConnId::new(0, slot, 0);
        let mut line = Line::default();
        (0..5).for_each(|slot| line.push(EighthTick(slot), id(slot)));
        // 0 has left, 1 was free again later, 3 is busy.
        let standing = |at: ConnId, _| match at.slot() {
            0 => Standing::Left,
            1 => Standing::Free(EighthTick(9)),
            3 => Standing::Busy,
            slot => Standing::Free(EighthTick(slot as u32)),
        };
        let mut pop = |before| line.pop(EighthTick(before), standing).map(ConnId::slot);
        assert_eq!(
            [pop(9), pop(9), pop(9), pop(10), pop(10)],
            [Some(2), Some(4), None, Some(1), None]
        );
        line.retain(standing);
        assert_eq!(line.0.len(), 1, "the busy one stays");
    }
}
