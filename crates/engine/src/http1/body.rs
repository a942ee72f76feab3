//! Incomplete request bodies, and the handling of each.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use throng_io::{ConnId, Instant};
use throng_proto::http1::{Request, SavedRequest};

use crate::conn::map::ConnMap;
use crate::conn::progress::Progress;

/// Handling of a request body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BodyMode {
    /// Buffered until it is complete. Memory follows the bytes received.
    #[default]
    Buffer,
    /// Passed to the service as it comes; nothing is held.
    Stream,
    /// Discarded: its request was answered without it.
    Discard,
}

/// A request whose body is incomplete.
#[derive(Debug, Default)]
pub(crate) struct RequestBody {
    pub(crate) mode: BodyMode,
    /// The head, for a body that is buffered.
    pub(crate) head: SavedRequest,
    pub(crate) body: Vec<u8>,
    /// Largest size of the body in bytes.
    max_body: u64,
    pub(crate) progress: Progress,
    rate: RecentRate,
}

/// The rate at which a body has come lately.
#[derive(Debug, Default)]
struct RecentRate {
    /// The start of the current window, and the bytes since.
    since: Instant,
    bytes: usize,
    /// The bytes of the window before.
    before: usize,
}

/// The time over which a body's rate is measured.
const WINDOW: Duration = Duration::from_secs(2);

impl RecentRate {
    fn record(&mut self, bytes: usize, now: Instant) {
        let elapsed = now.since(self.since);
        if elapsed >= WINDOW {
            let is_next = elapsed < 2 * WINDOW;
            self.before = if is_next { self.bytes } else { 0 };
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }

    /// Returns the time in milliseconds that `bytes` would take at this rate.
    fn time_of(&self, bytes: usize, now: Instant) -> u64 {
        let window = WINDOW.as_millis();
        let elapsed = now.since(self.since).as_millis();
        let part_before = self.before as u128 * window.saturating_sub(elapsed) / window;
        let recent = (self.bytes as u128 + part_before).max(1);
        u64::try_from(bytes as u128 * elapsed.max(window) / recent).unwrap_or(u64::MAX)
    }
}

/// Incomplete request bodies of one shard, at most one per connection.
#[derive(Debug, Default)]
pub(crate) struct RequestBodies {
    coming: ConnMap<Box<RequestBody>>,
    /// Bytes buffered by all of them, and by other shards with the same budget.
    buffered: Arc<AtomicUsize>,
    /// A completed one for reuse: most are short, and follow each other.
    spare: Option<Box<RequestBody>>,
}

/// Bodies up to this size keep their memory for the next.
const MAX_KEPT: usize = 64 * 1024;

impl RequestBody {
    /// Counts bytes received `now`. Returns true when `enough` bytes have come since it last
    /// returned true.
    pub(crate) fn note(&mut self, bytes: usize, enough: u64, now: Instant) -> bool {
        self.rate.record(bytes, now);
        self.progress.add(bytes, enough)
    }
}

impl RequestBodies {
    /// Creates a table that shares its budget with other shards; `buffered` counts the bytes in
    /// use.
    pub(crate) fn sharing(buffered: Arc<AtomicUsize>) -> Self {
        Self { buffered, ..Self::default() }
    }

    /// Begins a body of up to `max_body` bytes `now`, which follows this head.
    pub(crate) fn begin(
        &mut self,
        id: ConnId,
        request: &Request<'_>,
        (mode, max_body): (BodyMode, u64),
        now: Instant,
    ) {
        let mut request_body = self.spare.take().unwrap_or_default();
        request_body.rate = RecentRate { since: now, ..RecentRate::default() };
        request_body.mode = mode;
        request_body.max_body = max_body;
        if mode == BodyMode::Buffer {
            request_body.head.save(request);
        }
        self.coming.insert(id, request_body);
    }

    /// Returns the incomplete body of this connection, if there is one.
    pub(crate) fn of(&mut self, id: ConnId) -> Option<&mut RequestBody> {
        self.coming.get_mut(&id).map(|request_body| &mut **request_body)
    }

    /// Appends received bytes. Returns false if all bodies with the same budget would exceed `most`
    /// bytes together.
    pub(crate) fn buffer(&mut self, id: ConnId, bytes: &[u8], most: usize) -> bool {
        let Some(request_body) = self.coming.get_mut(&id) else { return true };
        let before = self.buffered.fetch_add(bytes.len(), Ordering::Relaxed);
        if before.saturating_add(bytes.len()) > most {
            self.buffered.fetch_sub(bytes.len(), Ordering::Relaxed);
            return false;
        }
        request_body.body.extend_from_slice(bytes);
        true
    }

