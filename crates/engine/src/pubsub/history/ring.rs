//! History of one channel.

use std::collections::VecDeque;

use throng_io::Instant;

use super::Position;
use crate::backpressure::history::HistoryRule;
use crate::outbox::frame::Frame;

/// Memory of a kept publication besides its frame.
const ENTRY: usize = size_of::<Kept>();

#[derive(Debug)]
struct Kept {
    /// The frame without derived forms: they would grow when it is sent, uncounted.
    frame: Frame,
    at: Instant,
    cost: usize,
}

/// The last publications of a channel: their offsets are contiguous, and end with `top`.
#[derive(Debug)]
pub(super) struct Ring {
    kept: VecDeque<Kept>,
    top: u64,
    bytes: usize,
    /// Time of the last publication.
    at: Instant,
    /// Number of the rule.
    pub(super) rule: u16,
    /// Place among all channels by use.
    pub(super) used: u64,
}

/// Sums of what was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Freed {
    pub(super) publications: usize,
    pub(super) bytes: usize,
}

impl Ring {
    /// Creates the history of a channel of which all publications up to `top` are forgotten.
    pub(super) fn new(top: u64, rule: u16) -> Self {
        Self { kept: VecDeque::new(), top, bytes: 0, at: Instant(0), rule, used: 0 }
    }

    pub(super) fn top(&self) -> u64 {
        self.top
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the time of the last publication.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Adds a publication; returns its offset and its memory. The frame has no derived forms.
    pub(super) fn push(&mut self, frame: Frame, now: Instant) -> (u64, usize) {
        let cost = ENTRY + frame.memory();
        self.kept.push_back(Kept { frame, at: now, cost });
        self.bytes += cost;
        self.top += 1;
        self.at = now;
        (self.top, cost)
    }

    /// Removes what the rule does not keep.
    pub(super) fn trim(&mut self, rule: &HistoryRule, now: Instant) -> Freed {
        let mut freed = Freed::default();
        while let Some(oldest) = self.kept.front()
            && (self.kept.len() > rule.history.count
                || self.bytes > rule.max_bytes
                || now.since(oldest.at) > rule.history.age)
        {
            freed.publications += 1;
            freed.bytes += oldest.cost;
            self.bytes -= oldest.cost;
            self.kept.pop_front();
        }
        if self.kept.len() < self.kept.capacity() / 4 {
            self.kept.shrink_to(self.kept.len() * 2);
        }
        freed
    }

    /// Removes all publications; the place of the last stays known.
    pub(super) fn clear(&mut self) -> Freed {
        let freed = Freed { publications: self.kept.len(), bytes: self.bytes };
        (self.kept, self.bytes) = (VecDeque::new(), 0);
        freed
    }

    /// Returns what follows the publication with this offset, if all of it is kept.
    pub(super) fn since(&self, offset: u64) -> Option<impl Iterator<Item = (u64, &Frame)>> {
        let oldest = self.top - self.kept.len() as u64;
        let skipped = offset.checked_sub(oldest)?;
        (offset <= self.top).then(|| self.iter().skip(skipped as usize))
    }

    /// Returns all that is kept, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Frame)> {
        let oldest = self.top - self.kept.len() as u64;
        self.kept.iter().enumerate().map(move |(at, kept)| (oldest + 1 + at as u64, &kept.frame))
    }

    /// Returns the place behind the last publication.
    pub(super) fn position(&self, epoch: u64) -> Position {
        Position { epoch, offset: self.top }
    }
}
