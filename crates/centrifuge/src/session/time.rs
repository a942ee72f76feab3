//! Deadlines of a session: pings, tokens that expire, a connect that does not come.

use std::time::Duration;

use super::{ClientSession, SessionStage};
use crate::codes::Disconnect;
use crate::host::Host;
use crate::limits::Limits;

/// The time, by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a clock that never goes back.
    pub millis: u64,
    /// Seconds since 1970, for tokens.
    pub unix: u64,
}

/// The longest validity in seconds that a reply has and that a session waits for: a year, as for
/// other servers.
const LONGEST: u64 = 365 * 24 * 3600;

impl Now {
    /// Returns the seconds until a time, for a reply. At least one: 0 would be no time at all.
    pub(super) fn ttl(self, until: u64) -> u32 {
        until.saturating_sub(self.unix).clamp(1, LONGEST) as u32
    }

    /// Returns the milliseconds `after` that time.
    pub(super) fn end(self, until: u64, after: Duration) -> u64 {
        let left = Duration::from_secs(until.saturating_sub(self.unix).min(LONGEST));
        self.millis + millis(left + after)
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 2)
}

/// Returns whole seconds for a reply, at least one unless there are none.
pub(super) fn seconds(duration: Duration) -> u32 {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    u32::try_from(whole).unwrap_or(u32::MAX)
}

/// When a session does something by itself, in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// No valid connect has come.
    stale: Option<u64>,
    /// The token has expired, and the time for another one is over.
    expired: Option<u64>,
    /// The next ping.
    ping: Option<u64>,
    /// The last ping is not answered.
    pong: Option<u64>,
    /// Whether a pong may come.
    is_pinged: bool,
}

impl Deadlines {
    pub(super) fn new(limits: &Limits, now: Now) -> Self {
        let stale = Some(now.millis + millis(limits.connect_timeout));
        Self { stale, ..Self::default() }
    }

    /// Begins with the pings of a client that has connected, the first at a time that differs
    /// between clients that connect at the same time.
    pub(super) fn connected(
        &mut self,
        limits: &Limits,
        (client, expires): (&str, Option<u64>),
        now: Now,
    ) {
        self.stale = None;
        let interval = millis(limits.ping_interval);
        if interval > 0 {
            let spread = hash(client) % (interval / 2).max(1);
            self.ping = Some(now.millis + interval - spread);
        }
        self.refreshed(limits, expires, now);
    }

    pub(super) fn refreshed(&mut self, limits: &Limits, expires: Option<u64>, now: Now) {
        self.expired = expires.map(|until| now.end(until, limits.refresh_timeout));
    }

    fn next(&self) -> Option<u64> {
        [self.stale, self.expired, self.ping, self.pong].into_iter().flatten().min()
    }
}

/// Returns a number that differs between clients.
fn hash(client: &str) -> u64 {
    // FNV-1a, and the finalizer of SplitMix64: identifiers differ in few digits.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut bits = client.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits ^ (bits >> 31)
}

impl<C> ClientSession<C> {
    /// Returns when [`handle_time`](Self::handle_time) has something to do, in milliseconds.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let subscriptions = self.subscriptions.iter().filter_map(|one| one.ends);
        self.deadlines.next().into_iter().chain(subscriptions).min()
    }

    /// Does what is due.
    ///
    /// # Errors
    /// The connection must be closed for this reason.
    pub fn handle_time(&mut self, host: &mut impl Host, now: Now) -> Result<(), Disconnect> {
        let is_due = |at: Option<u64>| at.is_some_and(|at| at <= now.millis);
        if is_due(self.deadlines.stale) {
            return Err(Disconnect::Stale);
        }
        if is_due(self.deadlines.expired) {
            return Err(Disconnect::Expired);
        }
        if is_due(self.deadlines.pong) {
            return Err(Disconnect::NoPong);
        }
        self.expire_subscriptions(host, now)?;
        if self.stage == SessionStage::Connected && is_due(self.deadlines.ping) {
            host.ping();
            let Limits { ping_interval, pong_timeout, .. } = &*self.limits;
            self.deadlines.ping = Some(now.millis + millis(*ping_interval));
            self.deadlines.is_pinged = true;
            if !pong_timeout.is_zero() {
                // Of several pings, the first unanswered one.
                self.deadlines.pong.get_or_insert(now.millis + millis(*pong_timeout));
            }
        }
        Ok(())
    }

    /// Takes the answer to a ping.
    pub(super) fn handle_pong(&mut self) -> Result<(), Disconnect> {
        if !std::mem::take(&mut self.deadlines.is_pinged) {
            return Err(Disconnect::BadRequest);
        }
        self.deadlines.pong = None;
        Ok(())
    }
}
