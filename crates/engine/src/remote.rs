//! The way to every shard from any thread: letters, and who takes them.

use std::any::Any;
use std::sync::Arc;

use throng_io::{ConnId, Waker};

use crate::channels::{Interest, Totals};
use crate::delivery::{Delivery, Receipt, Share};
use crate::filter::Filter;
use crate::frame::Frame;
use crate::losses::{Losses, Receivers};
use crate::mailbox::{Fill, Letters, Mailbox, mailbox, mailbox_with_mark};
use crate::seats::Seats;
use crate::service::Parcel;
use crate::shutdown::DrainPlan;

/// Letters a shard's mailbox holds before senders are told that it is full.
pub const MAILBOX_CAPACITY: usize = 65_536;

/// With more letters than this a shard's mailbox is crowded: connections that publish to it are held back.
pub const MAILBOX_MARK: usize = MAILBOX_CAPACITY / 4;

/// What one thread asks of a shard.
#[derive(Debug)]
pub enum Mail {
    /// Send to every member of a channel but one: one letter a shard and publish, whatever the number of members.
    Publish {
        /// The channel's name.
        channel: Arc<str>,
        /// The message, encoded once.
        frame: Frame,
        /// The member that does not get it, usually the publisher.
        except: Option<ConnId>,
        /// Where the shard's counts go.
        share: Share,
    },
    /// Send to everyone that a filter lets through.
    Broadcast {
        /// Who gets it.
        filter: Arc<Filter>,
        /// The message, encoded once.
        frame: Frame,
        /// Where the shard's counts go.
        share: Share,
    },
    /// Send to one connection, if it is still there.
    Send {
        /// Which.
        to: ConnId,
        /// The message.
        frame: Frame,
    },
    /// Begin the closing handshake with one connection, if it is still there.
    Close {
        /// Which.
        to: ConnId,
        /// RFC 6455 section 7.4.
        code: u16,
        /// At most 123 bytes; more are cut off.
        reason: Box<str>,
    },
    /// Give this to the service of one connection, if that is still there.
    Deliver {
        /// Which.
        to: ConnId,
        /// What.
        parcel: Parcel,
    },
    /// Stop accepting, close everything within the plan's window, then stop.
    Drain(DrainPlan),
}

impl Mail {
    /// The memory that this letter keeps alive.
    fn bytes(&self) -> usize {
        match self {
            Self::Publish { frame, .. }
            | Self::Broadcast { frame, .. }
            | Self::Send { frame, .. } => frame.as_bytes().len(),
            Self::Close { reason, .. } => reason.len(),
            Self::Drain(_) | Self::Deliver { .. } => 0,
        }
    }
}

/// How much more than others the shards of event loops may put into each other's queues: their publishers are held back
/// at [`MAILBOX_MARK`], and this is room for what each of very many of them may cause before that.
const RESERVE: usize = 4;

/// The sending half of a shard's queue.
#[derive(Clone, Debug)]
pub(crate) struct ShardQueue {
    mailbox: Mailbox<Mail>,
    losses: Arc<Losses>,
    /// How much of the room that others have shards may use.
    reserve: usize,
}

/// The receiving half of a shard's queue.
pub(crate) struct ShardInbox {
    pub(crate) letters: Letters<Mail>,
    pub(crate) losses: Arc<Losses>,
}

/// The queue of a shard that `waker` wakes, crowded with more letters than `mark`.
pub(crate) fn shard_queue(mark: usize, waker: Waker) -> (ShardQueue, ShardInbox) {
    queue_of(mailbox_with_mark(MAILBOX_CAPACITY, mark, waker))
}

/// The queue of a shard of one connection.
pub(crate) fn seat_queue(capacity: usize, waker: Waker) -> (ShardQueue, ShardInbox) {
    let (queue, inbox) = queue_of(mailbox(capacity, waker));
    // Publishers are not held back: what waits for one connection is its backlog.
    (ShardQueue { reserve: 1, ..queue }, inbox)
}

fn queue_of((mailbox, letters): (Mailbox<Mail>, Letters<Mail>)) -> (ShardQueue, ShardInbox) {
    let losses = Arc::<Losses>::default();
    let queue = ShardQueue { mailbox, losses: Arc::clone(&losses), reserve: RESERVE };
    (queue, ShardInbox { letters, losses })
}

impl ShardQueue {
    /// Queues what a foreign thread asks for.
    fn put(&self, mail: Mail) -> Result<(), MailboxFull> {
        let bytes = mail.bytes();
        self.mailbox.send_with(mail, bytes).map_err(|_| MailboxFull)
    }

    /// Queues a publication of another shard. `None` if it is lost, which the owner of the queue is told.
    fn post(&self, mail: Mail, receivers: &Receivers) -> Option<Fill> {
        let bytes = mail.bytes();
        let fill = self.mailbox.send_within(mail, bytes, self.reserve).ok();
        if fill.is_none() {
            self.losses.add(receivers.clone());
            self.mailbox.wake();
        }
        fill
    }
}

