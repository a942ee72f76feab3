//! Detection of stalls: callbacks that hold a shard too long, and their route.
//!
//! A shard serves thousands of connections on one thread: while a callback computes or waits, all
//! of them wait. Reading the clock for each message would cost too much. So the shard reads the
//! clock once more at the end of each turn, and keeps only the route of the turn's callbacks, if
//! all had the same route. After a turn that took too long the shard uses fine-grained timing for a
//! while: it reads the clock after each event, and so finds the long event.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_io::Instant;

use crate::histogram::{Histogram, SharedHistogram};
use crate::run_delay::RunDelay;

/// Time for which a shard uses fine-grained timing after a stall.
const FINE_GRAINED: Duration = Duration::from_secs(10);

/// Length of a window; the longest turn covers at least two of them.
const WINDOW: Duration = Duration::from_secs(1);

/// A stall: callbacks held a shard for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The shard.
    pub shard: usize,
    /// The route of the callbacks.
    pub culprit: Culprit,
    /// Time for which no other connection of the shard was served.
    pub length: Duration,
}

/// Route of the callbacks that held a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// One route alone, as the service numbers them in [`Cx::enter_route`](crate::Cx::enter_route).
    Route(u32),
    /// Several routes: it is not known which. The shard uses fine-grained timing from now on.
    Several,
    /// No route: the engine took so long, or the system did not run the thread.
    NoRoute,
}

/// Settings of stall detection, with the callback for stalls.
#[derive(Clone)]
pub struct Watching {
    /// Duration of a turn, or a callback, that is a stall; 0 = off.
    pub warning: Duration,
    /// Called on the shard's thread; a panic in it is caught.
    pub on_stall: Arc<dyn Fn(Stall) + Send + Sync>,
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("warning", &self.warning).finish_non_exhaustive()
    }
}

/// Progress of a shard, shared with other threads.
#[derive(Debug, Default)]
pub(crate) struct SharedProgress {
    /// Route called last in this turn, plus one; 0 = none.
    route: AtomicU32,
    turns: AtomicU64,
}

/// Progress of a shard at one moment. If a later one equals it, the shard is still in the same
/// turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardProgress {
    /// The turns that have ended.
    pub turns: u64,
    /// The route that was called last in this turn.
    pub route: Option<u32>,
}

impl SharedProgress {
    pub(crate) fn read(&self) -> ShardProgress {
        ShardProgress {
            turns: self.turns.load(Ordering::Relaxed),
            route: self.route.load(Ordering::Relaxed).checked_sub(1),
        }
    }
}

/// Duration of turns, of one shard or of many together.
#[derive(Debug, Default)]
pub(crate) struct Load {
    turns: SharedHistogram,
    /// In nanoseconds.
    longest: AtomicU64,
    /// The longest turn of the window before, and when that was read.
    before: Mutex<Option<(std::time::Instant, u64)>>,
}

impl Load {
    pub(crate) fn busy(&self) -> Duration {
        self.turns.sum()
    }

    pub(crate) fn turns(&self) -> Histogram {
        self.turns.read()
    }

