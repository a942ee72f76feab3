//! The gate for clients: their limits, and which clients make room or are refused.

mod admission;
mod hellos;
mod places;

use std::net::IpAddr;
use std::sync::Arc;

use throng_engine::{AddressKey, KeyBySlot};
use throng_io::{ConnId, Instant, ListenerId, ServerTls};

pub use self::admission::Admission;
pub(super) use self::admission::Full;
pub(super) use self::places::Evicted;
use self::places::Places;
use super::placing::Loads;
use super::records::{BalanceRecords, ClientRecord, EighthTick};
use super::rules::BalanceRules;
use super::time::Time;
use crate::listener::{ListenerBySlot, Listeners};
use crate::unix_peer::known;

/// Admits clients: their number, their slots, and each listener's requirements.
pub(super) struct ClientGate {
    admission: Arc<Admission>,
    counted: KeyBySlot,
    /// The clients that make room for others.
    places: Places,
    /// Maximum client connections of all shards by their descriptors.
    descriptors_for: usize,
    accept_stopped: bool,
    /// TLS of clients, by listener.
    tls: Vec<Option<ServerTls>>,
    listeners: Listeners,
    /// The clients that count at their listener.
    of_listeners: ListenerBySlot,
    /// Where one shard accepts for all.
    loads: Option<Loads>,
}

impl ClientGate {
    pub(super) fn new(
        admission: Arc<Admission>,
        descriptors_for: usize,
        tls: Vec<Option<ServerTls>>,
        listeners: Listeners,
    ) -> Self {
        Self {
            admission,
            counted: KeyBySlot::default(),
            places: Places::default(),
            descriptors_for,
            accept_stopped: false,
            tls,
            listeners,
            of_listeners: ListenerBySlot::default(),
            loads: None,
        }
    }

    /// Returns the TLS of a listener's clients.
    pub(super) fn tls(&self, listener: ListenerId) -> Option<ServerTls> {
        self.tls.get(usize::from(listener.0)).cloned().flatten()
    }

    /// Counts this shard's clients in `loads` from now on.
    pub(super) fn count_by_shard(&mut self, loads: Loads) {
        self.loads = Some(loads);
    }

    /// Counts a client of this shard, for the shard that accepts for all.
    pub(super) fn enter_shard(&self) {
        self.loads.iter().for_each(Loads::enter);
    }

    /// Uncounts a client of this shard.
    pub(super) fn leave_shard(&self) {
        self.loads.iter().for_each(Loads::leave);
    }

    /// Records that the driver has stopped accepting.
    pub(super) fn stop_accepting(&mut self) {
        self.accept_stopped = true;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.accept_stopped
    }

    /// Returns whether the driver must accept again.
    pub(super) fn take_stopped(&mut self) -> bool {
        std::mem::take(&mut self.accept_stopped)
    }

    /// Returns `max_connections`, limited by the descriptors.
    fn most_connections(&self, rules: &BalanceRules) -> usize {
        match rules.settings().max_connections {
            0 => self.descriptors_for,
            asked => asked.min(self.descriptors_for),
        }
    }

    /// Returns the limit of connections from an address, if it has a limit. An address of a proxy
    /// has none.
    fn most_of_address(&self, rules: &BalanceRules, address: IpAddr) -> Option<usize> {
        match rules.settings().max_connections_per_address {
            Some(0) => None,
            // Clients on Unix sockets have no addresses.
            _ if known(address).is_none() => None,
            Some(most) => Some(most),
            // Clients of this machine, such as a proxy in front, are trusted.
            None if address.to_canonical().is_loopback() => None,
            None => Some((self.most_connections(rules) / 4).max(1)),
        }
    }

    /// Counts one more client, unless a limit is reached: of all, of its address, or of its
    /// listener.
    pub(super) fn enter(
        &self,
        rules: &BalanceRules,
        address: IpAddr,
        (is_proxy, listener): (bool, ListenerId),
    ) -> Result<Option<AddressKey>, Full> {
        if !self.listeners.enter(listener) {
            return Err(Full::Listener);
        }
        let of_address = if is_proxy { None } else { self.most_of_address(rules, address) };
        let entered = self.admission.enter(self.most_connections(rules), address, of_address);
        entered.inspect_err(|_| self.listeners.leave(listener))
    }

    /// Counts a client for the address that its PROXY header names, if that has a limit. Returns
    /// `None` if it has none.
    pub(super) fn enter_address(
        &self,
        rules: &BalanceRules,
        address: IpAddr,
    ) -> Option<Result<Option<AddressKey>, Full>> {
        let most = self.most_of_address(rules, address)?;
        Some(self.admission.enter_address(address, most))
    }

