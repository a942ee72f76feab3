//! Output of secured connections: the engine's data, sealed when the driver below can take it, and
//! the driver's own records.

use std::io::IoSlice;

use throng_io::{Batch, ConnId, Driver, SendOutcome, SessionFailure};

use super::Tls;
use super::table::{SecureStage, flag};
use crate::alert::Alert;
use crate::record::{MAX_OVERHEAD, MAX_PLAINTEXT};
use crate::session::{Session, WarmKeys};

/// Plaintext sealed for one send of the driver below: the maximum that a slow reader has sealed.
const SEALED_AHEAD: usize = 4 * MAX_PLAINTEXT;

/// Maximum plaintext for [`Driver::try_send`], since it may have to be kept sealed.
const SEALED_AT_ONCE: usize = MAX_PLAINTEXT;

/// Segments that are gathered at a time.
const GATHERED: usize = 64;

impl<D: Driver> Tls<D> {
    /// Sends the engine's batch.
    pub(super) fn send_secured(&mut self, id: ConnId, batch: Box<Batch>) -> SendOutcome {
        // Returns the batch unchanged if the connection is gone.
        let Some(conn) = self.table.conn(id) else { return SendOutcome::Done(batch) };
        if conn.flags & (flag::BUSY | flag::CLOSING | flag::CONNECTING) != 0 {
            return self.send_busy(id, batch);
        }
        match self.seal_and_send(id, batch, SEALED_AHEAD) {
            Some(batch) => SendOutcome::Done(batch),
            None => SendOutcome::Pending,
        }
    }

    /// Sends the engine's batch on a connection that may have other output to send first.
    #[inline(never)]
    fn send_busy(&mut self, id: ConnId, mut batch: Box<Batch>) -> SendOutcome {
        let Some((conn, busy)) = self.table.conn_and_busy(id) else {
            return SendOutcome::Done(batch);
        };
        let (has_keys, waits_for_them) = match conn.stage {
            SecureStage::Established(_) => (true, false),
            SecureStage::Begin(_) | SecureStage::Handshake(..) => {
                (false, conn.has(flag::CONNECTING))
            }
            SecureStage::Ended(_) => (false, false),
        };
        if conn.has(flag::CLOSING) || !has_keys && !waits_for_them {
            return SendOutcome::Done(batch);
        }
        // A record of the driver's own may have to leave first.
        if waits_for_them || busy.is_some_and(|busy| busy.in_flight) {
            let Self { inner, scratch, lending, .. } = self;
            batch.own(Self::lent_now(inner, scratch, lending));
            let Some((_, busy)) = self.table.make_busy(id) else {
                return SendOutcome::Done(batch);
            };
            busy.batch = Some(batch);
            return SendOutcome::Pending;
        }
        match self.seal_and_send_rest(id, batch, SEALED_AHEAD) {
            Some(batch) => SendOutcome::Done(batch),
            None => SendOutcome::Pending,
        }
    }

