//! Tunnels: the data queued for their sides, and the times at which they are closed.
//!
//! A tunnel holds data only while a side is behind: then its other side is not read, and the driver
//! has the one batch in flight.
//!
//! A client gets a Close frame after the last whole frame of its backend. Later data of the backend
//! is dropped; data of the client is forwarded to the backend until its own Close frame has come,
//! so nothing it sent before is lost.

mod closing;
mod pump;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use throng_engine::random::Random;
use throng_engine::{ConnMap, TokenBucket};
use throng_io::{Batch, ConnId, Instant};

use self::closing::Orphans;
pub(super) use self::closing::{BEYOND_RATE, CloseJob, GOING_AWAY, SERVICE_RESTART, encode};
pub(super) use self::pump::{Forward, load};
use super::records::BalanceRecords;
use crate::backend::Backend;
use crate::limit::{RateLimits, TunnelPlaces};
use crate::meter::Meter;

/// Data queued for the sides of tunnels, and the tunnels that must be closed.
pub(super) struct Tunnels {
    /// Data queued after the send in flight of a side.
    queued: ConnMap<Box<Batch>>,
    /// Places in limits of tunnels, by the client, of the tunnels that have some.
    places: ConnMap<TunnelPlaces>,
    /// The meters of clients whose data is counted.
    meters: ConnMap<Meter>,
    /// Clients beyond a rate, and when each is within it.
    throttled: BinaryHeap<Reverse<(Instant, ConnId)>>,
    close_jobs: Vec<CloseJob>,
    orphans: Orphans,
    /// The deadline of the shutdown, once it has begun.
    ends_at: Option<Instant>,
}

impl Tunnels {
    /// Creates the part with the rate of closing of all shards, and the bucket of this shard's.
    pub(super) fn new(rate: u32, bucket: TokenBucket) -> Self {
        Self {
            queued: ConnMap::default(),
            places: ConnMap::default(),
            meters: ConnMap::default(),
            throttled: BinaryHeap::new(),
            close_jobs: Vec::new(),
            orphans: Orphans::new(rate, bucket),
            ends_at: None,
        }
    }

    /// Sets the rate of closing of all shards.
    pub(super) fn set_rate(&mut self, rate: u32, bucket: TokenBucket) {
        self.orphans.set_rate(rate, bucket);
    }

    /// Begins a close job; it replaces an earlier one for the same backend.
    pub(super) fn begin_job(
        &mut self,
        mut job: CloseJob,
        records: &BalanceRecords,
        opened: u64,
        random: &mut Random,
    ) {
        job.list_tunnels(records, opened, random);
        job.spread();
        self.close_jobs.push(job);
    }

    /// Ends the close job for a backend.
    pub(super) fn end_job(&mut self, backend: &Arc<Backend>) {
        self.close_jobs.retain(|job| !job.is_of(backend));
    }

    /// Begins a shutdown, whose job replaces all others.
    pub(super) fn begin_shutdown(
        &mut self,
        job: CloseJob,
        ends_at: Instant,
        records: &BalanceRecords,
        opened: u64,
        random: &mut Random,
    ) {
        self.ends_at = Some(ends_at);
        self.close_jobs.clear();
        self.begin_job(job, records, opened, random);
    }