/// What became of a publication's letters to other shards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posting {
    /// Letters queued.
    pub(crate) posted: usize,
    /// Shards whose queue was full.
    pub(crate) lost: u64,
}

/// The way to every shard from any thread; clone it freely.
#[derive(Clone, Debug)]
pub struct Remote {
    shards: Arc<[ShardQueue]>,
    /// Where each connection is a shard of its own; the first of `shards` is the acceptor then.
    seats: Option<Arc<Seats>>,
    totals: Arc<Totals>,
}

/// A shard's mailbox holds [`MAILBOX_CAPACITY`] letters or 64 MiB of messages: the shard is far behind, and this letter
/// was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxFull;

impl std::fmt::Display for MailboxFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a shard is {MAILBOX_CAPACITY} letters or 64 MiB of messages behind; send less, or more slowly"
        )
    }
}

impl std::error::Error for MailboxFull {}

impl Remote {
    pub(crate) fn new(shards: Vec<ShardQueue>, totals: Arc<Totals>) -> Self {
        Self { shards: shards.into(), seats: None, totals }
    }

    pub(crate) fn with_seats(acceptor: ShardQueue, seats: Arc<Seats>, totals: Arc<Totals>) -> Self {
        Self { shards: Arc::new([acceptor]), seats: Some(seats), totals }
    }

