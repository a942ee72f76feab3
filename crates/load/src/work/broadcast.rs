//! One connection publishes, all others receive.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use throng_engine::{Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, Payload, Timeline, Work};
use crate::error::Error;
use crate::merge::tally;
use crate::plan::Plan;
use crate::record::Record;
use crate::units::grouped;

/// Publishes that must reach all subscribers before measuring begins.
const WARM_UP: u64 = 2;
/// Time limit of a warm-up publish before the next attempt: a subscription may become effective a
/// moment after the upgrade.
const WARM_UP_LIMIT: Duration = Duration::from_secs(3);
const WARM_UP_TRIES: u32 = 5;

/// The current publish, shared by all threads.
#[derive(Debug)]
pub(crate) struct Publication {
    subscribers: u64,
    /// Seed of the random values in messages.
    seed: u64,
    /// Number of the publish, from 1; 0 before the first.
    round: AtomicU64,
    /// When it was sent.
    at_ns: AtomicU64,
    /// Subscribers that have received the publish, and when the first and the last of them did.
    received: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    /// Whether the warm-up is over.
    warm: AtomicBool,
    /// Whether measured publishes may begin.
    go: AtomicBool,
    /// Whether all publishes are complete.
    done: AtomicBool,
    /// Measured publishes that reached all subscribers.
    pub(crate) complete: AtomicU64,
}

impl Publication {
    pub(crate) fn new(subscribers: usize) -> Self {
        let zero = || AtomicU64::new(0);
        let no = || AtomicBool::new(false);
        Self {
            subscribers: subscribers as u64,
            seed: RandomState::new().hash_one(subscribers),
            round: zero(),
            at_ns: zero(),
            received: zero(),
            first_ns: zero(),
            last_ns: zero(),
            warm: no(),
            go: no(),
            done: no(),
            complete: zero(),
        }
    }

    /// Returns whether the warm-up is complete, so that the publisher waits for
    /// [`Publication::go`].
    pub(crate) fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Acquire)
    }

    /// Lets the measured publishes begin. The publisher's thread must be woken.
    pub(crate) fn go(&self) {
        self.go.store(true, Ordering::Release);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn begin(&self, round: u64, at: Instant) {
        self.received.store(0, Ordering::Relaxed);
        self.at_ns.store(at.0, Ordering::Relaxed);
        self.round.store(round, Ordering::Release);
    }

    /// Counts one subscriber; true for the last.
    fn count(&self, now: Instant) -> bool {
        // The count identifies the first and the last subscriber across all threads.
        let before = self.received.fetch_add(1, Ordering::AcqRel);
        if before == 0 {
            self.first_ns.store(now.0, Ordering::Release);
        }
        let last = before + 1 == self.subscribers;
        if last {
            self.last_ns.store(now.0, Ordering::Release);
        }
        last
    }

    fn is_complete(&self) -> bool {
        self.received.load(Ordering::Acquire) >= self.subscribers
            && self.last_ns.load(Ordering::Acquire) >= self.at_ns.load(Ordering::Relaxed)
    }
}

/// The current state of the publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BroadcastStage {
    /// Not begun.
    Waiting,
    /// A publish is under way.
    Published {
        /// The time of the send; during the warm-up, the time of the last progress.
        since: Instant,
        /// The number of subscribers that had received it at that time.
        received: u64,
    },
    /// The warm-up is complete; the measured publishes begin on request.
    Warm,
    Done,
}

/// Broadcast mode on one thread. The last connection of the first thread publishes.
#[derive(Debug)]
pub(crate) struct Broadcast {
    payload: Payload,
    publication: Arc<Publication>,
    publisher: Option<usize>,
    publishes: u64,
    timeout: Duration,
    stage: BroadcastStage,
    round: u64,
    warm_rounds: u64,
    tries: u32,
    /// The last publish that each connection received.
    had: Vec<u64>,
    outcome: BroadcastOutcome,
}

tally! {
    /// Measurements of one thread.
    pub(crate) struct BroadcastOutcome {
        pub(crate) first: Record,
        pub(crate) last: Record,
        pub(crate) delivery: Record,
    }
}

impl Broadcast {
    pub(crate) fn new(
        plan: &Plan,
        connections: usize,
        publishes: usize,
        timeout: Duration,
        publisher: Option<usize>,
        publication: Arc<Publication>,
    ) -> Self {
        Self {
            payload: Payload::seeded(plan, 0, publication.seed),
            publication,
            publisher,
            publishes: publishes as u64,
            timeout,
            stage: BroadcastStage::Waiting,
            round: 0,
            warm_rounds: 0,
            tries: 0,
            had: vec![0; connections],
            outcome: BroadcastOutcome::default(),
        }
    }

    fn publish(&mut self, pool: &mut ClientPool, core: &mut Core) {
        let Some(publisher) = self.publisher else { return };
        self.round += 1;
        let now = pool.clock.now();
        self.publication.begin(self.round, now);
        let sent = core.send(pool.id(publisher), self.payload.message(0, self.round));
        pool.note_sent(sent);
        self.stage = BroadcastStage::Published { since: now, received: 0 };
    }

