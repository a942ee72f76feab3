//! Request bodies that are still coming, and what becomes of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use throng_io::ConnId;
use throng_proto::http1::{Request, SavedRequest};

use crate::map::ConnMap;

/// What becomes of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BodyMode {
    /// It is buffered until it is whole. Memory follows the bytes received.
    #[default]
    Buffer,
    /// The service takes it as it comes, and nothing is held.
    Stream,
    /// Nobody wants it: its request was answered without.
    Discard,
}

/// A request whose body is still coming.
#[derive(Debug, Default)]
pub(crate) struct RequestBody {
    pub(crate) mode: BodyMode,
    /// The head, for a body that is buffered.
    pub(crate) head: SavedRequest,
    pub(crate) body: Vec<u8>,
    /// Bytes that are taken.
    max_body: u64,
    /// Bytes since the deadline was last moved.
    fresh: usize,
}

/// Of one shard, at most one a connection.
#[derive(Debug, Default)]
pub(crate) struct RequestBodies {
    coming: ConnMap<Box<RequestBody>>,
    /// Bytes buffered: of all of them, and of other shards that have the same memory.
    buffered: Arc<AtomicUsize>,
    /// One that is done with, for the next: most are short, and come one after the other.
    spare: Option<Box<RequestBody>>,
}

/// Bodies up to this size leave their memory for the next.
const MAX_KEPT: usize = 64 * 1024;

impl RequestBody {
    /// So many bytes have come. True when `enough` have since this was last true.
    pub(crate) fn note(&mut self, bytes: usize, enough: usize) -> bool {
        self.fresh += bytes;
        let is_enough = self.fresh >= enough;
        if is_enough {
            self.fresh = 0;
        }
        is_enough
    }
}

impl RequestBodies {
    /// With the memory that other shards have, too, of which `buffered` bytes are taken.
    pub(crate) fn sharing(buffered: Arc<AtomicUsize>) -> Self {
        Self { buffered, ..Self::default() }
    }

    /// A body of up to `max_body` bytes follows this head.
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

    /// The request_body of this connection, if there is one.
    pub(crate) fn of(&mut self, id: ConnId) -> Option<&mut RequestBody> {
        // Nearly always there is none at all.
        match self.coming.is_empty() {
            true => None,
            false => self.coming.get_mut(&id).map(|request_body| &mut **request_body),
        }
    }

    /// Gathers what came. False if all bodies that have the same memory would be more than `most` bytes together.
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

    /// The body of this connection's request is nobody's: the request is answered.
    pub(crate) fn is_dropped(&self, id: ConnId) -> bool {
        !self.coming.is_empty()
            && self
                .coming
                .get(&id)
                .is_some_and(|request_body| request_body.mode == BodyMode::Discard)
    }

    /// Bytes of the current request's body that are taken; `usual` where there is none.
    pub(crate) fn max_body(&self, id: ConnId, usual: u64) -> u64 {
        match self.coming.is_empty() {
            true => usual,
            false => self.coming.get(&id).map_or(usual, |request_body| request_body.max_body),
        }
    }

    /// The body is complete, or will never be.
    pub(crate) fn end(&mut self, id: ConnId) -> Option<Box<RequestBody>> {
        if self.coming.is_empty() {
            return None;
        }
        let request_body = self.coming.remove(&id)?;
        self.buffered.fetch_sub(request_body.body.len(), Ordering::Relaxed);
        Some(request_body)
    }

    /// It is done with.
    pub(crate) fn put_back(&mut self, mut request_body: Box<RequestBody>) {
        request_body.head.clear();
        request_body.body.clear();
        request_body.fresh = 0;
        if request_body.body.capacity() <= MAX_KEPT {
            self.spare = Some(request_body);
        }
    }

    /// How many there are; for audits.
    pub(crate) fn len(&self) -> usize {
        self.coming.len()
    }

    /// Bytes of this connection's body that are buffered; for audits.
    pub(crate) fn buffered(&self, id: ConnId) -> usize {
        self.coming.get(&id).map_or(0, |request_body| request_body.body.len())
    }
}
