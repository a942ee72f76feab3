//! A limit on the number of files that are open at once while being sent.

use super::send::FileSegments;
use crate::body::{SourcePull, StreamSource};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A limit and its count; clones share both.
#[derive(Clone, Debug)]
pub(super) struct OpenLimit(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    most: AtomicUsize,
    open: AtomicUsize,
}

impl OpenLimit {
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Counts { most: AtomicUsize::new(most), open: AtomicUsize::new(0) }))
    }

    pub(super) fn set(&self, most: usize) {
        self.0.most.store(most, Relaxed);
    }

    pub(super) fn lower(&self, most: usize) {
        self.0.most.fetch_min(most, Relaxed);
    }

    pub(super) fn get(&self) -> usize {
        self.0.most.load(Relaxed)
    }

    /// Streams `segments` and counts their file as open; `None` if the limit is reached.
    pub(super) fn stream(&self, segments: FileSegments) -> Option<Streamed> {
        let one_more = |open| (open < self.get()).then_some(open + 1);
        self.0.open.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Streamed { segments, _permit: Permit(Arc::clone(&self.0)) })
    }
}

/// The segments of a file that counts as open. The permit comes last: the file is closed before it
/// is released.
pub(super) struct Streamed {
    segments: FileSegments,
    _permit: Permit,
}

impl StreamSource for Streamed {
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<SourcePull> {
        self.segments.pull(room, out)
    }
}

/// The permit of one open file.
struct Permit(Arc<Counts>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
