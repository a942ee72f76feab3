//! Picks of a backend for each client.

mod least_connections;
mod power_of_two;
mod random;
mod rendezvous;
mod round_robin;

use std::net::IpAddr;

use throng_engine::random::Random;

use crate::settings::Pick;
use crate::{Backend, Configuration, State};

use round_robin::RoundRobin;

/// Picks backends by [`Settings::pick`](crate::Settings::pick). Each shard has its own: only the
/// counts of the backends are shared. A pick looks at every backend, allocates nothing, and takes
/// no lock. (The first pick in turn after the list changed allocates.)
#[derive(Debug)]
pub struct Picker {
    random: Random,
    round_robin: RoundRobin,
}

impl Picker {
    /// Creates a picker. `seed`: of everything random in it. Shards with equal seeds make equal
    /// picks at a time.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), round_robin: RoundRobin::default() }
    }

    /// Returns its random numbers, for callers outside of picks.
    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Returns the index in `configuration.backends` of the backend for `client`, or `None` if none
    /// is both [`Up`](State::Up) and `usable`.
    ///
    /// * `key`: identifies the client, for [`Pick::Rendezvous`] only; without one it is
    ///   [`client_key`]. Any number will do, it is mixed.
    /// * `usable`: whether the caller would take the backend at this index, for instance because it
    ///   has a free permit and was not tried yet. It may be called twice a pick.
    pub fn pick(
        &mut self,
        configuration: &Configuration,
        key: Option<u64>,
        client: IpAddr,
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let random = &mut self.random;
        let candidates = || candidates(configuration, &usable);
        match configuration.settings.pick {
            Pick::PowerOfTwo => power_of_two::pick(random, candidates),
            Pick::LeastConnections => least_connections::pick(random, candidates()),
            Pick::RoundRobin => {
                self.round_robin.follow(&configuration.backends);
                self.round_robin.pick(candidates())
            }
            Pick::Rendezvous => {
                rendezvous::pick(key.unwrap_or_else(|| client_key(client)), candidates())
            }
            Pick::Random => random::pick(random, candidates()).map(|(place, _)| place),
            Pick::IpHash => rendezvous::pick(client_key(client), candidates()),
        }
    }
}

impl Picker {
    /// Returns the index of a backend that is [`Down`](State::Down), for a client without any
    /// other: the one with the fewest connections refused in a row, at random among equals. A
    /// verdict of down may be outdated.
    pub fn pick_down(
        &mut self,
        configuration: &Configuration,
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let all = configuration.backends.iter().map(|target| &*target.backend).enumerate();
        let down = all.filter(|&(at, backend)| backend.state() == State::Down && usable(at));
        let mut best: Option<(usize, u32)> = None;
        let mut equals = 0;
        for (at, backend) in down {
            let refusals = backend.refusals();
            match best {
                Some((_, fewest)) if refusals > fewest => continue,
                Some((_, fewest)) if refusals == fewest => equals += 1,
                _ => equals = 1,
            }
            if self.random.below(equals) == 0 {
                best = Some((at, refusals));
            }
        }
        best.map(|(at, _)| at)
    }
}

/// Returns the index of the backend whose [`tag`](crate::CookieKey::tag) a client's cookie has;
/// `None` if it is gone or not [`Up`](State::Up), and the client needs another pick.
#[must_use]
pub fn pick_bound(configuration: &Configuration, tag: u64) -> Option<usize> {
    let key = &configuration.settings.cookie_key;
    let mut all = candidates(configuration, &|_| true);
    all.find(|(_, backend)| key.tag(backend.address()) == tag).map(|(place, _)| place)
}

/// Returns the index of the backend that rendezvous hashing gives to `key`, for any
/// [`Settings::pick`](crate::Settings::pick): it binds a client to a backend by a header, a
/// parameter or its address, without a table of clients. `usable` as in [`Picker::pick`].
#[must_use]
pub fn pick_by_key(
    configuration: &Configuration,
    key: u64,
    usable: impl Fn(usize) -> bool,
) -> Option<usize> {
    rendezvous::pick(key, candidates(configuration, &usable))
}

/// Returns the default identity of a client: its IPv4 address, or the /64 network of its IPv6
/// address, because a machine changes its address freely within it.
#[must_use]
pub fn client_key(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

/// Returns the backends that may be picked, with their indexes.
fn candidates<'a>(
    configuration: &'a Configuration,
    usable: &'a impl Fn(usize) -> bool,
) -> impl Iterator<Item = (usize, &'a Backend)> {
    let all = configuration.backends.iter().map(|target| &*target.backend).enumerate();
    all.filter(|&(place, backend)| backend.state() == State::Up && usable(place))
}

/// Compares two backends by the load per share that each would have with one more client. Not by
/// the current load: of two without any the heavier is first, and one in its slow start last.
fn compare_load(one: Load, other: Load) -> std::cmp::Ordering {
    (one.load * other.share).cmp(&(other.load * one.share))
}

/// A backend's load and share, read once: other threads change them while they are compared.
#[derive(Clone, Copy)]
struct Load {
    load: u64,
    share: u64,
}

impl Load {
    fn of(backend: &Backend) -> Self {
        Self { load: u64::from(backend.load()) + 1, share: backend.share().into() }
    }
}

#[cfg(test)]
mod tests;
