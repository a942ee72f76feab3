//! The record of one side of a tunnel: its flow to the other side, and the output to it.
//!
//! | | states | next |
//! |---|---|---|
//! | input | silent, open, paused | silent to open, open to paused and back |
//! | its end | running, finished | once |
//! | cut after a frame | none, due, made | none to due or made, due to made |
//! | output | idle, sending, sending the last, ended | see [`Output::may_become`] |
//!
//! They are independent but for [`TunnelFlow::broken_rule`]: a side that is not read may have ended
//! its stream, and may be cut; a stream to a side may end while that side still sends.

use std::sync::Arc;

use throng_carry::{Age, Carried, CarryError, Content, Encoder};
use throng_io::ConnId;
use throng_proto::ws::{Boundary, CloseCode};

use super::{EighthTick, HttpSide};
use crate::backend::Backend;
use crate::guards::TunnelGuard;

/// The input from a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// Its data is read.
    Open,
    /// Its data is not read: a send to the other side is in flight.
    Paused,
    /// Open; this backend, which is passed through to, has sent nothing yet.
    Silent,
}

/// The end of a side's data at a Close frame of the balancer, or because its receiver is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    None,
    /// The Close frame follows the next whole frame from this side.
    Due,
    /// Later data is dropped.
    Made,
}

/// The output to a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Idle,
    /// A send is in flight.
    Sending,
    /// A send is in flight, and the end of the stream follows it.
    SendingLast,
    /// The balancer ended the stream.
    Ended,
}

impl Input {
    const ALL: [Self; 3] = [Self::Open, Self::Paused, Self::Silent];

    const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Silent, Self::Open) | (Self::Open, Self::Paused) | (Self::Paused, Self::Open)
        )
    }
}

impl Cut {
    const ALL: [Self; 3] = [Self::None, Self::Due, Self::Made];

    const fn may_become(self, next: Self) -> bool {
        (self as u16) < next as u16
    }
}

impl Output {
    const ALL: [Self; 4] = [Self::Idle, Self::Sending, Self::SendingLast, Self::Ended];

    const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Idle, Self::Sending | Self::Ended)
                | (Self::Sending, Self::Idle | Self::SendingLast)
                | (Self::SendingLast, Self::Ended)
        )
    }
}

/// Parts of a [`TunnelFlow`]: the first bit of each state; the rest is in [`mark`].
mod part {
    pub(super) const INPUT: u16 = 0;
    pub(super) const CUT: u16 = 2;
    pub(super) const OUTPUT: u16 = 4;
    /// The bits of one state.
    pub(super) const STATE: u16 = 0b11;

    /// With none of these, the input is open, nothing is cut or metered, and bytes from this side
    /// go straight to the other.
    pub(super) const SLOW_PATH: u16 =
        STATE << INPUT | STATE << CUT | super::mark::CLOSED | super::mark::METERED;
}

throng_carry::flags! {
    /// The flags of a [`TunnelFlow`]. A tunnel that ends stays in its process: it soon is gone.
    mod mark: u16 {
        moved {
            /// The tunnel passes bytes through that are not frames: each end of a stream is passed
            /// on, and no Close frame is sent.
            UNFRAMED = 1 << 11,
            /// The data of this side, a client, is counted.
            METERED = 1 << 12,
            /// This side is not read, since it is beyond a rate.
            THROTTLED = 1 << 13,
        }
        rebuilt {}
        waits {
            /// This side has ended its stream.
            FINISHED = 1 << 6,
            /// This side was sent a Close frame by the balancer.
            CLOSED = 1 << 7,
            /// Its backend was lost in the middle of a frame: only a reset can follow.
            TORN = 1 << 8,
            /// The close code is 1001, else 1012.
            GOING_AWAY = 1 << 9,
            /// Its deadline ends it; without this, only silence does.
            TIMED = 1 << 10,
            /// The close code is 1008.
            BEYOND_RATE = 1 << 14,
        }
    }
}

/// The states and flags of one side.
#[derive(Clone, Copy, PartialEq, Eq)]
struct TunnelFlow(u16);

