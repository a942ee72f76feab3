//! Picks of a backend for each client.

mod least_connections;
mod power_of_two;
mod random;
mod rendezvous;
mod turns;

use std::net::IpAddr;
use std::sync::Arc;

use throng_engine::random::Random;

use crate::backend::{Backend, State, Wanted};
use crate::cookie::CookieKey;
use crate::pool::Pool;
use crate::settings::Pick;

use turns::Turns;

/// Picks backends by [`Settings::pick`](crate::Settings::pick). Each shard has its own picker: only
/// the counts of the backends are shared. A pick reads every backend, allocates nothing, and takes
/// no lock. (The first pick in turn after a change of the list allocates.)
#[derive(Debug)]
pub struct Picker {
    random: Random,
    /// By the index of the pool.
    turns: Vec<PoolTurns>,
}

/// The turns in a pool.
#[derive(Debug)]
struct PoolTurns {
    pool: Arc<str>,
    /// The turns of requests, and of tunnels: with one for both, a client that sends a request
    /// before each handshake would give one backend all tunnels.
    turns: [Turns; 2],
}

impl Picker {
    /// Creates a picker. `seed`: the seed of its random numbers. Shards with equal seeds make equal
    /// picks.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), turns: Vec::new() }
    }

    /// Returns its random numbers, for callers outside of picks.
    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Returns the index in `pool.targets` of the backend for `client`, or `None` if none
    /// is both [`Up`](State::Up) and `usable`.
    ///
    /// * `wanted`: requests and tunnels are counted separately.
    /// * `key`: identifies the client, for [`Pick::Rendezvous`] only; without it the key is
    ///   [`client_key`]. Any number is suitable, since it is mixed.
    /// * `usable`: whether the caller would accept the backend at this index, for instance because
    ///   it has a free permit and was not tried yet. It may be called twice per pick.
    pub fn pick(
        &mut self,
        pool: &Pool,
        wanted: Wanted,
        key: Option<u64>,
        client: IpAddr,
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let candidates = || candidates(pool, &usable);
        let secret = &pool.settings.cookie_key;
        let pick = pool.settings.pick;
        let place = self.place(pool);
        let (random, turns) = (&mut self.random, &mut self.turns[place].turns[wanted as usize]);
        if matches!(pick, Pick::PowerOfTwo | Pick::LeastConnections | Pick::RoundRobin) {
            turns.follow(&pool.targets, random);
        }
        match pick {
            Pick::PowerOfTwo => power_of_two::pick(random, turns, wanted, candidates),
            Pick::LeastConnections => least_connections::pick(turns, wanted, candidates),
            Pick::RoundRobin => turns.pick(candidates(), |_| 0),
            Pick::Rendezvous => {
                let key = key.unwrap_or_else(|| client_key(secret, client));
                rendezvous::pick(key, candidates())
            }
            Pick::Random => random::pick(random, candidates()).map(|(place, _)| place),
            Pick::IpHash => rendezvous::pick(client_key(secret, client), candidates()),
        }
    }
}

impl Picker {
    /// Returns the place of the pool's turns. After a change of the pools they are moved there.
    fn place(&mut self, pool: &Pool) -> usize {
        let at = pool.index();
        if self.turns.get(at).is_some_and(|turns| turns.pool == *pool.name()) {
            return at;
        }
        while self.turns.len() <= at {
            self.turns.push(PoolTurns { pool: "".into(), turns: Default::default() });
        }
        match self.turns.iter().position(|turns| turns.pool == *pool.name()) {
            Some(moved) => self.turns.swap(at, moved),
            None => {
                let (pool, turns) = (Arc::clone(pool.name()), Default::default());
                let other = std::mem::replace(&mut self.turns[at], PoolTurns { pool, turns });
                if !other.pool.is_empty() {
                    self.turns.push(other);
                }
            }
        }
        at
    }

    /// Returns the index of a backend that is [`Down`](State::Down), for a client without any
    /// other: the one with the fewest connections refused in a row, among equals at random by
    /// share. A verdict of down may be outdated.
    pub fn pick_down(&mut self, pool: &Pool, usable: impl Fn(usize) -> bool) -> Option<usize> {
        self.pick_in(State::Down, pool, usable)
    }

