//! A shard's records of its connections, by the driver's slot.

mod exchange;
mod log_entry;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{Deadlines, HeldInput, Linger, Progress};
use throng_io::{Batch, ConnId, Instant, ServerTls};
use throng_proto::http1;
use throng_proto::ws::Boundary;

pub(super) use self::exchange::Exchange;
pub(super) use self::log_entry::LogEntry;
use super::pool::Owner;
use crate::access::Subject;
use crate::backend::Backend;
use crate::guards::TunnelGuard;
use crate::settings::Timeouts;

/// Time in eighths of a second since the driver's origin: fine enough for timeouts, and half the
/// size of an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EighthTick(pub(super) u32);

impl EighthTick {
    /// Never: a deadline that is not set.
    pub(super) const NEVER: Self = Self(u32::MAX);

    pub(super) fn of(instant: Instant) -> Self {
        Self((instant.0 / 125_000_000) as u32)
    }

    /// The tick `time` before this one; what began in an earlier one is older for certain.
    pub(super) fn before(self, time: Duration) -> Self {
        let ticks = u32::try_from(time.as_millis().div_ceil(125)).unwrap_or(u32::MAX);
        Self(self.0.saturating_sub(ticks))
    }

    /// The first tick at which `timeout` has passed for certain.
    pub(super) fn after(self, timeout: Duration) -> Self {
        let ticks = timeout.as_millis().div_ceil(125) + 1;
        Self(self.0.saturating_add(u32::try_from(ticks).unwrap_or(u32::MAX)))
    }
}

impl throng_engine::Tick for EighthTick {
    const NEVER: Self = Self::NEVER;
    const PER_SECOND: u32 = 8;

    fn ticks_from(self, start: Self) -> u32 {
        match self {
            Self::NEVER => u32::MAX,
            tick => tick.0.saturating_sub(start.0),
        }
    }
}

/// A connection's record. The boxes are freed when a tunnel is opened: it needs only [`Tunnel`].
#[derive(Debug)]
pub(super) enum BalanceRecord {
    /// The slot is empty, or its connection is being closed and only its end is awaited.
    Vacant,
    /// A client whose connection was closed, and whose last bytes have not left: it still counts.
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
    /// Waiting for a request, or its rest.
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

/// The common part of both kinds of HTTP connection: an outbox and its state.
#[derive(Debug, Default)]
pub(super) struct HttpSide {
    /// Data to be sent next.
    pub(super) out: Option<Box<Batch>>,
    /// A send is in flight.
    pub(super) sending: bool,
    /// The connection is not read.
    pub(super) paused: bool,
    /// Its peer has ended its stream.
    pub(super) finished: bool,
}

impl HttpSide {
    /// Returns the number of bytes to be sent next.
    pub(super) fn backlog(&self) -> usize {
        self.out.as_ref().map_or(0, |out| out.len())
    }

    /// Returns whether nothing is to be sent or in flight.
    pub(super) fn is_clear(&self) -> bool {
        !self.sending && self.backlog() == 0
    }
}

/// A client that speaks HTTP.
#[derive(Debug)]
pub(super) struct ClientRecord {
    pub(super) id: ConnId,
    /// The other end of its socket.
    pub(super) peer: SocketAddr,
    pub(super) http: HttpSide,
    pub(super) decoder: http1::Decoder,
    /// Its address, from the kernel or its PROXY header.
    pub(super) address: SocketAddr,
    pub(super) phase: Phase,
    pub(super) exchange: Option<Box<Exchange>>,
    /// Its connection has TLS.
    pub(super) is_secure: bool,
    /// It connected to an address with TLS.
    pub(super) is_due_tls: bool,
    /// TLS that begins after its PROXY header.
    pub(super) tls: Option<ServerTls>,
    /// The certificate that it has shown, in DER.
    pub(super) certificate: Option<Box<[u8]>>,
    /// The host that it has asked for in its handshake (SNI), if its requests must be for that.
    pub(super) server_name: Option<Box<str>>,
    /// It has sent the head of a request.
    pub(super) has_asked: bool,
    /// Its last request, which it announced as that, is whole: it sends nothing more.
    pub(super) has_sent_last: bool,
    /// Bytes that came early: a pipelined request, or frames before the 101.
    pub(super) held: HeldInput,
    /// Since when it waits for nothing, where it does.
    pub(super) idle_since: EighthTick,
    /// It is listed among those that may make room.
    pub(super) is_listed: bool,
    /// Data dropped in [`Phase::Lingering`].
    pub(super) dropped: Option<Linger<EighthTick>>,
}

impl ClientRecord {
    /// Returns who it is, before a request names the client of a proxy.
    pub(super) fn subject(&self) -> Subject {
        Subject {
            session: Some(self.id.to_bits()),
            peer: Some(self.peer),
            client: Some(self.address.ip().to_canonical()),
        }
    }

