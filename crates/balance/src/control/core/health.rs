//! Effects of failures, checks and time on backends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use throng_io::Instant;

use super::{ControlCommand, ControlCore};
use crate::backend::{Backend, State};
use crate::checks::CheckFailure;
use crate::health::Verdict;
use crate::registry::{Cause, Entry};
use crate::report::Failure;
use crate::settings::{Check, CheckKind};

/// The interval at which growing shares are set, and backends on probation are checked for answers.
const GROWTH: Duration = Duration::from_millis(100);

/// The interval at which backends being removed are checked for their last tunnel: shards do not
/// report its end.
const LAST_TUNNEL: Duration = Duration::from_millis(250);

impl ControlCore {
    /// Records that a connection to `backend`, its answer or a tunnel failed. Failures of the
    /// balancer itself are recorded but do not count for the backend's health; nor do failures with
    /// `spares_health`, except failures to connect: an answer to a request that failed elsewhere
    /// before, and a tunnel.
    pub(crate) fn handle_failure(
        &mut self,
        backend: &Arc<Backend>,
        failure: Failure,
        spares_health: bool,
        now: Instant,
        at: SystemTime,
    ) {
        if failure.is_ours() {
            self.own_failure = Some((backend.address(), failure, at));
            return;
        }
        let Some(place) = self.place(backend) else { return };
        let entry = &mut self.entries[place];
        entry.last_failure = Some((Cause::Request(failure), at));
        entry.note_success();
        let pool = Arc::clone(&entry.pool);
        let health = &pool.settings.health;
        let change = if failure.is_of_connection() {
            entry.tracker.handle_failures(now, 1, health)
        } else if !spares_health && self.half_are(place, |_| true) {
            let entry = &mut self.entries[place];
            let answered = entry.answered();
            entry.tracker.handle_failed_answer(now, answered, health)
        } else {
            None
        };
        if change.is_some() {
            self.settle(place, now);
        }
    }

    /// Returns whether at least half of the backends of a pool that are not being removed are up
    /// and `well`, not counting the one at `place`. This is Envoy's panic threshold.
    fn half_are(&self, place: usize, well: impl Fn(&Entry) -> bool) -> bool {
        let pool = &self.entries[place].pool.name;
        let (mut all, mut up) = (0, 0);
        for (at, entry) in self.entries.iter().enumerate() {
            match entry.state() {
                _ if !entry.is_offered() || !entry.is_in(pool) => {}
                State::Up if at != place && well(entry) => (all, up) = (all + 1, up + 1),
                State::Up | State::Down => all += 1,
                State::Draining | State::Removed => {}
            }
        }
        2 * up >= all
    }

    /// Returns the pools that have fewer than half of their backends up.
    fn pools_in_panic(&self) -> BTreeSet<Arc<str>> {
        let mut pools: BTreeMap<&Arc<str>, (usize, usize)> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.is_offered()) {
            let (all, up) = pools.entry(&entry.pool.name).or_default();
            match entry.state() {
                State::Up => (*all, *up) = (*all + 1, *up + 1),
                State::Down => *all += 1,
                State::Draining | State::Removed => {}
            }
        }
        let panicking = pools.into_iter().filter(|(_, (all, up))| 2 * up < *all);
        panicking.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns whether the tunnels of a dead backend may be closed: at least half of the backends
    /// are up, and pass their checks. If all fail for one reason, such as a broker that is away,
    /// their clients have nowhere to go; the first of them to fall differs from a single dead
    /// backend by the failed checks of the others since.
    pub(super) fn may_close(&self, place: usize) -> bool {
        self.half_are(place, |entry| entry.failed_checks == 0)
    }

    /// Stops closing the tunnels of dead backends if too few others are up.
    fn hold_tunnels_in_panic(&mut self) {
        let panicking = self.pools_in_panic();
        let panics = !panicking.is_empty();
        let (panicked, times) = self.panic;
        self.panic = (panics, times + u64::from(panics && !panicked));
        if !panics {
            return;
        }
        for entry in &mut self.entries {
            let panics = panicking.contains(&entry.pool.name);
            if panics && entry.backend.state() == State::Down && !entry.keeps_tunnels {
                (entry.keeps_tunnels, entry.failed_checks) = (true, 0);
                self.commands.push(ControlCommand::Keep(Arc::clone(&entry.backend)));
            }
        }
    }

