//! Questions to the broker, and their answers.

use std::cell::Cell;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use tokio::sync::oneshot;

/// Maximum questions that wait at a time.
const MAX_QUESTIONS: usize = 1_024;

/// Error of a question to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// Too many questions wait already.
    Busy,
    /// The broker has not answered in time.
    NoAnswer,
    /// The broker has answered with this error.
    Failed(String),
    /// The broker has not accepted the message: no member receives it.
    Refused,
    /// The message was sent, and the broker has not answered: members may receive it.
    Unknown,
    /// The calling thread must not wait, because it would have to produce the answer.
    OwnThread,
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("too many questions wait for the cluster; try again later"),
            Self::NoAnswer => f.write_str("the cluster does not answer; try again later"),
            Self::Failed(why) => write!(f, "the cluster answers: {why}"),
            Self::Refused => f.write_str("the message was refused; try again later"),
            Self::Unknown => f.write_str(
                "the cluster has not answered: whether it has taken the message is unknown",
            ),
            Self::OwnThread => f.write_str(
                "an answer of the cluster cannot be waited for on its own thread; use another one",
            ),
        }
    }
}

impl std::error::Error for AskError {}

/// A pending answer: a future for any runtime. It completes within some seconds, with an answer or
/// an error.
#[derive(Debug)]
#[must_use = "nothing is known before it is waited for"]
pub struct Reply<T>(oneshot::Receiver<Result<T, AskError>>);

impl<T> Future for Reply<T> {
    type Output = Result<T, AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = pin!(&mut self.0).poll(cx);
        answer.map(|answer| answer.unwrap_or(Err(AskError::NoAnswer)))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static IS_OF_A_NODE: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as a node's thread, which produces the answers.
pub(super) fn mark_thread() {
    IS_OF_A_NODE.set(true);
}

/// Returns whether answers come from this thread: waiting for one here would never end.
#[must_use]
pub fn is_thread_of_a_node() -> bool {
    IS_OF_A_NODE.get()
}

/// Waits for a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A place among the questions that wait.
#[derive(Debug)]
struct ReplyPlace(Arc<AtomicUsize>);

impl Drop for ReplyPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The waiting caller of a question. If this is dropped without an answer, the caller gets
/// [`AskError::NoAnswer`].
#[derive(Debug)]
pub(super) struct Waiting<T> {
    answer: oneshot::Sender<Result<T, AskError>>,
    _place: ReplyPlace,
}

impl<T> Waiting<T> {
    /// Returns the pending answer, and an entry for its question among `asks`, unless too many
    /// questions wait.
    pub(super) fn begin(asks: &Arc<AtomicUsize>) -> (Reply<T>, Option<Self>) {
        let (answer, reply) = oneshot::channel();
        let place = ReplyPlace(Arc::clone(asks));
        if asks.fetch_add(1, Ordering::Relaxed) >= MAX_QUESTIONS {
            let _ = answer.send(Err(AskError::Busy));
            return (Reply(reply), None);
        }
        (Reply(reply), Some(Self { answer, _place: place }))
    }

    pub(super) fn answer(self, answer: Result<T, AskError>) {
        let _ = self.answer.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_bounded_and_an_answer_always_comes() {
        let asks = Arc::new(AtomicUsize::new(0));
        let begin = |_| Waiting::<u64>::begin(&asks);
        let mut waiting: Vec<_> = (0..MAX_QUESTIONS).map(begin).collect();
        let (reply, refused) = Waiting::<u64>::begin(&asks);
        assert!(refused.is_none());
        assert_eq!(block_on(reply), Err(AskError::Busy));
        let (reply, question) = waiting.pop().unwrap();
        drop(question);
        assert_eq!(block_on(reply), Err(AskError::NoAnswer));
        let (reply, question) = Waiting::begin(&asks);
        let answer = std::thread::spawn(move || question.unwrap().answer(Ok(7)));
        assert_eq!(block_on(reply), Ok(7));
        answer.join().unwrap();
        drop(waiting);
        assert_eq!(asks.load(Ordering::Relaxed), 0);
    }
}
