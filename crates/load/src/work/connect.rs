//! Connect, upgrade, one echo, reset, in a closed loop.

use std::sync::atomic::Ordering;

use throng_engine::{Close, Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, Payload, Timeline, Times, Work};
use crate::error::Error;
use crate::plan::Plan;
use crate::record::Record;

/// Consecutive failures on one thread after which the run ends.
pub(super) const HOPELESS: u32 = 200;

/// The consecutive failed connects of a thread.
#[derive(Debug, Default)]
pub(super) struct Failures(u32);

impl Failures {
    /// Resets the count after an answer.
    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }

    /// Counts a failed connect. Returns false if it ends the run, after `most` consecutive
    /// failures.
    pub(super) fn add(
        &mut self,
        pool: &mut ClientPool,
        index: usize,
        most: u32,
        error: Error,
    ) -> bool {
        self.0 += 1;
        if self.0 >= most {
            pool.shared.fail(error);
            return false;
        }
        pool.errors.connects_failed += 1;
        pool.errors.tls_failures.count(pool.session_failure(index));
        pool.errors.note(|| error.to_string());
        true
    }
}

/// Counts a connection that ended without an answer.
pub(super) fn note_lost(pool: &mut ClientPool, index: usize, close: &Close<'_>) {
    let why = pool.session_failure(index).map_or(String::new(), |why| format!(": {why}"));
    pool.count_lost(index, || {
        format!("a connection ended with {} before it had its answer{why}", close.code)
    });
}

/// Connect mode on one thread, in a closed loop.
#[derive(Debug)]
pub(crate) struct Connect {
    resource: String,
    payload: Payload,
    /// Connections that have had their answer, so that we end them.
    answered: Vec<bool>,
    timeline: Option<Timeline>,
    failures: Failures,
    total: u64,
    /// Connections that are still to begin, if their number is limited.
    left: Option<u64>,
    /// Connections that have ended, with or without an answer.
    over: u64,
    outcome: ConnectOutcome,
}

/// Measurements of one thread.
#[derive(Debug, Default)]
pub(crate) struct ConnectOutcome {
    pub(crate) tcp: Record,
    /// Empty without TLS.
    pub(crate) tls: Record,
    pub(crate) upgrade: Record,
    pub(crate) echo: Record,
    pub(crate) together: Record,
    /// When the first answered connection was started, and when the last answer came.
    pub(crate) span: Option<(Instant, Instant)>,
    pub(crate) over: u64,
}

impl ConnectOutcome {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.tcp.merge(&other.tcp);
        self.tls.merge(&other.tls);
        self.upgrade.merge(&other.upgrade);
        self.echo.merge(&other.echo);
        self.together.merge(&other.together);
        self.over += other.over;
        if let Some((from, to)) = other.span {
            self.extend(from, to);
        }
    }

    /// Adds the time of each step of a connection whose answer came `now`.
    pub(super) fn add_steps(&mut self, times: Times, now: Instant) {
        let ns = |from: Instant, to: Instant| to.since(from).as_nanos() as u64;
        self.tcp.add(ns(times.dialled, times.tcp.unwrap_or(times.connected)));
        if let Some(tcp) = times.tcp {
            self.tls.add(ns(tcp, times.connected));
        }
        self.upgrade.add(ns(times.connected, times.opened));
        self.echo.add(ns(times.opened, now));
    }

    fn extend(&mut self, from: Instant, to: Instant) {
        let (first, last) = self.span.unwrap_or((from, to));
        self.span = Some((first.min(from), last.max(to)));
    }
}

impl Connect {
    pub(crate) fn new(plan: &Plan, thread: usize, connections: usize) -> Self {
        Self {
            resource: plan.resource().to_owned(),
            payload: Payload::of(plan, plan.common.first(thread)),
            answered: vec![false; connections],
            timeline: None,
            failures: Failures::default(),
            total: 0,
            // The plan was checked: there are at least as many connections as places.
            left: plan.number_of(thread).map(|number| number.saturating_sub(connections as u64)),
            over: 0,
            outcome: ConnectOutcome::default(),
        }
    }

    /// Starts another connection, unless there were enough.
    fn begin_next(&mut self, pool: &mut ClientPool, index: usize) {
        self.over += 1;
        pool.lane().sent.store(self.over, Ordering::Relaxed);
        match &mut self.left {
            None => pool.redial(index),
            Some(0) => {}
            Some(left) => {
                *left -= 1;
                pool.redial(index);
            }
        }
    }
}

impl Work for Connect {
    type Outcome = ConnectOutcome;

    fn resource(&self, _: usize) -> &str {
        &self.resource
    }

    fn on_start(&mut self, _: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        self.timeline = Some(timeline);
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
        if self.answered[index] {
            return;
        }
        if !self.payload.is_answer(message, index, 0) {
            pool.note_wrong(|| self.payload.describe(message, index, 0));
        }
        self.answered[index] = true;
        self.failures.reset();
        let times = pool.times(index);
        if self.left.is_some() || self.timeline.is_some_and(|timeline| timeline.counts(now)) {
            self.outcome.extend(times.dialled, now);
            self.outcome.add_steps(times, now);
            self.outcome.together.add(now.since(times.dialled).as_nanos() as u64);
        }
        self.total += 1;
        pool.lane().done.store(self.total, Ordering::Relaxed);
        cx.abort();
    }

    fn on_close(&mut self, pool: &mut ClientPool, index: usize, close: Close<'_>) {
        if !std::mem::take(&mut self.answered[index]) && !pool.shared.is_finishing() {
            note_lost(pool, index, &close);
        }
        self.begin_next(pool, index);
    }

    fn on_failed(&mut self, pool: &mut ClientPool, index: usize, error: Error) {
        // The first connections show whether the run works, unless all of them begin at once.
        let places = self.answered.len().min(HOPELESS as usize) as u32;
        let most = if self.total == 0 { places } else { HOPELESS };
        if self.failures.add(pool, index, most, error) {
            self.begin_next(pool, index);
        }
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> ConnectOutcome {
        self.outcome.over = self.over;
        std::mem::take(&mut self.outcome)
    }
}
