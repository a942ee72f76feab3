//! Admission of connections, and their distribution to shards. Shared by all shards, used once a
//! connection.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::conn::by_address::{AddressCounts, AddressKey};
use crate::drain::DrainPlan;
use crate::limits::{Limit, Limits};
use crate::message::Refusal;

/// The least default of [`Limits::max_pending_handshakes`]: a server of few connections must not
/// close one because the next has come.
const MIN_PENDING: usize = 16;

/// Slots of a shard for connections beyond the caps. These may send one request, so that health
/// checks are answered and other clients are refused with the reason.
pub(super) const RESERVE: usize = 32;

/// Counts and caps of one process.
#[derive(Debug)]
pub struct Admission {
    max_connections: usize,
    max_pending: AtomicUsize,
    max_per_address: AtomicUsize,
    /// Whether loopback addresses have no cap.
    exempts_loopback: AtomicBool,
    live: AtomicUsize,
    pending: AtomicUsize,
    draining: AtomicBool,
    /// Whether connections are refused since the drain began.
    closed: AtomicBool,
    handed_over: AtomicBool,
    /// Places of the reserve that are taken, where each connection has a thread; else each shard
    /// counts its own.
    reserved_threads: AtomicUsize,
    loads: Vec<AtomicUsize>,
    /// Connections by address. Only used for addresses that have a cap.
    by_address: AddressCounts,
    trusted_proxies: Option<TrustedProxies>,
}

/// Selects the addresses of trusted proxies: their connections have no cap by address, and with
/// [`ProxyProtocol`](crate::ProxyProtocol) they alone may connect.
#[derive(Clone)]
pub struct TrustedProxies(pub Arc<dyn Fn(Option<IpAddr>) -> bool + Send + Sync>);

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrustedProxies")
    }
}

impl Admission {
    /// Creates it for a process of `shards`; `max_connections` is the limit in force, determined by
    /// the caller where the setting is 0.
    #[must_use]
    pub fn new(limits: &Limits, max_connections: usize, shards: usize) -> Self {
        let max_connections = if max_connections == 0 { usize::MAX } else { max_connections };
        let admission = Self {
            max_connections,
            max_pending: AtomicUsize::default(),
            max_per_address: AtomicUsize::default(),
            exempts_loopback: AtomicBool::default(),
            live: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            reserved_threads: AtomicUsize::new(0),
            loads: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            by_address: AddressCounts::default(),
            trusted_proxies: None,
        };
        admission.configure(limits);
        admission
    }

    /// Sets all caps except the cap on all connections. Connections that began while their address
    /// had no cap are not counted later.
    pub(crate) fn configure(&self, limits: &Limits) {
        let part = |divisor: usize, least: usize| match self.max_connections {
            usize::MAX => usize::MAX,
            all => (all / divisor).max(least),
        };
        let per_address = limits.max_connections_per_address;
        let pending = limits.max_pending_handshakes.or_else(|| part(2, MIN_PENDING));
        self.max_pending.store(pending, Ordering::Relaxed);
        self.max_per_address.store(per_address.or_else(|| part(4, 1)), Ordering::Relaxed);
        self.exempts_loopback.store(per_address == Limit::Auto, Ordering::Relaxed);
    }

    /// Sets the addresses of trusted proxies.
    pub(crate) fn with_trusted_proxies(mut self, proxies: Option<TrustedProxies>) -> Self {
        self.trusted_proxies = proxies;
        self
    }

    /// Returns whether a peer is a trusted proxy, by its address; one on a Unix socket has none.
    pub(crate) fn is_trusted_proxy(&self, address: Option<IpAddr>) -> bool {
        let address = address.map(|address| address.to_canonical());
        let is_one = |proxies: &TrustedProxies| (proxies.0)(address);
        self.trusted_proxies.as_ref().is_some_and(is_one)
    }

