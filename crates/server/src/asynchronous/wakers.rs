//! Wakers of futures that wait for the same event.

use std::task::Waker;

/// A set of wakers, by slot. A future keeps its slot from its first wait until its end.
///
/// Wakers are returned instead of being woken or dropped here: either may run code that takes the
/// lock around this set.
#[derive(Debug, Default)]
pub(super) struct WakerSet {
    slots: Vec<Slot>,
}

#[derive(Debug)]
enum Slot {
    Free,
    /// In use; it has a waker while its future waits.
    Taken(Option<Waker>),
}

impl WakerSet {
    /// Stores `waker` in `slot`, or in a new slot, and returns the waker that it replaces.
    #[must_use = "dropped only where no lock is held"]
    pub(super) fn wait(&mut self, slot: &mut Option<usize>, waker: &Waker) -> Option<Waker> {
        let number = *slot.get_or_insert_with(|| {
            let free = self.slots.iter().position(|slot| matches!(slot, Slot::Free));
            free.unwrap_or_else(|| {
                self.slots.push(Slot::Free);
                self.slots.len() - 1
            })
        });
        match &mut self.slots[number] {
            Slot::Taken(Some(old)) if old.will_wake(waker) => None,
            slot => match std::mem::replace(slot, Slot::Taken(Some(waker.clone()))) {
                Slot::Taken(old) => old,
                Slot::Free => None,
            },
        }
    }

    /// Frees a slot, if there is one.
    #[must_use = "dropped only where no lock is held"]
    pub(super) fn leave(&mut self, slot: &mut Option<usize>) -> Option<Waker> {
        let left = std::mem::replace(&mut self.slots[slot.take()?], Slot::Free);
        if self.slots.iter().all(|slot| matches!(slot, Slot::Free)) {
            // An idle session keeps no memory for earlier waits.
            self.slots = Vec::new();
        }
        match left {
            Slot::Taken(waker) => waker,
            Slot::Free => None,
        }
    }

    /// Takes the wakers of all futures that wait. The futures keep their slots.
    pub(super) fn take_waiting(&mut self, into: &mut Vec<Waker>) {
        for slot in &mut self.slots {
            if let Slot::Taken(waker) = slot {
                into.extend(waker.take());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_reused_only_after_it_was_freed() {
        let mut set = WakerSet::default();
        let (mut first, mut second, mut third) = (None, None, None);
        assert!(set.wait(&mut first, Waker::noop()).is_none());
        assert!(set.wait(&mut second, Waker::noop()).is_none());
        assert_eq!((first, second), (Some(0), Some(1)));
        let mut woken = Vec::new();
        set.take_waiting(&mut woken);
        assert_eq!(woken.len(), 2);
        set.take_waiting(&mut woken);
        assert_eq!(woken.len(), 2, "no waker is taken twice");
        assert!(set.wait(&mut second, Waker::noop()).is_none());
        assert_eq!(second, Some(1));
        assert!(set.leave(&mut first).is_none() && first.is_none());
        assert!(set.wait(&mut third, Waker::noop()).is_none());
        assert_eq!(third, Some(0));
        assert!(set.leave(&mut second).is_some());
        assert!(set.leave(&mut third).is_some());
        assert_eq!(set.slots.capacity(), 0);
    }
}
