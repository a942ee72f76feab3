//! Request bodies on their way to handlers that asked for them.

use std::collections::HashMap;

use throng_io::ConnId;
use throng_proto::http1::{Request, SavedRequest};

/// A request whose body is still coming: its head, and what is here. Memory follows the bytes received.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    pub(crate) head: SavedRequest,
    pub(crate) body: Vec<u8>,
    /// Bytes since the deadline was last moved.
    fresh: usize,
}

/// Of one shard, at most one a connection.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    coming: HashMap<ConnId, Box<Upload>>,
    /// One that is done with, for the next: most are short, and come one after the other.
    spare: Option<Box<Upload>>,
}

/// Bodies up to this size leave their memory for the next.
const MAX_KEPT: usize = 64 * 1024;

impl Uploads {
    /// The handler wants the body of this request.
    pub(crate) fn begin(&mut self, id: ConnId, request: &Request<'_>) {
        let mut upload = self.spare.take().unwrap_or_default();
        upload.head.save(request);
        self.coming.insert(id, upload);
    }

    /// Takes in a part of the body, if anybody wants it. True when `enough` bytes have come since this was last true.
    pub(crate) fn push(&mut self, id: ConnId, bytes: &[u8], enough: usize) -> bool {
        let Some(upload) = self.coming.get_mut(&id) else { return false };
        upload.body.extend_from_slice(bytes);
        upload.fresh += bytes.len();
        let is_enough = upload.fresh >= enough;
        if is_enough {
            upload.fresh = 0;
        }
        is_enough
    }

    /// The body is complete.
    pub(crate) fn end(&mut self, id: ConnId) -> Option<Box<Upload>> {
        // Nearly always there is none at all.
        if self.coming.is_empty() { None } else { self.coming.remove(&id) }
    }

    /// It was answered.
    pub(crate) fn put_back(&mut self, mut upload: Box<Upload>) {
        upload.head.clear();
        upload.body.clear();
        upload.fresh = 0;
        if upload.body.capacity() <= MAX_KEPT {
            self.spare = Some(upload);
        }
    }

    /// The largest body that is partly here; for audits.
    pub(crate) fn buffered(&self, id: ConnId) -> usize {
        self.coming.get(&id).map_or(0, |upload| upload.body.len())
    }
}
