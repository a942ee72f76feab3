//! A shard on its thread, with its link while one is open.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use throng_carry::Carried;
use throng_carry::link::LinkMessage;
use throng_io::Driver;
use throng_io::handover::Passage;

use super::link::LinkOut;
use crate::moving::{LinkNumber, MoveCommand, PREDECESSOR, Progress};
use crate::shard::{Shard, Walk};

/// A driver whose connections can move to another process.
pub(crate) trait Movable: Driver<Descriptor = OwnedFd, Record: Carried> {}

impl<D: Driver<Descriptor = OwnedFd, Record: Carried>> Movable for D {}

/// Free slots that a predecessor keeps, for connections that it still accepts and makes.
const KEPT_SLOTS: usize = 4096;

/// Walks over the tunnels of a shard in which its driver refuses to park some: an event of theirs
/// was found already, so that they can be parked a moment later.
const WALKS: u32 = 20;

/// A shard, and its link if there is one.
pub(crate) struct Runner<D: Driver> {
    shard: Shard<D>,
    link: Option<LinkOut>,
    number: LinkNumber,
    leaving: Option<LeavingTunnels>,
}

/// The state of a move to a successor.
struct LeavingTunnels {
    progress: Arc<Mutex<Progress>>,
    /// The successor accepts, so tunnels move.
    has_begun: bool,
    /// No more tunnels are parked.
    is_over: bool,
    /// Walks that the driver's refusals may still repeat.
    walks: u32,
    is_stalled: bool,
    /// The successor has ended.
    is_dead: bool,
}

impl<D: Movable> Runner<D> {
    /// Creates the runner of a shard that has no connection yet, with the passage of a predecessor
    /// if there is one; its driver has begun with the slots.
    pub(crate) fn new(mut shard: Shard<D>, number: u16, passage: Option<Passage>) -> Self {
        let link = passage.map(|Passage { slots, link }| {
            shard.begin_arriving(number, slots);
            LinkOut::new(link)
        });
        Self { shard, link, number: PREDECESSOR, leaving: None }
    }

    /// Runs the shard until it has ended.
    pub(crate) fn run(mut self) -> io::Result<()> {
        while self.shard.turn()? {
            if self.link.is_some() || self.shard.has_orders() {
                self.move_tunnels();
            }
        }
        self.shard.publish();
        Ok(())
    }

    #[cold]
    fn move_tunnels(&mut self) {
        for order in self.shard.take_orders() {
            self.obey(order);
        }
        self.step();
    }

    fn obey(&mut self, order: MoveCommand) {
        match order {
            MoveCommand::Give { link, number, slots, progress } => {
                let given = self.shard.begin_leaving(KEPT_SLOTS);
                if given.is_ok() {
                    (self.link, self.number) = (Some(LinkOut::new(link)), number);
                    self.leaving = Some(LeavingTunnels {
                        progress: Arc::clone(&progress),
                        has_begun: false,
                        is_over: false,
                        walks: WALKS,
                        is_stalled: false,
                        is_dead: false,
                    });
                }
                if given.is_err() {
                    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                    progress.is_closed = true;
                }
                // Who asked may have stopped waiting; the order to end follows then.
                let _ = slots.send(given);
            }
            MoveCommand::Begin => {
                if let Some(leaving) = &mut self.leaving {
                    leaving.has_begun = true;
                }
            }
            MoveCommand::Look => {}
            MoveCommand::Stop => {
                let message = self.shard.stop_leaving();
                self.push(message);
            }
            MoveCommand::Message(link, message, descriptors) if link == self.number => {
                self.handle(message, descriptors);
            }
            MoveCommand::LinkEnded(link) if link == self.number => self.lose_link(),
            MoveCommand::Message(..) | MoveCommand::LinkEnded(_) => {}
            MoveCommand::Died(PREDECESSOR) => self.shard.handle_predecessor_death(),
            MoveCommand::Died(_) => {
                // What has left was handled at once, on this thread.
                self.shard.handle_successor_death(false);
                self.link = None;
                if let Some(leaving) = &mut self.leaving {
                    leaving.is_dead = true;
                }
            }
            MoveCommand::End => {
                self.link = None;
                self.leaving = None;
            }
        }
    }

    fn handle(&mut self, message: LinkMessage, descriptors: Vec<OwnedFd>) {
        if self.link.is_none() {
            return;
        }
        let answers = match message {
            LinkMessage::Batch { number, records } => {
                let mut pairs = Vec::with_capacity(records.len());
                let mut descriptors = descriptors.into_iter();
                while let (Some(of_client), Some(of_upstream)) =
                    (descriptors.next(), descriptors.next())
                {
                    pairs.push([of_client, of_upstream]);
                }
                self.shard.handle_batch((number, records), pairs).map(|it| it.into_iter().collect())
            }
            message => self.shard.handle_link(message),
        };
        match answers {
            Ok(answers) => answers.into_iter().for_each(|it: LinkMessage| self.push(Some(it))),
            Err(_) => self.lose_link(),
        }
    }

    fn push(&mut self, message: Option<LinkMessage>) {
        if let (Some(link), Some(message)) = (&mut self.link, message) {
            link.push(&message, Vec::new());
        }
    }

    /// Ends the link, which the other process has ended or whose rules it has broken.
    fn lose_link(&mut self) {
        let is_waiting = self.shard.handle_link_end();
        if self.link.take().is_some()
            && let Some(leaving) = &mut self.leaving
        {
            leaving.is_stalled |= is_waiting;
        }
    }

    /// Does all that can be done now.
    fn step(&mut self) {
        self.flush();
        if self.leaving.is_none() {
            return;
        }
        let (message, is_late) = self.shard.expire_handover();
        self.push(message);
        if let Some((message, descriptors)) = self.shard.next_batch(OwnedFd::try_clone)
            && let Some(link) = &mut self.link
        {
            link.push(&message, descriptors);
        }
        self.flush();
        let Some(leaving) = &mut self.leaving else { return };
        leaving.is_stalled |= is_late;
        let is_linked = self.link.is_some();
        if leaving.has_begun && !leaving.is_over && !self.shard.is_moving() {
            // What follows a walk to the end of the table begins at its start.
            let walks: Vec<Walk> = (0..2).map_while(|_| Some(self.shard.park_tunnels())).collect();
            let has_parked = walks.iter().any(|walk| walk.parked > 0);
            let has_refused = walks.iter().any(|walk| walk.refused > 0);
            leaving.walks = if has_parked { WALKS } else { leaving.walks.saturating_sub(1) };
            leaving.is_over = !is_linked || !has_parked && (!has_refused || leaving.walks == 0);
        }
        self.publish();
    }

    /// Sends what waits for the link.
    fn flush(&mut self) {
        let Some(link) = &mut self.link else { return };
        if link.is_empty() {
            return;
        }
        match link.flush() {
            Ok(true) => self.shard.handle_yours_left(),
            Ok(false) => {}
            Err(_) => self.lose_link(),
        }
    }

    fn publish(&mut self) {
        let Some(leaving) = &self.leaving else { return };
        let is_moving = self.shard.is_moving();
        let mut progress = leaving.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.moved = self.shard.moved();
        progress.is_stalled = leaving.is_stalled && is_moving;
        progress.is_closed = leaving.is_dead && !is_moving;
        let is_over = leaving.is_over && !is_moving;
        if is_over && !progress.is_over {
            progress.stays = self.shard.stays();
            progress.pauses = self.shard.take_pauses();
        }
        progress.is_over = is_over;
    }
}
