//! Metrics of a pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::histogram::Histogram;

/// Metrics of a pool: totals since it began, and its present state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerMetrics {
    /// Threads.
    pub workers: usize,
    /// Jobs that wait, including jobs outside of the full queue.
    pub queue_depth: usize,
    /// The part of these that waits for room in the queue.
    pub waiting_for_capacity: usize,
    /// Jobs that run.
    pub running: Vec<RunningJob>,
    /// Jobs that have ended, also by a panic.
    pub jobs: u64,
    /// Jobs that were turned away because the queue was full.
    pub refused: u64,
    /// Jobs that were dropped before they ran, because their connection had gone.
    pub cancelled: u64,
    /// Jobs that ended with a panic.
    pub panics: u64,
    /// Time that jobs waited before they ran.
    pub waits: Histogram,
    /// The longest of these waits within the last second, or two.
    pub longest_wait: Duration,
    /// Time that each worker has been busy, including the job it runs now.
    pub busy: Vec<Duration>,
}

/// A job that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningJob {
    /// The route it is for.
    pub route: Arc<str>,
    /// Time that it has run.
    pub runs_for: Duration,
}

/// Recorder of a pool's metrics.
pub(super) struct Recorder {
    workers: Vec<Worker>,
    pub(super) jobs: u64,
    pub(super) refused: u64,
    pub(super) cancelled: u64,
    pub(super) panics: u64,
    waits: Histogram,
    longest: Longest,
}

#[derive(Clone, Default)]
struct Worker {
    busy: Duration,
    runs: Option<(Arc<str>, Instant)>,
}

impl Recorder {
    pub(super) fn new(workers: usize, now: Instant) -> Self {
        Self {
            workers: vec![Worker::default(); workers],
            jobs: 0,
            refused: 0,
            cancelled: 0,
            panics: 0,
            waits: Histogram::default(),
            longest: Longest::new(now),
        }
    }

    /// Records the start of a job.
    pub(super) fn start(
        &mut self,
        worker: usize,
        route: Arc<str>,
        submitted: Instant,
        now: Instant,
    ) {
        let wait = now.saturating_duration_since(submitted);
        self.waits.record(wait);
        self.longest.note(wait, now);
        self.workers[worker].runs = Some((route, now));
    }

    /// Records the end of a job.
    pub(super) fn end(&mut self, worker: usize, now: Instant, panicked: bool) {
        self.jobs += 1;
        self.panics += u64::from(panicked);
        if let Some((_, since)) = self.workers[worker].runs.take() {
            self.workers[worker].busy += now.saturating_duration_since(since);
        }
    }

    /// Returns the jobs that run.
    pub(super) fn running(&self, now: Instant) -> Vec<RunningJob> {
        let runs = self.workers.iter().filter_map(|worker| worker.runs.as_ref());
        runs.map(|(route, since)| RunningJob {
            route: Arc::clone(route),
            runs_for: now.saturating_duration_since(*since),
        })
        .collect()
    }

    /// Returns all metrics except the queue's.
    pub(super) fn metrics(&self, now: Instant) -> WorkerMetrics {
        let busy = |worker: &Worker| match worker.runs {
            Some((_, since)) => worker.busy + now.saturating_duration_since(since),
            None => worker.busy,
        };
        WorkerMetrics {
            workers: self.workers.len(),
            running: self.running(now),
            jobs: self.jobs,
            refused: self.refused,
            cancelled: self.cancelled,
            panics: self.panics,
            waits: self.waits.clone(),
            longest_wait: self.longest.at(now),
            busy: self.workers.iter().map(busy).collect(),
            ..WorkerMetrics::default()
        }
    }
}

/// A maximum over the current second and the one before.
struct Longest {
    began: Instant,
    current: Duration,
    previous: Duration,
}

const SPAN: Duration = Duration::from_secs(1);

impl Longest {
    fn new(now: Instant) -> Self {
        Self { began: now, current: Duration::ZERO, previous: Duration::ZERO }
    }

    fn note(&mut self, wait: Duration, now: Instant) {
        let spans = now.saturating_duration_since(self.began).as_secs();
        if spans > 0 {
            self.previous = if spans == 1 { self.current } else { Duration::ZERO };
            self.current = Duration::ZERO;
            self.began = now;
        }
        self.current = self.current.max(wait);
    }

    fn at(&self, now: Instant) -> Duration {
        match now.saturating_duration_since(self.began) {
            age if age < SPAN => self.current.max(self.previous),
            age if age < 2 * SPAN => self.current,
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_and_busy_times_are_sums_and_the_longest_wait_is_forgotten() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut recorder = Recorder::new(2, start);
        recorder.start(1, "/a".into(), at(0), at(30));
        recorder.start(0, "/b".into(), at(20), at(40));
        let metrics = recorder.metrics(at(50));
        let ms = Duration::from_millis;
        assert_eq!((metrics.waits.sum(), metrics.longest_wait), (ms(50), ms(30)));
        assert_eq!(metrics.busy, [ms(10), ms(20)]);
        assert_eq!(
            metrics.running,
            [("/b", 10), ("/a", 20)]
                .map(|(route, for_ms)| RunningJob { route: route.into(), runs_for: ms(for_ms) })
        );
        recorder.end(1, at(130), true);
        recorder.end(0, at(140), false);
        let metrics = recorder.metrics(at(1500));
        assert_eq!((metrics.jobs, metrics.panics), (2, 1));
        assert_eq!(metrics.busy, [ms(100), ms(100)]);
        assert_eq!(metrics.longest_wait, ms(30), "half a second into the next");
        assert_eq!(recorder.metrics(at(2000)).longest_wait, ms(0));
    }
}
