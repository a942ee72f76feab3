//! Numbers of open tunnels by key: exact over all shards, and as many keys as tunnels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::LimitState;

/// The open tunnels of a limit by key. It is locked when a tunnel opens and when it ends.
#[derive(Debug, Default)]
pub(super) struct TunnelCounts(Mutex<HashMap<u64, u32>>);

impl TunnelCounts {
    /// Counts one more tunnel of a key, unless there are `most`.
    fn enter(&self, key: u64, most: u32) -> bool {
        let mut counts = self.lock();
        let count = counts.entry(key).or_default();
        let has_space = *count < most;
        if has_space {
            *count += 1;
        } else if most == 0 {
            counts.remove(&key);
        }
        has_space
    }

    fn leave(&self, key: u64) {
        let mut counts = self.lock();
        match counts.get_mut(&key) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                counts.remove(&key);
                // Memory of many keys is given back.
                if counts.len() < counts.capacity() / 8 {
                    counts.shrink_to_fit();
                }
            }
            None => debug_assert!(false, "given back more often than taken"),
        }
    }

    /// Returns the open tunnels of all keys.
    pub(super) fn all(&self) -> u64 {
        self.lock().values().map(|count| u64::from(*count)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a tunnel, or of its handshake, in a limit. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct TunnelPlace {
    state: Arc<LimitState>,
    key: u64,
}

impl TunnelPlace {
    /// Takes a place, unless `most` are taken.
    pub(super) fn take(state: &Arc<LimitState>, key: u64, most: u32) -> Option<Self> {
        state.tunnels.enter(key, most).then(|| Self { state: Arc::clone(state), key })
    }

    /// Returns its key.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn is_of(&self, state: &Arc<LimitState>) -> bool {
        Arc::ptr_eq(&self.state, state)
    }
}

impl Drop for TunnelPlace {
    fn drop(&mut self) {
        self.state.tunnels.leave(self.key);
    }
}

/// The places of a tunnel in all its limits. Most tunnels have one at most.
#[derive(Debug, Default)]
pub(crate) struct TunnelPlaces {
    first: Option<TunnelPlace>,
    #[allow(clippy::box_collection, reason = "it is rare, and the table of tunnels is large")]
    others: Option<Box<Vec<TunnelPlace>>>,
}

impl TunnelPlaces {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn push(&mut self, place: TunnelPlace) {
        match &self.first {
            None => self.first = Some(place),
            Some(_) => self.others.get_or_insert_default().push(place),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &TunnelPlace> {
        self.first.iter().chain(self.others.iter().flat_map(|others| others.iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_a_key_are_exact_and_all_are_given_back() {
        let state = Arc::new(LimitState::new());
        let mut places = TunnelPlaces::default();
        for (key, expected) in [(1, true), (1, true), (1, false), (2, true), (2, true), (2, false)]
        {
            let place = TunnelPlace::take(&state, key, 2);
            assert_eq!(place.is_some(), expected, "{key}");
            place.into_iter().for_each(|place| places.push(place));
        }
        assert!(TunnelPlace::take(&state, 3, 0).is_none());
        assert_eq!((places.iter().count(), state.tunnels.all()), (4, 4));
        drop(places);
        assert_eq!((state.tunnels.all(), state.tunnels.lock().len()), (0, 0));
    }

    #[test]
    fn a_limited_tunnel_takes_at_most_64_bytes() {
        // With its key in a table that is at least half full, and a byte of that.
        let entry = size_of::<(throng_io::ConnId, TunnelPlaces)>() + 1;
        assert!(entry <= 64, "{entry}");
    }

    #[test]
    fn threads_that_open_tunnels_at_once_do_not_exceed_the_limit() {
        let state = Arc::new(LimitState::new());
        let work = |_| {
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                for _ in 0..5_000 {
                    let place = TunnelPlace::take(&state, 7, 2);
                    assert!(state.tunnels.all() <= 2);
                    drop(place);
                }
            })
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(state.tunnels.all(), 0);
    }
}