    fn is_measuring(&self) -> bool {
        self.publication.go.load(Ordering::Acquire)
    }

    /// Handles a publish that has reached all subscribers.
    fn complete(&mut self, pool: &mut ClientPool, core: &mut Core) {
        if !self.is_measuring() {
            self.warm_rounds += 1;
            self.tries = 0;
            if self.warm_rounds < WARM_UP {
                return self.publish(pool, core);
            }
            self.stage = BroadcastStage::Warm;
            self.publication.warm.store(true, Ordering::Release);
            return;
        }
        let at = self.publication.at_ns.load(Ordering::Relaxed);
        let since = |time: &AtomicU64| time.load(Ordering::Acquire).saturating_sub(at);
        self.outcome.first.add(since(&self.publication.first_ns));
        self.outcome.last.add(since(&self.publication.last_ns));
        let complete = self.publication.complete.fetch_add(1, Ordering::AcqRel) + 1;
        if complete < self.publishes { self.publish(pool, core) } else { self.end() }
    }

    fn end(&mut self) {
        self.stage = BroadcastStage::Done;
        self.publication.done.store(true, Ordering::Release);
    }

    /// Handles a publish that has not reached all subscribers in time.
    fn miss(&mut self, pool: &mut ClientPool, core: &mut Core) {
        let received = self.publication.received.load(Ordering::Acquire);
        let reached = format!(
            "a publish reached {} of {} subscribers",
            grouped(received),
            grouped(self.publication.subscribers)
        );
        if self.is_measuring() {
            pool.errors.publishes_incomplete += 1;
            pool.errors
                .note(|| format!("{reached} in {}", crate::units::show_duration(self.timeout)));
            return self.end();
        }
        self.tries += 1;
        if self.tries < WARM_UP_TRIES {
            return self.publish(pool, core);
        }
        let reason = format!(
            "{reached}; a message of one connection must go to all others there (`throng serve` \
             has channels at /ws/{{channel}})"
        );
        let resource = pool.resource().to_owned();
        pool.shared.fail(Error::Upgrade { resource, reason });
    }
}

impl Work for Broadcast {
    type Outcome = BroadcastOutcome;

    fn on_start(&mut self, pool: &mut ClientPool, core: &mut Core, _: Timeline) {
        self.publish(pool, core);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.publisher?;
        match self.stage {
            BroadcastStage::Published { .. } if self.publication.is_complete() => Some(Instant(0)),
            BroadcastStage::Published { since, .. } => {
                Some(since.after(if self.is_measuring() { self.timeout } else { WARM_UP_LIMIT }))
            }
            BroadcastStage::Warm if self.is_measuring() => Some(Instant(0)),
            BroadcastStage::Waiting | BroadcastStage::Warm | BroadcastStage::Done => None,
        }
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        match self.stage {
            BroadcastStage::Published { .. } if self.publication.is_complete() => {
                self.complete(pool, core)
            }
            BroadcastStage::Published { received, .. } => {
                let by_now = self.publication.received.load(Ordering::Acquire);
                if self.is_measuring() || by_now == received {
                    return self.miss(pool, core);
                }
                // Progress extends the time limit, because a million subscribers need some time.
                self.stage = BroadcastStage::Published { since: now, received: by_now };
            }
            BroadcastStage::Warm => self.publish(pool, core),
            BroadcastStage::Waiting | BroadcastStage::Done => {}
        }
    }

    #[inline]
    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        _: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        // Some servers send a publish back to its sender.
        if self.publisher == Some(index) {
            return;
        }
        let round = self.publication.round.load(Ordering::Acquire);
        if self.had[index] == round || !self.payload.is_answer(message, 0, round) {
            // A greeting, or a warm-up publish that arrives after the next attempt began.
            if self.is_measuring() {
                pool.note_wrong(|| match self.had[index] == round {
                    true => format!("subscriber {index} got publish {round} twice"),
                    false => self.payload.describe(message, 0, round),
                });
            }
            return;
        }
        self.had[index] = round;
        if self.is_measuring() {
            let at = self.publication.at_ns.load(Ordering::Relaxed);
            self.outcome.delivery.add(now.0.saturating_sub(at));
        }
        pool.count_done();
        if self.publication.count(now) && pool.thread != 0 {
            pool.shared.lane(0).wake();
        }
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> BroadcastOutcome {
        std::mem::take(&mut self.outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_is_complete_with_its_last_subscriber() {
        let publication = Publication::new(3);
        publication.begin(1, Instant(100));
        assert!(!publication.count(Instant(110)));
        assert!(!publication.count(Instant(120)) && !publication.is_complete());
        assert!(publication.count(Instant(130)) && publication.is_complete());
        let ns = |time: &AtomicU64| time.load(Ordering::Relaxed);
        assert_eq!((ns(&publication.first_ns), ns(&publication.last_ns)), (110, 130));
        publication.begin(2, Instant(200));
        assert!(!publication.is_complete());
    }
}
