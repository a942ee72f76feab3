//! The successor's side of a link.

use super::{LinkFault, LinkMessage};

/// A connection of a batch: its id, and the record that is needed to continue it.
type Entered<R> = (u64, R);

/// A step that the successor's shard must take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TakerStep<R> {
    /// Queue this message on the link.
    Send(LinkMessage),
    /// Continue these connections: they are this process's.
    Continue(Vec<Entered<R>>),
    /// Close the descriptors of these connections, drop their records, and then queue the message.
    Forget(Vec<Entered<R>>, LinkMessage),
}

/// The successor's side: it has the records of connections that are entered and silent.
///
/// It continues them after YOURS, or once the predecessor's pidfd reports its end: a predecessor
/// continues them itself only after REVOKED, which this side sends after it has dropped them. The
/// end of the link alone proves nothing, since the predecessor may go on without it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taker<R> {
    /// The number of the last batch.
    last: u64,
    /// The connections of that batch that are neither continued nor forgotten.
    held: Vec<Entered<R>>,
    /// The last batch is neither continued nor forgotten. It may be empty.
    is_open: bool,
    /// The predecessor has ended.
    is_dead: bool,
    /// The predecessor has sent a message that does not fit, so that nothing is claimed.
    has_fault: bool,
}

impl<R> Default for Taker<R> {
    fn default() -> Self {
        Self { last: 0, held: Vec::new(), is_open: false, is_dead: false, has_fault: false }
    }
}

impl<R> Taker<R> {
    /// Returns whether connections wait for YOURS.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns whether this connection waits for YOURS.
    #[must_use]
    pub fn holds(&self, id: u64) -> bool {
        self.held.iter().any(|(held, _)| *held == id)
    }

    /// Handles a batch: `entered` are registered and silent, and `refused` were closed and dropped
    /// before this call.
    ///
    /// # Errors
    /// `entered` with the fault if a batch is under way already, or the number is not the next one.
    /// The caller closes and drops them.
    pub fn handle_batch(
        &mut self,
        number: u64,
        entered: Vec<Entered<R>>,
        refused: Vec<u64>,
    ) -> Result<TakerStep<R>, (LinkFault, Vec<Entered<R>>)> {
        if self.has_fault || self.is_holding() || number != self.last + 1 {
            self.has_fault = true;
            return Err((LinkFault::WrongBatch(number), entered));
        }
        self.last = number;
        if self.is_dead {
            return Ok(TakerStep::Continue(entered));
        }
        self.held = entered;
        self.is_open = true;
        Ok(TakerStep::Send(LinkMessage::Taken { number, refused }))
    }

    /// Handles YOURS. Returns `None` if the batch was claimed before.
    ///
    /// # Errors
    /// That batch is not under way.
    pub fn handle_yours(&mut self, number: u64) -> Result<Option<TakerStep<R>>, LinkFault> {
        self.check(number)?;
        Ok(self.take_held().map(TakerStep::Continue))
    }

    /// Handles REVOKE. All connections of the batch may have been refused. Returns `None` if the
    /// batch was claimed before.
    ///
    /// # Errors
    /// That batch is not under way, or its connections are this process's.
    pub fn handle_revoke(&mut self, number: u64) -> Result<Option<TakerStep<R>>, LinkFault> {
        self.check(number)?;
        let revoked = LinkMessage::Revoked { number };
        Ok(self.take_held().map(|held| TakerStep::Forget(held, revoked)))
    }

    /// Handles the end of the predecessor's process, as its pidfd reports it: the batch
    /// under way is continued here. The rest of the link is still read.
    pub fn handle_death(&mut self) -> Option<TakerStep<R>> {
        self.is_dead = true;
        if self.has_fault || !self.is_holding() {
            return None;
        }
        self.take_held().map(TakerStep::Continue)
    }

    /// Checks that a message concerns the batch under way, or the last one of a predecessor that
    /// has ended.
    fn check(&mut self, number: u64) -> Result<(), LinkFault> {
        let is_known = number == self.last && (self.is_open || self.is_dead);
        self.has_fault |= !is_known;
        if self.has_fault { Err(LinkFault::WrongBatch(number)) } else { Ok(()) }
    }

    /// Ends the batch under way, if there is one, and returns its connections.
    fn take_held(&mut self) -> Option<Vec<Entered<R>>> {
        std::mem::take(&mut self.is_open).then(|| std::mem::take(&mut self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding() -> Taker<&'static str> {
        let mut taker = Taker::default();
        let step = taker.handle_batch(1, vec![(1, "one")], vec![2]).unwrap();
        assert_eq!(step, TakerStep::Send(LinkMessage::Taken { number: 1, refused: vec![2] }));
        taker
    }

    /// The outcome of a revocation.
    fn forgotten(
        held: Vec<Entered<&'static str>>,
    ) -> Result<Option<TakerStep<&'static str>>, LinkFault> {
        Ok(Some(TakerStep::Forget(held, LinkMessage::Revoked { number: 1 })))
    }

    /// The step that continues the batch of [`holding`].
    fn continued() -> Option<TakerStep<&'static str>> {
        Some(TakerStep::Continue(vec![(1, "one")]))
    }

    #[test]
    fn yours_continues_and_revoke_forgets() {
        let mut taker = holding();
        assert_eq!(taker.handle_yours(1), Ok(continued()));
        assert!(!taker.is_holding());
        assert_eq!(taker.handle_revoke(1), Err(LinkFault::WrongBatch(1)));
        assert_eq!(holding().handle_revoke(1), forgotten(vec![(1, "one")]));
        let mut empty = Taker::<&str>::default();
        empty.handle_batch(1, Vec::new(), vec![1, 2]).unwrap();
        assert_eq!(empty.handle_revoke(1), forgotten(Vec::new()));
    }

    #[test]
    fn the_batch_of_a_dead_predecessor_is_claimed_once() {
        let mut taker = holding();
        assert_eq!(taker.handle_death(), continued());
        assert_eq!((taker.handle_yours(1), taker.handle_revoke(1)), (Ok(None), Ok(None)));
        // Its last batch may still be on the way.
        let next = taker.handle_batch(2, vec![(2, "two")], Vec::new());
        assert_eq!(next, Ok(TakerStep::Continue(vec![(2, "two")])));
        assert_eq!(taker.handle_yours(2), Ok(None));
        let mut revoked = holding();
        assert!(revoked.handle_revoke(1).is_ok());
        assert_eq!(revoked.handle_death(), None);
    }

    #[test]
    fn nothing_is_continued_after_a_message_that_does_not_fit() {
        let mut taker = holding();
        let second = taker.handle_batch(2, vec![(3, "three")], Vec::new());
        assert_eq!(second, Err((LinkFault::WrongBatch(2), vec![(3, "three")])));
        assert_eq!(taker.handle_yours(1), Err(LinkFault::WrongBatch(1)));
        assert_eq!(taker.handle_death(), None);
    }
}
