//! The stages of a connection's life, with every legal transition, and the word that holds a
//! connection's stage and flags.

use std::fmt;

/// Stage of a connection's life. It only advances, except that `Http` and `Serving` alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Client: the TCP connection is being made.
    Connecting,
    /// Client: the upgrade request is sent; waiting for its answer.
    Upgrading,
    /// Server: HTTP requests are read.
    Http,
    /// Server: the service handles a request and takes no more input until it resumes reading: its
    /// answer comes later or is produced while it is sent, or it cannot take more of the body now.
    Serving,
    /// Server: the answer is a stream of events; the peer sends nothing more.
    Events,
    /// A WebSocket session.
    Open,
    /// Our Close frame is queued or sent; waiting for the peer's.
    Closing,
    /// All output and our FIN are sent. Further input is read and dropped, so that a reset does not
    /// destroy data that the peer has not read yet.
    Lingering,
    /// The driver is closing it; waiting for its last event.
    Ending,
    /// Unused slot.
    Free,
}

impl Stage {
    #[cfg(test)]
    const ALL: [Self; 10] = [
        Self::Connecting,
        Self::Upgrading,
        Self::Http,
        Self::Serving,
        Self::Events,
        Self::Open,
        Self::Closing,
        Self::Lingering,
        Self::Ending,
        Self::Free,
    ];

    /// Returns whether a connection in this stage may enter `next`. Every stage may end: the driver
    /// closes a connection whenever its peer or the network does.
    pub(crate) const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            // A connection comes in at one of two stages.
            (Self::Free, Self::Connecting | Self::Http) => true,
            (Self::Free, _) => false,
            (_, Self::Free | Self::Ending) => true,
            (Self::Connecting, Self::Upgrading) => true,
            (Self::Upgrading, Self::Open) => true,
            (Self::Http, Self::Serving | Self::Events | Self::Open | Self::Lingering) => true,
            (Self::Serving, Self::Http | Self::Lingering) => true,
            (Self::Events | Self::Open, Self::Closing) => true,
            (Self::Closing, Self::Lingering) => true,
            _ => false,
        }
    }
}

/// Action after the queue is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFlush {
    Nothing,
    /// Close: the peer sends nothing more.
    Close,
    /// FIN, then [`Stage::Lingering`].
    Linger,
    /// Reset now, without waiting for the queue.
    Abort,
}

/// Flags of a connection; each bit has one meaning.
pub(crate) mod flag {
    /// In the list of connections to flush.
    pub(crate) const DIRTY: u32 = 1;
    /// The driver holds a batch.
    pub(crate) const IN_FLIGHT: u32 = 1 << 1;
    /// A heartbeat ping is unanswered.
    pub(crate) const PINGED: u32 = 1 << 2;
    /// A message is incomplete, and its deadline runs.
    pub(crate) const ASSEMBLING: u32 = 1 << 3;
    /// Reading is paused.
    pub(crate) const PAUSED: u32 = 1 << 4;
    /// `on_open` was called and `on_close` was not.
    pub(crate) const SESSION: u32 = 1 << 5;
    /// A send returned `Queued` or `Dropped`, so `on_drain` must follow.
    pub(crate) const NOTIFY_ON_DRAIN: u32 = 1 << 6;
    /// A request is incomplete; its deadline runs.
    pub(crate) const REQUEST: u32 = 1 << 7;
    /// Counted as a pending handshake.
    pub(crate) const PENDING: u32 = 1 << 8;
    /// We mask our frames: the client's side.
    pub(crate) const CLIENT: u32 = 1 << 9;
    /// permessage-deflate was agreed on.
    pub(crate) const DEFLATE: u32 = 1 << 10;
    /// The peer has ended its side of the stream.
    pub(crate) const FINISHED: u32 = 1 << 11;
    /// In the list of connections that `on_drain` is due for.
    pub(crate) const DRAIN_LISTED: u32 = 1 << 12;
    /// The 101 response is queued and has not left: the queue must not be dropped, and nothing may
    /// overtake it.
    pub(crate) const UPGRADING: u32 = 1 << 13;
    /// Frames published in this turn are in a list, behind all other queued output: see
    /// `outbox/fanout.rs`.
    pub(crate) const FAN_OUT: u32 = 1 << 14;
    /// Messages wait in the per-message queue, behind the output queue.
    pub(crate) const WAITING: u32 = 1 << 15;
    /// In a session: the service has stopped reading.
    pub(crate) const STOPPED: u32 = 1 << 16;
    /// In the list of batches in flight.
    pub(crate) const FLIGHT_LISTED: u32 = 1 << 17;
    /// In the list of incomplete messages and requests.
    pub(crate) const INCOMPLETE_LISTED: u32 = 1 << 18;
    /// In the list of connections whose service resumed reading.
    pub(crate) const RESUME_LISTED: u32 = 1 << 19;
    /// In the list of connections with more output than one flush sends.
    pub(crate) const UNFINISHED_LISTED: u32 = 1 << 20;
    /// The request is an upgrade on which the service decides later. Set until its session opens,
    /// or it is answered; after an acceptance the stage is [`Stage::Http`](super::Stage::Http)
    /// again.
    pub(crate) const UPGRADE_LATER: u32 = 1 << 21;
    /// For a session, which has no upgrade to decide on: its output waits behind a publication it
    /// made; see `outbox/behind.rs`.
    pub(crate) const HELD: u32 = UPGRADE_LATER;
    /// Publications of channels with history are sent with their offsets.
    pub(crate) const OFFSETS: u32 = 1 << 22;
    /// In the list of sessions that are not read, and end when their peer has gone.
    pub(crate) const WATCH_LISTED: u32 = 1 << 23;
    /// The client has already got the response to its upgrade request. The bit lies above the stage
    /// and the action after the flush.
    pub(crate) const ANSWERED: u32 = 1 << 30;
    /// The service wants the byte counts of this connection.
    pub(crate) const COUNTED: u32 = 1 << 31;

