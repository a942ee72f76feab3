//! The thread that writes the log.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use throng_config::{LogFormat, LogSettings};

use super::events::{LOG_DROPPED, LOG_FAILED};
use super::render::{Form, Record, render};
use super::{Inner, Job};
use crate::terminal;

/// Lines are written together up to this many bytes.
const BATCH: usize = 64 << 10;

/// The time between two looks for dropped lines.
const LOOK: Duration = Duration::from_secs(1);

/// Where lines go.
pub(super) struct Sink {
    form: Form,
    /// `None`: standard error.
    file: Option<(PathBuf, File)>,
    /// The counts of dropped lines that were reported.
    over_rate: u64,
    over_queue: u64,
}

impl Sink {
    pub(super) fn open(settings: &LogSettings) -> io::Result<Self> {
        let file = match &settings.file {
            Some(path) => Some((path.clone(), append_to(path)?)),
            None => None,
        };
        let on_terminal = file.is_none() && stderr().is_terminal();
        let replaces_line = on_terminal && terminal::is_replaceable(&stderr());
        let form = match settings.format {
            LogFormat::Text => Form::Text { replaces_line },
            LogFormat::Json => Form::Json,
            LogFormat::Journald => Form::Journald,
            LogFormat::Auto if on_terminal => Form::Text { replaces_line },
            LogFormat::Auto if file.is_none() && is_read_by_the_journal() => Form::Journald,
            LogFormat::Auto => Form::Json,
        };
        Ok(Self { form, file, over_rate: 0, over_queue: 0 })
    }

    /// Writes what comes, until the log is gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>, counts: &Weak<Inner>) {
        let mut lines = String::new();
        loop {
            let first = match jobs.recv_timeout(LOOK) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut next = first;
            while let Some(job) = next {
                match job {
                    Job::Write(record) => {
                        if let Some(inner) = counts.upgrade() {
                            inner.dequeued(record.event);
                        }
                        render(&record, self.form, &mut lines);
                    }
                    Job::Reopen => {
                        self.write(&mut lines);
                        self.reopen(&mut lines);
                    }
                    Job::Flush(done) => {
                        self.report_dropped(counts, &mut lines);
                        self.write(&mut lines);
                        let _ = done.send(());
                    }
                }
                if lines.len() >= BATCH {
                    self.write(&mut lines);
                }
                next = jobs.try_recv().ok();
            }
            self.report_dropped(counts, &mut lines);
            self.write(&mut lines);
        }
    }

    /// Writes the lines and forgets them. A full disk or a reader that has left must not end the
    /// process.
    fn write(&mut self, lines: &mut String) {
        if lines.is_empty() {
            return;
        }
        let _ = match &mut self.file {
            Some((_, file)) => file.write_all(lines.as_bytes()),
            None => stderr().lock().write_all(lines.as_bytes()),
        };
        lines.clear();
        lines.shrink_to(2 * BATCH);
    }

    /// Opens the file again; if that fails, the old one stays, and gets a line about it.
    fn reopen(&mut self, lines: &mut String) {
        let Some((path, file)) = &mut self.file else { return };
        match append_to(path) {
            Ok(opened) => *file = opened,
            Err(error) => {
                let reason = format!("{}: {error}", path.display());
                let record = Record {
                    event: &LOG_FAILED,
                    at: SystemTime::now(),
                    message: String::new(),
                    fields: vec![("reason", reason.into())],
                };
                render(&record, self.form, lines);
            }
        }
    }

    /// Adds lines about those that were dropped since the last look.
    fn report_dropped(&mut self, counts: &Weak<Inner>, lines: &mut String) {
        let Some(inner) = counts.upgrade() else { return };
        let (rate, queue) = (inner.over_rate.load(Relaxed), inner.over_queue.load(Relaxed));
        let reported = [
            (rate - self.over_rate, "more than log.max_rate"),
            (queue - self.over_queue, "the reader of the log is slow"),
        ];
        (self.over_rate, self.over_queue) = (rate, queue);
        for (dropped, reason) in reported.into_iter().filter(|(dropped, _)| *dropped > 0) {
            let record = Record {
                event: &LOG_DROPPED,
                at: SystemTime::now(),
                message: String::new(),
                fields: vec![("lines", dropped.into()), ("reason", reason.into())],
            };
            render(&record, self.form, lines);
        }
    }
}

fn append_to(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Returns whether standard error is the socket of systemd's journal: `JOURNAL_STREAM` has its
/// device and inode (systemd.exec(5)).
fn is_read_by_the_journal() -> bool {
    #[cfg(target_os = "linux")]
    {
        use std::os::linux::fs::MetadataExt;
        let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
        std::fs::metadata("/proc/self/fd/2")
            .is_ok_and(|meta| stream == format!("{}:{}", meta.st_dev(), meta.st_ino()))
    }
    #[cfg(not(target_os = "linux"))]
    false
}
