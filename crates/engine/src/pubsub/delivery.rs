//! Outcome of a publication: the counts of one shard, and receipts for the counts of all shards.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::outbox::sent::Sent;
use crate::pubsub::history::Position;
use crate::pubsub::relay::{Carried, CarriedOutcome};
use crate::pubsub::waiting::{self, Waiting};

/// Outcome of one publication or broadcast, counted by receiver. Every receiver is in exactly one
/// count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// Queued for receivers that keep up with output.
    pub delivered: u64,
    /// Queued behind output that a receiver has not taken yet; its policy may still drop it, which
    /// the metrics count.
    pub queued: u64,
    /// Not sent: the receiver's policy was to drop this message, or to close the receiver.
    pub dropped: u64,
    /// Not sent: the receiver is closing.
    pub closed: u64,
    /// Not sent: the receiver's filter ([`Cx::deliver_if`](crate::Cx::deliver_if)) did not want it.
    pub filtered: u64,
    /// Shards whose mailbox was full, or that have stopped: no receiver there gets the message, and
    /// the number of these receivers is unknown. A broker that has not taken the message also
    /// counts here, and so does a broker whose answer is [unknown](Receipt::is_unknown).
    pub unreached: u64,
}

impl Delivery {
    pub(crate) fn count(&mut self, sent: Sent) {
        match sent {
            Sent::Accepted => self.delivered += 1,
            Sent::Queued => self.queued += 1,
            Sent::Dropped => self.dropped += 1,
            Sent::Closed => self.closed += 1,
        }
    }

    /// Returns the number of receivers, with any outcome.
    #[must_use]
    pub fn receivers(&self) -> u64 {
        self.delivered + self.queued + self.dropped + self.closed + self.filtered
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.queued += other.queued;
        self.dropped += other.dropped;
        self.closed += other.closed;
        self.filtered += other.filtered;
        self.unreached += other.unreached;
    }
}

/// Receipt for the counts of a publication on all shards, filled as they come in. It may be dropped
/// unread. A future awaits it: `receipt.await` is the [`Delivery`]; a thread [waits](Self::wait).
#[derive(Clone, Debug)]
pub struct Receipt {
    counts: Counts,
}

#[derive(Clone, Debug)]
enum Counts {
    /// No other shard had receivers.
    Known(Delivery),
    Awaited(Arc<Tally>),
    /// A broker has taken the publication and delivers it.
    Carried(Arc<dyn Carried>),
    /// Receipts of several publications.
    Several(Arc<[Receipt]>),
}

#[derive(Debug)]
struct Tally {
    /// When the publication began, if it is measured.
    began: Option<throng_io::Instant>,
    /// The position of the publication in the history of its channel.
    position: Option<Position>,
    sum: Mutex<Sum>,
}

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Sum> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Sum {
    so_far: Delivery,
    /// Shards that have not counted yet.
    missing: usize,
    waiting: Waiting,
}

/// Slot for one shard's counts. Dropped without counts, it reports that the shard was not reached.
#[derive(Debug)]
pub struct AckSlot {
    tally: Option<Arc<Tally>>,
    /// Number of shards that count as not reached if this is dropped.
    lost: u64,
}

/// The slots of a receipt. A slot that is not taken reports a shard that was not reached.
#[derive(Debug)]
pub(crate) struct AckSlots {
    tally: Arc<Tally>,
    left: usize,
    /// Number of shards that count as not reached if a slot is dropped.
    lost: u64,
}

impl AckSlots {
    /// Makes these the slots of shards with one connection each: if that connection is gone, no
    /// receiver is missed.
    pub(crate) fn of_one(mut self) -> Self {
        self.lost = 0;
        self
    }

    /// Returns the next slot, or a slot whose counts are not read.
    pub(crate) fn take_one(&mut self) -> AckSlot {
        self.next().unwrap_or_else(AckSlot::unclaimed)
    }
}

impl Iterator for AckSlots {
    type Item = AckSlot;