    /// Flags that take a send off the fast path, which only appends the message to the queue.
    pub(crate) const SEND_SLOW_MASK: u32 = IN_FLIGHT | CLIENT | WAITING | FAN_OUT | DEFLATE | HELD;
    /// Flags that take a flush off the fast path, which only passes the queue to the driver.
    pub(crate) const FLUSH_SLOW_MASK: u32 =
        IN_FLIGHT | PAUSED | NOTIFY_ON_DRAIN | UPGRADING | WAITING | FAN_OUT | STOPPED;
    /// Flags with which more than the queue decides whether further messages are decoded.
    pub(crate) const CONTINUE_SLOW_MASK: u32 = IN_FLIGHT | WAITING | FAN_OUT | STOPPED | HELD;
    /// Flags with which a published frame goes into the queue.
    pub(crate) const FAN_OUT_SLOW_MASK: u32 = FLUSH_SLOW_MASK & !FAN_OUT | CLIENT;
}

/// First bit of the stage in a [`Status`], and of the action after the flush.
const STAGE_SHIFT: u32 = 24;
const AFTER_SHIFT: u32 = 28;
const STAGE_MASK: u32 = 0xf << STAGE_SHIFT;
const AFTER_MASK: u32 = 0x3 << AFTER_SHIFT;

/// A connection's flags, its stage, and the action after its flush, in one word: the fast paths
/// check all of them by one comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(u32);

impl Status {
    /// A connection in `stage` without flags.
    pub(crate) const fn new(stage: Stage) -> Self {
        Self((stage as u32) << STAGE_SHIFT)
    }

    /// Returns the stage. The bits hold the discriminants of the enum, so this compiles to a shift.
    #[inline]
    pub(crate) const fn stage(self) -> Stage {
        match (self.0 & STAGE_MASK) >> STAGE_SHIFT {
            0 => Stage::Connecting,
            1 => Stage::Upgrading,
            2 => Stage::Http,
            3 => Stage::Serving,
            4 => Stage::Events,
            5 => Stage::Open,
            6 => Stage::Closing,
            7 => Stage::Lingering,
            8 => Stage::Ending,
            _ => Stage::Free,
        }
    }

    /// Returns whether the stage is this one.
    #[inline(always)]
    pub(crate) const fn is(self, stage: Stage) -> bool {
        self.0 & STAGE_MASK == (stage as u32) << STAGE_SHIFT
    }

    /// Returns whether the stage is this one, and of the flags in `mask` exactly `flags` are set.
    #[inline(always)]
    pub(crate) const fn is_exactly(self, stage: Stage, mask: u32, flags: u32) -> bool {
        self.0 & (STAGE_MASK | mask) == (stage as u32) << STAGE_SHIFT | flags
    }

