//! The record of a tunnel that moves: how it leaves the parts of a shard, and enters them.

use throng_carry::{Carried, CarryError, Content, Encoder, RECORD};
use throng_engine::AddressKey;
use throng_io::{Batch, ConnId, Driver, Instant, PeerAddress};

use crate::guards::TunnelGuard;
use crate::meter::Meter;
use crate::shard::BalanceParts;
use crate::shard::records::{BalanceRecord, EighthTick, MovedEntry, MovedSide, Tunnel};

/// The shard's state of a tunnel.
#[derive(Debug)]
pub(super) struct TunnelRecord {
    /// The ids of its connections, which stay the same.
    client: u64,
    upstream: u64,
    /// The backend's address: its identity in every process.
    backend: PeerAddress,
    /// The name of its pool, unless it is the default.
    pool: Option<String>,
    /// When it was frozen, in milliseconds of the clock that both processes have.
    frozen_at: u64,
    /// The key under which the client is counted for its address.
    counted: Option<u32>,
    of_client: MovedSide,
    of_upstream: MovedSide,
    /// Bytes queued after the send in flight of a side.
    to_client: Option<Batch>,
    to_upstream: Option<Batch>,
    /// Its entry in the log.
    entry: Option<MovedEntry>,
    /// The name of its class, if it has one.
    class: Option<String>,
    /// Its places in limits of tunnels.
    places: Option<MovedPlaces>,
    /// The name of the listener where its client counts.
    listener: Option<String>,
    /// The nanoseconds until the buckets of its client's meter are full.
    metered_messages: Option<u64>,
    metered_bytes: Option<u64>,
}

/// The names of limits, and the keys under which they count a tunnel.
#[derive(Debug, PartialEq)]
struct MovedPlaces(Vec<(String, u64)>);

impl Carried for MovedPlaces {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        let add = |inner: Encoder, (name, key): &(String, u64)| {
            inner.text(field::NAME, name).number(field::KEY, *key)
        };
        out.message(tag, self.0.iter().fold(Encoder::new(RECORD), add))
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        let mut places: Vec<(String, u64)> = Vec::new();
        content.message()?.read(|tag, content| {
            match (tag, places.last_mut()) {
                (field::NAME, _) => places.push((content.text()?.to_owned(), 0)),
                (field::KEY, Some(last)) => last.1 = content.number()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self(places))
    }
}

throng_carry::carried! {
    TunnelRecord {
        required { 1 client, 3 upstream, 5 backend, 7 of_client, 9 of_upstream, 15 frozen_at }
        optional {
            2 counted, 4 entry, 6 pool, 8 class, 10 places, 12 listener, 14 metered_messages,
            16 metered_bytes,
        }
        // Without these bytes a stream would have a gap.
        if_any { 11 to_client, 13 to_upstream }
        rebuilt { }
        check |it| it.client != it.upstream
    }
}

impl TunnelRecord {
    /// Takes a tunnel out of all parts of the shard. The client stays admitted, and the tunnel
    /// stays counted at its backend, as long as the guard lives. `None` if there is no such tunnel.
    pub(super) fn freeze(
        parts: &mut BalanceParts,
        client: ConnId,
        upstream: ConnId,
        frozen_at: u64,
    ) -> Option<(Self, TunnelGuard)> {
        let now = parts.time.tick();
        let (early, late) =
            (parts.records.remove_tunnel(client)?, parts.records.remove_tunnel(upstream)?);
        for id in [client, upstream] {
            parts.records.set_deadline(id, EighthTick::NEVER);
        }
        let class = parts.rules.configuration().classes.name(early.class()).map(str::to_owned);
        let (of_client, _) = early.freeze(now);
        let (of_upstream, count) = late.freeze(now);
        let count = count?;
        let metered = parts.tunnels.end_meter(client).map(|meter| meter.left(parts.time.now()));
        let record = Self {
            client: client.to_bits(),
            upstream: upstream.to_bits(),
            backend: count.backend().address(),
            pool: parts.rules.configuration().pools.name_of(count.backend()).map(str::to_owned),
            frozen_at,
            counted: parts.clients.key(client).map(AddressKey::get),
            of_client,
            of_upstream,
            to_client: parts.tunnels.take_queued(client).map(|batch| *batch),
            to_upstream: parts.tunnels.take_queued(upstream).map(|batch| *batch),
            entry: parts.log.take_tunnel(client, parts.time.now()),
            class,
            places: {
                let limits = &parts.rules.configuration().limits;
                let places = parts.tunnels.moved_places(client, limits);
                (!places.is_empty()).then_some(MovedPlaces(places))
            },
            listener: parts.clients.listener_name(client).map(str::to_owned),
            metered_messages: metered.map(|(messages, _)| messages),
            metered_bytes: metered.map(|(_, bytes)| bytes),
        };
        parts.meters.count(|it| {
            it.connections -= 1;
            it.tunnels -= 1;
        });
        Some((record, count))
    }

