//! The secured connections of a driver.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use throng_carry::{Carried, CarryError, Content, Encoder};
use throng_io::memory::MAP_FROM;
use throng_io::{ConnId, SessionFailure};

use super::busy::Busy;
use super::queue::Address;
use crate::client::TlsClient;
use crate::handshake::{Handshake, Secrets};
use crate::server::TlsServer;
use crate::session::Session;

/// The stage of a secured connection.
pub(super) enum SecureStage {
    /// No handshake has begun: the ClientHello is not complete or waits for its turn, or our
    /// connection is not established yet.
    Begin(HandshakePeer),
    /// The handshake has begun. It is in [`Table::handshakes`], except its secrets, which take the
    /// place of the session's keys.
    Handshake(HandshakePeer, Secrets),
    /// The handshake is complete.
    Established(Session),
    /// Nothing more is opened or sealed; holds the session's failure, if that is the reason.
    Ended(Option<SessionFailure>),
}

/// The client of a connection's handshake.
pub(super) struct HandshakePeer {
    /// The address that the handshake counts for.
    pub(super) address: Address,
    /// Whether to count the outcome: the client has sent something.
    pub(super) is_counted: bool,
}

impl SecureStage {
    /// Returns the client of the handshake, until it is complete.
    pub(super) fn handshake_peer(&self) -> Option<&HandshakePeer> {
        match self {
            Self::Begin(peer) | Self::Handshake(peer, _) => Some(peer),
            Self::Established(_) | Self::Ended(_) => None,
        }
    }

    fn handshake_peer_mut(&mut self) -> Option<&mut HandshakePeer> {
        match self {
            Self::Begin(peer) | Self::Handshake(peer, _) => Some(peer),
            Self::Established(_) | Self::Ended(_) => None,
        }
    }
}

/// Bits of [`SecuredConn::flags`].
pub(super) mod flag {
    /// Reading is paused.
    pub(crate) const PAUSED: u8 = 1;
    /// The peer's stream has ended; later input is not delivered.
    pub(crate) const FINISHED: u8 = 1 << 1;
    /// The peer did not confirm that its stream was complete.
    pub(crate) const TRUNCATED: u8 = 1 << 2;
    /// The engine has closed the connection.
    pub(crate) const CLOSING: u8 = 1 << 3;
    /// close_notify was sent, or can no longer be sent.
    pub(crate) const CLOSE_SENT: u8 = 1 << 4;
    /// There is an entry in [`Table::busy`].
    pub(crate) const BUSY: u8 = 1 << 5;
    /// The connection is in the queue of handshakes. While one is under way, reading is paused
    /// below.
    pub(crate) const QUEUED: u8 = 1 << 6;
    /// We started the connection, and it was not reported as connected yet.
    pub(crate) const CONNECTING: u8 = 1 << 7;

    /// Input is dropped.
    pub(crate) const NO_INPUT_MASK: u8 = FINISHED | CLOSING;

    /// A handshake does not begin or go on.
    pub(crate) const NO_HANDSHAKE_MASK: u8 = NO_INPUT_MASK | CLOSE_SENT;

    /// Flags of a parked connection that move with it.
    pub(crate) const MOVED: u8 = PAUSED;
    /// Flags that follow from the rest of its state.
    pub(crate) const REBUILT: u8 = BUSY;
    /// Flags that keep a connection from being parked or released.
    pub(crate) const WAITS: u8 = FINISHED | TRUNCATED | CLOSING | CLOSE_SENT | QUEUED | CONNECTING;

    // Each flag is of one kind.
    const _: () = assert!(MOVED ^ REBUILT ^ WAITS == u8::MAX);
    const _: () = assert!((MOVED | REBUILT) & WAITS == 0 && MOVED & REBUILT == 0);
}

/// A secured connection. All fields are bytes, so that none is lost to alignment.
pub(super) struct SecuredConn {
    generation: [u8; 4],
    /// The TLS configuration: the server's, or until the session is established, the client's.
    endpoint: EndpointId,
    pub(super) stage: SecureStage,
    pub(super) flags: u8,
}

