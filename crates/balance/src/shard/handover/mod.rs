//! Tunnels move to the successor's shard with the same number.
//!
//! A tunnel moves as a whole: both connections, the bytes queued between them, and the shard's
//! state of both. `leaving` is the side of this process as a predecessor, `arriving` as a
//! successor; [`throng_carry::link`] decides which of them owns a tunnel. Requests, handshakes and
//! tunnels that end stay, and end in their process.

mod arriving;
mod leaving;
mod record;

use std::collections::BTreeMap;
use std::io;

use throng_carry::Carried;
use throng_carry::link::{LinkFault, LinkMessage, LinkRecord};
use throng_io::{ConnId, Driver, Slots};

use self::arriving::Arriving;
use self::leaving::Leaving;
pub use self::leaving::Walk;
use super::{BalanceParts, Shard};
use crate::moving::{Pauses, Stays};

/// The hand-over of a shard, if one is under way.
pub(super) enum Handover<D: Driver> {
    None,
    Leaving(Box<Leaving<D>>),
    Arriving(Box<Arriving<D>>),
}

/// The seam between a shard and its link. The time is the driver's, which both processes have: the
/// system's monotonic clock. The messages that are returned are queued on the link.
impl<D: Driver> Shard<D>
where
    D::Record: Carried,
{
    /// Begins to move tunnels to the successor. Returns the slots that are the successor's now,
    /// except for `kept` of them.
    ///
    /// # Errors
    /// The driver cannot do it, or tunnels of an earlier move are not back yet.
    pub fn begin_leaving(&mut self, kept: usize) -> io::Result<Slots> {
        if self.handover.is_busy() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let slots = self.driver.give_slots(kept)?;
        self.handover = Handover::Leaving(Box::new(Leaving::new()));
        Ok(slots)
    }

    /// Begins to take tunnels of the predecessor's shard `shard`, whose slots these are; the driver
    /// has begun with them.
    pub fn begin_arriving(&mut self, shard: u16, slots: Slots) {
        self.handover = Handover::Arriving(Box::new(Arriving::new(shard, slots)));
    }

    /// Parks tunnels for the next batch.
    pub fn park_tunnels(&mut self) -> Walk {
        let now = self.millis();
        let Self { driver, parts, handover: Handover::Leaving(leaving), .. } = self else {
            return Walk::default();
        };
        leaving.fill(driver, parts, now)
    }

    /// Returns a batch that is parked, and duplicates of its descriptors, which are sent before it.
    pub fn next_batch<T>(
        &mut self,
        duplicate: impl FnMut(&D::Descriptor) -> io::Result<T>,
    ) -> Option<(LinkMessage, Vec<T>)> {
        let now = self.millis();
        let Self { driver, parts, handover: Handover::Leaving(leaving), .. } = self else {
            return None;
        };
        leaving.offer(driver, parts, duplicate, now)
    }

    /// Handles a batch of the predecessor with the descriptors of its connections.
    ///
    /// # Errors
    /// The message does not fit.
    pub fn handle_batch(
        &mut self,
        batch: (u64, Vec<LinkRecord>),
        descriptors: Vec<[D::Descriptor; 2]>,
    ) -> Result<Option<LinkMessage>, LinkFault> {
        let now = self.millis();
        let Self { driver, parts, handover: Handover::Arriving(arriving), .. } = self else {
            return Err(LinkFault::WrongSide);
        };
        arriving.on_batch(driver, parts, batch, descriptors, now)
    }

    /// Handles another message of the other process.
    ///
    /// # Errors
    /// The message does not fit.
    pub fn handle_link(&mut self, message: LinkMessage) -> Result<Vec<LinkMessage>, LinkFault> {
        let now = self.millis();
        let Self { driver, parts, handover, .. } = self;
        match handover {
            Handover::None => Err(LinkFault::WrongSide),
            Handover::Leaving(leaving) => leaving.on_message(driver, parts, message, now),
            Handover::Arriving(arriving) => {
                let answer = arriving.on_message(driver, parts, message, now)?;
                Ok(answer.into_iter().collect())
            }
        }
    }

    /// Handles that YOURS has left the queue of the link for the kernel.
    pub fn handle_yours_left(&mut self) {
        let now = self.millis();
        if let Self { driver, parts, handover: Handover::Leaving(leaving), .. } = self {
            leaving.on_yours_left(driver, parts, now);
        }
    }

    /// Handles the end of the link. Returns whether a batch rests until the successor is ended.
    pub fn handle_link_end(&mut self) -> bool {
        let now = self.millis();
        match self {
            Self { driver, parts, handover: Handover::Leaving(leaving), .. } => {
                leaving.on_link_end(driver, parts, now)
            }
            _ => false,
        }
    }

    /// Handles the end of the successor's process. `has_yours_left` is asked of the link, not of
    /// the events that were handled. All slots are this shard's again.
    pub fn handle_successor_death(&mut self, has_yours_left: bool) {
        let now = self.millis();
        if let Self { driver, parts, handover: Handover::Leaving(leaving), .. } = self {
            leaving.on_death(driver, parts, has_yours_left, now);
            driver.take_slots_back();
        }
    }

    /// Handles the end of the predecessor's process, after all that it had sent.
    pub fn handle_predecessor_death(&mut self) {
        let now = self.millis();
        if let Self { driver, parts, handover: Handover::Arriving(arriving), .. } = self {
            arriving.on_death(driver, parts, now);
        }
    }

    /// Acts on the time. Returns a message to send, and whether the successor has not answered in
    /// time: then it must be ended.
    pub fn expire_handover(&mut self) -> (Option<LinkMessage>, bool) {
        let now = self.millis();
        match self {
            Self { driver, parts, handover: Handover::Leaving(leaving), .. } => {
                leaving.expire(driver, parts, now)
            }
            _ => (None, false),
        }
    }

    /// Stops the move. Returns a message to send.
    pub fn stop_leaving(&mut self) -> Option<LinkMessage> {
        let now = self.millis();
        match self {
            Self { driver, parts, handover: Handover::Leaving(leaving), .. } => {
                leaving.stop(driver, parts, now)
            }
            _ => None,
        }
    }

    /// Returns the time in milliseconds of the clock that both processes have.
    fn millis(&self) -> u64 {
        millis(&self.driver)
    }
}

