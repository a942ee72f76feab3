//! Timers of connections, in seconds, small enough to be kept for every connection.

use throng_io::ConnId;

use crate::conn::deadlines::Deadlines;
use crate::conn::route_limits::RouteLimits;

/// Seconds since the shard started, modulo 65,535 and never 0; 0 means "no deadline".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick(u16);

/// Longest time a deadline can be away, in seconds (18.2 hours).
pub(crate) const MAX_SECS: u16 = u16::MAX - 1;

const CYCLE: u32 = u16::MAX as u32;

impl Tick {
    /// No deadline.
    pub(crate) const NEVER: Self = Self(0);
    /// Start of a shard's time.
    pub(crate) const START: Self = Self(1);

    /// The tick `secs` seconds on, at most [`MAX_SECS`].
    #[must_use]
    #[inline]
    pub(crate) const fn after(self, secs: u16) -> Self {
        debug_assert!(self.0 != 0 && secs <= MAX_SECS);
        let sum = (self.0 - 1) as u32 + secs as u32;
        Self((if sum >= CYCLE { sum - CYCLE } else { sum }) as u16 + 1)
    }

    /// Seconds from `earlier` to here, modulo the cycle.
    #[must_use]
    pub(crate) const fn since(self, earlier: Self) -> u16 {
        ((self.0 as u32 + CYCLE - earlier.0 as u32) % CYCLE) as u16
    }
}

impl super::deadlines::DeadlineTick for Tick {
    const NEVER: Self = Self(0);
    const PER_SECOND: u32 = 1;

    #[inline]
    fn ticks_from(self, start: Self) -> u32 {
        match self {
            Self::NEVER => u32::MAX,
            tick => tick.since(start).into(),
        }
    }
}

/// The timers of a shard's connections: a deadline each, whose meaning follows from its stage, and
/// the end of its session's lifetime.
#[derive(Debug)]
pub(crate) struct Timers {
    deadlines: Deadlines<Tick>,
    /// Ends of session lifetimes; unused while those have no limit.
    lifetimes: Deadlines<Tick>,
    /// Whether the sessions of any route have a longest lifetime.
    limits_lifetimes: bool,
    /// Heartbeats of routes without an interval of their own.
    heartbeats: Heartbeats,
    /// Heartbeats at other intervals, one for each that a route has.
    other_heartbeats: Vec<Heartbeats>,
    /// Whether all sessions have one interval, after their last input.
    are_plain: bool,
    tick: Tick,
}

