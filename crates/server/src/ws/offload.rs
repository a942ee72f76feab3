//! Offloaded jobs of a session, and their continuations.

use std::sync::Arc;

use throng_engine::workers::{Busy, OverflowPolicy, SubmitOutcome, credits_for};
use throng_engine::{EndReason, Fault, Remote};
use throng_io::ConnId;

use super::{SessionMail, Socket};
use crate::panic_notice::{PanicNotice, Reporter};

/// Runs on the shard after a job.
pub(super) type ContinuationFn<D> = Box<dyn FnOnce(&mut Socket<'_, D>, &mut D) + Send>;

/// A [`ContinuationFn`] to be delivered to the session's route, which alone knows `D`.
pub(super) struct Continuation<D>(pub(super) ContinuationFn<D>);

impl<D: 'static> Socket<'_, D> {
    /// Runs `work` on the server's worker pool, where it may block, and then `then` with its result
    /// on the shard, like any callback.
    ///
    /// Messages that arrive before the result are processed. The jobs of one connection run one at
    /// a time, in order, and so do their continuations. While eight jobs of a connection are
    /// pending, it is not read. If the session has ended, `then` is not called, and `work` may not
    /// be.
    ///
    /// The memory that `work` uses is not accounted for: if it keeps its message, the eight jobs of
    /// a connection use up to eight times `max_message_size`. Use
    /// [`try_offload`](Self::try_offload) for work that uses much memory.
    ///
    /// A panic in `work` closes the connection with 1011 and is counted.
    ///
    /// If the pool's queue is full, `work` waits for room, and the connection is not read until
    /// then ([`Overload::Pause`](crate::workers::Overload::Pause), the default). In two cases
    /// `work` is dropped and the connection closed with 1013: with
    /// [`Overload::Close`](crate::workers::Overload::Close), and if a second job would have to
    /// wait, such as another job of the same callback. A session that has ended or is being closed
    /// cannot be paused, and its jobs would take unbounded memory: they are refused, such as a job
    /// of `on_close`. If the work must not be lost, run it inline, or size `queue_size` for the
    /// largest simultaneous disconnect.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn slow_lookup(query: &str) -> String { query.to_uppercase() }
    /// let search = Ws::new().on_message(|ws, (), message| {
    ///     let Message::Text(query) = message else { return };
    ///     let query = query.to_owned();
    ///     ws.offload(move || slow_lookup(&query), |ws, (), answer| {
    ///         ws.send(answer);
    ///     });
    /// });
    /// # let _ = App::new().ws("/", search);
    /// ```
    pub fn offload<T, W, C>(&mut self, work: W, then: C)
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
        C: FnOnce(&mut Socket<'_, D>, &mut D, T) + Send + 'static,
    {
        if self.try_offload(0, work, then).is_err() {
            self.close_for(EndReason::Workers);
        }
    }

    /// Runs `work` like [`offload`](Self::offload), for `work` that uses `bytes` of memory, such as
    /// a message, and a caller that handles a refusal.
    ///
    /// The connection is not read while eight of its jobs are pending, or its pending jobs use 256
    /// KiB: each 32 KiB count as one more of the eight. So only one of a peer's large messages
    /// waits at a time.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn store(picture: &[u8]) -> String { picture.len().to_string() }
    /// let pictures = Ws::new().on_message(|ws, (), message| {
    ///     let picture = OwnedMessage::from(message);
    ///     let bytes = picture.as_bytes().len();
    ///     let stored = ws.try_offload(bytes, move || store(picture.as_bytes()), |ws, (), name| {
    ///         ws.send(name);
    ///     });
    ///     if stored.is_err() {
    ///         ws.send("busy");
    ///     }
    /// });
    /// # let _ = App::new().ws("/", pictures);
    /// ```
    ///
    /// # Errors
    /// [`Busy`]: `work` was refused and dropped, for the reasons that [`offload`](Self::offload)
    /// names. The connection stays open, also with
    /// [`Overload::Close`](crate::workers::Overload::Close).
    pub fn try_offload<T, W, C>(&mut self, bytes: usize, work: W, then: C) -> Result<(), Busy>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
        C: FnOnce(&mut Socket<'_, D>, &mut D, T) + Send + 'static,
    {
        let credits = credits_for(bytes);
        let context = self.context();
        let Some(pool) = context.pool.get() else { return Err(Busy) };
        let id = self.cx().id();
        let remote = self.cx().core_ref().remote().clone();
        let mut reporter = ResultReporter::new(remote, id, Arc::clone(&context.reporter));
        let work = move || {
            reporter.must_report = true;
            let result = work();
            let then: ContinuationFn<D> = Box::new(move |ws, data| then(ws, data, result));
            reporter.report(SessionMail::Continue(Box::new(Continuation(then)), credits));
        };
        // A session that has ended cannot get a result, and cannot be paused.
        let when_full = if self.cx().is_open() {
            OverflowPolicy::WaitAndNotify(credits)
        } else {
            OverflowPolicy::Refuse
        };
        match pool.submit(id, &context.path, when_full, Box::new(work)) {
            Ok(SubmitOutcome::Queued) => Ok(()),
            Ok(SubmitOutcome::Waiting | SubmitOutcome::Saturated) => {
                self.cx_mut().stop_reading();
                Ok(())
            }
            Err(busy) => Err(busy),
        }
    }
}

impl<D> Socket<'_, D> {
    /// Closes the session with the code and text of this reason, which is counted and reported as
    /// [`ServerEvent::Ended`](crate::server::ServerEvent::Ended): for failures of the server, so
    /// that nothing is lost silently. [`close`](Self::close) is for decisions of the program.
    pub fn close_for(&mut self, reason: EndReason) {
        self.close_for_with(reason, reason.text());
    }

    /// Closes the session as [`close_for`](Self::close_for) does, with another text for the client.
    pub fn close_for_with(&mut self, reason: EndReason, text: &str) {
        let id = self.cx().id();
        if self.cx().is_open() {
            self.cx_mut().core().note_fault(id, Fault::Ended(reason));
        }
        self.close(reason.code(), text);
    }
}

/// Reports the result of a job to its session, or that the job panicked.
struct ResultReporter {
    remote: Remote,
    id: ConnId,
    panics: Arc<Reporter>,
    /// The job has begun, and its end was not reported.
    must_report: bool,
}

impl ResultReporter {
    fn new(remote: Remote, id: ConnId, panics: Arc<Reporter>) -> Self {
        Self { remote, id, panics, must_report: false }
    }

    fn report(&mut self, result: SessionMail) {
        self.must_report = false;
        self.remote.post(self.id, Box::new(result));
    }
}

impl Drop for ResultReporter {
    fn drop(&mut self) {
        if self.must_report {
            let notice = PanicNotice::new(&self.panics, self.id);
            self.report(SessionMail::WorkPanicked(notice));
        }
    }
}
