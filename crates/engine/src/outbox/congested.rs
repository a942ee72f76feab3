//! Output of connections whose peer did not take all of it.

use throng_io::ConnId;

use crate::conn::record::Conn;
use crate::conn::stage::flag;
use crate::conn::timers::Tick;
use crate::conn::work_list::WorkList;
use crate::outbox::Outbox;
use crate::outbox::queue::Waiting;

/// Output of a connection that waits for its peer. Present while the driver holds a batch or
/// messages are in the per-message queue.
#[derive(Debug, Default)]
pub(super) struct Congested {
    /// Bytes that the driver held when it was given the batch.
    pub(super) in_flight: usize,
    /// Bytes it held at the last sweep, and when that last changed: progress of a slow reader.
    unsent: usize,
    progress: Option<Tick>,
    /// The first segment of the queue is a pong that was not sent yet; only while a batch is in
    /// flight.
    pub(super) pong_first: bool,
    /// The per-message queue; present while [`flag::WAITING`] is set.
    pub(super) waiting: Option<Box<Waiting>>,
}

impl Congested {
    pub(super) fn into_waiting(self) -> Option<Box<Waiting>> {
        self.waiting
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.bytes())
    }

    pub(super) fn waiting_kept(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.kept())
    }

    pub(super) fn waiting_memory(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.memory())
    }
}

impl Outbox {
    /// Returns the output that waits for this connection's peer, created if there is none.
    pub(super) fn congested_mut(&mut self, id: ConnId) -> &mut Congested {
        self.congested.entry(id).or_default()
    }

    /// Frees the record of a connection without waiting output.
    pub(super) fn shed(&mut self, conn: &Conn) {
        if !conn.has(flag::IN_FLIGHT | flag::WAITING) {
            self.congested.remove(&conn.id);
        }
    }

    /// Records that the kernel did not take all of a batch: the driver holds `len` bytes of it.
    pub(crate) fn record_in_flight(&mut self, conn: &mut Conn, len: usize, now: Tick) {
        conn.set(flag::IN_FLIGHT, true);
        self.in_flight.add(conn);
        let congested = self.congested_mut(conn.id);
        congested.in_flight = len;
        congested.unsent = len;
        congested.progress = Some(now);
        if let Some(waiting) = &mut congested.waiting {
            waiting.is_slow = true;
        }
    }

    /// Records that the batch has left.
    pub(crate) fn record_left(&mut self, conn: &mut Conn) {
        conn.set(flag::IN_FLIGHT, false);
        if let Some(congested) = self.congested.get_mut(&conn.id) {
            let waiting = congested.waiting.take();
            *congested = Congested { waiting, ..Congested::default() };
        }
        self.shed(conn);
    }

    /// Records that the driver still holds `unsent` bytes of the batch in flight. Returns the
    /// seconds since at least `enough` bytes of it have left.
    pub(crate) fn record_unsent(
        &mut self,
        conn: &Conn,
        unsent: usize,
        enough: usize,
        now: Tick,
    ) -> u16 {
        let congested = self.congested_mut(conn.id);
        let since = *congested.progress.get_or_insert(now);
        if congested.unsent.saturating_sub(unsent) >= enough.max(1) {
            congested.unsent = unsent;
            congested.progress = Some(now);
            return 0;
        }
        now.since(since)
    }

    /// Returns the list of batches in flight.
    pub(crate) fn in_flight(&mut self) -> &mut WorkList {
        &mut self.in_flight
    }

    /// Returns the connections of batches in flight.
    pub(crate) fn all_in_flight(&self) -> impl Iterator<Item = ConnId> {
        self.in_flight.iter()
    }

    /// Returns whether any batch is in flight.
    pub(crate) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Returns the number of connections with waiting output; for audits.
    pub(crate) fn congested_len(&self) -> usize {
        self.congested.len()
    }
}
