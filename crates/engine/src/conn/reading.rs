//! Limits on the reading of connections, and lists of connections whose reading continues.

use throng_io::ConnId;

use crate::conn::rate::Rates;
use crate::conn::record::Conn;
use crate::conn::route_limits::RateLimits;
use crate::conn::stage::flag;
use crate::conn::timers::Tick;
use crate::conn::work_list::WorkList;

/// Rates of input, connections whose input is incomplete, and connections that are read again.
#[derive(Debug)]
pub(crate) struct Reading {
    rates: Rates,
    /// Connections whose service resumed reading; input of some may be held back.
    resumed: WorkList,
    /// Connections with an incomplete message or request. At each sweep the deadline of the message
    /// is checked.
    incomplete: WorkList,
    /// Sessions that are not read and end when their peer is gone, and requests whose service is
    /// notified when the peer is gone. Each sweep asks the driver about the paused ones.
    watched: WorkList,
    /// All bytes received when incomplete input was last counted.
    counted_in: u64,
}

impl Reading {
    /// Creates the state of an empty table; `limits_rates` if any route limits a second's input.
    pub(crate) fn new(limits_rates: bool) -> Self {
        Self {
            rates: Rates::new(limits_rates),
            resumed: WorkList::new(flag::RESUME_LISTED),
            incomplete: WorkList::new(flag::INCOMPLETE_LISTED),
            watched: WorkList::new(flag::WATCH_LISTED),
            counted_in: 0,
        }
    }

    /// Changes whether any route limits a second's input.
    pub(crate) fn configure(&mut self, limits_rates: bool) {
        self.rates = Rates::new(limits_rates);
    }

    /// Clears the counts of `slot`, which has a new connection.
    pub(crate) fn enter(&mut self, slot: usize) {
        self.rates.forget(slot);
    }

    /// Returns whether a rate is limited.
    #[inline]
    pub(crate) fn has_rates(&self) -> bool {
        self.rates.are_limited()
    }

    /// Counts the input of one read; returns false if the connection has exceeded its limit for
    /// this second.
    pub(crate) fn admit(
        &mut self,
        slot: usize,
        now: Tick,
        input: (u64, u64),
        limits: RateLimits,
    ) -> bool {
        self.rates.admit(slot, now, input, limits)
    }

    /// Lists a connection whose message or request is incomplete.
    pub(crate) fn mark_incomplete(&mut self, conn: &mut Conn) {
        self.incomplete.add(conn);
    }

    /// Returns how many of the `bytes_in` received so far came since the last call: an upper bound
    /// of the incomplete input of one connection.
    pub(crate) fn count_incomplete(&mut self, bytes_in: u64) -> usize {
        let came = bytes_in - self.counted_in;
        self.counted_in = bytes_in;
        usize::try_from(came).unwrap_or(usize::MAX)
    }

    /// Lists a connection that is read again.
    pub(crate) fn mark_resumed(&mut self, conn: &mut Conn) {
        self.resumed.add(conn);
    }

    /// Returns the list of connections that are read again.
    pub(crate) fn resumed(&mut self) -> &mut WorkList {
        &mut self.resumed
    }

    /// Returns the list of connections with incomplete input.
    pub(crate) fn incomplete(&mut self) -> &mut WorkList {
        &mut self.incomplete
    }

    /// Returns whether any connection's input is incomplete.
    pub(crate) fn has_incomplete(&self) -> bool {
        !self.incomplete.is_empty()
    }

    /// Lists a session that is not read and ends when its peer is gone, or a request whose service
    /// is notified when the peer is gone.
    pub(crate) fn watch(&mut self, conn: &mut Conn) {
        self.watched.add(conn);
    }

    /// Returns the list of sessions and requests whose peer is watched.
    pub(crate) fn watched(&mut self) -> &mut WorkList {
        &mut self.watched
    }

    /// Returns whether any peer is watched.
    pub(crate) fn has_watched(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Returns whether any connection must continue reading.
    pub(crate) fn has_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// Returns the connections with incomplete input.
    pub(crate) fn all_incomplete(&self) -> impl Iterator<Item = ConnId> {
        self.incomplete.iter()
    }

    /// Returns the length of the longest list; for audits.
    pub(crate) fn longest_list(&self) -> usize {
        self.resumed.len().max(self.incomplete.len()).max(self.watched.len())
    }
}
