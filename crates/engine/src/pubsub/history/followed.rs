//! Histories of channels that a broker orders: this process follows their sequences.

use std::sync::Arc;

use throng_io::Instant;

use super::ring::Ring;
use super::store::{Histories, Stripe, answer_join};
use super::{Joined, Position, Recorded};
use crate::outbox::frame::Frame;

/// The history of a followed channel.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) ring: Ring,
    epoch: u64,
    /// Whether members can join at its end.
    is_open: bool,
}

impl Stripe {
    /// Begins the sequence of a channel, whose last publications are `entries`.
    pub(crate) fn begin_followed(
        &mut self,
        all: &Histories,
        (channel, rule): (&Arc<str>, u16),
        position: Position,
        entries: &[Frame],
        now: Instant,
    ) {
        self.end_followed(all, channel);
        let before = position.offset.saturating_sub(entries.len() as u64);
        let followed =
            Followed { ring: Ring::new(before, rule), epoch: position.epoch, is_open: false };
        self.followed.insert(Arc::clone(channel), followed);
        all.count_followed(1);
        for frame in entries {
            self.keep_followed(all, channel, frame, now);
        }
    }

    fn keep_followed(&mut self, all: &Histories, channel: &str, frame: &Frame, now: Instant) {
        let Some(Followed { ring, .. }) = self.followed.get_mut(channel) else { return };
        let (_, cost) = ring.push(frame.bare(), now);
        all.add(cost);
        all.free(ring.trim(all.rule(ring.rule), now));
        if all.is_over() {
            all.free_evicted(ring.clear());
        }
    }

    /// Adds the next publication of a followed channel; `None`: it is not the next one.
    pub(crate) fn append_followed(
        &mut self,
        all: &Histories,
        channel: &Arc<str>,
        position: Position,
        frame: &Frame,
        now: Instant,
    ) -> Option<Recorded> {
        let Followed { ring, epoch, .. } = self.followed.get(channel)?;
        if *epoch != position.epoch || ring.top() + 1 != position.offset {
            return None;
        }
        let class = all.rule(ring.rule).class;
        self.keep_followed(all, channel, frame, now);
        Some(Recorded::new(Arc::clone(channel), class, position, frame.clone()))
    }

    /// Opens a followed channel for members that join.
    pub(crate) fn open_followed(&mut self, channel: &str) {
        if let Some(followed) = self.followed.get_mut(channel) {
            followed.is_open = true;
        }
    }

    /// Forgets a followed channel.
    pub(crate) fn end_followed(&mut self, all: &Histories, channel: &str) {
        if let Some(mut followed) = self.followed.remove(channel) {
            all.free(followed.ring.clear());
            all.count_followed(-1);
        }
    }

    /// Returns the place at which a member joins now; `None`: the broker must be asked, unless it
    /// was (`is_asked`).
    pub(crate) fn join_followed(
        &mut self,
        all: &Histories,
        channel: &str,
        since: Option<Position>,
        (now, is_asked): (Instant, bool),
    ) -> Option<Joined> {
        let Followed { ring, epoch, .. } =
            self.followed.get_mut(channel).filter(|followed| followed.is_open)?;
        let top = ring.position(*epoch);
        let is_beyond = |since: Position| since.epoch != *epoch || since.offset > top.offset;
        if !is_asked && since.is_some_and(is_beyond) {
            return None;
        }
        all.free(ring.trim(all.rule(ring.rule), now));
        Some(answer_join(all, ring, *epoch, since))
    }

    /// Returns the place behind the last publication of a followed channel, and the last `most`.
    pub(crate) fn last_followed(
        &mut self,
        all: &Histories,
        channel: &str,
        most: usize,
        now: Instant,
    ) -> Option<(Position, Vec<(u64, Frame)>)> {
        let Followed { ring, epoch, .. } = self.followed.get_mut(channel)?;
        all.free(ring.trim(all.rule(ring.rule), now));
        let skipped = ring.len().saturating_sub(most);
        let kept = ring.iter().skip(skipped).map(|(offset, frame)| (offset, frame.clone()));
        Some((ring.position(*epoch), kept.collect()))
    }
}
