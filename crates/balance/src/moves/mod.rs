//! Tunnels that move to a successor of this process: a link for each shard.
//!
//! A link is a Unix stream between two shards with the same number. A shard writes to its end
//! without blocking, from its own thread, so that it knows what has left; a thread of each end
//! reads, and posts what comes as commands. [`throng_carry::link`] has the rules.

mod link;
mod runner;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use throng_engine::mailbox::Mailbox;
use throng_io::Driver;
pub use throng_io::handover::Passage;

pub(crate) use self::runner::{Movable, Runner};
use crate::command::BalanceCommand;
use crate::moving::{LinkNumber, MoveCommand, MovedTunnels, PREDECESSOR, Pauses, Progress};

/// The interval at which a move is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// The time that a shard has to carry out an order.
const ORDER: Duration = Duration::from_secs(5);

/// The time that tunnels on their way have to arrive when no more leave.
const LAST: Duration = Duration::from_secs(3);

/// The moves of all shards to one successor.
#[derive(Debug)]
pub struct Moves(Vec<Move>);

/// The move of a shard.
#[derive(Debug)]
struct Move {
    mailbox: Mailbox<BalanceCommand>,
    link: LinkNumber,
    progress: Arc<Mutex<Progress>>,
}

static NEXT_LINK: AtomicU64 = AtomicU64::new(PREDECESSOR + 1);

impl Moves {
    /// Gives the free slots of each shard to a successor, and opens the links. Returns the
    /// successor's part of each.
    ///
    /// # Errors
    /// No descriptor or thread is left, or a shard does not answer. Some links may be open.
    pub(crate) fn begin(
        mailboxes: impl Iterator<Item = Mailbox<BalanceCommand>>,
    ) -> (Option<Self>, io::Result<Vec<Passage>>) {
        let mut begun = Self(Vec::new());
        let passages = mailboxes.map(|mailbox| begun.open(mailbox)).collect();
        (Some(begun), passages)
    }

    fn open(&mut self, mailbox: Mailbox<BalanceCommand>) -> io::Result<Passage> {
        let (own, other) = UnixStream::pair()?;
        let (reply, slots) = mpsc::channel();
        let progress = Arc::<Mutex<Progress>>::default();
        let reader = own.try_clone()?;
        let number = NEXT_LINK.fetch_add(1, Relaxed);
        let command =
            MoveCommand::Give { link: own, number, slots: reply, progress: Arc::clone(&progress) };
        mailbox.send_always(BalanceCommand::Move(command));
        self.0.push(Move { mailbox: Mailbox::clone(&mailbox), link: number, progress });
        link::listen_to_successor(reader, (number, mailbox))?;
        let slots = slots.recv_timeout(ORDER).map_err(|_| io::ErrorKind::TimedOut)??;
        Ok(Passage { slots, link: other })
    }

    /// Moves the tunnels, at most until `until`, as long as the successor lives.
    ///
    /// # Errors
    /// The successor has ended, or must be ended: it does not answer. Tunnels may be on their way.
    pub fn run(
        &self,
        until: Instant,
        is_alive: &mut dyn FnMut() -> bool,
    ) -> Result<MovedTunnels, String> {
        self.post(|| MoveCommand::Begin);
        let mut ends_at = until + LAST;
        let mut is_stopped = false;
        loop {
            let all = self.progress();
            if all.iter().any(|it| it.is_stalled) {
                return Err("the new process does not take connections".to_owned());
            }
            if !is_alive() {
                return Err("the new process ended while it took connections".to_owned());
            }
            if all.iter().all(|it| it.is_over) {
                return Ok(sum(&all));
            }
            let now = Instant::now();
            if now >= until && !std::mem::replace(&mut is_stopped, true) {
                ends_at = now + LAST;
                self.post(|| MoveCommand::Stop);
            }
            if now >= ends_at {
                return Err("connections do not arrive at the new process".to_owned());
            }
            std::thread::sleep(LOOK);
            self.post(|| MoveCommand::Look);
        }
    }

    /// Takes back what the successor, which has ended, has not taken. Returns how many tunnels were
    /// the successor's, and ended with it.
    pub fn abandon(&self) -> u64 {
        for Move { mailbox, link, .. } in &self.0 {
            mailbox.send_always(BalanceCommand::Move(MoveCommand::Died(*link)));
        }
        let until = Instant::now() + ORDER;
        while !self.progress().iter().all(|it| it.is_closed) && Instant::now() < until {
            std::thread::sleep(LOOK);
            self.post(|| MoveCommand::Look);
        }
        self.progress().iter().map(|it| it.moved).sum()
    }

    /// Ends the links after a move.
    pub fn end(&self) {
        self.post(|| MoveCommand::End);
    }

    fn progress(&self) -> Vec<Progress> {
        let read = |it: &Move| it.progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.0.iter().map(read).collect()
    }

    fn post(&self, command: impl Fn() -> MoveCommand) {
        for Move { mailbox, .. } in &self.0 {
            mailbox.send_always(BalanceCommand::Move(command()));
        }
    }
}

/// Enters the slots of a predecessor's shards, each into the driver of the same number.
///
/// # Errors
/// Their numbers differ, or slots are wrong.
pub(crate) fn prepare<D: Driver>(drivers: &mut [D], passages: &[Passage]) -> io::Result<()> {
    if !passages.is_empty() && passages.len() != drivers.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut all = drivers.iter_mut().zip(passages);
    all.try_for_each(|(driver, passage)| driver.begin_with(&passage.slots))
}

/// Reads what a predecessor sends to the shard with this mailbox, from now on.
///
/// # Errors
/// It is of another user, or has ended; no thread or descriptor is left.
pub(crate) fn listen(passage: &Passage, mailbox: Mailbox<BalanceCommand>) -> io::Result<()> {
    link::listen_to_predecessor(passage.link.try_clone()?, mailbox)
}

fn sum(all: &[Progress]) -> MovedTunnels {
    let mut sum = MovedTunnels::default();
    let mut all_pauses = Pauses::default();
    for Progress { moved, stays, pauses, .. } in all {
        sum.tunnels += moved;
        all_pauses.append(pauses.clone());
        for (why, count) in stays {
            *sum.stays.entry(*why).or_default() += count;
        }
    }
    sum.pause = all_pauses.distribution();
    sum
}
