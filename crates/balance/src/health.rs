//! The health of a backend: derives few changes of its state from its connections, answers and
//! checks.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use throng_io::Instant;

use crate::backend::State;
use crate::settings::{Health, Observe};

/// A tracker of one backend's health: a circuit breaker (closed, open, half-open) that active
/// checks may also switch.
///
/// Each call may return that the backend is now [`State::Up`] or [`State::Down`]; the control
/// thread then sets that state, unless an operator is [draining](State::Draining) it, which takes
/// precedence. The settings come with each call, because they may change at any time; a backend's
/// failures survive that.
///
/// * Without active checks it is up again, on probation ([`HealthTracker::is_half_open`]), after
///   [`Health::down_for`]. Then the first success restores it, and the first failure takes it down
///   again.
/// * With active checks only [`Check::rise`](crate::Check::rise) successful checks in a row bring
///   it up, for any cause that took it down.
#[derive(Debug, Default)]
pub struct HealthTracker {
    stage: ProbeStage,
    /// The times at which connects and handshakes failed, each with a count, oldest first; nothing
    /// older than [`Health::within`], and never more than [`Health::failures`] entries.
    failures: VecDeque<(Instant, u32)>,
    answers: Answers,
    /// Checks in a row that contradict the stage: failures of a backend that is up, or successes of
    /// a backend that is down.
    contradictions: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProbeStage {
    #[default]
    Up,
    HalfOpen,
    Down {
        since: Instant,
        by: Verdict,
    },
}

/// The stage of a tracker that a successor of this process goes on with.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum CarriedStage {
    #[default]
    Up,
    HalfOpen,
    Down(Verdict),
}

/// The cause that took a backend down.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Connections of clients that it did not accept.
    Connections,
    /// Answers to clients that failed.
    Answers,
    /// Active checks that failed.
    Checks,
}

/// Answers since the beginning of a span of [`Health::within`].
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    since: Instant,
    failed: u32,
    /// The number of all its answers when the span began.
    answered_before: u64,
}

impl HealthTracker {
    /// Creates a tracker for a backend that is up and has no history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the tracker considers it up, on probation or not.
    #[must_use]
    pub fn is_up(&self) -> bool {
        !matches!(self.stage, ProbeStage::Down { .. })
    }

    /// Returns whether it is up on probation. It should then get few clients: the first of its
    /// [slow start](crate::share_at).
    #[must_use]
    pub fn is_half_open(&self) -> bool {
        self.stage == ProbeStage::HalfOpen
    }