    /// Returns the longest turn. A read begins a new window if the last window is a second old: no
    /// turn is lost between two reads, even if they are far apart, and two readers do not take it
    /// from each other.
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

/// Marks deliveries in [`Watch::every`] and [`Watch::any`]: the number of a route that does not
/// exist.
const DELIVERY: u32 = u32::MAX;

/// A shard's own measurement.
#[derive(Debug)]
pub(crate) struct Watch {
    progress: Arc<SharedProgress>,
    load: Arc<Load>,
    /// Whether other shards add to the same load.
    is_common: bool,
    shard: usize,
    /// Settings; nothing is measured without them.
    watching: Option<Watching>,
    /// Nanoseconds from which a turn is a stall; `u64::MAX` if stalls are not reported.
    threshold: u64,
    /// The bitwise AND and OR of the numbers, plus one, of all routes called since the last
    /// checkpoint. The two are equal if only one route was called. This costs two instructions a
    /// message, and no branch.
    every: u32,
    any: u32,
    turns: u64,
    turn_began: Instant,
    checkpoint_at: Instant,
    is_fine_grained: bool,
    fine_grained_until: Instant,
    run_delay: RunDelay,
}

impl Watch {
    pub(crate) fn new(
        shard: usize,
        watching: Option<Watching>,
        progress: Arc<SharedProgress>,
        load: Arc<Load>,
    ) -> Self {
        let warning = watching.as_ref().map_or(Duration::ZERO, |watching| watching.warning);
        let threshold = match u64::try_from(warning.as_nanos()) {
            Ok(nanos) if nanos > 0 => nanos,
            _ => u64::MAX,
        };
        Self {
            progress,
            load,
            is_common: false,
            shard,
            watching,
            threshold,
            every: u32::MAX,
            any: 0,
            turns: 0,
            turn_began: Instant(0),
            checkpoint_at: Instant(0),
            is_fine_grained: false,
            fine_grained_until: Instant(0),
            run_delay: RunDelay::default(),
        }
    }

    /// Adapts it to one of many shards with a common load: each has one connection, and delays no
    /// other.
    pub(crate) fn of_one_connection(mut self) -> Self {
        self.is_common = true;
        self.threshold = u64::MAX;
        self
    }

    /// Samples for how long the kernel did not run this thread, about once a second: callbacks did
    /// not cause that part of a stall.
    pub(crate) fn sample_run_delay(&mut self) {
        if self.threshold < u64::MAX {
            self.run_delay.sample();
        }
    }

    /// Returns whether turns are measured.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.watching.is_some()
    }

    /// Returns whether each event is measured.
    #[inline]
    pub(crate) fn is_fine_grained(&self) -> bool {
        self.is_fine_grained
    }

    /// Records that a callback of `route` follows.
    #[inline(always)]
    pub(crate) fn enter(&mut self, route: u32) {
        let mark = route.wrapping_add(1);
        self.progress.route.store(mark, Ordering::Relaxed);
        self.every &= mark;
        self.any |= mark;
    }

    /// Records that publications are delivered. Otherwise a turn that spends long on deliveries
    /// would be attributed to the route of a handler that ran in it.
    #[inline]
    pub(crate) fn deliver(&mut self) {
        self.every &= DELIVERY;
        self.any |= DELIVERY;
    }