impl SecuredConn {
    #[inline]
    fn is(&self, id: ConnId) -> bool {
        self.generation == id.generation().to_ne_bytes()
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// An established connection that moves to another driver.
pub(super) struct Established {
    stage: SecureStage,
    endpoint: Option<Endpoint>,
    /// The flags of [`flag::MOVED`].
    flags: u8,
    /// Its input and output that are not complete.
    busy: Option<Box<Busy>>,
}

throng_carry::carried! {
    Established {
        required { 1 stage, 3 flags }
        optional { }
        if_any { 5 busy }
        // Only counters need it from now on; the listener of the new process has its own.
        rebuilt { endpoint = None }
        check |it| it.flags & !flag::MOVED == 0
    }
}

/// Only an established session moves, so it is written without its stage.
impl Carried for SecureStage {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        match self {
            Self::Established(session) => Carried::put(session, tag, out),
            Self::Begin(_) | Self::Handshake(..) | Self::Ended(_) => {
                debug_assert!(false, "only an established session is parked");
                out
            }
        }
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        <Session as Carried>::take(content).map(Self::Established)
    }
}

impl Established {
    /// Resumes reading: a driver reads a connection that it adopts.
    pub(super) fn resume(&mut self) {
        self.flags &= !flag::PAUSED;
    }
}

impl fmt::Debug for Established {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Established")
    }
}

/// One side of handshakes: its configuration.
#[derive(Clone)]
pub(super) enum Endpoint {
    Server(Arc<TlsServer>),
    Client(Arc<TlsClient>),
}