impl Timers {
    /// Creates timers with address space for the given number of connections; see
    /// [`Timers::configure`].
    pub(crate) fn new<'a>(
        capacity: usize,
        routes: impl Iterator<Item = &'a RouteLimits> + Clone,
        pings_always: bool,
    ) -> Self {
        let mut deadlines = Deadlines::new(Tick::START);
        deadlines.reserve(capacity);
        let mut timers = Self {
            deadlines,
            lifetimes: Deadlines::new(Tick::START),
            limits_lifetimes: false,
            heartbeats: Heartbeats::new(0, Tick::START),
            other_heartbeats: Vec::new(),
            are_plain: false,
            tick: Tick::START,
        };
        timers.configure(routes, pings_always);
        timers
    }

    /// Changes the times of heartbeats and the longest lifetimes. The first limits apply to routes
    /// without their own limits. A ping is sent an interval after the last input, or with
    /// `pings_always` at each interval. Heartbeats of open sessions follow with
    /// [`Timers::await_heartbeat`]; the ends of their lifetimes stay, unless no session has a
    /// longest lifetime now.
    pub(crate) fn configure<'a>(
        &mut self,
        routes: impl Iterator<Item = &'a RouteLimits> + Clone,
        pings_always: bool,
    ) {
        let mut intervals = routes.clone().map(|route| route.heartbeat_interval);
        let usual = intervals.next().unwrap_or(0);
        self.heartbeats.set_interval(usual, self.tick);
        self.other_heartbeats.clear();
        for interval in intervals {
            if interval != usual && self.other(interval).is_none() {
                let mut heartbeats = Heartbeats::new(interval, self.tick);
                heartbeats.spread(self.heartbeats.offset, self.tick);
                self.other_heartbeats.push(heartbeats);
            }
        }
        self.are_plain = !pings_always && self.other_heartbeats.is_empty();
        let limits_lifetimes = routes.map(|route| route.lifetime).any(|lifetime| lifetime > 0);
        if self.limits_lifetimes != limits_lifetimes {
            self.lifetimes = Deadlines::new(self.tick);
        }
        self.limits_lifetimes = limits_lifetimes;
    }

    /// Returns the heartbeats at this interval, if a route has it as its own.
    fn other(&self, interval: u16) -> Option<&Heartbeats> {
        self.other_heartbeats.iter().find(|heartbeats| heartbeats.interval == interval)
    }

    /// Returns whether all sessions have one interval of heartbeats, after their last input.
    #[inline]
    pub(crate) fn are_plain(&self) -> bool {
        self.are_plain
    }

    /// Shifts the start of heartbeats as if slots were `by` higher.
    pub(crate) fn spread_heartbeats(&mut self, by: usize) {
        self.heartbeats.spread(by, self.tick);
        self.other_heartbeats.iter_mut().for_each(|heartbeats| heartbeats.spread(by, self.tick));
    }

    /// Adds a connection, without a deadline.
    pub(crate) fn enter(&mut self, slot: usize) {
        self.deadlines.add_slot(slot);
    }

    /// Clears the timers of a connection that is gone.
    pub(crate) fn leave(&mut self, slot: usize) {
        self.deadlines.set(slot, Tick::NEVER);
        if self.limits_lifetimes {
            self.lifetimes.add_slot(slot);
            self.lifetimes.set(slot, Tick::NEVER);
        }
    }

    /// Returns the current second.
    pub(crate) fn tick(&self) -> Tick {
        self.tick
    }

    /// Starts a new second, and appends to `due` the slots whose deadline has come.
    pub(crate) fn advance(&mut self, now: Tick, due: &mut Vec<u32>) {
        self.tick = now;
        self.heartbeats.refresh(now);
        self.other_heartbeats.iter_mut().for_each(|heartbeats| heartbeats.refresh(now));
        self.deadlines.expire(now, due);
    }

    /// Returns the slots of sessions that have reached the longest lifetime.
    pub(crate) fn expire_lifetimes(&mut self) -> Vec<u32> {
        let mut old = Vec::new();
        if self.limits_lifetimes {
            self.lifetimes.expire(self.tick, &mut old);
        }
        old
    }

    /// Returns the seconds to the first deadline, if there is one. Looks at all of them.
    pub(crate) fn earliest(&self) -> Option<u32> {
        let deadlines = [&self.deadlines, &self.lifetimes];
        deadlines.into_iter().filter_map(|deadlines| deadlines.earliest(self.tick)).min()
    }

    /// Starts a session's timers: the first heartbeat is a whole interval away, the end a lifetime.
    pub(crate) fn start_session(&mut self, id: ConnId, limits: &RouteLimits) {
        self.await_heartbeat(id, limits.heartbeat_interval);
        if limits.lifetime > 0 {
            self.lifetimes.add_slot(id.slot());
            self.lifetimes.set(id.slot(), self.tick.after(limits.lifetime));
        }
    }

    /// Sets the deadline of a connection in seconds from now. The deadline passes after at least
    /// `secs` and less than `secs + 1` seconds, since the current second has already begun.
    pub(crate) fn due_in(&mut self, id: ConnId, secs: u16) {
        self.deadlines.set(id.slot(), self.tick.after(secs + 1));
    }

    /// Sets the deadline to when the next heartbeat at this interval is due.
    pub(crate) fn await_heartbeat(&mut self, id: ConnId, interval: u16) {
        let heartbeats = self.other(interval).unwrap_or(&self.heartbeats);
        self.deadlines.set(id.slot(), heartbeats.due(id.slot()));
    }

    /// Returns the seconds since the last input of a session with pings at this interval after its
    /// last input, if it was not pinged since; `None` without heartbeats.
    pub(crate) fn silence(&self, id: ConnId, interval: u16) -> Option<u16> {
        let heartbeats = self.other(interval).unwrap_or(&self.heartbeats);
        let (deadline, due) = (self.deadlines.get(id.slot()), heartbeats.due(id.slot()));
        let silence = due.since(deadline);
        let is_known = deadline != Tick::NEVER && due != Tick::NEVER && silence <= interval;
        is_known.then_some(silence)
    }

    /// Registers input of a session, where [all have one interval](Self::are_plain).
    #[inline]
    pub(crate) fn record_input(&mut self, slot: usize) {
        self.deadlines.set(slot, self.heartbeats.due(slot));
    }
}