impl TunnelFlow {
    const fn state(self, shift: u16) -> usize {
        (self.0 >> shift & part::STATE) as usize
    }

    fn input(self) -> Input {
        Input::ALL[self.state(part::INPUT)]
    }

    fn cut(self) -> Cut {
        Cut::ALL[self.state(part::CUT)]
    }

    fn output(self) -> Output {
        Output::ALL[self.state(part::OUTPUT)]
    }

    const fn has(self, flags: u16) -> bool {
        self.0 & flags != 0
    }

    fn set(&mut self, flags: u16) {
        self.0 |= flags;
        self.check();
    }

    fn set_state(&mut self, shift: u16, state: u16) {
        self.0 = self.0 & !(part::STATE << shift) | state << shift;
        self.check();
    }

    fn set_input(&mut self, next: Input) {
        debug_assert!(self.input().may_become(next), "{self:?} became {next:?}");
        self.set_state(part::INPUT, next as u16);
    }

    fn set_cut(&mut self, next: Cut) {
        debug_assert!(self.cut().may_become(next), "{self:?} became {next:?}");
        self.set_state(part::CUT, next as u16);
    }

    fn set_output(&mut self, next: Output) {
        debug_assert!(self.output().may_become(next), "{self:?} became {next:?}");
        self.set_state(part::OUTPUT, next as u16);
    }

    /// Returns whether the tunnel of this side may move: it does not end.
    fn may_move(self) -> bool {
        let is_output_open = matches!(self.output(), Output::Idle | Output::Sending);
        is_output_open && self.cut() == Cut::None && !self.has(mark::WAITS)
    }

    fn check(self) {
        debug_assert_eq!(self.broken_rule(), None, "{self:?}");
    }

    /// Returns the rule between states that it breaks, if it breaks one.
    fn broken_rule(self) -> Option<&'static str> {
        let is_framed = !self.has(mark::UNFRAMED);
        if is_framed && self.input() == Input::Silent {
            Some("the silence of a backend that is not passed through to")
        } else if !is_framed && (self.cut() != Cut::None || self.has(mark::CLOSED | mark::TORN)) {
            Some("a Close frame where no bytes are frames")
        } else if self.has(mark::TORN) && self.cut() != Cut::Made {
            Some("a frame without its end whose sender is there")
        } else if !is_framed && self.has(mark::METERED) {
            Some("a meter where no bytes are frames")
        } else if self.has(mark::THROTTLED) && !self.has(mark::METERED) {
            Some("a client beyond a rate without a meter")
        } else {
            None
        }
    }
}

/// Only a flow that [may move](TunnelFlow::may_move) is written or read.
impl Carried for TunnelFlow {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        Carried::put(&self.0, tag, out)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        let bits = u16::take(content)?;
        let known = part::STATE << part::INPUT | part::STATE << part::OUTPUT | mark::MOVED;
        let flow = Self(bits);
        let is_state = bits & !known == 0 && flow.state(part::INPUT) < Input::ALL.len();
        let is_sound = is_state && flow.may_move() && flow.broken_rule().is_none();
        if is_sound { Ok(flow) } else { Err(CarryError::Malformed) }
    }
}

impl std::fmt::Debug for TunnelFlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flags = self.0 >> mark::FINISHED.trailing_zeros();
        write!(f, "{:?} {:?} {:?} {flags:#b}", self.input(), self.cut(), self.output())
    }
}

/// One side of a tunnel.
#[derive(Debug)]
pub(in crate::shard) struct Tunnel {
    /// The other side, or this side itself once the other is gone.
    peer: ConnId,
    /// The frame boundaries of data from this side.
    boundary: Boundary,
    /// Counts the tunnel; only in the backend's side.
    count: Option<TunnelGuard>,
    /// The time of the last bytes.
    seen: EighthTick,
    opened: EighthTick,
    flow: TunnelFlow,
    /// The class of its route, in [`TunnelClasses`](crate::TunnelClasses).
    class: u16,
}

/// A side of a tunnel as another process needs it. Its peer, and the backend that counts it, are in
/// the record of the tunnel.
#[derive(Debug, PartialEq)]
pub(in crate::shard) struct MovedSide {
    boundary: Boundary,
    seen: Age,
    opened: Age,
    flow: TunnelFlow,
}

