//! Expanded keys of recently used connections.
//!
//! To expand a key costs two allocations and the time of sealing a short record. An expanded key
//! needs 0.6 KB a direction, twice the memory of an idle connection. So the keys of recently used
//! connections are kept, at most [`ENTRIES`] of them, and released after a time without use.

use std::time::Duration;

use throng_io::{ConnId, Instant};

use crate::session::WarmKeys;

/// Maximum connections whose keys are kept.
const ENTRIES: usize = 1024;

/// Minimum time without use after which keys are released.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

struct WarmConn {
    id: ConnId,
    keys: WarmKeys,
    /// Whether the keys were used since the last sweep.
    was_used: bool,
}

impl WarmConn {
    fn new(id: ConnId) -> Box<Self> {
        Box::new(Self { id, keys: WarmKeys::default(), was_used: true })
    }
}

/// Assigns a place to another connection. Returns whether it was free.
#[cold]
#[inline(never)]
fn begin(place: &mut Option<Box<WarmConn>>, id: ConnId) -> bool {
    place.replace(WarmConn::new(id)).is_none()
}

/// The keys; the slot determines the place.
#[derive(Default)]
pub(super) struct Warm {
    /// Empty, or of length [`ENTRIES`].
    entries: Vec<Option<Box<WarmConn>>>,
    used: usize,
    next_sweep: Option<Instant>,
}

impl Warm {
    /// Returns the keys of a connection; they are not expanded yet if it was not used lately.
    #[inline]
    pub(super) fn keys(&mut self, id: ConnId) -> &mut WarmKeys {
        if self.entries.is_empty() {
            self.allocate();
        }
        let place = &mut self.entries[id.slot() % ENTRIES];
        if place.as_ref().is_none_or(|entry| entry.id != id) {
            self.used += usize::from(begin(place, id));
        }
        let entry = place.get_or_insert_with(|| WarmConn::new(id));
        entry.was_used = true;
        &mut entry.keys
    }

    #[cold]
    #[inline(never)]
    fn allocate(&mut self) {
        self.entries.resize_with(ENTRIES, || None);
    }

    /// Releases the keys of a connection that has ended.
    pub(super) fn forget(&mut self, id: ConnId) {
        let Some(place) = self.entries.get_mut(id.slot() % ENTRIES) else { return };
        if place.as_ref().is_some_and(|entry| entry.id == id) {
            *place = None;
            self.used -= 1;
        }
    }

    /// Releases the keys that were not used since the last sweep, if one is due. Returns when the
    /// next one is.
    #[inline]
    pub(super) fn sweep(&mut self, now: Instant) -> Option<Instant> {
        if self.entries.is_empty() {
            return None;
        }
        let due = *self.next_sweep.get_or_insert(now.after(SWEEP_EVERY));
        if now < due { Some(due) } else { self.sweep_now(now) }
    }

    #[cold]
    fn sweep_now(&mut self, now: Instant) -> Option<Instant> {
        for place in &mut self.entries {
            if let Some(entry) = place
                && !std::mem::take(&mut entry.was_used)
            {
                *place = None;
                self.used -= 1;
            }
        }
        if self.used == 0 {
            self.entries = Vec::new();
        }
        self.next_sweep = (self.used > 0).then(|| now.after(SWEEP_EVERY));
        self.next_sweep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32) -> ConnId {
        ConnId::new(0, slot, 1)
    }

    #[test]
    fn keys_that_rest_are_given_back() {
        let (mut warm, second) = (Warm::default(), 1_000_000_000);
        assert_eq!(warm.sweep(Instant(0)), None);
        for slot in 0..5000 {
            warm.keys(id(slot));
        }
        assert_eq!(warm.used, ENTRIES);
        assert_eq!(warm.sweep(Instant(0)), Some(Instant(second)));
        assert_eq!(warm.sweep(Instant(second)), Some(Instant(2 * second)));
        warm.keys(id(4999));
        assert_eq!(warm.sweep(Instant(2 * second)), Some(Instant(3 * second)));
        assert_eq!(warm.used, 1);
        assert_eq!(warm.sweep(Instant(3 * second)), None);
        assert_eq!((warm.used, warm.entries.capacity()), (0, 0));
    }

    #[test]
    fn only_its_own_keys_are_given_back_with_a_connection() {
        let mut warm = Warm::default();
        warm.keys(id(7));
        warm.forget(id(7 + ENTRIES as u32));
        assert_eq!(warm.used, 1);
        warm.forget(id(7));
        assert_eq!(warm.used, 0);
    }
}
