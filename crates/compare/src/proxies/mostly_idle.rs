//! Connections that send a message now and then, each by a schedule of its own, whether or not
//! answers come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;

use throng_engine::{Core, Cx, Message};
use throng_io::Instant;

use throng_load::Record;
use throng_load::client::{ClientPool, MAX_EVENTS, Timeline, Work};

use super::traffic::{Content, TrafficPattern, Turn};

/// Messages sent in one turn when many are due: no more than a turn reads.
const MAX_SENDS: usize = MAX_EVENTS;
/// Largest message.
pub(super) const LARGEST: usize = 4096;

/// Work of the mostly idle connections on one thread.
pub(super) struct MostlyIdle {
    resource: String,
    content: Content,
    pattern: TrafficPattern,
    timeline: Option<Timeline>,
    /// Connections by the time of their next message.
    due: BinaryHeap<Reverse<(Instant, u32)>>,
    /// By connection: the next message to send, and the next to be answered.
    turns: Vec<Turns>,
    sent: u64,
    answered: u64,
    outcome: MostlyIdleOutcome,
}

#[derive(Clone, Copy)]
struct Turns {
    next: Turn,
    awaited: Turn,
}

/// Measurements of one thread.
#[derive(Debug, Default)]
pub(super) struct MostlyIdleOutcome {
    /// From the planned time to the answer.
    pub(super) latency: Record,
    /// From the planned time to the send.
    pub(super) lateness: Record,
    pub(super) planned: u64,
    /// Answers that came within the measured time.
    pub(super) in_time: u64,
    pub(super) unanswered: u64,
    pub(super) payload_bytes: u64,
}

impl MostlyIdle {
    pub(super) fn new(resource: &str, seed: u64) -> Self {
        Self {
            resource: resource.to_owned(),
            content: Content::new(seed, LARGEST),
            pattern: TrafficPattern::new(seed),
            timeline: None,
            due: BinaryHeap::new(),
            turns: Vec::new(),
            sent: 0,
            answered: 0,
            outcome: MostlyIdleOutcome::default(),
        }
    }
}

impl Work for MostlyIdle {
    type Outcome = MostlyIdleOutcome;

    fn resource(&self, _: usize) -> &str {
        &self.resource
    }

    fn on_start(&mut self, pool: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        self.timeline = Some(timeline);
        let first = |index| self.pattern.first(index, timeline.start);
        self.turns = (0..pool.connections())
            .map(first)
            .map(|turn| Turns { next: turn, awaited: turn })
            .collect();
        let turns = self.turns.iter().enumerate();
        self.due =
            turns.map(|(index, place)| Reverse((place.next.planned, index as u32))).collect();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let Reverse((at, _)) = *self.due.peek()?;
        Some(at).filter(|&at| self.timeline.is_some_and(|timeline| at < timeline.to))
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        let Some(timeline) = self.timeline else { return };
        for _ in 0..MAX_SENDS {
            let Some(&Reverse((planned, index))) = self.due.peek() else { break };
            if planned > now || planned >= timeline.to {
                break;
            }
            self.due.pop();
            let at = index as usize;
            let turn = self.turns[at].next;
            let message = self.content.message(at, turn.k, self.pattern.size(at, turn.k));
            let sent = core.send(pool.id(at), Message::Binary(message));
            pool.note_sent(sent);
            if timeline.counts(planned) {
                self.outcome.planned += 1;
                self.outcome.payload_bytes += message.len() as u64;
                self.outcome.lateness.add(now.since(planned).as_nanos() as u64);
            }
            self.sent += 1;
            let next = self.pattern.after(at, turn);
            self.turns[at].next = next;
            self.due.push(Reverse((next.planned, index)));
        }
        pool.lane().sent.store(self.sent, Ordering::Relaxed);
    }

    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        _: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        let Some((timeline, place)) = self.timeline.zip(self.turns.get_mut(index)) else { return };
        let turn = place.awaited;
        if turn.k >= place.next.k {
            pool.note_wrong(|| {
                format!("connection {index} has an answer that nothing was sent for")
            });
            return;
        }
        let expected = self.content.message(index, turn.k, self.pattern.size(index, turn.k));
        if !matches!(message, Message::Binary(bytes) if bytes == expected) {
            let (came, sent) = (message.as_bytes().len(), expected.len());
            pool.note_wrong(|| {
                format!(
                    "{came} bytes answered {sent} others (message {} of connection {index})",
                    turn.k
                )
            });
        }
        place.awaited = self.pattern.after(index, turn);
        self.outcome.in_time += u64::from(timeline.counts(now));
        if timeline.counts(turn.planned) {
            self.outcome.latency.add(now.since(turn.planned).as_nanos() as u64);
        }
        self.answered += 1;
        pool.lane().done.store(self.answered, Ordering::Relaxed);
    }

    /// Counts messages without an answer as having waited until now: left out, a proxy that stops
    /// would look fast.
    fn finish(&mut self, _: &mut ClientPool, now: Instant) -> MostlyIdleOutcome {
        if let Some(timeline) = self.timeline {
            for (index, place) in self.turns.iter().enumerate() {
                let mut turn = place.awaited;
                while turn.k < place.next.k {
                    if timeline.counts(turn.planned) {
                        self.outcome.unanswered += 1;
                        self.outcome.latency.add(now.since(turn.planned).as_nanos() as u64);
                    }
                    turn = self.pattern.after(index, turn);
                }
            }
        }
        std::mem::take(&mut self.outcome)
    }
}