    fn next(&mut self) -> Option<AckSlot> {
        self.left = self.left.checked_sub(1)?;
        Some(AckSlot { tally: Some(Arc::clone(&self.tally)), lost: self.lost })
    }
}

impl Drop for AckSlots {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl Receipt {
    pub(crate) fn new(
        shards: usize,
        began: Option<throng_io::Instant>,
        position: Option<Position>,
    ) -> (Self, AckSlots) {
        let waiting = Waiting::default();
        let sum = Sum { so_far: Delivery::default(), missing: shards, waiting };
        let tally = Arc::new(Tally { began, position, sum: Mutex::new(sum) });
        let slots = AckSlots { tally: Arc::clone(&tally), left: shards, lost: 1 };
        (Self { counts: Counts::Awaited(tally) }, slots)
    }

    /// Creates the receipt of a publication that is complete.
    pub(crate) fn known(delivery: Delivery) -> Self {
        Self { counts: Counts::Known(delivery) }
    }

    /// Creates the receipt of a publication that a broker carries.
    pub(crate) fn carried(carried: Arc<dyn Carried>) -> Self {
        Self { counts: Counts::Carried(carried) }
    }

    /// Creates the receipt of several publications.
    pub(crate) fn of_all(receipts: Vec<Self>) -> Self {
        Self { counts: Counts::Several(receipts.into()) }
    }

    /// Returns the counts of all shards, if all have counted. Receivers in a channel that a broker
    /// carries are not counted: the receipt is complete when the broker has the message, is known
    /// not to take it, or has not answered within some seconds.
    #[must_use]
    pub fn total(&self) -> Option<Delivery> {
        let tally = match &self.counts {
            Counts::Known(delivery) => return Some(*delivery),
            Counts::Carried(carried) => return carried.outcome().map(of_outcome),
            Counts::Awaited(tally) => tally,
            Counts::Several(all) => return sum(all.iter().map(Self::total)),
        };
        let sum = tally.lock();
        (sum.missing == 0).then_some(sum.so_far)
    }

    /// Returns the place behind this publication in the history of its channel, so that a program
    /// that keeps the state of a channel knows which publications the state includes. `None`
    /// without a history, for several publications, and in a channel of a cluster.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        match &self.counts {
            Counts::Awaited(tally) => tally.position,
            Counts::Known(_) | Counts::Carried(_) | Counts::Several(_) => None,
        }
    }

    /// Returns whether the broker that carries the channel is known not to take the publication: no
    /// member in any process gets it. This is known at once while the broker is disconnected, and
    /// [later](Self::total) if the publication has waited too long for the broker.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        match &self.counts {
            Counts::Known(delivery) => delivery.unreached > 0,
            Counts::Carried(carried) => carried.outcome() == Some(CarriedOutcome::Refused),
            Counts::Awaited(_) => false,
            Counts::Several(all) => all.iter().any(Self::is_refused),
        }
    }

    /// Returns whether the broker that carries the channel was sent the publication but has not
    /// answered: members may or may not get it.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match &self.counts {
            Counts::Known(_) | Counts::Awaited(_) => false,
            Counts::Carried(carried) => carried.outcome() == Some(CarriedOutcome::Unknown),
            Counts::Several(all) => all.iter().any(Self::is_unknown),
        }
    }

    /// Waits for the counts of all shards; `None` if `timeout` passes first. A timeout that no
    /// clock can reach, such as [`Duration::MAX`], is unlimited. Do not call it in callbacks: their
    /// shard would wait for itself.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<Delivery> {
        let deadline = Instant::now().checked_add(timeout);
        waiting::block_until(deadline, |waker| self.poll_total(waker))
    }

    /// Returns [`total`](Self::total); if the counts are not complete, calls `waker` when they may
    /// be.
    fn poll_total(&self, waker: &Waker) -> Option<Delivery> {
        let tally = match &self.counts {
            Counts::Known(delivery) => return Some(*delivery),
            Counts::Carried(carried) => return carried.poll_outcome(waker).map(of_outcome),
            Counts::Awaited(tally) => tally,
            Counts::Several(all) => {
                return sum(all.iter().map(|receipt| receipt.poll_total(waker)));
            }
        };
        let mut sum = tally.lock();
        if sum.missing > 0 {
            sum.waiting.add(waker);
            return None;
        }
        Some(sum.so_far)
    }
}

