//! Messages that wait for a slow receiver one by one, so that each can still be dropped, replaced
//! or grow too old. Each class of back-pressure has one lane, in the order of its messages; numbers
//! give the order across lanes. Created when a message that may be dropped is sent to a connection
//! that the kernel took no more bytes for, and freed when the last message has left.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use throng_io::{Instant, Memory};

use crate::backpressure::{Class, ClassIndex, SlowPolicy};
use crate::outbox::frame::Frame;
use crate::outbox::sent::SMALL_FRAME;
use crate::stats::ClassCounters;

/// A moment in milliseconds, modulo 2^32: only differences of up to 24 days mean anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Millis(u32);

impl Millis {
    pub(crate) fn of(now: Instant) -> Self {
        Self((now.0 / 1_000_000) as u32)
    }

    fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

/// A message as it was sent; its form on the wire is decided when it leaves. Cloning counts a
/// reference.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A message for this connection alone.
    Private { text: bool, payload: Arc<dyn Memory>, compressible: bool },
    /// A message for many. `len`: of the message, or of the event that it is here.
    Frame { frame: Frame, len: usize },
}

impl Content {
    /// Returns whether it is text, and the message.
    pub(crate) fn parts(&self) -> (bool, &[u8]) {
        match self {
            Self::Private { text, payload, .. } => (*text, payload.as_ref().as_ref()),
            Self::Frame { frame, .. } => (frame.is_text(), frame.payload()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Private { payload, .. } => payload.as_ref().as_ref().len(),
            Self::Frame { len, .. } => *len,
        }
    }

    /// Returns its memory, divided by the number of references to it.
    fn share(&self) -> usize {
        match self {
            Self::Private { payload, .. } => self.len() / Arc::strong_count(payload),
            Self::Frame { frame, .. } => frame.memory() / frame.references(),
        }
    }

    /// Returns the bytes that this message counts as: at least its own memory.
    fn weight(&self) -> usize {
        self.len().max(SMALL_FRAME)
    }
}

/// A message whose first fragments have been sent.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) content: Content,
    pub(crate) sent: usize,
}

/// A fragment's part of a message, sent by reference: with any number of receivers in the middle of
/// a message, it is in memory once.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) content: Content,
    pub(crate) range: Range<usize>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.content.parts().1[self.range.clone()]
    }
}

/// The per-message queue of one connection.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Message that leaves before all others.
    pub(crate) partial: Option<Partial>,
    /// Whether the kernel was asked since, and did not take all: only then is the receiver slow.
    pub(crate) is_slow: bool,
    /// Few lanes, so they are searched one after the other.
    lanes: Vec<Lane>,
    next: u64,
    bytes: usize,
    /// Bytes of messages that may not be dropped to make room.
    kept: usize,
}

#[derive(Debug)]
struct Lane {
    class: ClassIndex,
    entries: VecDeque<QueueEntry>,
    bytes: usize,
    /// The number of each key's entry; empty unless the policy is `latest`.
    by_key: HashMap<u64, u64>,
}

/// A message that waits. 56 bytes at most, besides the memory it refers to.
#[derive(Debug)]
struct QueueEntry {
    number: u64,
    key: u64,
    content: Content,
    since: Millis,
}

/// Result of queueing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    Queued,
    Dropped,
}

