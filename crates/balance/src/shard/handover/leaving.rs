//! The predecessor's side: parks tunnels, and offers them in batches.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use throng_carry::link::{Giver, GiverStep, LinkFault, LinkMessage, MAX_RECORDS};
use throng_carry::{Carried, Secret};
use throng_io::{ConnId, Driver, Instant};

use super::record::{Moving, TunnelRecord, repair};
use crate::backend::{Backend, State};
use crate::guards::TunnelGuard;
use crate::moving::{Pauses, Stays};
use crate::shard::BalanceParts;
use crate::shard::records::{BalanceRecord, BalanceRecords, Phase};

/// A tunnel that leaves: what moves, and its count here until it is given, so that picks stay fair.
struct Departing<R> {
    moving: Moving<R>,
    count: TunnelGuard,
    /// When it was parked.
    since: Instant,
}

/// A tunnel whose driver was asked to park both connections.
struct Parking {
    tunnel: TunnelRecord,
    count: TunnelGuard,
    since: Instant,
    /// Whether the driver has parked the client's connection, and the backend's.
    is_parked: [bool; 2],
}

/// A walk over the tunnels of a shard, for a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Tunnels that are being parked.
    pub parked: usize,
    /// Tunnels that the driver refuses to park now.
    pub refused: usize,
}

/// The tunnels of a shard that leave.
pub(in crate::shard) struct Leaving<D: Driver> {
    giver: Giver<Departing<D::Record>>,
    /// The tunnels of the next batch.
    parking: Vec<Parking>,
    /// Clients that were parked although the backend's connection could not be, and that
    /// connection.
    halves: Vec<(ConnId, ConnId)>,
    encode: fn(&Departing<D::Record>) -> Secret,
    /// The slot at which the search for tunnels goes on.
    cursor: usize,
    /// Tunnels that were given.
    given: u64,
    /// The times for which they have rested.
    pauses: Pauses,
    /// Tunnels that the successor has refused: they are not offered again.
    refused: HashSet<ConnId>,
}

impl<D: Driver> Leaving<D>
where
    D::Record: Carried,
{
    /// Creates the side of a shard whose tunnels can be written.
    pub(in crate::shard) fn new() -> Self {
        Self {
            giver: Giver::default(),
            parking: Vec::new(),
            halves: Vec::new(),
            encode: |tunnel| throng_carry::freeze(&tunnel.moving),
            cursor: 0,
            given: 0,
            pauses: Pauses::default(),
            refused: HashSet::new(),
        }
    }
}

impl<D: Driver> Leaving<D> {
    /// Returns whether more tunnels can be parked for the next batch.
    fn has_room(&self) -> bool {
        self.giver.is_ready() && self.parking.len() < MAX_RECORDS && self.halves.is_empty()
    }

    /// Returns whether tunnels are on their way.
    pub(in crate::shard) fn is_busy(&self) -> bool {
        self.giver.is_busy() || !self.parking.is_empty() || !self.halves.is_empty()
    }

    /// Returns how many tunnels were given.
    pub(in crate::shard) fn given(&self) -> u64 {
        self.given
    }

    /// Takes the pauses of the tunnels that were given.
    pub(in crate::shard) fn take_pauses(&mut self) -> Pauses {
        std::mem::take(&mut self.pauses)
    }

    /// Returns for each client that is still here why it has not moved.
    pub(in crate::shard) fn why_they_stay(
        &self,
        records: &BalanceRecords,
    ) -> impl Iterator<Item = Stays> {
        records.iter().filter_map(|(id, record)| match record {
            BalanceRecord::Vacant | BalanceRecord::Upstream(_) => None,
            BalanceRecord::Closing => Some(Stays::Closing),
            BalanceRecord::Client(client) => Some(match client.phase {
                Phase::Proxy | Phase::Head => Stays::Idle,
                Phase::Queued | Phase::Exchange => Stays::Request,
                Phase::Leaving | Phase::Lingering => Stays::Closing,
            }),
            BalanceRecord::Tunnel(side) if side.is_backend() => None,
            BalanceRecord::Tunnel(_) if self.refused.contains(&id) => Some(Stays::Refused),
            BalanceRecord::Tunnel(side) => Some(match records.tunnel_at(side.peer()) {
                Some(other) if side.may_move() && other.may_move() => {
                    let takes_clients = |it: &Arc<Backend>| it.state() == State::Up;
                    match other.backend().is_some_and(takes_clients) {
                        true => Stays::Late,
                        false => Stays::Backend,
                    }
                }
                _ => Stays::Ending,
            }),
        })
    }

