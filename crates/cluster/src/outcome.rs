//! The outcome of accepted publications, and listeners for it.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

/// The outcome of an accepted publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The broker has the publication; or, while the broker is away, the members of this node got
    /// it.
    Taken,
    /// The broker has not accepted the publication, and will not.
    Refused,
    /// The publication was sent, and no answer came: the broker may have it.
    Unknown,
}

/// A listener for the outcome of a publication.
pub trait Await: Debug + Send + Sync {
    /// Receives the outcome, once, on the node's thread.
    fn settle(&self, outcome: PublishOutcome);
}

/// A publisher's claim to the outcome of a publication. A ticket always reports an outcome: if it
/// is dropped, an unknown one.
#[derive(Debug, Default)]
pub struct Ticket {
    /// The connection that has published, as a number of the caller's choice.
    pub publisher: Option<u64>,
    awaiting: Option<Arc<dyn Await>>,
}

/// A clone belongs to the copy that is sent, and has no listener.
impl Clone for Ticket {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.settle(PublishOutcome::Unknown);
    }
}

impl Ticket {
    /// Creates a ticket.
    #[must_use]
    pub fn new(publisher: Option<u64>, awaiting: Arc<dyn Await>) -> Self {
        Self { publisher, awaiting: Some(awaiting) }
    }

    /// Reports the outcome, unless it was reported before.
    pub fn settle(&mut self, outcome: PublishOutcome) {
        if let Some(awaiting) = self.awaiting.take() {
            awaiting.settle(outcome);
        }
    }
}

/// Publications of one connection that members do not receive, or may not receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unpublished {
    /// Publications that the broker has refused.
    pub refused: u64,
    /// Publications that the broker may or may not have.
    pub unknown: u64,
}

/// Losses found at the same time, by publishing connection: each connection gets one report of all
/// its losses.
#[derive(Debug, Default)]
pub struct Losses(HashMap<u64, Unpublished>);

impl Losses {
    /// Adds a publication with its outcome, if this is a loss.
    pub fn add(&mut self, publisher: Option<u64>, outcome: PublishOutcome) {
        let Some(publisher) = publisher else { return };
        match outcome {
            PublishOutcome::Taken => {}
            PublishOutcome::Refused => self.0.entry(publisher).or_default().refused += 1,
            PublishOutcome::Unknown => self.0.entry(publisher).or_default().unknown += 1,
        }
    }

    /// Removes all losses.
    pub fn take(&mut self) -> impl Iterator<Item = (u64, Unpublished)> {
        std::mem::take(&mut self.0).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Noted(Mutex<Vec<PublishOutcome>>);

    impl Await for Noted {
        fn settle(&self, outcome: PublishOutcome) {
            self.0.lock().unwrap().push(outcome);
        }
    }

    #[test]
    fn an_outcome_is_reported_once_and_in_any_case() {
        let noted = Arc::new(Noted::default());
        let mut ticket = Ticket::new(Some(7), Arc::clone(&noted) as _);
        drop(ticket.clone());
        ticket.settle(PublishOutcome::Taken);
        ticket.settle(PublishOutcome::Refused);
        drop(ticket);
        drop(Ticket::new(None, Arc::clone(&noted) as _));
        assert_eq!(*noted.0.lock().unwrap(), [PublishOutcome::Taken, PublishOutcome::Unknown]);
    }

    #[test]
    fn a_publisher_learns_of_all_that_it_has_lost_at_once() {
        let mut losses = Losses::default();
        for (publisher, outcome) in [
            (Some(1), PublishOutcome::Refused),
            (Some(1), PublishOutcome::Unknown),
            (Some(1), PublishOutcome::Refused),
            (Some(2), PublishOutcome::Taken),
            (None, PublishOutcome::Refused),
        ] {
            losses.add(publisher, outcome);
        }
        let lost: Vec<_> = losses.take().collect();
        assert_eq!(lost, [(1, Unpublished { refused: 2, unknown: 1 })]);
        assert_eq!(losses.take().count(), 0);
    }
}
