//! Who sits where, in the family of one thread for each connection.
//!
//! There a shard has one connection, comes with it and goes with it. Its number is that of a seat; seats are made as
//! they are needed, and used again. Number 0 is the acceptor's, who has no session.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use throng_io::{ConnId, Waker};

use crate::channels::Totals;
use crate::mailbox::Mailbox;
use crate::remote::Mail;
use crate::stalls::Board;

/// The mailboxes of all seats that are taken. Read by every publication, written when a connection comes or goes.
pub(crate) struct Seats {
    rows: RwLock<Rows>,
    /// Connections that missed the deadline of a drain.
    forced: AtomicUsize,
    totals: Arc<Totals>,
    /// With wildcards any seat may have a pattern that matches.
    wildcards: bool,
    acceptor: Waker,
}

/// Seat 1 is the first.
#[derive(Default)]
struct Rows {
    seats: Vec<Seat>,
    free: Vec<u16>,
}

#[derive(Default)]
struct Seat {
    mailbox: Option<Mailbox<Mail>>,
    board: Option<Arc<Board>>,
    /// Connections that sat here before.
    generation: u32,
}

impl Seats {
    pub(crate) fn new(totals: Arc<Totals>, wildcards: bool, acceptor: Waker) -> Self {
        let (rows, forced) = (RwLock::default(), AtomicUsize::new(0));
        Self { rows, forced, totals, wildcards, acceptor }
    }

    /// A seat of its own, and how many connections sat there before; `None` when there is no number left.
    pub(crate) fn reserve(&self) -> Option<(u16, u32)> {
        let rows = &mut *self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let number = match rows.free.pop() {
            Some(number) => number,
            None => {
                let next = rows.seats.len() + 1;
                let number = u16::try_from(next).ok().filter(|_| next < ConnId::MAX_SHARDS)?;
                rows.seats.push(Seat::default());
                number
            }
        };
        Some((number, rows.seats[usize::from(number) - 1].generation))
    }

    /// From now on mail for the seat goes there.
    pub(crate) fn occupy(&self, number: u16, mailbox: Mailbox<Mail>, board: Arc<Board>) {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let seat = &mut rows.seats[usize::from(number) - 1];
        (seat.mailbox, seat.board) = (Some(mailbox), Some(board));
    }

    /// The connection is gone, of which `forced` had to be reset.
    pub(crate) fn vacate(&self, number: u16, forced: usize) {
        self.forced.fetch_add(forced, Ordering::Relaxed);
        let mailbox = {
            let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
            let seat = &mut rows.seats[usize::from(number) - 1];
            seat.generation = seat.generation.wrapping_add(1) & ConnId::MAX_GENERATION;
            let mailbox = seat.mailbox.take();
            seat.board = None;
            rows.free.push(number);
            mailbox
        };
        // Only now that the lock is let go: letters are dropped with it, and they may hold anything.
        drop(mailbox);
    }

    /// The acceptor is to look whether anybody is still here.
    pub(crate) fn wake_acceptor(&self) {
        self.acceptor.wake();
    }

    /// The connections of all seats that are taken.
    pub(crate) fn taken(&self) -> Vec<ConnId> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let numbered = rows.seats.iter().zip(1u16..);
        let taken = numbered.filter(|(seat, _)| seat.mailbox.is_some());
        taken.map(|(seat, number)| ConnId::new(number, 0, seat.generation)).collect()
    }

    /// The seats whose connection is in a callback at this moment, and of which route.
    pub(crate) fn in_callbacks(&self) -> Vec<(usize, u32)> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let route = |seat: &Seat| seat.board.as_ref()?.read().route;
        let numbered = rows.seats.iter().zip(1usize..);
        numbered.filter_map(|(seat, number)| Some((number, route(seat)?))).collect()
    }

    /// How many seats are taken.
    pub(crate) fn count(&self) -> usize {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.seats.len() - rows.free.len()
    }

    pub(crate) fn forced(&self) -> usize {
        self.forced.load(Ordering::Relaxed)
    }

    /// The mailbox of a seat, if it is taken. A copy, here and below: no letter is posted, and none dropped, under
    /// the lock.
    pub(crate) fn mailbox(&self, number: usize) -> Option<Mailbox<Mail>> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.seats.get(number.checked_sub(1)?)?.mailbox.clone()
    }

    /// The mailboxes of all that may have a receiver, but that of seat `except`: those of a channel's members, or
    /// everybody's. A publication to the three members of a room then wakes three threads and not five thousand.
    pub(crate) fn audience(
        &self,
        audience: &Audience<'_>,
        except: Option<usize>,
    ) -> Vec<Mailbox<Mail>> {
        let chosen = match audience {
            Audience::Channel(name) if !self.wildcards => Some(self.totals.homes(name)),
            Audience::Some(ids) => {
                let mut seats: Vec<u16> = ids.iter().map(|id| id.shard() as u16).collect();
                seats.sort_unstable();
                seats.dedup();
                Some(seats)
            }
            _ => None,
        };
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let mailbox = |number: usize| {
            let seat = rows.seats.get(number.checked_sub(1)?)?;
            seat.mailbox.clone().filter(|_| Some(number) != except)
        };
        match chosen {
            Some(numbers) => numbers.into_iter().map(usize::from).filter_map(mailbox).collect(),
            None => (1..=rows.seats.len()).filter_map(mailbox).collect(),
        }
    }
}

impl std::fmt::Debug for Seats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seats({} taken)", self.count())
    }
}

/// Who may be meant by a publication or a broadcast.
pub(crate) enum Audience<'a> {
    Channel(&'a str),
    Some(&'a [ConnId]),
    Everyone,
}
