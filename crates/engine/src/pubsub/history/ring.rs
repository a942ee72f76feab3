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
    tag: u64,
    at: Instant,
    cost: usize,
}

/// The last publications of a channel: their offsets are contiguous, and end with `top`.
#[derive(Debug)]
pub(super) struct Ring {
    kept: VecDeque<Kept>,
    top: u64,
    /// Tag of the publication before the first kept publication.
    before: Option<u64>,
    bytes: usize,
    /// Time of the last publication.
    at: Instant,
    /// Number of the rule.
    pub(super) rule: u16,
    /// Place among all channels by use.
    pub(super) used: u64,
}

/// Totals of the removed publications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Freed {
    pub(super) publications: usize,
    pub(super) bytes: usize,
}

impl Ring {
    /// Creates the history of a channel whose publications up to the offset `top` are forgotten;
    /// `tag` belongs to the last of these.
    pub(super) fn new((top, tag): (u64, Option<u64>), rule: u16) -> Self {
        Self { kept: VecDeque::new(), top, before: tag, bytes: 0, at: Instant(0), rule, used: 0 }
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
    pub(super) fn push(&mut self, frame: Frame, tag: u64, now: Instant) -> (u64, usize) {
        let cost = ENTRY + frame.memory();
        self.kept.push_back(Kept { frame, tag, at: now, cost });
        self.bytes += cost;
        self.top += 1;
        self.at = now;
        (self.top, cost)
    }

    /// Removes publications that the rule no longer keeps.
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
            self.before = Some(oldest.tag);
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
        self.before = self.tag_of(self.top);
        (self.kept, self.bytes) = (VecDeque::new(), 0);
        freed
    }

    /// Returns the offset of the publication before the first kept publication.
    fn oldest(&self) -> u64 {
        self.top - self.kept.len() as u64
    }

    /// Returns the tag of the publication with this offset, if known.
    pub(super) fn tag_of(&self, offset: u64) -> Option<u64> {
        match usize::try_from(offset.checked_sub(self.oldest())?).ok()?.checked_sub(1) {
            Some(at) => self.kept.get(at).map(|kept| kept.tag),
            None => self.before,
        }
    }

    /// Returns the publications after a position of this sequence, if the position is proven and
    /// all of them are kept.
    pub(super) fn since(
        &self,
        place: Position,
    ) -> Option<impl Iterator<Item = (u64, u64, &Frame)>> {
        let skipped = place.offset.checked_sub(self.oldest())?;
        let is_proven = Position::proves(place.tag, self.tag_of(place.offset));
        is_proven.then(|| self.iter().skip(skipped as usize))
    }

    /// Returns all kept publications, oldest first: offsets, tags and frames.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64, &Frame)> {
        let first = self.oldest() + 1;
        let offset = move |at: usize| first + at as u64;
        self.kept.iter().enumerate().map(move |(at, kept)| (offset(at), kept.tag, &kept.frame))
    }

    /// Returns the place behind the last publication.
    pub(super) fn position(&self, epoch: u64) -> Position {
        Position { epoch, offset: self.top, tag: self.tag_of(self.top) }
    }
}
