//! The order and the rate in which tunnels are closed: jobs for the tunnels of a backend or of all,
//! and clients whose backend is lost.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use throng_engine::TokenBucket;
use throng_engine::random::Random;
use throng_io::{ConnId, Instant};
use throng_proto::ws::{CloseCode, encode_close};

use crate::backend::{Backend, State};
use crate::settings::{CloseOrder, Closing};
use crate::shard::records::{BalanceRecord, BalanceRecords, EighthTick};

/// The code for a service that restarts or has moved: clients reconnect, to another backend.
pub(in crate::shard) const SERVICE_RESTART: u16 = CloseCode::SERVICE_RESTART.get();
/// The code for the end of the balancer.
pub(in crate::shard) const GOING_AWAY: u16 = CloseCode::GOING_AWAY.get();

/// The code for a client beyond a rate of its route.
pub(in crate::shard) const BEYOND_RATE: u16 = CloseCode::POLICY_VIOLATION.get();

/// Encodes the Close frame of that code.
pub(in crate::shard) fn encode(code: u16, out: &mut Vec<u8>) {
    let reason = match code {
        GOING_AWAY => "going away",
        BEYOND_RATE => "too much at once",
        _ => "please connect again",
    };
    encode_close(code, reason, None, out);
}

/// A job that closes tunnels one after the other.
pub(in crate::shard) struct CloseJob {
    /// The backend; `None`: all.
    backend: Option<Arc<Backend>>,
    closing: Closing,
    /// Clients, the first last. Listed when the job began: ids that are outdated find nothing.
    list: Vec<ConnId>,
    /// Clients whose tunnels are unframed, to be closed at the deadline: nothing asks
    /// them to connect again, so they get all the time there is.
    unframed: Vec<ConnId>,
    bucket: TokenBucket,
    /// The number of tunnels ever opened when they were listed.
    opened: u64,
    /// The number that all shards together may still close.
    most: Option<Arc<AtomicU32>>,
    deadline: Option<Instant>,
}

impl CloseJob {
    /// Creates a job for the tunnels of a backend, in the list of `records`.
    pub(in crate::shard) fn new(
        backend: Arc<Backend>,
        closing: &Closing,
        most: Option<Arc<AtomicU32>>,
        bucket: TokenBucket,
        now: Instant,
    ) -> Self {
        let deadline = closing.deadline.map(|deadline| now.after(deadline));
        Self { most, deadline, ..Self::of(Some(backend), closing.clone(), bucket) }
    }

    /// Creates the job of a shutdown: for all tunnels, also for those that are opened later.
    pub(in crate::shard) fn of_shutdown(rate: u32, bucket: TokenBucket) -> Self {
        let order = CloseOrder::Shuffled;
        let closing = Closing { code: GOING_AWAY, rate, order, deadline: None, later: true };
        Self::of(None, closing, bucket)
    }

    fn of(backend: Option<Arc<Backend>>, closing: Closing, bucket: TokenBucket) -> Self {
        let (list, unframed) = (Vec::new(), Vec::new());
        Self { backend, closing, list, unframed, bucket, opened: 0, most: None, deadline: None }
    }

    pub(super) fn is_of(&self, backend: &Arc<Backend>) -> bool {
        self.backend.as_ref().is_some_and(|own| Arc::ptr_eq(own, backend))
    }

    /// Spreads the listed tunnels over the time of the job, if it has one.
    pub(super) fn spread(&mut self) {
        if let Some(window) = self.closing.deadline {
            self.bucket = TokenBucket::over(self.list.len(), window);
        }
    }

