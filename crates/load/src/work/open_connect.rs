//! Connections by the schedule: connect, upgrade, one echo, reset, independent of earlier
//! connections.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use throng_engine::{Close, Core, Cx, Message};
use throng_io::Instant;

use super::connect::{ConnectOutcome, Failures, HOPELESS, note_lost};
use super::open::OpenOutcome;
use crate::client::{ClientPool, MOST_EVENTS, Payload, Timeline, Work};
use crate::error::Error;
use crate::plan::Plan;
use crate::schedule::Schedule;

/// Connect mode on one thread, in an open loop. A connection occupies a place as long as it exists;
/// when all places are taken, connections that are due wait for one, and their time counts.
#[derive(Debug)]
pub(crate) struct OpenConnect {
    plan: Plan,
    payload: Payload,
    rate_per_s: f64,
    /// This thread's position between two connections of one schedule, 0 to 1.
    shift: f64,
    running: Option<Running>,
    /// Free places with the time since when each is free, the longest free first.
    free: VecDeque<(u32, Instant)>,
    /// The planned time of the connection at each place, until it has an answer.
    awaited: Vec<Option<Instant>>,
    /// The next connection of the schedule.
    next: u64,
    answered: u64,
    failures: Failures,
    outcome: OpenConnectOutcome,
}

#[derive(Debug)]
struct Running {
    schedule: Schedule,
    timeline: Timeline,
    /// Planned connections until the end.
    planned: u64,
    /// Connections that failed.
    failed: u64,
}

/// Measurements of one thread.
#[derive(Debug, Default)]
pub(crate) struct OpenConnectOutcome {
    /// The steps of the connections planned within the measured time, from the connect call.
    pub(crate) steps: ConnectOutcome,
    /// From the planned time to the answer, and the lateness of the connect calls without the wait
    /// for a place.
    pub(crate) open: OpenOutcome,
    /// Planned connections that found all places taken.
    pub(crate) waited: u64,
}

impl OpenConnectOutcome {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.steps.merge(&other.steps);
        self.open.merge(&other.open);
        self.waited += other.waited;
    }
}

impl OpenConnect {
    pub(crate) fn new(plan: &Plan, rate_per_s: f64, thread: usize, places: usize) -> Self {
        Self {
            plan: plan.clone(),
            payload: Payload::of(plan, plan.common.first(thread)),
            rate_per_s,
            shift: thread as f64 / plan.common.threads as f64,
            running: None,
            free: (0..places as u32).map(|place| (place, Instant(0))).collect(),
            awaited: vec![None; places],
            next: 0,
            answered: 0,
            failures: Failures::default(),
            outcome: OpenConnectOutcome::default(),
        }
    }

    /// The planned time of the next connection; `None` if there are no more.
    fn planned(&self) -> Option<Instant> {
        let running = self.running.as_ref()?;
        (self.next < running.planned).then(|| running.schedule.planned(self.next))
    }

    fn counts(&self, at: Instant) -> bool {
        self.running.as_ref().is_some_and(|running| running.timeline.counts(at))
    }

    /// Counts a connection that will not get an answer. Leaving its time out would make a server
    /// that stops accepting look fast.
    fn count_unanswered(&mut self, planned: Instant, now: Instant) {
        if self.counts(planned) {
            self.outcome.open.unanswered += 1;
            self.outcome.open.latency.add(now.since(planned).as_nanos() as u64);
        }
    }

    /// Ends the connection at this place, with or without an answer.
    fn release(&mut self, pool: &ClientPool, place: usize) {
        let now = pool.clock.now();
        if let Some(planned) = self.awaited[place].take() {
            self.count_unanswered(planned, now);
            if let Some(running) = &mut self.running {
                running.failed += 1;
            }
        }
        self.free.push_back((place as u32, now));
        self.publish(pool);
    }

