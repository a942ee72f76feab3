//! Connect, upgrade, one echo, reset: in a closed loop, in which the end of each connection begins
//! the next; or by a schedule that does not depend on earlier connections.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use throng_engine::{Close, Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, MAX_EVENTS, Payload, Timeline, Work};
use crate::error::Error;
use crate::merge::{Span, tally};
use crate::plan::Plan;
use crate::record::Record;
use crate::schedule::{Schedule, ThreadRate};

/// Number of consecutive failures on one thread after which the run ends.
const HOPELESS: u32 = 200;

/// Connect mode on one thread. Each connection occupies a slot while it exists.
#[derive(Debug)]
pub(crate) struct Connect {
    payload: Payload,
    /// For each slot the time from which its connection counts, until it has an answer: the time of
    /// the dial, or in an open loop the planned time.
    awaited: Vec<Option<Instant>>,
    /// Consecutive failed connects.
    failures: u32,
    answered: u64,
    pace: ConnectPace,
    outcome: ConnectOutcome,
}

#[derive(Debug)]
enum ConnectPace {
    /// In a closed loop the end of each connection begins the next one in its slot.
    Closed {
        /// The number of connections still to begin, if it is limited.
        left: Option<u64>,
    },
    /// In an open loop a due connection waits while all slots are in use, and the wait counts in
    /// its time.
    Open(OpenPlaces),
}

/// The schedule of an open loop.
#[derive(Debug)]
struct OpenPlaces {
    rate: ThreadRate,
    running: Option<(Schedule, Timeline)>,
    /// The number of planned connections in total, of failed connections, and of the next
    /// connection.
    planned: u64,
    failed: u64,
    next: u64,
    /// Free slots with the times since which they are free, the longest free slot first.
    free: VecDeque<(u32, Instant)>,
}

tally! {
    /// Measurements of one thread.
    pub(crate) struct ConnectOutcome {
        /// The steps of each connection, from the connect call. `tls` is empty without TLS.
        pub(crate) tcp: Record,
        pub(crate) tls: Record,
        pub(crate) upgrade: Record,
        pub(crate) echo: Record,
        /// All steps together; in an open loop from the planned time.
        pub(crate) total: Record,
        /// Connections that had their answer within the measured time.
        pub(crate) in_time: u64,
        /// From the start of the first answered connection to the last answer.
        pub(crate) span: Span,
        /// Connections that have ended in a closed loop, with or without an answer.
        pub(crate) over: u64,
        /// Figures of an open loop: the lateness of connect calls without the wait for a slot, and
        /// the numbers of connections that were planned, were not answered, and had to wait for a
        /// slot.
        pub(crate) lateness: Record,
        pub(crate) planned: u64,
        pub(crate) unanswered: u64,
        pub(crate) waited: u64,
    }
}

impl OpenPlaces {
    /// Returns the planned time of the next connection; `None` if there is no next one.
    fn next_planned(&self) -> Option<Instant> {
        let (schedule, _) = self.running.as_ref()?;
        (self.next < self.planned).then(|| schedule.planned(self.next))
    }

    fn counts(&self, at: Instant) -> bool {
        self.running.as_ref().is_some_and(|(_, timeline)| timeline.counts(at))
    }

    /// Counts a connection that can no longer get an answer. Omitting its time would make a server
    /// that stops accepting look fast.
    fn count_unanswered(&self, outcome: &mut ConnectOutcome, planned: Instant, now: Instant) {
        if self.counts(planned) {
            outcome.unanswered += 1;
            outcome.total.add(now.since(planned).as_nanos() as u64);
        }
    }

    /// Publishes to the steering thread how many answers are awaited in total.
    fn publish(&self, pool: &ClientPool) {
        pool.lane().sent.store(self.planned - self.failed, Ordering::Relaxed);
    }
}

impl Connect {
    pub(crate) fn new(plan: &Plan, thread: usize, places: usize, rate_per_s: Option<f64>) -> Self {
        let left = plan.number_of(thread);
        let pace = match rate_per_s {
            // A checked plan has at least as many connections as slots.
            None => ConnectPace::Closed { left: left.map(|all| all.saturating_sub(places as u64)) },
            Some(rate_per_s) => ConnectPace::Open(OpenPlaces {
                rate: plan.common.thread_rate(thread, rate_per_s),
                running: None,
                planned: 0,
                failed: 0,
                next: 0,
                free: (0..places as u32).map(|place| (place, Instant(0))).collect(),
            }),
        };
        Self {
            payload: Payload::of(plan, plan.common.first(thread)),
            awaited: vec![None; places],
            failures: 0,
            answered: 0,
            pace,
            outcome: ConnectOutcome::default(),
        }
    }

    /// Handles the end of the connection in this slot, with or without an answer.
    fn release(&mut self, pool: &mut ClientPool, index: usize) {
        let unanswered = self.awaited[index].take();
        match &mut self.pace {
            ConnectPace::Closed { left } => {
                self.outcome.over += 1;
                pool.lane().sent.store(self.outcome.over, Ordering::Relaxed);
                if *left != Some(0) {
                    *left = left.map(|left| left - 1);
                    pool.redial(index);
                }
            }
            ConnectPace::Open(places) => {
                let now = pool.clock.now();
                if let Some(planned) = unanswered {
                    places.count_unanswered(&mut self.outcome, planned, now);
                    places.failed += u64::from(places.running.is_some());
                }
                places.free.push_back((index as u32, now));
                places.publish(pool);
            }
        }
    }
}

