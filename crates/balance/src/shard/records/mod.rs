//! A shard's records of its connections, by the driver's slot.

mod exchange;
mod http_side;
mod log_entry;
mod origin;
mod tunnel;
mod upstream;

use std::time::Duration;

use throng_carry::Age;
use throng_engine::{Deadlines, HeldInput, LINGER_SILENCE, Linger};
use throng_io::{ConnId, Instant};
use throng_proto::http1;
use throng_proto::ws::CloseCode;

pub(super) use self::exchange::{Exchange, Fact, Owner, RequestFacts};
pub(super) use self::http_side::HttpSide;
pub(super) use self::log_entry::{LogEntry, MovedEntry};
pub(super) use self::origin::Origin;
pub(super) use self::tunnel::{MovedSide, Tunnel};
pub(super) use self::upstream::Upstream;
use crate::access::EndReason;
use crate::backend::State;
use crate::settings::Timeouts;

/// Time in eighths of a second since the driver's origin: fine enough for timeouts, and half the
/// size of an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EighthTick(pub(super) u32);

/// Milliseconds of an eighth of a second.
const MILLIS: u64 = 125;

impl EighthTick {
    /// Never: a deadline that is not set.
    pub(super) const NEVER: Self = Self(u32::MAX);

    pub(super) fn of(instant: Instant) -> Self {
        Self((instant.0 / 125_000_000) as u32)
    }

    /// The time since this tick, which was at the latest `now`.
    fn age(self, now: Self) -> Age {
        Age::of(u64::from(self.0) * MILLIS, u64::from(now.0) * MILLIS)
    }

    /// The tick of an event with that age, which was taken `transit` milliseconds ago.
    fn at_age(age: Age, now: Self, transit: u64) -> Self {
        Self::of_millis(age.then(u64::from(now.0) * MILLIS, transit))
    }

    fn of_millis(millis: u64) -> Self {
        Self(u32::try_from(millis / MILLIS).unwrap_or(u32::MAX))
    }

    /// The tick `time` before this one; an event in an earlier tick is certainly older.
    pub(super) fn before(self, time: Duration) -> Self {
        let ticks = u32::try_from(time.as_millis().div_ceil(125)).unwrap_or(u32::MAX);
        Self(self.0.saturating_sub(ticks))
    }

    /// The first tick at which `timeout` has certainly passed.
    pub(super) fn after(self, timeout: Duration) -> Self {
        let ticks = timeout.as_millis().div_ceil(125) + 1;
        Self(self.0.saturating_add(u32::try_from(ticks).unwrap_or(u32::MAX)))
    }
}

impl throng_engine::DeadlineTick for EighthTick {
    const NEVER: Self = Self::NEVER;
    const PER_SECOND: u32 = 8;

    fn ticks_from(self, start: Self) -> u32 {
        match self {
            Self::NEVER => u32::MAX,
            tick => tick.0.saturating_sub(start.0),
        }
    }
}

/// The size of an outbox above which its source is not read.
pub(super) const HIGH_WATER: usize = 64 << 10;

/// A connection's record. The boxes are freed when a tunnel is opened: it needs only [`Tunnel`].
#[derive(Debug)]
pub(super) enum BalanceRecord {
    /// The slot is empty, or its connection is being closed and only its end is awaited.
    Vacant,
    /// A client whose connection was closed, and whose last bytes are not sent yet: it still
    /// counts.
    Closing,
    /// A client that speaks HTTP.
    Client(Box<ClientRecord>),
    /// A connection to a backend that speaks HTTP.
    Upstream(Box<Upstream>),
    /// One side of a tunnel.
    Tunnel(Tunnel),
}

/// The phase of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waiting for a PROXY header.
    Proxy,
    /// Waiting for a request, or for the rest of one.
    Head,
    /// The request waits for a permit for its handshake.
    Queued,
    /// The request is at a backend.
    Exchange,
    /// Its last answer has been written and is being sent; the end of the stream follows.
    Leaving,
    /// The balancer ended its side; input is dropped until the client ends its own or is silent.
    Lingering,
}

