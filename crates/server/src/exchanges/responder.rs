//! Responses from other threads.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;

use throng_engine::Remote;
use throng_http::{IntoResponse, Reject, Response, Status};
use throng_io::ConnId;

use super::ExchangeEvent;
use super::writer::{BodyWriter, body};
use crate::accept::AnyAccept;
use crate::panic_notice::{PanicNotice, Reporter};

/// Answers one request, now or later, from any thread.
///
/// Until the answer, the connection's next request waits, so responses keep their order. Other
/// connections are not affected. A responder that is dropped without a response answers with 500.
/// If the client has disconnected, the response is dropped; [`is_closed`](Self::is_closed) and
/// [`closed`](Self::closed) report that earlier.
#[must_use = "dropped without a response, it answers with 500"]
pub struct Responder {
    remote: Remote,
    id: ConnId,
    answered: bool,
    client: Arc<Client>,
    reporter: Arc<Reporter>,
    /// The thread of the handler's shard.
    shard: ThreadId,
    /// Makes the response if this is dropped without one.
    fallback: fn() -> Response,
}

impl Responder {
    /// Creates the responder of a request, and the guard by which the connection reports that its
    /// client has left.
    pub(crate) fn new(remote: Remote, id: ConnId, reporter: Arc<Reporter>) -> (Self, ClientGuard) {
        let client = Arc::<Client>::default();
        let guard = ClientGuard(Arc::clone(&client));
        let (shard, fallback) = (std::thread::current().id(), Self::no_answer as fn() -> Response);
        (Self { remote, id, answered: false, client, reporter, shard, fallback }, guard)
    }

    /// Returns whether the client has left: it has closed its connection, or its side of it, or the
    /// server has closed it. A client that has closed only its side still gets the response.
    ///
    /// While more input of the client waits on the server, such as its next request, the connection
    /// is not read: then the end is noticed within about a second, and on Linux only.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.client.is_closed.load(Ordering::Acquire)
    }

    /// Waits until the client has left, as [`is_closed`](Self::is_closed) returns, so that useless
    /// work can stop. Works on any runtime.
    ///
    /// ```
    /// use std::future::Future;
    /// use throng::http::Responder;
    /// use throng::prelude::*;
    ///
    /// async fn serve(mut responder: Responder, work: impl Future<Output = String>) {
    ///     let mut work = std::pin::pin!(work);
    ///     let done = std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
    ///         std::task::Poll::Ready(text) => std::task::Poll::Ready(Some(text)),
    ///         std::task::Poll::Pending => responder.poll_closed(cx).map(|()| None),
    ///     });
    ///     match done.await {
    ///         Some(text) => responder.send(text),
    ///         None => println!("the client has left"),
    ///     }
    /// }
    /// ```
    pub async fn closed(&mut self) {
        poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Polls whether the client has left; see [`closed`](Self::closed).
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_closed() {
            return Poll::Ready(());
        }
        self.client.waiting().replace(cx.waker().clone());
        // It may have left in between.
        if self.is_closed() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Ends the request when its client ends its side of the connection.
    #[cfg(feature = "tokio")]
    pub(crate) fn end_with_client(&self) {
        self.client.ends_request.store(true, Ordering::Relaxed);
    }

    /// Returns the response of a responder that was dropped without one.
    pub(crate) fn no_answer() -> Response {
        Response::error(Status::INTERNAL_SERVER_ERROR, "this request got no answer")
    }

    /// Sets the response that is sent if this is dropped from now on.
    pub(crate) fn set_fallback(&mut self, fallback: fn() -> Response) {
        self.fallback = fallback;
    }

    /// Sends the response.
    pub fn send(mut self, answer: impl IntoResponse) {
        self.deliver(answer.into_response());
    }

    /// Sends the head of `response`, and returns a writer for its body. `length` is the
    /// Content-Length in bytes where it is known; without one the body is chunked. A body that
    /// `response` has is dropped. Writing blocks, so write on a thread that may block, never in a
    /// handler, which would wait for itself.
    pub fn stream(mut self, response: Response, length: Option<u64>) -> BodyWriter {
        let (writer, source) = body();
        self.deliver(response.with_stream(length, source));
        writer
    }

    /// Sends the decision on an upgrade.
    pub(crate) fn decide(mut self, decision: Result<AnyAccept, Reject>) {
        self.answered = true;
        self.remote.post(self.id, Box::new(ExchangeEvent::Upgrade(decision)));
    }

    fn deliver(&mut self, response: Response) {
        self.answered = true;
        self.remote.post(self.id, Box::new(ExchangeEvent::Answer(response)));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if std::thread::panicking() {
            let notice = PanicNotice::new(&self.reporter, self.id);
            let is_in_handler = !self.client.is_awaited.load(Ordering::Relaxed);
            if is_in_handler && std::thread::current().id() == self.shard {
                // The shard catches this panic.
                return notice.answer();
            }
            return self.remote.post(self.id, Box::new(ExchangeEvent::RequestPanicked(notice)));
        }
        self.deliver((self.fallback)());
    }
}

/// State of the client that the responder and the connection share.
#[derive(Default)]
struct Client {
    is_closed: AtomicBool,
    /// Whether the handler has returned, so that the connection waits for the response.
    is_awaited: AtomicBool,
    /// The request ends when its client ends its side of the connection.
    ends_request: AtomicBool,
    waiting: Mutex<Option<Waker>>,
}

impl Client {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection's side of a responder: dropping it with the request marks the client as gone.
pub(crate) struct ClientGuard(Arc<Client>);

impl ClientGuard {
    /// Records that the handler has returned.
    pub(crate) fn await_response(&self) {
        self.0.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Marks the client as gone and wakes the task that waits for it.
    pub(crate) fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        let waiting = self.0.waiting().take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Returns whether the client is marked as gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    /// Returns whether the request ends with its client's side of the connection.
    pub(crate) fn ends_request(&self) -> bool {
        self.0.ends_request.load(Ordering::Relaxed)
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("answered", &self.answered).finish_non_exhaustive()
    }
}
