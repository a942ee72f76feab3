//! How long callbacks hold a shard, and which route they belong to.
//!
//! A shard serves thousands of connections on one thread: while a callback computes, or waits, all of them wait. The
//! clock is too dear to be read for each message, so it is read once more at the end of each turn, and only what the
//! turn's callbacks have in common is kept: their route, if it is one. After a turn that took too long the shard is
//! careful for a while: it reads the clock after each event, and so knows exactly which of them it was.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_io::Instant;

/// How long a shard is careful after a stall.
const CAREFUL: Duration = Duration::from_secs(10);

/// The longest turn is that of two windows of this length at least.
const WINDOW: Duration = Duration::from_secs(1);

/// Callbacks held a shard for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The shard.
    pub shard: usize,
    /// Whose callbacks.
    pub blame: Blame,
    /// For how long nobody else on the shard was served.
    pub length: Duration,
}

/// Who was called while a shard was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// This route alone, as the service numbers them in [`Cx::enter_route`](crate::Cx::enter_route).
    Route(u32),
    /// Several routes: not known which. The shard is careful from now on.
    Several,
    /// No route: the engine took so long, or the system let it wait.
    Nobody,
}

/// What is measured, and who is told.
#[derive(Clone)]
pub struct Watching {
    /// A turn, or a callback, that takes so long is a stall; 0 = nothing is.
    pub warning: Duration,
    /// Called on the shard's thread; a panic in it is caught.
    pub on_stall: Arc<dyn Fn(Stall) + Send + Sync>,
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("warning", &self.warning).finish_non_exhaustive()
    }
}

/// Where a shard is, for other threads.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// One more than the route that was called last in this turn; 0: none was.
    route: AtomicU32,
    turns: AtomicU64,
}

/// Where a shard was at one moment. If a later one equals it, the shard is still in the same turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    turns: u64,
    /// The route that was called last in this turn.
    pub route: Option<u32>,
}

impl Board {
    pub(crate) fn read(&self) -> Whereabouts {
        Whereabouts {
            turns: self.turns.load(Ordering::Relaxed),
            route: self.route.load(Ordering::Relaxed).checked_sub(1),
        }
    }
}

/// What turns have taken, of one shard or of many together.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// In nanoseconds, as the rest.
    busy: AtomicU64,
    longest: AtomicU64,
    /// The longest before, and when it became that.
    before: Mutex<Option<(std::time::Instant, u64)>>,
}

impl Load {
    pub(crate) fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy.load(Ordering::Relaxed))
    }

    /// Whoever reads begins a new window, if the last is a second old: nothing is lost between two readings, however
    /// far apart they are, and two readers do not take it from each other.
    pub(crate) fn longest(&self) -> Duration {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: std::time::Instant| at.elapsed() < WINDOW;
        let longest = match *before {
            Some((at, longest)) if is_recent(at) => {
                longest.max(self.longest.load(Ordering::Relaxed))
            }
            _ => {
                let longest = self.longest.swap(0, Ordering::Relaxed);
                *before = Some((std::time::Instant::now(), longest));
                longest
            }
        };
        Duration::from_nanos(longest)
    }
}

/// A shard's own measurement.
#[derive(Debug)]
pub(crate) struct Watch {
    board: Arc<Board>,
    load: Arc<Load>,
    /// Others add to the same load.
    is_common: bool,
    shard: usize,
    /// Nothing is measured without it.
    watching: Option<Watching>,
    /// Nanoseconds that are a stall; the most there are where nothing is one.
    patience: u64,
    /// The bits that all routes called since the last lap have, and those that any has, each by its number and one:
    /// equal if it was one route. That is two instructions a message, and no branch.
    every: u32,
    any: u32,
    busy: u64,
    turns: u64,
    turn_began: Instant,
    lap_began: Instant,
    is_careful: bool,
    careful_until: Instant,
}

impl Watch {
    pub(crate) fn new(
        shard: usize,
        watching: Option<Watching>,
        board: Arc<Board>,
        load: Arc<Load>,
    ) -> Self {
        let warning = watching.as_ref().map_or(Duration::ZERO, |watching| watching.warning);
        let patience = match u64::try_from(warning.as_nanos()) {
            Ok(nanos) if nanos > 0 => nanos,
            _ => u64::MAX,
        };
        Self {
            board,
            load,
            is_common: false,
            shard,
            watching,
            patience,
            every: u32::MAX,
            any: 0,
            busy: 0,
            turns: 0,
            turn_began: Instant(0),
            lap_began: Instant(0),
            is_careful: false,
            careful_until: Instant(0),
        }
    }