throng_carry::carried! {
    MovedSide {
        required { 1 boundary, 3 flow, 5 seen, 7 opened }
        optional { }
        rebuilt { }
    }
}

impl Tunnel {
    /// Returns whether the tunnel of this side may move to another process: it does not end.
    pub(in crate::shard) fn may_move(&self) -> bool {
        self.flow.may_move()
    }

    /// Returns what moves of it, at the time `now`, and its count of the tunnel.
    pub(in crate::shard) fn freeze(self, now: EighthTick) -> (MovedSide, Option<TunnelGuard>) {
        // Its class moves by its name.
        let Self { peer: _, boundary, count, seen, opened, flow, class: _ } = self;
        let (seen, opened) = (seen.age(now), opened.age(now));
        (MovedSide { boundary, seen, opened, flow }, count)
    }

    /// Creates the side again; `transit` is the time since it was frozen, in milliseconds.
    pub(in crate::shard) fn thaw(
        moved: MovedSide,
        peer: ConnId,
        count: Option<TunnelGuard>,
        now: EighthTick,
        transit: u64,
    ) -> Self {
        let MovedSide { boundary, seen, opened, flow } = moved;
        let [seen, opened] = [seen, opened].map(|age| EighthTick::at_age(age, now, transit));
        Self { peer, boundary, count, seen, opened, flow, class: 0 }
    }

    /// Creates a side of a tunnel that is opened `now`; `count` counts it, in the backend's side.
    /// It adopts the output of both connections: a side is read unless a send to the other is in
    /// flight.
    pub(in crate::shard) fn new(
        peer: ConnId,
        boundary: Option<Boundary>,
        count: Option<TunnelGuard>,
        now: EighthTick,
        (http, other): (&HttpSide, &HttpSide),
    ) -> Self {
        let is_unframed = boundary.is_none();
        let mut flow = TunnelFlow(if is_unframed { mark::UNFRAMED } else { 0 });
        let input = match other.is_sending() {
            true => Input::Paused,
            false if is_unframed && count.is_some() => Input::Silent,
            false => Input::Open,
        };
        flow.set_state(part::INPUT, input as u16);
        if http.is_sending() {
            flow.set_output(Output::Sending);
        }
        let boundary = boundary.unwrap_or_else(Boundary::unframed);
        Self { peer, boundary, count, seen: now, opened: now, flow, class: 0 }
    }

    /// Returns it with the class of its route.
    pub(in crate::shard) fn with_class(self, class: u16) -> Self {
        Self { class, ..self }
    }

    /// Returns the class of its route.
    pub(in crate::shard) fn class(&self) -> u16 {
        self.class
    }

    /// Returns the other side, or this side itself once that is gone.
    #[inline]
    pub(in crate::shard) fn peer(&self) -> ConnId {
        self.peer
    }

    /// Returns whether this is the backend's side.
    #[inline]
    pub(in crate::shard) fn is_backend(&self) -> bool {
        self.count.is_some()
    }

    /// Returns the backend; `None` in the client's side.
    pub(in crate::shard) fn backend(&self) -> Option<&Arc<Backend>> {
        self.count.as_ref().map(TunnelGuard::backend)
    }

    /// Returns the frame boundaries of data from this side.
    #[inline]
    pub(in crate::shard) fn boundary(&mut self) -> &mut Boundary {
        &mut self.boundary
    }

    /// Returns whether its whole Close frame has come: half a Close frame does not close.
    pub(in crate::shard) fn has_said_close(&self) -> bool {
        self.boundary.is_after_close()
    }

    /// Returns when the last bytes came.
    pub(in crate::shard) fn seen(&self) -> EighthTick {
        self.seen
    }

    pub(in crate::shard) fn opened(&self) -> EighthTick {
        self.opened
    }

    /// Records that bytes have come; returns whether they go straight to the other side.
    #[inline]
    pub(in crate::shard) fn is_direct(&mut self, now: EighthTick) -> bool {
        self.seen = now;
        !self.flow.has(part::SLOW_PATH)
    }

