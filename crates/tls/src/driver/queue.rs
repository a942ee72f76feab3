//! Queued handshakes, and the limits of those under way.
//!
//! A handshake costs as much time as hundreds of messages. So its steps run when the events of a
//! turn are handled, for a bounded time. Addresses take turns, and among the connections of one
//! address the newest is served first: in a storm, clients that have waited long have often
//! disconnected. So a storm from one address delays the handshakes of other addresses by one step
//! each, and handshakes from the same address as little as possible. When any limit is exceeded,
//! the oldest connections of the address with the most are ended first.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use throng_io::{ConnId, Instant};

/// Maximum time for handshakes in one turn; at least one step is done.
const TIME_PER_TURN: Duration = Duration::from_millis(1);
/// Maximum steps of one turn, in case the clock does not advance within it.
const MAX_PER_TURN: usize = 16;

/// The limits of handshakes of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// Maximum handshakes under way, and maximum clients that wait for theirs to begin. Above it
    /// the oldest are ended. A handshake under way needs 4.3 KB. Default 10,000.
    pub pending: usize,
    /// Handshakes that may begin in a second. 0, the default, sets no limit.
    pub per_second: u32,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self { pending: 10_000, per_second: 0 }
    }
}

/// An address that takes turns with others: an IPv4 address, or the first 64 bits of an IPv6
/// address. Stored in bytes, so that a connection loses no memory to alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address([u8; 8]);

impl Address {
    /// The key of all connections that we start; among these the oldest is served first.
    pub(super) const OWN: Self = Self([0xff; 8]);

    /// The key that all clients on Unix sockets share; no network has it.
    const UNIX: Self = Self([0xff, 0, 0, 0, 0, 0, 0, 0]);

    /// Returns the key of an address: its network for IPv6; `None` for a Unix socket.
    pub(super) fn shown(self) -> Option<IpAddr> {
        let Self(bytes) = self;
        match bytes {
            [0, 0, 0, 0, rest @ ..] => Some(IpAddr::from(rest)),
            _ if self == Self::UNIX || self == Self::OWN => None,
            [a, b, c, d, e, f, g, h] => {
                let start = [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0];
                Some(IpAddr::from(start))
            }
        }
    }

    pub(super) fn of(peer: Option<SocketAddr>) -> Self {
        let Some(peer) = peer else { return Self::UNIX };
        match peer.ip().to_canonical() {
            // No IPv6 network begins with 32 zeros.
            IpAddr::V4(address) => Self(u64::from(address.to_bits()).to_be_bytes()),
            IpAddr::V6(address) => Self(((address.to_bits() >> 64) as u64).to_be_bytes()),
        }
    }
}

/// Waiting connections, by address.
#[derive(Debug, Default)]
struct Waiting {
    /// The newest last.
    of: BTreeMap<Address, VecDeque<ConnId>>,
    /// The addresses in `of`; the last one is next.
    order: VecDeque<Address>,
    len: usize,
}

