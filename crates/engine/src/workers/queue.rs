//! Order of jobs: the pool's rules without its threads.

use std::collections::VecDeque;

use throng_io::ConnId;

use crate::conn::map::ConnMap;

/// Jobs of many connections. The jobs of one run in order and never two at once; connections take
/// turns.
///
/// A connection with jobs that may run is *listed*: once, in one list. A worker [takes](Self::take)
/// from its list, runs the job, and [finishes](Self::finish).
pub(super) struct Queue<J> {
    lanes: ConnMap<Lane<J>>,
    /// Connections whose next job may run, longest waiting first. One list for each worker with
    /// affinity, else one for all.
    ready: Vec<VecDeque<ConnId>>,
    /// Lists that got a connection since a worker was last woken for them; several times if they
    /// got several.
    grown: Vec<usize>,
    /// Jobs that found no room, at most one a connection, longest waiting first.
    waiting: VecDeque<Waiting<J>>,
    /// Jobs in the lanes; those that run have left them.
    queued: usize,
    capacity: usize,
}

/// One connection's jobs. It exists while it has any, one of them runs, it is listed, or it has
/// credits in use.
struct Lane<J> {
    jobs: VecDeque<J>,
    is_running: bool,
    is_listed: bool,
    /// Whether its next job is in [`Queue::waiting`].
    waits: bool,
    /// Credits of its jobs whose results it has not handled, where those count.
    credits: usize,
}

struct Waiting<J> {
    id: ConnId,
    job: J,
    /// Whether its connection is notified when it is in the queue.
    notify: bool,
}

/// Result of submitting a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// The job is in the queue.
    Queued,
    /// The job is in the queue, and the connection has no credits left. It should submit no more
    /// until [`Workers::release_credits`](super::Workers::release_credits) returns true.
    Saturated,
    /// The queue is full: the job enters it when there is room, and no other of this connection is
    /// accepted before.
    Waiting,
}

/// Policy for a job that finds the queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// The job is refused.
    Refuse,
    /// The job waits for room outside of the queue, without a notification: its connection submits
    /// nothing else until it is done.
    Wait,
    /// The job waits for room outside of the queue, and its connection is notified when there is
    /// room. Its result takes so many credits (see [`credits_for`](super::credits_for)) until the
    /// connection has handled it and [released](super::Workers::release_credits) them.
    WaitAndNotify(usize),
}

impl<J> Queue<J> {
    /// Creates a queue of `lists` lists and `capacity` jobs, both at least 1.
    pub(super) fn new(lists: usize, capacity: usize) -> Self {
        Self {
            lanes: ConnMap::default(),
            ready: (0..lists).map(|_| VecDeque::new()).collect(),
            grown: Vec::new(),
            waiting: VecDeque::new(),
            queued: 0,
            capacity,
        }
    }

    /// Returns the jobs that wait: in the queue, and for room in it.
    pub(super) fn depth(&self) -> usize {
        self.queued + self.waiting.len()
    }

