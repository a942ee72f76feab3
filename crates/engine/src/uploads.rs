//! Request bodies that are still coming, and what becomes of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use throng_io::ConnId;
use throng_proto::http1::{Request, SavedRequest};

use crate::map::ConnMap;

/// What becomes of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is gathered until it is whole. Memory follows the bytes received.
    #[default]
    Gather,
    /// The service takes it as it comes, and nothing is held.
    PassOn,
    /// Nobody wants it: its request was answered without.
    Drop,
}

/// A request whose body is still coming.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    pub(crate) purpose: Purpose,
    /// The head, for a body that is gathered.
    pub(crate) head: SavedRequest,
    pub(crate) body: Vec<u8>,
    /// Bytes that are taken.
    max_body: u64,
    /// Bytes since the deadline was last moved.
    fresh: usize,
}

/// Of one shard, at most one a connection.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    coming: ConnMap<Box<Upload>>,
    /// Bytes gathered: of all of them, and of other shards that have the same memory.
    gathered: Arc<AtomicUsize>,
    /// One that is done with, for the next: most are short, and come one after the other.
    spare: Option<Box<Upload>>,
}

/// Bodies up to this size leave their memory for the next.
const MAX_KEPT: usize = 64 * 1024;

impl Upload {
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

impl Uploads {
    /// With the memory that other shards have, too, of which `gathered` bytes are taken.
    pub(crate) fn sharing(gathered: Arc<AtomicUsize>) -> Self {
        Self { gathered, ..Self::default() }
    }

    /// A body of up to `max_body` bytes follows this head.
    pub(crate) fn begin(
        &mut self,
        id: ConnId,
        request: &Request<'_>,
        purpose: Purpose,
        max_body: u64,
    ) {
        let mut upload = self.spare.take().unwrap_or_default();
        upload.purpose = purpose;
        upload.max_body = max_body;
        if purpose == Purpose::Gather {
            upload.head.save(request);
        }
        self.coming.insert(id, upload);
    }

    /// The upload of this connection, if there is one.
    pub(crate) fn of(&mut self, id: ConnId) -> Option<&mut Upload> {
        // Nearly always there is none at all.
        match self.coming.is_empty() {
            true => None,
            false => self.coming.get_mut(&id).map(|upload| &mut **upload),
        }
    }

    /// Gathers what came. False if all bodies that have the same memory would be more than `most` bytes together.
    pub(crate) fn gather(&mut self, id: ConnId, bytes: &[u8], most: usize) -> bool {
        let Some(upload) = self.coming.get_mut(&id) else { return true };
        let before = self.gathered.fetch_add(bytes.len(), Ordering::Relaxed);
        if before.saturating_add(bytes.len()) > most {
            self.gathered.fetch_sub(bytes.len(), Ordering::Relaxed);
            return false;
        }
        upload.body.extend_from_slice(bytes);
        true
    }

    /// The body of this connection's request is nobody's: the request is answered.
    pub(crate) fn is_dropped(&self, id: ConnId) -> bool {
        !self.coming.is_empty()
            && self.coming.get(&id).is_some_and(|upload| upload.purpose == Purpose::Drop)
    }

    /// Bytes of the current request's body that are taken; `usual` where there is none.
    pub(crate) fn max_body(&self, id: ConnId, usual: u64) -> u64 {
        match self.coming.is_empty() {
            true => usual,
            false => self.coming.get(&id).map_or(usual, |upload| upload.max_body),
        }
    }

    /// The body is complete, or will never be.
    pub(crate) fn end(&mut self, id: ConnId) -> Option<Box<Upload>> {
        if self.coming.is_empty() {
            return None;
        }
        let upload = self.coming.remove(&id)?;
        self.gathered.fetch_sub(upload.body.len(), Ordering::Relaxed);
        Some(upload)
    }

    /// It is done with.
    pub(crate) fn put_back(&mut self, mut upload: Box<Upload>) {
        upload.head.clear();
        upload.body.clear();
        upload.fresh = 0;
        if upload.body.capacity() <= MAX_KEPT {
            self.spare = Some(upload);
        }
    }

    /// How many there are; for audits.
    pub(crate) fn len(&self) -> usize {
        self.coming.len()
    }

    /// Bytes of this connection's body that are gathered; for audits.
    pub(crate) fn buffered(&self, id: ConnId) -> usize {
        self.coming.get(&id).map_or(0, |upload| upload.body.len())
    }
}
