//! Forwards bytes from one side of a tunnel to the other, straight from the kernel's buffer.

use throng_io::{Batch, ConnId, Driver, Segment, SendOutcome};

use super::{Tunnels, encode};
use crate::shard::actions::{ActionQueue, ConnAction};
use crate::shard::records::BalanceRecords;

/// The size up to which data is copied: copying is then cheaper than a send from lent memory.
const COPIED: usize = 4 << 10;

/// Returns a batch of `bytes`, the start of the lent memory.
#[inline]
pub(in crate::shard) fn load(mut batch: Box<Batch>, bytes: &[u8]) -> Box<Batch> {
    if bytes.len() <= COPIED {
        batch.append(|out| out.extend_from_slice(bytes));
    } else {
        batch.push(Segment::Lent(0..bytes.len()));
    }
    batch
}

/// The data of a side to send now, if it was not queued.
pub(in crate::shard) enum Forward {
    More(Option<Box<Batch>>),
    /// The balancer's Close frame follows the batch.
    Last(Option<Box<Batch>>),
}

impl Tunnels {
    /// Handles bytes of a side when a queue or a Close frame stands between it and the other side.
    pub(in crate::shard) fn received(
        &mut self,
        id: ConnId,
        mut bytes: &[u8],
        records: &mut BalanceRecords,
        actions: &mut ActionQueue,
    ) -> Option<Forward> {
        let tunnel = records.tunnel(id)?;
        tunnel.end_silence();
        let mut close = None;
        if tunnel.is_cut_due() {
            let end = tunnel.boundary().advance_to_boundary(bytes);
            if tunnel.boundary().is_at_boundary() {
                bytes = &bytes[..end];
                close = Some(tunnel.close_code());
            }
        } else {
            tunnel.boundary().advance(bytes);
        }
        // Sent only with the last byte: the end of the stream must not overtake the rest.
        if tunnel.is_closed() && tunnel.has_said_close() {
            actions.push(ConnAction::Answered(id));
        }
        let peer = tunnel.peer();
        if tunnel.is_dropped() || peer == id {
            return None;
        }
        let close = close.filter(|_| !tunnel.boundary().saw_close());
        let mut batch = match tunnel.is_paused() {
            true => {
                self.queue(peer, |out| out.extend_from_slice(bytes));
                None
            }
            false => Some(load(actions.batch(), bytes)),
        };
        let Some(code) = close else { return Some(Forward::More(batch)) };
        match &mut batch {
            Some(batch) => batch.append(|out| encode(code, out)),
            None => self.queue(peer, |out| encode(code, out)),
        }
        Some(Forward::Last(batch))
    }

    /// Queues bytes for a side after the send in flight.
    fn queue(&mut self, to: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        self.queued.entry(to).or_default().append(write);
    }

    /// Sends bytes of one side to the other. Until all of them are sent, their source is not read.
    #[inline]
    pub(in crate::shard) fn send<D: Driver>(
        driver: &mut D,
        (from, to): (ConnId, ConnId),
        batch: Box<Batch>,
        records: &mut BalanceRecords,
        actions: &mut ActionQueue,
    ) {
        match driver.send(to, batch) {
            SendOutcome::Done(batch) => actions.reuse(batch),
            SendOutcome::Pending => hold_back(driver, from, to, records),
        }
    }

    /// Sends bytes of the balancer to a side: at once, or after the send in flight.
    pub(in crate::shard) fn send_or_queue<D: Driver>(
        &mut self,
        driver: &mut D,
        to: ConnId,
        records: &mut BalanceRecords,
        actions: &mut ActionQueue,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let Some(tunnel) = records.tunnel(to) else { return };
        if tunnel.is_sending() {
            return self.queue(to, write);
        }
        let peer = tunnel.peer();
        let mut batch = actions.batch();
        batch.append(write);
        Self::send(driver, (peer, to), batch, records, actions);
    }

    /// Sends the first batch of a side, or queues it behind the send in flight.
    pub(in crate::shard) fn send_first<D: Driver>(
        &mut self,
        driver: &mut D,
        (from, to): (ConnId, ConnId),
        batch: Box<Batch>,
        records: &mut BalanceRecords,
        actions: &mut ActionQueue,
    ) {
        if !records.tunnel(to).is_some_and(|to| to.is_sending()) {
            return Self::send(driver, (from, to), batch, records, actions);
        }
        self.queued.insert(to, batch);
    }

    /// Handles the end of a send: starts the next one, or resumes the other side. Returns whether
    /// nothing more is in flight to the side.
    pub(in crate::shard) fn sent<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        records: &mut BalanceRecords,
        actions: &mut ActionQueue,
    ) -> bool {
        let queued = self.queued.remove(&id);
        let Some(tunnel) = records.tunnel(id) else { return false };
        if let Some(batch) = queued {
            match driver.send(id, batch) {
                SendOutcome::Done(batch) => actions.reuse(batch),
                SendOutcome::Pending => return false,
            }
        }
        let peer = tunnel.peer();
        if tunnel.end_send() {
            driver.finish(id);
        }
        if peer != id && records.tunnel(peer).is_some_and(|source| source.resume()) {
            driver.resume(peer);
        }
        true
    }
}

/// Stops reading the source of the send in flight.
#[cold]
fn hold_back<D: Driver>(driver: &mut D, from: ConnId, to: ConnId, records: &mut BalanceRecords) {
    if let Some(tunnel) = records.tunnel(to) {
        tunnel.begin_send();
    }
    // A client without a backend is its own other side: its answer to the Close frame must be read.
    if from != to
        && let Some(tunnel) = records.tunnel(from)
    {
        tunnel.pause();
        driver.pause(from);
    }
}