    /// Seals and sends bytes at once. Records that the driver below does not take stay in flight
    /// there, like the driver's own records, and the engine's next batch waits for them.
    pub(super) fn try_send_secured(&mut self, id: ConnId, bytes: &[u8]) -> usize {
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return 0 };
        let in_flight = busy.is_some_and(|busy| busy.in_flight);
        if in_flight || conn.has(flag::CLOSING | flag::CLOSE_SENT) || bytes.len() > SEALED_AT_ONCE {
            return 0;
        }
        let SecureStage::Established(session) = &mut conn.stage else { return 0 };
        let mut cipher = self.spare.take().unwrap_or_default();
        let warm = self.warm.keys(id);
        if cipher.append(|out| session.seal_contiguous(bytes, warm, out)).is_err() {
            self.keep_spare(cipher);
            self.fail_to_seal(id);
            return 0;
        }
        self.send_cipher(id, cipher);
        bytes.len()
    }

    /// Seals and sends a batch until the driver below takes no more; returns the batch if all of it
    /// has left, or if the rest cannot.
    #[inline(always)]
    fn seal_and_send(
        &mut self,
        id: ConnId,
        mut batch: Box<Batch>,
        most: usize,
    ) -> Option<Box<Batch>> {
        let Some(conn) = self.table.conn(id) else { return Some(batch) };
        let SecureStage::Established(session) = &mut conn.stage else { return Some(batch) };
        let keys = self.warm.keys(id);
        while !batch.is_empty() {
            let mut cipher = self.spare.take().unwrap_or_default();
            // Nearly every batch lies in one piece, in its own memory.
            let sealed = if let Some(bytes) = batch.plain() {
                seal_piece(session, bytes, most, keys, &mut cipher)
            } else {
                let lent = Self::lent_now(&mut self.inner, &mut self.scratch, &self.lending);
                seal(session, &batch, lent, most, keys, &mut cipher)
            };
            let Ok(sealed) = sealed else {
                self.fail_to_seal(id);
                break;
            };
            match self.inner.send(id, cipher) {
                SendOutcome::Done(mut cipher) => {
                    // It may hold records that a closed connection did not take.
                    cipher.clear();
                    self.spare = Some(cipher);
                    batch.advance(sealed);
                }
                SendOutcome::Pending => {
                    self.keep_sealed(id, batch, sealed);
                    return None;
                }
            }
        }
        Some(batch)
    }

    /// Does the same as [`Self::seal_and_send`] with a batch that had to wait.
    #[inline(never)]
    pub(super) fn seal_and_send_rest(
        &mut self,
        id: ConnId,
        batch: Box<Batch>,
        most: usize,
    ) -> Option<Box<Batch>> {
        self.seal_and_send(id, batch, most)
    }

    /// Keeps a batch with `sealed` bytes in flight below.
    #[inline(never)]
    fn keep_sealed(&mut self, id: ConnId, mut batch: Box<Batch>, sealed: usize) {
        batch.own(Self::lent_now(&mut self.inner, &mut self.scratch, &self.lending));
        if let Some((_, busy)) = self.table.make_busy(id) {
            (busy.in_flight, busy.sealed, busy.batch) = (true, sealed, Some(batch));
        }
    }

    /// Handles the end of a send below. Returns the engine's batch once it is complete, or if the
    /// connection has closed.
    pub(super) fn on_sent(&mut self, id: ConnId, cipher: Box<Batch>) -> Option<Box<Batch>> {
        let (_, busy) = self.table.make_busy(id)?;
        busy.in_flight = false;
        let batch = busy.batch.take();
        if !cipher.is_empty() {
            // The connection has closed. No byte that may not have left counts as sent.
            return batch;
        }
        let sealed = std::mem::take(&mut busy.sealed);
        self.keep_spare(cipher);
        let batch = batch.map(|mut batch| {
            batch.advance(sealed);
            batch
        });
        self.send_due(id, batch)
    }

    /// Sends what waits for the end of a send: first the driver's own records, then the engine's
    /// batch.
    fn send_due(&mut self, id: ConnId, batch: Option<Box<Batch>>) -> Option<Box<Batch>> {
        let (conn, busy) = self.table.make_busy(id)?;
        let mut control = std::mem::take(&mut busy.control);
        if conn.has(flag::CLOSING) {
            // Nothing more leaves, except what a close waits for.
            if busy.close {
                self.continue_closing(id, &control);
            }
            return batch;
        }
        let is_open = !conn.has(flag::CLOSE_SENT);
        let before = control.len();
        if let SecureStage::Established(session) = &mut conn.stage
            && is_open
            && session.seal_reply(&mut control).is_err()
        {
            // The start of a record may be in the kept input.
            control.truncate(before);
            self.fail_to_seal(id);
        }
        if !control.is_empty() && !self.send_records(id, &control) {
            let (_, busy) = self.table.make_busy(id)?;
            return match batch {
                Some(batch) if batch.is_empty() => Some(batch),
                batch => {
                    busy.batch = batch;
                    None
                }
            };
        }
        let (conn, busy) = self.table.make_busy(id)?;
        let sent = match batch {
            Some(batch) if batch.is_empty() => Some(batch),
            // A message of the handshake has left: there are no keys yet, and the batch is sent
            // when they are there.
            Some(batch) if conn.stage.handshake_peer().is_some() => {
                busy.batch = Some(batch);
                None
            }
            Some(batch) => Some(self.seal_and_send_rest(id, batch, MAX_PLAINTEXT)?),
            None => None,
        };
        let (conn, busy) = self.table.make_busy(id)?;
        if std::mem::take(&mut busy.finish) && !conn.has(flag::CLOSING) {
            self.inner.finish(id);
        }
        self.table.settle(id);
        sent
    }

    /// Keeps the memory of a batch for the next records. It may hold records that a closed
    /// connection did not take.
    fn keep_spare(&mut self, mut batch: Box<Batch>) {
        batch.clear();
        self.spare.get_or_insert(batch);
    }

    /// Sends sealed records. Returns whether all of them have left.
    pub(super) fn send_records(&mut self, id: ConnId, records: &[u8]) -> bool {
        // Not in the memory for data, which is large: these records may wait for long.
        let mut cipher = Box::<Batch>::default();
        cipher.append(|out| out.extend_from_slice(records));
        self.send_cipher(id, cipher)
    }

    /// Sends sealed records that the engine does not know of. Returns whether all of them have
    /// left.
    fn send_cipher(&mut self, id: ConnId, cipher: Box<Batch>) -> bool {
        match self.inner.send(id, cipher) {
            SendOutcome::Done(cipher) => {
                self.keep_spare(cipher);
                true
            }
            SendOutcome::Pending => {
                if let Some((_, busy)) = self.table.make_busy(id) {
                    busy.in_flight = true;
                }
                false
            }
        }
    }

    /// Sends the driver's own records, after the send in flight if there is one.
    pub(super) fn send_control(&mut self, id: ConnId, records: &[u8]) {
        if records.is_empty() {
            return;
        }
        match self.table.conn_and_busy(id) {
            Some((_, Some(busy))) if busy.in_flight => busy.control.extend_from_slice(records),
            Some((conn, _)) if !conn.has(flag::CLOSING) => {
                self.send_records(id, records);
            }
            _ => {}
        }
    }

    /// Answers an opened record. If a send is in flight, the answer waits for its end, so that at
    /// most one answer is owed.
    pub(super) fn send_reply(&mut self, id: ConnId) {
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return };
        if busy.is_some_and(|busy| busy.in_flight) || conn.has(flag::CLOSE_SENT | flag::CLOSING) {
            return;
        }
        let SecureStage::Established(session) = &mut conn.stage else { return };
        let mut out = Vec::new();
        match session.seal_reply(&mut out) {
            Ok(()) => self.send_control(id, &out),
            Err(_) => self.fail_to_seal(id),
        }
    }

    /// Ends a session whose keys have reached their limit.
    #[cold]
    fn fail_to_seal(&mut self, id: ConnId) {
        self.count_session_failure(id, SessionFailure::Internal);
        self.finish_input(id, flag::TRUNCATED);
        self.end_stage_with(id, Some(SessionFailure::Internal));
    }

    /// Sends an alert.
    pub(super) fn send_alert(&mut self, id: ConnId, alert: Alert) {
        let Some(conn) = self.table.conn(id) else { return };
        if conn.has(flag::CLOSE_SENT) {
            return;
        }
        let SecureStage::Established(session) = &mut conn.stage else { return };
        let mut out = Vec::new();
        if session.seal_alert(alert, &mut out).is_ok() {
            self.send_control(id, &out);
        }
    }
}