    /// Returns whether it has not sent a request yet.
    pub(super) fn is_new(&self) -> bool {
        !self.has_asked && matches!(self.phase, Phase::Proxy | Phase::Head)
    }

    /// Returns whether a request may follow that of the exchange: it has not ended its stream, or
    /// has sent more before.
    pub(super) fn may_ask_again(&self) -> bool {
        !self.http.finished || !self.held.is_empty()
    }

    /// Returns whether its input is decoded: not while the answer to a whole request is due, and
    /// not after its last one.
    pub(super) fn takes_requests(&self) -> bool {
        !self.exchange.as_ref().is_some_and(|exchange| exchange.is_complete)
            && !matches!(self.phase, Phase::Leaving | Phase::Lingering)
    }
}

/// A connection to a backend that speaks HTTP.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) http: HttpSide,
    pub(super) decoder: http1::ResponseDecoder,
    pub(super) backend: Arc<Backend>,
    /// The client whose request it carries; `None`: it is idle.
    pub(super) client: Option<ConnId>,
    pub(super) is_connected: bool,
    /// It carries a WebSocket handshake.
    pub(super) is_handshake: bool,
    /// It carries a connection that is passed through.
    pub(super) is_passthrough: bool,
    /// It carried a request before: its end now says nothing about the backend.
    pub(super) is_reused: bool,
    /// It is not used again: it named its client in a PROXY header, or the end of its request or
    /// answer is not certain.
    pub(super) is_last: bool,
    /// The backend's generation when it was begun.
    pub(super) generation: u32,
    /// It carried a body of this client, and serves no other.
    pub(super) owner: Option<Owner>,
    /// The progress of the answer's body.
    pub(super) progress: Progress,
    /// The frame boundaries, once it has answered 101.
    pub(super) boundary: Boundary,
}

impl Upstream {
    /// Returns the timeout of its answer.
    pub(super) fn answer_timeout(&self, timeouts: &Timeouts) -> Duration {
        if self.is_handshake { timeouts.upgrade } else { timeouts.response }
    }
}

/// One side of a tunnel.
#[derive(Debug)]
pub(super) struct Tunnel {
    /// The other side, or this side itself once that is gone.
    pub(super) peer: ConnId,
    /// The frame boundaries of data from this side.
    pub(super) boundary: Boundary,
    /// Counts the tunnel; only in the backend's side.
    pub(super) count: Option<TunnelGuard>,
    /// The time of the last bytes.
    pub(super) seen: EighthTick,
    pub(super) opened: EighthTick,
    pub(super) flags: u16,
}