    /// Returns the jobs that wait for room.
    pub(super) fn outside(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether a job of this connection waits for room.
    pub(super) fn waits(&self, id: ConnId) -> bool {
        self.lanes.get(&id).is_some_and(|lane| lane.waits)
    }

    /// Adds a job.
    ///
    /// # Errors
    /// Returns the job if the queue is full and the policy refuses it, or if another job of its
    /// connection already waits.
    pub(super) fn push(
        &mut self,
        id: ConnId,
        job: J,
        policy: OverflowPolicy,
    ) -> Result<SubmitOutcome, J> {
        let waits = self.waits(id);
        // No job overtakes those that wait for room.
        if self.queued < self.capacity && self.waiting.is_empty() {
            self.lane(id).jobs.push_back(job);
            self.queued += 1;
            self.list(id);
            return Ok(SubmitOutcome::Queued);
        }
        if waits || policy == OverflowPolicy::Refuse {
            return Err(job);
        }
        self.lane(id).waits = true;
        self.waiting.push_back(Waiting {
            id,
            job,
            notify: matches!(policy, OverflowPolicy::WaitAndNotify(_)),
        });
        Ok(SubmitOutcome::Waiting)
    }

    /// Takes credits for a result of this connection. Returns the credits in use.
    pub(super) fn reserve(&mut self, id: ConnId, credits: usize) -> usize {
        let lane = self.lane(id);
        lane.credits += credits;
        lane.credits
    }

    /// Releases the credits of a result that was handled.
    pub(super) fn release(&mut self, id: ConnId, credits: usize) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.credits = lane.credits.saturating_sub(credits);
        }
        self.forget_if_idle(id);
    }

    /// Returns the credits of this connection in use.
    pub(super) fn credits(&self, id: ConnId) -> usize {
        self.lanes.get(&id).map_or(0, |lane| lane.credits)
    }

    /// Takes the next job of a list, which the caller runs. There is room for another one then.
    pub(super) fn take(&mut self, list: usize) -> Option<(ConnId, J)> {
        loop {
            let id = self.ready[list].pop_front()?;
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            lane.is_listed = false;
            match lane.jobs.pop_front() {
                Some(job) => {
                    lane.is_running = true;
                    self.queued -= 1;
                    return Some((id, job));
                }
                // Cancelled while it was listed.
                None => self.forget_if_idle(id),
            }
        }
    }

    /// Records that the running job of this connection has ended.
    pub(super) fn finish(&mut self, id: ConnId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.is_running = false;
        }
        self.list(id);
        self.forget_if_idle(id);
    }

    /// Moves waiting jobs into the queue as far as there is room. Appends connections to notify to
    /// `notified`.
    pub(super) fn admit(&mut self, notified: &mut Vec<ConnId>) {
        while self.queued < self.capacity {
            let Some(Waiting { id, job, notify }) = self.waiting.pop_front() else { return };
            let lane = self.lane(id);
            lane.waits = false;
            lane.jobs.push_back(job);
            self.queued += 1;
            self.list(id);
            if notify {
                notified.push(id);
            }
        }
    }

    /// Removes a connection's jobs, except the running job, and releases its credits.
    pub(super) fn cancel(&mut self, id: ConnId) -> Vec<J> {
        let Some(lane) = self.lanes.get_mut(&id) else { return Vec::new() };
        let mut jobs: Vec<J> = lane.jobs.drain(..).collect();
        self.queued -= jobs.len();
        lane.credits = 0;
        if std::mem::take(&mut lane.waits)
            && let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id)
        {
            jobs.extend(self.waiting.remove(at).map(|waiting| waiting.job));
        }
        self.forget_if_idle(id);
        jobs
    }

    /// Removes all jobs, except the running ones.
    pub(super) fn cancel_all(&mut self) -> Vec<J> {
        let ids: Vec<ConnId> = self.lanes.keys().copied().collect();
        ids.into_iter().flat_map(|id| self.cancel(id)).collect()
    }

    /// Calls `wake` for each list that has got a connection since this was last called, and still
    /// has one.
    pub(super) fn each_grown(&mut self, mut wake: impl FnMut(usize)) {
        for list in self.grown.drain(..) {
            if !self.ready[list].is_empty() {
                wake(list);
            }
        }
    }

    fn lane(&mut self, id: ConnId) -> &mut Lane<J> {
        let new = || Lane {
            jobs: VecDeque::new(),
            is_running: false,
            is_listed: false,
            waits: false,
            credits: 0,
        };
        self.lanes.entry(id).or_insert_with(new)
    }

    /// Lists the connection if it has a job that may run.
    fn list(&mut self, id: ConnId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if lane.is_running || lane.is_listed || lane.jobs.is_empty() {
            return;
        }
        lane.is_listed = true;
        // Slots are given out from the lowest, and where each connection is a shard of its own its
        // slot is always the same: both together spread evenly over the workers.
        let list = (id.slot() + id.shard()) % self.ready.len();
        self.ready[list].push_back(id);
        self.grown.push(list);
    }

    fn forget_if_idle(&mut self, id: ConnId) {
        let is_idle = |lane: &Lane<J>| {
            lane.jobs.is_empty()
                && !lane.is_running
                && !lane.is_listed
                && !lane.waits
                && lane.credits == 0
        };
        if self.lanes.get(&id).is_some_and(is_idle) {
            self.lanes.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn id(slot: u32) -> ConnId {
        ConnId::new(0, slot, 1)
    }

    #[test]
    fn connections_take_turns_and_one_is_never_run_twice_at_once() {
        let mut queue = Queue::new(1, 10);
        for (slot, job) in [(1, 'a'), (1, 'b'), (2, 'c')] {
            assert_eq!(
                queue.push(id(slot), job, OverflowPolicy::Refuse),
                Ok(SubmitOutcome::Queued)
            );
        }
        assert_eq!(queue.take(0), Some((id(1), 'a')));
        assert_eq!(queue.take(0), Some((id(2), 'c')));
        assert_eq!(queue.take(0), None, "b waits for a");
        queue.finish(id(1));
        assert_eq!(queue.take(0), Some((id(1), 'b')));
        queue.finish(id(1));
        queue.finish(id(2));
        assert!(queue.lanes.is_empty() && queue.depth() == 0);
    }

    #[test]
    fn a_job_without_room_waits_at_most_one_a_connection_or_is_given_back() {
        let mut queue = Queue::new(1, 1);
        assert_eq!(
            queue.push(id(1), 'a', OverflowPolicy::WaitAndNotify(1)),
            Ok(SubmitOutcome::Queued)
        );
        assert_eq!(
            queue.push(id(1), 'b', OverflowPolicy::WaitAndNotify(1)),
            Ok(SubmitOutcome::Waiting)
        );
        assert_eq!(queue.push(id(1), 'c', OverflowPolicy::WaitAndNotify(1)), Err('c'));
        assert_eq!(queue.push(id(2), 'd', OverflowPolicy::Refuse), Err('d'));
        assert_eq!(queue.push(id(2), 'e', OverflowPolicy::Wait), Ok(SubmitOutcome::Waiting));
        assert_eq!((queue.depth(), queue.outside()), (3, 2));
        assert_eq!(queue.take(0), Some((id(1), 'a')));
        let mut notified = Vec::new();
        queue.admit(&mut notified);
        assert_eq!((notified.as_slice(), queue.outside()), (&[id(1)][..], 1));
        queue.finish(id(1));
        assert_eq!(queue.take(0), Some((id(1), 'b')), "in order");
        queue.admit(&mut notified);
        assert_eq!(notified, [id(1)], "2 did not want to be notified");
        assert_eq!(queue.take(0), Some((id(2), 'e')));
    }

    #[test]
    fn affinity_is_by_connection_and_even() {
        let mut queue = Queue::new(4, 100);
        for slot in 0..16 {
            queue.push(id(slot), slot, OverflowPolicy::Refuse).unwrap();
        }
        for list in 0..4 {
            let mut slots = Vec::new();
            while let Some((_, slot)) = queue.take(list) {
                slots.push(slot);
            }
            assert_eq!(slots.len(), 4);
            assert!(slots.iter().all(|slot| slot % 4 == slots[0] % 4));
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u32, OverflowPolicy),
        Take(usize),
        /// A running job.
        Finish(usize),
        Cancel(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let policy = || {
            prop_oneof![
                Just(OverflowPolicy::Refuse),
                Just(OverflowPolicy::Wait),
                Just(OverflowPolicy::WaitAndNotify(1))
            ]
        };
        prop_oneof![
            4 => (0u32..6, policy()).prop_map(|(slot, policy)| Step::Push(slot, policy)),
            3 => (0usize..3).prop_map(Step::Take),
            3 => (0usize..8).prop_map(Step::Finish),
            1 => (0u32..6).prop_map(Step::Cancel),
        ]
    }

    proptest! {
        /// For any operations in any order: a worker that finds no job leaves no job that could
        /// run; the jobs of a connection run in order, one at a time, each once; and only
        /// connections that had to wait for capacity are notified of it.
        #[test]
        fn no_job_is_lost_overtaken_or_left_behind(
            lists in 1usize..4,
            capacity in 1usize..6,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut queue = Queue::new(lists, capacity);
            let mut due: HashMap<ConnId, VecDeque<u32>> = HashMap::new();
            let mut stopped: Vec<ConnId> = Vec::new();
            let mut running: Vec<ConnId> = Vec::new();
            let mut next = 0;
            let last = [Step::Finish(0), Step::Take(0), Step::Take(1), Step::Take(2)];
            let rest = std::iter::repeat_n(last, 300);
            for step in steps.into_iter().chain(rest.flatten()) {
                match step {
                    Step::Push(slot, policy) => {
                        next += 1;
                        match queue.push(id(slot), next, policy) {
                            Ok(outcome) => {
                                due.entry(id(slot)).or_default().push_back(next);
                                if outcome == SubmitOutcome::Waiting {
                                    prop_assert!(policy != OverflowPolicy::Refuse);
                                    if policy == OverflowPolicy::WaitAndNotify(1) {
                                        prop_assert!(!stopped.contains(&id(slot)));
                                        stopped.push(id(slot));
                                    }
                                }
                            }
                            Err(job) => prop_assert_eq!(job, next),
                        }
                    }
                    Step::Take(list) => {
                        let list = list % lists;
                        let Some((id, job)) = queue.take(list) else {
                            for (id, jobs) in &due {
                                let its = (id.slot() + id.shard()) % lists == list;
                                let waits = queue.waits(*id) && jobs.len() == 1;
                                prop_assert!(
                                    !its || jobs.is_empty() || running.contains(id) || waits,
                                    "{:?} could run", id
                                );
                            }
                            continue;
                        };
                        prop_assert!(!running.contains(&id), "two at once");
                        prop_assert_eq!(due.get_mut(&id).and_then(VecDeque::pop_front), Some(job));
                        running.push(id);
                        let mut notified = Vec::new();
                        queue.admit(&mut notified);
                        for id in notified {
                            let at = stopped.iter().position(|&other| other == id);
                            prop_assert!(at.is_some(), "notified without need");
                            stopped.swap_remove(at.unwrap());
                        }
                    }
                    Step::Finish(at) if !running.is_empty() => {
                        let id = running.remove(at % running.len());
                        queue.finish(id);
                    }
                    Step::Finish(_) => {}
                    Step::Cancel(slot) => {
                        let mut jobs = queue.cancel(id(slot));
                        jobs.sort_unstable();
                        let expected = due.remove(&id(slot));
                let expected: Vec<u32> = expected.into_iter().flatten().collect();
                        prop_assert_eq!(jobs, expected);
                        stopped.retain(|&other| other != id(slot));
                        let mut notified = Vec::new();
                        queue.admit(&mut notified);
                        stopped.retain(|id| !notified.contains(id));
                    }
                }
                prop_assert!(queue.queued <= capacity);
                queue.each_grown(|_| ());
            }
            prop_assert!(due.values().all(VecDeque::is_empty), "left behind: {:?}", due);
            prop_assert!(stopped.is_empty(), "never notified: {:?}", stopped);
            prop_assert!(queue.lanes.is_empty() && queue.depth() == 0);
        }
    }
}
