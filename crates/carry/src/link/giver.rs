//! The predecessor's side of a link.

use super::{LinkFault, LinkMessage, LinkRecord};
use crate::secret::Secret;

/// The time for an answer to a batch, and to its revocation, in milliseconds.
pub const TAKEN_WITHIN: u64 = 1_000;

/// A connection of a batch: its id, and the record that is needed to continue it.
type Kept<R> = (u64, R);

/// A step that the predecessor's shard must take, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GiverStep<R> {
    /// Queue this message on the link.
    Send(LinkMessage),
    /// Continue these connections here.
    Return(Vec<Kept<R>>),
    /// Close the descriptors of these connections, and drop their records.
    Surrender(Vec<Kept<R>>),
    /// The successor does not answer, or the link has ended, with a batch under way. Its
    /// connections rest until the successor has answered or ended: the caller should end it.
    Stalled,
}

/// The predecessor's side: it has the record of each connection on the way.
///
/// A record comes back only if the successor cannot have it: it has refused or forgotten it, or has
/// ended before it could read that the connection is its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Giver<R> {
    state: GiverState<R>,
    /// The number of the last batch.
    last: u64,
    /// No further batch: the move was stopped, or the link has ended.
    is_stopped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum GiverState<R> {
    /// No batch is under way.
    Resting,
    /// BATCH was queued.
    Offered(Vec<Kept<R>>, Deadline),
    /// YOURS was queued, and has not left the queue.
    Giving(Vec<Kept<R>>, Deadline),
    /// REVOKE was queued.
    Revoking(Vec<Kept<R>>, Deadline),
}

/// A time in milliseconds; `None` once it was reported.
type Deadline = Option<u64>;

impl<R> Default for Giver<R> {
    fn default() -> Self {
        Self { state: GiverState::Resting, last: 0, is_stopped: false }
    }
}