    /// Returns the deadline of the shutdown, once it has begun.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.ends_at
    }

    /// Returns whether a shutdown has begun.
    pub(super) fn is_ending(&self) -> bool {
        self.ends_at.is_some()
    }

    /// Returns the number of close jobs.
    pub(super) fn jobs(&self) -> usize {
        self.close_jobs.len()
    }

    /// Takes the close jobs, for the tunnels that they close to end.
    pub(super) fn take_jobs(&mut self) -> Vec<CloseJob> {
        std::mem::take(&mut self.close_jobs)
    }

    /// Keeps the close jobs that have more to do.
    pub(super) fn keep_jobs(&mut self, mut jobs: Vec<CloseJob>) {
        jobs.retain(CloseJob::has_more);
        self.close_jobs = jobs;
    }

    /// Called once a sweep: adds tunnels that were opened since a job began.
    pub(super) fn renew_jobs(
        &mut self,
        records: &BalanceRecords,
        opened: u64,
        random: &mut Random,
        now: Instant,
    ) {
        self.close_jobs.retain(CloseJob::is_of_use);
        for job in &mut self.close_jobs {
            job.renew(records, opened, random, now);
        }
    }

    /// Returns when the next tunnel must be closed, or read again.
    pub(super) fn next_closing(&self, now: Instant) -> Option<Instant> {
        let jobs = self.close_jobs.iter().filter_map(|job| job.next_at(now));
        let throttled = self.throttled.peek().map(|Reverse((due, _))| *due);
        jobs.chain(self.orphans.next_at(now)).chain(throttled).min()
    }

    /// Adds a client whose backend ended without a Close frame.
    pub(super) fn add_orphan(&mut self, id: ConnId, now: Instant) {
        self.orphans.push(id, now);
    }

    /// Returns the number of clients whose backend is lost that must be closed now.
    pub(super) fn orphans_due(&mut self, now: Instant) -> u32 {
        self.orphans.due(now)
    }

    /// Takes the next client whose backend is lost.
    pub(super) fn next_orphan(&mut self) -> Option<ConnId> {
        self.orphans.next()
    }

    /// Returns the number of clients to be closed because their backend is lost.
    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Returns the bytes queued for a side, if there is a batch.
    pub(super) fn queued(&self, id: ConnId) -> Option<usize> {
        self.queued.get(&id).map(|batch| batch.len())
    }

    /// Returns the sides for which bytes are queued.
    pub(super) fn receivers(&self) -> impl ExactSizeIterator<Item = &ConnId> {
        self.queued.keys()
    }

    /// Takes the bytes queued for a side, which moves.
    pub(super) fn take_queued(&mut self, id: ConnId) -> Option<Box<Batch>> {
        self.queued.remove(&id)
    }

    /// Queues bytes for a side that has moved here.
    pub(super) fn put_queued(&mut self, id: ConnId, batch: Option<Box<Batch>>) {
        if let Some(batch) = batch {
            self.queued.insert(id, batch);
        }
    }

    /// Drops the bytes queued for a side that has ended.
    pub(super) fn forget(&mut self, id: ConnId) {
        self.queued.remove(&id);
        self.end_places(id);
        self.end_meter(id);
    }

    /// Counts the data of a client from now on.
    pub(super) fn meter(&mut self, client: ConnId, meter: Meter) {
        self.meters.insert(client, meter);
    }

    /// Returns the meter of a client whose data is counted.
    pub(super) fn meter_of(&mut self, client: ConnId) -> Option<&mut Meter> {
        self.meters.get_mut(&client)
    }

    /// Takes the meter of a client that ends or moves.
    pub(super) fn end_meter(&mut self, client: ConnId) -> Option<Meter> {
        if self.meters.is_empty() {
            return None;
        }
        self.meters.remove(&client)
    }

    /// Returns the clients whose data is counted.
    pub(super) fn metered(&self) -> impl Iterator<Item = &ConnId> {
        self.meters.keys()
    }

    /// Adds a client that is not read until then.
    pub(super) fn throttle(&mut self, client: ConnId, until: Instant) {
        self.throttled.push(Reverse((until, client)));
    }

    /// Takes the next client that may be read again.
    pub(super) fn next_within(&mut self, now: Instant) -> Option<ConnId> {
        let Reverse((due, _)) = self.throttled.peek()?;
        let is_due = *due <= now;
        let Reverse((_, client)) = is_due.then(|| self.throttled.pop())??;
        Some(client)
    }

    /// Keeps a tunnel's places in limits.
    pub(super) fn keep_places(&mut self, client: ConnId, places: TunnelPlaces) {
        if !places.is_empty() {
            self.places.insert(client, places);
        }
    }

    /// Returns the clients whose tunnels have places in limits.
    pub(super) fn limited(&self) -> impl Iterator<Item = &ConnId> {
        self.places.keys()
    }

    /// Gives back the places of a tunnel that has ended, or has left the process.
    pub(super) fn end_places(&mut self, client: ConnId) {
        if !self.places.is_empty() {
            self.places.remove(&client);
        }
    }

    /// Returns the places of a tunnel that moves, which it keeps until it has left: the names of
    /// their limits, and their keys.
    pub(super) fn moved_places(&self, client: ConnId, limits: &RateLimits) -> Vec<(String, u64)> {
        let places = self.places.get(&client).into_iter().flat_map(TunnelPlaces::iter);
        let named = places.filter_map(|place| limits.name_of(place));
        named.map(|(name, key)| (name.to_owned(), key)).collect()
    }

    /// Takes places for a tunnel that has moved here, unless it has come back.
    pub(super) fn adopt_places(
        &mut self,
        client: ConnId,
        moved: &[(String, u64)],
        limits: &RateLimits,
    ) {
        if moved.is_empty() || self.places.contains_key(&client) {
            return;
        }
        let mut places = TunnelPlaces::default();
        for (name, key) in moved {
            limits.adopt(name, *key).into_iter().for_each(|place| places.push(place));
        }
        self.keep_places(client, places);
    }
}
