//! Request bodies on their way to handlers that asked for them: gathered until they are whole, or passed on as they come.

use crate::map::ConnMap;

use throng_io::ConnId;
use throng_proto::http1::{Request, SavedRequest};

/// A request whose body is still coming. Memory follows the bytes received, and passing them on takes none.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    pub(crate) head: SavedRequest,
    pub(crate) body: Vec<u8>,
    /// The service takes it in pieces: nothing is gathered.
    pub(crate) is_passed_on: bool,
    /// Bytes that are taken.
    max_body: u64,
    /// Bytes since the deadline was last moved.
    fresh: usize,
}

/// Of one shard, at most one a connection.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    coming: ConnMap<Box<Upload>>,
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
    /// The handler wants the body of this request, as a whole.
    pub(crate) fn gather(&mut self, id: ConnId, request: &Request<'_>, max_body: u64) {
        let mut upload = self.spare.take().unwrap_or_default();
        upload.head.save(request);
        upload.max_body = max_body;
        self.coming.insert(id, upload);
    }

    /// The handler wants the body as it comes.
    pub(crate) fn pass_on(&mut self, id: ConnId, max_body: u64) {
        let mut upload = self.spare.take().unwrap_or_default();
        upload.is_passed_on = true;
        upload.max_body = max_body;
        self.coming.insert(id, upload);
    }

    /// The upload of this connection, if there is one.
    pub(crate) fn of(&mut self, id: ConnId) -> Option<&mut Upload> {
        // Nearly always there is none at all.
        if self.coming.is_empty() {
            None
        } else {
            self.coming.get_mut(&id).map(|upload| &mut **upload)
        }
    }

    /// Bytes of the current request's body that are taken; `usual` where nobody has asked for it.
    pub(crate) fn max_body(&self, id: ConnId, usual: u64) -> u64 {
        match self.coming.is_empty() {
            true => usual,
            false => self.coming.get(&id).map_or(usual, |upload| upload.max_body),
        }
    }

    /// The body is complete, or will never be.
    pub(crate) fn end(&mut self, id: ConnId) -> Option<Box<Upload>> {
        if self.coming.is_empty() { None } else { self.coming.remove(&id) }
    }

    /// It was answered.
    pub(crate) fn put_back(&mut self, mut upload: Box<Upload>) {
        upload.head.clear();
        upload.body.clear();
        upload.fresh = 0;
        upload.is_passed_on = false;
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