    /// Records that bytes have come from a backend that may have been silent.
    pub(in crate::shard) fn end_silence(&mut self) {
        if self.is_silent() {
            self.flow.set_input(Input::Open);
        }
    }

    /// Returns whether nothing has come from this side yet, a backend that is passed through to.
    pub(in crate::shard) fn is_silent(&self) -> bool {
        self.flow.input() == Input::Silent
    }

    /// Returns whether this side is not read, since the other is behind: what still comes goes into
    /// the queue.
    pub(in crate::shard) fn is_paused(&self) -> bool {
        self.flow.input() == Input::Paused
    }

    /// Records that this side is not read.
    pub(in crate::shard) fn pause(&mut self) {
        if !self.is_paused() {
            self.flow.set_input(Input::Paused);
        }
    }

    /// Counts the data of this side from now on.
    pub(in crate::shard) fn meter(&mut self) {
        self.flow.set(mark::METERED);
    }

    /// Returns whether the data of this side is counted.
    pub(in crate::shard) fn is_metered(&self) -> bool {
        self.flow.has(mark::METERED)
    }

    /// Returns whether this side is not read, since it is beyond a rate.
    pub(in crate::shard) fn is_throttled(&self) -> bool {
        self.flow.has(mark::THROTTLED)
    }

    /// Records that this side is not read, since it is beyond a rate.
    pub(in crate::shard) fn throttle(&mut self) {
        self.flow.set(mark::THROTTLED);
    }

    /// Records that this side is within its rates again. Returns whether it must be read now.
    #[must_use]
    pub(in crate::shard) fn end_throttle(&mut self) -> bool {
        let was_throttled = self.is_throttled();
        self.flow.0 &= !mark::THROTTLED;
        was_throttled && !self.is_paused()
    }

    /// Records that this side is read, unless it is beyond a rate. Returns whether it was not.
    #[must_use]
    pub(in crate::shard) fn resume(&mut self) -> bool {
        let was_paused = self.is_paused();
        if was_paused {
            self.flow.set_input(Input::Open);
        }
        was_paused && !self.is_throttled()
    }

    /// Returns whether this side has ended its stream.
    pub(in crate::shard) fn has_finished(&self) -> bool {
        self.flow.has(mark::FINISHED)
    }

    /// Records that this side has ended its stream.
    pub(in crate::shard) fn finish(&mut self) {
        self.flow.set(mark::FINISHED);
    }

    /// Returns whether a send to this side is in flight.
    pub(in crate::shard) fn is_sending(&self) -> bool {
        matches!(self.flow.output(), Output::Sending | Output::SendingLast)
    }

    /// Records that a send to this side is in flight.
    pub(in crate::shard) fn begin_send(&mut self) {
        if !self.is_sending() {
            self.flow.set_output(Output::Sending);
        }
    }

    /// Records that nothing is in flight to this side. Returns whether the driver must end the
    /// stream now.
    #[must_use]
    pub(in crate::shard) fn end_send(&mut self) -> bool {
        let is_last = self.is_end_due();
        if self.is_sending() {
            self.flow.set_output(if is_last { Output::Ended } else { Output::Idle });
        }
        is_last
    }

    /// Ends the stream to this side, unless that was done: at once, or after what is in flight and
    /// queued. Returns whether the driver must end it now.
    #[must_use]
    pub(in crate::shard) fn end_output(&mut self) -> bool {
        let (next, is_now) = match self.flow.output() {
            Output::Idle => (Output::Ended, true),
            Output::Sending => (Output::SendingLast, false),
            Output::SendingLast | Output::Ended => return false,
        };
        self.flow.set_output(next);
        is_now
    }

    /// Returns whether the end of the stream to this side waits for the send in flight.
    pub(in crate::shard) fn is_end_due(&self) -> bool {
        self.flow.output() == Output::SendingLast
    }

    /// Returns whether the balancer ended the stream to this side.
    pub(in crate::shard) fn is_ended(&self) -> bool {
        self.flow.output() == Output::Ended
    }

    /// Returns whether both streams of this side have ended, and all was sent.
    pub(in crate::shard) fn is_done(&self) -> bool {
        self.has_finished() && self.is_ended()
    }

