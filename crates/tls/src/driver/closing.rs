//! Ends of secured connections by our side.
//!
//! TCP leaves the rest of a close to the kernel, which delivers what it has taken, and then the end
//! of the stream. What ends a session, a close_notify or another alert (RFC 8446 section 6), is not
//! with the kernel yet if the socket is full, and without it the peer would have to take all that
//! it got for cut. So the close below waits until it has left, for a limited time.

use std::collections::VecDeque;
use std::time::Duration;

use throng_io::{ConnId, Driver, Instant, TlsFailure};

use super::Tls;
use super::table::flag;
use crate::alert::Alert;

/// The time for it: as long as a peer that still sends is listened to after the end of our stream.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections that were closed and wait, each with the end of its time: the first is due first.
/// Some have closed since.
#[derive(Default)]
pub(super) struct Closing(VecDeque<(Instant, ConnId)>);

impl<D: Driver> Tls<D> {
    /// Ends our side of the stream: close_notify, then the end of the stream below.
    pub(super) fn finish_secured(&mut self, id: ConnId) {
        self.send_alert(id, Alert::CLOSE_NOTIFY);
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return };
        conn.flags |= flag::CLOSE_SENT;
        match busy {
            Some(busy) if busy.in_flight => busy.finish = true,
            _ => self.inner.finish(id),
        }
    }

    /// Closes a connection, behind a close_notify if its session is complete.
    pub(super) fn close_secured(&mut self, id: ConnId) {
        self.count_failure(id, TlsFailure::GivenUp);
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return };
        if conn.has(flag::CLOSING) {
            return;
        }
        // What has not left of a batch is lost, which must not look like an end in order. Before
        // the end of the handshake there is nothing that could look complete.
        let batch = busy.and_then(|busy| Some((busy.batch.as_ref()?, busy.sealed)));
        let is_cut =
            batch.is_some_and(|(it, sealed)| sealed < it.len() || self.inner.unsent(id) > 0);
        let is_orderly = !is_cut && conn.stage.handshake_peer().is_none();
        if is_orderly {
            self.send_alert(id, Alert::CLOSE_NOTIFY);
        }
        self.end_stage(id);
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return };
        conn.flags |= flag::CLOSING;
        match busy {
            Some(busy) if is_orderly && busy.in_flight => {
                busy.close = true;
                busy.input = Vec::new();
                self.closing.0.push_back((self.inner.now().after(CLOSE_TIMEOUT), id));
            }
            _ => self.inner.close(id),
        }
    }

    /// Resets a connection, unless it was closed and waits for nothing.
    pub(super) fn abort_secured(&mut self, id: ConnId) {
        self.count_failure(id, TlsFailure::GivenUp);
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return };
        let was_waiting = busy.is_some_and(|busy| std::mem::take(&mut busy.close));
        if conn.has(flag::CLOSING) && !was_waiting {
            return;
        }
        conn.flags |= flag::CLOSING;
        self.end_stage(id);
        self.inner.abort(id);
    }

    /// Returns whether a connection was closed and waits for its last records to leave.
    pub(super) fn is_closing_secured(&self, id: ConnId) -> bool {
        self.table.busy_ref(id).is_some_and(|busy| busy.close)
    }

    /// Continues a connection that was closed when a send has ended: with the records that are
    /// left, then the close below.
    pub(super) fn continue_closing(&mut self, id: ConnId, records: &[u8]) {
        if records.is_empty() || self.send_records(id, records) {
            self.close_below(id);
        }
    }

    /// Closes a connection that waits, without waiting any longer.
    pub(super) fn close_below(&mut self, id: ConnId) {
        let Some((_, Some(busy))) = self.table.conn_and_busy(id) else { return };
        if std::mem::take(&mut busy.close) {
            self.table.settle(id);
            self.inner.close(id);
        }
    }

    /// Closes those that have waited for too long; returns when the next one will have.
    pub(super) fn expire_closing(&mut self, now: Instant) -> Option<Instant> {
        while let Some((due, id)) = self.closing.0.front().copied() {
            if due > now && self.is_closing_secured(id) {
                return Some(due);
            }
            self.close_below(id);
            self.closing.0.pop_front();
        }
        None
    }
}