    /// Uncounts a client that was not adopted, or has no count; also for its listener.
    pub(super) fn undo(&self, counted: Option<AddressKey>, listener: Option<ListenerId>) {
        self.admission.leave(counted);
        listener.inspect(|listener| self.listeners.leave(*listener));
    }

    /// Enters a counted client.
    pub(super) fn admit(
        &mut self,
        id: ConnId,
        counted: Option<AddressKey>,
        listener: ListenerId,
        now: Instant,
    ) {
        if self.listeners.counts(listener) {
            self.of_listeners.insert(id.slot(), listener);
        }
        self.counted.insert(id.slot(), counted);
        self.places.enter(id, counted, now);
    }

    /// Enters a client under its new address.
    pub(super) fn admit_address(&mut self, id: ConnId, counted: Option<AddressKey>, now: Instant) {
        self.counted.insert(id.slot(), counted);
        self.places.enter_address(id, counted, now);
    }

    /// Returns the key under which a client is counted for its address, if it is.
    pub(super) fn key(&self, id: ConnId) -> Option<AddressKey> {
        self.counted.get(id.slot())
    }

    /// Returns whether a connection whose ClientHello has these random bytes may be passed through:
    /// not if it comes in a circle.
    pub(super) fn may_pass(&self, random: &[u8; 32], now: EighthTick) -> bool {
        self.admission.may_pass(random, now)
    }

    /// Counts a client that comes from the predecessor, where it counted at the listener of this
    /// name. It never evicts another: it has a tunnel.
    pub(super) fn adopt(
        &mut self,
        id: ConnId,
        counted: Option<AddressKey>,
        listener: Option<&str>,
    ) {
        self.admission.adopt(counted);
        self.counted.insert(id.slot(), counted);
        if let Some(listener) = listener.and_then(|name| self.listeners.counted(name)) {
            self.listeners.adopt(listener);
            self.of_listeners.insert(id.slot(), listener);
        }
    }

    /// Returns the name of the listener where a client counts, if it does.
    pub(super) fn listener_name(&self, id: ConnId) -> Option<&str> {
        let rules = self.listeners.rules(self.of_listeners.get(id.slot())?)?;
        Some(&rules.name)
    }

    /// Takes the count of a client that must leave its place to another one.
    pub(super) fn take_count(&mut self, id: ConnId) -> Option<AddressKey> {
        self.counted.take(id.slot())
    }

    /// Gives a client beyond a limit a place of the reserve. Returns the client that must leave
    /// that place.
    pub(super) fn enter_reserve(&mut self, id: ConnId, full: Full) -> Option<ConnId> {
        self.places.enter_reserve(id, full)
    }

    /// Uncounts a client connection that has ended.
    pub(super) fn release(&mut self, id: ConnId) {
        if let Some(listener) = self.of_listeners.take(id.slot()) {
            self.listeners.leave(listener);
        }
        if !self.places.leave_reserve(id) {
            let counted = self.counted.take(id.slot());
            self.admission.leave(counted);
        }
    }

    /// Takes the client that must make room: of all, or of an address.
    pub(super) fn evict(
        &mut self,
        full: Full,
        address: IpAddr,
        records: &BalanceRecords,
        time: &Time,
    ) -> Option<Evicted> {
        self.places.evict(full, self.admission.key(address), records, time)
    }

    /// Returns the limit that a client is beyond.
    pub(super) fn beyond(&self, id: ConnId) -> Option<Full> {
        self.places.beyond(id)
    }

    /// Lists a client that is between two requests, or has had its last answer.
    pub(super) fn note_idle(&mut self, id: ConnId, client: &mut ClientRecord, now: EighthTick) {
        if self.places.beyond(id).is_none() {
            self.places.note_idle(id, client, self.counted.get(id.slot()), now);
        }
    }

    /// Lists a client that has ended its stream, and is not closed.
    pub(super) fn note_gone(&mut self, id: ConnId, now: EighthTick) {
        if self.places.beyond(id).is_none() {
            self.places.note_gone(id, self.counted.get(id.slot()), now);
        }
    }

    /// Removes clients from the lists that have left.
    pub(super) fn forget_left(&mut self, records: &BalanceRecords) {
        self.places.retain(records);
    }

    /// Returns whether a client of this shard could make room for any other.
    pub(super) fn could_make_room(&self, records: &BalanceRecords, now: EighthTick) -> bool {
        self.places.could_make_room(records, now)
    }

    /// Returns the most clients in any list of those that may make room.
    pub(super) fn listed(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of clients beyond the limits.
    pub(super) fn beyond_limits(&self) -> usize {
        self.places.beyond_limits()
    }

    /// Returns the number of addresses by which clients are counted, of all shards.
    pub(super) fn addresses(&self) -> usize {
        self.admission.addresses()
    }
}
