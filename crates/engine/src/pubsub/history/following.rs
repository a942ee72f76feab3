//! Histories of channels that a broker orders: the store follows their sequences.

use std::sync::Arc;
use std::time::Duration;

use throng_io::Instant;

use super::followed::{Followed, HistoryTail};
use super::ring::Ring;
use super::store::{Histories, Stripe, answer_join, shared};
use super::{Joined, Kept, Position, Recorded, Since};
use crate::backpressure::history::HistoryMode;
use crate::outbox::frame::Frame;
use crate::pubsub::relay::Question;

/// Time for which the broker's last answer about the epoch of a channel holds, so that it is not
/// asked again.
const ANSWER_LASTS: Duration = Duration::from_secs(1);

impl Stripe {
    /// Begins the sequence of a channel.
    pub(crate) fn begin_followed(
        &mut self,
        all: &Histories,
        (channel, rule): (&Arc<str>, u16),
        HistoryTail { position, before, entries }: HistoryTail<'_>,
        now: Instant,
    ) {
        self.end_followed(all, channel);
        let at = position.offset.saturating_sub(entries.len() as u64);
        let before = if entries.is_empty() { position.tag } else { before };
        let (ring, epoch) = (Ring::new((at, before), rule), position.epoch);
        let followed =
            Followed { ring, epoch, is_open: false, answered: Instant(0), is_cut: false };
        self.followed.insert(Arc::clone(channel), followed);
        all.count_followed(1);
        for (tag, frame) in entries {
            self.keep_followed(all, channel, (*tag, frame), now);
        }
    }

    /// Replaces the kept publications, if the new publications end at the same position.
    pub(crate) fn refill_followed(
        &mut self,
        all: &Histories,
        channel: &Arc<str>,
        tail: HistoryTail<'_>,
        now: Instant,
    ) {
        let Some(Followed { ring, epoch, is_open, .. }) = self.followed.get(channel) else {
            return;
        };
        if ring.position(*epoch) != tail.position {
            return;
        }
        let (rule, was_open) = (ring.rule, *is_open);
        self.begin_followed(all, (channel, rule), tail, now);
        if let Some(followed) = self.followed.get_mut(channel) {
            followed.is_open = was_open;
        }
    }

    fn keep_followed(
        &mut self,
        all: &Histories,
        channel: &Arc<str>,
        (tag, frame): (u64, &Frame),
        now: Instant,
    ) {
        let Some(Followed { ring, .. }) = self.followed.get_mut(channel) else { return };
        let (_, cost) = ring.push(frame.bare(), tag, now);
        all.add(cost);
        all.free(ring.trim(all.rule(ring.rule), now));
        self.uses += 1;
        self.by_use.remove(&ring.used);
        ring.used = self.uses;
        self.by_use.insert(self.uses, Arc::clone(channel));
    }

    /// Adds the next publication of a followed channel; returns `None` if the publication is not
    /// the next one. The caller must then call [`Histories::make_room`], as after
    /// [`begin_followed`](Self::begin_followed).
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
        let tag = position.tag.unwrap_or_default();
        self.keep_followed(all, channel, (tag, frame), now);
        Some(Recorded::new(Arc::clone(channel), class, position, frame.clone()))
    }

    /// Opens a followed channel for members that join, now that the broker has answered.
    pub(crate) fn open_followed(&mut self, channel: &str, now: Instant) {
        if let Some(followed) = self.followed.get_mut(channel) {
            (followed.is_open, followed.answered) = (true, now);
        }
    }

    /// Forgets a followed channel.
    pub(crate) fn end_followed(&mut self, all: &Histories, channel: &str) {
        if let Some(mut followed) = self.followed.remove(channel) {
            self.by_use.remove(&followed.ring.used);
            all.free(followed.ring.clear());
            all.count_followed(-1);
        }
    }

    /// Returns the position at which a member joins now. `Err` has the question for the broker,
    /// unless the broker was already asked (`is_asked`); `Err(None)`: the channel is about to be
    /// opened without a question.
    pub(crate) fn join_followed(
        &mut self,
        all: &Histories,
        channel: &str,
        since: Since,
        (now, is_asked): (Instant, bool),
    ) -> Result<Joined, Option<Question>> {
        let followed = self.followed.get_mut(channel).filter(|followed| followed.is_open);
        let Followed { ring, epoch, is_cut, answered, .. } = followed.ok_or(None)?;
        let top = ring.position(*epoch);
        // A position without a tag is unproven, and no answer can prove it.
        let proven = since.position().filter(|since| since.tag.is_some());
        // A client that invents positions must not cause a question to the broker for each of them.
        let is_old = now.since(*answered) >= ANSWER_LASTS;
        let is_beyond = |since: Position| match since.epoch == *epoch {
            true => since.offset > top.offset,
            false => is_old,
        };
        if !is_asked && proven.is_some_and(is_beyond) {
            return Err(Some(Question::New));
        }
        let rule = all.rule(ring.rule);
        all.free(ring.trim(rule, now));
        let joined = answer_join(all, ring, *epoch, since);
        let is_unknown =
            |since: Position| since.epoch == *epoch && ring.tag_of(since.offset).is_none();
        let wants_more = !joined.recovered
            && (rule.history.mode == HistoryMode::Cache
                || proven.is_some_and(is_unknown)
                || matches!(since, Since::Last(most) if joined.count() < most));
        if *is_cut && wants_more && !is_asked {
            return Err(Some(Question::All));
        }
        Ok(joined)
    }

    /// Returns the place behind the last publication of a followed channel, and the last `most`.
    pub(crate) fn last_followed(
        &mut self,
        all: &Histories,
        channel: &str,
        most: usize,
        now: Instant,
    ) -> Option<(Position, Vec<Kept>)> {
        let Followed { ring, epoch, .. } = self.followed.get_mut(channel)?;
        all.free(ring.trim(all.rule(ring.rule), now));
        let skipped = ring.len().saturating_sub(most);
        Some((ring.position(*epoch), ring.iter().skip(skipped).map(shared).collect()))
    }
}
