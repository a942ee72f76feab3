//! Runs the futures of a session on the runtime.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use throng_engine::CloseCode;
use throng_proto::ws::OwnedMessage;
use tokio::task::coop;

use super::outcome::AsyncOutcome;
use super::outcome::sealed::Sealed as _;
use super::session::{AsyncSender, Watch, room};
use super::shared::{AsyncCommand, SessionShared};
use super::socket::{self, AsyncSocket};

/// A task of a session. If it is dropped before it is done, the session ends.
pub(super) struct Task {
    shared: Arc<SessionShared>,
    done: bool,
}

impl Task {
    pub(super) fn new(shared: &Arc<SessionShared>) -> Self {
        Self { shared: Arc::clone(shared), done: false }
    }

    fn finish(&mut self, outcome: RunOutcome) {
        if outcome == RunOutcome::Panicked {
            self.shared.panic();
        }
        self.done = true;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if std::thread::panicking() {
            // A destructor of the user's value panicked.
            self.shared.panic();
        } else {
            close_without_runtime(&self.shared);
        }
    }
}

/// Closes a session whose runtime is shutting down.
fn close_without_runtime(shared: &Arc<SessionShared>) {
    // The session may already be over.
    let _ = shared.submit(AsyncCommand::Close(CloseCode::GOING_AWAY, "going away".into()));
}

/// Closes the session with 1001 if its future is dropped unfinished, before the drop of the
/// future's socket would close it with 1000.
struct Running<'a> {
    shared: &'a Arc<SessionShared>,
    is_over: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            close_without_runtime(self.shared);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunOutcome {
    Done,
    /// The session ended before the future did.
    Cancelled,
    Panicked,
}

/// Runs a future until it ends or panics, or, with a `watch`, until the session ends. Closes the
/// session if the future ends with an error that has a code.
async fn run(
    shared: &Arc<SessionShared>,
    future: impl Future<Output: AsyncOutcome>,
    mut watch: Option<&mut Watch>,
) -> RunOutcome {
    let mut future = pin!(future);
    // Declared after the future, so that it is dropped first.
    let mut running = Running { shared, is_over: false };
    let outcome = poll_fn(|cx| {
        if let Some(watch) = &mut watch
            && watch.poll(cx).is_ready()
        {
            return Poll::Ready(RunOutcome::Cancelled);
        }
        // A future that ends drops its socket, which would close the session before the future's
        // error does.
        let drops = socket::Drops::hold(shared);
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => {
                if let Some(close) = output.into_close() {
                    // The session may already be over.
                    let _ = shared.submit(AsyncCommand::Close(close.code, close.reason.into()));
                }
                drop(drops);
                Poll::Ready(RunOutcome::Done)
            }
            Err(payload) => {
                // The panic hook already reported it. Leak the payload: its `Drop` could panic.
                std::mem::forget(payload);
                Poll::Ready(RunOutcome::Panicked)
            }
        }
    })
    .await;
    running.is_over = true;
    outcome
}

/// Runs the only future of a session.
pub(super) async fn stream<D, F, Fut>(mut task: Task, session: AsyncSender<D>, handler: Arc<F>)
where
    F: Fn(AsyncSocket<D>) -> Fut,
    Fut: Future<Output: AsyncOutcome>,
{
    let shared = Arc::clone(&task.shared);
    let future = async { handler(AsyncSocket::new(session)).await };
    let outcome = run(&shared, future, None).await;
    task.finish(outcome);
}

/// Processes messages one after the other until none waits. If it `cancels`, the end of the session
/// cancels it.
pub(super) async fn pump<D, F, Fut>(
    mut task: Task,
    session: AsyncSender<D>,
    handler: Arc<F>,
    cancels: bool,
) where
    D: Clone,
    F: Fn(AsyncSender<D>, OwnedMessage) -> Fut,
    Fut: Future<Output: AsyncOutcome>,
{
    let mut watch = cancels.then(|| Watch::new(&session.shared));
    let mut finished = false;
    loop {
        // Bounds commands that do not wait for capacity themselves, such as subscriptions. An error
        // means that the session has ended, which the next line also finds.
        let _ = room(&session.shared).await;
        let Some(message) = session.shared.next_for_pump(finished) else { break };
        // A peer that always has another message must not monopolize the runtime's thread.
        coop::consume_budget().await;
        let (handler, given) = (&handler, session.clone());
        let future = async move { handler(given, message).await };
        let outcome = run(&session.shared, future, watch.as_mut()).await;
        finished = true;
        match outcome {
            RunOutcome::Done => {}
            // The later messages were accepted too and must still be processed.
            RunOutcome::Panicked if !cancels => session.shared.panic(),
            _ => return task.finish(outcome),
        }
    }
    task.finish(RunOutcome::Done);
}