impl<D: Driver> Shard<D> {
    /// Returns whether another thread has orders for the hand-over.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_orders(&self) -> bool {
        self.parts.mail.has_orders()
    }

    /// Takes these orders.
    #[cfg(target_os = "linux")]
    pub(crate) fn take_orders(&mut self) -> Vec<crate::moving::MoveCommand> {
        self.parts.mail.take_orders()
    }

    /// Returns whether tunnels are in flight to the successor.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.handover.is_busy()
    }

    /// Returns how many tunnels were given to the successor, or came from the predecessor.
    #[must_use]
    pub fn moved(&self) -> u64 {
        match &self.handover {
            Handover::None => 0,
            Handover::Leaving(leaving) => leaving.given(),
            Handover::Arriving(arriving) => arriving.continued(),
        }
    }

    /// Returns how many clients have not moved to the successor, by their reasons.
    #[must_use]
    pub fn stays(&self) -> BTreeMap<Stays, u64> {
        let mut stays = BTreeMap::new();
        if let Handover::Leaving(leaving) = &self.handover {
            let reasons = leaving.why_they_stay(&self.parts.records);
            reasons.for_each(|why| *stays.entry(why).or_default() += 1);
        }
        stays
    }

    /// Takes the pauses of the tunnels that were given to the successor.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "tunnels do not move"))]
    pub(crate) fn take_pauses(&mut self) -> Pauses {
        match &mut self.handover {
            Handover::Leaving(leaving) => leaving.take_pauses(),
            Handover::None | Handover::Arriving(_) => Pauses::default(),
        }
    }
}

impl<D: Driver> Handover<D> {
    /// Returns whether tunnels are in flight to the successor.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Self::Leaving(leaving) => leaving.is_busy(),
            Self::None | Self::Arriving(_) => false,
        }
    }

    /// Handles [`Event::Parked`](throng_io::Event::Parked).
    #[cold]
    pub(super) fn on_parked(&mut self, driver: &mut D, parts: &mut BalanceParts, id: ConnId) {
        if let Self::Leaving(leaving) = self {
            let now = millis(driver);
            leaving.on_parked(driver, parts, id, now);
        }
    }
}

fn millis(driver: &impl Driver) -> u64 {
    driver.now().0 / 1_000_000
}