impl Work for Connect {
    type Outcome = ConnectOutcome;

    fn dials_itself(&self) -> bool {
        matches!(self.pace, ConnectPace::Open(_))
    }

    fn on_start(&mut self, pool: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        let ConnectPace::Open(places) = &mut self.pace else { return };
        let schedule = places.rate.schedule(timeline.start, pool.connections());
        places.planned = schedule.due(Instant(timeline.to.0 - 1));
        places.running = Some((schedule, timeline));
        places.publish(pool);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let ConnectPace::Open(places) = &self.pace else { return None };
        // Without a free slot, the schedule waits for the end of a connection.
        places.next_planned().filter(|_| !places.free.is_empty())
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, _: &mut Core, now: Instant) {
        let ConnectPace::Open(places) = &mut self.pace else { return };
        // Starts at most as many connections as a turn reads from, so that a generator that has
        // fallen behind does not delay its own answers.
        for _ in 0..MAX_EVENTS {
            let Some(planned) = places.next_planned().filter(|&planned| planned <= now) else {
                return;
            };
            let Some((place, free_since)) = places.free.pop_front() else { return };
            places.next += 1;
            self.awaited[place as usize] = Some(planned);
            pool.redial(place as usize);
            if places.counts(planned) {
                self.outcome.planned += 1;
                self.outcome.lateness.add(now.since(planned.max(free_since)).as_nanos() as u64);
                self.outcome.waited += u64::from(free_since > planned);
            }
        }
    }

    fn on_open(&mut self, pool: &mut ClientPool, cx: &mut Cx<'_>, index: usize, _: Instant) {
        self.awaited[index].get_or_insert(pool.times(index).dialled);
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
        let Some(from) = self.awaited[index].take() else { return };
        if !self.payload.is_answer(message, index, 0) {
            pool.note_wrong(|| self.payload.describe(message, index, 0));
        }
        self.failures = 0;
        self.answered += 1;
        pool.count_done();
        let is_in_time = pool.started.is_some_and(|timeline| timeline.counts(now));
        let (is_in_time, is_counted) = match &self.pace {
            ConnectPace::Closed { left } => {
                let is_counted = left.is_some() || is_in_time;
                (is_counted, is_counted)
            }
            ConnectPace::Open(places) => (is_in_time, places.counts(from)),
        };
        self.outcome.in_time += u64::from(is_in_time);
        if is_counted {
            let times = pool.times(index);
            let ns = |from: Instant, to: Instant| to.since(from).as_nanos() as u64;
            self.outcome.span.extend(times.dialled, now);
            self.outcome.tcp.add(ns(times.dialled, times.tcp.unwrap_or(times.connected)));
            if let Some(tcp) = times.tcp {
                self.outcome.tls.add(ns(tcp, times.connected));
            }
            self.outcome.upgrade.add(ns(times.connected, times.opened));
            self.outcome.echo.add(ns(times.opened, now));
            self.outcome.total.add(ns(from, now));
        }
        cx.abort();
    }

    fn on_close(&mut self, pool: &mut ClientPool, index: usize, close: Close<'_>) {
        if !pool.shared.is_finishing() && self.awaited[index].is_some() {
            let why = pool.session_failure(index).map_or(String::new(), |why| format!(": {why}"));
            pool.count_lost(index, || {
                format!("a connection ended with {} before it had its answer{why}", close.code)
            });
        }
        // In an open loop a connection can still be in time: the end of the run decides.
        if !(pool.shared.is_finishing() && self.dials_itself()) {
            self.release(pool, index);
        }
    }

    /// Counts a failed connect. Too many in a row end the run.
    fn on_failed(&mut self, pool: &mut ClientPool, index: usize, error: Error) {
        // The first connections show whether the run works; in a closed loop all slots may begin
        // theirs at the same time.
        let most = match self.pace {
            _ if self.answered > 0 => HOPELESS,
            ConnectPace::Closed { .. } => self.awaited.len().min(HOPELESS as usize) as u32,
            ConnectPace::Open(_) => 1,
        };
        self.failures += 1;
        if self.failures >= most {
            return pool.shared.fail(error);
        }
        pool.errors.connects_failed += 1;
        pool.errors.tls_failures.count(pool.session_failure(index));
        pool.errors.note(|| error.to_string());
        self.release(pool, index);
    }

    /// Connections that are unanswered or still wait for a slot have waited at least from their
    /// planned time until now.
    fn finish(&mut self, _: &mut ClientPool, now: Instant) -> ConnectOutcome {
        if let ConnectPace::Open(places) = &mut self.pace {
            for planned in self.awaited.iter_mut().filter_map(Option::take) {
                places.count_unanswered(&mut self.outcome, planned, now);
            }
            let all_taken = places.free.is_empty();
            while let Some(planned) = places.next_planned().filter(|&planned| planned <= now) {
                places.next += 1;
                if places.counts(planned) {
                    self.outcome.planned += 1;
                    self.outcome.waited += u64::from(all_taken);
                }
                places.count_unanswered(&mut self.outcome, planned, now);
            }
        }
        std::mem::take(&mut self.outcome)
    }
}