impl IntoFuture for Receipt {
    type Output = Delivery;
    type IntoFuture = UntilDelivered;

    fn into_future(self) -> UntilDelivered {
        UntilDelivered { receipt: self }
    }
}

/// A future for the counts of a publication on all shards: see [`Receipt::total`].
#[derive(Clone, Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct UntilDelivered {
    receipt: Receipt,
}

impl Future for UntilDelivered {
    type Output = Delivery;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Delivery> {
        self.receipt.poll_total(cx.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

/// Returns the counts of a publication that a broker carries.
fn of_outcome(outcome: CarriedOutcome) -> Delivery {
    let unreached = u64::from(outcome != CarriedOutcome::Taken);
    Delivery { unreached, ..Delivery::default() }
}

/// Adds up counts, if all are known.
fn sum(mut all: impl Iterator<Item = Option<Delivery>>) -> Option<Delivery> {
    all.try_fold(Delivery::default(), |mut sum, next| {
        sum.add(next?);
        Some(sum)
    })
}

impl AckSlot {
    /// Creates a slot whose counts are not read.
    pub(crate) fn unclaimed() -> Self {
        Self { tally: None, lost: 0 }
    }

    /// Returns when its publication began, if that is measured.
    pub(crate) fn began(&self) -> Option<throng_io::Instant> {
        self.tally.as_ref().and_then(|tally| tally.began)
    }

    pub(crate) fn count(mut self, delivery: Delivery) {
        self.record(delivery);
    }

    fn record(&mut self, delivery: Delivery) {
        let Some(tally) = self.tally.take() else { return };
        let mut sum = tally.lock();
        sum.so_far.add(delivery);
        sum.missing -= 1;
        if sum.missing == 0 {
            let waiting = std::mem::take(&mut sum.waiting);
            drop(sum);
            waiting.wake();
        }
    }
}

impl Drop for AckSlot {
    fn drop(&mut self) {
        self.record(Delivery { unreached: self.lost, ..Delivery::default() });
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_receipt_is_complete_when_every_shard_has_counted_or_gone() {
        let (receipt, mut acks) = Receipt::new(2, None, None);
        assert_eq!(receipt.total(), None);
        assert_eq!(receipt.wait(Duration::ZERO), None);
        let delivery = Delivery { delivered: 3, dropped: 1, ..Delivery::default() };
        acks.next().unwrap().count(delivery);
        assert_eq!(receipt.total(), None);
        let waiting = receipt.clone();
        // A time that no clock reaches.
        let waiter = std::thread::spawn(move || waiting.wait(Duration::MAX));
        let awaiting = waiting::count_wakes();
        let mut awaited = pin!(receipt.clone().into_future());
        let mut cx = Context::from_waker(&awaiting.waker);
        assert_eq!(awaited.as_mut().poll(&mut cx), Poll::Pending);
        // It is the same task: one waker is kept.
        assert_eq!(awaited.as_mut().poll(&mut cx), Poll::Pending);
        assert_eq!(awaiting.wakes(), 0);
        drop(acks);
        let whole = Delivery { unreached: 1, ..delivery };
        assert_eq!(waiter.join().unwrap(), Some(whole));
        assert_eq!(awaiting.wakes(), 1);
        assert_eq!(awaited.as_mut().poll(&mut cx), Poll::Ready(whole));
        assert_eq!(receipt.total(), Some(whole));
        assert_eq!(whole.receivers(), 4);
        let both = Receipt::of_all(vec![receipt, Receipt::known(delivery)]);
        assert_eq!(both.wait(Duration::MAX).map(|sum| sum.receivers()), Some(8));
        let (receipt, acks) = Receipt::new(1, None, None);
        drop(acks.of_one());
        assert_eq!(
            receipt.total(),
            Some(Delivery::default()),
            "one connection that is gone has no receivers"
        );
    }
}