/// A client that speaks HTTP.
#[derive(Debug)]
pub(super) struct ClientRecord {
    pub(super) origin: Origin,
    pub(super) http: HttpSide,
    pub(super) decoder: http1::Decoder,
    pub(super) phase: Phase,
    pub(super) exchange: Option<Box<Exchange>>,
    /// Bytes that came early: a pipelined request, or frames before the 101.
    pub(super) held: HeldInput,
    /// It has sent the head of a request.
    has_asked: bool,
    /// Its last request, which it announced as the last, is complete: it sends no more.
    has_sent_last: bool,
    /// Since when it has been idle, if it is.
    idle_since: EighthTick,
    /// It is listed among those that may make room.
    is_listed: bool,
    /// Data dropped in [`Phase::Lingering`].
    dropped: Option<Linger<EighthTick>>,
}

impl ClientRecord {
    /// Creates the record of a client that has connected, and sends a PROXY header first if
    /// `is_proxy`.
    pub(super) fn new(origin: Origin, is_proxy: bool, now: EighthTick) -> Self {
        Self {
            origin,
            http: HttpSide::default(),
            decoder: http1::Decoder::new(),
            phase: if is_proxy { Phase::Proxy } else { Phase::Head },
            exchange: None,
            has_asked: false,
            has_sent_last: false,
            idle_since: now,
            is_listed: false,
            held: HeldInput::default(),
            dropped: None,
        }
    }

    /// Begins the exchange of a request, or of a connection that is passed through.
    pub(super) fn begin(&mut self, exchange: Box<Exchange>) {
        self.exchange = Some(exchange);
        self.has_asked = true;
        self.phase = Phase::Exchange;
    }

    /// Records that it has sent a request, which the balancer answers itself.
    pub(super) fn note_asked(&mut self) {
        self.has_asked = true;
    }

    /// Returns whether it has sent the head of a request.
    pub(super) fn has_asked(&self) -> bool {
        self.has_asked
    }

    /// Ends its exchange, and returns it.
    pub(super) fn end_exchange(&mut self) -> Option<Box<Exchange>> {
        let exchange = self.exchange.take()?;
        let is_last = exchange.is_complete() && exchange.facts().is(Fact::Last);
        self.has_sent_last = is_last && self.held.is_empty();
        Some(exchange)
    }

    /// Returns whether the client sends nothing more: then a close destroys no unread data.
    /// With TLS it still answers the balancer's close_notify.
    pub(super) fn sends_no_more(&self) -> bool {
        self.http.has_finished() || self.has_sent_last && !self.origin.is_secure()
    }

    /// Returns since when it waits for nothing, where it does.
    pub(super) fn idle_since(&self) -> EighthTick {
        self.idle_since
    }

    /// Records that it waits for nothing from `since` on. Returns whether it must be listed among
    /// those that may make room.
    #[must_use]
    pub(super) fn note_idle(&mut self, since: EighthTick) -> bool {
        self.idle_since = since;
        !std::mem::replace(&mut self.is_listed, true)
    }

    /// Drops input while it lingers. Returns its next deadline, if that has changed.
    pub(super) fn drop_input(&mut self, now: EighthTick, bytes: usize) -> Option<EighthTick> {
        let dropped = self.dropped.get_or_insert(Linger::new(now));
        dropped.drop_input(now, bytes).then(|| now.after(LINGER_SILENCE))
    }

    /// Returns whether it has not sent a request yet.
    pub(super) fn is_new(&self) -> bool {
        !self.has_asked && matches!(self.phase, Phase::Proxy | Phase::Head)
    }

    /// Returns whether the client may send another request: it has not ended its stream, or has
    /// sent more before.
    pub(super) fn may_ask_again(&self) -> bool {
        !self.http.has_finished() || !self.held.is_empty()
    }

    /// Returns whether its input is decoded: not while the answer to a whole request is due, and
    /// not after its last request.
    pub(super) fn takes_requests(&self) -> bool {
        !self.exchange.as_ref().is_some_and(|exchange| exchange.is_complete())
            && !matches!(self.phase, Phase::Leaving | Phase::Lingering)
    }
}