/// Time of the next ping of a session that is active now.
///
/// Up to a quarter of the interval is subtracted, by slot, so that a mass reconnect does not ping
/// in lock-step. Computed once a tick, because it is needed with every message.
#[derive(Debug)]
struct Heartbeats {
    interval: u16,
    /// Added to each slot.
    offset: usize,
    due: [Tick; HEARTBEAT_GROUPS],
}

/// Slots that differ modulo this are pinged at different times, if the interval is long enough.
const HEARTBEAT_GROUPS: usize = 64;

impl Heartbeats {
    /// Heartbeats every `interval` seconds after the last input; 0 = never.
    #[must_use]
    fn new(interval: u16, now: Tick) -> Self {
        let mut heartbeats = Self { interval, offset: 0, due: [Tick::NEVER; HEARTBEAT_GROUPS] };
        heartbeats.refresh(now);
        heartbeats
    }

    /// Shifts all slots, for shards that use the same few.
    fn spread(&mut self, by: usize, now: Tick) {
        self.offset = by % HEARTBEAT_GROUPS;
        self.refresh(now);
    }

    fn set_interval(&mut self, interval: u16, now: Tick) {
        self.interval = interval;
        self.due = [Tick::NEVER; HEARTBEAT_GROUPS];
        self.refresh(now);
    }

    /// Starts a new second.
    fn refresh(&mut self, now: Tick) {
        if self.interval == 0 {
            return;
        }
        let interval = usize::from(self.interval);
        for (group, due) in self.due.iter_mut().enumerate() {
            let group = (group + self.offset) % HEARTBEAT_GROUPS;
            let early = (interval / 4 + 1) * group / HEARTBEAT_GROUPS;
            *due = now.after((interval - early).max(1) as u16);
        }
    }

    /// Returns the time of the next ping; [`Tick::NEVER`] if there are no heartbeats.
    #[must_use]
    #[inline]
    fn due(&self, slot: usize) -> Tick {
        self.due[slot % HEARTBEAT_GROUPS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_wrap_without_ever_being_never() {
        let mut tick = Tick::START;
        for _ in 0..200_000 {
            let next = tick.after(1);
            assert_ne!(next, Tick::NEVER);
            assert_eq!(next.since(tick), 1);
            tick = next;
        }
        assert_eq!(tick.after(MAX_SECS).since(tick), MAX_SECS);
    }

    #[test]
    fn heartbeats_are_spread_over_the_last_quarter_of_the_interval() {
        for interval in [1, 2, 25, 3600, MAX_SECS - 1] {
            let now = Tick::START.after(65_000);
            let heartbeats = Heartbeats::new(interval, now);
            let mut secs: Vec<_> = (0..1000).map(|slot| heartbeats.due(slot).since(now)).collect();
            secs.sort_unstable();
            assert!(secs[0] >= (interval - interval / 4).max(1) && secs[999] == interval);
            secs.dedup();
            assert_eq!(secs.len(), usize::from(interval / 4 + 1).min(HEARTBEAT_GROUPS));
        }
        assert_eq!(Heartbeats::new(0, Tick::START).due(7), Tick::NEVER);
        let (usual, mut shifted) =
            (Heartbeats::new(100, Tick::START), Heartbeats::new(100, Tick::START));
        shifted.spread(64 + 5, Tick::START);
        assert_eq!(shifted.due(0), usual.due(5));
        assert_eq!(shifted.due(63), usual.due(4));
    }
}
