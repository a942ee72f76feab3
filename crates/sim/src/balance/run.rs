//! Virtual time of a run, and the violations found in it.

use super::world::World;

/// Violations after which a run ends.
const MAX_VIOLATIONS: usize = 12;

/// Actions without progress of time after which a run has failed.
const MAX_ACTIONS: u32 = 200_000;

impl World {
    pub(super) fn now(&self) -> u64 {
        self.net.borrow().now()
    }

    /// Adds a violation, unless it was added before.
    pub(super) fn violation(&mut self, what: String) {
        let at = self.now() / 1_000_000;
        let is_new = self.violations.iter().all(|known| !known.ends_with(&what));
        if is_new && self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(format!("at {at} ms: {what}"));
        }
    }

    /// Runs until `until` holds, no more events are possible, or `most` nanoseconds have passed.
    /// Returns true if `until` holds.
    pub(super) fn run_until(&mut self, most: u64, until: impl Fn(&Self) -> bool) -> bool {
        let end = self.now().saturating_add(most);
        let mut stood_still = 0;
        loop {
            if until(self) {
                return true;
            }
            if self.violations.len() >= MAX_VIOLATIONS {
                return false;
            }
            let before = self.now();
            if self.step() {
                stood_still = if self.now() == before { stood_still + 1 } else { 0 };
                if stood_still > MAX_ACTIONS {
                    self.violation("time stands still".to_owned());
                    return false;
                }
                continue;
            }
            let Some(next) = self.next_at().filter(|next| *next <= end) else { return until(self) };
            self.net.borrow_mut().advance_to(next.max(before + 1));
            stood_still = 0;
        }
    }
}