    /// There is no other shard.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.shards.len() == 1 && self.seats.is_none()
    }

    pub(crate) fn seats(&self) -> Option<&Seats> {
        self.seats.as_deref()
    }

    /// Shards of this process.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Sends to every member of `channel` but `except`: one letter to each shard that has a member when this is called. For
    /// foreign threads: a connection's publication goes by [`Cx::publish`](crate::Cx::publish), which holds its
    /// connection back instead of failing.
    ///
    /// # Errors
    /// At least one shard's mailbox is full; the others have the letter.
    pub fn publish(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> Result<Receipt, MailboxFull> {
        let homes = self.totals.homes_of(channel, None);
        let channel: Arc<str> = channel.into();
        self.to_all(Some(&homes), |share| {
            let (channel, frame) = (Arc::clone(&channel), frame.clone());
            Mail::Publish { channel, frame, except, share }
        })
    }

    /// Sends to everyone that `filter` lets through: one letter to each shard that may have some of them.
    ///
    /// # Errors
    /// As for [`Remote::publish`].
    pub fn broadcast(&self, filter: &Arc<Filter>, frame: &Frame) -> Result<Receipt, MailboxFull> {
        let homes = match (&filter.include, &filter.channel) {
            (Some(ids), _) => Some(shards_of(ids)),
            (None, Some(channel)) => Some(self.totals.homes_of(channel, None)),
            (None, None) => None,
        };
        self.to_all(homes.as_deref(), |share| {
            let (filter, frame) = (Arc::clone(filter), frame.clone());
            Mail::Broadcast { filter, frame, share }
        })
    }

    /// Has publications to `channel` reach a shard from now on until this is dropped: for a subscription that is on its
    /// way there, so that it comes about before whatever the same thread publishes afterwards.
    #[must_use]
    pub fn announce(&self, shard: usize, channel: &str) -> Interest {
        Interest::new(&self.totals, shard as u16, channel)
    }

    /// To the shards with these numbers, or to all.
    fn to_all(
        &self,
        numbers: Option<&[u16]>,
        letter: impl Fn(Share) -> Mail,
    ) -> Result<Receipt, MailboxFull> {
        let mut outcome = Ok(());
        if let Some(seats) = self.seats() {
            let queues = seats.queues(numbers, None);
            // One share more tells of an acceptor that has stopped.
            let (receipt, mut shares) = Receipt::new(queues.len() + 1);
            if let Some(share) = shares.pop()
                && !self.shards.iter().any(|queue| queue.mailbox.is_closed())
            {
                share.count(Delivery::default());
            }
            for (queue, share) in queues.iter().zip(shares) {
                outcome = outcome.and(queue.put(letter(share.of_one())));
            }
            return outcome.map(|()| receipt);
        }
        let (receipt, shares) = Receipt::new(self.shards.len());
        for ((shard, queue), share) in self.shards.iter().enumerate().zip(shares) {
            let is_meant =
                numbers.is_none_or(|numbers| numbers.contains(&u16::try_from(shard).unwrap_or(0)));
            if is_meant {
                outcome = outcome.and(queue.put(letter(share)));
            } else if !queue.mailbox.is_closed() {
                share.count(Delivery::default());
            }
        }
        outcome.map(|()| receipt)
    }

    /// Sends to one connection, if it is still there.
    ///
    /// # Errors
    /// Its shard's mailbox is full.
    pub fn send(&self, to: ConnId, frame: &Frame) -> Result<(), MailboxFull> {
        self.post(to.shard(), Mail::Send { to, frame: frame.clone() })
    }

    /// Begins the closing handshake with one connection, if it is still there.
    ///
    /// # Errors
    /// Its shard's mailbox is full.
    pub fn close(&self, to: ConnId, code: u16, reason: &str) -> Result<(), MailboxFull> {
        self.post(to.shard(), Mail::Close { to, code, reason: reason.into() })
    }

    /// Gives `what` to the service of one connection, which gets it in [`Service::on_delivery`](crate::Service::on_delivery) if the
    /// connection is still there. It always has room: the caller sees to it that what is on its way is bounded, such as
    /// by one for each request.
    pub fn deliver(&self, to: ConnId, what: Box<dyn Any + Send>) {
        let seated = self.seats().and_then(|seats| seats.queue(to.shard()));
        let queue = match &self.seats {
            Some(_) => seated.as_ref(),
            None => self.shards.get(to.shard()),
        };
        if let Some(queue) = queue {
            queue.mailbox.send_always(Mail::Deliver { to, parcel: Parcel(what) });
        }
    }

    /// Drains every shard.
    ///
    /// # Errors
    /// A shard's mailbox is full, and the others are told; try again, which does no harm to those.
    pub fn drain(&self, plan: DrainPlan) -> Result<(), MailboxFull> {
        // With seats to the acceptor alone, who tells the others when.
        let told = self.shards.iter().map(|queue| queue.put(Mail::Drain(plan)));
        told.fold(Ok(()), Result::and)
    }

    /// Connections with threads of their own that are in a callback at this moment: each thread's number and the route.
    /// None where event loops serve them.
    #[must_use]
    pub fn in_callbacks(&self) -> Vec<(usize, u32)> {
        self.seats().map(Seats::in_callbacks).unwrap_or_default()
    }

    /// Begins the end of one connection that has a thread of its own, if it is still there.
    pub(crate) fn drain_one(&self, id: ConnId, plan: DrainPlan) {
        let seated = self.seats().and_then(|seats| seats.queue(id.shard()));
        if let Some(queue) = seated {
            // If it is full, its handler does not return: the deadline is the acceptor's to keep.
            let _ = queue.put(Mail::Drain(plan));
        }
    }

    /// A publication of the shard `from` to the shards with these numbers, or to all others. What one of them cannot take
    /// is lost there; those whose queues are crowded are added to `crowded`.
    pub(crate) fn post_to_others(
        &self,
        from: usize,
        numbers: Option<&[u16]>,
        receivers: &Receivers,
        letter: impl Fn() -> Mail,
        crowded: &mut Vec<usize>,
    ) -> Posting {
        let mut posting = Posting::default();
        let mut post = |shard, queue: &ShardQueue| match queue.post(letter(), receivers) {
            Some(Fill::Room) => posting.posted += 1,
            Some(Fill::Crowded) => {
                posting.posted += 1;
                // What waits for one connection is its backlog, which its policy bounds.
                if self.seats.is_none() && !crowded.contains(&shard) {
                    crowded.push(shard);
                }
            }
            None => posting.lost += 1,
        };
        if let Some(seats) = self.seats() {
            seats.queues(numbers, Some(from)).iter().for_each(|queue| post(from, queue));
            return posting;
        }
        match numbers {
            Some(numbers) => {
                for shard in numbers.iter().map(|number| usize::from(*number)) {
                    if let Some(queue) = self.shards.get(shard).filter(|_| shard != from) {
                        post(shard, queue);
                    }
                }
            }
            None => {
                let others = self.shards.iter().enumerate().filter(|(shard, _)| *shard != from);
                others.for_each(|(shard, queue)| post(shard, queue));
            }
        }
        posting
    }

    /// Has `waker` woken when the queue of `shard` has room, if it is crowded now; false if it is not.
    pub(crate) fn await_room(&self, shard: usize, sender: usize, waker: &Waker) -> bool {
        let queue = self.shards.get(shard);
        queue.is_some_and(|queue| queue.mailbox.await_room(sender, waker))
    }

    /// An id made up from wrong bits names a shard that is not there: nobody, like any id of the past.
    fn post(&self, shard: usize, mail: Mail) -> Result<(), MailboxFull> {
        if let Some(seats) = self.seats() {
            return seats.queue(shard).map_or(Ok(()), |queue| queue.put(mail));
        }
        self.shards.get(shard).map_or(Ok(()), |queue| queue.put(mail))
    }
}

/// The numbers of the shards that these connections are on, each once.
pub(crate) fn shards_of(ids: &[ConnId]) -> Vec<u16> {
    let mut shards: Vec<u16> = ids.iter().map(|id| id.shard() as u16).collect();
    shards.sort_unstable();
    shards.dedup();
    shards
}