    pub(super) fn client(&self) -> ConnId {
        ConnId::from_bits(self.client)
    }

    pub(super) fn upstream(&self) -> ConnId {
        ConnId::from_bits(self.upstream)
    }
}

/// A tunnel that moves, with the records of a driver.
pub(super) struct Moving<R> {
    tunnel: TunnelRecord,
    /// The driver's records of both connections: with TLS, their keys.
    client: R,
    upstream: R,
}

impl<R> Moving<R> {
    pub(super) fn new(tunnel: TunnelRecord, client: R, upstream: R) -> Self {
        Self { tunnel, client, upstream }
    }

    pub(super) fn client(&self) -> ConnId {
        self.tunnel.client()
    }

    pub(super) fn upstream(&self) -> ConnId {
        self.tunnel.upstream()
    }

    /// Returns the backend's address.
    pub(super) fn backend(&self) -> PeerAddress {
        self.tunnel.backend
    }

    /// Returns the name of the backend's pool, unless it is the default.
    pub(super) fn pool(&self) -> Option<&str> {
        self.tunnel.pool.as_deref()
    }

    /// Returns the key under which the client is counted for its address.
    pub(super) fn counted(&self) -> Option<AddressKey> {
        self.tunnel.counted.and_then(AddressKey::new)
    }

    /// Returns the name of the listener where its client counts.
    pub(super) fn listener(&self) -> Option<&str> {
        self.tunnel.listener.as_deref()
    }