    /// Returns the bodies to drop in favour of the body of `id` when no memory is left. A body is
    /// rated by the time that its buffered bytes would take at its recent rate; all bodies rated
    /// above twice the time of `id` qualify. The worst 64th of all bodies is returned, so that one
    /// search serves many calls.
    pub(crate) fn slowest(&self, id: ConnId, now: Instant) -> Vec<ConnId> {
        let Some(own) = self.coming.get(&id) else { return Vec::new() };
        let time_held = |body: &RequestBody| body.rate.time_of(body.body.len(), now);
        let least = time_held(own).max(WINDOW.as_millis() as u64).saturating_mul(2);
        let others = self.coming.iter().map(|(&other, body)| (Reverse(time_held(body)), other));
        let mut worse: Vec<_> =
            others.filter(|&(held, other)| held.0 > least && other != id).collect();
        let most = (self.coming.len() / 64).max(1);
        if worse.len() > most {
            worse.select_nth_unstable(most);
            worse.truncate(most);
        }
        worse.into_iter().map(|(_, other)| other).collect()
    }

    /// Returns whether the body of this connection's request is discarded: the request is answered.
    pub(crate) fn is_dropped(&self, id: ConnId) -> bool {
        self.coming.get(&id).is_some_and(|body| body.mode == BodyMode::Discard)
    }

    /// Returns the largest size of the current request's body; `usual` where there is none.
    pub(crate) fn max_body(&self, id: ConnId, usual: u64) -> u64 {
        self.coming.get(&id).map_or(usual, |body| body.max_body)
    }

    /// Removes a body that is complete, or never will be.
    pub(crate) fn end(&mut self, id: ConnId) -> Option<Box<RequestBody>> {
        if self.coming.is_empty() {
            return None;
        }
        let request_body = self.coming.remove(&id)?;
        self.buffered.fetch_sub(request_body.body.len(), Ordering::Relaxed);
        Some(request_body)
    }

    /// Puts a body back for reuse.
    pub(crate) fn put_back(&mut self, mut request_body: Box<RequestBody>) {
        request_body.head.clear();
        request_body.body.clear();
        request_body.progress = Progress::default();
        if request_body.body.capacity() <= MAX_KEPT {
            self.spare = Some(request_body);
        }
    }

    /// Returns the connections with an incomplete body.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> {
        self.coming.keys().copied()
    }

    /// Returns the number of incomplete bodies; for audits.
    pub(crate) fn len(&self) -> usize {
        self.coming.len()
    }

    /// Returns the memory of this connection's body.
    pub(crate) fn memory(&self, id: ConnId) -> usize {
        self.coming.get(&id).map_or(0, |request_body| request_body.body.capacity())
    }

    /// Returns the bytes of this connection's body that are buffered; for audits.
    pub(crate) fn buffered(&self, id: ConnId) -> usize {
        self.coming.get(&id).map_or(0, |request_body| request_body.body.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    fn id(slot: u32) -> ConnId {
        ConnId::new(0, slot, 0)
    }

    fn add(bodies: &mut RequestBodies, slot: u32, begun: u64) {
        let mut body = Box::<RequestBody>::default();
        body.rate.since = at(begun);
        bodies.coming.insert(id(slot), body);
    }

    fn receive(bodies: &mut RequestBodies, slot: u32, bytes: usize, now: u64) {
        bodies.of(id(slot)).unwrap().note(bytes, u64::MAX, at(now));
        assert!(bodies.buffer(id(slot), &vec![0; bytes], usize::MAX));
    }

    #[test]
    fn a_body_that_has_stopped_makes_room_and_one_that_comes_slowly_or_has_begun_does_not() {
        let mut bodies = RequestBodies::default();
        add(&mut bodies, 0, 0);
        receive(&mut bodies, 0, 900_000, 0);
        add(&mut bodies, 1, 0);
        for second in 0..20 {
            receive(&mut bodies, 0, 1200, second * 1000);
            receive(&mut bodies, 1, 2000, second * 1000);
        }
        for slot in 2..4 {
            add(&mut bodies, slot, 20_000);
            receive(&mut bodies, slot, 16_000, 20_000);
        }
        assert_eq!(bodies.slowest(id(2), at(20_000)), [id(0)]);
        assert!(bodies.slowest(id(0), at(20_000)).is_empty(), "it is the worst itself");
        bodies.end(id(0));
        // 40,000 bytes at 2,000 a second: it holds them for twenty seconds' worth.
        assert_eq!(bodies.slowest(id(2), at(20_000)), [id(1)]);
        bodies.end(id(1));
        assert!(bodies.slowest(id(2), at(20_000)).is_empty(), "all have just begun");
        assert!(bodies.slowest(id(9), at(20_000)).is_empty());
    }

    #[test]
    fn a_64th_of_all_bodies_goes_at_a_time() {
        let mut bodies = RequestBodies::default();
        for slot in 0..640 {
            add(&mut bodies, slot, 0);
            receive(&mut bodies, slot, 1000 + slot as usize, 0);
        }
        add(&mut bodies, 640, 60_000);
        receive(&mut bodies, 640, 1000, 60_000);
        assert_eq!(bodies.slowest(id(640), at(60_000)).len(), 10);
    }
}