    /// The same for one of many shards with a load in common: each has one connection, and holds up nobody else.
    pub(crate) fn of_one_connection(mut self) -> Self {
        self.is_common = true;
        self.patience = u64::MAX;
        self
    }

    /// Whether it wants to know when a turn ends.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.watching.is_some()
    }

    /// Whether it wants to know of each event's end.
    #[inline]
    pub(crate) fn is_careful(&self) -> bool {
        self.is_careful
    }

    /// A callback of `route` follows.
    #[inline(always)]
    pub(crate) fn enter(&mut self, route: u32) {
        let mark = route.wrapping_add(1);
        self.board.route.store(mark, Ordering::Relaxed);
        self.every &= mark;
        self.any |= mark;
    }

    /// The route that was entered last in this turn.
    pub(crate) fn entered(&self) -> Option<u32> {
        self.board.read().route
    }

    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        (self.turn_began, self.lap_began) = (now, now);
    }

    /// While careful: an event has been dealt with.
    #[cold]
    pub(crate) fn lap(&mut self, now: Instant) {
        let length = now.0.saturating_sub(self.lap_began.0);
        if length >= self.patience {
            self.tell(length);
            self.careful_until = now.after(CAREFUL);
        }
        self.lap_began = now;
        (self.every, self.any) = (u32::MAX, 0);
    }

    #[inline]
    pub(crate) fn end_turn(&mut self, now: Instant) {
        let length = now.0.saturating_sub(self.turn_began.0);
        self.busy += length;
        self.turns += 1;
        match self.is_common {
            false => self.load.busy.store(self.busy, Ordering::Relaxed),
            true => drop(self.load.busy.fetch_add(length, Ordering::Relaxed)),
        }
        if length > self.load.longest.load(Ordering::Relaxed) {
            self.load.longest.fetch_max(length, Ordering::Relaxed);
        }
        if self.is_careful || length >= self.patience {
            self.judge(now, length);
        }
        (self.every, self.any) = (u32::MAX, 0);
        self.board.route.store(0, Ordering::Relaxed);
        self.board.turns.store(self.turns, Ordering::Relaxed);
    }

    /// A turn that was watched carefully, or will be.
    #[cold]
    fn judge(&mut self, now: Instant, length: u64) {
        match self.is_careful {
            // What each event took is known, so a turn of many short ones is nobody's fault.
            true => self.lap(now),
            false => self.tell(length),
        }
        if length >= self.patience {
            self.is_careful = true;
            self.careful_until = now.after(CAREFUL);
        } else if now >= self.careful_until {
            self.is_careful = false;
        }
    }

    fn tell(&self, nanos: u64) {
        let blame = match (self.every, self.any) {
            (_, 0) => Blame::Nobody,
            (every, any) if every == any => Blame::Route(any - 1),
            _ => Blame::Several,
        };
        let stall = Stall { shard: self.shard, blame, length: Duration::from_nanos(nanos) };
        if let Some(Watching { on_stall, .. }) = &self.watching {
            // Somebody else's code, outside of any callback's guard.
            let told = catch_unwind(AssertUnwindSafe(|| on_stall(stall)));
            if let Err(payload) = told {
                std::mem::forget(payload);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    struct Bench {
        watch: Watch,
        now: u64,
        told: Arc<Mutex<Vec<(Blame, u64)>>>,
    }

    impl Bench {
        fn new(warning_ms: u64) -> Self {
            let told = Arc::new(Mutex::new(Vec::new()));
            let heard = Arc::clone(&told);
            let watching = Watching {
                warning: Duration::from_millis(warning_ms),
                on_stall: Arc::new(move |stall| {
                    assert_eq!(stall.shard, 3);
                    heard.lock().unwrap().push((stall.blame, stall.length.as_millis() as u64));
                }),
            };
            let watch = Watch::new(3, Some(watching), Arc::default(), Arc::default());
            Self { watch, now: 5 * MS, told }
        }

        /// A turn of events, each of a route and milliseconds, as the shard has them.
        fn turn(&mut self, events: &[(u32, u64)]) -> Vec<(Blame, u64)> {
            self.watch.begin_turn(Instant(self.now));
            for &(route, ms) in events {
                self.watch.enter(route);
                self.now += ms * MS;
                if self.watch.is_careful() {
                    self.watch.lap(Instant(self.now));
                }
            }
            self.watch.end_turn(Instant(self.now));
            std::mem::take(&mut *self.told.lock().unwrap())
        }
    }

    #[test]
    fn a_long_turn_of_one_route_is_its_stall_and_a_short_one_is_none() {
        let mut bench = Bench::new(50);
        assert_eq!(bench.turn(&[(7, 49)]), []);
        assert_eq!(bench.turn(&[(7, 1), (7, 80)]), [(Blame::Route(7), 81)]);
        assert_eq!(bench.turn(&[]), []);
        let mut bench = Bench::new(50);
        assert_eq!(bench.turn(&[(0, 50)]), [(Blame::Route(0), 50)]);
    }

    #[test]
    fn of_several_routes_in_a_turn_careful_mode_tells_which() {
        let mut bench = Bench::new(50);
        assert_eq!(bench.turn(&[(1, 2), (2, 90), (3, 2)]), [(Blame::Several, 94)]);
        let turn = [(1, 2), (2, 90), (3, 2), (1, 60)];
        assert_eq!(bench.turn(&turn), [(Blame::Route(2), 90), (Blame::Route(1), 60)]);
    }

    #[test]
    fn a_careful_shard_does_not_blame_a_crowd_of_short_callbacks() {
        let mut bench = Bench::new(50);
        let crowd = [(1, 20), (2, 20), (1, 20)];
        assert_eq!(bench.turn(&crowd), [(Blame::Several, 60)]);
        assert_eq!(bench.turn(&crowd), []);
        assert!(bench.watch.is_careful());
    }

    #[test]
    fn carefulness_ends_ten_seconds_after_the_last_stall() {
        let mut bench = Bench::new(50);
        bench.turn(&[(1, 50)]);
        bench.now += 9_999 * MS;
        bench.turn(&[(1, 0)]);
        assert!(bench.watch.is_careful());
        bench.turn(&[(1, 50)]);
        bench.now += 9_999 * MS;
        bench.turn(&[(1, 0)]);
        assert!(bench.watch.is_careful(), "the second stall began the ten seconds anew");
        bench.now += MS;
        bench.turn(&[(1, 0)]);
        assert!(!bench.watch.is_careful());
    }

    #[test]
    fn time_without_a_callback_is_nobodys() {
        let mut bench = Bench::new(50);
        bench.watch.begin_turn(Instant(bench.now));
        bench.now += 70 * MS;
        assert_eq!(bench.turn_end(), [(Blame::Nobody, 70)]);
    }

    impl Bench {
        fn turn_end(&mut self) -> Vec<(Blame, u64)> {
            self.watch.end_turn(Instant(self.now));
            std::mem::take(&mut *self.told.lock().unwrap())
        }
    }

    #[test]
    fn zero_is_off_and_time_is_measured_all_the_same() {
        let mut bench = Bench::new(0);
        assert_eq!(bench.turn(&[(1, 5_000)]), []);
        bench.now += 1_000 * MS;
        assert_eq!(bench.turn(&[(1, 7)]), []);
        assert_eq!(bench.watch.load.busy(), Duration::from_millis(5_007));
        assert_eq!(bench.watch.load.longest(), Duration::from_secs(5));
    }

    #[test]
    fn a_hook_that_panics_is_no_end_of_the_shard() {
        let mut bench = Bench::new(50);
        let on_stall: Arc<dyn Fn(Stall) + Send + Sync> = Arc::new(|_| panic!("a bug of theirs"));
        bench.watch.watching = Some(Watching { warning: Duration::from_millis(50), on_stall });
        bench.turn(&[(1, 60)]);
        assert!(bench.watch.is_careful());
    }

    #[test]
    fn others_see_which_route_holds_the_shard() {
        let mut bench = Bench::new(50);
        let board = Arc::clone(&bench.watch.board);
        assert_eq!(board.read().route, None);
        bench.watch.begin_turn(Instant(0));
        bench.watch.enter(4);
        let at = board.read();
        assert_eq!((at.route, board.read() == at), (Some(4), true));
        bench.turn_end();
        bench.watch.enter(4);
        assert_ne!(board.read(), at, "the same route in another turn");
    }
}