    /// Enters the next stage.
    pub(crate) fn advance(&mut self, next: Stage) {
        debug_assert!(self.stage().may_become(next), "{:?} became {next:?}", self.stage());
        self.0 = self.0 & !STAGE_MASK | (next as u32) << STAGE_SHIFT;
    }

    pub(crate) fn after_flush(self) -> AfterFlush {
        match (self.0 & AFTER_MASK) >> AFTER_SHIFT {
            0 => AfterFlush::Nothing,
            1 => AfterFlush::Close,
            2 => AfterFlush::Linger,
            _ => AfterFlush::Abort,
        }
    }

    /// Returns whether an action follows the flush.
    #[inline(always)]
    pub(crate) const fn is_finishing(self) -> bool {
        self.0 & AFTER_MASK != 0
    }

    pub(crate) fn set_after_flush(&mut self, after: AfterFlush) {
        self.0 = self.0 & !AFTER_MASK | (after as u32) << AFTER_SHIFT;
    }

    /// Returns whether any of these flags is set.
    #[inline(always)]
    pub(crate) const fn has(self, flags: u32) -> bool {
        self.0 & flags != 0
    }

    /// Returns whether a flush needs more than passing the queue to the driver.
    #[inline(always)]
    pub(crate) const fn flushes_slowly(self) -> bool {
        self.0 & (flag::FLUSH_SLOW_MASK | AFTER_MASK) != 0
    }

    /// Clears [`flag::PINGED`] and sets [`flag::DIRTY`] in one step.
    #[inline(always)]
    pub(crate) fn mark_received(&mut self) {
        self.0 = self.0 & !flag::PINGED | flag::DIRTY;
    }

    /// Returns whether published frames may be put into a list instead of the queue, by the
    /// flags alone.
    #[inline(always)]
    pub(crate) const fn may_fan_out(self) -> bool {
        self.0 & (flag::FAN_OUT_SLOW_MASK | AFTER_MASK) == 0
    }

    /// Returns whether a list of published frames is all that a flush has to send, by the flags
    /// alone.
    #[inline(always)]
    pub(crate) const fn only_fans_out(self) -> bool {
        self.0 & (flag::FAN_OUT_SLOW_MASK | AFTER_MASK | flag::FAN_OUT) == flag::FAN_OUT
    }

    /// Sets or clears flags.
    #[inline(always)]
    pub(crate) fn set(&mut self, flags: u32, on: bool) {
        match on {
            true => self.0 |= flags,
            false => self.0 &= !flags,
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.0 & !(STAGE_MASK | AFTER_MASK);
        write!(f, "{:?} {:?} {flags:#b}", self.stage(), self.after_flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every legal transition, as a person would draw it.
    const LEGAL: &str = "
        Connecting -> Upgrading Ending Free
        Upgrading  -> Open Ending Free
        Http       -> Serving Events Open Lingering Ending Free
        Serving    -> Http Lingering Ending Free
        Events     -> Closing Ending Free
        Open       -> Closing Ending Free
        Closing    -> Lingering Ending Free
        Lingering  -> Ending Free
        Ending     -> Ending Free
        Free       -> Connecting Http";

    #[test]
    fn the_legal_transitions_are_these() {
        let mut drawn = String::new();
        for stage in Stage::ALL {
            let next = Stage::ALL.into_iter().filter(|next| stage.may_become(*next));
            let next: Vec<String> = next.map(|next| format!("{next:?}")).collect();
            drawn += &format!("\n        {:<10} -> {}", format!("{stage:?}"), next.join(" "));
        }
        assert_eq!(drawn, LEGAL);
    }

    #[test]
    fn a_status_holds_each_part_apart() {
        for stage in Stage::ALL {
            for after in
                [AfterFlush::Nothing, AfterFlush::Close, AfterFlush::Linger, AfterFlush::Abort]
            {
                let mut status = Status::new(stage);
                status.set(flag::UNFINISHED_LISTED | flag::DIRTY, true);
                status.set_after_flush(after);
                assert_eq!((status.stage(), status.after_flush()), (stage, after));
                assert_eq!(status.is_finishing(), after != AfterFlush::Nothing);
                assert!(status.is(stage) && status.has(flag::DIRTY) && !status.has(flag::PAUSED));
                status.set(flag::DIRTY, false);
                assert!(!status.has(flag::DIRTY) && status.has(flag::UNFINISHED_LISTED));
            }
        }
    }
}
