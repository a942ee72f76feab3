//! Closing secured connections from our side.
//!
//! With plain TCP, the kernel completes a close: it delivers the data that it has taken, and then
//! the end of the stream. The alert that ends a session, such as close_notify (RFC 8446 section 6),
//! has not reached the kernel if the socket is full, and without it the peer must treat all
//! received data as truncated. So the close below waits, for a limited time, until the alert has
//! left.

use std::collections::VecDeque;
use std::time::Duration;

use throng_io::{ConnId, Driver, Instant, TlsFailure};

use super::Tls;
use super::table::flag;
use crate::alert::Alert;

/// Maximum wait: as long as we still read from a peer after the end of our stream.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Closed connections that still wait, with their deadlines, the earliest first. Some may have
/// closed since.
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

    /// Closes a connection, after a close_notify if its session is complete.
    pub(super) fn close_secured(&mut self, id: ConnId) {
        self.count_failure(id, TlsFailure::GivenUp);
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return };
        if conn.has(flag::CLOSING) {
            return;
        }
        // The rest of a batch that has not left is lost, which must not look like an orderly end.
        // Before the end of the handshake nothing could look complete.
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

    /// Resets a connection, unless it was closed and nothing is pending.
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

    /// Returns whether a closed connection still waits for its last records to leave.
    pub(super) fn is_closing_secured(&self, id: ConnId) -> bool {
        self.table.busy_ref(id).is_some_and(|busy| busy.close)
    }

    /// Continues to close a connection after a send has ended: sends the remaining records, then
    /// closes it below.
    pub(super) fn continue_closing(&mut self, id: ConnId, records: &[u8]) {
        if records.is_empty() || self.send_records(id, records) {
            self.close_below(id);
        }
    }

    /// Closes a waiting connection at once.
    pub(super) fn close_below(&mut self, id: ConnId) {
        let Some((_, Some(busy))) = self.table.conn_and_busy(id) else { return };
        if std::mem::take(&mut busy.close) {
            self.table.settle(id);
            self.inner.close(id);
        }
    }

    /// Closes connections that have waited too long; returns the next deadline.
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
