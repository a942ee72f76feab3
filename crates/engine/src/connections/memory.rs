//! Account of the memory that connections cause, and the action when it is used up.
//!
//! Memory that depends on a peer's behaviour is counted: output that the peer does not take, input
//! that is incomplete or held back, request bodies, compression contexts, and TLS handshakes in
//! progress. Nothing is counted when it is queued, which would cost something for each message.
//! Instead the shard adds up the received bytes, on slow paths only, and from time to time measures
//! the connections that use memory, which are already listed. Each measurement is exact, so errors
//! do not accumulate.
//!
//! All shards share one [`MemoryAccount`], which distinguishes connections by the memory that they
//! use. When it is over its limit each shard ends the connections that use the most, until seven
//! eighths of the limit remain; the first to notice wakes the others. New connections are still
//! accepted: they use no memory yet, and an attacker who fills the memory again and again must not
//! keep others out. All TLS handshakes in progress count as one holder: each handshake of a storm
//! is small, but no handshake is worth the session of another client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use throng_io::ConnId;
use throng_proto::SettingError;

use crate::limits::Limit;
use crate::random::Random;

/// Connections are distinguished by how much they hold, in powers of two.
const SIZES: usize = usize::BITS as usize;

/// The class of connections whose TLS handshake is in progress; the other classes are sizes.
const HANDSHAKES: usize = SIZES;

const CLASSES: usize = SIZES + 1;

/// Minimum bytes between two measurements.
const LEAST_STEP: usize = 64 << 10;

/// Memory of a process's connections, in bytes.
#[derive(Debug)]
pub(crate) struct MemoryAccount {
    limit: AtomicUsize,
    /// Part of the configured limit that histories and presence have.
    reserved: usize,
    /// The sum of `of_class`, and its maximum since the last reading.
    used: AtomicUsize,
    most_used: AtomicUsize,
    /// Memory of the connections that use 2^n to 2^(n+1) - 1 bytes each, and of [`HANDSHAKES`].
    of_class: [AtomicUsize; CLASSES],
    is_over: AtomicBool,
}

/// One shard's part of the account.
#[derive(Debug)]
pub(crate) struct ShardMemory {
    account: Arc<MemoryAccount>,
    /// This shard's part of [`MemoryAccount::of_class`].
    reported: [usize; CLASSES],
    /// Bytes that came since the last measurement.
    came: usize,
    /// Whether this shard has ended its part since the account went over its limit.
    has_acted: bool,
    /// Whether other shards have to end connections too, and must be woken for that.
    must_wake_others: bool,
    random: Random,
    /// Whether this shard has one connection at most: a thread's.
    is_single: bool,
}

/// A connection that holds memory. The greatest is ended first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    rank: Rank,
    bytes: usize,
    id: ConnId,
}

impl Holder {
    /// Creates the entry of a connection that uses `bytes` of memory. A handshake has the rank of
    /// its own size until all are measured.
    pub(crate) fn new(id: ConnId, bytes: usize, is_handshakes: bool) -> Self {
        Self { rank: Rank { size: size_class(bytes), is_handshakes }, bytes, id }
    }

    pub(crate) fn id(&self) -> ConnId {
        self.id
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether this is a TLS handshake in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.rank.is_handshakes
    }
}

/// The order of classes: by size, and handshakes by the size of all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    size: usize,
    is_handshakes: bool,
}

impl Rank {
    fn class(self) -> usize {
        if self.is_handshakes { HANDSHAKES } else { self.size }
    }
}

/// Connections to be ended, by the memory of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Excess {
    /// All of this rank and above are ended, but of this rank itself only `part` of `of`.
    rank: Rank,
    part: usize,
    of: usize,
}

impl MemoryAccount {
    /// Creates an account. [`Limit::Auto`] is a quarter of the memory that the process may use.
    pub(crate) fn new(limit: Limit) -> Self {
        let account = Self {
            limit: AtomicUsize::default(),
            reserved: 0,
            used: AtomicUsize::new(0),
            most_used: AtomicUsize::new(0),
            of_class: std::array::from_fn(|_| AtomicUsize::new(0)),
            is_over: AtomicBool::new(false),
        };
        account.configure(limit);
        account
    }

