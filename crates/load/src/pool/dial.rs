//! Decides which connection to make next, and when: limits the connections in progress, and spreads
//! the starts over a ramp. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use throng_io::Instant;

/// Indices of the connections still to make.
#[derive(Debug)]
pub struct Dialler {
    waiting: VecDeque<u32>,
    under_way: usize,
    window: usize,
    start: Instant,
    /// The time between two dials; zero without a ramp.
    gap: Duration,
    dialled: u64,
}

impl Dialler {
    /// Plans `connections` connections, with at most `window` in progress, spread over `ramp` from
    /// `start`.
    pub fn new(connections: usize, window: usize, ramp: Duration, start: Instant) -> Self {
        Self {
            waiting: (0..connections as u32).collect(),
            under_way: 0,
            window: window.max(1),
            start,
            gap: ramp / connections.max(1) as u32,
            dialled: 0,
        }
    }

    /// Returns the next connection to make now, and counts it as in progress.
    pub fn next(&mut self, now: Instant) -> Option<usize> {
        if self.under_way >= self.window || self.next_at().is_some_and(|at| at > now) {
            return None;
        }
        let index = self.waiting.pop_front()?;
        self.under_way += 1;
        self.dialled += 1;
        Some(index as usize)
    }

    /// Returns when the ramp allows the next connection; `None` if the next one does not wait for
    /// the ramp.
    pub fn next_at(&self) -> Option<Instant> {
        if self.gap.is_zero() || self.waiting.is_empty() || self.under_way >= self.window {
            return None;
        }
        let offset = self.gap.as_nanos() as u64 * self.dialled;
        Some(self.start.after(Duration::from_nanos(offset)))
    }

    /// A connection is ready, or has failed.
    pub fn settle(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Makes this connection again, after the waiting ones.
    pub fn again(&mut self, index: usize) {
        self.waiting.push_back(index as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_bounds_what_is_under_way() {
        let mut dialler = Dialler::new(5, 2, Duration::ZERO, Instant(0));
        let now = Instant(1);
        assert_eq!(
            [dialler.next(now), dialler.next(now), dialler.next(now)],
            [Some(0), Some(1), None]
        );
        dialler.settle();
        assert_eq!([dialler.next(now), dialler.next(now)], [Some(2), None]);
        dialler.settle();
        dialler.settle();
        dialler.again(0);
        assert_eq!([dialler.next(now), dialler.next(now)], [Some(3), Some(4)]);
        dialler.settle();
        assert_eq!([dialler.next(now), dialler.next(now)], [Some(0), None]);
    }

    #[test]
    fn a_ramp_spreads_the_dials_evenly() {
        let mut dialler = Dialler::new(10, 100, Duration::from_secs(1), Instant(0));
        let mut times = Vec::new();
        for ms in 0..1000 {
            let now = Instant(ms * 1_000_000);
            while dialler.next(now).is_some() {
                times.push(ms);
            }
        }
        assert_eq!(times, [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
        assert_eq!(dialler.next_at(), None, "nothing left to wait for");
    }
}