    /// Parks tunnels until a batch is full, or the end of the table is reached, behind which the
    /// next walk begins again.
    pub(in crate::shard) fn fill(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        now: u64,
    ) -> Walk {
        let mut walk = Walk::default();
        while self.has_room() {
            let Some((client, upstream)) = self.next_tunnel(&parts.records) else { break };
            match self.park(driver, parts, (client, upstream), now) {
                true => walk.parked += 1,
                false => walk.refused += 1,
            }
        }
        walk
    }

    /// Returns the next tunnel that may move; `None` at the end of the table.
    fn next_tunnel(&mut self, records: &BalanceRecords) -> Option<(ConnId, ConnId)> {
        while let Some((id, _)) = records.at(self.cursor) {
            self.cursor += 1;
            if let Some(upstream) = records.movable_tunnel(id)
                && !self.refused.contains(&id)
            {
                return Some((id, upstream));
            }
        }
        self.cursor = 0;
        None
    }

    /// Parks a tunnel, at the time `now` in milliseconds of the clock that both processes have. It
    /// is called at the end of a turn, when nothing is lent and no action waits. Returns false if
    /// the driver refuses.
    fn park(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        (client, upstream): (ConnId, ConnId),
        now: u64,
    ) -> bool {
        if driver.park(client).is_err() {
            return false;
        }
        if driver.park(upstream).is_err() {
            // The client rests until `on_parked`; nothing may come for it until then.
            driver.pause(upstream);
            self.halves.push((client, upstream));
            return false;
        }
        let Some((tunnel, count)) = TunnelRecord::freeze(parts, client, upstream, now) else {
            debug_assert!(false, "`movable_tunnel` has found both");
            return false;
        };
        let since = driver.clock().read();
        self.parking.push(Parking { tunnel, count, since, is_parked: [false; 2] });
        true
    }

    /// Handles [`Event::Parked`](throng_io::Event::Parked).
    pub(in crate::shard) fn on_parked(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        id: ConnId,
        now: u64,
    ) {
        if let Some(at) = self.halves.iter().position(|(client, _)| *client == id) {
            let (client, upstream) = self.halves.swap_remove(at);
            if let Some(record) = driver.take_record(client) {
                driver.unpark(client, record);
            }
            return repair(driver, parts, client, upstream);
        }
        for Parking { tunnel, is_parked, .. } in &mut self.parking {
            is_parked[0] |= tunnel.client() == id;
            is_parked[1] |= tunnel.upstream() == id;
        }
        self.return_parked(driver, parts, now);
    }

    /// Continues the tunnels that were parked for a batch which is not offered any longer. Those
    /// whose connections are not parked yet follow with their events.
    fn return_parked(&mut self, driver: &mut D, parts: &mut BalanceParts, now: u64) {
        if !self.giver.is_stopped() {
            return;
        }
        let (parked, others) =
            std::mem::take(&mut self.parking).into_iter().partition(Parking::is_complete);
        self.parking = others;
        for Departing { moving, count, since: _ } in take_records(driver, parked) {
            moving.enter(driver, parts, count, now);
        }
    }

    /// Offers the parked tunnels, once all of them are parked. Returns the message, and duplicates
    /// of the descriptors to be sent before it. If one cannot be duplicated, the move stops.
    pub(in crate::shard) fn offer<T>(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        mut duplicate: impl FnMut(&D::Descriptor) -> io::Result<T>,
        now: u64,
    ) -> Option<(LinkMessage, Vec<T>)> {
        let is_complete = self.parking.iter().all(Parking::is_complete);
        if self.parking.is_empty() || !is_complete || !self.giver.is_ready() {
            return None;
        }
        let connections = |it: &Parking| [it.tunnel.client(), it.tunnel.upstream()];
        let connections = self.parking.iter().flat_map(connections);
        let descriptors = connections
            .map(|id| duplicate(driver.descriptor(id).ok_or(io::ErrorKind::NotConnected)?));
        let Ok(descriptors) = descriptors.collect::<io::Result<Vec<T>>>() else {
            // Nothing is under way, so there is no message.
            let _ = self.giver.stop(now);
            self.return_parked(driver, parts, now);
            return None;
        };
        let tunnels = take_records(driver, std::mem::take(&mut self.parking));
        let keyed = |it: Departing<D::Record>| (it.moving.client().to_bits(), it);
        let batch = tunnels.into_iter().map(keyed).collect();
        let message = self.giver.offer(batch, self.encode, now).ok()?;
        Some((message, descriptors))
    }

