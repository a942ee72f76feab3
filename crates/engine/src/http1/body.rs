//! Incomplete request bodies, and the handling of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use throng_io::ConnId;
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

impl RequestBodies {
    /// Creates a table that shares its budget with other shards, of which `buffered` bytes are
    /// used.
    pub(crate) fn sharing(buffered: Arc<AtomicUsize>) -> Self {
        Self { buffered, ..Self::default() }
    }

    /// Begins a body of up to `max_body` bytes, which follows this head.
    pub(crate) fn begin(
        &mut self,
        id: ConnId,
        request: &Request<'_>,
        mode: BodyMode,
        max_body: u64,
    ) {
        let mut request_body = self.spare.take().unwrap_or_default();
        request_body.mode = mode;
        request_body.max_body = max_body;
        if mode == BodyMode::Buffer {
            request_body.head.save(request);
        }
        self.coming.insert(id, request_body);
    }

    /// Returns the incomplete body of this connection, if there is one.
    pub(crate) fn of(&mut self, id: ConnId) -> Option<&mut RequestBody> {
        // Nearly always there is none.
        match self.coming.is_empty() {
            true => None,
            false => self.coming.get_mut(&id).map(|request_body| &mut **request_body),
        }
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

    /// Returns whether the body of this connection's request is discarded: the request is answered.
    pub(crate) fn is_dropped(&self, id: ConnId) -> bool {
        !self.coming.is_empty()
            && self
                .coming
                .get(&id)
                .is_some_and(|request_body| request_body.mode == BodyMode::Discard)
    }

    /// Returns the largest size of the current request's body; `usual` where there is none.
    pub(crate) fn max_body(&self, id: ConnId, usual: u64) -> u64 {
        match self.coming.is_empty() {
            true => usual,
            false => self.coming.get(&id).map_or(usual, |request_body| request_body.max_body),
        }
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