impl Waiting {
    /// Returns the bytes that waiting messages count as.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.unsent_of_partial()
    }

    /// Returns an estimate of the memory of the waiting messages; of a frame that several
    /// connections wait for, only this connection's share counts.
    pub(crate) fn memory(&self) -> usize {
        let partial = self.partial.as_ref().map_or(0, |partial| partial.content.share());
        self.lanes.iter().map(Lane::memory).sum::<usize>() + partial
    }

    /// Returns the part of [`Waiting::bytes`] that may not be dropped to make room. The rest of a
    /// message that has begun to leave does not count: a peer that takes its fragments must be
    /// read, or its pings would not be answered between them.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    fn unsent_of_partial(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.content.len() - partial.sent)
    }

    /// Returns true when no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.partial.is_none()
    }

    /// The maximum bytes by which a lane is over the cap of its class, less one message; for
    /// audits.
    pub(crate) fn excess(&self, cap: impl Fn(ClassIndex) -> usize) -> usize {
        let over = |lane: &Lane| match lane.entries.len() {
            1 => 0,
            _ => lane.bytes.saturating_sub(cap(lane.class)),
        };
        self.lanes.iter().map(over).max().unwrap_or(0)
    }

    /// Queues a message of class number `index`, or applies the class's policy if the receiver is
    /// slow. The caller applies [`SlowPolicy::Close`]: this function always accepts messages of
    /// that policy.
    pub(crate) fn admit(
        &mut self,
        (index, class): (ClassIndex, &Class),
        key: u64,
        content: Content,
        now: Millis,
        counters: &mut ClassCounters,
    ) -> Admitted {
        let at = self.lane(index);
        let number = self.next;
        if class.policy == SlowPolicy::Latest
            && self.is_slow
            && let Some(place) = self.lanes[at].of_key(key)
        {
            self.replace(at, place, content, now);
            counters.conflated += 1;
            // A larger value may need more room than there is; it stays itself.
            while self.lanes[at].entries.len() > 1 && self.lanes[at].bytes > class.max_backlog {
                let oldest_other =
                    usize::from(self.lanes[at].by_key[&key] == self.lanes[at].entries[0].number);
                self.remove(at, oldest_other, class);
                counters.dropped_oldest += 1;
            }
            return Admitted::Queued;
        }
        let weight = content.weight();
        if class.policy == SlowPolicy::Close {
            self.kept += weight;
        } else if self.is_slow {
            self.expire_lane(at, class, now, counters);
            while !self.lanes[at].has_room(weight, class.max_backlog) {
                if class.policy == SlowPolicy::DropNewest {
                    counters.dropped_newest += 1;
                    return Admitted::Dropped;
                }
                self.pop_front(at, class);
                counters.dropped_oldest += 1;
            }
        }
        self.next += 1;
        self.bytes += weight;
        let lane = &mut self.lanes[at];
        if class.policy == SlowPolicy::Latest {
            lane.by_key.insert(key, number);
        }
        lane.bytes += weight;
        lane.entries.push_back(QueueEntry { number, key, content, since: now });
        Admitted::Queued
    }

    /// Removes and returns the oldest message of any class that has not expired.
    pub(crate) fn pop<'c>(
        &mut self,
        now: Millis,
        class: impl Fn(ClassIndex) -> &'c Class,
        counters: &mut [ClassCounters],
    ) -> Option<Content> {
        loop {
            let front = |lane: &Lane| lane.entries.front().map_or(u64::MAX, |entry| entry.number);
            let at = (0..self.lanes.len()).min_by_key(|&at| front(&self.lanes[at]))?;
            let index = self.lanes[at].class;
            let class = class(index);
            let entry = self.pop_front(at, class)?;
            if class.max_age == 0 || now.since(entry.since) <= class.max_age {
                return Some(entry.content);
            }
            counters[usize::from(index)].expired += 1;
        }
    }

    /// Drops messages that have grown too old at the head of each lane.
    pub(crate) fn expire<'c>(
        &mut self,
        now: Millis,
        class: impl Fn(ClassIndex) -> &'c Class,
        counters: &mut [ClassCounters],
    ) {
        for at in 0..self.lanes.len() {
            let index = self.lanes[at].class;
            self.expire_lane(at, class(index), now, &mut counters[usize::from(index)]);
        }
    }

    /// Counts the messages that a receiver that is gone will not get.
    pub(crate) fn discard(self, counters: &mut [ClassCounters]) {
        for lane in self.lanes {
            counters[usize::from(lane.class)].discarded += lane.entries.len() as u64;
        }
    }

    fn expire_lane(&mut self, at: usize, class: &Class, now: Millis, counters: &mut ClassCounters) {
        if class.max_age == 0 {
            return;
        }
        while let Some(entry) = self.lanes[at].entries.front()
            && now.since(entry.since) > class.max_age
        {
            self.pop_front(at, class);
            counters.expired += 1;
        }
    }

    fn replace(&mut self, at: usize, place: usize, content: Content, now: Millis) {
        let lane = &mut self.lanes[at];
        let entry = &mut lane.entries[place];
        let (old, new) = (entry.content.weight(), content.weight());
        (entry.content, entry.since) = (content, now);
        lane.bytes = lane.bytes - old + new;
        self.bytes = self.bytes - old + new;
    }

    fn pop_front(&mut self, at: usize, class: &Class) -> Option<QueueEntry> {
        self.remove(at, 0, class)
    }

    fn remove(&mut self, at: usize, place: usize, class: &Class) -> Option<QueueEntry> {
        let lane = &mut self.lanes[at];
        let entry = lane.entries.remove(place)?;
        let weight = entry.content.weight();
        // Before the receiver was slow, newer values of a key went behind older ones.
        if class.policy == SlowPolicy::Latest && lane.by_key.get(&entry.key) == Some(&entry.number)
        {
            lane.by_key.remove(&entry.key);
        }
        lane.bytes -= weight;
        self.bytes -= weight;
        if class.policy == SlowPolicy::Close {
            self.kept -= weight;
        }
        Some(entry)
    }

    fn lane(&mut self, class: ClassIndex) -> usize {
        self.lanes.iter().position(|lane| lane.class == class).unwrap_or_else(|| {
            self.lanes.push(Lane {
                class,
                entries: VecDeque::new(),
                bytes: 0,
                by_key: HashMap::new(),
            });
            self.lanes.len() - 1
        })
    }
}

