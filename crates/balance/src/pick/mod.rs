//! Which backend gets the next client.

mod least_connections;
mod power_of_two;
mod random;
mod rendezvous;
mod rng;
mod round_robin;

use std::net::IpAddr;

use crate::settings::Pick;
use crate::{Backend, Configuration, State};

use rng::Rng;
use round_robin::RoundRobin;

/// Picks backends as [`Settings::pick`](crate::Settings::pick) says. Each shard has its own: nothing is shared but the
/// counts of the backends. A pick looks at every backend, allocates nothing, and takes no lock. (The first pick in turn
/// after the list changed allocates.)
#[derive(Debug)]
pub struct Picker {
    rng: Rng,
    round_robin: RoundRobin,
}

impl Picker {
    /// `seed`: of everything random in it. Shards that have the same one make the same picks at the same time.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), round_robin: RoundRobin::default() }
    }

    /// A number below `bound`, which must not be 0: for whoever needs chance, and is no pick.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// The place in `configuration.backends` of the backend for `client`, or `None` if none is both
    /// [`Up`](State::Up) and `usable`.
    ///
    /// * `key`: what the client is told apart by, for [`Pick::Rendezvous`] only; without one it is
    ///   [`client_key`]. Any number will do, it is mixed.
    /// * `usable`: whether the caller would take the backend at this place, for instance because it has room for a
    ///   handshake and was not tried yet. It may be asked twice a pick.
    pub fn pick(
        &mut self,
        configuration: &Configuration,
        key: Option<u64>,
        client: IpAddr,
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let rng = &mut self.rng;
        let candidates = || candidates(configuration, &usable);
        match configuration.settings.pick {
            Pick::PowerOfTwo => power_of_two::pick(rng, candidates),
            Pick::LeastConnections => least_connections::pick(rng, candidates()),
            Pick::RoundRobin => {
                self.round_robin.follow(&configuration.backends);
                self.round_robin.pick(candidates())
            }
            Pick::Rendezvous => {
                rendezvous::pick(key.unwrap_or_else(|| client_key(client)), candidates())
            }
            Pick::Random => random::pick(rng, candidates()).map(|(place, _)| place),
            Pick::IpHash => rendezvous::pick(client_key(client), candidates()),
        }
    }
}

impl Picker {
    /// The place of a backend that is [`Down`](State::Down), for a client that no other one is left
    /// for: the one with the fewest connections refused in a row, by chance among equals. Being
    /// down is a verdict of the past.
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
            if self.rng.below(equals) == 0 {
                best = Some((at, refusals));
            }
        }
        best.map(|(at, _)| at)
    }
}

/// The place of the backend whose [`tag`](crate::CookieKey::tag) a client's cookie has; `None` if
/// it is gone or not [`Up`](State::Up), and the client is to be picked for anew.
#[must_use]
pub fn pick_bound(configuration: &Configuration, tag: u64) -> Option<usize> {
    let key = &configuration.settings.cookie_key;
    let mut all = candidates(configuration, &|_| true);
    all.find(|(_, backend)| key.tag(backend.address()) == tag).map(|(place, _)| place)
}

/// The place of the backend that rendezvous hashing gives to `key`, whatever
/// [`Settings::pick`](crate::Settings::pick) is: what binds a client to a backend by a header, a parameter or its
/// address, without a table of clients. `usable` as in [`Picker::pick`].
#[must_use]
pub fn pick_by_key(
    configuration: &Configuration,
    key: u64,
    usable: impl Fn(usize) -> bool,
) -> Option<usize> {
    rendezvous::pick(key, candidates(configuration, &usable))
}

/// What a client is told apart by if nothing better is known: its IPv4 address, or the /64 network of its IPv6 address,
/// because within it a machine changes its address as it likes.
#[must_use]
pub fn client_key(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

/// Those that may be picked, with their places.
fn candidates<'a>(
    configuration: &'a Configuration,
    usable: &'a impl Fn(usize) -> bool,
) -> impl Iterator<Item = (usize, &'a Backend)> {
    let all = configuration.backends.iter().map(|target| &*target.backend).enumerate();
    all.filter(|&(place, backend)| backend.state() == State::Up && usable(place))
}

/// How `one` and `other` compare by what each would have open per share with one more client. Not by what it has:
/// of two that have nothing the heavier is to be first, and one in its slow start last.
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
