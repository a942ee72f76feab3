//! Settings of the pool: its size, and its overload policy.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use throng_proto::{SettingError, UnknownName};

use crate::limits::setters;

/// Maximum workers: each needs a stack, and a thread the kernel schedules.
pub const MAX_POOL_SIZE: usize = 4096;

/// The settings of a pool of workers.
///
/// ```
/// # use throng_engine as throng;
/// use throng::workers::{Overload, WorkerSettings};
///
/// let settings = WorkerSettings::default().pool_size(32).overload(Overload::Close);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct WorkerSettings {
    /// Threads. Default `None`: one for each usable CPU. For handlers that block see
    /// [`suggested_size`].
    pub pool_size: Option<usize>,
    /// Maximum jobs that wait, besides one job of each paused connection; at least 1. Default
    /// 4096. Each keeps its input in memory: a message, or a request with its body.
    pub queue_size: usize,
    /// A connection's jobs always run on the same worker, for state that they keep in its thread.
    /// Default false: they run on any free worker, so that none is idle while there is work.
    pub affinity: bool,
    /// Policy for a full queue.
    pub overload: Overload,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self { pool_size: None, queue_size: 4096, affinity: false, overload: Overload::Pause }
    }
}

setters! { WorkerSettings:
    queue_size: usize,
    affinity: bool,
    overload: Overload,
    ;
    pool_size: Option<usize>,
}

/// Policy for work that finds the queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overload {
    /// Work waits for room, and its connection is not read until there is: TCP carries the delay to
    /// the peer, and nothing is lost. The default. The last work of a session that has ended has no
    /// connection that could wait: it is refused.
    #[default]
    Pause,
    /// Work is refused: a session is closed with 1013 (try again later), a request answered with
    /// 503.
    Close,
}

impl Overload {
    /// Returns the name used in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Close => "close",
        }
    }
}

/// The error names the possible values; the caller knows the setting.
impl FromStr for Overload {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "pause" => Ok(Self::Pause),
            "close" => Ok(Self::Close),
            _ => Err(UnknownName::new(&["pause", "close"])),
        }
    }
}

impl WorkerSettings {
    /// Checks these settings.
    ///
    /// # Errors
    /// The caller's mistake, naming the setting, the value and the remedy.
    pub fn check(&self) -> Result<(), WorkerError> {
        if let Some(size) = self.pool_size
            && !(1..=MAX_POOL_SIZE).contains(&size)
        {
            return Err(WorkerError::PoolSize(size));
        }
        if self.queue_size == 0 {
            return Err(WorkerError::QueueSize);
        }
        Ok(())
    }

    /// The threads that [`pool_size`](Self::pool_size) comes to.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool_size.unwrap_or_else(usable_cpus)
    }
}

/// The CPUs this process may use.
#[must_use]
pub fn usable_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns how many workers keep `cpus` busy with handlers that block for `blocking` and compute
/// for `cpu`, for each message:
/// `cpus + (blocking / cpu) * cpus`, rounded up, at most [`MAX_POOL_SIZE`].
///
/// At this size the CPUs become the limit; fewer workers leave them idle while messages wait, and
/// more only wait for each other. Measure both times under load: a database that slows down under
/// parallel queries needs fewer workers.
///
/// ```
/// use std::time::Duration;
/// # use throng_engine as throng;
/// use throng::workers::suggested_size;
///
/// // 5 ms at the database and 1 ms of computing, on 4 CPUs.
/// assert_eq!(suggested_size(4, Duration::from_millis(5), Duration::from_millis(1)), 24);
/// assert_eq!(suggested_size(4, Duration::ZERO, Duration::from_millis(1)), 4);
/// ```
#[must_use]
pub fn suggested_size(cpus: usize, blocking: Duration, cpu: Duration) -> usize {
    let cpus = cpus.max(1) as u128;
    let (blocking, cpu) = (blocking.as_nanos(), cpu.as_nanos().max(1));
    let size = cpus.saturating_add(blocking.saturating_mul(cpus).div_ceil(cpu));
    usize::try_from(size).unwrap_or(usize::MAX).min(MAX_POOL_SIZE)
}

/// Error of the settings or the start of a pool.
#[derive(Debug)]
#[non_exhaustive]
pub enum WorkerError {
    /// No workers, or too many to make sense.
    PoolSize(usize),
    /// A queue without room for any job.
    QueueSize,
    /// The system gave fewer threads.
    Threads {
        /// Number of threads requested.
        asked: usize,
        /// Number of threads started.
        started: usize,
        /// Reason given by the system.
        source: std::io::Error,
    },
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoolSize(size) => write!(
                f,
                "workers.pool_size is {size}; give 1 to {MAX_POOL_SIZE}, or leave it out for one \
                 for each usable CPU"
            ),
            Self::QueueSize => f.write_str(
                "workers.queue_size is 0, which leaves no job room to wait; give at least 1, or \
                 leave it out for 4096",
            ),
            Self::Threads { asked, started, source } => write!(
                f,
                "workers.pool_size is {asked}, but the system started {started} threads and no \
                 more ({source}); lower it, or allow more threads: `ulimit -u`, TasksMax= of the \
                 systemd unit, pids.max of the container"
            ),
        }
    }
}

impl From<WorkerError> for SettingError {
    fn from(error: WorkerError) -> Self {
        let setting = match error {
            WorkerError::QueueSize => "workers.queue_size",
            WorkerError::PoolSize(_) | WorkerError::Threads { .. } => "workers.pool_size",
        };
        Self::new(setting, error.to_string())
    }
}

impl std::error::Error for WorkerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Threads { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_holds_at_its_edges() {
        let ms = Duration::from_millis;
        for (cpus, blocking, cpu, size) in [
            (2, ms(5), ms(1), 12),
            (2, ms(1), ms(3), 3),
            (8, ms(0), ms(7), 8),
            (0, ms(1), ms(1), 2),
            (4, ms(5), ms(0), MAX_POOL_SIZE),
            (usize::MAX, Duration::MAX, Duration::from_nanos(1), MAX_POOL_SIZE),
        ] {
            assert_eq!(suggested_size(cpus, blocking, cpu), size, "{cpus} {blocking:?} {cpu:?}");
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_the_remedy() {
        let notified = |settings: WorkerSettings| settings.check().unwrap_err().to_string();
        let usual = WorkerSettings::default();
        assert!(usual.check().is_ok() && usual.threads() >= 1);
        let many = notified(usual.pool_size(5000));
        assert!(many.contains("workers.pool_size is 5000") && many.contains("1 to 4096"));
        assert!(notified(usual.pool_size(0)).contains("workers.pool_size is 0"));
        let none = notified(usual.queue_size(0));
        assert!(none.contains("workers.queue_size is 0") && none.contains("at least 1"));
        assert_eq!("close".parse(), Ok(Overload::Close));
        assert_eq!(Overload::Pause.name().parse(), Ok(Overload::Pause));
        assert!("drop".parse::<Overload>().unwrap_err().to_string().contains("pause or close"));
    }
}