impl Waiting {
    fn push(&mut self, address: Address, id: ConnId) {
        let waiting = self.of.entry(address).or_default();
        if waiting.is_empty() {
            self.order.push_back(address);
        }
        waiting.push_back(id);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<ConnId> {
        let address = self.order.pop_back()?;
        let waiting = self.of.get_mut(&address)?;
        let id = if address == Address::OWN { waiting.pop_front() } else { waiting.pop_back() };
        match waiting.is_empty() {
            true => drop(self.of.remove(&address)),
            false => self.order.push_front(address),
        }
        self.len -= 1;
        id
    }

    /// Removes connections that no longer wait from the front of the queue, without using the turn
    /// of their addresses.
    fn skip(&mut self, is_waiting: impl Fn(ConnId) -> bool) {
        while let Some(address) = self.order.back().copied()
            && let Some(waiting) = self.of.get_mut(&address)
        {
            while waiting.back().is_some_and(|id| !is_waiting(*id)) {
                waiting.pop_back();
                self.len -= 1;
            }
            if !waiting.is_empty() {
                return;
            }
            self.of.remove(&address);
            self.order.pop_back();
        }
    }

    /// Removes the older half of the connections of the address with the most. If each has only
    /// one, removes the connections of the addresses whose turn comes last. It removes so many at
    /// once because it looks at every address.
    fn give_up(&mut self) -> Vec<ConnId> {
        let most = self.of.iter().max_by_key(|(_, waiting)| waiting.len());
        let given_up: Vec<ConnId> = match most.map(|(address, waiting)| (*address, waiting.len())) {
            Some((address, len)) if len > 1 => {
                let waiting = self.of.get_mut(&address).into_iter();
                waiting.flat_map(|waiting| waiting.drain(..len / 2)).collect()
            }
            _ => {
                let last = self.order.drain(..self.order.len().div_ceil(16));
                last.filter_map(|address| self.of.remove(&address)).flatten().collect()
            }
        };
        self.len -= given_up.len();
        given_up
    }
}

/// The handshakes of a shard, queued or under way.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) limits: HandshakeLimits,
    /// Clients whose ClientHello is complete.
    hellos: Waiting,
    /// Connections with input for a handshake under way, and those that we start.
    steps: Waiting,
    /// Clients whose handshakes have begun, the oldest first; some may be complete.
    begun: VecDeque<ConnId>,
    /// Steps that may still be done in this turn, and their deadline.
    left: usize,
    until: Option<Instant>,
    /// Whether the last step began a handshake.
    has_begun: bool,
    /// When the rate allows the next handshake to begin. An unused rate is kept for a second.
    next: Instant,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.hellos.len + self.steps.len == 0
    }

    /// Begins a turn. Returns when queued handshakes can go on, if there are any.
    pub(super) fn begin_turn(&mut self, now: Instant) -> Option<Instant> {
        (self.left, self.until) = (MAX_PER_TURN, None);
        for waiting in [&mut self.hellos, &mut self.steps] {
            // Releases the memory that a storm needed.
            if waiting.len == 0 && waiting.order.capacity() > 1024 {
                *waiting = Waiting::default();
            }
        }
        match (self.steps.len, self.hellos.len) {
            (0, 0) => None,
            (0, _) => Some(now.max(self.next)),
            _ => Some(now),
        }
    }

    /// Adds a client whose ClientHello is complete. Returns connections to end in exchange, if
    /// there are too many.
    pub(super) fn push_hello(&mut self, address: Address, id: ConnId) -> Vec<ConnId> {
        let too_many = self.hellos.len >= self.limits.pending.max(1);
        let given_up = if too_many { self.hellos.give_up() } else { Vec::new() };
        self.hellos.push(address, id);
        given_up
    }

    /// Adds a connection whose handshake can go on.
    pub(super) fn push_step(&mut self, address: Address, id: ConnId) {
        self.steps.push(address, id);
    }

    /// Returns the connection whose handshake is next, if it may go on now. Handshakes that begin
    /// and those under way take turns, even if one step takes longer than the time of a turn. A
    /// client that no longer waits does not count against the rate.
    pub(super) fn pop(
        &mut self,
        is_waiting: impl Fn(ConnId) -> bool,
        read_clock: impl FnOnce() -> Instant,
    ) -> Option<ConnId> {
        self.hellos.skip(is_waiting);
        if self.is_empty() || self.left == 0 {
            return None;
        }
        let now = read_clock();
        let until = *self.until.get_or_insert(now.after(TIME_PER_TURN));
        if now >= until {
            return None;
        }
        self.left -= 1;
        let begins = self.steps.len == 0 || self.hellos.len > 0 && !self.has_begun;
        self.has_begun = begins && self.may_begin(now);
        if self.has_begun { self.hellos.pop() } else { self.steps.pop() }
    }

    /// Counts a handshake against the rate; returns false if it must wait.
    fn may_begin(&mut self, now: Instant) -> bool {
        let Some(each) = 1_000_000_000_u64.checked_div(u64::from(self.limits.per_second)) else {
            return true;
        };
        if self.next > now {
            return false;
        }
        let earliest = Instant(now.0.saturating_sub(1_000_000_000));
        self.next = self.next.max(earliest).after(Duration::from_nanos(each));
        true
    }

    /// Records that the handshake of a client has begun; `under_way` counts it. Returns connections
    /// to end in exchange; some may have ended by themselves.
    pub(super) fn begin(
        &mut self,
        id: ConnId,
        under_way: usize,
        is_under_way: impl Fn(ConnId) -> bool,
    ) -> Option<ConnId> {
        // For each handshake that begins, each connection is looked at once: negligible beside a
        // handshake.
        if self.begun.len() > 64 + 2 * under_way {
            self.begun.retain(|id| is_under_way(*id));
            self.begun.shrink_to(4 * self.begun.len() + 64);
        }
        self.begun.push_back(id);
        if under_way <= self.limits.pending.max(1) {
            return None;
        }
        while let Some(oldest) = self.begun.pop_front() {
            if is_under_way(oldest) {
                return Some(oldest);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32) -> ConnId {
        ConnId::new(0, slot, 1)
    }

    fn queue(pending: usize, per_second: u32) -> Queue {
        let limits = HandshakeLimits { pending, per_second };
        Queue { limits, ..Queue::default() }
    }

    /// Addresses of one block reserved for documentation.
    fn address(last: u8) -> Address {
        Address::of(Some(SocketAddr::from(([192, 0, 2, last], 7))))
    }

    impl Queue {
        fn push(&mut self, id: ConnId) -> Vec<ConnId> {
            self.push_hello(address(1), id)
        }

        fn served(&mut self) -> Vec<u32> {
            let ids = std::iter::from_fn(|| self.pop(|_| true, || Instant(0)));
            ids.map(|id| id.slot() as u32).collect()
        }
    }

    #[test]
    fn the_newest_is_served_and_the_oldest_given_up() {
        let mut queue = queue(4, 0);
        queue.begin_turn(Instant(0));
        let ended: Vec<_> = (0..5).flat_map(|slot| queue.push(id(slot))).collect();
        assert_eq!(ended, [id(0), id(1)]);
        assert_eq!(queue.served(), [4, 3, 2]);
    }

    #[test]
    fn addresses_take_turns() {
        let mut queue = queue(100, 0);
        queue.begin_turn(Instant(0));
        for slot in 0..6 {
            queue.push_hello(address(1), id(slot));
        }
        for (slot, last) in [(10, 2), (11, 2), (20, 3)] {
            queue.push_hello(address(last), id(slot));
        }
        assert_eq!(queue.served(), [20, 11, 5, 10, 4, 3, 2, 1, 0]);
        for slot in 0..3 {
            queue.push_step(Address::OWN, id(slot));
        }
        queue.begin_turn(Instant(0));
        assert_eq!(queue.served(), [0, 1, 2], "our own are served in order");
    }

    #[test]
    fn addresses_are_those_of_networks_of_one_owner() {
        let of = |text: &str| Address::of(Some(SocketAddr::new(text.parse().unwrap(), 1)));
        assert!(of("192.0.2.1") != of("192.0.2.2"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff"));
        assert!(of("2001:db8::1") != of("2001:db8:0:1::1"));
        assert!(Address::of(None) == Address::of(None) && Address::of(None) != Address::OWN);
    }

    #[test]
    fn an_address_is_shown_as_far_as_it_is_known() {
        let shown = |text: &str| {
            let peer = SocketAddr::new(text.parse().unwrap(), 1);
            Address::of(Some(peer)).shown().unwrap().to_string()
        };
        assert_eq!(shown("192.0.2.1"), "192.0.2.1");
        assert_eq!(shown("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(shown("2001:db8:0:7:1:2:3:4"), "2001:db8:0:7::");
        assert_eq!(Address::of(None).shown(), None);
    }

    #[test]
    fn steps_and_beginnings_alternate_and_the_rate_is_for_beginnings() {
        let mut queue = queue(100, 1);
        let now = Instant(100_000_000_000);
        for slot in 0..3 {
            queue.push_step(address(1), id(slot));
            queue.push(id(10 + slot));
        }
        queue.begin_turn(now);
        let ids: Vec<_> =
            (0..6).filter_map(|_| queue.pop(|_| true, || now)).map(ConnId::slot).collect();
        assert_eq!(ids, [12, 2, 11, 1, 0], "two begin: one is of the second before");
    }

    #[test]
    fn the_address_with_the_most_gives_up() {
        let mut queue = queue(10, 0);
        queue.push_hello(address(2), id(0));
        for slot in 1..10 {
            assert_eq!(queue.push(id(slot)), []);
        }
        assert_eq!(queue.push_hello(address(2), id(10)), [id(1), id(2), id(3), id(4)]);
        assert_eq!(queue.hellos.len, 7);
        for last in 3..6 {
            assert_eq!(queue.push_hello(address(last), id(u32::from(last))), []);
        }
        assert_eq!(queue.push(id(20)), [id(5), id(6)]);
    }

    #[test]
    fn of_many_addresses_those_served_last_give_up() {
        let mut queue = queue(4, 0);
        for last in 0..4 {
            assert_eq!(queue.push_hello(address(last), id(u32::from(last))), []);
        }
        assert_eq!(queue.push_hello(address(9), id(9)), [id(0)]);
        queue.begin_turn(Instant(0));
        assert_eq!(queue.served(), [9, 3, 2, 1]);
    }

    #[test]
    fn a_turn_is_bounded_by_time_and_by_number() {
        let mut queue = queue(1000, 0);
        (0..100).for_each(|slot| assert_eq!(queue.push(id(slot)), []));
        assert_eq!(queue.begin_turn(Instant(7)), Some(Instant(7)));
        assert!(queue.pop(|_| true, || Instant(7)).is_some(), "at least one");
        assert_eq!(queue.pop(|_| true, || Instant(1_000_007)), None);
        queue.begin_turn(Instant(2_000_000));
        let served = std::iter::from_fn(|| queue.pop(|_| true, || Instant(2_000_000))).count();
        assert_eq!(served, MAX_PER_TURN);
    }

    /// With a long RSA key, beginning a handshake takes three times the time of a turn.
    #[test]
    fn an_overload_completes_the_handshakes_of_clients_that_have_just_come() {
        let (mut queue, mut now) = (queue(10_000, 0), Instant(0));
        let (mut came, mut begun, mut completed) = (Vec::new(), Vec::new(), 0_u64);
        while now.0 < 10_000_000_000 {
            queue.begin_turn(now);
            while came.len() as u64 * 1_000_000 < now.0 {
                queue.push(id(came.len() as u32));
                came.push(now);
            }
            while let Some(client) = queue.pop(|_| true, || now) {
                if begun.contains(&client) {
                    completed += 1;
                    assert!(now.0 - came[client.slot()].0 < 100_000_000, "one that has waited");
                    now = now.after(Duration::from_micros(50));
                } else {
                    begun.push(client);
                    now = now.after(Duration::from_millis(3));
                    // Its answer comes at once.
                    queue.push_step(address(1), client);
                }
            }
            now = now.after(Duration::from_micros(50));
        }
        let capacity = 10_000_000_000_u64 / 3_150_000;
        assert!(completed * 10 >= capacity * 9, "{completed} of {capacity}");
    }

    #[test]
    fn a_rate_spreads_handshakes_and_says_when_the_next_is_due() {
        let mut queue = queue(10_000, 10);
        (0..100).for_each(|slot| assert_eq!(queue.push(id(slot)), []));
        let second = 1_000_000_000;
        let mut served = 0;
        for step in 0..100 {
            let now = Instant(100 * second + step * second / 20);
            queue.begin_turn(now);
            served += std::iter::from_fn(|| queue.pop(|_| true, || now)).count();
        }
        // One second at the reserved rate, and five seconds at ten per second.
        assert!((59..=61).contains(&served), "{served}");
        let now = Instant(105 * second);
        queue.begin_turn(now);
        while queue.pop(|_| true, || now).is_some() {}
        let due = queue.begin_turn(now).unwrap();
        assert!(due > now && due <= now.after(Duration::from_millis(100)), "{due:?}");
    }

    #[test]
    fn clients_that_have_left_take_no_part_of_the_rate() {
        let (mut queue, now) = (queue(100, 1), Instant(100_000_000_000));
        for slot in 0..5 {
            queue.push_hello(address(1), id(slot));
            queue.push_hello(address(2), id(10 + slot));
        }
        queue.begin_turn(now);
        let has_stayed = |id: ConnId| [0, 1, 12].contains(&id.slot());
        let served = std::iter::from_fn(|| queue.pop(has_stayed, || now)).map(ConnId::slot);
        assert_eq!(served.collect::<Vec<_>>(), [12, 1], "one is of the second before");
        assert_eq!(queue.hellos.len, 1);
        assert_eq!(queue.pop(|_| false, || now), None);
        assert!(queue.is_empty() && queue.hellos.of.is_empty());
    }

    #[test]
    fn handshakes_under_way_are_bounded_and_forgotten_when_they_end() {
        let mut queue = queue(2, 0);
        let under_way = |id: ConnId| id.slot() != 1;
        assert_eq!(queue.begin(id(1), 1, under_way), None);
        assert_eq!(queue.begin(id(2), 2, under_way), None);
        assert_eq!(queue.begin(id(3), 2, under_way), None);
        assert_eq!(queue.begin(id(4), 3, under_way), Some(id(2)), "1 has ended by itself");
        for slot in 0..10_000 {
            queue.begin(id(slot), 1, |_| false);
        }
        assert!(queue.begun.len() <= 70, "{}", queue.begun.len());
    }
}
