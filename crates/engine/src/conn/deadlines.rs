//! One deadline for each slot.
//!
//! A sweep looks at one lower bound for each block of slots, and at the slots of a block only once
//! its bound is due. So connections that wait for long cost a sweep next to nothing, and nothing is
//! inserted, removed or sorted when a deadline moves: activity is one store. A linked list of
//! timers takes tens of milliseconds for a million entries, and hundreds after churn.

/// Time in units of a clock, small enough to be kept for every slot.
pub trait DeadlineTick: Copy + Eq {
    /// No deadline.
    const NEVER: Self;
    /// Ticks in a second.
    const PER_SECOND: u32;

    /// Returns the ticks from `start` to here: 0 if it is not later, `u32::MAX` for
    /// [`DeadlineTick::NEVER`].
    fn ticks_from(self, start: Self) -> u32;
}

/// Slots that share a lower bound.
const BLOCK: usize = 64;

/// One deadline a slot.
#[derive(Debug)]
pub struct Deadlines<T> {
    ticks: Vec<T>,
    /// For each block, a tick that is not later than any of its deadlines.
    bounds: Vec<T>,
    /// The tick of the last sweep.
    swept: T,
}

impl<T: DeadlineTick> Deadlines<T> {
    /// Creates an empty table at the first tick of its clock.
    #[must_use]
    pub const fn new(start: T) -> Self {
        Self { ticks: Vec::new(), bounds: Vec::new(), swept: start }
    }

    /// Reserves address space for `slots`; memory is touched as slots come into use.
    pub fn reserve(&mut self, slots: usize) {
        self.ticks.reserve_exact(slots);
        self.bounds.reserve_exact(slots.div_ceil(BLOCK));
    }

    /// Adds `slot`, without a deadline.
    pub fn add_slot(&mut self, slot: usize) {
        if self.ticks.len() <= slot {
            self.ticks.resize(slot + 1, T::NEVER);
            self.bounds.resize(slot / BLOCK + 1, T::NEVER);
        }
    }

    /// Returns the deadline of `slot`.
    #[must_use]
    pub fn get(&self, slot: usize) -> T {
        self.ticks.get(slot).copied().unwrap_or(T::NEVER)
    }

    /// Sets the deadline of `slot`.
    #[inline]
    pub fn set(&mut self, slot: usize, due: T) {
        // All activity within one tick sets the same deadline.
        if self.ticks[slot] != due {
            self.change(slot, due);
        }
    }

    #[cold]
    #[inline(never)]
    fn change(&mut self, slot: usize, due: T) {
        self.ticks[slot] = due;
        let bound = &mut self.bounds[slot / BLOCK];
        if due.ticks_from(self.swept) < bound.ticks_from(self.swept) {
            *bound = due;
        }
    }

    /// Returns the ticks from `now` to the first deadline, if there is one. Looks at all of them.
    #[must_use]
    pub fn earliest(&self, now: T) -> Option<u32> {
        let set = self.ticks.iter().filter(|tick| **tick != T::NEVER);
        set.map(|tick| tick.ticks_from(now)).min()
    }