impl Endpoint {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Server(one), Self::Server(other)) => Arc::ptr_eq(one, other),
            (Self::Client(one), Self::Client(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// The place of an [`Endpoint`] among [`Endpoints`].
struct EndpointId([u8; 2]);

impl EndpointId {
    const NONE: Self = Self([0xff; 2]);
}

/// The endpoints of connections: few, and so not in each of them.
#[derive(Default)]
struct Endpoints {
    /// Each with the number of connections that refer to it.
    all: Vec<(Endpoint, usize)>,
}

impl Endpoints {
    fn add(&mut self, endpoint: Endpoint) -> EndpointId {
        let known = self.all.iter().position(|(known, _)| known.is(&endpoint));
        let at = known.or_else(|| self.all.iter().position(|(_, uses)| *uses == 0));
        let at = match at {
            Some(at) => {
                self.all[at] = (endpoint, self.all[at].1 + 1);
                at
            }
            None => {
                self.all.push((endpoint, 1));
                self.all.len() - 1
            }
        };
        EndpointId((at as u16).to_ne_bytes())
    }

    fn get(&self, EndpointId(at): &EndpointId) -> Option<&Endpoint> {
        self.all.get(usize::from(u16::from_ne_bytes(*at))).map(|(endpoint, _)| endpoint)
    }

    fn release(&mut self, EndpointId(at): &EndpointId) {
        if let Some((_, uses)) = self.all.get_mut(usize::from(u16::from_ne_bytes(*at))) {
            *uses = uses.saturating_sub(1);
        }
    }
}

/// An entry of the table.
#[allow(clippy::large_enum_variant, reason = "most entries are used")]
enum SealSlot {
    Used(SecuredConn),
    /// A free entry: one more than the index of the next; 0: it is the last.
    Free([u8; 4]),
}

/// Connections in chunks that never move: moved keys would leave copies in freed memory, and
/// copying a large table would stop its shard for that time.
#[derive(Default)]
struct Chunks {
    /// Each has a capacity that is never exceeded.
    chunks: Vec<Vec<SealSlot>>,
    /// Entries that were ever used.
    len: usize,
    connections: usize,
    /// One more than the index of the first free entry; 0: there is none.
    free: u32,
}

/// Connections of a chunk: 420 KB, where only pages that were ever used are resident.
const CHUNK: usize = 2048;

// A chunk must be a separate mapping of the allocator: between chunks in its heap, the freed memory
// of handshakes would never return to the system.
const _: () = assert!(CHUNK * size_of::<SealSlot>() >= MAP_FROM);

impl Chunks {
    /// Adds a connection; returns its index.
    fn add(&mut self, conn: SecuredConn) -> u32 {
        let index = self.free.checked_sub(1).unwrap_or_else(|| self.grow());
        let entry = self.entry(index);
        if let SealSlot::Free(next) = std::mem::replace(entry, SealSlot::Used(conn)) {
            self.free = u32::from_ne_bytes(next);
        }
        self.connections += 1;
        index
    }

    fn grow(&mut self) -> u32 {
        if self.len == self.chunks.len() * CHUNK {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(SealSlot::Free([0; 4]));
        }
        self.len += 1;
        (self.len - 1) as u32
    }

    fn remove(&mut self, index: u32) {
        let next = self.free.to_ne_bytes();
        let entry = self.entry(index);
        if let SealSlot::Used(_) = entry {
            *entry = SealSlot::Free(next);
            (self.free, self.connections) = (index + 1, self.connections - 1);
        }
    }

    fn entry(&mut self, index: u32) -> &mut SealSlot {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    fn at(&self, index: u32) -> Option<&SecuredConn> {
        match &self.chunks[index as usize / CHUNK][index as usize % CHUNK] {
            SealSlot::Used(conn) => Some(conn),
            SealSlot::Free(_) => None,
        }
    }

    #[inline(always)]
    fn at_mut(&mut self, index: u32) -> Option<&mut SecuredConn> {
        match self.entry(index) {
            SealSlot::Used(conn) => Some(conn),
            SealSlot::Free(_) => None,
        }
    }
}

/// Entries for which an empty map keeps its memory.
const FEW: usize = 256;

/// Removes an entry of a map, and releases most of its memory with the last entries of a storm.
fn remove_from<T>(map: &mut HashMap<u32, T>, key: u32) {
    map.remove(&key);
    if map.capacity() > FEW.max(8 * map.len()) {
        map.shrink_to(2 * map.len());
    }
}

/// Secured connections by slot.
#[derive(Default)]
pub(super) struct Table {
    /// One more than the index into `conns`; 0: not secured.
    of_slot: Vec<u32>,
    conns: Chunks,
    /// The shard of all these connections.
    shard: usize,
    busy: HashMap<u32, Box<Busy>>,
    endpoints: Endpoints,
    /// Handshakes of the connections in [`SecureStage::Handshake`], by slot.
    handshakes: HashMap<u32, Box<Handshake>>,
}

impl Table {
    /// Returns whether the slot's connection is secured.
    #[inline(always)]
    pub(super) fn is_secured(&self, id: ConnId) -> bool {
        self.of_slot.get(id.slot()).is_some_and(|index| *index != 0)
    }

    /// Returns the number of secured connections.
    pub(super) fn connections(&self) -> usize {
        self.conns.connections
    }

    /// Adds a connection whose handshake has not begun.
    pub(super) fn insert(&mut self, id: ConnId, endpoint: Endpoint, address: Address, flags: u8) {
        let peer = HandshakePeer { address, is_counted: false };
        self.add(id, Some(endpoint), SecureStage::Begin(peer), flags);
    }

    fn add(&mut self, id: ConnId, endpoint: Option<Endpoint>, stage: SecureStage, flags: u8) {
        let endpoint = endpoint.map_or(EndpointId::NONE, |endpoint| self.endpoints.add(endpoint));
        let generation = id.generation().to_ne_bytes();
        self.shard = id.shard();
        let index = self.conns.add(SecuredConn { generation, endpoint, stage, flags });
        if self.of_slot.len() <= id.slot() {
            self.of_slot.resize(id.slot() + 1, 0);
        }
        self.of_slot[id.slot()] = index + 1;
    }

    /// Returns whether the connection is established, and has nothing in progress except input.
    pub(super) fn is_at_rest(&self, id: ConnId) -> bool {
        self.is_open(id) && self.busy_ref(id).is_none_or(Busy::is_at_rest)
    }

    /// Returns whether the connection is established, and neither side has ended it.
    pub(super) fn may_move(&self, id: ConnId) -> bool {
        self.is_open(id) && self.busy_ref(id).is_none_or(Busy::may_move)
    }

    fn is_open(&self, id: ConnId) -> bool {
        self.conn_ref(id).is_some_and(|conn| match conn.stage {
            SecureStage::Established(_) => conn.flags & flag::WAITS == 0,
            SecureStage::Begin(_) | SecureStage::Handshake(..) | SecureStage::Ended(_) => false,
        })
    }

    /// Removes a connection that [may move](Self::may_move), and returns its session.
    pub(super) fn take_established(&mut self, id: ConnId) -> Option<Box<Established>> {
        let index = self.index(id)?;
        let mut taken = Box::new(Established {
            stage: SecureStage::Established(Session::blank()),
            endpoint: self.endpoint(id).cloned(),
            flags: 0,
            busy: self.busy.remove(&index),
        });
        // A move would leave the keys behind in this place.
        let SecuredConn { generation: _, endpoint: _, stage, flags } = self.conns.at_mut(index)?;
        std::mem::swap(stage, &mut taken.stage);
        taken.flags = *flags & flag::MOVED;
        self.remove(id);
        Some(taken)
    }

    /// Adds a connection that another driver has released or parked. Returns how much input it
    /// brings.
    pub(super) fn insert_established(&mut self, id: ConnId, mut from: Box<Established>) -> usize {
        let Established { stage, endpoint, flags, busy } = &mut *from;
        self.add(id, endpoint.take(), SecureStage::Established(Session::blank()), *flags);
        if let Some(conn) = self.conn(id) {
            std::mem::swap(&mut conn.stage, stage);
        }
        let Some(mut busy) = busy.take() else { return 0 };
        let len = busy.input.len();
        busy.id = id;
        if let (Some(index), Some(conn)) = (self.index(id), self.conn(id)) {
            conn.flags |= flag::BUSY;
            self.busy.insert(index, busy);
        }
        len
    }

    /// Removes the connection with that id, if it is secured.
    pub(super) fn remove(&mut self, id: ConnId) {
        let Some(index) = self.index(id) else { return };
        self.set_stage(id, SecureStage::Ended(None));
        if let Some(conn) = self.conns.at(index) {
            self.endpoints.release(&conn.endpoint);
        }
        self.conns.remove(index);
        remove_from(&mut self.busy, index);
        self.of_slot[id.slot()] = 0;
    }

    /// Returns the endpoint of a connection, unless we started it and it is established.
    pub(super) fn endpoint(&self, id: ConnId) -> Option<&Endpoint> {
        self.endpoints.get(&self.conn_ref(id)?.endpoint)
    }

    /// Returns the server that accepted this connection.
    pub(super) fn server(&self, id: ConnId) -> Option<&TlsServer> {
        match self.endpoint(id)? {
            Endpoint::Server(server) => Some(server),
            Endpoint::Client(_) => None,
        }
    }

    /// Counts the outcome of a handshake, once: returns the server and the client's address if it
    /// was not counted yet.
    pub(super) fn count(&mut self, id: ConnId) -> Option<(Arc<TlsServer>, Address)> {
        let peer = self.conn(id)?.stage.handshake_peer_mut()?;
        if !std::mem::take(&mut peer.is_counted) {
            return None;
        }
        let address = peer.address;
        match self.endpoint(id)? {
            Endpoint::Server(server) => Some((Arc::clone(server), address)),
            Endpoint::Client(_) => None,
        }
    }

    /// Marks the outcome of a connection's handshake as not counted yet.
    pub(super) fn count_later(&mut self, id: ConnId) {
        if let Some(peer) = self.conn(id).and_then(|conn| conn.stage.handshake_peer_mut()) {
            peer.is_counted = true;
        }
    }

    /// Begins the handshake of a connection.
    pub(super) fn begin_handshake(&mut self, id: ConnId, handshake: Handshake) {
        // Not for a session: its keys would stay behind.
        let is_first = |conn: &&mut SecuredConn| matches!(conn.stage, SecureStage::Begin(_));
        let Some(conn) = self.conn(id).filter(is_first) else { return };
        if let SecureStage::Begin(peer) =
            std::mem::replace(&mut conn.stage, SecureStage::Ended(None))
        {
            conn.stage = SecureStage::Handshake(peer, Secrets::default());
            self.handshakes.insert(id.slot() as u32, Box::new(handshake));
        }
    }

    /// Returns the handshake under way of a connection, with its secrets.
    pub(super) fn handshake(&mut self, id: ConnId) -> Option<(&mut Secrets, &mut Handshake)> {
        let index = self.index(id)?;
        let SecureStage::Handshake(_, secrets) = &mut self.conns.at_mut(index)?.stage else {
            return None;
        };
        Some((secrets, self.handshakes.get_mut(&(id.slot() as u32))?))
    }

    /// Returns the connections that hold input or a handshake under way.
    pub(super) fn holders(&self) -> impl Iterator<Item = ConnId> {
        let busy = self.busy.values().filter(|busy| busy.input_memory() > 0).map(|busy| busy.id);
        let id = |slot: &u32| {
            let conn = self.conns.at(self.of_slot[*slot as usize].checked_sub(1)?)?;
            Some(ConnId::new(self.shard as u16, *slot, u32::from_ne_bytes(conn.generation)))
        };
        busy.chain(self.handshakes.keys().filter_map(id))
    }

    /// Returns the memory of pending output, of all connections.
    pub(super) fn held_output(&self) -> usize {
        self.busy.values().map(|busy| busy.output_memory()).sum()
    }

    /// Returns the memory of a connection's handshake, and of its input that is incomplete or not
    /// handled yet.
    pub(super) fn input_memory(&self, id: ConnId) -> usize {
        let Some(conn) = self.conn_ref(id) else { return 0 };
        let handshake = match conn.stage {
            SecureStage::Handshake(..) => self.handshakes.get(&(id.slot() as u32)),
            _ => None,
        };
        let handshake = handshake.map_or(0, |handshake| handshake.memory());
        handshake + self.busy_ref(id).map_or(0, Busy::input_memory)
    }

    /// Returns whether the connection waits for its handshake to begin.
    pub(super) fn is_waiting(&self, id: ConnId) -> bool {
        self.conn_ref(id).is_some_and(|conn| {
            !conn.has(flag::NO_HANDSHAKE_MASK) && matches!(conn.stage, SecureStage::Begin(_))
        })
    }

    /// Returns whether the connection's handshake is not complete.
    pub(super) fn is_handshaking(&self, id: ConnId) -> bool {
        let stage = self.conn_ref(id).map(|conn| &conn.stage);
        matches!(stage, Some(SecureStage::Begin(_) | SecureStage::Handshake(..)))
    }

    /// Sets the stage of a connection. The keys of the previous stage are wiped in place.
    pub(super) fn set_stage(&mut self, id: ConnId, stage: SecureStage) {
        let Some(index) = self.index(id) else { return };
        let Some(conn) = self.conns.at_mut(index) else { return };
        // Releases the client's configuration, which may have been replaced.
        if let SecureStage::Established(_) = stage
            && let Some(Endpoint::Client(_)) = self.endpoints.get(&conn.endpoint)
        {
            self.endpoints.release(&std::mem::replace(&mut conn.endpoint, EndpointId::NONE));
        }
        if let SecureStage::Handshake(..) = conn.stage {
            remove_from(&mut self.handshakes, id.slot() as u32);
        }
        // A move would leave the keys behind in this place.
        conn.stage = stage;
    }

    /// Returns why the connection's session has ended, if it failed.
    pub(super) fn failure(&self, id: ConnId) -> Option<SessionFailure> {
        match self.conn_ref(id)?.stage {
            SecureStage::Ended(why) => why,
            _ => None,
        }
    }

    /// Returns the number of handshakes under way.
    pub(super) fn handshakes(&self) -> usize {
        self.handshakes.len()
    }

    fn index(&self, id: ConnId) -> Option<u32> {
        let index = self.of_slot.get(id.slot())?.checked_sub(1)?;
        (self.conns.at(index)?.is(id) && id.shard() == self.shard).then_some(index)
    }

    /// Returns the secured connection with that id.
    #[inline]
    pub(super) fn conn(&mut self, id: ConnId) -> Option<&mut SecuredConn> {
        let index = self.of_slot.get(id.slot())?.checked_sub(1)?;
        let shard = self.shard;
        self.conns.at_mut(index).filter(|conn| conn.is(id) && id.shard() == shard)
    }

    /// Returns the secured connection with that id, read-only.
    pub(super) fn conn_ref(&self, id: ConnId) -> Option<&SecuredConn> {
        self.conns.at(self.index(id)?)
    }

    /// Returns the connection, and its state if it is busy.
    pub(super) fn conn_and_busy(
        &mut self,
        id: ConnId,
    ) -> Option<(&mut SecuredConn, Option<&mut Busy>)> {
        let index = self.index(id)?;
        let conn = self.conns.at_mut(index)?;
        let busy = match conn.has(flag::BUSY) {
            true => self.busy.get_mut(&index).map(Box::as_mut),
            false => None,
        };
        Some((conn, busy))
    }

    /// Returns the connection and its state, which is created if there is none.
    pub(super) fn make_busy(&mut self, id: ConnId) -> Option<(&mut SecuredConn, &mut Busy)> {
        let index = self.index(id)?;
        let conn = self.conns.at_mut(index)?;
        conn.flags |= flag::BUSY;
        let busy = self.busy.entry(index).or_insert_with(|| Box::new(Busy::new(id)));
        Some((conn, busy))
    }

    /// Takes up to `most` bytes of a connection's kept input.
    pub(super) fn take_input(&mut self, id: ConnId, most: usize) -> Vec<u8> {
        let Some((_, Some(busy))) = self.conn_and_busy(id) else { return Vec::new() };
        let mut taken = std::mem::take(&mut busy.input);
        busy.input = taken.split_off(taken.len().min(most));
        taken
    }

    /// Returns the connection's state, if it is busy.
    pub(super) fn busy_ref(&self, id: ConnId) -> Option<&Busy> {
        self.busy.get(&self.index(id)?).map(Box::as_ref)
    }

    /// Releases the state if it is empty.
    pub(super) fn settle(&mut self, id: ConnId) {
        if let Some((conn, Some(busy))) = self.conn_and_busy(id)
            && busy.is_idle()
        {
            conn.flags &= !flag::BUSY;
            if let Some(index) = self.index(id) {
                remove_from(&mut self.busy, index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::WIPED;

    #[test]
    fn an_idle_secured_connection_takes_211_bytes() {
        assert!(size_of::<SealSlot>() + size_of::<u32>() <= 211, "{}", size_of::<SealSlot>());
    }

    fn endpoint() -> Endpoint {
        Endpoint::Server(crate::server::tests::any())
    }

    #[test]
    fn endpoints_without_connections_make_place_for_others() {
        let (mut table, mut all) = (Table::default(), Vec::new());
        for round in 0..10 {
            let (one, other) = (endpoint(), endpoint());
            for slot in 0..6 {
                let endpoint = if slot % 2 == 0 { &one } else { &other };
                table.insert(ConnId::new(0, slot, round), endpoint.clone(), Address::OWN, 0);
            }
            for slot in 0..6 {
                let id = ConnId::new(0, slot, round);
                let expected = if slot % 2 == 0 { &one } else { &other };
                assert!(table.endpoint(id).unwrap().is(expected));
                if slot < 3 {
                    table.set_stage(id, SecureStage::Ended(None));
                }
                table.remove(id);
            }
            all.extend([one, other]);
        }
        assert_eq!(table.endpoints.all.len(), 2);
    }

    #[test]
    fn keys_are_wiped_where_they_are_when_a_session_ends() {
        let suite = crate::cipher::Suite::Aes128Gcm;
        for is_removed in [false, true] {
            let (mut table, id) = (Table::default(), ConnId::new(0, 0, 1));
            table.insert(id, endpoint(), Address::OWN, 0);
            let session = Session::from_secrets(suite, &[1; 32], &[2; 32]).unwrap();
            table.set_stage(id, SecureStage::Established(session));
            let start = std::ptr::from_ref(table.conn_ref(id).unwrap()).addr();
            WIPED.take();
            match is_removed {
                true => table.remove(id),
                false => table.set_stage(id, SecureStage::Ended(None)),
            }
            let wiped = WIPED.take();
            let is_within = |at: &usize| (start..start + size_of::<SecuredConn>()).contains(at);
            assert_eq!(wiped.iter().filter(|at| is_within(at)).count(), 2, "send and receive");
        }
    }

    #[test]
    fn a_session_leaves_no_keys_behind_when_it_moves_to_another_table() {
        let suite = crate::cipher::Suite::Aes128Gcm;
        let (mut from, mut to) = (Table::default(), Table::default());
        let (old, new) = (ConnId::new(0, 3, 1), ConnId::new(1, 5, 2));
        from.insert(old, endpoint(), Address::OWN, 0);
        assert!(!from.is_at_rest(old), "its handshake has not begun");
        let session = Session::from_secrets(suite, &[1; 32], &[2; 32]).unwrap();
        from.set_stage(old, SecureStage::Established(session));
        from.make_busy(old).unwrap().1.input = b"start of a record".to_vec();
        assert!(from.is_at_rest(old));
        let start = std::ptr::from_ref(from.conn_ref(old).unwrap()).addr();
        WIPED.take();
        let taken = from.take_established(old).unwrap();
        let is_within = |at: &usize| (start..start + size_of::<SecuredConn>()).contains(at);
        assert_eq!(WIPED.take().iter().filter(|at| is_within(at)).count(), 2);
        assert_eq!((from.connections(), from.busy.len()), (0, 0));
        assert_eq!(to.insert_established(new, taken), 17);
        assert_eq!(WIPED.take().len(), 2, "the box's place");
        assert!(to.is_at_rest(new));
        let SecureStage::Established(session) = &to.conn(new).unwrap().stage else { panic!() };
        assert!(session.sends_with_keys_of(suite, &[1; 32]));
        assert_eq!(to.busy_ref(new).unwrap().input, b"start of a record");
    }

    #[test]
    fn the_map_of_a_storm_is_given_back() {
        let mut table = Table::default();
        let id = |slot| ConnId::new(0, slot, 1);
        let endpoint = endpoint();
        for slot in 0..5000 {
            table.insert(id(slot), endpoint.clone(), Address::OWN, 0);
            table.make_busy(id(slot)).unwrap().1.finish = true;
        }
        for slot in 0..5000 {
            table.make_busy(id(slot)).unwrap().1.finish = false;
            table.settle(id(slot));
        }
        assert!(table.busy.capacity() <= FEW, "{}", table.busy.capacity());
    }

    #[test]
    fn entries_stay_where_they_are_while_the_table_grows() {
        let mut table = Table::default();
        let id = |slot| ConnId::new(0, slot, 1);
        let endpoint = endpoint();
        table.insert(id(0), endpoint.clone(), Address::OWN, 0);
        let first = std::ptr::from_ref(table.conn_ref(id(0)).unwrap());
        for slot in 1..5000 {
            table.insert(id(slot), endpoint.clone(), Address::OWN, 0);
        }
        assert_eq!(first, std::ptr::from_ref(table.conn_ref(id(0)).unwrap()));
        for slot in (0..5000).rev() {
            assert!(table.conn(id(slot)).is_some());
            table.remove(id(slot));
        }
        assert_eq!((table.connections(), table.conns.len), (0, 5000));
    }

    #[test]
    fn an_id_of_an_earlier_connection_finds_nothing() {
        let mut table = Table::default();
        let (first, second) = (ConnId::new(0, 7, 1), ConnId::new(0, 7, 2));
        table.insert(first, endpoint(), Address::OWN, 0);
        assert!(table.is_secured(first) && table.conn(first).is_some());
        assert!(table.conn(ConnId::new(1, 7, 1)).is_none(), "of another shard");
        assert!(table.conn(second).is_none());
        table.remove(second);
        assert_eq!(table.connections(), 1);
        table.remove(first);
        assert_eq!(table.connections(), 0);
        assert!(!table.is_secured(first));
        table.insert(second, endpoint(), Address::OWN, 0);
        assert!(table.conn(first).is_none() && table.conn(second).is_some());
    }
}