    /// Ignores verdicts of answers, which clients may have caused, if too few other backends are
    /// up.
    fn ignore_answers_in_panic(&mut self, now: Instant) {
        let is_faulty = |entry: &Entry| entry.tracker.verdict() == Some(Verdict::Answers);
        if !self.entries.iter().any(is_faulty) {
            return;
        }
        let panicking = self.pools_in_panic();
        for entry in &mut self.entries {
            if panicking.contains(&entry.pool.name) && entry.tracker.ignore_answers().is_some() {
                entry.begin_probation(now);
            }
        }
    }

    /// Records an active check that passed, or the reason why it did not.
    pub(crate) fn handle_check(
        &mut self,
        backend: &Arc<Backend>,
        outcome: Result<(), CheckFailure>,
        now: Instant,
        at: SystemTime,
    ) {
        if let Err(CheckFailure::Ours(failure)) = outcome {
            return self.handle_failure(backend, failure, false, now, at);
        }
        let Some(place) = self.place(backend) else { return };
        let entry = &mut self.entries[place];
        let passed = outcome.is_ok();
        if let Err(CheckFailure::Backend(why)) = outcome {
            entry.last_failure = Some((Cause::Check(why), at));
        }
        entry.failed_checks = if passed { 0 } else { entry.failed_checks.saturating_add(1) };
        let pool = Arc::clone(&entry.pool);
        if entry.tracker.handle_check(now, passed, &pool.settings.health).is_some() {
            self.settle(place, now);
        }
        let fall = self.fall(place);
        let entry = &self.entries[place];
        if entry.backend.state() != State::Down || !entry.keeps_tunnels {
            return;
        }
        let may_close = self.may_close(place);
        let entry = &mut self.entries[place];
        if !(may_close || entry.expired && entry.is_empty()) {
            // When the other backends are up again, this backend also gets time to recover.
            entry.failed_checks = 0;
        } else if may_close && entry.failed_checks >= fall {
            entry.keeps_tunnels = false;
            self.close_all_of_dead(place);
        }
    }

    /// Returns the failures in a row after which the checks declare the backend at `at` dead.
    pub(super) fn fall(&self, at: usize) -> u32 {
        let entry = &self.entries[at];
        match &entry.pool.settings.health.check {
            Some(check) => check.fall,
            None if entry.expired => Check::new(CheckKind::Tcp).fall,
            // A check that was in progress when checks were switched off.
            None => u32::MAX,
        }
    }

    /// Executes everything that is due. Returns the time of the next action.
    pub(crate) fn expire(&mut self, now: Instant, wall: SystemTime) -> Option<Instant> {
        self.ignore_answers_in_panic(now);
        self.hold_tunnels_in_panic();
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            let silent = entry.desired.ttl.filter(|ttl| ttl.expires <= now);
            if let Some(ttl) = silent {
                entry.desired.ttl = None;
                entry.last_failure = Some((Cause::Silent(ttl.time_to_live), wall));
                if entry.is_being_removed() {
                    // Missing heartbeats do not count as a fault of its tunnels: it gets no new
                    // clients, and is checked itself.
                    (entry.expired, entry.failed_checks) = (true, 0);
                    (self.is_changed, self.names_changed) = (true, true);
                }
            }
            let pool = Arc::clone(&entry.pool);
            if entry.tracker.expire(now, &pool.settings.health).is_some() {
                entry.begin_probation(now);
            }
            self.settle(at, now);
        }
        self.let_go();
        let mut next: Option<Instant> = None;
        for entry in &mut self.entries {
            let grows = entry.grow(now);
            let due = [
                entry.desired.ttl.map(|ttl| ttl.expires),
                entry.tracker.next_due(&entry.pool.settings.health),
                grows.then(|| now.after(GROWTH)),
                entry.is_being_removed().then(|| now.after(LAST_TUNNEL)),
            ];
            next = due.into_iter().flatten().chain(next).min();
        }
        next
    }

    /// Removes backends from the list that are not desired and have nothing open.
    fn let_go(&mut self) {
        self.gone.retain(|(_, backend)| backend.strong_count() > 0);
        let falls: Vec<u32> = (0..self.entries.len()).map(|at| self.fall(at)).collect();
        let Self { entries, gone, commands, is_changed, names_changed, .. } = self;
        let mut falls = falls.into_iter();
        entries.retain(|entry| {
            let fall = falls.next().unwrap_or(u32::MAX);
            let stays =
                !entry.is_being_removed() || !entry.is_empty() || entry.is_only_silent(fall);
            if !stays {
                entry.backend.set_state(State::Removed);
                // Shards drop their close jobs for it.
                commands.push(ControlCommand::Keep(Arc::clone(&entry.backend)));
                gone.push((Arc::clone(&entry.pool.name), Arc::downgrade(&entry.backend)));
                (*is_changed, *names_changed) = (true, true);
            }
            stays
        });
    }
}
