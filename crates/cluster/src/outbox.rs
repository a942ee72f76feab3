//! Publications sent to the broker, and publications that wait because it is away.
//!
//! They are sent in their order of arrival. When the connection is lost, unacknowledged
//! publications are sent again if the broker can recognize duplicates; the outcome of all others is
//! unknown, and they are counted as such.

use std::collections::VecDeque;

/// Handling of publications while the broker cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhileDown {
    /// The publisher gets an error.
    #[default]
    Refuse,
    /// The publication waits for the broker, for a bounded time and within bounded memory.
    Buffer,
    /// Only members on this node get the publication. Not for channels with history, because the
    /// broker creates their sequence.
    Local,
}

/// A publication that the broker has not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending<T> {
    /// The publication.
    pub item: T,
    /// Its bytes of memory.
    pub bytes: usize,
    /// When it was accepted.
    pub since: u64,
    /// Whether the publication may be sent twice: the broker recognizes the duplicate.
    pub is_repeatable: bool,
    /// Whether it was sent before.
    pub is_retry: bool,
}

/// Accepted publications, in order. The caller bounds their number: it counts the memory of each
/// publication until it is removed.
#[derive(Debug)]
pub struct PublishQueue<T> {
    waiting: VecDeque<Pending<T>>,
    sent: VecDeque<Pending<T>>,
    /// Publications of the current batch that must be sent again. They precede all sent
    /// publications without an answer.
    again: Vec<Pending<T>>,
    /// Publications that the broker has refused for now, and later publications of the same kind.
    /// Publications of the other kind, which the broker accepts, do not wait for these.
    held: VecDeque<Pending<T>>,
    /// The number of held publications that are not repeatable. A broker that refuses these refuses
    /// everything.
    held_plain: usize,
    /// Whether the broker has accepted a publication of the current batch whose kind is held.
    has_progress: bool,
    max_age: u64,
    is_connected: bool,
    /// When the last loss of the connection was noticed.
    away_since: u64,
    /// The time since which the broker refuses the held publications.
    refused_since: Option<u64>,
}

impl<T: Clone> PublishQueue<T> {
    /// Creates an empty outbox without a connection. A publication waits in it for at most
    /// `max_age`.
    #[must_use]
    pub fn new(max_age: u64) -> Self {
        let (waiting, sent) = (VecDeque::new(), VecDeque::new());
        Self {
            waiting,
            sent,
            again: Vec::new(),
            held: VecDeque::new(),
            held_plain: 0,
            has_progress: false,
            max_age,
            is_connected: false,
            away_since: 0,
            refused_since: None,
        }
    }

    /// Accepts a publication; returns it if it is only for members on this node. With
    /// [`WhileDown::Refuse`] the caller accepted it just before the connection was lost, and it
    /// still waits: its publisher has been promised that it is published.
    #[must_use]
    pub fn offer(&mut self, pending: Pending<T>, while_down: WhileDown) -> Option<Pending<T>> {
        if !self.is_connected && while_down == WhileDown::Local {
            return Some(pending);
        }
        self.waiting.push_back(pending);
        None
    }

