//! The log of `throng serve` and `throng balance`: events with fields, written by a separate
//! thread.
//!
//! A caller only copies values into a bounded queue. If the reader of the log is slow, or clients
//! cause more lines of a kind than `log.max_rate`, lines are dropped and counted: no event loop
//! waits for a log. Each kind of lines that clients cause may use at most as much of the queue as
//! it leaves free: a flood of one kind of line displaces no other.

mod access;
pub(crate) mod events;
mod library;
mod render;
mod sink;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throng::metrics::openmetrics::{Type, Writer};
use throng_config::{AccessDetail, LogSettings};

use self::events::KINDS;
pub(crate) use self::events::LogEvent;
use self::render::Record;
pub(crate) use self::render::Value;
use self::sink::Sink;
pub(crate) use library::log_event;
#[cfg(feature = "balance")]
pub(crate) use library::{log_issued, log_retried};

/// Maximum records that wait to be written. With values of usual length, two megabytes.
const QUEUE: usize = 8192;

/// The time for the last lines when the process ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A log. Clones share it.
#[derive(Clone)]
pub(crate) struct Log(Arc<Inner>);

struct Inner {
    queue: SyncSender<Job>,
    is_in_file: bool,
    level: AtomicU8,
    access: AtomicU8,
    sample: AtomicU32,
    /// Requests and sessions that may be logged by sampling, ever.
    candidates: AtomicU32,
    max_rate: AtomicU32,
    /// By the number of the event.
    kinds: [KindCounters; KINDS],
    /// Lines in the queue that clients caused.
    waiting: AtomicUsize,
    /// Total lines dropped for their rate, for lack of room in the queue, and because they could
    /// not be written.
    over_rate: AtomicU64,
    over_queue: AtomicU64,
    unwritten: AtomicU64,
    /// The file must be opened again, and the queue was full.
    reopens: AtomicBool,
}

/// Lines of a kind that clients cause.
#[derive(Debug, Default)]
struct KindCounters {
    /// A second since 1970, and the lines in it.
    second: AtomicU64,
    lines: AtomicU32,
    /// Lines in the queue.
    waiting: AtomicUsize,
}

enum Job {
    Write(Box<Record>),
    /// Open the file again, after all earlier lines.
    Reopen,
    /// Write everything, then answer.
    Flush(SyncSender<()>),
}

impl Log {
    /// Opens the log and starts the thread that writes it.
    ///
    /// # Errors
    /// The file cannot be opened, or no thread can be started.
    pub(crate) fn open(settings: &LogSettings) -> io::Result<Self> {
        let sink = Sink::open(settings)?;
        let (queue, jobs) = mpsc::sync_channel(QUEUE);
        let inner = Arc::new(Inner {
            queue,
            is_in_file: settings.file.is_some(),
            level: AtomicU8::default(),
            access: AtomicU8::default(),
            sample: AtomicU32::default(),
            candidates: AtomicU32::default(),
            max_rate: AtomicU32::default(),
            kinds: std::array::from_fn(|_| KindCounters::default()),
            waiting: AtomicUsize::default(),
            over_rate: AtomicU64::default(),
            over_queue: AtomicU64::default(),
            unwritten: AtomicU64::default(),
            reopens: AtomicBool::default(),
        });
        let log = Self(Arc::clone(&inner));
        log.configure(settings);
        // The thread ends with the last clone of the log, so it must not own one.
        let counts = Arc::downgrade(&inner);
        let thread = std::thread::Builder::new().name("log".to_owned()).stack_size(256 << 10);
        let started = thread.spawn(move || sink.run(&jobs, &counts));
        started.map_err(|error| throng_io::limits::thread_not_started(&error))?;
        Ok(log)
    }

    /// Applies the settings that can change.
    pub(crate) fn configure(&self, settings: &LogSettings) {
        let inner = &self.0;
        inner.level.store(settings.level as u8, Relaxed);
        inner.access.store(settings.access as u8, Relaxed);
        inner.sample.store(settings.sample, Relaxed);
        inner.max_rate.store(settings.max_rate, Relaxed);
    }