/// The records and deadlines, by the driver's slot.
#[derive(Debug)]
pub(super) struct BalanceRecords {
    slots: Vec<Slot>,
    deadlines: Deadlines<EighthTick>,
}

#[derive(Debug)]
struct Slot {
    id: ConnId,
    record: BalanceRecord,
}

/// The deadlines of connections whose records are lent.
pub(super) struct RecordDeadlines<'a>(&'a mut Deadlines<EighthTick>);

impl RecordDeadlines<'_> {
    /// Sets the deadline of a connection that has a record.
    pub(super) fn set(&mut self, id: ConnId, due: EighthTick) {
        self.0.set(id.slot(), due);
    }
}

impl BalanceRecords {
    /// Creates an empty table at a shard's first tick.
    pub(super) fn new(now: EighthTick) -> Self {
        Self { slots: Vec::new(), deadlines: Deadlines::new(now) }
    }

    /// Enters a connection, without a deadline if it is new; or replaces its record.
    pub(super) fn enter(&mut self, id: ConnId, record: BalanceRecord) {
        let at = id.slot();
        while self.slots.len() <= at {
            self.slots.push(Slot { id, record: BalanceRecord::Vacant });
        }
        self.deadlines.add_slot(at);
        if self.slots[at].id != id {
            self.deadlines.set(at, EighthTick::NEVER);
        }
        self.slots[at] = Slot { id, record };
    }

    /// Sets the deadline of `id`, unless the slot was reused. Its record may be taken out.
    pub(super) fn set_deadline(&mut self, id: ConnId, due: EighthTick) {
        if self.slots.get(id.slot()).is_some_and(|slot| slot.id == id) {
            self.deadlines.set(id.slot(), due);
        }
    }

    /// Returns the deadline of a connection that has a record.
    pub(super) fn deadline(&self, id: ConnId) -> EighthTick {
        self.deadlines.get(id.slot())
    }

    /// Sets the end of a side of a tunnel to `due`, for any activity.
    pub(super) fn set_end(&mut self, id: ConnId, due: EighthTick) {
        if let Some(tunnel) = self.tunnel(id) {
            tunnel.set_timed();
            self.deadlines.set(id.slot(), due);
        }
    }

    /// Limits the end of a side of a tunnel to `due`.
    pub(super) fn limit_end(&mut self, id: ConnId, due: EighthTick) {
        let is_timed = self.tunnel(id).is_some_and(|tunnel| tunnel.is_timed());
        let due = if is_timed { due.min(self.deadline(id)) } else { due };
        self.set_end(id, due);
    }

    /// Appends to `due` the slots whose deadlines have come, and clears those. Returns the number
    /// of slots that it looked at.
    pub(super) fn expire(&mut self, now: EighthTick, due: &mut Vec<u32>) -> usize {
        self.deadlines.expire(now, due)
    }

    /// Returns the record of `id`, unless the slot was reused.
    #[inline]
    pub(super) fn entry(&mut self, id: ConnId) -> Option<&mut BalanceRecord> {
        let slot = self.slots.get_mut(id.slot())?;
        (slot.id == id).then_some(&mut slot.record)
    }

    #[inline]
    pub(super) fn tunnel(&mut self, id: ConnId) -> Option<&mut Tunnel> {
        match self.entry(id)? {
            BalanceRecord::Tunnel(tunnel) => Some(tunnel),
            _ => None,
        }
    }

    pub(super) fn client(&mut self, id: ConnId) -> Option<&mut ClientRecord> {
        match self.entry(id)? {
            BalanceRecord::Client(client) => Some(client),
            _ => None,
        }
    }

    pub(super) fn upstream(&mut self, id: ConnId) -> Option<&mut Upstream> {
        match self.entry(id)? {
            BalanceRecord::Upstream(upstream) => Some(upstream),
            _ => None,
        }
    }

