//! Futures of a session on their way through the runtime.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::task::coop;

use super::session::{AsyncSession, Watch, room};
use super::shared::{Order, Shared};
use super::socket::AsyncSocket;
use crate::message::OwnedMessage;

/// A task of a session. If it is dropped before it was done, the session ends.
pub(super) struct Task {
    shared: Arc<Shared>,
    done: bool,
}

impl Task {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), done: false }
    }

    fn settle(&mut self, outcome: Outcome) {
        if outcome == Outcome::Panicked {
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
            // In the drop of something of the user's.
            self.shared.panic();
        } else {
            close_without_runtime(&self.shared);
        }
    }
}

/// The runtime is shutting down, and nobody is left to answer.
fn close_without_runtime(shared: &Arc<Shared>) {
    // It may be over already.
    let _ = shared.order(Order::Close(1001, "going away".into()));
}

/// Says why the session closes before the future is dropped with a socket that would close it with 1000.
struct Running<'a> {
    shared: &'a Arc<Shared>,
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
enum Outcome {
    Done,
    /// The session has ended before.
    Cancelled,
    Panicked,
}

/// Runs a future to its end, its panic, or the end of the session where there is a `watch` for it.
async fn run<T>(
    shared: &Arc<Shared>,
    future: impl Future<Output = T>,
    mut watch: Option<&mut Watch>,
) -> Outcome {
    let mut future = pin!(future);
    // After the future, so that it is dropped before.
    let mut running = Running { shared, is_over: false };
    let outcome = poll_fn(|cx| {
        if let Some(watch) = &mut watch
            && watch.poll(cx).is_ready()
        {
            return Poll::Ready(Outcome::Cancelled);
        }
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(_)) => Poll::Ready(Outcome::Done),
            Err(payload) => {
                // The panic hook has told people; the payload's own drop must not panic out of here.
                std::mem::forget(payload);
                Poll::Ready(Outcome::Panicked)
            }
        }
    })
    .await;
    running.is_over = true;
    outcome
}

/// Runs the one future of a session.
pub(super) async fn stream<D, F, Fut>(mut task: Task, session: AsyncSession<D>, handler: Arc<F>)
where
    F: Fn(AsyncSocket<D>) -> Fut,
    Fut: Future,
{
    let shared = Arc::clone(&task.shared);
    let future = async { handler(AsyncSocket::new(session)).await };
    let outcome = run(&shared, future, None).await;
    task.settle(outcome);
}

/// Deals with messages one after the other until none waits. The end of the session cancels it, if it `cancels`.
pub(super) async fn pump<D, F, Fut>(
    mut task: Task,
    session: AsyncSession<D>,
    handler: Arc<F>,
    cancels: bool,
) where
    D: Clone,
    F: Fn(AsyncSession<D>, OwnedMessage) -> Fut,
    Fut: Future,
{
    let mut watch = cancels.then(|| Watch::new(&session.shared));
    let mut finished = false;
    loop {
        // What is ordered without waiting for room, such as subscriptions, may be too much otherwise. If there will never
        // be room again, the session has ended, which is for the next to say.
        let _ = room(&session.shared).await;
        let Some(message) = session.shared.next_for_pump(finished) else { break };
        // A peer that always has another message is not to keep the runtime's thread for itself.
        coop::consume_budget().await;
        let (handler, given) = (&handler, session.clone());
        let future = async move { handler(given, message).await };
        let outcome = run(&session.shared, future, watch.as_mut()).await;
        finished = true;
        if outcome != Outcome::Done {
            return task.settle(outcome);
        }
    }
    task.settle(Outcome::Done);
}
