//! Reads files on a separate thread: a file system may not answer, for example over a network, and
//! the thread that waits for signals must not wait for it.

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use crate::log::{Log, events};

/// The time after which the log gets a warning.
const LONG: Duration = Duration::from_secs(10);

/// The time that work has to finish at the end of the process.
const AT_END: Duration = Duration::from_secs(1);

/// A thread that does one piece of work at a time.
pub(crate) struct Aside<W> {
    work: SyncSender<W>,
    /// Its sender is gone when the thread has ended.
    ended: Receiver<()>,
    /// Since when it has refused work.
    busy_since: Option<Instant>,
    is_warned: bool,
}

impl<W: Send + 'static> Aside<W> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) fn start(mut carry_out: impl FnMut(W) + Send + 'static) -> io::Result<Self> {
        // Without a queue: work is accepted when the work before it is done.
        let (work, taken) = mpsc::sync_channel(0);
        let (alive, ended) = mpsc::channel();
        let run = move || {
            taken.iter().for_each(&mut carry_out);
            // In this order: a caller that waits for the end may use resources of the work.
            drop(carry_out);
            drop(alive);
        };
        let thread = std::thread::Builder::new().name("files".to_owned()).spawn(run);
        thread.map_err(|error| throng_io::limits::thread_not_started(&error))?;
        Ok(Self { work, ended, busy_since: None, is_warned: false })
    }

    /// Ends the thread, and waits briefly for its work.
    pub(crate) fn end(self) {
        drop(self.work);
        let _ = self.ended.recv_timeout(AT_END);
    }

    /// Passes work to the thread. If the thread is busy, returns the work, to offer it again later.
    ///
    /// # Panics
    /// Its thread has panicked.
    pub(crate) fn offer(&mut self, work: W, log: &Log) -> Result<(), W> {
        match self.work.try_send(work) {
            Ok(()) => {
                (self.busy_since, self.is_warned) = (None, false);
                Ok(())
            }
            Err(TrySendError::Full(work)) => {
                let since = *self.busy_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= LONG && !self.is_warned {
                    self.is_warned = true;
                    let message = "a file of the settings or of a certificate is not read: its \
                                   file system does not answer; nothing is reloaded until it does";
                    log.event(&events::WARNING, message, []);
                }
                Err(work)
            }
            Err(TrySendError::Disconnected(_)) => panic!("the thread that reads files panicked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use throng_config::LogSettings;

    use super::*;

    #[test]
    fn work_that_does_not_end_holds_up_no_caller() {
        let log = Log::open(&LogSettings::default()).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let (done, finished) = mpsc::channel();
        let mut aside = Aside::start(move |number: u32| {
            let _ = held.recv();
            done.send(number).unwrap();
        })
        .unwrap();
        // Until the thread has started.
        while aside.offer(1, &log).is_err() {
            std::thread::yield_now();
        }
        assert_eq!(aside.offer(2, &log), Err(2), "it is at work");
        assert_eq!(aside.offer(2, &log), Err(2), "and this returns all the same");
        drop(release);
        assert_eq!(finished.recv(), Ok(1));
        while aside.offer(2, &log).is_err() {
            std::thread::yield_now();
        }
        assert_eq!(finished.recv(), Ok(2));
    }
}