    /// Logs an event.
    pub(crate) fn event(
        &self,
        event: &'static LogEvent,
        message: impl ToString,
        fields: impl Into<Vec<(&'static str, Value)>>,
    ) {
        if self.is_on(event) {
            self.add(event, message.to_string(), fields.into());
        }
    }

    /// Logs that the process has started, unless standard output shows it on the same terminal.
    pub(crate) fn started(
        &self,
        event: &'static LogEvent,
        fields: impl Into<Vec<(&'static str, Value)>>,
    ) {
        if !self.is_on_same_terminal() {
            self.event(event, "", fields);
        }
    }

    /// Returns whether people see standard output beside the log.
    pub(crate) fn is_on_same_terminal(&self) -> bool {
        !self.0.is_in_file && io::stdout().is_terminal() && io::stderr().is_terminal()
    }

    /// Returns whether an event is logged.
    fn is_on(&self, event: &LogEvent) -> bool {
        event.level as u8 <= self.0.level.load(Relaxed)
    }

    fn add(&self, event: &'static LogEvent, message: String, fields: Vec<(&'static str, Value)>) {
        debug_assert!(
            fields.iter().all(|(name, _)| event.fields.contains(name)),
            "the table does not have all fields of {}: {fields:?}",
            event.name
        );
        let at = SystemTime::now();
        if event.is_limited && !self.admit(event, at) {
            self.0.over_rate.fetch_add(1, Relaxed);
            return;
        }
        let record = Box::new(Record { event, at, message, fields });
        if !self.0.enqueue(record) {
            self.0.over_queue.fetch_add(1, Relaxed);
        }
    }

    /// Counts a line that a client caused; returns false if this second already had enough of its
    /// kind.
    fn admit(&self, event: &LogEvent, at: SystemTime) -> bool {
        let most = self.0.max_rate.load(Relaxed);
        if most == 0 {
            return true;
        }
        let kind = &self.0.kinds[event.number];
        let second = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if kind.second.swap(second, Relaxed) != second {
            kind.lines.store(0, Relaxed);
        }
        kind.lines.fetch_add(1, Relaxed) < most
    }

    /// Returns the total of dropped lines, by the reason in the metric.
    pub(crate) fn dropped_by_reason(&self) -> [(&'static str, u64); 3] {
        let inner = &self.0;
        [("rate", &inner.over_rate), ("queue", &inner.over_queue), ("write", &inner.unwritten)]
            .map(|(reason, count)| (reason, count.load(Relaxed)))
    }

    /// Writes the metric of the lines that were dropped.
    pub(crate) fn write_metrics(&self, writer: &mut Writer) {
        write_dropped(self.dropped_by_reason(), writer);
    }

    /// Returns the total of dropped lines.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped_by_reason().iter().map(|(_, count)| count).sum()
    }

    /// Opens the file of the log again, after all earlier lines: a tool has renamed it.
    pub(crate) fn reopen(&self) {
        // With a full queue, the thread is awake, and looks at the flag. It is not set otherwise:
        // the thread could see it before it takes earlier lines.
        if self.0.queue.try_send(Job::Reopen).is_err() {
            self.0.reopens.store(true, Release);
        }
    }

    /// Waits until all logged lines are written, for at most a second.
    pub(crate) fn flush(&self) {
        let (done, written) = mpsc::sync_channel(1);
        let until = std::time::Instant::now() + LAST_LINES;
        let mut job = Job::Flush(done);
        // The queue of a reader that has stopped reading stays full.
        while let Err(TrySendError::Full(back)) = self.0.queue.try_send(job) {
            if std::time::Instant::now() >= until {
                return;
            }
            job = back;
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(LAST_LINES);
    }

    /// Returns a guard that [flushes](Log::flush) the log, also when a command fails.
    pub(crate) fn flushed_at_end(&self) -> impl Drop + use<> {
        struct AtEnd(Log);
        impl Drop for AtEnd {
            fn drop(&mut self) {
                self.0.flush();
            }
        }
        AtEnd(self.clone())
    }

    fn access_detail(&self) -> AccessDetail {
        match self.0.access.load(Relaxed) {
            all if all == AccessDetail::All as u8 => AccessDetail::All,
            errors if errors == AccessDetail::Errors as u8 => AccessDetail::Errors,
            _ => AccessDetail::Off,
        }
    }
}

/// Writes the metric of the lines that were dropped, which is called the same in all programs.
pub(crate) fn write_dropped(counts: [(&'static str, u64); 3], writer: &mut Writer) {
    writer.set_prefix("throng");
    let help = "Lines of the log that were dropped, by reason: rate is log.max_rate, queue a slow \
                reader of the log, write a full or broken disk";
    let mut metric = writer.metric("log_lines_dropped", help, Type::Counter);
    for (reason, count) in counts {
        metric.sample(&[("reason", reason)], count);
    }
}

impl Inner {
    /// Queues a record. Returns false if there is no room: in the queue, or in the part of its
    /// kind, which for lines that clients cause is half of the space that other kinds leave.
    fn enqueue(&self, record: Box<Record>) -> bool {
        let event = record.event;
        if !event.is_limited {
            return self.queue.try_send(Job::Write(record)).is_ok();
        }
        let (of_kind, all) = (&self.kinds[event.number].waiting, &self.waiting);
        if of_kind.load(Relaxed) + all.load(Relaxed) >= QUEUE {
            return false;
        }
        // Counted first: the thread may already take it before this one continues.
        of_kind.fetch_add(1, Relaxed);
        all.fetch_add(1, Relaxed);
        let is_queued = self.queue.try_send(Job::Write(record)).is_ok();
        if !is_queued {
            self.dequeued(event);
        }
        is_queued
    }

    /// Counts a record that has left the queue.
    fn dequeued(&self, event: &LogEvent) {
        if event.is_limited {
            self.kinds[event.number].waiting.fetch_sub(1, Relaxed);
            self.waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