    /// Sets the limit, which the next measurement applies.
    pub(crate) fn configure(&self, limit: Limit) {
        let limit = Self::resolve(limit).saturating_sub(self.reserved);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Checks whether a limit leaves enough beside the reserved memory.
    ///
    /// # Errors
    /// More than half of the limit is reserved.
    pub(crate) fn check(&self, limit: Limit) -> Result<(), SettingError> {
        if Self::resolve(limit) / 2 >= self.reserved {
            return Ok(());
        }
        let least = 2 * self.reserved;
        let message = format!(
            "max_memory must be at least {least} bytes, twice what histories and presence have had \
             since the start: raise it, or restart"
        );
        Err(SettingError::new("max_memory", message))
    }

    fn resolve(limit: Limit) -> usize {
        let quarter = || throng_io::memory::available().map(|bytes| (bytes / 4) as usize);
        limit.or_else(|| quarter().unwrap_or(usize::MAX))
    }

    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Reserves up to `bytes` of the account for another purpose, at most a quarter of the
    /// remaining memory; returns the reserved bytes.
    pub(crate) fn reserve(&mut self, bytes: usize) -> usize {
        let reserved = bytes.min(self.limit() / 4);
        self.reserved += reserved;
        self.limit = AtomicUsize::new(self.limit() - reserved);
        reserved
    }

    /// Returns whether more than the limit is used.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn goal(&self) -> usize {
        self.limit() - self.limit() / 8
    }

    /// Replaces a shard's part of the account.
    fn report(&self, reported: &mut [usize; CLASSES], measured: &[usize; CLASSES]) {
        for ((total, before), now) in self.of_class.iter().zip(reported).zip(measured) {
            if *before != *now {
                // A decrease wraps around; the addition wraps back.
                total.fetch_add(now.wrapping_sub(*before), Ordering::Relaxed);
                self.used.fetch_add(now.wrapping_sub(*before), Ordering::Relaxed);
                *before = *now;
            }
        }
        let used = self.used.load(Ordering::Relaxed);
        self.most_used.fetch_max(used, Ordering::Relaxed);
        let bound = if self.is_over() { self.goal() } else { self.limit() };
        self.is_over.store(used > bound, Ordering::Relaxed);
    }

    /// Returns which connections must be ended so that seven eighths of the limit remain.
    fn excess(&self) -> Option<Excess> {
        let mut missing = self.used.load(Ordering::Relaxed).checked_sub(self.goal())?;
        if !self.is_over() || missing == 0 {
            return None;
        }
        let handshakes = self.rank_of_handshakes();
        for size in (0..SIZES).rev() {
            let of_size = Rank { size, is_handshakes: false };
            for rank in (handshakes.size == size).then_some(handshakes).into_iter().chain([of_size])
            {
                let of = self.of_class[rank.class()].load(Ordering::Relaxed);
                if of >= missing {
                    return Some(Excess { rank, part: missing, of });
                }
                missing -= of;
            }
        }
        None
    }

    fn rank_of_handshakes(&self) -> Rank {
        let all = self.of_class[HANDSHAKES].load(Ordering::Relaxed);
        Rank { size: size_class(all), is_handshakes: true }
    }
}

/// Returns the index of `bytes` in [`MemoryAccount::of_class`].
fn size_class(bytes: usize) -> usize {
    bytes.max(1).ilog2() as usize
}

/// Memory of a connection that moves to another shard, which no measurement finds during the move.
#[derive(Debug)]
pub(crate) struct InTransit {
    account: Arc<MemoryAccount>,
    bytes: usize,
}