impl Lane {
    /// Returns an estimate of its memory, from the oldest, the newest and two other messages.
    fn memory(&self) -> usize {
        let count = self.entries.len();
        let entries =
            self.entries.capacity() * size_of::<QueueEntry>() + self.by_key.capacity() * 17;
        if count == 0 {
            return entries;
        }
        let content = |at: usize| &self.entries[at].content;
        let sample = |at| (content(at).len(), content(at).share());
        entries + throng_io::batch::estimate_share(self.bytes, count, sample)
    }

    fn has_room(&self, weight: usize, cap: usize) -> bool {
        self.entries.is_empty() || self.bytes + weight <= cap
    }

    /// Finds the entry of `key`: numbers only grow towards the end.
    fn of_key(&self, key: u64) -> Option<usize> {
        let number = *self.by_key.get(&key)?;
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(policy: SlowPolicy, max_backlog: usize, max_age: u32) -> Class {
        Class { name: "test".into(), policy, is_history: false, max_backlog, max_age }
    }

    fn message(n: u8, len: usize) -> Content {
        Content::Private { text: false, payload: Arc::new(vec![n; len]), compressible: true }
    }

    /// Classes by number, their counters, and waiting messages.
    struct Queue {
        classes: Vec<Class>,
        counters: Vec<ClassCounters>,
        waiting: Waiting,
    }

    impl Queue {
        fn new(classes: &[Class]) -> Self {
            let counters = vec![ClassCounters::default(); classes.len()];
            let waiting = Waiting { is_slow: true, ..Waiting::default() };
            Self { classes: classes.to_vec(), counters, waiting }
        }

        fn put(&mut self, class: ClassIndex, key: u64, n: u8, ms: u32) -> Admitted {
            let at = usize::from(class);
            self.waiting.admit(
                (class, &self.classes[at]),
                key,
                message(n, 100),
                Millis(ms),
                &mut self.counters[at],
            )
        }

        fn take_all(&mut self, ms: u32) -> Vec<u8> {
            let Self { classes, counters, waiting } = self;
            let mut taken = Vec::new();
            while let Some(content) =
                waiting.pop(Millis(ms), |class| &classes[usize::from(class)], counters)
            {
                taken.push(content.parts().1[0]);
            }
            assert!(waiting.is_empty());
            assert_eq!((waiting.bytes(), waiting.kept()), (0, 0));
            taken
        }
    }

    #[test]
    fn at_the_cap_the_newest_or_the_oldest_is_dropped() {
        let mut queue = Queue::new(&[
            class(SlowPolicy::DropNewest, 300, 0),
            class(SlowPolicy::DropOldest, 300, 0),
        ]);
        for n in 0..5 {
            let admitted = queue.put(0, 0, n, 0);
            assert_eq!(admitted == Admitted::Queued, n < 3);
            assert_eq!(queue.put(1, 0, 10 + n, 0), Admitted::Queued);
            assert!(queue.waiting.bytes() <= 600);
        }
        assert_eq!(queue.take_all(0), [0, 1, 2, 12, 13, 14]);
        assert_eq!(queue.counters[0].dropped_newest, 2);
        assert_eq!(queue.counters[1].dropped_oldest, 2);
    }

    #[test]
    fn order_across_classes_is_that_of_sending() {
        let mut queue =
            Queue::new(&[class(SlowPolicy::Close, 300, 0), class(SlowPolicy::DropOldest, 300, 0)]);
        for n in 0..6 {
            queue.put(u16::from(n % 2), 0, n, 0);
        }
        assert_eq!(queue.waiting.kept(), 300);
        assert_eq!(queue.take_all(0), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn of_each_key_the_newest_waits_where_its_first_did() {
        let mut queue = Queue::new(&[class(SlowPolicy::Latest, 300, 0)]);
        for (key, n) in [(1, 10), (2, 20), (1, 11), (3, 30), (1, 12), (3, 31)] {
            assert_eq!(queue.put(0, key, n, 0), Admitted::Queued);
        }
        assert_eq!(queue.counters[0].conflated, 3);
        // A fourth key finds no room: the oldest value goes, and its key with it.
        queue.put(0, 4, 40, 0);
        queue.put(0, 1, 13, 0);
        assert_eq!(queue.counters[0].dropped_oldest, 2);
        assert_eq!(queue.take_all(0), [31, 40, 13]);
        queue.put(0, 1, 14, 0);
        assert_eq!(queue.take_all(0), [14]);
    }

    #[test]
    fn a_larger_value_makes_room_among_the_others() {
        let mut queue = Queue::new(&[class(SlowPolicy::Latest, 300, 0)]);
        for key in 1..=3 {
            queue.put(0, key, key as u8, 0);
        }
        let Queue { classes, counters, waiting } = &mut queue;
        waiting.admit((0, &classes[0]), 1, message(9, 150), Millis(0), &mut counters[0]);
        assert_eq!((waiting.bytes(), counters[0].dropped_oldest), (250, 1));
        assert_eq!(queue.take_all(0), [9, 3]);
    }

    #[test]
    fn messages_that_are_too_old_are_dropped_wherever_they_are_met() {
        let mut queue = Queue::new(&[class(SlowPolicy::DropNewest, 200, 50)]);
        queue.put(0, 0, 1, 0);
        queue.put(0, 0, 2, 30);
        // No room, but for the age of the first.
        assert_eq!(queue.put(0, 0, 3, 60), Admitted::Queued);
        assert_eq!(queue.counters[0].expired, 1);
        assert_eq!(queue.take_all(81), [3]);
        assert_eq!((queue.counters[0].expired, queue.counters[0].dropped_newest), (2, 0));
        queue.put(0, 0, 4, u32::MAX);
        let Queue { classes, counters, waiting } = &mut queue;
        waiting.expire(Millis(49), |class| &classes[usize::from(class)], counters);
        assert!(!waiting.is_empty(), "50 ms old, across the end of the clock");
        waiting.expire(Millis(50), |class| &classes[usize::from(class)], counters);
        assert!(waiting.is_empty());
    }

    #[test]
    fn one_message_of_any_size_may_wait_and_what_is_discarded_is_counted() {
        let mut queue = Queue::new(&[class(SlowPolicy::DropOldest, 10, 0)]);
        queue.put(0, 0, 1, 0);
        queue.put(0, 0, 2, 0);
        assert_eq!(queue.waiting.bytes(), 100);
        assert_eq!(queue.waiting.excess(|_| 10), 0);
        let Queue { counters, waiting, .. } = &mut queue;
        std::mem::take(waiting).discard(counters);
        assert_eq!((counters[0].discarded, counters[0].dropped_oldest), (1, 1));
    }

    #[test]
    fn a_waiting_message_is_small() {
        assert!(size_of::<QueueEntry>() <= 56, "{}", size_of::<QueueEntry>());
    }
}