    /// Shows the steering thread how many answers are awaited in all, and have come.
    fn publish(&self, pool: &ClientPool) {
        let Some(running) = &self.running else { return };
        pool.lane().sent.store(running.planned - running.failed, Ordering::Relaxed);
        pool.lane().done.store(self.answered, Ordering::Relaxed);
    }
}

impl Work for OpenConnect {
    type Outcome = OpenConnectOutcome;

    fn resource(&self, _: usize) -> &str {
        self.plan.resource()
    }

    fn dials_itself(&self) -> bool {
        true
    }

    fn on_start(&mut self, pool: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        let places = (pool.connections(), self.plan.common.connections);
        let rate = (self.rate_per_s, self.plan.common.rate_ramp);
        let schedule = Schedule::of_thread(timeline.start, places, &self.plan.common.stages, rate);
        let schedule = schedule.shifted(self.shift);
        let planned = schedule.due(Instant(timeline.to.0 - 1));
        self.running = Some(Running { schedule, timeline, planned, failed: 0 });
        self.publish(pool);
    }

    fn next_deadline(&self) -> Option<Instant> {
        // Without a free place, waits for the end of a connection.
        self.planned().filter(|_| !self.free.is_empty())
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, _: &mut Core, now: Instant) {
        // At most as many as a turn reads from, so that a generator that has fallen behind does not
        // delay its own answers.
        for _ in 0..MOST_EVENTS {
            let Some(planned) = self.planned().filter(|&planned| planned <= now) else { return };
            let Some((place, free_since)) = self.free.pop_front() else { return };
            self.next += 1;
            self.awaited[place as usize] = Some(planned);
            pool.redial(place as usize);
            if self.counts(planned) {
                let OpenConnectOutcome { open, waited, .. } = &mut self.outcome;
                open.planned += 1;
                open.lateness.add(now.since(planned.max(free_since)).as_nanos() as u64);
                *waited += u64::from(free_since > planned);
            }
        }
    }

    fn on_open(&mut self, pool: &mut ClientPool, cx: &mut Cx<'_>, index: usize, _: Instant) {
        let sent = cx.send(self.payload.message(index, 0));
        pool.note_sent(sent);
    }

    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        cx: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        let Some(planned) = self.awaited[index].take() else { return };
        if !self.payload.is_answer(message, index, 0) {
            pool.note_wrong(|| self.payload.describe(message, index, 0));
        }
        self.failures.reset();
        self.answered += 1;
        self.outcome.open.in_time += u64::from(self.counts(now));
        if self.counts(planned) {
            self.outcome.open.latency.add(now.since(planned).as_nanos() as u64);
            self.outcome.steps.add_steps(pool.times(index), now);
        }
        self.publish(pool);
        cx.abort();
    }

    fn on_close(&mut self, pool: &mut ClientPool, index: usize, close: Close<'_>) {
        if pool.shared.is_finishing() {
            return;
        }
        if self.awaited[index].is_some() {
            note_lost(pool, index, &close);
        }
        self.release(pool, index);
    }

    fn on_failed(&mut self, pool: &mut ClientPool, index: usize, error: Error) {
        // The first connection shows whether the run works.
        let most = if self.answered == 0 { 1 } else { HOPELESS };
        if self.failures.add(pool, index, most, error) {
            self.release(pool, index);
        }
    }

    /// Connections without an answer, and connections that still wait for a place, have waited at
    /// least from their planned time until now.
    fn finish(&mut self, _: &mut ClientPool, now: Instant) -> OpenConnectOutcome {
        for place in 0..self.awaited.len() {
            if let Some(planned) = self.awaited[place].take() {
                self.count_unanswered(planned, now);
            }
        }
        let all_taken = self.free.is_empty();
        while let Some(planned) = self.planned().filter(|&planned| planned <= now) {
            self.next += 1;
            if self.counts(planned) {
                self.outcome.open.planned += 1;
                self.outcome.waited += u64::from(all_taken);
            }
            self.count_unanswered(planned, now);
        }
        std::mem::take(&mut self.outcome)
    }
}