impl InTransit {
    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for InTransit {
    fn drop(&mut self) {
        self.account.of_class[size_class(self.bytes)].fetch_sub(self.bytes, Ordering::Relaxed);
        self.account.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl ShardMemory {
    /// Counts memory that leaves this shard, until the value is dropped.
    pub(crate) fn in_transit(&self, bytes: usize) -> InTransit {
        let account = Arc::clone(&self.account);
        account.of_class[size_class(bytes)].fetch_add(bytes, Ordering::Relaxed);
        account.used.fetch_add(bytes, Ordering::Relaxed);
        InTransit { account, bytes }
    }

    pub(crate) fn new(account: Arc<MemoryAccount>, is_single: bool, seed: u64) -> Self {
        let (reported, random) = ([0; CLASSES], Random::new(seed));
        let (has_acted, must_wake_others) = (false, false);
        Self { account, reported, came: 0, has_acted, must_wake_others, random, is_single }
    }

    /// Counts bytes that a connection holds from now on.
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.came = self.came.saturating_add(bytes);
    }

    /// Returns whether other shards must be woken, once: a sleeping shard would otherwise keep the
    /// memory of its connections until its next sweep.
    pub(crate) fn must_wake_others(&mut self) -> bool {
        std::mem::take(&mut self.must_wake_others)
    }

    /// Returns the memory of this shard's connections, as measured last.
    pub(crate) fn measured(&self) -> usize {
        self.reported.iter().sum()
    }

    /// Returns the last measured memory of the connections of all shards, and its maximum since the
    /// last call.
    pub(crate) fn of_all_shards(&self) -> (usize, usize) {
        let now = self.account.used.load(Ordering::Relaxed);
        (now, self.account.most_used.swap(now, Ordering::Relaxed))
    }

    /// Returns whether the connections must be measured: when enough input has come, and once when
    /// the account is over its limit. Until other shards have ended their connections, a
    /// measurement in each turn would only cost time.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        let is_over = self.account.is_over();
        self.has_acted &= is_over;
        let step = if is_over { 0 } else { self.account.limit() / 64 };
        self.came >= step.max(LEAST_STEP) || is_over && !self.has_acted
    }

    /// Adds the just measured memory of `holders` to the account. Sorts them by descending rank,
    /// and returns how many of them must be ended.
    pub(crate) fn measure(&mut self, holders: &mut [Holder]) -> usize {
        let mut measured = [0; CLASSES];
        for holder in &*holders {
            measured[holder.rank.class()] += holder.bytes;
        }
        self.came = 0;
        self.account.report(&mut self.reported, &measured);
        let Some(excess) = self.account.excess() else { return 0 };
        let handshakes = self.account.rank_of_handshakes();
        for holder in holders.iter_mut().filter(|holder| holder.rank.is_handshakes) {
            holder.rank = handshakes;
        }
        holders.sort_unstable_by(|a, b| b.cmp(a));
        let is_first = !std::mem::replace(&mut self.has_acted, true);
        let draw = (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let worst = self.worst(holders, excess, draw);
        // The memory of these connections is being freed: other shards must not end connections to
        // free it again.
        for holder in &holders[..worst] {
            measured[holder.rank.class()] -= holder.bytes;
        }
        self.account.report(&mut self.reported, &measured);
        self.must_wake_others = is_first && self.account.is_over();
        worst
    }

    /// Returns how many of `holders`, sorted by descending memory, must be ended. `draw` is a
    /// random number below 1.
    fn worst(&self, holders: &[Holder], excess: Excess, draw: f64) -> usize {
        let own = self.reported[excess.rank.class()];
        let goal = (own as u128 * excess.part as u128).div_ceil(excess.of.max(1) as u128) as usize;
        let mut ended = 0;
        let is_worst = |holder: &&Holder| {
            if holder.rank != excess.rank {
                return holder.rank > excess.rank;
            }
            // Of many threads with one connection each, only some must end their connection.
            let goes = match self.is_single {
                true => draw * (excess.of as f64) < excess.part as f64,
                false => ended < goal,
            };
            ended += holder.bytes;
            goes
        };
        holders.iter().take_while(is_worst).count()
    }
}

impl Drop for ShardMemory {
    fn drop(&mut self) {
        let account = Arc::clone(&self.account);
        account.report(&mut self.reported, &[0; CLASSES]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32) -> ConnId {
        ConnId::new(0, slot, 1)
    }

    #[test]
    fn a_new_limit_leaves_half_beside_what_histories_and_presence_have() {
        let mut account = MemoryAccount::new(Limit::AtMost(1000));
        assert_eq!((account.reserve(2000), account.limit()), (250, 750));
        assert_eq!((account.reserve(2000), account.limit()), (187, 563));
        assert!(account.check(Limit::AtMost(873)).is_err());
        assert!(account.check(Limit::AtMost(874)).is_ok());
        account.configure(Limit::AtMost(4000));
        assert_eq!(account.limit(), 3563);
    }

    /// Runs two shards with an account of 800 bytes; returns how many connections of each must be
    /// ended.
    fn shards(of: [&[usize]; 2], is_single: bool, draw: f64) -> (Arc<MemoryAccount>, Vec<usize>) {
        let account = Arc::new(MemoryAccount::new(Limit::AtMost(800)));
        let mut all = Vec::new();
        for memory in of {
            let mut shard = ShardMemory::new(Arc::clone(&account), is_single, 1);
            let mut measured = [0; CLASSES];
            for bytes in memory {
                measured[size_class(*bytes)] += bytes;
            }
            account.report(&mut shard.reported, &measured);
            let holder = |(at, bytes): (usize, &usize)| {
                let rank = Rank { size: size_class(*bytes), is_handshakes: false };
                Holder { rank, bytes: *bytes, id: id(at as u32) }
            };
            let mut holders: Vec<_> = memory.iter().enumerate().map(holder).collect();
            holders.sort_unstable_by(|a, b| b.cmp(a));
            all.push((shard, holders));
        }
        let excess = account.excess();
        let worst = |(shard, holders): &(ShardMemory, Vec<Holder>)| {
            excess.map_or(0, |excess| shard.worst(holders, excess, draw))
        };
        let worst = all.iter().map(worst).collect();
        (account, worst)
    }

    #[test]
    fn the_worst_go_wherever_they_are() {
        // 700 must remain.
        assert_eq!(shards([&[100, 100], &[500, 60]], false, 0.0).1, [0, 0], "760 of 800");
        assert_eq!(shards([&[100, 100], &[500, 160]], false, 0.0).1, [0, 1]);
        assert_eq!(shards([&[300; 3], &[300; 3]], false, 0.0).1, [2, 2], "600 of 1,800 remain");
        assert_eq!(shards([&[600, 200, 20], &[90, 90]], false, 0.0).1, [1, 0]);
    }

    #[test]
    fn all_handshakes_together_are_one_holder() {
        let excess = |handshakes: usize, of_size: &[usize]| {
            let account = MemoryAccount::new(Limit::AtMost(800));
            let mut measured = [0; CLASSES];
            measured[HANDSHAKES] = handshakes;
            of_size.iter().for_each(|bytes| measured[size_class(*bytes)] += bytes);
            account.report(&mut [0; CLASSES], &measured);
            account.excess().map(|excess| (excess.rank.class(), excess.part))
        };
        assert_eq!(excess(600, &[300]), Some((HANDSHAKES, 200)), "though each of them is small");
        assert_eq!(excess(100, &[800]), Some((9, 200)), "they are not the reason");
        assert_eq!(excess(300, &[260, 260]), Some((HANDSHAKES, 120)));
        assert_eq!(excess(200, &[700, 130]), Some((9, 330)));
        assert_eq!(excess(100, &[700, 400]), Some((9, 500)));
        assert_eq!(excess(100, &[]), None);
    }

    #[test]
    fn of_many_threads_not_every_one_goes() {
        assert_eq!(shards([&[500], &[490]], true, 0.2).1, [1, 1], "290 of 990");
        assert_eq!(shards([&[500], &[490]], true, 0.4).1, [0, 0]);
        assert_eq!(shards([&[1900], &[10]], true, 0.2).1, [1, 0]);
    }

    #[test]
    fn memory_of_a_shard_that_ends_is_returned() {
        let (account, _) = shards([&[500], &[900]], false, 0.0);
        assert_eq!(account.used.load(Ordering::Relaxed), 0);
        assert!(!account.is_over());
    }

    #[test]
    fn memory_that_moves_between_shards_is_counted_until_it_arrives() {
        let (account, _) = shards([&[], &[]], false, 0.0);
        let mut shard = ShardMemory::new(Arc::clone(&account), false, 1);
        let moving = [shard.in_transit(600), shard.in_transit(0), shard.in_transit(600)];
        assert_eq!(account.used.load(Ordering::Relaxed), 1200);
        assert_eq!(
            (shard.measure(&mut [Holder::new(id(0), 300, false)]), account.is_over()),
            (0, true)
        );
        drop(moving);
        assert_eq!(shard.measure(&mut [Holder::new(id(0), 300, false)]), 0);
        assert_eq!((account.used.load(Ordering::Relaxed), account.is_over()), (300, false));
    }

    #[test]
    fn the_first_shard_to_notice_wakes_the_others_once() {
        let account = Arc::new(MemoryAccount::new(Limit::AtMost(800)));
        let shard = || ShardMemory::new(Arc::clone(&account), false, 1);
        let (mut one, mut other) = (shard(), shard());
        let holders = |count: u32| (0..count).map(|at| Holder::new(id(at), 100, false));
        let mut of_other: Vec<_> = holders(5).collect();
        assert_eq!((other.measure(&mut of_other), other.must_wake_others()), (0, false));
        let mut of_one: Vec<_> = holders(5).collect();
        // 300 must be freed, half of them here.
        assert_eq!((one.measure(&mut of_one), one.must_wake_others()), (2, true));
        assert!(!one.must_wake_others() && !one.is_due() && other.is_due());
        assert_eq!((other.measure(&mut of_other), other.must_wake_others()), (1, false));
        assert!(!account.is_over());
    }

    #[test]
    fn memory_is_freed_until_seven_eighths_remain() {
        let account = MemoryAccount::new(Limit::AtMost(800));
        let mut reported = [0; CLASSES];
        for (bytes, is_over) in [(800, false), (801, true), (750, true), (700, false), (750, false)]
        {
            let mut measured = [0; CLASSES];
            measured[size_class(bytes)] = bytes;
            account.report(&mut reported, &measured);
            assert_eq!(account.is_over(), is_over, "{bytes}");
        }
    }
}