    /// Lists the job's tunnels in its order.
    pub(super) fn list_tunnels(
        &mut self,
        records: &BalanceRecords,
        opened: u64,
        random: &mut Random,
    ) {
        self.opened = opened;
        let mut found: Vec<(EighthTick, EighthTick, ConnId)> = Vec::new();
        // At a backend that is down or drained at a rate they are closed as others are. In a
        // shutdown they end at its deadline, and none is closed to even out loads.
        let waits = self.deadline.is_some() || self.backend.is_none() || self.most.is_some();
        self.unframed.clear();
        for (_, record) in records.iter() {
            let BalanceRecord::Tunnel(tunnel) = record else { continue };
            let Some(backend) = tunnel.backend() else { continue };
            // A backend that has ended a stream of frames is lost, or has sent a Close frame.
            let is_unframed = tunnel.is_unframed();
            let ends = tunnel.is_dropped() || tunnel.is_cut_due() || tunnel.has_finished();
            let is_of = self.backend.as_ref().is_none_or(|own| Arc::ptr_eq(own, backend));
            if !is_of || ends && !is_unframed {
                continue;
            }
            let Some((client, BalanceRecord::Tunnel(other))) = records.at(tunnel.peer().slot())
            else {
                continue;
            };
            match waits && is_unframed {
                true => self.unframed.push(client),
                false => found.push((tunnel.seen().max(other.seen()), tunnel.opened(), client)),
            }
        }
        match self.closing.order {
            CloseOrder::IdleAndOldest => {
                found.sort_unstable_by_key(|&(seen, opened, _)| Reverse((seen, opened)))
            }
            CloseOrder::Shuffled => random.shuffle(&mut found),
        }
        self.list = found.into_iter().map(|(_, _, client)| client).collect();
    }

    /// Returns when the next tunnel must be closed.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        let closes = !self.list.is_empty();
        let waits = closes || !self.unframed.is_empty();
        let next = closes.then(|| self.bucket.next(now));
        [next, self.deadline.filter(|_| waits)].into_iter().flatten().min()
    }

    /// Returns the number of tunnels to be closed now, and the code for their clients.
    pub(in crate::shard) fn due(&mut self, now: Instant) -> (u32, u16) {
        let is_late = self.deadline.is_some_and(|deadline| deadline <= now);
        if is_late {
            self.list.append(&mut self.unframed);
        }
        let due = match self.list.is_empty() {
            true => 0,
            false if is_late => u32::MAX,
            false => self.bucket.due(now),
        };
        (due, self.closing.code)
    }

    /// Takes the next client. Its tunnel counts as closed, unless [`undo`](Self::undo) is called.
    pub(in crate::shard) fn next(&mut self) -> Option<ConnId> {
        let id = self.list.pop()?;
        let has_one = self.most.as_ref().is_none_or(|most| {
            most.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
        });
        if !has_one {
            self.list = Vec::new();
        }
        has_one.then_some(id)
    }

    /// Counts a tunnel as open that was closed already.
    pub(in crate::shard) fn undo(&self) {
        if let Some(most) = &self.most {
            most.fetch_add(1, Relaxed);
        }
    }

    /// Returns whether there may be more tunnels to close.
    pub(super) fn has_more(&self) -> bool {
        self.closing.later || !self.list.is_empty()
    }

    /// Returns whether its backend has tunnels, or may get some.
    pub(super) fn is_of_use(&self) -> bool {
        self.backend
            .as_ref()
            .is_none_or(|backend| backend.state() != State::Removed || backend.tunnels() > 0)
    }

    /// Lists tunnels that were opened since it began, once the listed ones are closed.
    pub(super) fn renew(
        &mut self,
        records: &BalanceRecords,
        opened: u64,
        random: &mut Random,
        now: Instant,
    ) {
        if self.closing.later && self.list.is_empty() && self.opened != opened {
            self.bucket.renew(now);
            self.list_tunnels(records, opened, random);
        }
    }
}

/// Clients whose backends ended without a Close frame. They are closed at a rate: all at once they
/// would reconnect all at once.
pub(super) struct Orphans {
    list: VecDeque<ConnId>,
    /// The rate of all shards...
    rate: u32,
    /// ...and this shard's part.
    bucket: TokenBucket,
}

impl Orphans {
    pub(super) fn new(rate: u32, bucket: TokenBucket) -> Self {
        Self { list: VecDeque::new(), rate, bucket }
    }

    /// Sets the rate. An unchanged rate keeps its bucket: otherwise each change of the
    /// configuration would allow one more closing.
    pub(super) fn set_rate(&mut self, rate: u32, bucket: TokenBucket) {
        if self.rate != rate {
            (self.rate, self.bucket) = (rate, bucket);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn push(&mut self, id: ConnId, now: Instant) {
        if self.list.is_empty() {
            self.bucket.renew(now);
        }
        self.list.push_back(id);
    }

    /// Returns when the next one must be closed.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        (!self.list.is_empty()).then(|| self.bucket.next(now))
    }

    /// Returns the number to be closed now.
    pub(super) fn due(&mut self, now: Instant) -> u32 {
        if self.list.is_empty() { 0 } else { self.bucket.due(now) }
    }

    pub(super) fn next(&mut self) -> Option<ConnId> {
        self.list.pop_front()
    }
}
