//! Places: who makes room for the next client when all are taken, and who is refused with the
//! reason.
//!
//! A client that no one waits for makes room: first one that is between two requests, the longest
//! first; then one that has not sent a whole request; then one that ended its stream some time ago.
//! Where there is none, the new client has a place of the reserve for one request, whose answer
//! says why.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use throng_engine::{AddressKey, Arrivals, ArrivalsByAddress, ConnMap};
use throng_io::{ConnId, Driver};

use super::admission::Full;
use super::records::{ClientRecord, BalanceRecord, BalanceRecords, Phase, EighthTick, flag};
use super::{ConnAction, BalanceParts};
use crate::forward;

/// The time after which a client that has ended its stream, and waits for an answer, may have to
/// make room. A client may well end its stream and wait, but mostly it has gone.
const GONE: Duration = Duration::from_secs(5);

/// The time that a client has to read its last answer before it may have to make room: a close
/// while it still sends could destroy the answer.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Places of a shard for clients beyond the limits, as in `throng serve`: for one request each,
/// which is answered with the reason.
pub(crate) const RESERVE: usize = 32;

/// Clients that make room for one: another shard may take the place that one has left.
const MAX_EVICTIONS: usize = 4;

/// Whether a client may make room.
enum Standing {
    /// It is gone, or is another kind of connection by now.
    Left,
    /// Not now.
    Busy,
    /// It may, and has waited for nothing since then.
    Free(EighthTick),
}

/// Clients by the time since which they may make room, the longest first. Each is there once. Its
/// time only grows, and is looked at when its turn comes: a request costs nothing here.
#[derive(Debug, Default)]
struct Line(BinaryHeap<Reverse<(EighthTick, ConnId)>>);

impl Line {
    fn push(&mut self, since: EighthTick, id: ConnId) {
        self.0.push(Reverse((since, id)));
    }