    /// Returns whether data from this side is dropped: its receiver has been sent a Close frame, or
    /// is gone.
    pub(in crate::shard) fn is_dropped(&self) -> bool {
        self.flow.cut() == Cut::Made
    }

    /// Drops data from this side from now on: a Close frame follows all that came, or its receiver
    /// is gone.
    pub(in crate::shard) fn cut(&mut self) {
        if !self.is_dropped() {
            self.flow.set_cut(Cut::Made);
        }
    }

    /// Returns whether a Close frame follows the next whole frame from this side.
    pub(in crate::shard) fn is_cut_due(&self) -> bool {
        self.flow.cut() == Cut::Due
    }

    /// Lets a Close frame follow the next whole frame from this side.
    pub(in crate::shard) fn cut_at_boundary(&mut self) {
        self.flow.set_cut(Cut::Due);
    }

    /// Returns whether this side was sent a Close frame by the balancer.
    pub(in crate::shard) fn is_closed(&self) -> bool {
        self.flow.has(mark::CLOSED)
    }

    /// Records that this side was sent a Close frame by the balancer.
    pub(in crate::shard) fn close(&mut self) {
        self.flow.set(mark::CLOSED);
    }

    /// Detaches it from the other side, which is gone.
    pub(in crate::shard) fn leave_alone(&mut self, id: ConnId) {
        self.peer = id;
        self.cut();
    }

    /// Records that its backend was lost in the middle of a frame.
    pub(in crate::shard) fn tear(&mut self) {
        self.flow.set(mark::TORN);
    }

    /// Returns whether its backend was lost in the middle of a frame: only a reset can follow.
    pub(in crate::shard) fn is_torn(&self) -> bool {
        self.flow.has(mark::TORN)
    }

    /// Lets its Close frame have this code.
    pub(in crate::shard) fn set_close_code(&mut self, code: u16) {
        if code == CloseCode::GOING_AWAY.get() {
            self.flow.set(mark::GOING_AWAY);
        } else if code == CloseCode::POLICY_VIOLATION.get() {
            self.flow.set(mark::BEYOND_RATE);
        }
    }

    /// Returns the code for its client.
    pub(in crate::shard) fn close_code(&self) -> u16 {
        if self.flow.has(mark::GOING_AWAY) {
            CloseCode::GOING_AWAY.get()
        } else if self.flow.has(mark::BEYOND_RATE) {
            CloseCode::POLICY_VIOLATION.get()
        } else {
            CloseCode::SERVICE_RESTART.get()
        }
    }

    /// Returns whether its deadline ends it; if not, only silence does.
    pub(in crate::shard) fn is_timed(&self) -> bool {
        self.flow.has(mark::TIMED)
    }

    pub(super) fn set_timed(&mut self) {
        self.flow.set(mark::TIMED);
    }

    /// Returns whether it passes bytes through that are not frames: each end of a stream is passed
    /// on, and no Close frame is sent.
    pub(in crate::shard) fn is_unframed(&self) -> bool {
        self.flow.has(mark::UNFRAMED)
    }

