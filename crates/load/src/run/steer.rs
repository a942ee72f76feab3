//! The steering thread: waits for the phases of a run and samples the processes at their edges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use throng_io::Instant;

use crate::client::PoolShared;
use crate::clock::Clock;
use crate::error::Error;
use crate::progress::{Progress, RunStage};
use crate::sampled::{Moment, Sampled};
use crate::sampler::{MachineSample, Processes};

/// Interval at which progress is reported and `stop` is read.
const TICK: Duration = Duration::from_millis(100);

/// Steering of a run by its main thread.
pub struct Steering<'a> {
    pub clock: Clock,
    shared: &'a PoolShared,
    server: Option<&'a Processes>,
    setup_timeout: Duration,
    stop: &'a AtomicBool,
    watch: &'a mut dyn FnMut(&Progress),
    begun: Instant,
    last: (Instant, u64),
}

impl<'a> Steering<'a> {
    pub fn new(
        clock: Clock,
        shared: &'a PoolShared,
        server: Option<&'a Processes>,
        setup_timeout: Duration,
        stop: &'a AtomicBool,
        watch: &'a mut dyn FnMut(&Progress),
    ) -> Self {
        Self {
            clock,
            shared,
            server,
            setup_timeout,
            stop,
            watch,
            begun: clock.now(),
            last: (clock.now(), 0),
        }
    }

    /// True if the run must end early.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.shared.is_finishing()
    }

    /// Waits until `wanted` connections are open; returns the time since the threads were started.
    pub fn ready(&mut self, wanted: usize) -> Result<Duration, Error> {
        let start = self.begun;
        let (mut best, mut since) = (0, start);
        loop {
            let ready = self.shared.sum(|lane| &lane.ready);
            let now = self.clock.now();
            if ready >= wanted as u64 {
                return Ok(now.since(start));
            }
            if ready > best {
                (best, since) = (ready, now);
            }
            if self.is_over() {
                return Err(Error::Interrupted);
            }
            // Waits a second longer than the engine's handshake timeout, whose own message is
            // better.
            if now.since(since) > self.setup_timeout + Duration::from_secs(1) {
                let after = self.setup_timeout;
                return Err(Error::SetupTimeout { ready: ready as usize, wanted, after });
            }
            self.tell(RunStage::Connecting { ready, wanted: wanted as u64 });
            // The first waits are short: a small pool is ready in a millisecond.
            thread::sleep(now.since(start).clamp(Duration::from_micros(200), TICK / 5));
        }
    }

    /// Waits until `then`, and passes the time since `from` to `stage`. Returns false if the run
    /// must end before.
    pub fn until(
        &mut self,
        then: Instant,
        from: Instant,
        stage: impl Fn(Duration) -> RunStage,
    ) -> bool {
        loop {
            let left = self.clock.until(then);
            if left.is_zero() {
                return true;
            }
            if self.is_over() {
                return false;
            }
            self.tell(stage(self.clock.now().since(from)));
            thread::sleep(left.min(TICK));
        }
    }

    /// Waits for a condition that the threads establish. Returns false if the run must end before,
    /// or after `limit`.
    pub fn wait_for(
        &mut self,
        limit: Duration,
        condition: impl Fn() -> bool,
        stage: impl Fn() -> RunStage,
    ) -> bool {
        let start = self.clock.now();
        while !condition() {
            if self.is_over() || self.clock.now().since(start) > limit {
                return false;
            }
            self.tell(stage());
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits until each sent message has its answer, for at most `limit`.
    pub fn drain(&mut self, limit: Duration) {
        let shared = self.shared;
        let waiting =
            || shared.sum(|lane| &lane.sent).saturating_sub(shared.sum(|lane| &lane.done));
        self.wait_for(limit, || waiting() == 0, || RunStage::Draining { waiting: waiting() });
    }

    /// Waits until all of `total` messages are done, or no answer has arrived for `limit`.
    pub fn count(&mut self, total: u64, limit: Duration, left: impl Fn(&PoolShared) -> u64) {
        let shared = self.shared;
        let is_done = || left(shared) == 0;
        let stage = || RunStage::Counting { done: total.saturating_sub(left(shared)), total };
        let mut before = u64::MAX;
        while left(shared) != before && !self.is_over() {
            before = left(shared);
            if self.wait_for(limit, is_done, stage) {
                return;
            }
        }
    }

    /// CPU times and counts now.
    pub fn moment(&self) -> Moment {
        // Reads the server's CPU time and the count together, because their ratio is the important
        // figure.
        let server = self.server.and_then(|server| server.cpu(self.clock.now().0));
        let (done, at) = (self.shared.sum(|lane| &lane.done), self.clock.now());
        let own = Processes::own().cpu(at.0);
        Moment { at, done, server, own, machine: MachineSample::now() }
    }

    /// Ends a measurement that began at `begin`.
    pub fn measured(&self, begin: Moment) -> Sampled {
        let end = self.moment();
        Sampled {
            begin,
            end,
            cut_short: self.stop.load(Ordering::Relaxed),
            server_memory: self.server.and_then(Processes::memory),
            server_descriptors: self.server.and_then(Processes::descriptors),
            own_memory: Processes::own().memory(),
        }
    }

    fn tell(&mut self, stage: RunStage) {
        let (now, done) = (self.clock.now(), self.shared.sum(|lane| &lane.done));
        let elapsed = now.since(self.last.0);
        if elapsed < TICK {
            return;
        }
        let per_s = done.saturating_sub(self.last.1) as f64 / elapsed.as_secs_f64();
        self.last = (now, done);
        let connections = self.shared.sum(|lane| &lane.ready);
        (self.watch)(&Progress { stage, connections, done, per_s });
    }
}