    /// Returns whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Returns whether no publication is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { waiting, sent, again, held, .. } = self;
        waiting.is_empty() && sent.is_empty() && again.is_empty() && held.is_empty()
    }

    /// Returns whether the broker refuses some publications for now.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.refused_since.is_some()
    }

    /// Returns a copy of the next publication to send, if `fits` accepts it; the broker answers in
    /// the same order. With `tries_held`, publications that the broker has refused come first.
    pub fn send_if(
        &mut self,
        tries_held: bool,
        fits: impl FnOnce(&T) -> bool,
    ) -> Option<Pending<T>> {
        if !self.is_connected {
            return None;
        }
        let next = if tries_held && !self.held.is_empty() {
            let next = self.held.pop_front_if(|next| fits(&next.item))?;
            self.held_plain -= usize::from(!next.is_repeatable);
            next
        } else {
            self.hold_back();
            self.waiting.pop_front_if(|next| fits(&next.item))?
        };
        let copy = next.clone();
        self.sent.push_back(next);
        Some(copy)
    }

    /// Moves the next publications to the held ones if sending them would overtake those.
    fn hold_back(&mut self) {
        while let Some(next) = self.waiting.pop_front_if(|next| {
            !self.held.is_empty() && (next.is_repeatable || self.held_plain > 0)
        }) {
            self.held_plain += usize::from(!next.is_repeatable);
            self.held.push_back(next);
        }
    }

    /// Records that the broker has answered the oldest sent publication.
    pub fn acknowledge(&mut self) -> Option<Pending<T>> {
        let answered = self.sent.pop_front()?;
        self.has_progress |= answered.is_repeatable || self.held_plain > 0;
        Some(answered)
    }

    /// Records that the broker has refused the oldest sent publication for now. It is sent again
    /// before all waiting publications, once the batch is [answered](Self::answered) or the
    /// connection [broken](Self::broken).
    pub fn postpone(&mut self) {
        self.again.extend(self.sent.pop_front());
    }

    /// Records that the broker has answered a batch. With `is_refused`, the broker will refuse a
    /// part of the batch for a while.
    pub fn answered(&mut self, is_refused: bool, now: u64) {
        let has_progress = std::mem::take(&mut self.has_progress);
        if !self.again.is_empty() {
            self.refused_since = is_refused.then(|| self.refused_since.unwrap_or(now));
            for pending in self.again.drain(..).rev() {
                self.held_plain += usize::from(!pending.is_repeatable);
                self.held.push_front(pending);
            }
        } else if has_progress || self.held.is_empty() {
            self.release();
        }
    }

    /// Moves the held publications before all waiting ones.
    fn release(&mut self) {
        (self.refused_since, self.held_plain) = (None, 0);
        self.held.drain(..).rev().for_each(|pending| self.waiting.push_front(pending));
    }

    /// Records that there is a connection: waiting publications may be sent.
    pub fn connected(&mut self) {
        self.is_connected = true;
    }

    /// Records the lost connection; returns the publications whose outcome is unknown. Publications
    /// that are sent again, and all after them, start their waiting time now: noticing the loss may
    /// have taken longer than that time.
    pub fn broken(&mut self, now: u64) -> Vec<Pending<T>> {
        if self.is_connected {
            self.away_since = now;
        }
        (self.is_connected, self.has_progress) = (false, false);
        self.release();
        let mut unknown = Vec::new();
        while let Some(mut pending) = self.sent.pop_back() {
            if pending.is_repeatable {
                (pending.is_retry, pending.since) = (true, now);
                self.waiting.push_front(pending);
            } else {
                unknown.push(pending);
            }
        }
        self.again.drain(..).rev().for_each(|pending| self.waiting.push_front(pending));
        unknown.reverse();
        unknown
    }

    /// Removes waiting publications that `is_taken` selects, in order.
    pub fn take_waiting(&mut self, mut is_taken: impl FnMut(&T) -> bool) -> Vec<Pending<T>> {
        let (taken, rest) = self.waiting.drain(..).partition(|one| is_taken(&one.item));
        self.waiting = rest;
        Vec::from(taken)
    }

    /// Removes publications that have waited too long for a connection, or for a broker that
    /// refuses them.
    pub fn expire(&mut self, now: u64) -> Vec<Pending<T>> {
        self.hold_back();
        let mut expired = Vec::new();
        let (queue, from) = match (self.is_connected, self.refused_since) {
            (false, _) => (&mut self.waiting, self.away_since),
            (true, Some(since)) => (&mut self.held, since),
            (true, None) => return expired,
        };
        let is_over =
            |oldest: &mut Pending<T>| now.saturating_sub(oldest.since.max(from)) > self.max_age;
        while let Some(oldest) = queue.pop_front_if(is_over) {
            expired.push(oldest);
        }
        if self.is_connected {
            let plain = expired.iter().filter(|one| !one.is_repeatable).count();
            self.held_plain -= plain;
            if self.held.is_empty() {
                self.refused_since = None;
            }
        }
        expired
    }

    /// Removes all unsent publications.
    pub fn take_rest(&mut self) -> Vec<Pending<T>> {
        self.release();
        self.waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use throng_testkit::Random;

    use super::*;

    fn send(outbox: &mut PublishQueue<u32>) -> Option<Pending<u32>> {
        outbox.send_if(true, |_| true)
    }

    fn items(all: &[Pending<u32>]) -> Vec<u32> {
        all.iter().map(|one| one.item).collect()
    }

    fn pending(item: u32, is_repeatable: bool, since: u64) -> Pending<u32> {
        Pending { item, bytes: 10, since, is_repeatable, is_retry: false }
    }

    #[test]
    fn without_a_connection_what_was_accepted_waits_or_is_for_members_of_this_node() {
        let mut outbox = PublishQueue::new(5_000);
        let local = outbox.offer(pending(1, false, 0), WhileDown::Local);
        assert_eq!(local.map(|one| one.item), Some(1));
        assert_eq!(outbox.offer(pending(2, true, 0), WhileDown::Buffer), None);
        assert_eq!(outbox.offer(pending(3, true, 1), WhileDown::Refuse), None);
        assert_eq!(send(&mut outbox), None);
        let expired = outbox.expire(5_001);
        assert_eq!(expired.iter().map(|one| one.item).collect::<Vec<_>>(), [2]);
        outbox.connected();
        assert_eq!(outbox.offer(pending(4, false, 2), WhileDown::Local), None);
        assert_eq!([3, 4].map(|_| send(&mut outbox).unwrap().item), [3, 4]);
        assert!(outbox.expire(100_000).is_empty() && !outbox.is_empty());
        assert_eq!(
            [outbox.acknowledge(), outbox.acknowledge()].map(|one| one.unwrap().item),
            [3, 4]
        );
        assert!(outbox.is_empty());
    }

    #[test]
    fn waiting_publications_have_all_of_their_time_when_a_loss_is_noticed() {
        let mut outbox = PublishQueue::new(5_000);
        outbox.connected();
        for item in 1..=2 {
            assert_eq!(outbox.offer(pending(item, true, 0), WhileDown::Buffer), None);
        }
        assert_eq!(send(&mut outbox).map(|one| one.item), Some(1));
        // The broker has not answered since the start.
        assert!(outbox.broken(5_001).is_empty() && outbox.expire(5_001).is_empty());
        // Attempts to connect again do not count as another loss.
        assert!(outbox.broken(9_000).is_empty() && outbox.expire(10_001).is_empty());
        assert_eq!(outbox.expire(10_002).len(), 2);
    }

    #[test]
    fn publications_refused_for_now_are_sent_again_in_order_and_not_for_ever() {
        let mut outbox = PublishQueue::new(5_000);
        outbox.connected();
        for item in 1..=4 {
            assert_eq!(outbox.offer(pending(item, true, 0), WhileDown::Refuse), None);
        }
        let mut refuse = |now, is_refused| {
            let sent = [0; 2].map(|_| send(&mut outbox).unwrap().item);
            (0..2).for_each(|_| outbox.postpone());
            outbox.answered(is_refused, now);
            (sent, outbox.expire(now).len())
        };
        // The publication has waited for a long time, and is refused for the first time.
        assert_eq!(refuse(9_000, true), ([1, 2], 0));
        assert_eq!(refuse(14_000, true), ([1, 2], 0));
        assert_eq!(refuse(14_001, false), ([1, 2], 0), "one of another channel was taken");
        assert_eq!(refuse(14_002, true), ([1, 2], 0));
        assert_eq!(refuse(20_000, true), ([1, 2], 4));
        assert!(outbox.is_empty());
    }

    #[test]
    fn publications_that_the_broker_takes_do_not_wait_behind_refused_ones() {
        let mut outbox = PublishQueue::new(5_000);
        outbox.connected();
        for (item, is_repeatable) in [(1, true), (2, false), (3, true), (4, false)] {
            let _ = outbox.offer(pending(item, is_repeatable, 0), WhileDown::Refuse);
        }
        assert_eq!([1, 2].map(|_| send(&mut outbox).unwrap().item), [1, 2]);
        outbox.postpone();
        assert_eq!(outbox.acknowledge().unwrap().item, 2);
        outbox.answered(true, 100);
        // The refused publications are not sent again yet, nor those that would overtake them.
        assert_eq!(outbox.send_if(false, |_| true).unwrap().item, 4);
        assert_eq!((outbox.send_if(false, |_| true), outbox.is_refused()), (None, true));
        assert_eq!(outbox.acknowledge().unwrap().item, 4);
        outbox.answered(false, 200);
        assert_eq!((outbox.send_if(false, |_| true), outbox.is_refused()), (None, true));
        let _ = outbox.offer(pending(5, false, 5_200), WhileDown::Refuse);
        assert_eq!(items(&outbox.expire(5_101)), [1, 3]);
        assert!(!outbox.is_refused() && outbox.expire(u64::MAX).is_empty());
        assert_eq!(items(&outbox.take_rest()), [5]);
        // A broker that refuses everything accepts nothing out of order.
        for (item, is_repeatable) in [(6, false), (7, true), (8, false)] {
            let _ = outbox.offer(pending(item, is_repeatable, 0), WhileDown::Refuse);
        }
        assert_eq!(send(&mut outbox).unwrap().item, 6);
        outbox.postpone();
        outbox.answered(true, 6_000);
        assert_eq!(outbox.send_if(false, |_| true), None);
        assert_eq!([6, 7, 8].map(|_| send(&mut outbox).unwrap().item), [6, 7, 8]);
        (0..3).for_each(|_| assert!(outbox.acknowledge().is_some()));
        outbox.answered(false, 6_100);
        assert!(outbox.is_empty() && !outbox.is_refused());
    }

    #[test]
    fn every_publication_comes_out_once_and_its_outcome_is_true() {
        for seed in 0..2_000 {
            let mut random = Random::new(seed * 7 + 1);
            let mut outbox = PublishQueue::new(20);
            let (mut next, mut open) = (0, BTreeSet::new());
            // Publications that may have reached the broker, and publications that certainly have.
            let (mut pipe, mut seen, mut is_full) = (VecDeque::new(), Vec::new(), false);
            let out = |open: &mut BTreeSet<u32>, one: &Pending<u32>| {
                assert!(open.remove(&one.item), "seed {seed}: {} comes out twice", one.item);
            };
            for now in 0..200 {
                match random.below(12) {
                    0..=3 => {
                        let one = pending(next, next % 3 > 0, now);
                        assert_eq!(outbox.offer(one, WhileDown::Buffer), None);
                        open.insert(next);
                        next += 1;
                    }
                    4 | 5 => {
                        let tries_held = random.below(2) == 0;
                        pipe.extend(outbox.send_if(tries_held, |_| true));
                    }
                    // The broker answers a whole batch; a full broker refuses publications with
                    // history.
                    6 | 7 => {
                        for Pending { item, is_repeatable, .. } in pipe.drain(..) {
                            if is_full && is_repeatable {
                                outbox.postpone();
                                continue;
                            }
                            seen.push(item);
                            out(&mut open, &outbox.acknowledge().unwrap());
                        }
                        outbox.answered(is_full, now);
                    }
                    8 => is_full = random.below(3) == 0,
                    9 if random.below(3) == 0 => {
                        // The broker executes some of the commands sent before.
                        let arrive = random.below(pipe.len() + 1);
                        let arrived: Vec<_> = pipe.drain(..).take(arrive).collect();
                        seen.extend(arrived.iter().map(|one| one.item));
                        outbox.broken(now).iter().for_each(|one| out(&mut open, one));
                    }
                    9 => {}
                    10 => outbox.connected(),
                    _ => {
                        for one in outbox.expire(now) {
                            // A publication reported as refused has not reached the broker.
                            assert!(one.is_retry || !seen.contains(&one.item), "seed {seed}");
                            out(&mut open, &one);
                        }
                    }
                }
            }
            outbox.broken(200).iter().for_each(|one| out(&mut open, one));
            outbox.take_rest().iter().for_each(|one| out(&mut open, one));
            assert!(open.is_empty() && outbox.is_empty(), "seed {seed}: {open:?} is untold");
        }
    }

    #[test]
    fn a_connection_that_is_lost_amid_a_batch_leaves_what_was_refused_before_it_in_order() {
        let mut outbox = PublishQueue::new(5_000);
        outbox.connected();
        for (item, is_repeatable) in [(1, false), (2, true), (3, true), (4, true)] {
            let _ = outbox.offer(pending(item, is_repeatable, 0), WhileDown::Buffer);
        }
        assert_eq!([1, 2, 3].map(|_| send(&mut outbox).unwrap().item), [1, 2, 3]);
        outbox.postpone();
        assert!(outbox.broken(0).is_empty() && !outbox.is_empty());
        let waiting = outbox.take_waiting(|_| true);
        let waiting: Vec<_> = waiting.iter().map(|one| (one.item, one.is_retry)).collect();
        assert_eq!(waiting, [(1, false), (2, true), (3, true), (4, false)]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn repeatable_publications_arrive_once_in_order_and_others_at_most_once() {
        for seed in 0..2_000 {
            let mut random = Random::new(seed * 11 + 5);
            let mut outbox = PublishQueue::new(1_000_000);
            let (mut next, mut accepted, mut unknown) = (0, Vec::new(), Vec::new());
            // The commands in flight to the broker, its publications, and its answers.
            let (mut pipe, mut broker, mut answers) = (VecDeque::new(), Vec::new(), 0);
            for now in 0..120 {
                match random.below(10) {
                    0..=3 => {
                        let one = pending(next, next % 3 > 0, now);
                        assert_eq!(outbox.offer(one, WhileDown::Buffer), None);
                        accepted.push(next);
                        next += 1;
                    }
                    4 | 5 => pipe.extend(send(&mut outbox)),
                    6 | 7 => {
                        if let Some(Pending { item, is_retry, .. }) = pipe.pop_front() {
                            if !is_retry || !broker.contains(&item) {
                                broker.push(item);
                            }
                            answers += 1;
                        }
                    }
                    8 if answers > 0 => {
                        answers -= 1;
                        assert!(outbox.acknowledge().is_some());
                    }
                    9 if random.below(4) == 0 => {
                        unknown.extend(outbox.broken(now).into_iter().map(|one| one.item));
                        pipe.clear();
                        answers = 0;
                        outbox.connected();
                    }
                    _ => outbox.connected(),
                }
            }
            outbox.connected();
            pipe.extend(std::iter::from_fn(|| send(&mut outbox)));
            for Pending { item, is_retry, .. } in pipe {
                if !is_retry || !broker.contains(&item) {
                    broker.push(item);
                }
            }
            assert!(broker.is_sorted_by(|a, b| a < b), "seed {seed}: {broker:?}");
            let is_missing = |item: &&u32| !broker.contains(item);
            for item in accepted.iter().filter(is_missing) {
                assert!(item % 3 == 0 && unknown.contains(item), "seed {seed}: {item} is lost");
            }
        }
    }
}
