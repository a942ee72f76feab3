//! Times of a shard: the clock, and what is measured or bounded with it.

use throng_io::{Clock, ConnId, Instant};

use crate::conn::input_time::InputTime;
use crate::samples::{Measured, Samples, is_sampled};
use crate::stalls::Watch;

/// The clock, the time that input may take, and measurements of turns and of a sample of events.
#[derive(Debug)]
pub(crate) struct Clocks {
    clock: Clock,
    input_time: InputTime,
    watch: Watch,
    samples: Samples,
}

impl Clocks {
    pub(crate) fn new(clock: Clock, watch: Watch, samples: Samples) -> Self {
        Self { clock, input_time: InputTime::new(), watch, samples }
    }

    /// Reads the clock.
    #[inline]
    pub(crate) fn read(&self) -> Instant {
        self.clock.read()
    }

    /// Returns whether the time is the system's, and not simulated.
    pub(crate) fn is_system(&self) -> bool {
        matches!(self.clock, Clock::System)
    }

    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.input_time.begin_turn();
        self.watch.begin_turn(now);
    }

    /// Measures the time since the last checkpoint, after each step that may have called a handler,
    /// while fine-grained timing is on.
    #[inline]
    pub(crate) fn checkpoint(&mut self) {
        if self.watch.is_fine_grained() {
            let now = self.clock.read();
            self.watch.checkpoint(now);
        }
    }

    pub(crate) fn end_turn(&mut self) {
        if self.watch.is_on() {
            let now = self.clock.read();
            self.watch.end_turn(now);
            self.samples.end_turn(now);
        }
    }

    /// Counts an event that others of the same read follow; returns whether the rest of the input
    /// must wait.
    #[inline(always)]
    pub(crate) fn is_up(&mut self, id: ConnId) -> bool {
        self.input_time.is_up(id, &self.clock)
    }

    /// Counts as many more events, where one costs as much as several.
    pub(crate) fn spend(&mut self, events: u32) {
        self.input_time.spend(events);
    }

    /// Returns what attributes the time of a turn.
    #[inline(always)]
    pub(crate) fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Returns the route entered last in this turn.
    pub(crate) fn entered(&self) -> Option<u32> {
        self.watch.entered()
    }

    /// Returns what was measured so far.
    pub(crate) fn measured(&self) -> &Measured {
        &self.samples.measured
    }

    /// Returns the sample of events that is measured now.
    pub(crate) fn samples(&mut self) -> &mut Samples {
        &mut self.samples
    }

    /// Begins to measure the request with this number, if it is of the sample.
    pub(crate) fn begin_request(&mut self, id: ConnId, number: u64) {
        if is_sampled(number) {
            self.samples.begin_request(id, self.clock.read());
        }
    }

    /// Ends the measurement of a request.
    pub(crate) fn end_request(&mut self, id: ConnId) {
        self.samples.end_request(id, || self.clock.read());
    }

    /// Ends the measurements of a connection whose session opens.
    pub(crate) fn open(&mut self, id: ConnId) {
        self.samples.open(id, || self.clock.read());
        self.samples.forget(id);
    }
}
