//! The thread that writes the log.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use throng_config::{LogFormat, LogSettings};

use super::events::{LOG_DROPPED, LOG_FAILED};
use super::render::{Form, Record, render};
use super::{Inner, Job, QUEUE};
use crate::terminal;

/// Lines are written together up to this many bytes.
const BATCH: usize = 64 << 10;

/// The time between two checks for dropped lines.
const LOOK: Duration = Duration::from_secs(1);

/// The minimum time between two messages on standard error about a file that cannot be written.
const BETWEEN_COMPLAINTS: Duration = Duration::from_secs(60);

/// Where lines go.
pub(super) struct Sink {
    form: Form,
    /// `None`: standard error.
    file: Option<(PathBuf, File)>,
    /// Whether the last line is incomplete and could not be removed: the next line then begins on a
    /// new line.
    owes_newline: bool,
    /// The counts of dropped lines at the last report.
    over_rate: u64,
    over_queue: u64,
    unwritten: u64,
    /// The last write failed.
    has_failed: bool,
    /// When standard error had a message about such a failure.
    complained: Option<Instant>,
}

impl Sink {
    pub(super) fn open(settings: &LogSettings) -> io::Result<Self> {
        let file = match &settings.file {
            Some(path) => Some((path.clone(), throng_io::file::append(path)?)),
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
        let owes_newline = file.as_ref().is_some_and(|(path, _)| ends_within_line(path));
        Ok(Self {
            form,
            file,
            owes_newline,
            over_rate: 0,
            over_queue: 0,
            unwritten: 0,
            has_failed: false,
            complained: None,
        })
    }

    /// Writes all jobs, until the log is gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>, counts: &Weak<Inner>) {
        let mut lines = String::new();
        loop {
            let first = match jobs.recv_timeout(LOOK) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.take(first, jobs, counts, &mut lines);
            if is_reopened(counts) {
                // The queue was full: the lines that wait were logged before the request.
                self.take(jobs.try_recv().ok(), jobs, counts, &mut lines);
                self.reopen(&mut lines);
            }
            self.report_dropped(counts, &mut lines);
            self.write(&mut lines, counts);
        }
    }

    /// Writes the first job and those that wait.
    fn take(
        &mut self,
        first: Option<Job>,
        jobs: &Receiver<Job>,
        counts: &Weak<Inner>,
        lines: &mut String,
    ) {
        let mut next = first;
        let mut most = QUEUE;
        while let Some(job) = next {
            match job {
                Job::Write(record) => {
                    if let Some(inner) = counts.upgrade() {
                        inner.dequeued(record.event);
                    }
                    render(&record, self.form, lines);
                }
                Job::Reopen => {
                    self.write(lines, counts);
                    self.reopen(lines);
                }
                Job::Flush(done) => {
                    self.report_dropped(counts, lines);
                    self.write(lines, counts);
                    let _ = done.send(());
                }
            }
            if lines.len() >= BATCH {
                self.write(lines, counts);
            }
            // Bounded, so that flags are noticed even if the queue never runs empty.
            most -= 1;
            next = if most > 0 { jobs.try_recv().ok() } else { None };
        }
        self.write(lines, counts);
    }

    /// Writes the lines and clears them. A full disk or a reader that has left must not end the
    /// process: unwritten lines are counted, and a partial line is cut off.
    fn write(&mut self, lines: &mut String, counts: &Weak<Inner>) {
        if lines.is_empty() {
            return;
        }
        if self.owes_newline {
            lines.insert(0, '\n');
        }
        let written = match &mut self.file {
            Some((_, file)) => write_all(file, lines.as_bytes()),
            None => write_all(&mut stderr().lock(), lines.as_bytes()),
        };
        match written {
            Ok(()) => {
                self.owes_newline = false;
                self.has_failed = false;
            }
            Err((at, error)) => {
                let (written, rest) = lines.as_bytes().split_at(at);
                let begun = written.iter().rev().take_while(|byte| **byte != b'\n').count();
                let lost = rest.iter().filter(|byte| **byte == b'\n').count() as u64;
                let owed = usize::from(self.owes_newline && at == 0);
                if at > 0 {
                    self.owes_newline = begun > 0 && !self.cut_off(begun);
                }
                if let Some(inner) = counts.upgrade() {
                    inner.unwritten.fetch_add(lost - owed as u64, Relaxed);
                }
                self.complain(&error, counts);
                self.has_failed = true;
            }
        }
        lines.clear();
        lines.shrink_to(2 * BATCH);
    }

    /// Cuts off the last bytes of the file, which are this log's: no other process appends to it
    /// while it cannot be written. Returns false if that is not possible: it is a pipe, or standard
    /// error, whose file may have other writers.
    fn cut_off(&self, bytes: usize) -> bool {
        let Some((_, file)) = &self.file else { return false };
        let cut = || {
            let length = file.metadata()?.len();
            file.set_len(length.saturating_sub(bytes as u64))
        };
        cut().is_ok()
    }

    /// Reports on standard error, now and then, that lines of the file are lost.
    fn complain(&mut self, error: &io::Error, counts: &Weak<Inner>) {
        let Some((path, _)) = &self.file else { return };
        if self.complained.is_some_and(|at| at.elapsed() < BETWEEN_COMPLAINTS) {
            return;
        }
        self.complained = Some(Instant::now());
        let lost = counts.upgrade().map_or(0, |inner| inner.unwritten.load(Relaxed));
        let path = path.display();
        let line = format!("throng: {lost} lines of the log are lost so far: {path}: {error}\n");
        let _ = stderr().lock().write_all(line.as_bytes());
    }

    /// Opens the file again; if that fails, keeps the old one, and writes a line about it.
    fn reopen(&mut self, lines: &mut String) {
        let Some((path, file)) = &mut self.file else { return };
        match throng_io::file::append(path) {
            Ok(opened) => {
                *file = opened;
                self.owes_newline = ends_within_line(path);
            }
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

    /// Adds lines about lines dropped since the last check.
    fn report_dropped(&mut self, counts: &Weak<Inner>, lines: &mut String) {
        // Until a write succeeds, this line would also be lost.
        let Some(inner) = counts.upgrade().filter(|_| !self.has_failed) else { return };
        let (rate, queue) = (inner.over_rate.load(Relaxed), inner.over_queue.load(Relaxed));
        let unwritten = inner.unwritten.load(Relaxed);
        let reported = [
            (rate - self.over_rate, "more than log.max_rate"),
            (queue - self.over_queue, "the reader of the log is slow"),
            (unwritten - self.unwritten, "they could not be written: the disk is full, or failed"),
        ];
        (self.over_rate, self.over_queue, self.unwritten) = (rate, queue, unwritten);
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

/// Returns whether the file must be opened again, and clears the flag.
fn is_reopened(counts: &Weak<Inner>) -> bool {
    counts.upgrade().is_some_and(|inner| inner.reopens.swap(false, Acquire))
}

/// Writes all bytes, or returns how many were written, with the error.
fn write_all(to: &mut impl Write, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut at = 0;
    while at < bytes.len() {
        match to.write(&bytes[at..]) {
            Ok(0) => return Err((at, io::ErrorKind::WriteZero.into())),
            Ok(written) => at += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((at, error)),
        }
    }
    Ok(())
}

/// Returns whether the last line of a file is incomplete: a disk was full, or a process was killed.
fn ends_within_line(path: &Path) -> bool {
    let last = || {
        if !std::fs::metadata(path)?.is_file() {
            return Ok(b'\n');
        }
        let mut file = File::open(path)?;
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        io::Result::Ok(last[0])
    };
    last().is_ok_and(|last| last != b'\n')
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
