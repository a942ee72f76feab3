//! The way to every shard from any thread: letters, and who takes them.

use std::any::Any;
use std::sync::Arc;

use throng_io::ConnId;

use crate::delivery::{Delivery, Receipt, Share};
use crate::filter::Filter;
use crate::frame::Frame;
use crate::mailbox::Mailbox;
use crate::seats::{Audience, Seats};
use crate::service::Parcel;
use crate::shutdown::DrainPlan;

/// Letters a shard's mailbox holds before senders are told that it is full.
pub const MAILBOX_CAPACITY: usize = 65_536;

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

/// The way to every shard from any thread; clone it freely.
#[derive(Clone, Debug)]
pub struct Remote {
    shards: Arc<[Mailbox<Mail>]>,
    /// Where each connection is a shard of its own; the first of `shards` is the acceptor then.
    seats: Option<Arc<Seats>>,
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
    pub(crate) fn new(shards: Vec<Mailbox<Mail>>) -> Self {
        Self { shards: shards.into(), seats: None }
    }

    pub(crate) fn with_seats(acceptor: Mailbox<Mail>, seats: Arc<Seats>) -> Self {
        Self { shards: Arc::new([acceptor]), seats: Some(seats) }
    }

    pub(crate) fn seats(&self) -> Option<&Seats> {
        self.seats.as_deref()
    }

    /// Shards of this process.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Sends to every member of `channel` but `except`: one letter to each shard.
    ///
    /// # Errors
    /// At least one shard's mailbox is full; the others have the letter.
    pub fn publish(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> Result<Receipt, MailboxFull> {
        let channel: Arc<str> = channel.into();
        self.to_all(&Audience::Channel(&channel), |share| {
            let (channel, frame) = (Arc::clone(&channel), frame.clone());
            Mail::Publish { channel, frame, except, share }
        })
    }

    /// Sends to everyone that `filter` lets through: one letter to each shard.
    ///
    /// # Errors
    /// As for [`Remote::publish`].
    pub fn broadcast(&self, filter: &Arc<Filter>, frame: &Frame) -> Result<Receipt, MailboxFull> {
        self.to_all(&audience(filter), |share| {
            let (filter, frame) = (Arc::clone(filter), frame.clone());
            Mail::Broadcast { filter, frame, share }
        })
    }

    fn to_all(
        &self,
        audience: &Audience<'_>,
        letter: impl Fn(Share) -> Mail,
    ) -> Result<Receipt, MailboxFull> {
        let mut outcome = Ok(());
        if let Some(seats) = self.seats() {
            let mailboxes = seats.audience(audience, None);
            // One share more tells of an acceptor that has stopped.
            let (receipt, mut shares) = Receipt::new(mailboxes.len() + 1);
            if let Some(share) = shares.pop()
                && !self.shards.iter().any(Mailbox::is_closed)
            {
                share.count(Delivery::default());
            }
            for (mailbox, share) in mailboxes.iter().zip(shares) {
                outcome = outcome.and(put(mailbox, letter(share.of_one())));
            }
            return outcome.map(|()| receipt);
        }
        let (receipt, shares) = Receipt::new(self.shards.len());
        for (mailbox, share) in self.shards.iter().zip(shares) {
            outcome = outcome.and(put(mailbox, letter(share)));
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
        let seated = self.seats().and_then(|seats| seats.mailbox(to.shard()));
        let mailbox = match &self.seats {
            Some(_) => seated.as_ref(),
            None => self.shards.get(to.shard()),
        };
        if let Some(mailbox) = mailbox {
            mailbox.send_always(Mail::Deliver { to, parcel: Parcel(what) });
        }
    }

    /// Drains every shard.
    ///
    /// # Errors
    /// A shard's mailbox is full, and the others are told; try again, which does no harm to those.
    pub fn drain(&self, plan: DrainPlan) -> Result<(), MailboxFull> {
        // With seats to the acceptor alone, who tells the others when.
        let told = self.shards.iter().map(|mailbox| put(mailbox, Mail::Drain(plan)));
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
        let seated = self.seats().and_then(|seats| seats.mailbox(id.shard()));
        if let Some(mailbox) = seated {
            // If it is full, its handler does not return: the deadline is the acceptor's to keep.
            let _ = put(&mailbox, Mail::Drain(plan));
        }
    }

    /// To all shards but `from`; returns how many mailboxes were full.
    pub(crate) fn publish_from(
        &self,
        from: usize,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> u64 {
        if self.shards.len() == 1 && self.seats.is_none() {
            return 0;
        }
        let channel: Arc<str> = channel.into();
        self.to_others(from, &Audience::Channel(&channel), || {
            let (channel, frame) = (Arc::clone(&channel), frame.clone());
            Mail::Publish { channel, frame, except, share: Share::nobodys() }
        })
    }

    pub(crate) fn broadcast_from(&self, from: usize, filter: &Arc<Filter>, frame: &Frame) -> u64 {
        self.to_others(from, &audience(filter), || {
            let (filter, frame) = (Arc::clone(filter), frame.clone());
            Mail::Broadcast { filter, frame, share: Share::nobodys() }
        })
    }

    fn to_others(&self, from: usize, audience: &Audience<'_>, letter: impl Fn() -> Mail) -> u64 {
        if let Some(seats) = self.seats() {
            let mailboxes = seats.audience(audience, Some(from));
            return mailboxes.iter().filter(|mailbox| put(mailbox, letter()).is_err()).count()
                as u64;
        }
        let others = (0..self.shards.len()).filter(|&shard| shard != from);
        others.filter(|&shard| self.post(shard, letter()).is_err()).count() as u64
    }

    /// An id made up from wrong bits names a shard that is not there: nobody, like any id of the past.
    fn post(&self, shard: usize, mail: Mail) -> Result<(), MailboxFull> {
        if let Some(seats) = self.seats() {
            return seats.mailbox(shard).map_or(Ok(()), |mailbox| put(&mailbox, mail));
        }
        self.shards.get(shard).map_or(Ok(()), |mailbox| put(mailbox, mail))
    }
}

fn put(mailbox: &Mailbox<Mail>, mail: Mail) -> Result<(), MailboxFull> {
    let bytes = mail.bytes();
    mailbox.send_with(mail, bytes).map_err(|_| MailboxFull)
}

/// Whose shards may have a receiver.
fn audience(filter: &Filter) -> Audience<'_> {
    match (&filter.include, &filter.channel) {
        (Some(ids), _) => Audience::Some(ids),
        (None, Some(channel)) => Audience::Channel(channel),
        (None, None) => Audience::Everyone,
    }
}