    /// Returns the route entered last in this turn.
    pub(crate) fn entered(&self) -> Option<u32> {
        self.progress.read().route
    }

    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        (self.turn_began, self.checkpoint_at) = (now, now);
    }

    /// Measures an event, during fine-grained timing.
    #[cold]
    pub(crate) fn checkpoint(&mut self, now: Instant) {
        let length = now.0.saturating_sub(self.checkpoint_at.0);
        if length >= self.threshold {
            self.report(length);
            self.fine_grained_until = now.after(FINE_GRAINED);
        }
        self.checkpoint_at = now;
        (self.every, self.any) = (u32::MAX, 0);
    }

    #[inline]
    pub(crate) fn end_turn(&mut self, now: Instant) {
        let length = now.0.saturating_sub(self.turn_began.0);
        self.turns += 1;
        match self.is_common {
            false => self.load.turns.record_alone(length),
            true => self.load.turns.record(length),
        }
        if length > self.load.longest.load(Ordering::Relaxed) {
            self.load.longest.fetch_max(length, Ordering::Relaxed);
        }
        if self.is_fine_grained || length >= self.threshold {
            self.adjust(now, length);
        }
        (self.every, self.any) = (u32::MAX, 0);
        self.progress.route.store(0, Ordering::Relaxed);
        self.progress.turns.store(self.turns, Ordering::Relaxed);
    }

    /// Handles a stalled turn, or one with fine-grained timing.
    #[cold]
    fn adjust(&mut self, now: Instant, length: u64) {
        match self.is_fine_grained {
            // The duration of each event is known, so a turn of many short events is not a stall.
            true => self.checkpoint(now),
            false => self.report(length),
        }
        if length >= self.threshold {
            self.is_fine_grained = true;
            self.fine_grained_until = now.after(FINE_GRAINED);
        } else if now >= self.fine_grained_until {
            self.is_fine_grained = false;
        }
    }

    fn report(&mut self, nanos: u64) {
        let ran_or_slept = nanos.saturating_sub(self.run_delay.since_sample());
        let culprit = match (self.every, self.any) {
            _ if ran_or_slept < self.threshold => Culprit::NoRoute,
            (_, 0) => Culprit::NoRoute,
            (DELIVERY, DELIVERY) => Culprit::NoRoute,
            (every, any) if every == any => Culprit::Route(any - 1),
            _ => Culprit::Several,
        };
        let stall = Stall { shard: self.shard, culprit, length: Duration::from_nanos(nanos) };
        if let Some(Watching { on_stall, .. }) = &self.watching {
            // User code, outside of any callback's guard.
            let reported = catch_unwind(AssertUnwindSafe(|| on_stall(stall)));
            if let Err(payload) = reported {
                std::mem::forget(payload);
            }
        }
        // The next stall is not excused by the same delay.
        self.sample_run_delay();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    struct Bench {
        watch: Watch,
        now: u64,
        reported: Arc<Mutex<Vec<(Culprit, u64)>>>,
    }

    impl Bench {
        fn new(warning_ms: u64) -> Self {
            let reported = Arc::new(Mutex::new(Vec::new()));
            let heard = Arc::clone(&reported);
            let watching = Watching {
                warning: Duration::from_millis(warning_ms),
                on_stall: Arc::new(move |stall| {
                    assert_eq!(stall.shard, 3);
                    heard.lock().unwrap().push((stall.culprit, stall.length.as_millis() as u64));
                }),
            };
            let watch = Watch::new(3, Some(watching), Arc::default(), Arc::default());
            Self { watch, now: 5 * MS, reported }
        }

        /// Runs a turn of events, each of a route and milliseconds, as the shard does.
        fn turn(&mut self, events: &[(u32, u64)]) -> Vec<(Culprit, u64)> {
            self.watch.begin_turn(Instant(self.now));
            for &(route, ms) in events {
                self.watch.enter(route);
                self.now += ms * MS;
                if self.watch.is_fine_grained() {
                    self.watch.checkpoint(Instant(self.now));
                }
            }
            self.watch.end_turn(Instant(self.now));
            std::mem::take(&mut *self.reported.lock().unwrap())
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn time_in_which_the_kernel_ran_others_is_no_fault_of_a_callback() {
        let folder = throng_testkit::TempFolder::new("schedstat");
        let file = folder.join("schedstat");
        let delayed_by = |ms: u64| std::fs::write(&file, format!("7 {:>12} 3\n", ms * MS)).unwrap();
        delayed_by(1000);
        let mut bench = Bench::new(50);
        bench.watch.run_delay = RunDelay::of_file(&file);
        delayed_by(1060);
        assert_eq!(bench.turn(&[(4, 100)]), [(Culprit::NoRoute, 100)], "it ran for 40 ms");
        // The delay is part of the sample now.
        assert_eq!(bench.turn(&[(4, 100)]), [(Culprit::Route(4), 100)]);
        delayed_by(1080);
        assert_eq!(bench.turn(&[(4, 100)]), [(Culprit::Route(4), 100)], "it held it for 80 ms");
    }

    #[test]
    fn a_turn_that_delivers_publications_is_not_attributed_to_a_handler() {
        for (route, culprit) in [(Some(3), Culprit::Several), (None, Culprit::NoRoute)] {
            let mut bench = Bench::new(50);
            bench.watch.begin_turn(Instant(bench.now));
            bench.watch.deliver();
            if let Some(route) = route {
                bench.watch.enter(route);
            }
            bench.now += 60 * MS;
            assert_eq!(bench.turn_end(), [(culprit, 60)]);
        }
    }

    #[test]
    fn a_long_turn_of_one_route_is_its_stall_and_a_short_one_is_none() {
        let mut bench = Bench::new(50);
        assert_eq!(bench.turn(&[(7, 49)]), []);
        assert_eq!(bench.turn(&[(7, 1), (7, 80)]), [(Culprit::Route(7), 81)]);
        assert_eq!(bench.turn(&[]), []);
        let mut bench = Bench::new(50);
        assert_eq!(bench.turn(&[(0, 50)]), [(Culprit::Route(0), 50)]);
    }

    #[test]
    fn fine_grained_timing_names_the_route_among_several_in_a_turn() {
        let mut bench = Bench::new(50);
        assert_eq!(bench.turn(&[(1, 2), (2, 90), (3, 2)]), [(Culprit::Several, 94)]);
        let turn = [(1, 2), (2, 90), (3, 2), (1, 60)];
        assert_eq!(bench.turn(&turn), [(Culprit::Route(2), 90), (Culprit::Route(1), 60)]);
    }

    #[test]
    fn fine_grained_timing_reports_no_turn_of_many_short_callbacks() {
        let mut bench = Bench::new(50);
        let crowd = [(1, 20), (2, 20), (1, 20)];
        assert_eq!(bench.turn(&crowd), [(Culprit::Several, 60)]);
        assert_eq!(bench.turn(&crowd), []);
        assert!(bench.watch.is_fine_grained());
    }

    #[test]
    fn fine_grained_timing_ends_ten_seconds_after_the_last_stall() {
        let mut bench = Bench::new(50);
        bench.turn(&[(1, 50)]);
        bench.now += 9_999 * MS;
        bench.turn(&[(1, 0)]);
        assert!(bench.watch.is_fine_grained());
        bench.turn(&[(1, 50)]);
        bench.now += 9_999 * MS;
        bench.turn(&[(1, 0)]);
        assert!(bench.watch.is_fine_grained(), "the second stall restarted the ten seconds");
        bench.now += MS;
        bench.turn(&[(1, 0)]);
        assert!(!bench.watch.is_fine_grained());
    }

    #[test]
    fn time_without_a_callback_has_no_route() {
        let mut bench = Bench::new(50);
        bench.watch.begin_turn(Instant(bench.now));
        bench.now += 70 * MS;
        assert_eq!(bench.turn_end(), [(Culprit::NoRoute, 70)]);
    }

    impl Bench {
        fn turn_end(&mut self) -> Vec<(Culprit, u64)> {
            self.watch.end_turn(Instant(self.now));
            std::mem::take(&mut *self.reported.lock().unwrap())
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
    fn a_hook_that_panics_does_not_end_the_shard() {
        let mut bench = Bench::new(50);
        let on_stall: Arc<dyn Fn(Stall) + Send + Sync> = Arc::new(|_| panic!("a bug of theirs"));
        bench.watch.watching = Some(Watching { warning: Duration::from_millis(50), on_stall });
        bench.turn(&[(1, 60)]);
        assert!(bench.watch.is_fine_grained());
    }

    #[test]
    fn others_see_which_route_holds_the_shard() {
        let mut bench = Bench::new(50);
        let progress = Arc::clone(&bench.watch.progress);
        assert_eq!(progress.read().route, None);
        bench.watch.begin_turn(Instant(0));
        bench.watch.enter(4);
        let at = progress.read();
        assert_eq!((at.route, progress.read() == at), (Some(4), true));
        bench.turn_end();
        bench.watch.enter(4);
        assert_ne!(progress.read(), at, "the same route in another turn");
    }
}