impl<R> Giver<R> {
    /// Returns whether a batch can be offered.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.is_stopped && matches!(self.state, GiverState::Resting)
    }

    /// Returns whether a batch is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !matches!(self.state, GiverState::Resting)
    }

    /// Returns whether no further batch is offered.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Returns the number of the last batch.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns when [`Giver::expire`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        match &self.state {
            GiverState::Resting => None,
            GiverState::Offered(_, deadline)
            | GiverState::Giving(_, deadline)
            | GiverState::Revoking(_, deadline) => *deadline,
        }
    }

    /// Offers parked connections at the time `now`; `encode` writes the state of each. The caller
    /// has sent their descriptors, and queues the returned message.
    ///
    /// # Errors
    /// The records, if this is not [ready](Self::is_ready) or there are none.
    pub fn offer(
        &mut self,
        records: Vec<Kept<R>>,
        encode: impl Fn(&R) -> Secret,
        now: u64,
    ) -> Result<LinkMessage, Vec<Kept<R>>> {
        if !self.is_ready() || records.is_empty() {
            return Err(records);
        }
        self.last += 1;
        let encoded =
            records.iter().map(|(id, record)| LinkRecord { id: *id, state: encode(record) });
        let message = LinkMessage::Batch { number: self.last, records: encoded.collect() };
        self.state = GiverState::Offered(records, Some(now + TAKEN_WITHIN));
        Ok(message)
    }

    /// Handles a message of the successor.
    ///
    /// # Errors
    /// The message does not fit. The batch under way rests until the successor has ended.
    pub fn handle_message(
        &mut self,
        message: LinkMessage,
        now: u64,
    ) -> Result<Vec<GiverStep<R>>, LinkFault> {
        match message {
            LinkMessage::Taken { number, refused } => self.handle_taken(number, &refused, now),
            LinkMessage::Revoked { number } => self.handle_revoked(number),
            LinkMessage::Batch { .. } | LinkMessage::Yours { .. } | LinkMessage::Revoke { .. } => {
                Err(LinkFault::WrongSide)
            }
        }
    }

    fn handle_taken(
        &mut self,
        number: u64,
        refused: &[u64],
        now: u64,
    ) -> Result<Vec<GiverStep<R>>, LinkFault> {
        match &self.state {
            // It crossed with REVOKE, whose answer follows.
            GiverState::Revoking(..) if number == self.last => return Ok(Vec::new()),
            GiverState::Offered(records, _) if number == self.last => {
                let is_there = |id: &&u64| records.iter().any(|(kept, _)| kept == *id);
                if let Some(id) = refused.iter().find(|id| !is_there(id)) {
                    return Err(LinkFault::WrongConnection(*id));
                }
            }
            _ => return Err(LinkFault::WrongBatch(number)),
        }
        let records = self.take_records();
        let (back, given): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|(id, _)| refused.contains(id));
        let mut steps = Vec::new();
        if !given.is_empty() {
            self.state = GiverState::Giving(given, Some(now + TAKEN_WITHIN));
            steps.push(GiverStep::Send(LinkMessage::Yours { number }));
        }
        if !back.is_empty() {
            steps.push(GiverStep::Return(back));
        }
        Ok(steps)
    }

    fn handle_revoked(&mut self, number: u64) -> Result<Vec<GiverStep<R>>, LinkFault> {
        match &self.state {
            GiverState::Revoking(..) if number == self.last => {
                Ok(vec![GiverStep::Return(self.take_records())])
            }
            _ => Err(LinkFault::WrongBatch(number)),
        }
    }

    /// Handles that YOURS has left the queue for the kernel, all of it: from here on the successor
    /// owns the connections, even if it ends.
    pub fn handle_yours_left(&mut self) -> Option<GiverStep<R>> {
        matches!(self.state, GiverState::Giving(..))
            .then(|| GiverStep::Surrender(self.take_records()))
    }

    /// Stops the move: the batch under way is revoked, unless the successor has already taken it.
    pub fn stop(&mut self, now: u64) -> Option<GiverStep<R>> {
        self.is_stopped = true;
        if !matches!(self.state, GiverState::Offered(..)) {
            return None;
        }
        self.state = GiverState::Revoking(self.take_records(), Some(now + TAKEN_WITHIN));
        Some(GiverStep::Send(LinkMessage::Revoke { number: self.last }))
    }

    /// Acts on the time: a batch that was not taken in time is revoked, which stops the move. If
    /// that is not answered, or YOURS does not leave, the successor is reported as stalled, once.
    pub fn expire(&mut self, now: u64) -> Option<GiverStep<R>> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        match &mut self.state {
            GiverState::Resting => None,
            GiverState::Offered(..) => self.stop(now),
            GiverState::Giving(_, deadline) | GiverState::Revoking(_, deadline) => {
                *deadline = None;
                self.is_stopped = true;
                Some(GiverStep::Stalled)
            }
        }
    }

    /// Handles the end of the link, or a [fault](LinkFault). The successor may live and have the
    /// batch, so its connections do not come back yet.
    pub fn handle_link_end(&mut self) -> Option<GiverStep<R>> {
        self.is_stopped = true;
        match &mut self.state {
            GiverState::Resting => None,
            GiverState::Offered(_, deadline)
            | GiverState::Giving(_, deadline)
            | GiverState::Revoking(_, deadline) => {
                *deadline = None;
                Some(GiverStep::Stalled)
            }
        }
    }

    /// Handles the end of the successor's process, as its pidfd reports it.
    ///
    /// `has_yours_left` is asked of the driver ([`Driver::unsent`]), not of the events that were
    /// handled: the event may still be queued although the successor has read YOURS, and has sent
    /// data with the keys of the connections.
    ///
    /// [`Driver::unsent`]: https://docs.rs/throng-io/latest/throng_io/trait.Driver.html
    pub fn handle_death(&mut self, has_yours_left: bool) -> Option<GiverStep<R>> {
        self.is_stopped = true;
        let was_giving = matches!(self.state, GiverState::Giving(..));
        let records = self.take_records();
        if records.is_empty() {
            None
        } else if was_giving && has_yours_left {
            Some(GiverStep::Surrender(records))
        } else {
            Some(GiverStep::Return(records))
        }
    }

    /// Takes the records of the batch under way, which ends.
    fn take_records(&mut self) -> Vec<Kept<R>> {
        match std::mem::replace(&mut self.state, GiverState::Resting) {
            GiverState::Resting => Vec::new(),
            GiverState::Offered(records, _)
            | GiverState::Giving(records, _)
            | GiverState::Revoking(records, _) => records,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered() -> Giver<&'static str> {
        let mut giver = Giver::default();
        let encode = |record: &&str| Secret::from(record.as_bytes());
        giver.offer(vec![(1, "one"), (2, "two")], encode, 0).unwrap();
        giver
    }

    #[test]
    fn refused_connections_come_back_and_the_rest_is_given_when_yours_has_left() {
        let mut giver = offered();
        let steps =
            giver.handle_message(LinkMessage::Taken { number: 1, refused: vec![2] }, 5).unwrap();
        let yours = GiverStep::Send(LinkMessage::Yours { number: 1 });
        assert_eq!(steps, [yours, GiverStep::Return(vec![(2, "two")])]);
        assert!(!giver.is_ready());
        assert_eq!(giver.handle_yours_left(), Some(GiverStep::Surrender(vec![(1, "one")])));
        assert!(giver.is_ready());
    }

    #[test]
    fn a_late_answer_is_revoked_and_a_missing_one_is_reported_once() {
        let mut giver = offered();
        assert_eq!(giver.expire(TAKEN_WITHIN - 1), None);
        let revoke = GiverStep::Send(LinkMessage::Revoke { number: 1 });
        assert_eq!(giver.expire(TAKEN_WITHIN), Some(revoke));
        let taken = LinkMessage::Taken { number: 1, refused: Vec::new() };
        assert_eq!(giver.handle_message(taken, TAKEN_WITHIN), Ok(Vec::new()));
        assert_eq!(giver.expire(2 * TAKEN_WITHIN), Some(GiverStep::Stalled));
        assert_eq!(giver.expire(u64::MAX), None);
        let steps = giver.handle_message(LinkMessage::Revoked { number: 1 }, 9_999).unwrap();
        assert_eq!(steps, [GiverStep::Return(vec![(1, "one"), (2, "two")])]);
        assert!(!giver.is_ready() && !giver.is_busy());
    }

    #[test]
    fn messages_that_do_not_fit_change_nothing() {
        let mut giver = offered();
        let before = giver.clone();
        for (message, fault) in [
            (LinkMessage::Taken { number: 2, refused: vec![] }, LinkFault::WrongBatch(2)),
            (LinkMessage::Taken { number: 1, refused: vec![3] }, LinkFault::WrongConnection(3)),
            (LinkMessage::Revoked { number: 1 }, LinkFault::WrongBatch(1)),
            (LinkMessage::Yours { number: 1 }, LinkFault::WrongSide),
        ] {
            assert_eq!(giver.handle_message(message, 0), Err(fault));
            assert_eq!(giver, before);
        }
    }

    #[test]
    fn records_that_cannot_be_offered_are_returned() {
        let mut giver = offered();
        let encode = |_: &&str| Secret::default();
        assert_eq!(giver.offer(vec![(3, "three")], encode, 0), Err(vec![(3, "three")]));
        let mut stopped = Giver::default();
        assert_eq!(stopped.stop(0), None);
        assert_eq!(stopped.offer(vec![(3, "three")], encode, 0), Err(vec![(3, "three")]));
    }
}