    /// Removes and returns the client that may make room for longest, since before `before`.
    fn pop(&mut self, before: EighthTick, standing: impl Fn(ConnId, EighthTick) -> Standing) -> Option<ConnId> {
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

/// A line of all clients, and one of those of each address that has a limit.
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

    /// Returns the line of all, or that of an address.
    fn of(&mut self, full: Full, key: Option<AddressKey>) -> Option<&mut Line> {
        match full {
            Full::All => Some(&mut self.all),
            Full::Address => self.of_address.get_mut(&key?),
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
    pub(super) fn enter(&mut self, id: ConnId, key: Option<AddressKey>, now: throng_io::Instant) {
        self.new.push(id);
        self.new_of_address.push(key, id, now);
    }

    /// Enters a client that is counted for its address now.
    pub(super) fn enter_address(
        &mut self,
        id: ConnId,
        key: Option<AddressKey>,
        now: throng_io::Instant,
    ) {
        self.new_of_address.push(key, id, now);
    }

    /// Returns the limit that a client is beyond.
    pub(super) fn beyond(&self, id: ConnId) -> Option<Full> {
        // Read first: mostly there is none.
        if self.reserved.is_empty() { None } else { self.reserved.get(&id).copied() }
    }

    /// Gives up a client's place of the reserve. Returns false if it has none.
    pub(super) fn leave_reserve(&mut self, id: ConnId) -> bool {
        !self.reserved.is_empty() && self.reserved.remove(&id).is_some()
    }

    /// Returns the most clients in any list.
    pub(super) fn len(&self) -> usize {
        let lines = self.idle.all.0.len().max(self.gone.all.0.len());
        self.new.len().max(lines).max(self.reserve.len())
    }

    /// Returns the clients beyond the limits.
    pub(super) fn beyond_limits(&self) -> usize {
        self.reserved.len()
    }

    /// Removes clients that have left.
    pub(super) fn retain(&mut self, conns: &BalanceRecords) {
        self.new.retain(|id| conns.is_new_client(id));
        self.new_of_address.retain(|id| conns.is_new_client(id));
        self.idle.retain(|id, _| idle_standing(conns, id));
        self.gone.retain(|id, since| gone_standing(conns, id, since));
        let reserved = &self.reserved;
        self.reserve.retain(|id| reserved.contains_key(&id));
    }
}

/// Returns whether a client is between two requests, or has had its last answer.
fn idle_standing(conns: &BalanceRecords, id: ConnId) -> Standing {
    let client = match conns.at(id.slot()) {
        Some((at, BalanceRecord::Client(client))) if at == id => client,
        _ => return Standing::Left,
    };
    let is_free = match client.phase {
        Phase::Head => client.held.is_empty(),
        Phase::Lingering => true,
        Phase::Proxy | Phase::Queued | Phase::Exchange | Phase::Leaving => false,
    };
    match is_free && client.exchange.is_none() && client.http.is_clear() {
        true => Standing::Free(client.idle_since),
        false => Standing::Busy,
    }
}

/// Returns whether a client that has ended its stream waits for an answer still, or has a tunnel.
fn gone_standing(conns: &BalanceRecords, id: ConnId, since: EighthTick) -> Standing {
    let is_there = match conns.at(id.slot()) {
        Some((at, BalanceRecord::Client(client))) => at == id && client.http.finished,
        Some((at, BalanceRecord::Tunnel(tunnel))) => at == id && tunnel.flags & flag::FINISHED != 0,
        _ => false,
    };
    if is_there { Standing::Free(since) } else { Standing::Left }
}

impl BalanceParts {
    /// Lists a client that is between two requests, or has had its last answer.
    pub(super) fn note_idle(&mut self, id: ConnId) {
        if self.places.beyond(id).is_some() {
            return;
        }
        let (now, counted) = (self.time.tick(), self.counted.get(id.slot()));
        let Some(client) = self.records.client(id) else { return };
        client.idle_since = match client.phase {
            Phase::Lingering => now.after(LAST_ANSWER),
            _ => now,
        };
        if !std::mem::replace(&mut client.is_listed, true) {
            let since = client.idle_since;
            self.places.idle.push(since, id, counted);
        }
    }

    /// Lists a client that has ended its stream, and is not closed.
    pub(super) fn note_gone(&mut self, id: ConnId) {
        if self.places.beyond(id).is_none() {
            self.places.gone.push(self.time.tick(), id, self.counted.get(id.slot()));
        }
    }

    /// Takes the client that is to make room, of all or of the address with this key, and counts
    /// it.
    fn take_dispensable(&mut self, full: Full, key: Option<AddressKey>) -> Option<ConnId> {
        let Self { places, records, time, metrics, .. } = self;
        let (now, tick) = (time.now(), time.tick());
        let idle = |line: &mut Line| line.pop(tick, |id, _| idle_standing(records, id));
        if let Some(id) = places.idle.of(full, key).and_then(idle) {
            metrics.ended_idle += 1;
            return Some(id);
        }
        let is_new = |id| records.is_new_client(id);
        let new = match full {
            Full::All => places.new.pop_oldest(is_new),
            Full::Address => places.new_of_address.pop_oldest(key, now, is_new),
        };
        if new.is_some() {
            return new;
        }
        let before = tick.before(GONE);
        let gone = |line: &mut Line| line.pop(before, |id, since| gone_standing(records, id, since));
        let gone = places.gone.of(full, key).and_then(gone)?;
        metrics.ended_gone += 1;
        Some(gone)
    }

    /// Enters a client with `enter`; at a limit others make room. Returns the limit if none can.
    pub(super) fn enter_or_make_room<D: Driver>(
        &mut self,
        driver: &mut D,
        address: IpAddr,
        enter: impl Fn() -> Result<Option<AddressKey>, Full>,
    ) -> Result<Option<AddressKey>, Full> {
        let key = self.admission.key(address);
        let mut entered = enter();
        for _ in 0..MAX_EVICTIONS {
            let Err(full) = entered else { break };
            let Some(id) = self.take_dispensable(full, key) else { break };
            self.count_refused(full);
            self.close_for_another(driver, id);
            entered = enter();
        }
        entered
    }

    /// Counts a client for the address that its PROXY header names. At the limit of that address,
    /// another of its clients makes room; if there is none, the new one gets a place of the
    /// reserve.
    pub(super) fn count_behind_proxy(&mut self, id: ConnId, address: IpAddr) {
        if self.trusts(address) || self.places.beyond(id).is_some() {
            return;
        }
        let Some(most) = self.most_of_address(address) else { return };
        let key = match self.admission.enter_address(address, most) {
            Ok(key) => key,
            Err(full) => {
                self.count_refused(full);
                let key = self.admission.key(address);
                let Some(oldest) = self.take_dispensable(full, key) else {
                    let counted = self.counted.take(id.slot());
                    self.admission.leave(counted);
                    if let Some(oldest) = self.enter_reserve(id, full) {
                        self.actions.push_back(ConnAction::Close(oldest));
                    }
                    return;
                };
                self.actions.push_back(ConnAction::Close(oldest));
                // The new one takes its place in the count.
                self.counted.take(oldest.slot())
            }
        };
        self.counted.insert(id.slot(), key);
        self.places.enter_address(id, key, self.time.now());
    }

    /// Gives a client a place of the reserve. Returns the one that has to leave it for that.
    pub(super) fn enter_reserve(&mut self, id: ConnId, full: Full) -> Option<ConnId> {
        let Places { reserved, reserve, .. } = &mut self.places;
        let oldest = match reserved.len() < RESERVE {
            true => None,
            false => reserve.pop_oldest(|id| reserved.contains_key(&id)),
        };
        reserved.insert(id, full);
        self.metrics.refused_beyond += u64::from(full == Full::All);
        reserve.push(id);
        oldest
    }

    /// Refuses the request of a client beyond a limit. Returns false if it is within all.
    pub(super) fn refuse_beyond(&mut self, id: ConnId, client: &mut ClientRecord, is_head: bool) -> bool {
        let Some(full) = self.places.beyond(id) else { return false };
        let (status, reason) = match full {
            Full::All => (503, "the balancer is full: try again"),
            Full::Address => (429, "too many connections from this address"),
        };
        match full {
            Full::All => self.metrics.answered_full += 1,
            Full::Address => self.metrics.answered_full_address += 1,
        }
        let hsts = self.hsts(client.is_secure);
        let date = self.time.date().to_owned();
        let to =
            forward::Client { is_head, hsts: hsts.as_deref(), ..forward::Client::unknown(&date) };
        self.end_with(id, client, status, reason, |out| {
            forward::write_error(out, status, reason, &to);
        });
        true
    }

    /// Returns whether a client of this shard could make room for any other.
    pub(super) fn could_make_room(&self) -> bool {
        let before = self.time.tick().before(GONE);
        let idle = self.places.idle.all.0.iter().any(|&Reverse((_, id))| {
            matches!(idle_standing(&self.records, id), Standing::Free(since) if since < self.time.tick())
        });
        idle || self.places.gone.all.0.iter().any(|&Reverse((since, id))| {
            since < before && matches!(gone_standing(&self.records, id, since), Standing::Free(_))
        })
    }
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