    /// Returns the limit in force; `usize::MAX` if there is none.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Returns false once a drain was requested: the state of `/readyz`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed)
    }

    /// Returns whether sessions and event streams may begin: also during the delay of a drain, and
    /// while another process takes over, for the clients that this one has accepted.
    #[must_use]
    pub fn admits_sessions(&self) -> bool {
        !self.closed.load(Ordering::Relaxed) || self.handed_over.load(Ordering::Relaxed)
    }

    /// Turns readiness off, and for a drain with a delay nothing else yet.
    pub fn announce_drain(&self, plan: &DrainPlan) {
        match plan.is_delayed() {
            true => self.draining.store(true, Ordering::Relaxed),
            false => self.begin_drain(plan.hand_over),
        }
    }

    /// Turns readiness off. Connections are refused from then on. If another process takes over,
    /// they are admitted until the listeners are closed.
    pub fn begin_drain(&self, hand_over: bool) {
        self.handed_over.fetch_or(hand_over, Ordering::Relaxed);
        self.draining.store(true, Ordering::Relaxed);
        self.closed.fetch_or(!hand_over, Ordering::Relaxed);
    }

    /// Returns the key under which connections of `address` are counted; `None` if it has no cap.
    pub(crate) fn key(&self, address: Option<IpAddr>) -> Option<AddressKey> {
        let address = address?;
        if self.max_per_address.load(Ordering::Relaxed) == usize::MAX {
            return None;
        }
        let address = address.to_canonical();
        if self.exempts_loopback.load(Ordering::Relaxed) && address.is_loopback()
            || self.is_trusted_proxy(Some(address))
        {
            return None;
        }
        self.by_address.key(address)
    }

    /// Counts a connection in, as pending, and returns the key to count it out with, or the reason
    /// to refuse it. The cap of its address is checked first: a connection that is refused for that
    /// must not make others close.
    pub(crate) fn enter(&self, address: Option<IpAddr>) -> Result<Option<AddressKey>, Refusal> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Refusal::Draining);
        }
        let key = self.enter_address(address)?;
        let room_in = |count: &AtomicUsize, most: usize| {
            let room = |now: usize| (now < most).then_some(now + 1);
            count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
        };
        if !room_in(&self.live, self.max_connections) {
            self.by_address.leave(key);
            return Err(Refusal::Full);
        }
        if !room_in(&self.pending, self.max_pending.load(Ordering::Relaxed)) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            self.by_address.leave(key);
            return Err(Refusal::Full);
        }
        Ok(key)
    }

    /// Counts a connection in for its address alone, and returns the key to count it out with.
    pub(crate) fn enter_address(
        &self,
        address: Option<IpAddr>,
    ) -> Result<Option<AddressKey>, Refusal> {
        let key = self.key(address);
        match self.by_address.enter(key, self.max_per_address.load(Ordering::Relaxed)) {
            true => Ok(key),
            false => Err(Refusal::FullForAddress),
        }
    }

    /// Takes a place of the reserve for a connection with a thread. Returns false if `most` are
    /// taken.
    pub(crate) fn reserve_thread(&self, most: usize) -> bool {
        let one_more = |taken| (taken < most).then_some(taken + 1);
        let relaxed = Ordering::Relaxed;
        self.reserved_threads.fetch_update(relaxed, relaxed, one_more).is_ok()
    }

    /// Gives such a place back.
    pub(crate) fn unreserve_thread(&self) {
        self.reserved_threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a connection out for its address alone.
    pub(crate) fn leave_address(&self, key: Option<AddressKey>) {
        self.by_address.leave(key);
    }

    /// Counts a pending connection that has sent its first request, or is gone.
    pub(crate) fn complete_handshake(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a connection of `shard` out; `pending` if it has not sent its first request, `key`
    /// as [`Admission::enter`] returned it.
    pub(crate) fn leave(&self, shard: usize, pending: bool, key: Option<AddressKey>) {
        self.load(shard).fetch_sub(1, Ordering::Relaxed);
        if pending {
            self.complete_handshake();
        }
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.by_address.leave(key);
    }

    /// Returns the number of addresses that are counted, for audits.
    pub(crate) fn addresses(&self) -> usize {
        self.by_address.len()
    }

    /// Returns the connections of `shard` at this moment; with a thread for each connection, all.
    #[must_use]
    pub fn connections_of(&self, shard: usize) -> usize {
        self.load(shard).load(Ordering::Relaxed)
    }

    /// Returns connections, pending handshakes, and connections of `shard`.
    pub(crate) fn counts(&self, shard: usize) -> (usize, usize, usize) {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        (load(&self.live), load(&self.pending), load(self.load(shard)))
    }

    /// With a thread for each connection, all connections are counted together.
    fn load(&self, shard: usize) -> &AtomicUsize {
        self.loads.get(shard).unwrap_or(&self.loads[0])
    }

    /// Chooses the shard of a connection that shard `me` accepted, and counts it there.
    pub(crate) fn place(&self, me: usize) -> usize {
        let shard = if self.loads.len() == 1 {
            me
        } else {
            least_loaded_if_over(self.loads.iter().map(|load| load.load(Ordering::Relaxed)), me)
        };
        self.loads[shard].fetch_add(1, Ordering::Relaxed);
        shard
    }

    /// Counts a connection at shard `me`, which accepted it and cannot hand it over; returns `me`.
    pub(crate) fn keep_here(&self, me: usize) -> usize {
        self.load(me).fetch_add(1, Ordering::Relaxed);
        me
    }

    /// Moves the count of a connection to shard `me`: it was placed at another, which could not
    /// take it.
    pub(crate) fn keep(&self, me: usize, other: usize) {
        self.loads[other].fetch_sub(1, Ordering::Relaxed);
        self.loads[me].fetch_add(1, Ordering::Relaxed);
    }
}

/// The correction on top of SO_REUSEPORT, whose spread is random: a shard keeps the connections
/// that it accepted while its load is at most 1/16 above the mean; above that, new connections go
/// to the least loaded shard. This keeps the spread well below the promised 1.25, and hands over
/// only the excess.
fn least_loaded_if_over(loads: impl Iterator<Item = usize> + Clone, me: usize) -> usize {
    let (count, total) = loads.clone().fold((0, 0), |(n, sum), load| (n + 1, sum + load));
    let mine = loads.clone().nth(me).unwrap_or(0);
    if mine * count * 16 <= total * 17 {
        return me;
    }
    loads.enumerate().min_by_key(|&(_, load)| load).map_or(me, |(shard, _)| shard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::net::Ipv4Addr;

    const IP: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

    /// Where processes share a listener, one of them may take nearly every WebSocket.
    #[test]
    fn no_shard_ends_above_a_quarter_over_the_mean_however_skewed_the_accepts() {
        for shards in [2, 3, 8] {
            for skew in [1u64, 3, 100] {
                let admission = Admission::new(&Limits::default(), 0, shards);
                let mut random = Random::new(1);
                for _ in 0..shards * 1000 {
                    // Shard 0 accepts `skew` times as often as each other.
                    let draw = random.below(skew + shards as u64 - 1);
                    admission.place(draw.saturating_sub(skew - 1) as usize);
                }
                let most = admission.loads.iter().map(|l| l.load(Ordering::Relaxed)).max().unwrap();
                assert!(
                    most <= 1250,
                    "{shards} shards, skew {skew}: {most} where the mean is 1000"
                );
            }
        }
    }

    #[test]
    fn caps_hold_and_what_left_makes_room() {
        let limits = Limits::default().max_connections_per_address(2);
        let admission = Admission::new(&limits, 3, 1);
        let other = Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)));
        assert_eq!(admission.enter(IP).map(drop), Ok(()));
        assert_eq!(admission.enter(IP).map(drop), Ok(()));
        assert_eq!(admission.enter(IP).map(drop), Err(Refusal::FullForAddress));
        assert_eq!(admission.enter_address(None), Ok(None), "a Unix socket has no cap by address");
        assert_eq!(admission.enter(other).map(drop), Ok(()));
        assert_eq!(admission.enter(other).map(drop), Err(Refusal::Full));
        admission.place(0);
        admission.leave(0, true, admission.key(IP));
        assert_eq!(admission.enter(IP).map(drop), Ok(()));
        admission.begin_drain(false);
        assert_eq!(admission.enter(IP).map(drop), Err(Refusal::Draining));
    }

    #[test]
    fn pending_handshakes_have_a_cap_of_their_own() {
        let limits = Limits::default().max_pending_handshakes(1);
        let admission = Admission::new(&limits, 0, 1);
        assert_eq!(admission.enter(IP).map(drop), Ok(()));
        assert_eq!(admission.enter(IP).map(drop), Err(Refusal::Full));
        admission.complete_handshake();
        assert_eq!(admission.enter(IP).map(drop), Ok(()));
    }

    fn enter(admission: &Admission, address: &str, times: usize) -> Result<(), Refusal> {
        (0..times).try_for_each(|_| {
            let entered = admission.enter(Some(address.parse().unwrap())).map(drop);
            if entered.is_ok() {
                admission.complete_handshake();
            }
            entered
        })
    }

    #[test]
    fn by_default_an_address_has_a_quarter_and_loopback_all() {
        let admission = Admission::new(&Limits::default(), 40, 1);
        assert_eq!(enter(&admission, "192.0.2.1", 10), Ok(()));
        assert_eq!(enter(&admission, "::ffff:192.0.2.1", 1), Err(Refusal::FullForAddress));
        // A /64 network belongs to one customer, with 2^64 addresses in it.
        assert_eq!(enter(&admission, "2001:db8::1", 5), Ok(()));
        assert_eq!(enter(&admission, "2001:db8::ffff:2", 5), Ok(()));
        assert_eq!(enter(&admission, "2001:db8::3", 1), Err(Refusal::FullForAddress));
        assert_eq!(admission.addresses(), 2);
        assert_eq!(enter(&admission, "127.0.0.1", 20), Ok(()));
        assert_eq!(enter(&admission, "::1", 1), Err(Refusal::Full));
        assert_eq!(enter(&admission, "192.0.2.1", 1), Err(Refusal::FullForAddress));
        assert_eq!(enter(&admission, "192.0.2.2", 1), Err(Refusal::Full));
        assert_eq!(admission.addresses(), 2, "an address that was refused is not counted");
    }

    #[test]
    fn by_default_half_of_the_connections_may_be_pending() {
        let admission = Admission::new(&Limits::default(), 100, 1);
        let silent = |times| (0..times).try_for_each(|_| admission.enter(IP).map(drop));
        assert_eq!(silent(50), Ok(()));
        assert_eq!(silent(1), Err(Refusal::Full));
        assert_eq!(enter(&Admission::new(&Limits::default(), 8, 1), "127.0.0.1", 8), Ok(()));
        let off = Limits::default()
            .max_pending_handshakes(Limit::Unlimited)
            .max_connections_per_address(Limit::Unlimited);
        let admission = Admission::new(&off, 100, 1);
        let address = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
        assert_eq!((0..100).try_for_each(|_| admission.enter(address).map(drop)), Ok(()));
        assert_eq!((admission.enter(IP).map(drop), admission.addresses()), (Err(Refusal::Full), 0));
    }
}
