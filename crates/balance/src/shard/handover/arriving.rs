//! The successor's side: enters tunnels in silence, and continues them once they are its own.

use std::sync::Arc;

use throng_carry::Carried;
use throng_carry::link::{LinkFault, LinkMessage, LinkRecord, Taker, TakerStep};
use throng_io::{ConnId, Driver, Slots};

use super::record::Moving;
use crate::backend::{Backend, State};
use crate::guards::TunnelGuard;
use crate::shard::BalanceParts;

/// A tunnel that was entered in silence.
struct Entered<R> {
    moving: Moving<R>,
    backend: Arc<Backend>,
}

/// The tunnels of a shard that arrive.
pub(in crate::shard) struct Arriving<D: Driver> {
    taker: Taker<Entered<D::Record>>,
    /// The slots of the predecessor, until it has ended, and the number of this shard in ids.
    slots: Slots,
    shard: u16,
    /// Tunnels that were continued here.
    continued: u64,
}

impl<D: Driver> Arriving<D> {
    pub(in crate::shard) fn new(shard: u16, slots: Slots) -> Self {
        Self { taker: Taker::default(), slots, shard, continued: 0 }
    }

    /// Returns how many tunnels were continued here.
    pub(in crate::shard) fn continued(&self) -> u64 {
        self.continued
    }
}

impl<D: Driver> Arriving<D>
where
    D::Record: Carried,
{
    /// Handles a batch: `descriptors` are the client's and the backend's of each record, in order.
    pub(in crate::shard) fn on_batch(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        (number, records): (u64, Vec<LinkRecord>),
        descriptors: Vec<[D::Descriptor; 2]>,
        now: u64,
    ) -> Result<Option<LinkMessage>, LinkFault> {
        let (mut entered, mut refused) = (Vec::new(), Vec::new());
        let mut descriptors = descriptors.into_iter();
        for LinkRecord { id, state } in records {
            let tunnel = descriptors.next().and_then(|pair| {
                let moving: Moving<D::Record> = throng_carry::thaw(&state).ok()?;
                // A tunnel whose backend takes no clients here would be closed.
                let pools = &parts.rules.configuration().pools;
                let backend = pools.backend(moving.pool(), moving.backend())?;
                let backend = Arc::clone(backend);
                let is_wanted = moving.client().to_bits() == id && backend.state() == State::Up;
                let is_entered = is_wanted && enter(driver, &moving, pair);
                is_entered.then_some(Entered { moving, backend })
            });
            match tunnel {
                Some(tunnel) => entered.push((id, tunnel)),
                None => refused.push(id),
            }
        }
        match self.taker.handle_batch(number, entered, refused) {
            Ok(step) => Ok(self.run(driver, parts, step, now)),
            Err((fault, entered)) => {
                entered.iter().for_each(|(_, tunnel)| forget(driver, tunnel));
                Err(fault)
            }
        }
    }

    /// Handles YOURS, REVOKE or another message about a batch; returns the answer.
    pub(in crate::shard) fn on_message(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        message: LinkMessage,
        now: u64,
    ) -> Result<Option<LinkMessage>, LinkFault> {
        let step = match message {
            LinkMessage::Yours { number } => self.taker.handle_yours(number)?,
            LinkMessage::Revoke { number } => self.taker.handle_revoke(number)?,
            LinkMessage::Batch { .. } | LinkMessage::Taken { .. } | LinkMessage::Revoked { .. } => {
                return Err(LinkFault::WrongSide);
            }
        };
        Ok(step.and_then(|step| self.run(driver, parts, step, now)))
    }

    /// Handles the end of the predecessor: the batch under way is continued here, and the slots of
    /// all its other connections are free.
    pub(in crate::shard) fn on_death(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        now: u64,
    ) {
        if let Some(step) = self.taker.handle_death() {
            self.run(driver, parts, step, now);
        }
        let slots = std::mem::take(&mut self.slots);
        for (slot, generation) in (0..).zip(slots.generations) {
            driver.vacate(ConnId::new(self.shard, slot, generation));
        }
    }

    /// Does a step; returns its message.
    fn run(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        step: TakerStep<Entered<D::Record>>,
        now: u64,
    ) -> Option<LinkMessage> {
        match step {
            TakerStep::Send(message) => Some(message),
            TakerStep::Forget(tunnels, message) => {
                tunnels.iter().for_each(|(_, tunnel)| forget(driver, tunnel));
                Some(message)
            }
            TakerStep::Continue(tunnels) => {
                let count = tunnels.len() as u64;
                self.continued += count;
                parts.meters.count(|it| it.tunnels_taken_over += count);
                for (_, Entered { moving, backend }) in tunnels {
                    parts.clients.adopt(moving.client(), moving.counted(), moving.listener());
                    moving.enter(driver, parts, TunnelGuard::adopt(&backend), now);
                }
                None
            }
        }
    }
}

/// Enters both connections of a tunnel in silence, or neither.
fn enter<D: Driver>(
    driver: &mut D,
    moving: &Moving<D::Record>,
    [of_client, of_upstream]: [D::Descriptor; 2],
) -> bool {
    let (client, upstream) = (moving.client(), moving.upstream());
    if driver.adopt_at(client, of_client).is_err() {
        return false;
    }
    let is_entered = driver.adopt_at(upstream, of_upstream).is_ok();
    if !is_entered {
        driver.surrender(client);
    }
    is_entered
}

/// Closes the descriptors of a tunnel that was not continued.
fn forget<D: Driver>(driver: &mut D, tunnel: &Entered<D::Record>) {
    driver.surrender(tunnel.moving.client());
    driver.surrender(tunnel.moving.upstream());
}