    /// Returns the rule between its states that it breaks, if it breaks one.
    pub(in crate::shard) fn broken_rule(&self) -> Option<&'static str> {
        if self.is_backend() && self.is_closed() {
            Some("a backend was sent a Close frame")
        } else if !self.is_backend() && self.is_cut_due() {
            Some("a Close frame is due for a backend")
        } else {
            self.flow.broken_rule()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every legal transition, as a person would draw it.
    const LEGAL: &str = "
        Open        -> Paused
        Paused      -> Open
        Silent      -> Open
        None        -> Due Made
        Due         -> Made
        Made        ->
        Idle        -> Sending Ended
        Sending     -> Idle SendingLast
        SendingLast -> Ended
        Ended       ->";

    fn draw<S: Copy + std::fmt::Debug>(all: &[S], may_become: impl Fn(S, S) -> bool) -> String {
        let mut drawn = String::new();
        for &state in all {
            drawn += &format!("\n        {:<11} ->", format!("{state:?}"));
            for &next in all.iter().filter(|&&next| may_become(state, next)) {
                drawn += &format!(" {next:?}");
            }
        }
        drawn
    }

    #[test]
    fn the_legal_transitions_are_these() {
        let input = draw(&Input::ALL, Input::may_become);
        let (cut, output) =
            (draw(&Cut::ALL, Cut::may_become), draw(&Output::ALL, Output::may_become));
        assert_eq!([input, cut, output].concat(), LEGAL);
    }

    #[test]
    fn each_part_is_held_apart_and_a_side_is_direct_where_nothing_is_in_the_way() {
        let (mut legal, mut direct) = (0, Vec::new());
        for (input, cut) in Input::ALL.iter().flat_map(|input| Cut::ALL.map(|cut| (*input, cut))) {
            for output in Output::ALL {
                for flags in 0..1 << 6 {
                    let flags = flags * mark::FINISHED;
                    let bits = (input as u16) << part::INPUT | (cut as u16) << part::CUT;
                    let flow = TunnelFlow(bits | (output as u16) << part::OUTPUT | flags);
                    assert_eq!((flow.input(), flow.cut(), flow.output()), (input, cut, output));
                    assert_eq!(flow.has(mark::FINISHED), flags & mark::FINISHED != 0);
                    legal += usize::from(flow.broken_rule().is_none());
                    if !flow.has(part::SLOW_PATH | mark::FINISHED) {
                        direct.push((input, cut, flow.has(mark::CLOSED)));
                    }
                }
            }
        }
        assert!(direct.iter().all(|set| *set == (Input::Open, Cut::None, false)) && legal > 0);
    }

    #[test]
    fn the_sets_that_are_never_seen_break_a_rule() {
        let set = |input: Input, cut: Cut, flags| {
            TunnelFlow(input as u16 | (cut as u16) << part::CUT | flags).broken_rule()
        };
        assert!(set(Input::Silent, Cut::None, 0).is_some());
        assert!(set(Input::Open, Cut::Made, mark::UNFRAMED).is_some());
        assert!(set(Input::Open, Cut::None, mark::UNFRAMED | mark::CLOSED).is_some());
        assert!(set(Input::Open, Cut::None, mark::TORN).is_some());
        // Paused and cut; ended while cut; silent to its end; alone without the end of a frame.
        for (input, cut, flags) in [
            (Input::Paused, Cut::Made, 0),
            (Input::Paused, Cut::Due, mark::FINISHED),
            (Input::Silent, Cut::None, mark::UNFRAMED | mark::FINISHED),
            (Input::Open, Cut::Made, mark::TORN | mark::CLOSED),
        ] {
            assert_eq!(set(input, cut, flags), None);
        }
    }

    #[test]
    fn every_flow_that_may_move_comes_back_and_no_other_is_taken() {
        let mut moved = 0;
        for bits in 0..=u16::MAX {
            let frozen = throng_carry::freeze(&TunnelFlow(bits));
            if let Ok(flow) = throng_carry::thaw::<TunnelFlow>(&frozen) {
                assert_eq!(flow.0, bits);
                assert!(flow.may_move() && flow.broken_rule().is_none());
                moved += 1;
            }
        }
        // Idle or sending; framed: open or paused, each without a meter, with one, or beyond it;
        // unframed: open, paused or silent.
        assert_eq!(moved, 2 * (2 * 3 + 3));
    }

    #[test]
    fn times_of_a_side_go_on() {
        let opened = EighthTick(80);
        let side = Tunnel {
            peer: ConnId::new(0, 1, 0),
            boundary: Boundary::new(),
            count: None,
            seen: EighthTick(96),
            opened,
            flow: TunnelFlow(0),
            class: 0,
        };
        let (moved, _) = side.freeze(EighthTick(100));
        let moved = throng_carry::thaw(&throng_carry::freeze(&moved)).unwrap();
        let side = Tunnel::thaw(moved, ConnId::new(0, 2, 0), None, EighthTick(1_001), 125);
        assert_eq!((side.seen, side.opened), (EighthTick(996), EighthTick(980)));
        assert_eq!(side.peer, ConnId::new(0, 2, 0));
    }
}