    /// Enters a tunnel into the parts, and continues its connections in the driver.
    pub(super) fn enter<D: Driver<Record = R>>(
        self,
        driver: &mut D,
        parts: &mut BalanceParts,
        count: TunnelGuard,
        now: u64,
    ) {
        let Moving { tunnel, client: record_of_client, upstream: record_of_upstream } = self;
        let [client, upstream] = [tunnel.client(), tunnel.upstream()];
        let TunnelRecord {
            client: _,
            upstream: _,
            backend,
            pool: _,
            frozen_at,
            counted: _,
            of_client,
            of_upstream,
            to_client,
            to_upstream,
            entry,
            class,
            places,
            listener: _,
            metered_messages,
            metered_bytes,
        } = tunnel;
        if let Some((messages, bytes)) = metered_messages.zip(metered_bytes) {
            parts.tunnels.meter(client, Meter::due_after(parts.time.now(), messages, bytes));
        }
        let class = parts.rules.configuration().classes.named(class.as_deref());
        if let Some(MovedPlaces(places)) = places {
            let limits = &parts.rules.configuration().limits;
            parts.tunnels.adopt_places(client, &places, limits);
        }
        if let Some(entry) = entry {
            let frozen_at = Instant(frozen_at.saturating_mul(1_000_000));
            parts.log.put_tunnel(client, backend, entry, frozen_at);
        }
        // Times go on while a tunnel is in flight.
        let transit = now.saturating_sub(frozen_at);
        let now = parts.time.tick();
        let early = Tunnel::thaw(of_client, upstream, None, now, transit).with_class(class);
        let late = Tunnel::thaw(of_upstream, client, Some(count), now, transit).with_class(class);
        for (id, side, queued) in [(client, early, to_client), (upstream, late, to_upstream)] {
            if side.is_throttled() {
                // It is read as soon as its meter says so.
                parts.tunnels.throttle(id, parts.time.now());
            }
            parts.records.enter(id, BalanceRecord::Tunnel(side));
            parts.tunnels.put_queued(id, queued.map(Box::new));
        }
        // Only silence ends it. When that will be, the next sweep finds out.
        parts.records.set_deadline(client, now);
        parts.records.set_deadline(upstream, EighthTick::NEVER);
        parts.meters.count(|it| {
            it.connections += 1;
            it.tunnels += 1;
        });
        driver.unpark(client, record_of_client);
        driver.unpark(upstream, record_of_upstream);
    }
}

/// Tags of fields.
mod field {
    pub(super) const TUNNEL: u16 = 1;
    pub(super) const CLIENT: u16 = 3;
    pub(super) const UPSTREAM: u16 = 5;
    /// The fields of each place.
    pub(super) const NAME: u16 = 1;
    pub(super) const KEY: u16 = 3;
}

impl<R: Carried> Carried for Moving<R> {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        let Self { tunnel, client, upstream } = self;
        let inner = tunnel.put(field::TUNNEL, Encoder::new(RECORD));
        let inner = client.put(field::CLIENT, inner);
        out.message(tag, upstream.put(field::UPSTREAM, inner))
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        let (mut tunnel, mut client, mut upstream) = (None, None, None);
        content.message()?.read(|tag, content| {
            match tag {
                field::TUNNEL => tunnel = Some(TunnelRecord::take(content)?),
                field::CLIENT => client = Some(R::take(content)?),
                field::UPSTREAM => upstream = Some(R::take(content)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self {
            tunnel: tunnel.ok_or(CarryError::Missing(field::TUNNEL))?,
            client: client.ok_or(CarryError::Missing(field::CLIENT))?,
            upstream: upstream.ok_or(CarryError::Missing(field::UPSTREAM))?,
        })
    }
}

/// Continues a tunnel whose client alone was parked for a moment, while calls for it did
/// nothing: both sides are read or not as their states say.
pub(super) fn repair<D: Driver>(
    driver: &mut D,
    parts: &mut BalanceParts,
    client: ConnId,
    upstream: ConnId,
) {
    for id in [client, upstream] {
        match parts.records.tunnel(id).map(|side| side.is_paused() || side.is_throttled()) {
            Some(true) => driver.pause(id),
            Some(false) => driver.resume(id),
            // It was closed in the meantime.
            None => driver.abort(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use throng_io::SocketRecord;
    use throng_proto::ws::{Boundary, Opcode, encode};

    use super::*;
    use crate::access::Subject;
    use crate::shard::records::LogEntry;

    /// A framed tunnel in the middle of a frame of its backend, with bytes queued for its client.
    fn moving() -> Moving<SocketRecord> {
        let [client, upstream] = [ConnId::new(1, 2, 3), ConnId::new(1, 4, 5)];
        let http = Default::default();
        let side = |peer| {
            let (boundary, sides) = (Some(Boundary::new()), (&http, &http));
            Tunnel::new(peer, boundary, None, EighthTick(8), sides)
        };
        let mut late = side(client);
        let mut frame = Vec::new();
        encode(Opcode::Text, b"hello", &mut frame);
        late.boundary().advance(&frame[..3]);
        let mut queued = Batch::default();
        queued.append(|out| out.extend_from_slice(&frame[..3]));
        let entry = LogEntry::new(Subject::default(), Instant(7), true).freeze(Instant(9));
        let tunnel = TunnelRecord {
            client: client.to_bits(),
            upstream: upstream.to_bits(),
            backend: "127.0.0.1:9000".parse().unwrap(),
            pool: Some("chat".to_owned()),
            frozen_at: 1_000,
            counted: Some(7),
            of_client: side(upstream).freeze(EighthTick(16)).0,
            of_upstream: late.freeze(EighthTick(16)).0,
            to_client: Some(queued),
            to_upstream: None,
            entry: Some(entry),
            class: Some("shop\n/ws".to_owned()),
            places: Some(MovedPlaces(vec![("dial".to_owned(), 7), ("user".to_owned(), u64::MAX)])),
            listener: Some("edge".to_owned()),
            metered_messages: Some(7),
            metered_bytes: Some(8),
        };
        let mut unsent = Batch::default();
        unsent.append(|out| out.extend_from_slice(b"unsent"));
        let client =
            SocketRecord { unsent: Some(Box::new(unsent)), is_paused: false, is_counted: true };
        Moving { tunnel, client, upstream: SocketRecord { is_paused: true, ..Default::default() } }
    }

    fn bytes(batch: Option<&Batch>) -> Option<Vec<u8>> {
        batch.map(|batch| {
            let mut out = Vec::new();
            batch.copy_to(&[], &mut out);
            out
        })
    }

    #[test]
    fn a_tunnel_comes_back_with_both_connections_and_all_bytes() {
        let before = moving();
        let frozen = throng_carry::freeze(&before);
        let after: Moving<SocketRecord> = throng_carry::thaw(&frozen).unwrap();
        assert_eq!((after.backend(), after.pool()), (before.backend(), Some("chat")));
        assert_eq!(after.listener(), Some("edge"));
        assert_eq!(after.tunnel.of_client, before.tunnel.of_client);
        assert_eq!(after.tunnel.of_upstream, before.tunnel.of_upstream);
        assert_eq!(after.tunnel.places, before.tunnel.places);
        assert_eq!(bytes(after.tunnel.to_client.as_ref()), Some(vec![0x81, 5, b'h']));
        assert_eq!(after.tunnel.to_upstream.as_ref().map(Batch::len), None);
        assert_eq!(bytes(after.client.unsent.as_deref()), Some(b"unsent".to_vec()));
        assert!(after.upstream.unsent.is_none() && after.upstream.is_paused);
        // What the successor would write is the same: nothing was left out.
        assert_eq!(throng_carry::freeze(&after), frozen);
    }

    proptest! {
        #[test]
        fn a_cut_record_is_refused(at in any::<prop::sample::Index>()) {
            let frozen = throng_carry::freeze(&moving());
            let cut = &frozen[..at.index(frozen.len())];
            prop_assert!(throng_carry::thaw::<Moving<SocketRecord>>(cut).is_err());
        }

        #[test]
        fn no_changed_byte_makes_it_panic(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut frozen = throng_carry::freeze(&moving());
            let at = at.index(frozen.len());
            frozen[at] = to;
            let _ = throng_carry::thaw::<Moving<SocketRecord>>(&frozen);
        }
    }
}