    /// Returns the cause that took it down, if it is down.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        match self.stage {
            ProbeStage::Down { by, .. } => Some(by),
            ProbeStage::Up | ProbeStage::HalfOpen => None,
        }
    }

    /// Records that `count` connections of clients failed since the last call. With
    /// [`Health::failures`] of 0 they never count. Failures of a backend that is down began before
    /// and carry no information.
    #[must_use = "the backend's state changes with it"]
    pub fn handle_failures(&mut self, now: Instant, count: u32, health: &Health) -> Option<State> {
        if count == 0 || health.failures == 0 || !self.is_up() {
            return None;
        }
        self.failures.retain(|&(at, _)| now.since(at) <= health.within);
        self.failures.push_back((now, count));
        let sum = self.failures.iter().fold(0u32, |sum, &(_, count)| sum.saturating_add(count));
        let is_dead = self.is_half_open() || sum >= health.failures;
        is_dead.then(|| self.go_down(now, Verdict::Connections))
    }

    /// Records that an answer to a client failed. `answered`: the total of successful answers. The
    /// failure counts only with [`Observe::Answers`], and only while at least as many answers fail
    /// as succeed.
    #[must_use = "the backend's state changes with it"]
    pub fn handle_failed_answer(
        &mut self,
        now: Instant,
        answered: u64,
        health: &Health,
    ) -> Option<State> {
        if health.observe != Observe::Answers || health.failures == 0 || !self.is_up() {
            return None;
        }
        if self.answers.failed == 0 || now.since(self.answers.since) > health.within {
            self.answers = Answers { since: now, failed: 0, answered_before: answered };
        }
        self.answers.failed = self.answers.failed.saturating_add(1);
        let Answers { failed, answered_before, .. } = self.answers;
        let enough = if self.is_half_open() { 1 } else { health.failures };
        let is_faulty =
            failed >= enough && u64::from(failed) >= answered.saturating_sub(answered_before);
        is_faulty.then(|| self.go_down(now, Verdict::Answers))
    }

    /// Ignores a verdict of answers: the backend is up, on probation. Does nothing if something
    /// else took it down.
    #[must_use = "the backend's state changes with it"]
    pub fn ignore_answers(&mut self) -> Option<State> {
        (self.verdict() == Some(Verdict::Answers)).then(|| self.come_up(ProbeStage::HalfOpen))
    }

    /// Records that a client's connect and handshake succeeded. This only ends a probation: a
    /// backend that fails every second client must also go down.
    pub fn handle_success(&mut self) {
        if self.is_half_open() {
            self.stage = ProbeStage::Up;
        }
    }

    /// Records an active check. Without [`Health::check`] the check was in progress when checks
    /// were switched off, and is ignored.
    #[must_use = "the backend's state changes with it"]
    pub fn handle_check(&mut self, now: Instant, passed: bool, health: &Health) -> Option<State> {
        let check = health.check.as_ref()?;
        if passed == self.is_up() {
            self.contradictions = 0;
            return None;
        }
        self.contradictions += 1;
        let needed = if passed { check.rise } else { check.fall };
        if self.contradictions < needed {
            return None;
        }
        Some(if passed { self.come_up(ProbeStage::Up) } else { self.go_down(now, Verdict::Checks) })
    }

    /// Executes actions due at `now`: without active checks, a backend that was down for long
    /// enough is up on probation.
    #[must_use = "the backend's state changes with it"]
    pub fn expire(&mut self, now: Instant, health: &Health) -> Option<State> {
        let due = self.next_due(health)?;
        (due <= now).then(|| self.come_up(ProbeStage::HalfOpen))
    }

    /// Returns when [`HealthTracker::expire`] is due, if nothing else happens.
    #[must_use]
    pub fn next_due(&self, health: &Health) -> Option<Instant> {
        match (self.stage, &health.check) {
            (ProbeStage::Down { since, .. }, None) => Some(since.after(health.down_for)),
            _ => None,
        }
    }

    /// Returns the stage, for a successor.
    pub(crate) fn carried(&self) -> CarriedStage {
        match self.stage {
            ProbeStage::Up => CarriedStage::Up,
            ProbeStage::HalfOpen => CarriedStage::HalfOpen,
            ProbeStage::Down { by, .. } => CarriedStage::Down(by),
        }
    }

    /// Goes on with the stage of a predecessor; its times begin again.
    pub(crate) fn take_over(&mut self, stage: CarriedStage, now: Instant) {
        self.begin(match stage {
            CarriedStage::Up => ProbeStage::Up,
            CarriedStage::HalfOpen => ProbeStage::HalfOpen,
            CarriedStage::Down(by) => ProbeStage::Down { since: now, by },
        });
    }

    /// Returns how long it has been down, at `now`.
    #[must_use]
    pub fn down_for(&self, now: Instant) -> Option<Duration> {
        match self.stage {
            ProbeStage::Down { since, .. } => Some(now.since(since)),
            _ => None,
        }
    }

    fn go_down(&mut self, now: Instant, by: Verdict) -> State {
        self.begin(ProbeStage::Down { since: now, by });
        State::Down
    }

    fn come_up(&mut self, stage: ProbeStage) -> State {
        self.begin(stage);
        State::Up
    }

    /// Begins a stage. Events before it do not count in it.
    fn begin(&mut self, stage: ProbeStage) {
        self.stage = stage;
        self.failures.clear();
        self.answers = Answers::default();
        self.contradictions = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::settings::{Check, CheckKind};

    fn at(seconds: f64) -> Instant {
        Instant::default().after(Duration::from_secs_f64(seconds))
    }

    fn passive() -> Health {
        Health::default()
    }

    fn active() -> Health {
        Health { check: Some(Check::new(CheckKind::Tcp)), ..Health::default() }
    }

    /// A tracker that three failures took down at second 0.
    fn down() -> HealthTracker {
        let mut tracker = HealthTracker::new();
        assert_eq!(tracker.handle_failures(at(0.0), 3, &passive()), Some(State::Down));
        tracker
    }

    #[test]
    fn the_window_slides_and_includes_its_edge() {
        let table: [(&[f64], bool); 6] = [
            (&[0.0, 1.0], false),
            (&[0.0, 0.0, 0.0], true),
            (&[0.0, 5.0, 10.0], true),
            (&[0.0, 5.0, 10.000_000_001], false),
            // No fixed window of ten seconds contains three, but 6..=15 does.
            (&[0.0, 6.0, 12.0, 15.0], true),
            (&[0.0, 6.0, 12.0, 18.0, 24.0, 30.0], false),
        ];
        for (times, falls) in table {
            let mut tracker = HealthTracker::new();
            let (last, before) = times.split_last().unwrap();
            for &time in before {
                assert_eq!(tracker.handle_failures(at(time), 1, &passive()), None, "{times:?}");
            }
            let state = tracker.handle_failures(at(*last), 1, &passive());
            assert_eq!(state, falls.then_some(State::Down), "{times:?}");
            assert_eq!(tracker.is_up(), !falls);
        }
    }

    #[test]
    fn failures_reported_together_count_each() {
        let mut tracker = HealthTracker::new();
        assert_eq!(tracker.handle_failures(at(0.0), 0, &passive()), None);
        assert_eq!(tracker.handle_failures(at(0.0), 2, &passive()), None);
        assert_eq!(tracker.handle_failures(at(0.0), 0, &passive()), None);
        assert_eq!(tracker.handle_failures(at(1.0), u32::MAX, &passive()), Some(State::Down));
        // Down is reported once; attempts in progress fail later.
        assert_eq!(tracker.handle_failures(at(2.0), 5, &passive()), None);
        let never = Health { failures: 0, ..passive() };
        assert_eq!(HealthTracker::new().handle_failures(at(0.0), 100, &never), None);
    }

    #[test]
    fn successes_between_failures_do_not_hide_them() {
        let mut tracker = HealthTracker::new();
        for time in [0.0, 1.0] {
            assert_eq!(tracker.handle_failures(at(time), 1, &passive()), None);
            tracker.handle_success();
        }
        assert_eq!(tracker.handle_failures(at(2.0), 1, &passive()), Some(State::Down));
    }

    #[test]
    fn it_is_up_on_probation_after_its_time() {
        let mut tracker = down();
        assert_eq!(tracker.next_due(&passive()), Some(at(10.0)));
        assert_eq!(tracker.expire(at(9.999_999_999), &passive()), None);
        assert_eq!(tracker.down_for(at(4.0)), Some(Duration::from_secs(4)));
        tracker.handle_success();
        assert!(!tracker.is_up(), "a success from before");
        assert_eq!(tracker.expire(at(10.0), &passive()), Some(State::Up));
        assert!(tracker.is_half_open() && tracker.is_up());
        assert_eq!(
            (tracker.next_due(&passive()), tracker.expire(at(99.0), &passive())),
            (None, None)
        );
        // One failure is enough now; its time begins again.
        assert_eq!(tracker.handle_failures(at(11.0), 1, &passive()), Some(State::Down));
        assert_eq!(tracker.next_due(&passive()), Some(at(21.0)));
        assert_eq!(tracker.expire(at(21.0), &passive()), Some(State::Up));
        tracker.handle_success();
        assert!(tracker.is_up() && !tracker.is_half_open());
        assert_eq!(tracker.handle_failures(at(21.0), 2, &passive()), None, "whole again");
        assert_eq!(tracker.handle_failures(at(21.0), 1, &passive()), Some(State::Down));
    }

    #[test]
    fn checks_in_a_row_take_it_down_and_up() {
        // Default: two successes up, three failures down. + passed, - failed, capital: the
        // resulting state.
        for script in
            ["--+--+--+", "---D", "--+---D", "---D+-+-+-", "---D++U", "---D+-++U---D", "++++---D"]
        {
            let mut tracker = HealthTracker::new();
            let mut last = None;
            for letter in script.chars() {
                match letter {
                    'U' => assert_eq!(last.take(), Some(State::Up), "{script}"),
                    'D' => assert_eq!(last.take(), Some(State::Down), "{script}"),
                    _ => {
                        assert_eq!(last, None, "{script}");
                        last = tracker.handle_check(at(0.0), letter == '+', &active());
                    }
                }
            }
            assert_eq!(last, None, "{script}");
        }
    }

    #[test]
    fn only_checks_lift_what_connections_took_down() {
        let mut tracker = HealthTracker::new();
        // A success before it fell does not count towards its rise.
        assert_eq!(tracker.handle_check(at(0.0), true, &active()), None);
        assert_eq!(tracker.handle_failures(at(0.0), 3, &active()), Some(State::Down));
        assert_eq!(
            (tracker.next_due(&active()), tracker.expire(at(999.0), &active())),
            (None, None)
        );
        assert_eq!(tracker.handle_check(at(1.0), true, &active()), None);
        assert_eq!(tracker.handle_check(at(2.0), true, &active()), Some(State::Up));
        assert!(!tracker.is_half_open());
        assert_eq!(
            tracker.handle_failures(at(2.0), 2, &active()),
            None,
            "the old ones are forgotten"
        );
    }

    #[test]
    fn settings_may_change_while_it_is_down() {
        // Checks are switched off: its time counts from when it fell.
        let mut tracker = HealthTracker::new();
        assert_eq!(tracker.handle_failures(at(5.0), 3, &active()), Some(State::Down));
        assert_eq!(tracker.handle_check(at(6.0), true, &passive()), None);
        assert_eq!(tracker.handle_check(at(7.0), true, &passive()), None);
        assert_eq!(tracker.expire(at(15.0), &passive()), Some(State::Up));
        // Checks are switched on during a probation: they may take it down, and a client may end
        // it.
        assert_eq!(tracker.handle_check(at(16.0), true, &active()), None);
        assert!(tracker.is_half_open());
        for second in [17.0, 18.0] {
            assert_eq!(tracker.handle_check(at(second), false, &active()), None);
        }
        assert_eq!(tracker.handle_check(at(19.0), false, &active()), Some(State::Down));
    }

    fn observing() -> Health {
        Health { observe: Observe::Answers, ..passive() }
    }

    #[test]
    fn failed_answers_count_where_they_are_observed_and_outweigh_the_good_ones() {
        // Good answers before each failure, and whether it takes the backend down.
        let table: [(&[u64], bool); 5] = [
            (&[0, 0, 0], true),
            (&[0, 1, 1], true),
            // Answers before the first failure do not count.
            (&[1000, 1, 2], true),
            (&[0, 2, 2], false),
            (&[0, 0, 4, 0], true),
        ];
        for (answers, falls) in table {
            let (mut tracker, mut blind) = (HealthTracker::new(), HealthTracker::new());
            let mut answered = 0;
            let mut change = None;
            for more in answers {
                assert_eq!(change, None, "{answers:?}");
                answered += more;
                change = tracker.handle_failed_answer(at(1.0), answered, &observing());
                assert_eq!(blind.handle_failed_answer(at(1.0), answered, &passive()), None);
            }
            assert_eq!(change, falls.then_some(State::Down), "{answers:?}");
            assert_eq!(tracker.verdict(), falls.then_some(Verdict::Answers));
        }
        let never = Health { failures: 0, ..observing() };
        assert_eq!(HealthTracker::new().handle_failed_answer(at(0.0), 0, &never), None);
    }

    #[test]
    fn failed_answers_of_long_ago_are_forgotten() {
        let mut tracker = HealthTracker::new();
        for second in [0.0, 9.0, 11.0, 20.0] {
            assert_eq!(tracker.handle_failed_answer(at(second), 0, &observing()), None, "{second}");
        }
        assert_eq!(tracker.handle_failed_answer(at(21.0), 0, &observing()), Some(State::Down));
    }

    #[test]
    fn only_a_verdict_of_answers_can_be_ignored() {
        let mut tracker = down();
        assert_eq!(
            (tracker.verdict(), tracker.ignore_answers()),
            (Some(Verdict::Connections), None)
        );
        let mut tracker = HealthTracker::new();
        for _ in 0..3 {
            let _ = tracker.handle_failed_answer(at(0.0), 0, &observing());
        }
        assert_eq!(tracker.ignore_answers(), Some(State::Up));
        assert!(tracker.is_half_open());
        assert_eq!(tracker.handle_failed_answer(at(0.0), 0, &observing()), Some(State::Down));
    }

    #[derive(Clone, Copy, Debug)]
    enum HealthEvent {
        Failures(u32),
        FailedAnswer,
        Ignore,
        Success,
        Check(bool),
        Expire,
    }

    fn health_event() -> impl Strategy<Value = HealthEvent> {
        prop_oneof![
            (0u32..4).prop_map(HealthEvent::Failures),
            Just(HealthEvent::FailedAnswer),
            Just(HealthEvent::Ignore),
            Just(HealthEvent::Success),
            any::<bool>().prop_map(HealthEvent::Check),
            Just(HealthEvent::Expire),
        ]
    }

    proptest! {
        /// Reports are always changes, agree with the state, and memory stays small.
        #[test]
        fn only_changes_are_reported(
            events in prop::collection::vec((health_event(), 0u64..4000, any::<bool>()), 0..200),
        ) {
            let mut tracker = HealthTracker::new();
            let (mut now, mut up) = (Instant::default(), true);
            for (event, millis, with_check) in events {
                now = now.after(Duration::from_millis(millis));
                let health = if with_check { active() } else { observing() };
                let change = match event {
                    HealthEvent::Failures(count) => tracker.handle_failures(now, count, &health),
                    HealthEvent::FailedAnswer => tracker.handle_failed_answer(now, 0, &health),
                    HealthEvent::Ignore => tracker.ignore_answers(),
                    HealthEvent::Success => {
                        tracker.handle_success();
                        None
                    }
                    HealthEvent::Check(passed) => tracker.handle_check(now, passed, &health),
                    HealthEvent::Expire => tracker.expire(now, &health),
                };
                if let Some(state) = change {
                    prop_assert_eq!(state, if up { State::Down } else { State::Up });
                    up = !up;
                }
                prop_assert_eq!(tracker.is_up(), up);
                prop_assert_eq!(tracker.down_for(now).is_some(), !up);
                prop_assert!(tracker.failures.len() < health.failures as usize);
            }
        }
    }
}