    /// Returns the index of a backend in this state, in the same way.
    pub(crate) fn pick_in(
        &mut self,
        state: State,
        pool: &Pool,
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let all = pool.targets.iter().map(|target| &*target.backend).enumerate();
        let down = all.filter(|&(at, backend)| backend.state() == state && usable(at));
        let mut best: Option<(usize, u32)> = None;
        let mut equals = 0;
        for (at, backend) in down {
            let (refusals, share) = (backend.refusals(), u64::from(backend.share()));
            match best {
                Some((_, fewest)) if refusals > fewest => continue,
                Some((_, fewest)) if refusals == fewest => equals += share,
                _ => equals = share,
            }
            if self.random.below(equals) < share {
                best = Some((at, refusals));
            }
        }
        best.map(|(at, _)| at)
    }
}

/// Returns the index of the backend whose [`tag`](Pool::tag) a client's cookie has;
/// `None` if it is gone or not [`Up`](State::Up), and the client needs another pick.
#[must_use]
pub fn pick_bound(pool: &Pool, tag: u64) -> Option<usize> {
    let mut all = candidates(pool, &|_| true);
    all.find(|(_, backend)| pool.tag(backend.address()) == tag).map(|(place, _)| place)
}

/// Returns the index of the backend that rendezvous hashing gives to `key`, for any
/// [`Settings::pick`](crate::Settings::pick): it binds a client to a backend by a header, a
/// parameter or its address, without a table of clients. `usable` as in [`Picker::pick`].
#[must_use]
pub fn pick_by_key(pool: &Pool, key: u64, usable: impl Fn(usize) -> bool) -> Option<usize> {
    rendezvous::pick(key, candidates(pool, &usable))
}

/// Returns the default identity of a client: its IPv4 address, or the /64 network of its IPv6
/// address, because a machine changes its address freely within it. With the key of a secret it is
/// hashed, so that clients cannot find addresses of one backend.
#[must_use]
pub fn client_key(key: &CookieKey, client: IpAddr) -> u64 {
    let network = match client.to_canonical() {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    };
    key.hash(&network.to_be_bytes()).unwrap_or(network)
}

/// Returns the backends that may be picked, with their indexes.
fn candidates<'a>(
    pool: &'a Pool,
    usable: &'a impl Fn(usize) -> bool,
) -> impl Iterator<Item = (usize, &'a Backend)> {
    let all = pool.targets.iter().map(|target| &*target.backend).enumerate();
    all.filter(|&(place, backend)| backend.state() == State::Up && usable(place))
}

/// Returns whether there is a backend that may be picked.
pub(crate) fn has_candidate(pool: &Pool, usable: impl Fn(usize) -> bool) -> bool {
    candidates(pool, &usable).next().is_some()
}

/// The load of all candidates, and their shares.
#[derive(Clone, Copy)]
struct Whole {
    wanted: Wanted,
    load: u64,
    share: u64,
}

impl Whole {
    fn of<'a>(wanted: Wanted, candidates: impl Iterator<Item = (usize, &'a Backend)>) -> Self {
        candidates.fold(Self { wanted, load: 0, share: 0 }, |sum, (_, backend)| Self {
            load: sum.load + u64::from(backend.load(wanted)),
            share: sum.share + u64::from(backend.share()),
            ..sum
        })
    }

    /// Returns by how many whole units a backend is below its part, counting one more.
    ///
    /// It does not compare the load per share: under low load, a backend with a small share is
    /// usually idle, so that a pick by load per share would give it either nothing or everything.
    /// For differences below a whole unit, backends take turns by share.
    fn short_of_part(self, backend: &Backend) -> i64 {
        let part = (self.load + 1) * u64::from(backend.share()) / self.share.max(1);
        part as i64 - i64::from(backend.load(self.wanted))
    }

    /// Returns whether a backend is above its part by more than a sixteenth, and by more than its
    /// part of one.
    fn is_crowded(self, backend: &Backend) -> bool {
        let (load, share) = (u128::from(backend.load(self.wanted)), u128::from(backend.share()));
        let (all, whole) = (u128::from(self.load), u128::from(self.share));
        16 * load * whole > 17 * all * share + 16 * share
    }
}

#[cfg(test)]
mod tests;