/// Returns how many of the `sealed` bytes of plaintext are in records with `unsent` unsent bytes.
pub(super) fn plain_unsent(sealed: usize, unsent: usize) -> usize {
    // All records are full except possibly the last.
    let last = match sealed % MAX_PLAINTEXT {
        0 => MAX_PLAINTEXT.min(sealed),
        last => last,
    };
    let Some(before) = unsent.checked_sub(last + MAX_OVERHEAD) else { return unsent.min(last) };
    let record = MAX_PLAINTEXT + MAX_OVERHEAD;
    let full = before / record * MAX_PLAINTEXT + (before % record).min(MAX_PLAINTEXT);
    (last + full).min(sealed)
}

/// Seals up to `most` of the bytes; returns how many.
#[inline(always)]
fn seal_piece(
    session: &mut Session,
    bytes: &[u8],
    most: usize,
    warm: &mut WarmKeys,
    cipher: &mut Batch,
) -> Result<usize, Alert> {
    let bytes = &bytes[..bytes.len().min(most)];
    cipher.append(|out| session.seal_contiguous(bytes, warm, out))?;
    Ok(bytes.len())
}

/// Seals up to `most` bytes from the front of a batch; returns how many. A function of its own,
/// since its list of segments is long.
#[inline(never)]
fn seal(
    session: &mut Session,
    batch: &Batch,
    lent: &[u8],
    most: usize,
    warm: &mut WarmKeys,
    cipher: &mut Batch,
) -> Result<usize, Alert> {
    if let Some(bytes) = batch.single(lent) {
        return seal_piece(session, bytes, most, warm, cipher);
    }
    let mut slices = [IoSlice::new(&[]); GATHERED];
    let filled = batch.gather(lent, &mut slices);
    let mut left = most;
    let pieces = slices[..filled].iter().map_while(|slice| {
        let piece = &slice[..slice.len().min(left)];
        left -= piece.len();
        (!piece.is_empty()).then_some(piece)
    });
    cipher.append(|out| session.seal(pieces, warm, out))?;
    Ok(most - left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsent_plaintext_is_never_more_than_records_that_were_not_delivered() {
        for sealed in [1, 100, 16_383, 16_384, 16_385, 40_000, 4 * MAX_PLAINTEXT] {
            for overhead in [22, MAX_OVERHEAD] {
                let records = sealed.div_ceil(MAX_PLAINTEXT);
                let all = sealed + records * overhead;
                let mut before = sealed;
                for unsent in (0..=all).rev() {
                    let delivered = (all - unsent) / (MAX_PLAINTEXT + overhead) * MAX_PLAINTEXT;
                    let delivered = if unsent == 0 { sealed } else { delivered };
                    let plain = plain_unsent(sealed, unsent);
                    assert!(plain + delivered <= sealed, "{unsent} of {all}: {plain}, {delivered}");
                    assert!(plain <= before, "it grew");
                    before = plain;
                }
                assert_eq!(before, 0);
            }
        }
    }
}