    /// Returns a backend's connection that carries a request, and the client that sent it.
    pub(super) fn exchange(
        &mut self,
        upstream: ConnId,
    ) -> Option<(&mut Upstream, &mut ClientRecord, RecordDeadlines<'_>)> {
        let client = self.upstream(upstream)?.client()?;
        let slots = self.slots.get_disjoint_mut([upstream.slot(), client.slot()]).ok()?;
        let [Slot { record: BalanceRecord::Upstream(upstream), .. }, other] = slots else {
            return None;
        };
        match &mut other.record {
            BalanceRecord::Client(record) if other.id == client => {
                Some((upstream, record, RecordDeadlines(&mut self.deadlines)))
            }
            _ => None,
        }
    }

    /// Returns a client, and the backend's connection that carries its request, if one does.
    pub(super) fn request(
        &mut self,
        client: ConnId,
    ) -> Option<(&mut ClientRecord, Option<&mut Upstream>)> {
        let id = self.client(client)?.exchange.as_ref().and_then(|exchange| exchange.upstream());
        let Some(id) = id.filter(|id| id.slot() < self.slots.len()) else {
            return Some((self.client(client)?, None));
        };
        let slots = self.slots.get_disjoint_mut([client.slot(), id.slot()]).ok()?;
        let [Slot { record: BalanceRecord::Client(client), .. }, other] = slots else {
            return None;
        };
        match &mut other.record {
            BalanceRecord::Upstream(upstream) if other.id == id => Some((client, Some(upstream))),
            _ => Some((client, None)),
        }
    }

    /// Removes a record, except of a client that is closing; its slot stays until the driver uses
    /// it again.
    pub(super) fn remove(&mut self, id: ConnId) -> BalanceRecord {
        match self.entry(id) {
            None | Some(BalanceRecord::Closing) => BalanceRecord::Vacant,
            Some(record) => std::mem::replace(record, BalanceRecord::Vacant),
        }
    }

    /// Removes a connection to a backend that speaks HTTP.
    pub(super) fn remove_upstream(&mut self, id: ConnId) -> Option<Box<Upstream>> {
        self.upstream(id)?;
        match self.remove(id) {
            BalanceRecord::Upstream(upstream) => Some(upstream),
            _ => None,
        }
    }

    /// Returns the backend's connection of the tunnel of a client, if the tunnel may move to
    /// another process: neither side ends, and its backend takes clients. The tunnels of others
    /// are closed soon, by an order that does not move.
    pub(super) fn movable_tunnel(&self, client: ConnId) -> Option<ConnId> {
        let early = self.tunnel_at(client).filter(|it| !it.is_backend() && it.may_move())?;
        let upstream = early.peer();
        let late = self.tunnel_at(upstream).filter(|it| it.peer() == client && it.may_move())?;
        late.backend().is_some_and(|backend| backend.state() == State::Up).then_some(upstream)
    }

    /// Returns the side of a tunnel, to look at it.
    pub(super) fn tunnel_at(&self, id: ConnId) -> Option<&Tunnel> {
        match self.at(id.slot())? {
            (at, BalanceRecord::Tunnel(tunnel)) if at == id => Some(tunnel),
            _ => None,
        }
    }

    /// Removes the side of a tunnel.
    pub(super) fn remove_tunnel(&mut self, id: ConnId) -> Option<Tunnel> {
        self.tunnel(id)?;
        match self.remove(id) {
            BalanceRecord::Tunnel(tunnel) => Some(tunnel),
            _ => None,
        }
    }

    /// Replaces the records of a client and a backend's connection by those that `sides` makes of
    /// them, and returns them. Returns `None` if either is gone.
    pub(super) fn open_tunnel(
        &mut self,
        client: ConnId,
        upstream: ConnId,
        sides: impl FnOnce(&mut ClientRecord, &Upstream) -> Option<[Tunnel; 2]>,
    ) -> Option<(Box<ClientRecord>, Box<Upstream>)> {
        self.client(client)?;
        self.upstream(upstream)?;
        match (self.remove(client), self.remove(upstream)) {
            (BalanceRecord::Client(mut of_client), BalanceRecord::Upstream(of_upstream)) => {
                let sides = sides(&mut of_client, &of_upstream)?;
                for (id, side) in [client, upstream].into_iter().zip(sides) {
                    self.enter(id, BalanceRecord::Tunnel(side));
                }
                Some((of_client, of_upstream))
            }
            _ => None,
        }
    }

