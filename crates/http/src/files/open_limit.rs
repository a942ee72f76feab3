//! How many files may be open at once because they are being sent.

use super::send::Pieces;
use crate::body::{Pull, Source};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A bound and what it counts; clones share both.
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

    /// Streams `pieces` and counts them as long; none if as many are open as may be.
    pub(super) fn stream(&self, pieces: Pieces) -> Option<Streamed> {
        let one_more = |open| (open < self.get()).then_some(open + 1);
        self.0.open.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Streamed { pieces, _place: Place(Arc::clone(&self.0)) })
    }
}

/// Pieces of a file that is counted while it is open. The place comes last: the file is closed before it is given up.
pub(super) struct Streamed {
    pieces: Pieces,
    _place: Place,
}

impl Source for Streamed {
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<Pull> {
        self.pieces.pull(room, out)
    }
}

/// One open file.
struct Place(Arc<Counts>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