    /// Appends to `due` the slots whose deadlines have come since the last sweep, and clears those
    /// deadlines. Returns the number of slots that it looked at.
    pub fn expire(&mut self, now: T, due: &mut Vec<u32>) -> usize {
        let last = std::mem::replace(&mut self.swept, now);
        let elapsed = now.ticks_from(last);
        let mut looked_at = 0;
        let blocks = self.bounds.iter_mut().zip(self.ticks.chunks_mut(BLOCK)).enumerate();
        for (block, (bound, ticks)) in blocks {
            if bound.ticks_from(last) > elapsed {
                continue;
            }
            looked_at += ticks.len();
            *bound = T::NEVER;
            let mut first = u32::MAX;
            for (offset, tick) in ticks.iter_mut().enumerate() {
                let distance = tick.ticks_from(last);
                if distance <= elapsed {
                    *tick = T::NEVER;
                    due.push((block * BLOCK + offset) as u32);
                } else if distance < first {
                    first = distance;
                    *bound = *tick;
                }
            }
        }
        looked_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::timers::Tick as Seconds;

    #[test]
    fn the_earliest_deadline_is_found_across_the_wrap() {
        let now = Seconds::START.after(65_530);
        let mut deadlines = Deadlines::new(Seconds::START);
        deadlines.add_slot(2);
        assert_eq!(deadlines.earliest(now), None);
        deadlines.set(0, now.after(40));
        deadlines.set(2, now.after(7));
        assert_eq!(deadlines.earliest(now), Some(7));
    }

    #[test]
    fn every_deadline_expires_once_whatever_the_stride() {
        for stride in [1u16, 2, 7, 300] {
            for start in [Seconds::START, Seconds::START.after(65_500)] {
                let mut deadlines = Deadlines::new(start);
                deadlines.add_slot(299);
                for slot in 0..299u16 {
                    deadlines.set(slot as usize, start.after(slot + 1));
                }
                let (mut last, mut expired, mut at) = (start, Vec::new(), 0u32);
                while at < 300 {
                    let before = expired.len();
                    let now = last.after(stride);
                    deadlines.expire(now, &mut expired);
                    at += u32::from(stride);
                    for slot in &expired[before..] {
                        assert!((at - u32::from(stride)..at).contains(slot));
                    }
                    last = now;
                }
                expired.sort_unstable();
                assert_eq!(
                    expired,
                    (0..299).collect::<Vec<_>>(),
                    "stride {stride}; 299 has no deadline"
                );
            }
        }
    }

    /// Deadlines that move earlier and later at random, against a plain list of them.
    #[test]
    fn deadlines_that_move_expire_when_due_and_not_before() {
        let mut random = crate::random::Random::new(7);
        let start = Seconds::START.after(65_000);
        let mut deadlines = Deadlines::new(start);
        deadlines.add_slot(199);
        let mut expected = [None; 200];
        let mut now = start;
        for second in 0..2000u32 {
            for _ in 0..random.below(20) {
                let slot = random.below(200) as usize;
                let wait = [1, 2, 10, 60, 700][random.below(5) as usize];
                deadlines.set(slot, now.after(wait));
                expected[slot] = Some(second + u32::from(wait));
            }
            let slot = random.below(200) as usize;
            deadlines.set(slot, Seconds::NEVER);
            expected[slot] = None;
            now = now.after(1);
            let mut due = Vec::new();
            deadlines.expire(now, &mut due);
            let is_due = |at: &Option<u32>| at.is_some_and(|at| at <= second + 1);
            let wanted: Vec<_> = (0..200).filter(|&slot| is_due(&expected[slot])).collect();
            assert_eq!(due.iter().map(|&slot| slot as usize).collect::<Vec<_>>(), wanted);
            wanted.iter().for_each(|&slot| expected[slot] = None);
        }
    }

    /// The cost of a sweep depends on the number of due deadlines, not on the number of
    /// connections.
    #[test]
    fn slots_that_wait_for_an_hour_are_hardly_looked_at() {
        let looked_at = |slots: usize| {
            let mut deadlines = Deadlines::new(Seconds::START);
            deadlines.add_slot(slots - 1);
            (0..slots).for_each(|slot| deadlines.set(slot, Seconds::START.after(3600)));
            let mut due = Vec::new();
            let count = |now| deadlines.expire(Seconds::START.after(now), &mut due);
            let before: usize = (1..3600).map(count).sum();
            let last = deadlines.expire(Seconds::START.after(3600), &mut due);
            assert_eq!((last, due.len()), (slots, slots));
            before
        };
        assert_eq!(looked_at(1000), 0);
        assert_eq!(looked_at(100_000), 0);
    }

    #[test]
    fn a_slot_that_is_active_is_looked_at_once_in_its_time() {
        let mut deadlines = Deadlines::new(Seconds::START);
        deadlines.add_slot(0);
        let (mut looked_at, mut now, mut due) = (0, Seconds::START, Vec::new());
        for _ in 0..1000 {
            deadlines.set(0, now.after(25));
            now = now.after(1);
            looked_at += deadlines.expire(now, &mut due);
        }
        assert_eq!((looked_at, due.len()), (41, 0));
    }
}