    /// Removes the record of a client that is closing. Returns false if it is not.
    pub(super) fn end_closing(&mut self, id: ConnId) -> bool {
        let record = self.entry(id).filter(|record| matches!(record, BalanceRecord::Closing));
        record.map(|record| *record = BalanceRecord::Vacant).is_some()
    }

    /// Returns the code of the Close frame that the balancer sent the client of a tunnel. `tunnel`
    /// is the record of `id`, which may be taken out.
    pub(super) fn close_code_sent(&self, id: ConnId, tunnel: &Tunnel) -> Option<u16> {
        let peer = self.at(tunnel.peer().slot()).and_then(|(at, record)| match record {
            BalanceRecord::Tunnel(peer) if at == tunnel.peer() && at != id => Some(peer),
            _ => None,
        });
        let (client, backend) =
            if tunnel.is_backend() { (peer, Some(tunnel)) } else { (Some(tunnel), peer) };
        client
            .is_some_and(Tunnel::is_closed)
            .then(|| backend.map_or(CloseCode::SERVICE_RESTART.get(), Tunnel::close_code))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnId, &BalanceRecord)> {
        self.slots.iter().map(|slot| (slot.id, &slot.record))
    }

    /// Returns the connection in that slot.
    pub(super) fn at(&self, slot: usize) -> Option<(ConnId, &BalanceRecord)> {
        self.slots.get(slot).map(|slot| (slot.id, &slot.record))
    }

    /// Returns whether `id` is a client that has not sent a request yet.
    pub(super) fn is_new_client(&self, id: ConnId) -> bool {
        match self.at(id.slot()) {
            Some((at, BalanceRecord::Client(client))) => at == id && client.is_new(),
            _ => false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns when a tunnel will have been silent for too long, over both directions, if it stays
    /// silent, and why it ends then; `id` is one of its sides. A tunnel that is passed through has
    /// less time for its backend's first bytes: until then a client has only sent a ClientHello.
    pub(super) fn end_of_silence(
        &self,
        id: ConnId,
        timeouts: &Timeouts,
    ) -> Option<(EighthTick, EndReason)> {
        let tunnel = |id: ConnId| match self.at(id.slot())? {
            (_, BalanceRecord::Tunnel(tunnel)) => Some(tunnel),
            _ => None,
        };
        let side = tunnel(id)?;
        let other = tunnel(side.peer()).unwrap_or(side);
        if side.is_silent() || other.is_silent() {
            return Some((side.opened().after(timeouts.upgrade), EndReason::NoAnswer));
        }
        let has_finished = side.has_finished() || other.has_finished();
        let (timeout, reason) = match side.is_unframed() && has_finished {
            true => (timeouts.half_closed, EndReason::HalfClosed),
            false => (timeouts.tunnel, EndReason::Silent),
        };
        Some((side.seen().max(other.seen()).after(timeout), reason))
    }

    /// Makes the next sweep check all tunnels, from `due` on: the timeout of silent ones has
    /// changed.
    pub(super) fn look_at_all_tunnels(&mut self, due: EighthTick) {
        for (at, slot) in self.slots.iter().enumerate() {
            if let BalanceRecord::Tunnel(tunnel) = &slot.record
                && !tunnel.is_backend()
                && !tunnel.is_timed()
            {
                self.deadlines.set(at, due);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_of_a_tunnel_takes_at_most_60_bytes() {
        let size = size_of::<Slot>() + size_of::<EighthTick>();
        assert!(size <= 60, "{size}");
    }

    #[test]
    fn a_timeout_has_passed_at_its_tick_wherever_in_a_tick_it_began() {
        let began = Instant(124_999_999);
        let due = EighthTick::of(began).after(Duration::from_millis(125));
        assert!(u64::from(due.0) * 125_000_000 >= began.0 + 125_000_000);
        assert_eq!(EighthTick(0).after(Duration::MAX), EighthTick::NEVER);
    }
}