    /// Handles a message of the successor; returns what must be sent.
    pub(in crate::shard) fn on_message(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        message: LinkMessage,
        now: u64,
    ) -> Result<Vec<LinkMessage>, LinkFault> {
        let steps = self.giver.handle_message(message, now)?;
        Ok(steps.into_iter().filter_map(|step| self.run(driver, parts, step, now)).collect())
    }

    /// Handles that YOURS has left the queue of the link.
    pub(in crate::shard) fn on_yours_left(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        now: u64,
    ) {
        if let Some(step) = self.giver.handle_yours_left() {
            self.run(driver, parts, step, now);
        }
    }

    /// Handles the end of the successor; see [`Giver::handle_death`].
    pub(in crate::shard) fn on_death(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        has_yours_left: bool,
        now: u64,
    ) {
        let step = self.giver.handle_death(has_yours_left);
        self.return_parked(driver, parts, now);
        if let Some(step) = step {
            self.run(driver, parts, step, now);
        }
    }

    /// Stops the move, for an operator. Returns a message to send.
    pub(in crate::shard) fn stop(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        now: u64,
    ) -> Option<LinkMessage> {
        let step = self.giver.stop(now);
        self.return_parked(driver, parts, now);
        self.run(driver, parts, step?, now)
    }

    /// Handles the end of the link. The successor may live: the caller ends it, and reports that
    /// with [`on_death`](Self::on_death).
    ///
    /// Returns whether a batch waits for that.
    pub(in crate::shard) fn on_link_end(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        now: u64,
    ) -> bool {
        // It is reported once, and may have been before.
        let _ = self.giver.handle_link_end();
        self.return_parked(driver, parts, now);
        self.giver.is_busy()
    }

    /// Acts on the time. Returns a message to send, and whether the successor has not answered in
    /// time.
    pub(in crate::shard) fn expire(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        now: u64,
    ) -> (Option<LinkMessage>, bool) {
        let Some(step) = self.giver.expire(now) else { return (None, false) };
        let is_stalled = matches!(step, GiverStep::Stalled);
        self.return_parked(driver, parts, now);
        (self.run(driver, parts, step, now), is_stalled)
    }

    /// Does a step; returns its message.
    fn run(
        &mut self,
        driver: &mut D,
        parts: &mut BalanceParts,
        step: GiverStep<Departing<D::Record>>,
        now: u64,
    ) -> Option<LinkMessage> {
        match step {
            GiverStep::Send(message) => return Some(message),
            GiverStep::Return(tunnels) => {
                for (_, Departing { moving, count, since: _ }) in tunnels {
                    self.refused.insert(moving.client());
                    moving.enter(driver, parts, count, now);
                }
            }
            GiverStep::Surrender(tunnels) => {
                self.given += tunnels.len() as u64;
                let given_at = driver.clock().read();
                for (_, Departing { moving, count, since }) in tunnels {
                    self.pauses.note(given_at.since(since));
                    let client = moving.client();
                    driver.surrender(client);
                    driver.surrender(moving.upstream());
                    // The keys are wiped, and the counts end here.
                    drop((moving, count));
                    parts.clients.release(client);
                    parts.tunnels.end_places(client);
                }
            }
            // The control of the upgrade ends the successor, and `on_death` follows.
            GiverStep::Stalled => {}
        }
        None
    }
}

impl Parking {
    fn is_complete(&self) -> bool {
        self.is_parked == [true; 2]
    }
}

/// Takes the records of tunnels whose connections are parked.
fn take_records<D: Driver>(driver: &mut D, parked: Vec<Parking>) -> Vec<Departing<D::Record>> {
    let mut taken = Vec::with_capacity(parked.len());
    for Parking { tunnel, count, since, is_parked: _ } in parked {
        let client = driver.take_record(tunnel.client());
        let upstream = driver.take_record(tunnel.upstream());
        // They were reported as parked, and are taken here only.
        debug_assert!(client.is_some() && upstream.is_some(), "C14: a record is missing");
        if let (Some(client), Some(upstream)) = (client, upstream) {
            taken.push(Departing { moving: Moving::new(tunnel, client, upstream), count, since });
        }
    }
    taken
}