/// Bits of [`Tunnel::flags`].
pub(super) mod flag {
    /// A send to this side is in flight.
    pub(in crate::shard) const SENDING: u16 = 1;
    /// This side is not read, since the other is behind.
    pub(in crate::shard) const PAUSED: u16 = 1 << 1;
    /// This side has ended its stream.
    pub(in crate::shard) const FINISHED: u16 = 1 << 2;
    /// This side's stream is to be ended after the send in flight.
    pub(in crate::shard) const FINISH_DUE: u16 = 1 << 3;
    /// Data from this side is dropped: its receiver has been sent a Close frame, or is gone.
    pub(in crate::shard) const DROPPED: u16 = 1 << 4;
    /// A Close frame is to follow the next whole frame from this side.
    pub(in crate::shard) const CLOSE_DUE: u16 = 1 << 5;
    /// This side was sent a Close frame by the balancer.
    pub(in crate::shard) const CLOSED: u16 = 1 << 6;
    /// The other side has bytes in the shard's queue.
    pub(in crate::shard) const QUEUED: u16 = 1 << 7;
    /// The balancer ended the stream to this side.
    pub(in crate::shard) const ENDED: u16 = 1 << 8;
    /// The close code is 1001, else 1012.
    pub(in crate::shard) const GOING_AWAY: u16 = 1 << 9;

    /// Its deadline ends it; without this, only silence does.
    pub(in crate::shard) const TIMED: u16 = 1 << 10;
    /// The tunnel passes bytes through that are not frames: each end of a stream is passed on, and
    /// no Close frame is sent.
    pub(in crate::shard) const UNFRAMED: u16 = 1 << 11;
    /// Nothing has come from this side yet, a backend that is passed through to.
    pub(in crate::shard) const SILENT: u16 = 1 << 12;

    /// With none of these, bytes from this side go straight to the other.
    pub(in crate::shard) const SLOW_PATH: u16 =
        PAUSED | DROPPED | CLOSE_DUE | CLOSED | QUEUED | SILENT;
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
    conn: BalanceRecord,
}

impl BalanceRecords {
    /// Creates an empty table at a shard's first tick.
    pub(super) fn new(now: EighthTick) -> Self {
        Self { slots: Vec::new(), deadlines: Deadlines::new(now) }
    }

    /// Enters a new connection, without a deadline, or puts the record of one back that was taken
    /// out.
    pub(super) fn insert(&mut self, id: ConnId, conn: BalanceRecord) {
        let at = id.slot();
        while self.slots.len() <= at {
            self.slots.push(Slot { id, conn: BalanceRecord::Vacant });
        }
        self.deadlines.add_slot(at);
        if self.slots[at].id != id {
            self.deadlines.set(at, EighthTick::NEVER);
        }
        self.slots[at] = Slot { id, conn };
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

    /// Gives a side of a tunnel until `due`, however active it is.
    pub(super) fn set_end(&mut self, id: ConnId, due: EighthTick) {
        if let Some(tunnel) = self.tunnel(id) {
            tunnel.flags |= flag::TIMED;
            self.deadlines.set(id.slot(), due);
        }
    }

    /// Gives a side of a tunnel until `due`, or less if it has less already.
    pub(super) fn limit_end(&mut self, id: ConnId, due: EighthTick) {
        let is_timed = self.tunnel(id).is_some_and(|tunnel| tunnel.flags & flag::TIMED != 0);
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
        (slot.id == id).then_some(&mut slot.conn)
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

    /// Takes the record out; its slot stays until the driver uses it again. One that is closing
    /// has nothing to be taken.
    pub(super) fn take(&mut self, id: ConnId) -> BalanceRecord {
        match self.entry(id) {
            None | Some(BalanceRecord::Closing) => BalanceRecord::Vacant,
            Some(conn) => std::mem::replace(conn, BalanceRecord::Vacant),
        }
    }

    /// Removes the record of a client that is closing. Returns false if it is not.
    pub(super) fn end_closing(&mut self, id: ConnId) -> bool {
        let record = self.entry(id).filter(|conn| matches!(conn, BalanceRecord::Closing));
        record.map(|conn| *conn = BalanceRecord::Vacant).is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnId, &BalanceRecord)> {
        self.slots.iter().map(|slot| (slot.id, &slot.conn))
    }

    /// Returns the connection in that slot.
    pub(super) fn at(&self, slot: usize) -> Option<(ConnId, &BalanceRecord)> {
        self.slots.get(slot).map(|slot| (slot.id, &slot.conn))
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
