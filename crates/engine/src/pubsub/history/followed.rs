//! The history of a channel whose sequence a broker orders.

use throng_io::Instant;

use super::Position;
use super::ring::{Freed, Ring};
use crate::outbox::frame::Frame;

/// The last publications of a sequence that a broker orders.
#[derive(Clone, Copy, Debug)]
pub struct HistoryTail<'a> {
    /// The position behind the last publication.
    pub position: Position,
    /// Tag of the publication before the first kept publication, if known.
    pub before: Option<u64>,
    /// The tags and messages of the publications, with contiguous offsets.
    pub entries: &'a [(u64, Frame)],
}

/// The history of a followed channel.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) ring: Ring,
    pub(super) epoch: u64,
    /// Whether members can join at its end.
    pub(super) is_open: bool,
    /// When the broker last reported the end of the sequence.
    pub(super) answered: Instant,
    /// Whether publications were removed that the broker may keep.
    pub(super) is_cut: bool,
}

impl Followed {
    /// Removes all publications to free their memory; the broker has them.
    pub(super) fn cut(&mut self) -> Freed {
        self.is_cut |= self.ring.len() > 0;
        self.ring.used = 0;
        self.ring.clear()
    }
}
